/* SPDX-License-Identifier: Apache-2.0 */
/* The control call: records in order, several to a message. */
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "rpc.h"

/* How many bytes may wait before small tensors do. */
#define CONTROL_WINDOW ((size_t)256 * 1024)

/* A peer that lets more than this wait has stopped reading for good. */
#define OUTBOX_MAX ((size_t)64 << 20)

/* ---- Out ---------------------------------------------------------------- */

bool control_has_room(const struct backend_link *link)
{
	return haul_outbox_waiting(&link->outbox) < CONTROL_WINDOW;
}

/* Something waits until gRPC takes the next message. */
bool control_waits(const struct backend_link *link)
{
	return haul_outbox_waiting(&link->outbox) > 0;
}

int control_record(struct backend_link *link, enum record_type type, const void *bytes,
		   size_t length)
{
	uint8_t *out;

	if (haul_outbox_waiting(&link->outbox) > OUTBOX_MAX)
		return -ENOBUFS;
	out = haul_outbox_record(&link->outbox, type, 0, length);
	if (!out)
		return -ENOMEM;
	memcpy(out, bytes, length);
	return 0;
}

int rpc_control(struct backend_link *link, const uint8_t *message, size_t length)
{
	return control_record(link, RECORD_MESSAGE, message, length);
}

int control_small(struct backend_link *link, const struct haul_push *push)
{
	uint64_t begin = link->context->traced ? haul_clock() : 0;
	int error = haul_outbox_small(&link->outbox, RECORD_SMALL, push);

	if (!error && link->context->traced)
		haul_trace_copy(link->endpoint, HAUL_SHARE_OUT, push->slot, push->length, begin);
	return error;
}

/* Whole records, as many as one message takes. */
static size_t cut_message(const struct haul_outbox *box)
{
	size_t length = 0;

	while (length < haul_outbox_waiting(box)) {
		size_t next = RECORD_SIZE + get32(box->bytes + box->start + length);

		if (length && length + next > CONTROL_MESSAGE_MAX)
			break;
		length += next;
	}
	return length;
}

/* A message is under way. What follows is left to the backend's threads, as far as they take it. */
static void leave_behind(struct backend_link *link)
{
	struct haul_outbox *box = &link->outbox;
	size_t length;

	while ((length = cut_message(box))) {
		grpc_slice slice = grpc_slice_from_copied_buffer(
			(const char *)box->bytes + box->start, length);

		if (!call_follow(link->control, slice)) {
			grpc_slice_unref(slice);
			return;
		}
		haul_outbox_drop(box, length);
	}
}

void control_write(struct backend_link *link)
{
	struct haul_outbox *box = &link->outbox;
	grpc_slice slice;
	size_t length;

	if (!link->control || link->closed || link->state == LINK_CONNECTING)
		return;
	if (link->control->send_pending) {
		leave_behind(link);
		return;
	}
	length = cut_message(box);
	if (length) {
		slice = grpc_slice_from_copied_buffer((const char *)box->bytes + box->start,
						      length);
		haul_outbox_drop(box, length);
		if (call_send(link->control, &slice, 1))
			link_fail(link, -ECONNRESET, "the connection ended");
	} else if (link->state == LINK_LEAVING) {
		link->closed = true;
		call_say_end(link->control);
	}
}

/* ---- In ----------------------------------------------------------------- */

static void on_small(struct backend_link *link, const uint8_t *body, size_t header, size_t length)
{
	uint64_t slot = get64(body), offset = get64(body + 8);

	haul_on_control(link->endpoint, body + SMALL_SIZE, header);
	if (link->endpoint && !link->error &&
	    !haul_put(link->endpoint, slot, offset, body + SMALL_SIZE + header,
		      length - SMALL_SIZE - header))
		link_fail(link, -EPROTO, "the peer sent bytes for a slot that it may not write");
}

/* The session's own words. */
static int on_session_record(struct backend_link *link, enum record_type type, const uint8_t *body,
			     size_t length)
{
	switch (type) {
	case RECORD_STREAMS:
		if (length != 4)
			return -EPROTO;
		if (get32(body) > link->wanted)
			link->wanted = (unsigned)get32(body);
		if (link->wanted > STREAMS_MAX)
			link->wanted = STREAMS_MAX;
		link_open_streams(link);
		return 0;
	case RECORD_STREAM_TAKEN:
		if (length != 16)
			return -EPROTO;
		return stream_taken(link, (uint32_t)get32(body), get32(body + 4) != 0,
				    get64(body + 8));
	case RECORD_STREAM_GONE:
		return length == 4 ? stream_gone_at_peer(link, (uint32_t)get32(body)) : -EPROTO;
	default:
		return -EPROTO;
	}
}

/* One record. Its length, or 0: it is none. */
static size_t parse(struct backend_link *link, const uint8_t *bytes, size_t here)
{
	enum record_type type;
	size_t length, header;

	if (here < RECORD_SIZE)
		return 0;
	length = get32(bytes);
	type = bytes[4];
	header = get16(bytes + 6);
	if (length > here - RECORD_SIZE)
		return 0;
	bytes += RECORD_SIZE;
	if (type == RECORD_SMALL) {
		if (header > HAUL_CONTROL_MAX || length < SMALL_SIZE + header)
			return 0;
		on_small(link, bytes, header, length);
	} else if (type == RECORD_MESSAGE) {
		if (length > HAUL_CONTROL_MAX)
			return 0;
		haul_on_control(link->endpoint, bytes, length);
	} else if (on_session_record(link, type, bytes, length)) {
		return 0;
	}
	return RECORD_SIZE + length;
}

static void read_records(struct backend_link *link, const uint8_t *bytes, size_t length)
{
	/* The engine may take the link away in each of them. */
	while (length && link->endpoint && !link->error) {
		size_t used = parse(link, bytes, length);

		if (!used) {
			if (link->endpoint)
				link_fail(link, -EPROTO,
					  "a record of the control call makes no sense");
			return;
		}
		bytes += used;
		length -= used;
	}
}

/* A message in one piece, as it came or copied together. */
static const uint8_t *in_one_piece(struct backend_context *context, grpc_byte_buffer *message)
{
	grpc_slice_buffer *slices = &message->data.raw.slice_buffer;
	size_t used = 0;

	if (slices->count == 1)
		return GRPC_SLICE_START_PTR(slices->slices[0]);
	for (size_t i = 0; i < slices->count; i++) {
		size_t length = GRPC_SLICE_LENGTH(slices->slices[i]);

		memcpy(context->scratch + used, GRPC_SLICE_START_PTR(slices->slices[i]), length);
		used += length;
	}
	return context->scratch;
}

void control_read(struct backend_link *link)
{
	grpc_byte_buffer *message;

	while (link->control && link->endpoint && !link->error && link->state != LINK_CONNECTING &&
	       (message = call_next(link->control))) {
		size_t length = grpc_byte_buffer_length(message);

		if (length > CONTROL_MESSAGE_MAX || message->type != GRPC_BB_RAW ||
		    message->data.raw.compression != GRPC_COMPRESS_NONE)
			link_fail(link, -EPROTO,
				  "a message of the control call is too long, or compressed");
		else if (length)
			read_records(link, in_one_piece(link->context, message), length);
		grpc_byte_buffer_destroy(message);
	}
	/* While the last messages leave, whatever the peer still says is forgotten. */
	while (link->state == LINK_LEAVING && link->control && (message = call_next(link->control)))
		grpc_byte_buffer_destroy(message);
}
