/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Streams: calls that carry chunks. gRPC takes one message of a call at a time, and no more of them
 * are under way than the window allows, whatever the receiver's side would still buffer. One that
 * breaks is given up, and its chunks that were not taken go over others.
 */
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "rpc.h"

/* ns until the next try after a stream could not be made. */
#define RETRY (200 * MS)

/* ---- Making and ending -------------------------------------------------- */

struct stream *stream_new(struct backend_link *link, uint32_t name)
{
	struct stream *stream;

	TAILQ_FOREACH (stream, &link->streams, streams) {
		if (stream->name == name)
			return NULL;
	}
	TAILQ_FOREACH (stream, &link->gone, streams) {
		if (stream->name == name)
			return NULL;
	}
	stream = calloc(1, sizeof(*stream));
	if (!stream)
		return NULL;
	stream->link = link;
	stream->name = name;
	TAILQ_INSERT_TAIL(&link->streams, stream, streams);
	link->stream_count++;
	return stream;
}

static void disconnect(struct stream *stream)
{
	if (stream->up)
		stream->link->streams_up--;
	stream->up = false;
	call_drop(stream->call);
	stream->call = NULL;
	connection_close(stream->connection);
	stream->connection = NULL;
}

static void drop_log(struct stream *stream)
{
	for (; stream->log_first < stream->log_next; stream->log_first++)
		haul_transfer_release(stream->log[stream->log_first % CHUNK_LOG].transfer);
}

void stream_free(struct stream *stream)
{
	struct backend_link *link = stream->link;

	disconnect(stream);
	drop_log(stream);
	TAILQ_REMOVE(stream->is_gone ? &link->gone : &link->streams, stream, streams);
	if (stream->is_gone)
		link->gone_count--;
	else
		link->stream_count--;
	free(stream);
}

/* ---- Connecting --------------------------------------------------------- */

static void failed_to_open(struct stream *stream)
{
	struct backend_link *link = stream->link;
	uint64_t now = haul_clock();

	stream_free(stream);
	link->stream_retry_at = now + RETRY;
	link_timer(link, link->stream_retry_at);
	if (link->streams_up)
		return;
	if (!link->streamless_since)
		link->streamless_since = now;
	if (now - link->streamless_since >= haul_peer_ms(link->context->engine) * MS)
		link_fail(link, -ECONNRESET,
			  "no channel for large tensors could be opened within peer_ms");
}

/*
 * The peer's listener was closed. The control call's connection can carry one stream, too; its
 * chunks are copied, since that connection is not for cutting.
 */
static bool share(struct stream *stream)
{
	struct backend_link *link = stream->link;
	struct stream *other;

	TAILQ_FOREACH (other, &link->streams, streams) {
		if (other->shared)
			return false;
	}
	connection_close(stream->connection);
	stream->connection = NULL;
	stream->shared = true;
	link->wanted = 1;
	stream->call = call_make(link, stream, link->connection->channel);
	return stream->call;
}

void stream_connected(struct connection *connection, int error)
{
	struct stream *stream = connection->stream;

	if (error == -ECONNREFUSED && share(stream))
		return;
	if (!error) {
		stream->call = call_make(stream->link, stream, connection->channel);
		if (stream->call)
			return;
	}
	failed_to_open(stream);
}

void stream_begun(struct stream *stream, bool ok)
{
	struct backend_link *link = stream->link;
	char version[16] = "";

	if (stream->call->client && (!ok || !call_metadata(&stream->call->first, METADATA_VERSION,
							   version, sizeof(version)))) {
		failed_to_open(stream);
		return;
	}
	stream->up = true;
	link->streams_up++;
	link->streamless_since = 0;
	stream_write(stream);
}

/* ---- What was taken ----------------------------------------------------- */

static struct stream *find(struct stream_list *list, uint32_t name)
{
	struct stream *stream;

	TAILQ_FOREACH (stream, list, streams) {
		if (stream->name == name)
			return stream;
	}
	return NULL;
}

static void tell(struct backend_link *link, enum record_type type, const uint8_t *bytes,
		 size_t length)
{
	if (control_record(link, type, bytes, length))
		link_fail(link, -ENOBUFS, "the peer does not read its messages");
	control_write(link);
	/* The peer may wait for these words, and nothing else need happen here. */
	link_hunger(link);
}

static void tell_gone(struct backend_link *link, uint32_t name)
{
	uint8_t bytes[4];

	put32(bytes, name);
	tell(link, RECORD_STREAM_GONE, bytes, sizeof(bytes));
}

