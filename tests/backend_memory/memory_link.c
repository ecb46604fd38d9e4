/* SPDX-License-Identifier: Apache-2.0 */
/* Listeners, links and control messages. */
#include "memory.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* ns that a link which ended in order takes to leave, with keeper=yes. */
#define LEAVING UINT64_C(2000000)

/* ---- Addresses --------------------------------------------------------- */

/*
 * Cut the first "host:port" off a list of numeric addresses; false at its end. The engine has
 * looked at the text already.
 */
static bool next_address(const char **where, char *host, size_t room, unsigned *port)
{
	size_t length = strcspn(*where, ",");
	const char *start = *where, *colon = memrchr(start, ':', length);
	size_t host_length;

	if (!colon)
		return false;
	*where += length + (start[length] == ',');
	*port = (unsigned)atoi(colon + 1);
	host_length = (size_t)(colon - start);
	if (*start == '[') {
		start++;
		host_length -= 2;
	}
	snprintf(host, room, "%.*s", (int)host_length, start);
	return true;
}

/* This house's own addresses. */
static bool local_host(const char *host)
{
	return !strcmp(host, "*") || !strncmp(host, "127.", 4) || !strcmp(host, "::1");
}

static void print_address(const char *host, unsigned port, char *address, size_t room)
{
	if (!strcmp(host, "*"))
		host = "127.0.0.1";
	snprintf(address, room, strchr(host, ':') ? "[%s]:%u" : "%s:%u", host, port);
}

/* ---- Listeners --------------------------------------------------------- */

/* With the house's lock held. */
static bool port_taken(const char *host, unsigned port)
{
	struct backend_listener *listener;

	TAILQ_FOREACH (listener, &house.listeners, all) {
		if (listener->port == port && !strcmp(listener->host, host))
			return true;
	}
	return false;
}

static int link_listen(struct backend_context *context, const char *where, haul_listener *engine,
		       char *address, size_t room, struct backend_listener **out)
{
	struct backend_listener *listener = calloc(1, sizeof(*listener));
	int error = 0;

	if (!listener)
		return -ENOMEM;
	if (!next_address(&where, listener->host, sizeof(listener->host), &listener->port))
		error = -EINVAL;
	else if (!local_host(listener->host))
		error = haul_fail(context->engine, -EADDRNOTAVAIL, "%s is no address of this host",
				  listener->host);
	if (error) {
		free(listener);
		return error;
	}
	listener->context = context;
	listener->engine = engine;
	house_lock();
	while (!listener->port) {
		unsigned port = house.next_port;

		house.next_port = port < 60000 ? port + 1 : 40000;
		if (!port_taken(listener->host, port))
			listener->port = port;
	}
	if (port_taken(listener->host, listener->port))
		error = -EADDRINUSE;
	listener->name = house_name();
	if (!error) {
		TAILQ_INSERT_TAIL(&house.listeners, listener, all);
		house.counts.listeners++;
	}
	house_unlock();
	if (error) {
		haul_fail(context->engine, error, "port %u is in use", listener->port);
		free(listener);
		return error;
	}
	print_address(listener->host, listener->port, address, room);
	*out = listener;
	return 0;
}

static void link_unlisten(struct backend_listener *listener)
{
	house_lock();
	TAILQ_REMOVE(&house.listeners, listener, all);
	house.counts.listeners--;
	house_unlock();
	free(listener);
}

/* ---- Links ------------------------------------------------------------- */

struct backend_link *link_new(struct backend_context *context, haul_endpoint *endpoint)
{
	struct backend_link *link = calloc(1, sizeof(*link));

	if (!link)
		return NULL;
	link->context = context;
	link->endpoint = endpoint;
	TAILQ_INSERT_TAIL(&context->links, link, all);
	house_lock();
	link->name = house_name();
	TAILQ_INSERT_TAIL(&house.links, link, known);
	house.counts.links++;
	house_unlock();
	return link;
}

struct backend_link *link_find(struct backend_context *context, uint64_t name)
{
	struct backend_link *link;

	TAILQ_FOREACH (link, &context->links, all) {
		if (link->name == name)
			return link->dead ? NULL : link;
	}
	return NULL;
}

void link_free(struct backend_link *link)
{
	TAILQ_REMOVE(&link->context->links, link, all);
	free(link);
}

void link_fail(struct backend_link *link, int error, const char *why)
{
	if (link->lost || link->error)
		return;
	link->error = error;
	link->why = why;
	link->context->again = true;
}

/* Try the addresses in their order; where nobody listens at any, the answer comes from nobody. */
static void say_connect(struct backend_link *link, const char *where, char *address, size_t room)
{
	struct message *message = message_new(MESSAGE_CONNECT, 0);
	bool found = false;
	char host[64];
	unsigned port;

	if (!message)
		return; /* the connect's time will run out */
	message->from = link->name;
	while (!found && next_address(&where, host, sizeof(host), &port)) {
		print_address(host, port, address, room);
		found = house_connect(message, host, port);
	}
	if (found)
		return;
	message->kind = MESSAGE_REFUSED;
	message->to = link->name;
	house_post(message);
}

static int link_connect(struct backend_context *context, const char *where, haul_endpoint *engine,
			char *address, size_t room, struct backend_link **out)
{
	struct backend_link *link = link_new(context, engine);

	if (!link)
		return -ENOMEM;
	say_connect(link, where, address, room);
	*out = link;
	return 0;
}

/* Tell the other end, behind everything that it was sent. */
static void say_gone(struct backend_link *link, int error)
{
	struct message *message;

	if (!link->peer)
		return;
	message = message_new(MESSAGE_GONE, 0);
	if (!message)
		return;
	message->to = link->peer;
	message->length = (size_t)-error;
	house_post(message);
}

static void link_disconnect(struct backend_link *link, bool in_order)
{
	if (link->dead)
		return;
	say_gone(link, in_order ? 0 : -ECONNRESET);
	link->dead = true;
	link->endpoint = NULL;
	link->context->again = true;
	if (in_order && link->context->config->keeper)
		link->context->leaving_until = haul_clock() + LEAVING;
	data_forget(link);
	house_lock();
	TAILQ_REMOVE(&house.links, link, known);
	house.counts.links--;
	house_unlock();
}

/* Messages are in the peer's inbox as soon as they are said. */
static unsigned link_leaving(struct backend_context *context)
{
	return haul_clock() < context->leaving_until;
}

static int link_control(struct backend_link *link, const uint8_t *bytes, size_t length)
{
	struct message *message;
	bool jammed;

	house_lock();
	jammed = house.jammed;
	house_unlock();
	if (jammed)
		return -ENOBUFS;
	message = message_new(MESSAGE_CONTROL, length);
	if (!message)
		return -ENOMEM;
	memcpy(message->bytes, bytes, length);
	message->to = link->peer;
	house_post(message);
	return 0;
}

static void link_flush(struct backend_link *link)
{
	link_pump(link);
}

static void link_statistics(struct backend_link *link, struct haul_statistics *statistics)
{
	statistics->streams++;
	statistics->chunks_sent += link->pieces;
}

const struct haul_link_ops memory_link_ops = {
	.listen = link_listen,
	.unlisten = link_unlisten,
	.connect = link_connect,
	.disconnect = link_disconnect,
	.leaving = link_leaving,
	.control = link_control,
	.flush = link_flush,
	.statistics = link_statistics,
};
