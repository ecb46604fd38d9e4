/* SPDX-License-Identifier: Apache-2.0 */
/* Packets of one link: what they mean, and when to say that they came. */
#include <errno.h>
#include <string.h>

#include "dpdk.h"

/* An acknowledgement leaves after so many packets, or after ACK_AFTER. */
#define ACK_EVERY 16
#define ACK_AFTER (500 * US)

/* A link counts as one that gets tensors for so long after the last byte. */
#define ACTIVE_FOR (20 * MS)

/* The window is closed when the owner has not come for so long. */
#define SHUT_AFTER (2 * MS)

/* No link is left with less. */
#define WINDOW_LEAST 16

/* A pause of the process of this much hides what the network did. */
#define PAUSE_MOST (1 * MS)

/* ---- The window -------------------------------------------------------- */

/* The port holds so many packets while nobody looks; the links that get tensors share them. */
uint32_t receive_window(const struct backend_link *link)
{
	const struct backend_context *context = link->context;
	uint64_t all = context->config->window;
	uint32_t share;

	if (link->shut && context->now >= link->shut_at)
		return 0;
	if (all != HAUL_OPTION_AUTO)
		return (uint32_t)all;
	share = context->port->ring / (context->active ? context->active : 1);
	return share > WINDOW_LEAST ? share : WINDOW_LEAST;
}

void receive_sweep(struct backend_context *context)
{
	struct backend_link *link;

	TAILQ_FOREACH (link, &context->links, all) {
		if (link->active && context->now - link->data_at > ACTIVE_FOR) {
			link->active = false;
			context->active--;
		}
	}
}

static void note_data(struct backend_link *link)
{
	link->data_at = link->context->now;
	if (link->active)
		return;
	link->active = true;
	link->context->active++;
}

/* The peer learns that it has to wait, unless the owner comes soon; and that this side lives. */
void receive_later(struct backend_link *link, const struct packet_head *head)
{
	link->heard_at = link->context->now;
	if (head->type == PACKET_TYPE_PING) {
		link->ack_at = link->context->now;
		link_timer(link, link->ack_at);
	}
	if (link->shut)
		return;
	link->shut = true;
	link->shut_at = link->context->now + SHUT_AFTER;
	if (link->ack_at > link->shut_at)
		link->ack_at = link->shut_at;
	link_timer(link, link->ack_at);
}

/* ---- Acknowledgements -------------------------------------------------- */

/* A packet that asks for one was taken. */
static void owe_ack(struct backend_link *link, const struct packet_head *head)
{
	uint64_t now = link->context->now;

	link->received.marks += link->marked;
	if ((head->flags & PACKET_ASKS_NOW) || link->received.gap ||
	    link->received.pending >= ACK_EVERY) {
		link->ack_at = now;
	} else if (link->ack_at == UINT64_MAX) {
		link->ack_at = now + ACK_AFTER;
		link_timer(link, link->ack_at);
	}
}

static void take_ack(struct backend_link *link, const struct packet_ack *ack)
{
	struct backend_context *context = link->context;
	struct recovery *recovery = &link->recovery;
	struct congestion_sample sample = {0};
	bool heard = context->pause < PAUSE_MOST;

	if (recovery_on_ack(recovery, ack, context->now, heard, &sample)) {
		link_fail(link, -EPROTO, "the peer says that packets came which were never sent");
		return;
	}
	/* What was lost at a closed window says nothing about the path. */
	if (!ack->window || !link->peer_window)
		sample.lost = 0;
	link->peer_window = ack->window;
	context->congestion->on_ack(link->congestion, &sample);
	pacer_set_rate(&link->pacer,
		       context->congestion->rate(link->congestion, recovery->rtt.smooth),
		       context->now);
	if (link->state == LINK_LEAVING && stream_empty(&link->stream))
		link_timer(link, context->now);
}

/* ---- Tensors ----------------------------------------------------------- */

void receive_tell(struct backend_link *link)
{
	uint64_t bytes = link->arrived_bytes;

	if (!bytes)
		return;
	link->arrived_bytes = 0;
	share_tell_received(link);
	if (link->endpoint && !link->error)
		haul_on_arrived(link->endpoint, link->arrived_slot, bytes);
}

/* Whether these bytes have come before, perhaps under another number. Notes that they came. */
static bool seen_before(struct backend_link *link, uint64_t number, uint32_t back)
{
	if (!back)
		return received_late(&link->received, number) &&
		       received_has(&link->replaced, number);
	if (received_has(&link->received, number - back))
		return true;
	switch (received_add(&link->replaced, number - back, link->context->now)) {
	case RECEIVED_NEW:
		return false;
	case RECEIVED_AGAIN:
		return true;
	default:
		link_fail(link, -ENOMEM, "no memory for what came out of order");
		return true;
	}
}

