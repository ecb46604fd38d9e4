/* SPDX-License-Identifier: Apache-2.0 */
/* From links to frames: who may send how much now, and what the packets are made of. */
#include <string.h>

#include "dpdk.h"

/* Packets of one link before the next one's turn. */
#define QUANTUM 32

/* An acknowledgement that travels with other bytes takes at most this many ranges along. */
#define RANGES_BESIDE 4

/* Within a host it does when so many packets wait for it, or when it is due: to write and read one
 * with each packet of a ping-pong would cost a tenth of the time, and nothing is learnt from it. */
#define ACK_BESIDE 4

/* Nothing was sent for so long. */
#define IDLE SECOND

/* A closed window is asked for so often. */
#define ASK_CLOSED (50 * MS)

/* When nothing can be sent although the windows are open, it is tried again so often. */
#define STUCK (200 * US)

/* A full port is tried again after so long; later when it has taken nothing for a while. */
#define FULL_AGAIN (50 * US)
#define FULL_AGAIN_LATER (1 * MS)
#define FULL_FOR_LONG (20 * MS)

/* Answers to strangers: at most so many in each 10 ms, and to those of one address. */
#define ANSWERS 100
#define ANSWERS_EACH 25
#define ANSWERS_PERIOD (10 * MS)

/* ---- The port's queues ------------------------------------------------- */

static bool flush_queue(struct backend_context *context, unsigned queue)
{
	struct out_queue *out = &context->out[queue];
	unsigned sent = 0;

	while (sent < out->count) {
		unsigned count = out->count - sent;
		unsigned took = port_send(context->port, queue, out->packets + sent,
					  count < PORT_BURST ? count : PORT_BURST);

		sent += took;
		if (took == 0)
			break;
	}
	if (sent)
		context->took_at = context->now;
	if (sent == 0)
		return out->count == 0;
	out->count -= sent;
	memmove(out->packets, out->packets + sent, out->count * sizeof(out->packets[0]));
	return out->count == 0;
}

void output_flush(struct backend_context *context)
{
	bool some = false;

	for (unsigned i = 0; i < context->port->queues; i++) {
		if (context->out[i].count)
			some |= !flush_queue(context, i);
	}
	if (!some)
		context->took_at = context->now;
}

uint64_t output_offer_at(const struct backend_context *context)
{
	bool stalled = context->now - context->took_at > FULL_FOR_LONG;

	return context->now + (stalled ? FULL_AGAIN_LATER : FULL_AGAIN);
}

/* Room for one more packet. */
static bool has_room(struct backend_context *context, unsigned queue)
{
	if (context->out[queue].count < OUT_MAX)
		return true;
	flush_queue(context, queue);
	return context->out[queue].count < OUT_MAX;
}

/* Gives the packet away. Full queues drop it, like a full queue of the network. */
static void enqueue(struct backend_context *context, struct rte_mbuf *packet, unsigned queue,
		    bool local)
{
	struct out_queue *out = local ? &context->loop : &context->out[queue];

	if (local ? out->count == OUT_MAX : !has_room(context, queue)) {
		rte_pktmbuf_free(packet);
		return;
	}
	out->packets[out->count++] = packet;
	if (!local && out->count % PORT_BURST == 0)
		flush_queue(context, queue);
}

void output_drop(struct backend_context *context, unsigned queue)
{
	struct out_queue *out = &context->out[queue];
	unsigned kept = 0;

	for (unsigned i = 0; i < out->count; i++) {
		if (out->packets[i]->nb_segs > 1)
			rte_pktmbuf_free(out->packets[i]);
		else
			out->packets[kept++] = out->packets[i];
	}
	out->count = kept;
}

void output_free(struct backend_context *context)
{
	for (unsigned i = 0; i < PORT_QUEUES_MAX; i++) {
		while (context->out[i].count)
			rte_pktmbuf_free(context->out[i].packets[--context->out[i].count]);
	}
	while (context->loop.count)
		rte_pktmbuf_free(context->loop.packets[--context->loop.count]);
}

