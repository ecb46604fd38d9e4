/* SPDX-License-Identifier: Apache-2.0 */
/* Listeners: UDP ports of the one address that a context has. */
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include <netinet/in.h>

#include "dpdk.h"

/* Where port 0 looks for a free one, as RFC 6335 has it. */
#define FREE_LOW 49152u
#define FREE_COUNT 16384u

void address_print(uint32_t ip, uint16_t port, char *text, size_t room)
{
	struct sockaddr_storage address = {0};
	struct sockaddr_in *in = (struct sockaddr_in *)&address;

	in->sin_family = AF_INET;
	in->sin_addr.s_addr = htonl(ip);
	in->sin_port = htons(port);
	haul_address_print(&address, text, room);
}

struct backend_listener *listen_find(struct backend_context *context, uint16_t port)
{
	struct backend_listener *listener;

	TAILQ_FOREACH (listener, &context->listeners, all) {
		if (listener->port == port)
			return listener;
	}
	return NULL;
}

static uint16_t free_port(struct backend_context *context)
{
	uint16_t start = 0;

	haul_random(&start, sizeof(start));
	for (unsigned i = 0; i < FREE_COUNT; i++) {
		uint16_t port = (uint16_t)(FREE_LOW + (start + i) % FREE_COUNT);

		if (!listen_find(context, port))
			return port;
	}
	return 0;
}

/* What try_listen() looks for, and what it finds. */
struct
try {
	struct backend_context *context;
	uint16_t port;
};

static int try_listen(void *user, const struct sockaddr_storage *address)
{
	struct try *try = user;
	struct backend_context *context = try->context;
	const struct sockaddr_in *in = (const struct sockaddr_in *)address;
	uint16_t port = (uint16_t)haul_address_port(address);
	char own[64];

	/* "*" gives addresses of IPv6 first. */
	if (address->ss_family != AF_INET)
		return haul_fail(context->engine, -EAFNOSUPPORT, "dpdk speaks no IPv6");
	if (in->sin_addr.s_addr && ntohl(in->sin_addr.s_addr) != context->port->ip) {
		address_print(context->port->ip, 0, own, sizeof(own));
		return haul_fail(context->engine, -EADDRNOTAVAIL,
				 "the address is not this port's: valid are that of ip= (%s) and *",
				 own);
	}
	if (!port)
		port = free_port(context);
	if (!port || listen_find(context, port))
		return haul_fail(context->engine, -EADDRINUSE,
				 "UDP port %u has a listener in this context", port);
	try->port = port;
	return 0;
}

int listen_open(struct backend_context *context, const char *where, haul_listener *engine,
		char *address, size_t room, struct backend_listener **out)
{
	struct try try = {.context = context};
	struct backend_listener *listener = calloc(1, sizeof(*listener));
	int error;

	if (!listener)
		return -ENOMEM;
	error = haul_listen_on(context->engine, where, &context->config->ports, try_listen, &try);
	if (error) {
		free(listener);
		return error;
	}
	listener->context = context;
	listener->engine = engine;
	listener->port = try.port;
	TAILQ_INSERT_TAIL(&context->listeners, listener, all);
	address_print(context->port->ip, try.port, address, room);
	*out = listener;
	return 0;
}

void listen_close(struct backend_listener *listener)
{
	TAILQ_REMOVE(&listener->context->listeners, listener, all);
	free(listener);
}
