/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The control stream: records in order, over packets that get lost. A piece that was sent once is
 * sent again as it is, so that all that has to be remembered of it is whether it arrived.
 */
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "dpdk.h"

/* What an empty outbox keeps. */
#define OUTBOX_KEEP (64u * 1024)

/* Pieces that wait for an earlier one; a peer that sends smaller ones has them to send again. */
#define EARLY_MAX 2048
/* The same for all links of a context, in bytes: strangers are among them. */
#define EARLY_TOTAL (64u << 20)

void stream_start(struct stream *stream)
{
	*stream = (struct stream){0};
	TAILQ_INIT(&stream->early);
}

static struct early *take_out(struct stream *stream, struct early *early)
{
	TAILQ_REMOVE(&stream->early, early, all);
	stream->early_bytes -= early->length;
	stream->early_count--;
	if (stream->early_total)
		*stream->early_total -= early->length;
	return early;
}

void stream_stop(struct stream *stream)
{
	struct early *early;

	while ((early = TAILQ_FIRST(&stream->early)))
		free(take_out(stream, early));
	free(stream->bytes);
	free(stream->segments);
	free(stream->partial);
	stream_start(stream);
}

/* ---- Out --------------------------------------------------------------- */

/* Room for `length` more bytes behind `end`. */
static int make_room(struct stream *stream, size_t length)
{
	size_t used = (size_t)(stream->end - stream->base);
	size_t room = stream->room ? stream->room : 4096;
	uint8_t *grown;

	if (used + length > OUTBOX_MAX)
		return -ENOBUFS;
	if (stream->start + used + length <= stream->room)
		return 0;
	if (stream->start > 0 && used + length <= stream->room / 2) {
		memmove(stream->bytes, stream->bytes + stream->start, used);
		stream->start = 0;
		return 0;
	}
	while (room < used + length)
		room *= 2;
	grown = malloc(room);
	if (!grown)
		return -ENOMEM;
	if (used)
		memcpy(grown, stream->bytes + stream->start, used);
	free(stream->bytes);
	stream->bytes = grown;
	stream->room = room;
	stream->start = 0;
	return 0;
}

int stream_append(struct stream *stream, const struct packet_record *record)
{
	int error = make_room(stream, (size_t)RECORD_SMALL + record->message_length +
					      record->payload_length);

	if (error)
		return error;
	stream->end += packet_write_record(
		stream->bytes + stream->start + (stream->end - stream->base), record);
	return 0;
}

void stream_flush(struct stream *stream)
{
	stream->due = stream->end;
}

uint64_t stream_held(const struct stream *stream)
{
	return stream->end - stream->due;
}

bool stream_pending(const struct stream *stream)
{
	return stream->lost ||
	       (stream->next < stream->due && stream->next - stream->base < STREAM_WINDOW);
}

bool stream_empty(const struct stream *stream)
{
	return stream->base == stream->end;
}

static struct segment *segment_of(struct stream *stream, uint64_t number)
{
	return &stream->segments[number & (stream->segment_room - 1)];
}

static bool segments_grow(struct stream *stream)
{
	uint32_t room = stream->segment_room ? 2 * stream->segment_room : 16;
	struct segment *grown = calloc(room, sizeof(*grown));

	if (!grown)
		return false;
	for (uint64_t i = stream->segment_first; i < stream->segment_last; i++)
		grown[i & (room - 1)] = *segment_of(stream, i);
	free(stream->segments);
	stream->segments = grown;
	stream->segment_room = room;
	return true;
}

static void fill_piece(struct stream *stream, uint64_t number, struct stream_piece *piece)
{
	const struct segment *segment = segment_of(stream, number);

	piece->segment = number;
	piece->offset = segment->offset;
	piece->length = segment->length;
	piece->bytes = stream->bytes + stream->start + (segment->offset - stream->base);
}

static bool next_lost(struct stream *stream, struct stream_piece *piece)
{
	struct segment *segment;

	if (!stream->lost)
		return false;
	while (!segment_of(stream, stream->lost_from)->lost)
		stream->lost_from++;
	segment = segment_of(stream, stream->lost_from);
	segment->lost = false;
	stream->lost--;
	fill_piece(stream, stream->lost_from, piece);
	return true;
}

bool stream_next(struct stream *stream, uint32_t room, struct stream_piece *piece)
{
	uint64_t length = stream->due - stream->next;
	uint64_t window = STREAM_WINDOW - (stream->next - stream->base);

	if (next_lost(stream, piece))
		return true;
	if (length > window)
		length = window;
	if (length > room)
		length = room;
	if (length == 0)
		return false;
	if (stream->segment_last - stream->segment_first == stream->segment_room &&
	    !segments_grow(stream))
		return false;
	*segment_of(stream, stream->segment_last) =
		(struct segment){.offset = stream->next, .length = (uint32_t)length};
	stream->next += length;
	fill_piece(stream, stream->segment_last++, piece);
	return true;
}

/* What arrived from the start on is not needed any more. */
static void advance(struct stream *stream)
{
	while (stream->segment_first < stream->segment_last) {
		const struct segment *segment = segment_of(stream, stream->segment_first);

		if (!segment->arrived)
			break;
		stream->base += segment->length;
		stream->start += segment->length;
		stream->segment_first++;
	}
	if (stream->base < stream->end)
		return;
	stream->start = 0;
	if (stream->room > OUTBOX_KEEP) {
		free(stream->bytes);
		stream->bytes = NULL;
		stream->room = 0;
	}
}