/* ---- Packets ----------------------------------------------------------- */

/* A packet of one piece, with `payload` where UDP's payload starts. */
static struct rte_mbuf *packet_new(struct backend_context *context,
				   const struct frame_template *template, uint8_t **payload)
{
	struct rte_mbuf *packet = port_packet(context->port);

	if (packet)
		*payload = rte_pktmbuf_mtod(packet, uint8_t *) + template->length;
	return packet;
}

/*
 * UDP's payload is complete: `length` bytes behind the headers, and what port_attach() added, of
 * which `sum` is the sum. Write the headers.
 */
static void finish(struct backend_context *context, const struct frame_template *template,
		   struct rte_mbuf *packet, size_t length, size_t attached, uint64_t sum)
{
	uint8_t *frame = rte_pktmbuf_mtod(packet, uint8_t *);
	bool software = context->sums && !context->port->sums_udp;

	if (software)
		sum = frame_sum(frame + template->length, length, sum);
	frame_write(template, frame, length + attached, software ? &sum : NULL);
	packet->data_len = (uint16_t)(template->length + length);
	packet->pkt_len = (uint32_t)(template->length + length + attached);
	if (context->sums && context->port->sums_udp)
		port_offload(context->port, packet, template->length - FRAME_IP_HEADERS);
}

void output_frame(struct backend_context *context, const uint8_t *frame, size_t length)
{
	struct rte_mbuf *packet = port_packet(context->port);

	if (!packet)
		return;
	memcpy(rte_pktmbuf_mtod(packet, uint8_t *), frame, length);
	packet->data_len = (uint16_t)length;
	packet->pkt_len = (uint32_t)length;
	enqueue(context, packet, 0, false);
}

static void send_plain(struct backend_context *context, const struct frame_template *template,
		       const uint8_t *bytes, size_t length, size_t padded, unsigned queue,
		       bool local)
{
	uint8_t *payload;
	struct rte_mbuf *packet = packet_new(context, template, &payload);

	if (!packet)
		return;
	memcpy(payload, bytes, length);
	if (padded > length)
		memset(payload + length, 0, padded - length);
	else
		padded = length;
	finish(context, template, packet, padded, 0, 0);
	enqueue(context, packet, queue, local);
}

static bool take(struct limiter *limiter, uint32_t most, uint64_t now)
{
	if (now - limiter->at >= ANSWERS_PERIOD) {
		limiter->at = now;
		limiter->left = most;
	}
	if (limiter->left == 0)
		return false;
	limiter->left--;
	return true;
}

bool limiter_take(struct limiter *limiter, uint64_t now)
{
	return take(limiter, ANSWERS, now);
}

bool output_may_answer(struct backend_context *context, uint32_t ip)
{
	struct limiter *share =
		&context->answers_each[ip * context->peer_factor >> 32 & (ANSWER_SHARES - 1)];

	return take(share, ANSWERS_EACH, context->now) &&
	       take(&context->answers, ANSWERS, context->now);
}

/* The headers of packets from us. */
static void template_make(const struct backend_context *context, struct frame_template *template,
			  struct frame_ends *ends, const uint8_t *target_mac)
{
	const struct port *port = context->port;

	ends->source = port->ip;
	ends->tag = port->tag;
	ends->dscp = (uint8_t)context->config->dscp;
	ends->ttl = 64;
	memcpy(ends->source_mac, port->mac, FRAME_MAC);
	memcpy(ends->target_mac, target_mac, FRAME_MAC);
	frame_template_make(template, ends);
}

void output_answer(struct backend_context *context, const struct frame *frame, const uint8_t *bytes,
		   size_t length, size_t padded)
{
	struct frame_ends ends = {
		.target = frame->source,
		.source_port = frame->target_port,
		.target_port = frame->source_port,
	};
	struct frame_template template;

	template_make(context, &template, &ends, frame->source_mac);
	send_plain(context, &template, bytes, length, padded, 0,
		   frame->source == context->port->ip);
}

