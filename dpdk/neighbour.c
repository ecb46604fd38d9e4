/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Who has which address: ARP (RFC 826), asked for those that links send to, answered for our own
 * address. Only addresses that were asked for are remembered, so that nobody can fill the table.
 */
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "dpdk.h"

#define ASK_EVERY SECOND
/* The first question may get lost. */
#define ASK_FIRST (100 * MS)
/* A neighbour that was not heard of for so long is asked again. */
#define FRESH (30 * SECOND)

/* ---- Which way --------------------------------------------------------- */

int neighbour_route(struct backend_context *context, uint32_t ip, uint32_t *next_hop)
{
	const struct port *port = context->port;

	*next_hop = ip;
	if (ip == port->ip || ((ip ^ port->ip) & port->mask) == 0)
		return 0;
	*next_hop = port->gateway;
	if (port->gateway)
		return 0;
	return haul_fail(context->engine, -ENETUNREACH,
			 "%u.%u.%u.%u is not on the net of ip=%s, and there is no gateway=",
			 ip >> 24, ip >> 16 & 255, ip >> 8 & 255, ip & 255, context->config->ip);
}

/* ---- The table --------------------------------------------------------- */

static struct neighbour *find(struct backend_context *context, uint32_t ip)
{
	struct neighbour *neighbour;

	LIST_FOREACH (neighbour, &context->neighbours, all) {
		if (neighbour->ip == ip)
			return neighbour;
	}
	return NULL;
}

static void look_at(struct backend_context *context, uint64_t at)
{
	if (at < context->neighbour_at)
		context->neighbour_at = at;
}

static void ask(struct backend_context *context, struct neighbour *neighbour)
{
	uint8_t frame[FRAME_LEAST + FRAME_TAG];
	const struct port *port = context->port;

	/* Where no wire is, nobody is asked: only questions that can arrive count. */
	if (!port->link_up) {
		neighbour->ask_at = context->now + ASK_FIRST;
		look_at(context, neighbour->ask_at);
		return;
	}
	output_frame(context, frame,
		     frame_write_arp(frame, port->mac, port->ip, port->tag, NULL, neighbour->ip));
	neighbour->ask_at = context->now + (neighbour->asked++ ? ASK_EVERY : ASK_FIRST);
	look_at(context, neighbour->ask_at);
}

struct neighbour *neighbour_use(struct backend_context *context, uint32_t ip)
{
	struct neighbour *neighbour;
	uint32_t hop;

	if (neighbour_route(context, ip, &hop))
		return NULL;
	neighbour = find(context, hop);
	if (!neighbour) {
		neighbour = calloc(1, sizeof(*neighbour));
		if (!neighbour)
			return NULL;
		neighbour->ip = hop;
		LIST_INSERT_HEAD(&context->neighbours, neighbour, all);
		ask(context, neighbour);
	} else if (!neighbour->known && neighbour->asked > NEIGHBOUR_ASKS) {
		/* Nobody was there the last time. */
		neighbour->asked = 0;
		ask(context, neighbour);
	}
	neighbour->users++;
	return neighbour;
}

void neighbour_release(struct neighbour *neighbour)
{
	neighbour->users--;
}

void neighbours_free(struct backend_context *context)
{
	struct neighbour *neighbour;

	while ((neighbour = LIST_FIRST(&context->neighbours))) {
		LIST_REMOVE(neighbour, all);
		free(neighbour);
	}
}

/* ---- What is learnt ---------------------------------------------------- */

/* Those that wait for the answer. */
static void wake_links(struct backend_context *context, const struct neighbour *neighbour)
{
	struct backend_link *link;

	TAILQ_FOREACH (link, &context->links, all) {
		if (link->neighbour == neighbour && link->state != LINK_GONE && !link->error)
			link_timer(link, context->now);
	}
}

void neighbour_learn(struct backend_context *context, uint32_t ip, const uint8_t *mac)
{
	struct neighbour *neighbour = find(context, ip);

	/* A group's address is nobody's own. */
	if (!neighbour || mac[0] & 1)
		return;
	if (!neighbour->known || memcmp(neighbour->mac, mac, FRAME_MAC)) {
		memcpy(neighbour->mac, mac, FRAME_MAC);
		neighbour->version++;
		neighbour->known = true;
		wake_links(context, neighbour);
	}
	neighbour_confirm(neighbour, context->now);
	look_at(context, neighbour->ask_at);
}

void neighbour_confirm(struct neighbour *neighbour, uint64_t now)
{
	neighbour->confirmed_at = now;
	neighbour->asked = 0;
	neighbour->ask_at = now + FRESH;
}

void neighbour_doubt(struct backend_context *context, struct neighbour *neighbour)
{
	if (neighbour->known && neighbour->asked == 0)
		ask(context, neighbour);
}

static void answer(struct backend_context *context, const struct frame *frame)
{
	uint8_t bytes[FRAME_LEAST + FRAME_TAG];
	const struct port *port = context->port;

	/* Not with those to strangers: a flood of them must not make us disappear. */
	if (!limiter_take(&context->arps, context->now))
		return;
	output_frame(context, bytes,
		     frame_write_arp(bytes, port->mac, port->ip, port->tag, frame->arp_mac,
				     frame->source));
}

void neighbours_input(struct backend_context *context, const struct frame *frame)
{
	if (frame->source == context->port->ip) {
		if (memcmp(frame->arp_mac, context->port->mac, FRAME_MAC) && !context->conflict) {
			context->conflict = true;
			haul_log(HAUL_LOG_ERROR,
				 "another host has our address %s too (its MAC is "
				 "%02x:%02x:%02x:%02x:%02x:%02x)",
				 context->config->ip, frame->arp_mac[0], frame->arp_mac[1],
				 frame->arp_mac[2], frame->arp_mac[3], frame->arp_mac[4],
				 frame->arp_mac[5]);
		}
		return;
	}
	if (frame->source)
		neighbour_learn(context, frame->source, frame->arp_mac);
	if (frame->arp_asks && frame->target == context->port->ip)
		answer(context, frame);
}

/* RFC 5227, section 2.3: whoever knew an earlier owner of our address learns of us. */
void neighbours_announce(struct backend_context *context)
{
	uint8_t frame[FRAME_LEAST + FRAME_TAG];
	const struct port *port = context->port;

	output_frame(context, frame,
		     frame_write_arp(frame, port->mac, port->ip, port->tag, NULL, port->ip));
}

void neighbours_run(struct backend_context *context)
{
	struct neighbour *neighbour, *next;

	context->neighbour_at = UINT64_MAX;
	for (neighbour = LIST_FIRST(&context->neighbours); neighbour; neighbour = next) {
		next = LIST_NEXT(neighbour, all);
		/* One that was used a moment ago is known to the next link. */
		if (neighbour->ask_at <= context->now && !neighbour->users) {
			LIST_REMOVE(neighbour, all);
			free(neighbour);
			continue;
		}
		if (neighbour->ask_at <= context->now) {
			/* Links that use it fail by themselves when it never answers. */
			if (neighbour->known || neighbour->asked <= NEIGHBOUR_ASKS)
				ask(context, neighbour);
			else
				neighbour->ask_at = context->now + FRESH;
		}
		look_at(context, neighbour->ask_at);
	}
}
