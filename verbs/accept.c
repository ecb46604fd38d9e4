/* SPDX-License-Identifier: Apache-2.0 */
/* Listening, and connections that peers ask for. */
#include <errno.h>
#include <netinet/in.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "verbs.h"

/* How long rdma_cm waits until it sends a packet again that was lost; the kernel has it fixed. */
#define CM_AGAIN_MS 5000

/* ---- Listening --------------------------------------------------------- */

static bool is_any(const struct sockaddr *address)
{
	if (address->sa_family == AF_INET6)
		return IN6_IS_ADDR_UNSPECIFIED(&((const struct sockaddr_in6 *)address)->sin6_addr);
	return ((const struct sockaddr_in *)address)->sin_addr.s_addr == htonl(INADDR_ANY);
}

/* One family's addresses only. */
static int listen_at(struct backend_listener *listener, const struct sockaddr_storage *address,
		     struct rdma_cm_id **out)
{
	struct backend_context *context = listener->context;
	struct rdma_cm_id *id;
	int error = 0, alone = 1;

	if (rdma_create_id(context->events, &id, listener, RDMA_PS_TCP))
		return -errno;
	if (rdma_set_option(id, RDMA_OPTION_ID, RDMA_OPTION_ID_AFONLY, &alone, sizeof(alone)) ||
	    rdma_bind_addr(id, (struct sockaddr *)address) ||
	    rdma_listen(id, (int)context->config->backlog))
		error = -errno;
	/* All who connect would be turned away. "*" is no device's. */
	else if (id->verbs && !device_is_named(context, id->verbs))
		error = -ENODEV;
	if (!error) {
		*out = id;
		return 0;
	}
	rdma_destroy_id(id);
	/* Says the kernel of a port that somebody has at "*", too. */
	if (error == -EADDRNOTAVAIL &&
	    (is_any((struct sockaddr *)address) || device_owns(context, address, NULL)))
		return -EADDRINUSE;
	/* No device has the address, or not the one that was asked for. */
	return error == -ENODEV ? -EADDRNOTAVAIL : error;
}

/* "*" stands for both families. iWARP adapters take no IPv4 peers where they listen for IPv6. */
static int try_listen(void *user, const struct sockaddr_storage *address)
{
	struct backend_listener *listener = user;
	struct sockaddr_storage four = {.ss_family = AF_INET};
	int error;

	if (device_is_loopback(address))
		return -EADDRNOTAVAIL;
	error = listen_at(listener, address, &listener->id);
	if (error || address->ss_family != AF_INET6 || !is_any((struct sockaddr *)address))
		return error;
	haul_address_set_port(&four, ntohs(rdma_get_src_port(listener->id)));
	error = listen_at(listener, &four, &listener->four);
	if (error)
		rdma_destroy_id(listener->id);
	return error;
}

/* What a peer on this host connects to. Loopback has no adapter: for "*", an address that has one.
 */
static void print_bound(struct backend_context *context, struct backend_listener *listener,
			char *text, size_t room)
{
	struct sockaddr_storage address = {0};
	const struct sockaddr *bound = rdma_get_local_addr(listener->id);
	unsigned port = ntohs(rdma_get_src_port(listener->id));

	if (!is_any(bound) || device_address(context, AF_UNSPEC, &address))
		memcpy(&address, bound,
		       bound->sa_family == AF_INET6 ? sizeof(struct sockaddr_in6)
						    : sizeof(struct sockaddr_in));
	haul_address_set_port(&address, port);
	haul_address_print(&address, text, room);
}

int verbs_listen(struct backend_context *context, const char *where, haul_listener *engine,
		 char *address, size_t room, struct backend_listener **out)
{
	struct backend_listener *listener = calloc(1, sizeof(*listener));
	int error;

	if (!listener)
		return -ENOMEM;
	listener->context = context;
	listener->engine = engine;
	error = haul_listen_on(context->engine, where, &context->config->ports, try_listen,
			       listener);
	if (error == -EADDRNOTAVAIL && context->config->device)
		verbs_fail(context, error,
			   "can't listen on %s: device=%s does not have that address (haul-info "
			   "lists them)",
			   where, context->config->device);
	else if (error == -EADDRNOTAVAIL)
		verbs_fail(context, error,
			   "can't listen on %s: no RDMA device of this host has that address "
			   "(haul-info lists them)",
			   where);
	if (error) {
		free(listener);
		return error;
	}
	TAILQ_INSERT_TAIL(&context->listeners, listener, all);
	print_bound(context, listener, address, room);
	*out = listener;
	return 0;
}

void verbs_unlisten(struct backend_listener *listener)
{
	struct backend_context *context = listener->context;
	struct backend_link *link;

	/* Those that are not established yet were for it. */
	TAILQ_FOREACH (link, &context->links, all) {
		if (link->listener != listener->engine || link->announced)
			continue;
		link->listener = NULL;
		link_fail(link, -ECONNABORTED, "the listener was closed");
	}
	TAILQ_REMOVE(&context->listeners, listener, all);
	rdma_destroy_id(listener->id);
	if (listener->four)
		rdma_destroy_id(listener->four);
	free(listener);
}

