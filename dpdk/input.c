/* SPDX-License-Identifier: Apache-2.0 */
/* From frames to links: what is ours goes where it belongs, what is a stranger's gets a short
 * answer or none. */
#include <rte_prefetch.h>

#include "dpdk.h"

/* Bursts of one queue in a round: what leaves must get its turn. */
#define BURSTS 4

/* ---- Strangers --------------------------------------------------------- */

static void answer_echo(struct backend_context *context, const struct frame *frame)
{
	uint8_t bytes[PACKET_PAYLOAD_MOST + FRAME_HEADERS];
	size_t length;

	if (frame->target != context->port->ip || !output_may_answer(context, frame->source))
		return;
	length = frame_write_echo(bytes, context->port->payload + FRAME_HEADERS, context->port->mac,
				  frame);
	if (length)
		output_frame(context, bytes, length);
}

/* A packet for a name that nobody has: its sender's link ended here without its knowledge. */
static void answer_unknown(struct backend_context *context, const struct frame *frame,
			   const struct packet_head *head)
{
	uint8_t bytes[PACKET_RESET];

	if (head->type == PACKET_TYPE_CLOSED || head->type == PACKET_TYPE_RESET ||
	    frame->length < PACKET_RESET || !output_may_answer(context, frame->source))
		return;
	output_answer(context, frame, bytes, packet_write_reset(bytes, head->connection), 0);
}

/*
 * The peer does not know our link. Its name of it is a secret of the two, so whoever says it has
 * seen our packets.
 */
static void take_reset(struct backend_context *context, const struct frame *frame)
{
	struct backend_link *link;
	uint64_t name;

	if (!packet_read_reset(frame->payload, frame->length, &name) || !name ||
	    !limiter_take(&context->resets, context->now))
		return;
	LIST_FOREACH (link, link_peers(context, name), peer_entry) {
		if (link->peer_name != name || link->ip != frame->source)
			continue;
		if (link->state == LINK_LEAVING || link->state == LINK_CLOSING)
			link_gone(link);
		else if (link->state == LINK_OPEN)
			link_fail(link, -ECONNRESET, "the peer's program has ended the connection");
		return;
	}
}

/* ---- Ours -------------------------------------------------------------- */

/* The engine would be called for it, or it must not overtake those. A PING that did would tell its
 * sender that all of them are lost. */
static bool is_for_owner(const struct backend_link *link, const struct packet_head *head)
{
	return head->type == PACKET_TYPE_STREAM || head->type == PACKET_TYPE_DATA ||
	       head->type == PACKET_TYPE_CLOSE || (head->type == PACKET_TYPE_PING && link->shut);
}

/* True: the packet is to be kept until the owner comes. */
static bool take_udp(struct backend_context *context, const struct frame *frame)
{
	struct packet_head head;
	struct backend_link *link;

	if (frame->target != context->port->ip ||
	    !packet_read_head(frame->payload, frame->length, &head))
		return false;
	switch (head.type) {
	case PACKET_TYPE_OPEN:
	case PACKET_TYPE_COOKIE:
	case PACKET_TYPE_OPENED:
	case PACKET_TYPE_REFUSED:
		opening_input(context, frame, &head);
		return false;
	case PACKET_TYPE_RESET:
		take_reset(context, frame);
		return false;
	default:
		break;
	}
	link = link_find(context, head.connection);
	if (!link || link->state == LINK_GONE) {
		answer_unknown(context, frame, &head);
		return false;
	}
	if (link->ip != frame->source || link->state == LINK_ASKING || link->state == LINK_PROVING)
		return false;
	if (context->away && is_for_owner(link, &head)) {
		receive_later(link, &head);
		return true;
	}
	if (!link->heard) {
		link->heard = true;
		TAILQ_INSERT_TAIL(&context->hearing, link, heard_entry);
	}
	receive_packet(link, frame, &head);
	return false;
}

/* True: the packet is to be kept. */
static bool take_frame(struct backend_context *context, const struct rte_mbuf *packet,
		       struct frame_checked checked)
{
	struct frame frame;
	bool bad;

