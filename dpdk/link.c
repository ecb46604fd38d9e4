/* SPDX-License-Identifier: Apache-2.0 */
/* One peer: how it lives and how it goes. */
#include <errno.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "dpdk.h"

/* A link's name: where it stands in the table, and randomness above that nobody can guess. */
#define NAME_BITS 21
#define NAME_PLACE(name) ((uint32_t)((name) & ((1u << NAME_BITS) - 1)))

/* A silent peer is asked so often within peer_ms. */
#define ASK_WITHIN 5

/* CLOSE is said again until the peer answers, at most so often. */
#define CLOSES 8

/* How long a receiver may keep an acknowledgement back, and what senders reckon with. */
#define ACK_DELAY (1 * MS)

/* ---- Names ------------------------------------------------------------- */

struct backend_link *link_find(const struct backend_context *context, uint64_t name)
{
	uint32_t place = NAME_PLACE(name);
	struct backend_link *link;

	if (place >= context->name_room)
		return NULL;
	link = context->names[place];
	return link && link->name == name ? link : NULL;
}

struct peers *link_peers(struct backend_context *context, uint64_t peer_name)
{
	return &context->peers[peer_name * context->peer_factor >> 32 & (PEERS - 1)];
}

static int grow_names(struct backend_context *context)
{
	uint32_t room = context->name_room ? 2 * context->name_room : 64;
	struct backend_link **grown;

	if (room > 1u << NAME_BITS)
		return -ENOBUFS;
	grown = calloc(room, sizeof(struct backend_link *));
	if (!grown)
		return -ENOMEM;
	if (context->name_room)
		memcpy(grown, context->names, context->name_room * sizeof(*grown));
	free(context->names);
	context->names = grown;
	context->name_room = room;
	return 0;
}

static int give_name(struct backend_link *link)
{
	struct backend_context *context = link->context;
	uint64_t random;
	int error = haul_random(&random, sizeof(random));

	if (!error && context->link_count + 1 > context->name_room / 2)
		error = grow_names(context);
	if (error)
		return error;
	/* No place is used again soon: at least half of them are free. */
	do
		context->name_hint = (context->name_hint + 1) % context->name_room;
	while (context->names[context->name_hint]);
	link->name = (random << NAME_BITS) | context->name_hint;
	/* 0 is nobody's name. */
	if (!link->name)
		link->name = UINT64_C(1) << NAME_BITS;
	context->names[context->name_hint] = link;
	context->link_count++;
	return 0;
}

/* ---- Making ------------------------------------------------------------ */

/* Connections of one peer spread over the queues by their ports, as the card's hash does. */
static unsigned queue_of(const struct backend_link *link)
{
	uint32_t mixed =
		(link->ip * 2654435761u) ^ ((uint32_t)link->own_port << 16 | link->peer_port);

	return (mixed ^ mixed >> 16) % link->context->port->queues;
}

struct backend_link *link_new(struct backend_context *context, uint32_t ip, uint16_t peer_port,
			      uint16_t own_port)
{
	struct backend_link *link;

	if (context->link_count >= context->config->connections)
		return NULL;
	link = calloc(1, sizeof(*link));
	if (!link)
		return NULL;
	link->context = context;
	link->ip = ip;
	link->peer_port = peer_port;
	link->own_port = own_port;
	link->queue = queue_of(link);
	link->local = ip == context->port->ip;
	link->timer_at = link->ack_at = UINT64_MAX;
	link->heard_at = context->now;
	link->payload = context->port->payload;
	TAILQ_INIT(&link->transfers);
	TAILQ_INIT(&link->queued);
	stream_start(&link->stream);
	link->stream.early_total = &context->early_total;
	received_start(&link->received);
	received_start(&link->replaced);
	recovery_start(&link->recovery, &link_recovery_ops, link, ACK_DELAY);
	TAILQ_INSERT_TAIL(&context->links, link, all);
	if (!link->local)
		link->neighbour = neighbour_use(context, ip);
	if ((!link->local && !link->neighbour) || give_name(link)) {
		link_free(link);
		return NULL;
	}
	return link;
}

static void log_end(const struct backend_link *link)
{
	const struct recovery *recovery = &link->recovery;

	haul_log(
		HAUL_LOG_DEBUG,
		"the connection with %s ends: %llu packets of up to %u bytes sent, %llu lost, %llu "
		"late; round trip %llu us, least %llu us; window %llu bytes, peer's %u packets",
		link->address, (unsigned long long)recovery->packets_sent, link->payload,
		(unsigned long long)recovery->packets_lost,
		(unsigned long long)recovery->packets_late,
		(unsigned long long)(recovery->rtt.smooth / US),
		(unsigned long long)(recovery->rtt.least / US),
		(unsigned long long)(link->peer_name
					     ? link->context->congestion->window(link->congestion)
					     : 0),
		link->peer_window);
}

