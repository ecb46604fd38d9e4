/* SPDX-License-Identifier: Apache-2.0 */
/* Control messages, and tensors that are small enough to travel with them. */
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "bytes.h"
#include "verbs.h"

/* An outbox that grew beyond this is given back when it is empty. */
#define OUTBOX_KEEP (64 * 1024)

/* ---- Out --------------------------------------------------------------- */

static size_t waiting(const struct backend_link *link)
{
	return link->out_end - link->out_start;
}

/* Room for `length` more bytes behind what waits. */
static int make_room(struct backend_link *link, size_t length)
{
	size_t room = link->out_room ? link->out_room : PACKET;
	uint8_t *grown;

	if (waiting(link) + length > OUTBOX_MAX)
		return -ENOBUFS;
	if (length <= link->out_room - link->out_end)
		return 0;
	if (link->out_start > 0 && link->out_start >= link->out_room / 2) {
		memmove(link->outbox, link->outbox + link->out_start, waiting(link));
		link->out_end -= link->out_start;
		link->out_start = 0;
		if (length <= link->out_room - link->out_end)
			return 0;
	}
	while (room < link->out_end + length)
		room *= 2;
	grown = realloc(link->outbox, room);
	if (!grown)
		return -ENOMEM;
	link->outbox = grown;
	link->out_room = room;
	return 0;
}

/* What is queued from now on must not be read before the windows are there that it tells of. */
static int set_barrier(struct backend_link *link)
{
	struct barrier *last = NULL;

	if (link->binds_wanted == link->binds_done)
		return 0;
	if (link->barrier_first < link->barrier_count)
		last = &link->barriers[link->barrier_count - 1];
	if (last && last->binds == link->binds_wanted)
		return 0;
	if (link->barrier_first == link->barrier_count)
		link->barrier_first = link->barrier_count = 0;
	if (link->barrier_count == link->barrier_room) {
		unsigned room = link->barrier_room ? 2 * link->barrier_room : 16;
		struct barrier *grown = realloc(link->barriers, room * sizeof(*grown));

		if (!grown)
			return -ENOMEM;
		link->barriers = grown;
		link->barrier_room = room;
	}
	link->barriers[link->barrier_count++] = (struct barrier){
		.position = link->out_before + waiting(link), .binds = link->binds_wanted};
	return 0;
}

static int append(struct backend_link *link, const uint8_t *head, size_t head_length,
		  const uint8_t *message, size_t length, const uint8_t *payload, size_t bytes)
{
	int error = make_room(link, head_length + length + bytes);

	if (!error)
		error = set_barrier(link);
	if (error)
		return error;
	memcpy(link->outbox + link->out_end, head, head_length);
	link->out_end += head_length;
	memcpy(link->outbox + link->out_end, message, length);
	link->out_end += length;
	if (bytes)
		memcpy(link->outbox + link->out_end, payload, bytes);
	link->out_end += bytes;
	return 0;
}

int verbs_control(struct backend_link *link, const uint8_t *message, size_t length)
{
	uint8_t head[VERBS_SMALL];

	return append(link, head, verbs_encode_message(head, length), message, length, NULL, 0);
}

int control_small(struct backend_link *link, const struct haul_push *push)
{
	uint8_t head[VERBS_SMALL];
	size_t length = verbs_encode_small(head, push->header_length, (uint32_t)push->length,
					   push->slot, push->offset);
	uint64_t begin = link->context->traced ? haul_clock() : 0;
	int error = append(link, head, length, push->header, push->header_length, push->data,
			   push->length);

	if (link->context->traced && !error)
		haul_trace_copy(link->endpoint, HAUL_SHARE_OUT, push->slot, push->length, begin);
	return error;
}