	frame_read(rte_pktmbuf_mtod(packet, const uint8_t *), packet->data_len, checked, &frame,
		   &bad);
	if (bad)
		context->bad_sums++;
	if (frame.kind != FRAME_OTHER && frame.tag != context->port->tag)
		return false;
	switch (frame.kind) {
	case FRAME_IS_UDP:
		return take_udp(context, &frame);
	case FRAME_IS_ARP:
		neighbours_input(context, &frame);
		break;
	case FRAME_IS_ECHO:
		answer_echo(context, &frame);
		break;
	case FRAME_IS_UNREACHABLE:
		if (frame.source == context->port->ip)
			opening_unreachable(context, &frame);
		break;
	default:
		break;
	}
	return false;
}

/* Beyond the room, it is as if the packet had been lost. */
static void keep(struct backend_context *context, struct rte_mbuf *packet)
{
	if (context->kept_count < context->kept_room)
		context->kept[context->kept_count++] = packet;
	else
		rte_pktmbuf_free(packet);
}

/* Where packets stay in this host's memory no sums are sent, and those of headers not looked at. */
static struct frame_checked checked(const struct backend_context *context,
				    const struct rte_mbuf *packet)
{
	struct frame_checked checked = port_checked(context->port, packet);

	checked.ip |= !context->sums;
	return checked;
}

static void take_burst(struct backend_context *context, struct rte_mbuf **packets, unsigned count,
		       bool local)
{
	static const struct frame_checked trusted = {true, true};

	for (unsigned i = 0; i < count; i++) {
		struct rte_mbuf *packet = packets[i];

		if (i + 2 < count)
			rte_prefetch0(rte_pktmbuf_mtod(packets[i + 2], void *));
		/* The port was asked for packets in one piece. */
		if (packet->nb_segs == 1 &&
		    take_frame(context, packet, local ? trusted : checked(context, packet)))
			keep(context, packet);
		else
			rte_pktmbuf_free(packet);
	}
}

/* What each link does after a burst, and not for each packet of it. */
static void after_burst(struct backend_context *context)
{
	struct backend_link *link;

	while ((link = TAILQ_FIRST(&context->hearing))) {
		TAILQ_REMOVE(&context->hearing, link, heard_entry);
		link->heard = false;
		receive_tell(link);
		output_heard(link);
	}
}

static int take_held(struct backend_context *context)
{
	unsigned count = context->held_count;

	context->held_count = 0;
	take_burst(context, context->held, count, false);
	return (int)count;
}

/* Packets to our own address, that were sent in the round before. */
static int take_loop(struct backend_context *context)
{
	struct rte_mbuf *packets[OUT_MAX];
	unsigned count = context->loop.count;

	for (unsigned i = 0; i < count; i++)
		packets[i] = context->loop.packets[i];
	context->loop.count = 0;
	take_burst(context, packets, count, true);
	return (int)count;
}

void input_kept(struct backend_context *context)
{
	struct backend_link *link;
	uint32_t count = context->kept_count;

	/* None is kept again now: the list is read while it is given back. */
	context->kept_count = 0;
	take_burst(context, context->kept, count, true);
	after_burst(context);
	TAILQ_FOREACH (link, &context->links, all) {
		if (!link->shut)
			continue;
		link->shut = false;
		link->ack_at = context->now;
		link_ready(link);
	}
}

int input_run(struct backend_context *context)
{
	struct rte_mbuf *packets[PORT_BURST];
	bool more = context->port->queues > 1 || !context->held_count ||
		    context->held_count >= PORT_BURST / 2;
	int done = 0;

	if (context->held_count)
		done += take_held(context);
	if (context->loop.count)
		done += take_loop(context);
	for (unsigned queue = 0; queue < context->port->queues && more; queue++) {
		for (unsigned i = 0; i < BURSTS; i++) {
			unsigned count = port_receive(context->port, queue, packets, PORT_BURST);

			take_burst(context, packets, count, false);
			done += (int)count;
			if (count < PORT_BURST / 2)
				break;
		}
	}
	if (done)
		after_burst(context);
	return done;
}
