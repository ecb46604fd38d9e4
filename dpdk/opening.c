/* SPDX-License-Identifier: Apache-2.0 */
/* How links begin, on both sides: OPEN, COOKIE, OPEN, OPENED. */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <netinet/in.h>

#include "dpdk.h"

/* OPEN is said again after 10 ms, then after twice as long each time, up to a second. */
#define AGAIN_FIRST (10 * MS)
#define AGAIN_MOST SECOND

/* A full-length OPEN that is not answered so often may be too long for the path. */
#define LONG_TRIES 4

/* Payloads to try then: of 9000, 4096, 1500, 1280 and 576 byte packets. */
static const uint16_t shorter[] = {8972, 4068, 1472, 1252, PACKET_PAYLOAD_LEAST};

/* ---- Addresses --------------------------------------------------------- */

static uint32_t address_ip(const struct sockaddr_storage *address)
{
	return ntohl(((const struct sockaddr_in *)address)->sin_addr.s_addr);
}

static void name_peer(struct backend_link *link)
{
	address_print(link->ip, link->peer_port, link->address, sizeof(link->address));
}

/* Any port will do, since names tell connections apart; different ones spread over queues. */
static uint16_t any_port(void)
{
	uint16_t random = 0;

	haul_random(&random, sizeof(random));
	return (uint16_t)(49152 + random % 16384);
}

/* ---- The side that connects -------------------------------------------- */

static void say_open(struct backend_link *link)
{
	struct backend_context *context = link->context;
	struct packet_open open = {
		.name = link->name,
		.incarnation = context->incarnation,
		.window = receive_window(link),
		.payload = context->port->payload,
		.version = PACKET_VERSION,
	};
	uint8_t bytes[PACKET_OPEN];
	uint64_t pause = AGAIN_FIRST << (link->opens < 8 ? link->opens : 8);

	if (link->state == LINK_PROVING) {
		memcpy(open.cookie, link->cookie, PACKET_COOKIE_SIZE);
		open.payload = link->payload;
	}
	output_plain(link, bytes, packet_write_open(bytes, &open),
		     link->state == LINK_PROVING ? link->payload : 0);
	link->opens++;
	link->open_at = context->now;
	link_timer(link, context->now + (pause < AGAIN_MOST ? pause : AGAIN_MOST));
}

static void try_shorter(struct backend_link *link)
{
	uint16_t before = link->payload;

	for (size_t i = 0; i < sizeof(shorter) / sizeof(shorter[0]); i++) {
		if (shorter[i] >= before)
			continue;
		link->payload = shorter[i];
		link->opens = 1;
		haul_log(HAUL_LOG_WARNING,
			 "%s does not answer to packets of %u bytes, though both ports can carry "
			 "them: trying %u (mtu= says what the path carries)",
			 link->address, before + FRAME_IP_HEADERS,
			 link->payload + FRAME_IP_HEADERS);
		return;
	}
}

void opening_run(struct backend_link *link)
{
	if (link->neighbour && !link->neighbour->known && link->neighbour->asked > NEIGHBOUR_ASKS) {
		opening_next(link, -EHOSTUNREACH, "no host answers for its address (ARP)");
		return;
	}
	if (link->state == LINK_PROVING && link->opens >= LONG_TRIES)
		try_shorter(link);
	/* Nothing leaves before the neighbour is known: look again soon. */
	if (link->neighbour && !link->neighbour->known) {
		link_timer(link, link->context->now + 1 * MS);
		return;
	}
	say_open(link);
}

/* The next address of the list, or the end. */
void opening_next(struct backend_link *link, int error, const char *why)
{
	struct backend_context *context = link->context;

	while (++link->address_tried < link->address_count) {
		struct neighbour *neighbour = NULL;
		const struct opening_address *address = &link->addresses[link->address_tried];

		if (address->ip != context->port->ip) {
			neighbour = neighbour_use(context, address->ip);
			if (!neighbour)
				continue;
		}
		if (link->neighbour)
			neighbour_release(link->neighbour);
		link->neighbour = neighbour;
		link->local = !neighbour;
		link->template.length = 0;
		link->ip = address->ip;
		link->peer_port = address->port;
		link->state = LINK_ASKING;
		link->opens = 0;
		name_peer(link);
		link_timer(link, context->now);
		return;
	}
	link_fail(link, error, "%s", why);
}

/* Those of the list that can be reached; 0 or why there is none. */
static int usable(struct backend_context *context, const char *where, struct opening_address **out,
		  unsigned *count)
{
	struct haul_addresses all = {0};
	struct opening_address *list;
	int error = haul_address_parse(context->engine, where, &all);
	uint32_t hop;

	if (error)
		return error;
	list = calloc(all.count ? all.count : 1, sizeof(*list));
	if (!list)
		error = -ENOMEM;
	else
		error = haul_fail(context->engine, -EAFNOSUPPORT,
				  "%s is no IPv4 address; valid is one, as dpdk speaks no IPv6",
				  where);
	*count = 0;
	for (unsigned i = 0; list && i < all.count; i++) {
		if (all.list[i].ss_family != AF_INET)
			continue;
		error = neighbour_route(context, address_ip(&all.list[i]), &hop);
		if (error)
			continue;
		list[*count].ip = address_ip(&all.list[i]);
		list[(*count)++].port = (uint16_t)haul_address_port(&all.list[i]);
	}
	free(all.list);
	if (*count) {
		*out = list;
		return 0;
	}
	free(list);
	return error;
}