void link_free(struct backend_link *link)
{
	struct backend_context *context = link->context;

	log_end(link);
	transfers_forget(link);
	timers_remove(&context->timers, link);
	if (link->ready)
		TAILQ_REMOVE(&context->ready, link, ready_entry);
	if (link->heard)
		TAILQ_REMOVE(&context->hearing, link, heard_entry);
	if (link->active)
		context->active--;
	if (link->error && !link->lost)
		context->errors--;
	if (link->neighbour)
		neighbour_release(link->neighbour);
	if (link->peer_name)
		LIST_REMOVE(link, peer_entry);
	if (link->name) {
		context->names[NAME_PLACE(link->name)] = NULL;
		context->link_count--;
	}
	recovery_stop(&link->recovery);
	received_stop(&link->received);
	received_stop(&link->replaced);
	stream_stop(&link->stream);
	free(link->pieces);
	free(link->addresses);
	TAILQ_REMOVE(&context->links, link, all);
	free(link);
}

bool link_talks(const struct backend_link *link)
{
	return !link->error && (link->state == LINK_OPEN || link->state == LINK_LEAVING);
}

void link_ready(struct backend_link *link)
{
	if (link->ready)
		return;
	link->ready = true;
	TAILQ_INSERT_TAIL(&link->context->ready, link, ready_entry);
}

/* The largest packets and windows of both sides are known: start to reckon. */
void link_opened(struct backend_link *link, const struct packet_open *open)
{
	struct backend_context *context = link->context;
	const struct dpdk_config *config = context->config;
	struct congestion_config wish = {
		.packet = link->payload + FRAME_HEADERS,
		.link_rate = context->port->rate,
		.rate = config->rate == HAUL_OPTION_AUTO ? 0 : config->rate / 8,
		.target = config->target_us == HAUL_OPTION_AUTO ? 0 : config->target_us * US,
	};

	link->peer_name = open->name;
	LIST_INSERT_HEAD(link_peers(context, open->name), link, peer_entry);
	link->peer_incarnation = open->incarnation;
	link->peer_window = open->window;
	wish.most = (uint64_t)RECOVERY_SPAN / 2 * wish.packet;
	context->congestion->start(link->congestion, &wish, context->now);
	pacer_start(&link->pacer, 4 * (uint64_t)wish.packet, context->now);
	link->state = LINK_OPEN;
	link->heard_at = context->now;
	link_timer(link, context->now);
}

/* ---- What became of packets -------------------------------------------- */

static void packet_arrived(void *user, const struct sent *sent)
{
	struct backend_link *link = user;

	if (sent->kind == SENT_STREAM)
		stream_arrived(&link->stream, sent->offset);
	else if (sent->kind == SENT_DATA && !link->forgotten)
		transfer_arrived(link, sent);
}

static void packet_lost(void *user, const struct sent *sent)
{
	struct backend_link *link = user;

	if (sent->kind == SENT_STREAM)
		stream_lost(&link->stream, sent->offset);
	else if (sent->kind == SENT_DATA && !link->forgotten)
		transfer_lost(link, sent);
}

/* Its bytes are on their way again, under another number. That one's fate decides. */
static void packet_late(void *user, const struct sent *sent)
{
	struct backend_link *link = user;

	if (sent->kind == SENT_STREAM)
		stream_arrived(&link->stream, sent->offset);
}

const struct recovery_ops link_recovery_ops = {
	.arrived = packet_arrived,
	.lost = packet_lost,
	.late = packet_late,
};

/* ---- Time -------------------------------------------------------------- */

void link_timer(struct backend_link *link, uint64_t at)
{
	if (timers_set(&link->context->timers, link, at))
		link_fail(link, -ENOMEM, "no memory for its clock");
}

/* Since when the peer's silence counts: not while this process was stopped itself. */
static uint64_t silent_since(const struct backend_link *link)
{
	const struct backend_context *context = link->context;

	return link->heard_at > context->awake_at ? link->heard_at : context->awake_at;
}

static void check_peer(struct backend_link *link)
{
	struct backend_context *context = link->context;
	uint64_t patience = haul_peer_ms(context->engine) * MS;
	uint64_t since = silent_since(link), ask = patience / ASK_WITHIN;
	uint64_t silent = context->now > since ? context->now - since : 0;

	if (silent >= patience) {
		link_fail(link, -ETIMEDOUT, "it did not answer for %llu ms (peer_ms)",
			  (unsigned long long)(patience / MS));
		return;
	}
	if (silent >= ask) {
		/* What is under way asks already. */
		if (link->recovery.packets == 0)
			output_ping(link, true);
		if (link->neighbour && silent >= 2 * ask)
			neighbour_doubt(context, link->neighbour);
		since = context->now;
		link_timer(link, since + ask < silent_since(link) + patience
					 ? since + ask
					 : silent_since(link) + patience);
		return;
	}
	link_timer(link, since + ask);
}