static void take_data(struct backend_link *link, const struct frame *frame,
		      const struct packet_head *head)
{
	uint32_t length = (uint32_t)frame->length - PACKET_DATA;
	struct packet_data data;
	uint8_t *address = NULL;
	uint64_t begin;

	if (!packet_read_data(frame->payload, frame->length, &data) || data.back >= head->number) {
		link_fail(link, -EPROTO, "the peer sent a piece of a tensor that is none");
		return;
	}
	if (received_add(&link->received, head->number, link->context->seen_at) != RECEIVED_NEW)
		return;
	owe_ack(link, head);
	if (seen_before(link, head->number, data.back) || !link->endpoint || link->error)
		return;
	note_data(link);
	switch (haul_place(link->endpoint, data.slot, data.offset, length, &address)) {
	case HAUL_PLACE_HERE:
		begin = link->context->traced ? haul_clock() : 0;
		memcpy(address, frame->payload + PACKET_DATA, length);
		if (link->context->traced)
			share_received(link, data.slot, begin, length);
		break;
	case HAUL_PLACE_DISCARD:
		break;
	default:
		link_fail(link, -EPROTO, "the peer sent bytes for a place that is no slot's");
		return;
	}
	if (link->arrived_slot != data.slot)
		receive_tell(link);
	link->arrived_slot = data.slot;
	link->arrived_bytes += length;
}

/* ---- Messages ---------------------------------------------------------- */

static void take_stream(struct backend_link *link, const struct frame *frame,
			const struct packet_head *head)
{
	const uint8_t *bytes = frame->payload + PACKET_HEAD;
	size_t length = frame->length - PACKET_HEAD, used = 0;
	struct packet_ack ack;
	int error;

	if (head->flags & PACKET_HAS_ACK) {
		if (!packet_read_ack(bytes, length, &ack, &used)) {
			link_fail(link, -EPROTO, "the peer sent an acknowledgement that is none");
			return;
		}
		take_ack(link, &ack);
	}
	if (length - used < 8) {
		link_fail(link, -EPROTO, "the peer sent a packet that is none");
		return;
	}
	if (link->error)
		return;
	receive_tell(link);
	if (link->endpoint && !link->error) {
		error = stream_input(link, packet_read_offset(bytes + used), bytes + used + 8,
				     (uint32_t)(length - used - 8));
		if (error)
			return;
	}
	/* Only now: what could not be kept counts as lost. */
	if (received_add(&link->received, head->number, link->context->seen_at) == RECEIVED_NEW)
		owe_ack(link, head);
}

/* ---- The end ----------------------------------------------------------- */

static void take_close(struct backend_link *link, const struct frame *frame)
{
	uint8_t bytes[PACKET_HEAD];
	uint16_t reason;

	if (!packet_read_close(frame->payload, frame->length, &reason))
		return;
	receive_tell(link);
	link->closed = true;
	output_plain(link, bytes, packet_write_closed(bytes, link->peer_name), 0);
	if (link->state != LINK_OPEN)
		link_gone(link);
	else if (reason == PACKET_REASON_NONE)
		link_fail(link, LINK_ENDED, "the peer has closed the connection");
	else
		link_fail(link, -ECONNRESET, "the peer has given the connection up");
}

void receive_packet(struct backend_link *link, const struct frame *frame,
		    const struct packet_head *head)
{
	struct packet_ack ack;
	size_t used;

	if (link->error)
		return;
	link->heard_at = link->context->now;
	link->marked = frame->ecn == FRAME_ECN_MET;
	switch (head->type) {
	case PACKET_TYPE_ACK:
		if (packet_read_ack(frame->payload + PACKET_HEAD, frame->length - PACKET_HEAD, &ack,
				    &used))
			take_ack(link, &ack);
		else
			link_fail(link, -EPROTO, "the peer sent an acknowledgement that is none");
		return;
	case PACKET_TYPE_CLOSE:
		take_close(link, frame);
		return;
	case PACKET_TYPE_CLOSED:
		if (link->state == LINK_CLOSING)
			link_gone(link);
		return;
	default:
		break;
	}
	if (head->number == 0) {
		link_fail(link, -EPROTO, "the peer sent a packet without a number");
		return;
	}
	if (head->type != PACKET_TYPE_PING)
		note_busy(link->context);
	if (head->type == PACKET_TYPE_DATA)
		take_data(link, frame, head);
	else if (head->type == PACKET_TYPE_STREAM)
		take_stream(link, frame, head);
	else if (received_add(&link->received, head->number, link->context->seen_at) ==
		 RECEIVED_NEW)
		owe_ack(link, head);
}