int opening_connect(struct backend_context *context, const char *where, haul_endpoint *engine,
		    char *address, size_t room, struct backend_link **out)
{
	struct opening_address *addresses = NULL;
	struct backend_link *link;
	unsigned count = 0;
	int error = usable(context, where, &addresses, &count);

	if (error)
		return error;
	context->now = haul_clock();
	link = link_new(context, addresses[0].ip, addresses[0].port, any_port());
	if (!link) {
		free(addresses);
		return haul_fail(context->engine, -ENOBUFS,
				 "no memory for a connection to %s, or there are %llu of them "
				 "(connections=)",
				 where, (unsigned long long)context->link_count);
	}
	link->addresses = addresses;
	link->address_count = count;
	link->endpoint = engine;
	link->connector = true;
	link->state = LINK_ASKING;
	name_peer(link);
	snprintf(address, room, "%s", link->address);
	link_timer(link, context->now);
	*out = link;
	return 0;
}

/* A packet that answers our OPEN: from the right host, while we wait for one. */
static struct backend_link *asking_link(struct backend_context *context, const struct frame *frame,
					const struct packet_head *head)
{
	struct backend_link *link = link_find(context, head->connection);

	if (!link || link->error || link->ip != frame->source ||
	    link->peer_port != frame->source_port ||
	    (link->state != LINK_ASKING && link->state != LINK_PROVING))
		return NULL;
	return link;
}

static void take_cookie(struct backend_link *link, const struct packet_answer *answer)
{
	uint16_t own = link->context->port->payload;

	if (answer->version != PACKET_VERSION || answer->payload < PACKET_PAYLOAD_LEAST) {
		opening_next(link, -EPROTO, "it speaks another version of the protocol");
		return;
	}
	/* A second cookie is for one that was too old, or comes twice. */
	if (link->state == LINK_ASKING)
		link->payload = answer->payload < own ? answer->payload : own;
	else if (link->opens < 2)
		return;
	memcpy(link->cookie, answer->cookie, PACKET_COOKIE_SIZE);
	link->state = LINK_PROVING;
	link->opens = 0;
	say_open(link);
}

static void take_refusal(struct backend_link *link, const struct packet_answer *answer)
{
	switch (answer->reason) {
	case PACKET_REASON_VERSION:
		opening_next(link, -EPROTO, "it speaks another version of the protocol");
		break;
	case PACKET_REASON_NO_LISTENER:
		opening_next(link, -ECONNREFUSED, "nobody listens on that port");
		break;
	case PACKET_REASON_FULL:
		opening_next(link, -ECONNREFUSED, "it has no room for one more connection");
		break;
	default:
		opening_next(link, -ECONNREFUSED, "it refused the connection");
	}
}

static void take_opened(struct backend_link *link, const struct packet_open *open)
{
	/* It may answer to a longer OPEN than the last one: then the path carries those after all.
	 */
	if (open->version != PACKET_VERSION || !open->name ||
	    open->payload < PACKET_PAYLOAD_LEAST || open->payload > link->context->port->payload ||
	    link->state != LINK_PROVING) {
		link_fail(link, -EPROTO, "it answered with what it can't have been asked for");
		return;
	}
	link->payload = open->payload;
	link_opened(link, open);
	/* When it was asked once, there is no doubt which question was answered. */
	if (link->opens == 1 && link->context->seen_at)
		recovery_rtt(&link->recovery, link->context->now - link->open_at,
			     link->context->now);
	haul_on_connected(link->endpoint);
}

/* ---- The side that listens --------------------------------------------- */

static void refuse(struct backend_context *context, const struct frame *frame, uint64_t name,
		   enum packet_reason reason)
{
	const struct packet_answer answer = {.version = PACKET_VERSION, .reason = (uint16_t)reason};
	uint8_t bytes[PACKET_REFUSED];

	output_answer(context, frame, bytes, packet_write_refused(bytes, name, &answer), 0);
}

static void give_cookie(struct backend_context *context, const struct frame *frame,
			const struct packet_open *open)
{
	struct packet_answer answer = {.version = PACKET_VERSION,
				       .payload = context->port->payload};
	uint8_t bytes[PACKET_COOKIE];

	cookie_make(context, frame->source, frame->source_port, open->name, answer.cookie);
	output_answer(context, frame, bytes, packet_write_cookie(bytes, open->name, &answer), 0);
}

/* So much of the stream, in one piece, fits into the packets of any connection. */
#define SAID_MOST (PACKET_PAYLOAD_LEAST / 2)