static bool is_known(const struct stream *stream, uint64_t segment)
{
	return segment >= stream->segment_first && segment < stream->segment_last;
}

void stream_arrived(struct stream *stream, uint64_t number)
{
	struct segment *segment;

	if (!is_known(stream, number))
		return;
	segment = segment_of(stream, number);
	if (segment->lost)
		stream->lost--;
	segment->lost = false;
	segment->arrived = true;
	advance(stream);
}

void stream_lost(struct stream *stream, uint64_t number)
{
	struct segment *segment;

	if (!is_known(stream, number))
		return;
	segment = segment_of(stream, number);
	if (segment->arrived || segment->lost)
		return;
	segment->lost = true;
	if (stream->lost++ == 0 || number < stream->lost_from)
		stream->lost_from = number;
}

/* ---- In ---------------------------------------------------------------- */

/*
 * Whole records at the start of `bytes`: how many bytes they are. The engine may end the link
 * within each of these calls.
 */
static uint32_t take_records(struct backend_link *link, const uint8_t *bytes, uint32_t length)
{
	struct packet_record record;
	uint32_t taken = 0;

	while (taken < length && link->endpoint && !link->error) {
		long size = packet_read_record(bytes + taken, length - taken, SMALL_MAX, &record);

		if (size < 0) {
			link_fail(link, -EPROTO, "the peer sent a record that is none");
			return length;
		}
		if (size == 0)
			return taken;
		haul_on_control(link->endpoint, record.message, record.message_length);
		if (record.small && link->endpoint && !link->error &&
		    !haul_put(link->endpoint, record.slot, record.offset, record.payload,
			      record.payload_length))
			link_fail(link, -EPROTO,
				  "the peer sent a tensor for a place that is no slot's");
		taken += (uint32_t)size;
	}
	return length;
}

static bool keep_partial(struct stream *stream, const uint8_t *bytes, uint32_t length)
{
	if (stream->partial_room - stream->partial_length < length) {
		uint32_t room = stream->partial_room ? stream->partial_room : 4096;
		uint8_t *grown;

		while (room - stream->partial_length < length)
			room *= 2;
		grown = realloc(stream->partial, room);
		if (!grown)
			return false;
		stream->partial = grown;
		stream->partial_room = room;
	}
	if (length)
		memcpy(stream->partial + stream->partial_length, bytes, length);
	stream->partial_length += length;
	return true;
}

/* The next bytes of the stream. */
static void take_bytes(struct backend_link *link, const uint8_t *bytes, uint32_t length)
{
	struct stream *stream = &link->stream;
	uint32_t taken;

	stream->expected += length;
	if (stream->partial_length == 0) {
		taken = take_records(link, bytes, length);
		if (taken < length && !keep_partial(stream, bytes + taken, length - taken))
			link_fail(link, -ENOMEM, "no memory for a message");
		return;
	}
	if (!keep_partial(stream, bytes, length)) {
		link_fail(link, -ENOMEM, "no memory for a message");
		return;
	}
	taken = take_records(link, stream->partial, stream->partial_length);
	/* The link may have been stopped, and the buffer with it. */
	if (!link->endpoint || link->error)
		return;
	stream->partial_length -= taken;
	memmove(stream->partial, stream->partial + taken, stream->partial_length);
}

static void take_early(struct backend_link *link)
{
	struct stream *stream = &link->stream;
	struct early *early;

	while (link->endpoint && !link->error && (early = TAILQ_FIRST(&stream->early)) &&
	       early->offset <= stream->expected) {
		uint64_t skip = stream->expected - early->offset;

		take_out(stream, early);
		if (skip < early->length)
			take_bytes(link, early->bytes + skip, early->length - (uint32_t)skip);
		free(early);
	}
}

/* Sorted by offset; most come behind all others. */
static int keep_early(struct stream *stream, uint64_t offset, const uint8_t *bytes, uint32_t length)
{
	struct early *before, *early;

	TAILQ_FOREACH_REVERSE(before, &stream->early, earlies, all)
	{
		if (before->offset == offset && before->length >= length)
			return 0;
		if (before->offset <= offset)
			break;
	}
	if (stream->early_count == EARLY_MAX || stream->early_bytes + length > 2 * STREAM_WINDOW ||
	    (stream->early_total && *stream->early_total + length > EARLY_TOTAL))
		return -EAGAIN;
	early = malloc(sizeof(*early) + length);
	if (!early)
		return -EAGAIN;
	early->offset = offset;
	early->length = length;
	memcpy(early->bytes, bytes, length);
	if (before)
		TAILQ_INSERT_AFTER(&stream->early, before, early, all);
	else
		TAILQ_INSERT_HEAD(&stream->early, early, all);
	stream->early_bytes += length;
	stream->early_count++;
	if (stream->early_total)
		*stream->early_total += length;
	return 0;
}

int stream_input(struct backend_link *link, uint64_t offset, const uint8_t *bytes, uint32_t length)
{
	struct stream *stream = &link->stream;

	if (length == 0)
		return 0;
	if (offset > stream->expected + STREAM_WINDOW || offset + length < offset) {
		link_fail(link, -EPROTO, "the peer sent a message far ahead of its turn");
		return -EPROTO;
	}
	if (offset > stream->expected)
		return keep_early(stream, offset, bytes, length);
	if (offset + length <= stream->expected)
		return 0;
	bytes += stream->expected - offset;
	length -= (uint32_t)(stream->expected - offset);
	take_bytes(link, bytes, length);
	take_early(link);
	return 0;
}