static void tell_taken(struct backend_link *link, uint32_t name, bool final, uint64_t chunks)
{
	uint8_t bytes[16];

	put32(bytes, name);
	put32(bytes + 4, final);
	put64(bytes + 8, chunks);
	tell(link, RECORD_STREAM_TAKEN, bytes, sizeof(bytes));
}

/* Both sides have said what they had to. */
static void settle(struct stream *stream)
{
	if (!stream->asked && stream->answered)
		stream_free(stream);
}

void stream_break(struct stream *stream)
{
	struct backend_link *link = stream->link;

	if (!stream->up) {
		failed_to_open(stream);
		return;
	}
	haul_log(HAUL_LOG_DEBUG, "stream %u broke", stream->name);
	link->counters.streams_replaced++;
	disconnect(stream);
	TAILQ_REMOVE(&link->streams, stream, streams);
	link->stream_count--;
	TAILQ_INSERT_TAIL(&link->gone, stream, streams);
	link->gone_count++;
	stream->is_gone = stream->asked = true;
	tell_gone(link, stream->name);
	link_timer(link, haul_clock());
}

int stream_taken(struct backend_link *link, uint32_t name, bool final, uint64_t chunks)
{
	struct stream *stream = find(&link->streams, name);

	if (!stream)
		stream = find(&link->gone, name);
	/* The peer's words may be older than what this side knows of the stream's end. */
	if (!stream)
		return 0;
	if (chunks < stream->log_first || chunks > stream->log_next || (final && !stream->asked))
		return -EPROTO;
	for (; stream->log_first < chunks; stream->log_first++) {
		const struct haul_chunk *chunk = &stream->log[stream->log_first % CHUNK_LOG];

		stream->log_bytes -= chunk->length;
		haul_transfer_release(chunk->transfer);
	}
	if (!final) {
		stream_write(stream);
		return 0;
	}
	for (; stream->log_first < stream->log_next; stream->log_first++) {
		if (haul_chunks_return(&link->chunks, &stream->log[stream->log_first % CHUNK_LOG]))
			link_fail(link, -ENOMEM, "no memory for the chunks of a broken stream");
	}
	stream->asked = false;
	settle(stream);
	rpc_flush(link);
	return 0;
}

int stream_gone_at_peer(struct backend_link *link, uint32_t name)
{
	struct stream *stream = find(&link->streams, name);

	if (stream && stream->up)
		stream_break(stream);
	else if (stream)
		stream_free(stream);
	stream = find(&link->gone, name);
	if (stream && stream->answered)
		return -EPROTO;
	tell_taken(link, name, true, stream ? stream->taken : 0);
	if (!stream) {
		/* It never was up here: the peer need not wait for this side's word. */
		tell_gone(link, name);
		return 0;
	}
	stream->answered = true;
	settle(stream);
	return 0;
}

/* ---- The trace ---------------------------------------------------------- */

/* Kept here, since the push may be over, and the chunk out of the log, when gRPC has written it. */
static void trace_begin(struct stream *stream, const struct haul_chunk *chunk)
{
	stream->leaving = (struct haul_share){
		.way = HAUL_SHARE_OUT,
		.lane = stream->name + 1, /* 0 is the control call */
		.slot = chunk->transfer->push->slot,
		.bytes = chunk->length,
		.begin = haul_clock(),
	};
}

/* gRPC's threads read it at a time that they don't tell: what is known is the copy. */
static void trace_in(const struct stream *stream, uint64_t slot, uint64_t bytes, uint64_t begin)
{
	struct haul_share share = {
		.way = HAUL_SHARE_IN,
		.lane = stream->name + 1,
		.slot = slot,
		.bytes = bytes,
		.begin = begin,
		.end = haul_clock(),
	};

	share.copied = share.end - begin;
	haul_trace_share(stream->link->endpoint, &share);
}

/* ---- Out ---------------------------------------------------------------- */

/* Two chunks at least keep a stream busy. */
static bool window_is_full(const struct stream *stream)
{
	const struct rpc_config *config = stream->link->context->config;
	uint64_t window = config->window < 2 * config->chunk ? 2 * config->chunk : config->window;

	return stream->log_bytes >= window || stream->log_next - stream->log_first == CHUNK_LOG;
}

bool stream_holds(const struct stream *stream, const struct haul_transfer *transfer)
{
	for (uint64_t i = stream->log_first; i < stream->log_next; i++) {
		if (stream->log[i % CHUNK_LOG].transfer == transfer)
			return true;
	}
	return false;
}