/* ---- One link's packets ------------------------------------------------ */

/* The headers follow the neighbour's MAC. False: it is not known yet. */
static bool template_ready(struct backend_link *link)
{
	const struct backend_context *context = link->context;
	uint32_t version = link->local ? 1 : link->neighbour->version;
	struct frame_ends ends = {
		.target = link->ip,
		.source_port = link->own_port,
		.target_port = link->peer_port,
		.ecn = FRAME_ECN_0,
	};

	if (link->template.length && link->neighbour_version == version)
		return true;
	if (!link->local && !link->neighbour->known)
		return false;
	template_make(context, &link->template, &ends,
		      link->local ? context->port->mac : link->neighbour->mac);
	link->neighbour_version = version;
	return true;
}

void output_plain(struct backend_link *link, const uint8_t *bytes, size_t length, size_t padded)
{
	if (!template_ready(link))
		return;
	send_plain(link->context, &link->template, bytes, length, padded, link->queue, link->local);
	link->packets_sent++;
}

/* What an acknowledgement says; false: there is nothing to say. */
static bool fill_ack(struct backend_link *link, struct packet_ack *ack)
{
	if (!received_ack(&link->received, link->context->now, ack))
		return false;
	ack->window = receive_window(link);
	ack->clock = (uint16_t)((link->context->now + link->context->day) >> PACKET_CLOCK_UNIT);
	/* The one that closes the window is still to come. */
	link->ack_at =
		link->shut && link->shut_at > link->context->now ? link->shut_at : UINT64_MAX;
	return true;
}

void output_ack(struct backend_link *link)
{
	struct packet_head head = {.connection = link->peer_name, .type = PACKET_TYPE_ACK};
	uint8_t bytes[PACKET_HEAD + PACKET_ACK_FIXED + PACKET_ACK_RANGE * PACKET_RANGES_MAX];
	struct packet_ack ack;

	if (!fill_ack(link, &ack))
		return;
	packet_write_head(bytes, &head);
	output_plain(link, bytes,
		     PACKET_HEAD + packet_write_ack(bytes + PACKET_HEAD,
						    sizeof(bytes) - PACKET_HEAD, &ack),
		     0);
}

/* Everything is in the packet: number it, and let it go. */
static void send_numbered(struct backend_link *link, struct rte_mbuf *packet, struct sent *sent,
			  size_t length, size_t attached, uint64_t sum)
{
	struct backend_context *context = link->context;

	finish(context, &link->template, packet, length, attached, sum);
	sent->at = context->now;
	sent->size = (uint16_t)packet->pkt_len;
	sent->limited = link->limited;
	recovery_sent(&link->recovery, sent);
	pacer_sent(&link->pacer, sent->size);
	link->packets_sent++;
	enqueue(context, packet, link->queue, link->local);
}

/* Ask for an acknowledgement at once when nothing more can leave before one comes. */
static uint8_t flags_of(const struct backend_link *link, uint64_t room)
{
	return link->probes || room <= link->payload + (uint64_t)FRAME_HEADERS ? PACKET_ASKS_NOW
									       : 0;
}

static bool ack_travels(const struct backend_link *link)
{
	if (link->context->port->wire)
		return link->ack_at != UINT64_MAX;
	return link->ack_at <= link->context->now || link->received.pending >= ACK_BESIDE;
}