bool is_listener(const struct backend_context *context, const struct rdma_cm_id *id)
{
	const struct backend_listener *listener;

	TAILQ_FOREACH (listener, &context->listeners, all) {
		if (listener->id == id || listener->four == id)
			return true;
	}
	return false;
}

/* ---- Accepting --------------------------------------------------------- */

static void refuse(struct rdma_cm_id *id, enum verbs_reason reason)
{
	uint8_t bytes[VERBS_REFUSAL];

	verbs_encode_refusal(bytes, reason);
	rdma_reject(id, bytes, sizeof(bytes));
	rdma_destroy_id(id);
}

static int answer(struct channel *channel, const struct request *request)
{
	uint8_t bytes[VERBS_GREETING];
	struct rdma_conn_param parameters = {
		.responder_resources = request->responder_resources ? 1 : 0,
		.initiator_depth = request->initiator_depth ? 1 : 0,
		.rnr_retry_count = 7,
	};
	int error = channel_open(channel);

	if (!error)
		error = channel_ready(channel);
	if (error)
		return error;
	channel_offer(channel, bytes, &parameters);
	return rdma_accept(channel->id, &parameters) ? -errno : 0;
}

static void accept_control(struct backend_context *context, struct backend_listener *listener,
			   const struct request *request)
{
	struct backend_link *link = NULL;
	int error;

	if (context->strangers < STRANGERS_MAX)
		link = link_new(context);
	if (!link) {
		refuse(request->id, VERBS_REASON_ROOM);
		return;
	}
	context->strangers++;
	link->counted = true;
	link->listener = listener->engine;
	link->give_up_at = haul_clock() + (haul_handshake_ms(context->engine) + CM_AGAIN_MS) * MS;
	link_timer(link, link->give_up_at);
	haul_address_print((struct sockaddr_storage *)rdma_get_peer_addr(request->id),
			   link->address, sizeof(link->address));
	link->control->id = request->id;
	request->id->context = link->control;
	error = link_use_device(link, request->id);
	if (!error)
		error = haul_random(link->session, sizeof(link->session));
	if (!error) {
		link_take_greeting(link, &request->greeting);
		error = answer(link->control, request);
	}
	if (!error)
		return;
	haul_log(HAUL_LOG_WARNING, "%s was turned away: %s", link->address,
		 context->why[0] ? context->why : haul_strerror(error));
	channel_break(link->control);
	link->control->id = NULL;
	refuse(request->id, VERBS_REASON_ROOM);
	link_free(link);
}

static struct backend_link *find_session(struct backend_context *context, const uint8_t *session)
{
	struct backend_link *link;

	TAILQ_FOREACH (link, &context->links, all) {
		if (!link->connector && !link->error && link->control->qp &&
		    (link->state == LINK_OPEN || link->state == LINK_CONNECTING) &&
		    memcmp(link->session, session, VERBS_SESSION) == 0)
			return link;
	}
	return NULL;
}

static void accept_data(struct backend_context *context, const struct request *request)
{
	struct backend_link *link = find_session(context, request->greeting.session);
	unsigned number = request->greeting.number;
	struct channel *channel;
	int error;

	if (link && number >= link->data_room) {
		refuse(request->id, VERBS_REASON_ROOM);
		return;
	}
	if (!link || number >= QPS_MAX || link->data[number] || (link->split && number > 1)) {
		refuse(request->id, VERBS_REASON_SESSION);
		return;
	}
	channel = channel_new(link, false, number);
	if (!channel || link_use_device(link, request->id)) {
		free(channel);
		refuse(request->id, VERBS_REASON_ROOM);
		return;
	}
	channel->id = request->id;
	request->id->context = channel;
	link->data[number] = channel;
	if (number >= link->data_count)
		link->data_count = number + 1;
	error = answer(channel, request);
	if (error)
		link_fail(link, error, "a data channel could not be opened: %s", context->why);
}

void accept_request(struct backend_context *context, struct backend_listener *listener,
		    const struct request *request)
{
	char why[200];

	request->id->context = NULL;
	if (request->wrong == -EPROTONOSUPPORT)
		refuse(request->id, VERBS_REASON_VERSION);
	else if (request->wrong)
		refuse(request->id, VERBS_REASON_GREETING);
	else if (device_is_wished(context, request->id->verbs, why, sizeof(why)))
		refuse(request->id, VERBS_REASON_DEVICE);
	else if (request->greeting.kind == VERBS_CONTROL)
		accept_control(context, listener, request);
	else
		accept_data(context, request);
}

/* The control channel of a peer is up: the engine may talk to it. */
void accept_announce(struct backend_link *link)
{
	link->announced = true;
	link->context->strangers--;
	link->counted = false;
	link->give_up_at = 0;
	link->endpoint = haul_on_accepted(link->listener, link, link->address);
	if (!link->endpoint)
		link_fail(link, -ECONNREFUSED, "the engine has no room for it");
}