void stream_write(struct stream *stream)
{
	struct backend_link *link = stream->link;
	uint8_t head[CHUNK_SIZE];
	struct haul_chunk *chunk;
	grpc_slice slices[2];

	if (!stream->up || stream->call->send_pending || link->error || window_is_full(stream))
		return;
	chunk = &stream->log[stream->log_next % CHUNK_LOG];
	if (!haul_chunks_next(&link->chunks, link->context->config->chunk, link->streams_up, chunk))
		return;
	stream->log_next++;
	stream->log_bytes += chunk->length;
	link->counters.chunks_sent++;
	if (link->context->traced)
		trace_begin(stream, chunk);
	put64(head, chunk->transfer->push->slot);
	put64(head + 8, chunk->transfer->push->offset + chunk->offset);
	slices[0] = grpc_slice_from_copied_buffer((const char *)head, sizeof(head));
	slices[1] = push_slice(chunk, stream->shared);
	if (call_send(stream->call, slices, 2))
		stream_break(stream);
}

void stream_wrote(struct stream *stream)
{
	struct backend_link *link = stream->link;

	if (link->context->traced && link->endpoint) {
		stream->leaving.end = haul_clock();
		haul_trace_share(link->endpoint, &stream->leaving);
	}
	stream_write(stream);
}

/* ---- In ----------------------------------------------------------------- */

/* The one copy: out of what gRPC has read, into the tensor. */
static void gather(const grpc_slice_buffer *slices, uint8_t *out)
{
	size_t skip = CHUNK_SIZE;

	for (size_t i = 0; i < slices->count; i++) {
		size_t length = GRPC_SLICE_LENGTH(slices->slices[i]);
		const uint8_t *bytes = GRPC_SLICE_START_PTR(slices->slices[i]);
		size_t left = skip < length ? length - skip : 0;

		memcpy(out, bytes + (length - left), left);
		out += left;
		skip -= length - left;
	}
}

static void copy_head(const grpc_slice_buffer *slices, uint8_t head[CHUNK_SIZE])
{
	size_t done = 0;

	for (size_t i = 0; i < slices->count && done < CHUNK_SIZE; i++) {
		size_t length = GRPC_SLICE_LENGTH(slices->slices[i]);

		if (length > CHUNK_SIZE - done)
			length = CHUNK_SIZE - done;
		memcpy(head + done, GRPC_SLICE_START_PTR(slices->slices[i]), length);
		done += length;
	}
}

/* One chunk. False: it is none. */
static bool take(struct stream *stream, const grpc_byte_buffer *message, size_t length)
{
	struct backend_link *link = stream->link;
	uint8_t head[CHUNK_SIZE], *address;
	uint64_t slot, offset, begin;
	enum haul_place place;

	if (length <= CHUNK_SIZE || length > CHUNK_SIZE + CHUNK_MAX ||
	    message->type != GRPC_BB_RAW || message->data.raw.compression != GRPC_COMPRESS_NONE)
		return false;
	copy_head(&message->data.raw.slice_buffer, head);
	slot = get64(head);
	offset = get64(head + 8);
	length -= CHUNK_SIZE;
	place = haul_place(link->endpoint, slot, offset, length, &address);
	if (place == HAUL_PLACE_FORGED)
		return false;
	if (place == HAUL_PLACE_HERE) {
		begin = link->context->traced ? haul_clock() : 0;
		gather(&message->data.raw.slice_buffer, address);
		if (link->context->traced)
			trace_in(stream, slot, length, begin);
	}
	stream->taken++;
	stream->taken_bytes += length;
	if (stream->taken_bytes >= TAKEN_BYTES ||
	    stream->taken - stream->taken_told >= TAKEN_CHUNKS) {
		stream->taken_told = stream->taken;
		stream->taken_bytes = 0;
		tell_taken(link, stream->name, false, stream->taken);
	}
	haul_on_arrived(link->endpoint, slot, length);
	return true;
}

void stream_read(struct stream *stream)
{
	struct backend_link *link = stream->link;
	struct rpc_call *call = stream->call;
	grpc_byte_buffer *message;

	/* The engine may take the link away in each of them, and the stream with it. */
	while (call->stream == stream && link->endpoint && !link->error &&
	       (message = call_next(call))) {
		if (!take(stream, message, grpc_byte_buffer_length(message)) && link->endpoint)
			link_fail(link, -EPROTO,
				  "the peer sent a chunk that no slot of its own can take");
		grpc_byte_buffer_destroy(message);
	}
}