static bool send_stream(struct backend_link *link, uint64_t room)
{
	struct packet_head head = {.connection = link->peer_name,
				   .type = PACKET_TYPE_STREAM,
				   .number = link->recovery.next,
				   .flags = flags_of(link, room)};
	struct stream_piece piece;
	struct packet_ack ack;
	struct sent sent = {.kind = SENT_STREAM};
	struct rte_mbuf *packet;
	size_t length = PACKET_HEAD;
	uint8_t *payload;

	packet = packet_new(link->context, &link->template, &payload);
	if (!packet)
		return false;
	if (!stream_next(&link->stream,
			 link->payload - PACKET_STREAM - PACKET_ACK_FIXED -
				 RANGES_BESIDE * PACKET_ACK_RANGE,
			 &piece)) {
		rte_pktmbuf_free(packet);
		return false;
	}
	/* A few ranges fit beside any piece; when there are more, they have a packet of their own.
	 */
	if (ack_travels(link) && fill_ack(link, &ack)) {
		head.flags |= PACKET_HAS_ACK;
		length +=
			packet_write_ack(payload + length,
					 PACKET_ACK_FIXED + RANGES_BESIDE * PACKET_ACK_RANGE, &ack);
	}
	packet_write_head(payload, &head);
	length += packet_write_offset(payload + length, piece.offset);
	memcpy(payload + length, piece.bytes, piece.length);
	sent.offset = piece.segment;
	sent.length = piece.length;
	send_numbered(link, packet, &sent, length + piece.length, 0, 0);
	return true;
}

static bool send_data(struct backend_link *link, uint64_t room)
{
	struct backend_context *context = link->context;
	struct packet_head head = {.connection = link->peer_name,
				   .type = PACKET_TYPE_DATA,
				   .number = link->recovery.next,
				   .flags = flags_of(link, room)};
	struct sent sent = {.kind = SENT_DATA};
	const struct haul_push *push;
	struct packet_data data;
	struct rte_mbuf *packet;
	struct piece piece;
	uint64_t sum = 0, begin;
	uint8_t *payload;

	packet = packet_new(context, &link->template, &payload);
	if (!packet)
		return false;
	if (!transfer_next(link, link->payload - PACKET_DATA, &piece)) {
		rte_pktmbuf_free(packet);
		return false;
	}
	push = piece.transfer->push;
	sent.owner = piece.transfer;
	sent.offset = piece.offset;
	sent.length = piece.length;
	sent.first = piece.first ? piece.first : head.number;
	data.slot = push->slot;
	data.offset = push->offset + piece.offset;
	data.back = (uint32_t)(head.number - sent.first);
	packet_write_data(payload, &head, &data);
	begin = context->traced ? haul_clock() : 0;
	if (piece.transfer->external &&
	    port_attach(context->port, packet, push->data + piece.offset, piece.length,
			&piece.transfer->holder)) {
		if (context->sums && !context->port->sums_udp)
			sum = frame_sum(push->data + piece.offset, piece.length, 0);
		if (context->traced)
			share_sent(link, data.slot, begin, piece.length, false);
		send_numbered(link, packet, &sent, PACKET_DATA, piece.length, sum);
	} else {
		memcpy(payload + PACKET_DATA, push->data + piece.offset, piece.length);
		if (context->traced)
			share_sent(link, data.slot, begin, piece.length, true);
		send_numbered(link, packet, &sent, PACKET_DATA + piece.length, 0, 0);
	}
	return true;
}

void output_ping(struct backend_link *link, bool now)
{
	struct packet_head head = {.connection = link->peer_name,
				   .type = PACKET_TYPE_PING,
				   .flags = now ? PACKET_ASKS_NOW : 0};
	struct sent sent = {.kind = SENT_PING};
	struct rte_mbuf *packet;
	uint8_t *payload;

	if (!template_ready(link) || !recovery_room(&link->recovery))
		return;
	packet = packet_new(link->context, &link->template, &payload);
	if (!packet)
		return;
	head.number = link->recovery.next;
	packet_write_head(payload, &head);
	/* As long as RESET: no answer to a stranger is longer than what it answers. */
	memset(payload + PACKET_HEAD, 0, PACKET_RESET - PACKET_HEAD);
	send_numbered(link, packet, &sent, PACKET_RESET, 0, 0);
}

/* ---- How much ---------------------------------------------------------- */

/* Bytes that may be sent beside what is under way. */
static uint64_t window_room(const struct backend_link *link)
{
	const struct recovery *recovery = &link->recovery;
	uint64_t window = link->context->congestion->window(link->congestion);
	uint64_t packets, room;

	if (recovery->packets >= link->peer_window || recovery->in_flight >= window)
		return 0;
	packets =
		(uint64_t)(link->peer_window - recovery->packets) * (link->payload + FRAME_HEADERS);
	room = window - recovery->in_flight;
	return room < packets ? room : packets;
}