static void say_opened(struct backend_link *link, uint16_t length)
{
	const struct packet_open open = {
		.name = link->name,
		.incarnation = link->context->incarnation,
		.window = receive_window(link),
		.payload = link->payload,
		.version = PACKET_VERSION,
	};
	uint8_t bytes[PACKET_OPENED];

	/* Never longer than the question. */
	output_plain(link, bytes, packet_write_opened(bytes, link->peer_name, &open),
		     length < link->payload ? length : link->payload);
}

/* OPEN came again: the answer was lost, or too long for the way back. */
static void open_again(struct backend_link *link, uint16_t payload)
{
	if (!link_talks(link) || !output_may_answer(link->context, link->ip))
		return;
	if (payload < link->payload && !link->received.largest && TAILQ_EMPTY(&link->transfers) &&
	    link->stream.next <= SAID_MOST)
		link->payload = payload;
	say_opened(link, payload);
}

/* The link that this OPEN made before: its answer was lost. */
static struct backend_link *known_link(struct backend_context *context, const struct frame *frame,
				       const struct packet_open *open)
{
	struct backend_link *link;

	LIST_FOREACH (link, link_peers(context, open->name), peer_entry) {
		if (link->peer_name == open->name && link->ip == frame->source &&
		    link->peer_port == frame->source_port && !link->connector)
			return link;
	}
	return NULL;
}

/* Perhaps the peer's program was started anew: what an earlier one has opened is asked whether it
 * lives, and answered with RESET when it does not. */
static void doubt_earlier(struct backend_context *context, uint32_t ip, uint64_t incarnation)
{
	struct backend_link *link;

	TAILQ_FOREACH (link, &context->links, all) {
		if (link->ip == ip && link_talks(link) && link->peer_incarnation != incarnation)
			output_ping(link, true);
	}
}

static void accept_link(struct backend_context *context, const struct frame *frame,
			struct backend_listener *listener, const struct packet_open *open,
			uint16_t payload)
{
	struct backend_link *link =
		link_new(context, frame->source, frame->source_port, frame->target_port);

	if (!link) {
		refuse(context, frame, open->name, PACKET_REASON_FULL);
		return;
	}
	name_peer(link);
	link->payload = payload;
	if (link->neighbour && !link->neighbour->known)
		neighbour_learn(context, link->neighbour->ip, frame->source_mac);
	link_opened(link, open);
	say_opened(link, payload);
	link->endpoint = haul_on_accepted(listener->engine, link, link->address);
	if (!link->endpoint)
		link_gone(link);
}

static void take_open(struct backend_context *context, const struct frame *frame,
		      const struct packet_open *open)
{
	struct backend_listener *listener = listen_find(context, frame->target_port);
	struct backend_link *link;
	uint16_t payload =
		open->payload < context->port->payload ? open->payload : context->port->payload;

	if (open->version != PACKET_VERSION || !open->name || payload < PACKET_PAYLOAD_LEAST ||
	    !listener) {
		if (output_may_answer(context, frame->source))
			refuse(context, frame, open->name,
			       open->version != PACKET_VERSION ? PACKET_REASON_VERSION
			       : !listener                     ? PACKET_REASON_NO_LISTENER
							       : PACKET_REASON_PAYLOAD);
		return;
	}
	if (!cookie_check(context, frame->source, frame->source_port, open->name, open->cookie)) {
		if (output_may_answer(context, frame->source))
			give_cookie(context, frame, open);
		return;
	}
	/* It has come whole: the path carries packets of this length. */
	if (frame->length < payload)
		payload = (uint16_t)frame->length;
	if (payload < PACKET_PAYLOAD_LEAST)
		return;
	link = known_link(context, frame, open);
	if (link) {
		open_again(link, payload);
		return;
	}
	doubt_earlier(context, frame->source, open->incarnation);
	accept_link(context, frame, listener, open, payload);
}

/* ---- What comes -------------------------------------------------------- */

void opening_input(struct backend_context *context, const struct frame *frame,
		   const struct packet_head *head)
{
	struct backend_link *link = asking_link(context, frame, head);
	struct packet_answer answer;
	struct packet_open open;

	switch (head->type) {
	case PACKET_TYPE_OPEN:
		if (packet_read_open(frame->payload, frame->length, &open))
			take_open(context, frame, &open);
		break;
	case PACKET_TYPE_COOKIE:
		if (link && packet_read_cookie(frame->payload, frame->length, &answer))
			take_cookie(link, &answer);
		break;
	case PACKET_TYPE_REFUSED:
		if (link && packet_read_refused(frame->payload, frame->length, &answer))
			take_refusal(link, &answer);
		break;
	default:
		if (link && packet_read_opened(frame->payload, frame->length, &open))
			take_opened(link, &open);
	}
}

/* A host's kernel says that the port is nobody's. Only believed before anything else was heard. */
void opening_unreachable(struct backend_context *context, const struct frame *frame)
{
	struct backend_link *link;

	TAILQ_FOREACH (link, &context->links, all) {
		if (link->state == LINK_ASKING && link->ip == frame->target &&
		    link->peer_port == frame->target_port && link->own_port == frame->source_port &&
		    !link->error) {
			opening_next(link, -ECONNREFUSED, "its host says that the port is closed");
			return;
		}
	}
}