/* How many bytes of whole records may leave, and fit into one packet. */
static size_t next_records(struct backend_link *link)
{
	size_t room = link->peer_packet < PACKET ? link->peer_packet : PACKET;
	size_t limit = waiting(link), taken = 0;

	while (link->barrier_first < link->barrier_count &&
	       link->barriers[link->barrier_first].binds <= link->binds_done)
		link->barrier_first++;
	if (link->barrier_first < link->barrier_count)
		limit = (size_t)(link->barriers[link->barrier_first].position - link->out_before);
	room -= VERBS_HEAD;
	while (taken < limit) {
		struct record record;
		size_t size = verbs_decode_record(link->outbox + link->out_start + taken,
						  waiting(link) - taken, &record);

		if (taken + size > room)
			break;
		taken += size;
	}
	return taken;
}

static int send_packet(struct backend_link *link, size_t records)
{
	struct channel *control = link->control;
	uint8_t packet[PACKET];
	int error;

	put32(packet, control->taken);
	put32(packet + 4, link->split ? link_inbound(link)->taken : 0);
	if (records)
		memcpy(packet + VERBS_HEAD, link->outbox + link->out_start, records);
	error = channel_send(control, packet, (uint32_t)(VERBS_HEAD + records));
	if (error)
		return error;
	control->taken_told = control->taken;
	if (link->split)
		link_inbound(link)->taken_told = link_inbound(link)->taken;
	control->sent += records > 0;
	link->out_start += records;
	link->out_before += records;
	if (link->out_start < link->out_end)
		return 0;
	link->out_start = link->out_end = 0;
	if (link->out_room > OUTBOX_KEEP) {
		free(link->outbox);
		link->outbox = NULL;
		link->out_room = 0;
	}
	return 0;
}

void control_flush(struct backend_link *link)
{
	struct channel *control = link->control;

	link->blocked = false;
	while (waiting(link) && !link->error) {
		size_t records = 0;

		if (channel_can_send(control) && channel_credits(control))
			records = next_records(link);
		if (records == 0 || send_packet(link, records)) {
			link->blocked = true;
			return;
		}
	}
}

/* The peer waits for credits, and there is nothing to send them with. */
void control_tell_taken(struct backend_link *link)
{
	struct channel *control = link->control, *inbound = link->split ? link_inbound(link) : NULL;

	if ((control->taken - control->taken_told >= RING / 4 ||
	     (inbound && inbound->taken - inbound->taken_told >= RING / 4)) &&
	    channel_can_send(control))
		send_packet(link, 0);
}

void verbs_flush(struct backend_link *link)
{
	if (link->error || link->control->state != CHANNEL_UP)
		return;
	control_flush(link);
	push_pump(link);
}

/* ---- In ---------------------------------------------------------------- */

static void small_tensor(struct backend_link *link, const struct record *record)
{
	if (!slot_takes_packets(link, record->slot)) {
		link_fail(link, -EPROTO, "the peer sent a tensor in a packet that it had to write");
		return;
	}
	if (!haul_put(link->endpoint, record->slot, record->offset, record->bytes, record->payload))
		link_fail(link, -EPROTO, "the peer sent a tensor for a place that is no slot's");
}

void control_packet(struct backend_link *link, const uint8_t *bytes, size_t length)
{
	struct channel *control = link->control;
	struct record record;
	size_t size;

	if (length < VERBS_HEAD || !channel_taken(control, get32(bytes)) ||
	    (link->split && !channel_taken(link_outbound(link), get32(bytes + 4)))) {
		link_fail(link, -EPROTO, "the peer sent a packet that is none");
		return;
	}
	bytes += VERBS_HEAD;
	length -= VERBS_HEAD;
	control->taken += length > 0;
	/* The engine may end the link from within each of these calls. */
	while (length && link->endpoint && !link->error) {
		size = verbs_decode_record(bytes, length, &record);
		if (size == 0) {
			link_fail(link, -EPROTO, "the peer sent a record that is none");
			return;
		}
		haul_on_control(link->endpoint, record.message, record.length);
		if (record.small && link->endpoint && !link->error)
			small_tensor(link, &record);
		bytes += size;
		length -= size;
	}
}

void control_free(struct backend_link *link)
{
	free(link->outbox);
	free(link->barriers);
	link->outbox = NULL;
	link->barriers = NULL;
}