/* One packet; false: there is nothing to send, or it can't be. */
static bool send_next(struct backend_link *link, uint64_t room)
{
	if (link->context->out[link->queue].count == OUT_MAX &&
	    !has_room(link->context, link->queue))
		return false;
	if (!recovery_room(&link->recovery))
		return false;
	if (stream_pending(&link->stream) && send_stream(link, room))
		return true;
	return transfer_pending(link) && send_data(link, room);
}

bool output_pending(const struct backend_link *link)
{
	return stream_pending(&link->stream) || transfer_pending(link);
}

/* What a probe timeout asks for, whatever the windows say; but a closed one is not filled. */
static void send_probes(struct backend_link *link)
{
	while (link->probes) {
		if (!link->peer_window || !output_pending(link) || !send_next(link, 0))
			output_ping(link, true);
		link->probes--;
	}
}

/* When the link is to be looked at again: the heap's, the pacer's. */
static void rest(struct backend_link *link, bool pending, uint64_t room)
{
	uint64_t at = recovery_deadline(&link->recovery);

	if (pending && room && pacer_next(&link->pacer) < at)
		at = pacer_next(&link->pacer);
	if (pending && !link->peer_window && link->context->now + ASK_CLOSED < at)
		at = link->context->now + ASK_CLOSED;
	if (link->ack_at < at)
		at = link->ack_at;
	if (at != UINT64_MAX)
		link_timer(link, at);
}

void output_link(struct backend_link *link)
{
	struct backend_context *context = link->context;
	uint64_t room = 0, idle;
	bool pending, stuck = false;

	if (!link_talks(link))
		return;
	if (!template_ready(link)) {
		link_timer(link, context->now + 10 * MS);
		return;
	}
	/* What was known of the path is old. */
	idle = context->now - link->recovery.last_sent;
	if (link->recovery.packets == 0 && link->recovery.last_sent && idle > IDLE &&
	    output_pending(link))
		context->congestion->on_idle(link->congestion, idle);
	if (link->probes)
		send_probes(link);
	/* The time counts for it in any case. */
	pacer_room(&link->pacer, context->now);
	for (unsigned i = 0; i < QUANTUM; i++) {
		room = window_room(link);
		if (!room || pacer_room(&link->pacer, context->now) <= 0)
			break;
		stuck = !send_next(link, room);
		if (stuck)
			break;
	}
	pending = output_pending(link);
	link->limited = !pending || link->recovery.packets >= link->peer_window;
	if (link->ack_at <= context->now)
		output_ack(link);
	rest(link, pending && !stuck, room);
	/* The port is full, or the numbers or packets have run out: acknowledgements will tell, or
	 * time. */
	if (pending && stuck)
		link_timer(link, context->out[link->queue].count == OUT_MAX
					 ? output_offer_at(context)
					 : context->now + STUCK);
	/* The window is open, and there is more: its turn comes again. */
	else if (pending && room && pacer_next(&link->pacer) <= context->now)
		link_ready(link);
}

void output_heard(struct backend_link *link)
{
	struct backend_context *context = link->context;

	if (!link_talks(link) || output_pending(link) || link->probes ||
	    link->ack_at <= context->now) {
		link_ready(link);
		return;
	}
	pacer_room(&link->pacer, context->now);
	link->limited = true;
	rest(link, false, 0);
}

int output_run(struct backend_context *context)
{
	struct backend_link *link, *last = TAILQ_LAST(&context->ready, links);
	int done = 0;

	while (last && (link = TAILQ_FIRST(&context->ready))) {
		TAILQ_REMOVE(&context->ready, link, ready_entry);
		link->ready = false;
		output_link(link);
		done++;
		if (link == last)
			break;
	}
	return done;
}