static void run_recovery(struct backend_link *link)
{
	struct backend_context *context = link->context;
	struct congestion_sample sample = {0};

	switch (recovery_on_timer(&link->recovery, context->now, &sample)) {
	case RECOVERY_LOSS:
		if (link->peer_window)
			context->congestion->on_ack(link->congestion, &sample);
		break;
	case RECOVERY_PROBE:
		link->probes = link->recovery.timeouts > 1 ? 2 : 1;
		/* The peer is busy, and has said so. */
		if (!link->peer_window)
			break;
		if (sample.lost)
			context->congestion->on_ack(link->congestion, &sample);
		context->congestion->on_timeout(link->congestion, link->recovery.timeouts,
						context->now);
		break;
	case RECOVERY_NOTHING:
		break;
	}
}

static void say_close(struct backend_link *link)
{
	const struct rtt *rtt = &link->recovery.rtt;
	uint64_t pause = rtt->known ? 2 * rtt->smooth + 2 * MS : 20 * MS;
	uint8_t bytes[PACKET_CLOSE];

	output_plain(link, bytes, packet_write_close(bytes, link->peer_name, PACKET_REASON_NONE),
		     0);
	link->close_at = link->context->now + (pause << link->opens);
	link_timer(link, link->close_at);
	link->opens++;
}

static void run_leaving(struct backend_link *link)
{
	if (link->context->now >= link->give_up_at) {
		link_gone(link);
		return;
	}
	if (link->state == LINK_LEAVING && stream_empty(&link->stream)) {
		link->state = LINK_CLOSING;
		link->opens = 0;
	}
	if (link->state == LINK_CLOSING) {
		/* Packets that still come make us look here earlier. */
		if (link->context->now < link->close_at)
			link_timer(link, link->close_at);
		else if (link->opens == CLOSES)
			link_gone(link);
		else
			say_close(link);
		return;
	}
	link_timer(link, link->give_up_at);
}

void link_run(struct backend_link *link)
{
	if (link->error || link->state == LINK_GONE)
		return;
	if (link->state == LINK_ASKING || link->state == LINK_PROVING) {
		opening_run(link);
		return;
	}
	if (link_talks(link)) {
		run_recovery(link);
		check_peer(link);
		/* The word that the window is open may have been lost. */
		if (!link->peer_window && link->recovery.packets == 0 && output_pending(link))
			output_ping(link, true);
	}
	if (link->state == LINK_LEAVING || link->state == LINK_CLOSING)
		run_leaving(link);
	output_link(link);
}

/* ---- Ends -------------------------------------------------------------- */

void link_fail(struct backend_link *link, int error, const char *format, ...)
{
	va_list arguments;

	if (link->error || link->state == LINK_GONE)
		return;
	va_start(arguments, format);
	vsnprintf(link->why, sizeof(link->why), format, arguments);
	va_end(arguments);
	link->error = error;
	link->context->errors++;
	haul_log(HAUL_LOG_DEBUG, "the connection with %s failed: %s", link->address, link->why);
}

void link_gone(struct backend_link *link)
{
	link->state = LINK_GONE;
	link->context->gone = true;
	timers_remove(&link->context->timers, link);
}

void link_say_over(struct backend_link *link)
{
	bool in_order = link->state == LINK_CLOSING;
	uint8_t bytes[PACKET_CLOSE];

	if (!link->peer_name || link->state == LINK_GONE || link->closed)
		return;
	output_plain(link, bytes,
		     packet_write_close(bytes, link->peer_name,
					in_order ? PACKET_REASON_NONE : PACKET_REASON_PROTOCOL),
		     0);
}

void link_disconnect(struct backend_link *link, bool in_order)
{
	struct backend_context *context = link->context;

	if (link->error && !link->lost) {
		context->errors--;
		link->lost = true;
	}
	link->endpoint = NULL;
	transfers_forget(link);
	if (in_order && link->state == LINK_OPEN && !link->error) {
		link->state = LINK_LEAVING;
		stream_flush(&link->stream);
		link->give_up_at = context->now + haul_peer_ms(context->engine) * MS;
		link_ready(link);
		link_timer(link, context->now);
		return;
	}
	if (link->state == LINK_OPEN && link->error != -ECONNRESET)
		link_say_over(link);
	link_gone(link);
}

unsigned links_leaving(struct backend_context *context)
{
	struct backend_link *link;
	unsigned count = 0;

	TAILQ_FOREACH (link, &context->links, all)
		count += link->state == LINK_LEAVING || link->state == LINK_CLOSING;
	return count;
}

void link_statistics(struct backend_link *link, struct haul_statistics *statistics)
{
	statistics->streams++;
	statistics->chunks_sent += link->packets_sent;
	statistics->chunks_again += link->pieces_again;
}
