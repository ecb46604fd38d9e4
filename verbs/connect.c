/* SPDX-License-Identifier: Apache-2.0 */
/* Connections that this side asks for, and what rdma_cm reports. */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "verbs.h"

/* ms for each of rdma_cm's steps; the engine's connect_ms ends all of them together. */
#define STEP_MS 5000

/* IB_CM_REJ_CONSUMER_DEFINED of the kernel's rdma/ib_cm.h; a full backlog is told in this way too.
 */
#define REFUSED_BY_PROGRAM 28

/* ---- Asking ------------------------------------------------------------ */

static int start(struct channel *channel, struct sockaddr_storage *peer)
{
	struct backend_context *context = channel->link->context;
	struct sockaddr_storage source;
	int error;

	if (device_is_loopback(peer))
		return verbs_fail(context, -EADDRNOTAVAIL,
				  "no RDMA device leads to the loopback address: name the one that "
				  "the peer's adapter has (haul-info lists them)");
	error = device_source(context, peer->ss_family, &source);
	if (error)
		return error;
	if (rdma_create_id(context->events, &channel->id, channel, RDMA_PS_TCP))
		return verbs_fail(context, -errno, "no connection can be made: %s",
				  haul_strerror(errno));
	if (context->config->traffic_class != HAUL_OPTION_AUTO) {
		uint8_t class = (uint8_t)context->config->traffic_class;

		rdma_set_option(channel->id, RDMA_OPTION_ID, RDMA_OPTION_ID_TOS, &class,
				sizeof(class));
	}
	channel->state = CHANNEL_RESOLVING;
	if (rdma_resolve_addr(channel->id,
			      source.ss_family == AF_UNSPEC ? NULL : (struct sockaddr *)&source,
			      (struct sockaddr *)peer, STEP_MS))
		return verbs_fail(context, -errno, "no RDMA device of this host reaches it: %s",
				  haul_strerror(errno));
	return 0;
}

/* Try the addresses from the current one on, until one can be begun with. */
static int start_control(struct backend_link *link)
{
	int error = -EADDRNOTAVAIL;

	for (; link->address_at < link->address_count; link->address_at++) {
		error = start(link->control, &link->addresses[link->address_at]);
		if (!error)
			return 0;
		channel_reset(link->control);
	}
	link->address_at = link->address_count - 1;
	return error;
}

int verbs_connect(struct backend_context *context, const char *where, haul_endpoint *engine,
		  char *address, size_t room, struct backend_link **out)
{
	struct backend_link *link;
	struct haul_addresses addresses;
	int error = haul_address_parse(context->engine, where, &addresses);

	if (error)
		return error;
	link = link_new(context);
	if (!link) {
		free(addresses.list);
		return -ENOMEM;
	}
	link->connector = true;
	link->addresses = addresses.list;
	link->address_count = addresses.count;
	link->endpoint = engine;
	haul_address_print(&addresses.list[0], address, room);
	error = start_control(link);
	if (error == -EADDRNOTAVAIL || error == -EMFILE || error == -ENOMEM || error == -EINVAL) {
		link_free(link);
		return error;
	}
	if (error)
		link_fail(link, error, "%s", context->why);
	*out = link;
	return 0;
}

/* How many queue pairs carry data. One fills most links; the fastest want more. */
static unsigned wanted_channels(const struct backend_link *link)
{
	const struct verbs_config *config = link->context->config;

	if (link->split)
		return 2;
	return config->qps == HAUL_OPTION_AUTO ? QPS_AUTO : (unsigned)config->qps;
}

int connect_data(struct backend_link *link)
{
	unsigned wanted = wanted_channels(link);

	while (link->data_count < wanted) {
		struct channel *channel = channel_new(link, false, link->data_count);
		int error;

		if (!channel)
			return verbs_fail(link->context, -ENOMEM, "no memory for it");
		link->data[link->data_count++] = channel;
		error = start(channel, &link->addresses[link->address_at]);
		if (error)
			return error;
	}
	return 0;
}

/* ---- Answers of rdma_cm ------------------------------------------------ */

static void connect_failed(struct channel *channel, int error, const char *why)
{
	struct backend_link *link = channel->link;

	if (!channel->control && channel->number > 0 && !link->split) {
		haul_log(HAUL_LOG_INFO, "one queue pair less to %s: %s", link->address, why);
		link->data[channel->number] = NULL;
		channel_free(channel);
		return;
	}
	if (!channel->control || link->state != LINK_CONNECTING || !link->connector) {
		link_fail(link, error, "%s", why);
		return;
	}
	if (link->address_at + 1 < link->address_count) {
		channel_reset(link->control);
		link_leave_device(link);
		link->address_at++;
		if (start_control(link) == 0)
			return;
	}
	link_fail(link, error, "%s", why);
}

static void address_resolved(struct channel *channel)
{
	struct backend_link *link = channel->link;
	char why[200];
	int error;

	if (device_is_wished(link->context, channel->id->verbs, why, sizeof(why))) {
		connect_failed(channel, -ENODEV, why);
		return;
	}
	error = link_use_device(link, channel->id);
	if (error) {
		connect_failed(channel, error, link->context->why);
		return;
	}
	if (rdma_resolve_route(channel->id, STEP_MS))
		connect_failed(channel, -errno, haul_strerror(errno));
}

static void route_resolved(struct channel *channel)
{
	struct backend_link *link = channel->link;
	uint8_t bytes[VERBS_GREETING];
	struct rdma_conn_param parameters = {
		.responder_resources = 1,
		.initiator_depth = 1,
		.retry_count = 7,
		.rnr_retry_count = 7,
	};
	int error = channel_open(channel);

	if (error) {
		connect_failed(channel, error, link->context->why);
		return;
	}
	channel_offer(channel, bytes, &parameters);
	if (rdma_connect(channel->id, &parameters))
		connect_failed(channel, -errno, haul_strerror(errno));
}

/* The peer has accepted; `establish`: rdma_cm waits for our word. */
static void accepted(struct channel *channel, const struct greeting *greeting, int wrong,
		     bool establish)
{
	struct backend_link *link = channel->link;
	int error;

	if (wrong || greeting->kind != (channel->control ? VERBS_CONTROL : VERBS_DATA)) {
		connect_failed(
			channel, -EPROTO,
			wrong == -EPROTONOSUPPORT
				? "the peer speaks another version of the verbs framing"
				: "no tensorhaul listens there: the answer is something else");
		return;
	}
	if (channel->control) {
		link_take_greeting(link, greeting);
		memcpy(link->session, greeting->session, VERBS_SESSION);
	}
	error = channel_ready(channel);
	if (!error && establish && rdma_establish(channel->id))
		error = -errno;
	if (error) {
		connect_failed(channel, error, haul_strerror(error));
		return;
	}
	link_opened(link, channel);
}

static void rejected(struct channel *channel, int status, unsigned reason)
{
	static const char *const texts[] = {
		[VERBS_REASON_VERSION] = "the peer speaks another version of the verbs framing",
		[VERBS_REASON_SESSION] =
			"the peer doesn't know this session: it is another process "
			"now, or has closed the endpoint",
		[VERBS_REASON_ROOM] = "the peer has no room for one more connection",
		[VERBS_REASON_DEVICE] = "the peer wants another device (its option device=)",
		[VERBS_REASON_GREETING] = "the peer could not read the greeting",
	};

	if (reason >= VERBS_REASON_VERSION && reason <= VERBS_REASON_GREETING)
		connect_failed(channel,
			       reason == VERBS_REASON_VERSION || reason == VERBS_REASON_GREETING
				       ? -EPROTO
				       : -ECONNREFUSED,
			       texts[reason]);
	else if (status == REFUSED_BY_PROGRAM)
		connect_failed(channel, -ECONNREFUSED,
			       "the program that listens there refuses, and says no reason of "
			       "tensorhaul's: it is another one, or too many wait (its backlog=)");
	else if (status == -ECONNRESET)
		connect_failed(
			channel, status,
			"the connection was broken off while it was made: what listens there "
			"may not speak tensorhaul, or not over verbs");
	else if (status < 0 && status != -ECONNREFUSED)
		connect_failed(channel, status, haul_strerror(status));
	else
		connect_failed(channel, -ECONNREFUSED, "nobody listens there for RDMA connections");
}

/* ---- Events ------------------------------------------------------------ */

/* What an event holds, copied: it has to be given back before its connection may be destroyed. */
struct event {
	enum rdma_cm_event_type kind;
	int status;
	struct rdma_cm_id *id;
	int wrong; /* what verbs_decode_greeting() said */
	struct greeting greeting;
	unsigned refusal;
};

static int error_of(int status)
{
	if (status > 0)
		return -EHOSTUNREACH;
	return status ? status : -EHOSTUNREACH;
}

static void channel_event(struct channel *channel, const struct event *event)
{
	struct backend_link *link = channel->link;
	char why[200];

	/* An old event of a connection that is given up already. */
	if (link->error || channel->state == CHANNEL_BROKEN || channel->id != event->id)
		return;
	switch (event->kind) {
	case RDMA_CM_EVENT_ADDR_RESOLVED:
		address_resolved(channel);
		break;
	case RDMA_CM_EVENT_ROUTE_RESOLVED:
		route_resolved(channel);
		break;
	case RDMA_CM_EVENT_ADDR_ERROR:
	case RDMA_CM_EVENT_ROUTE_ERROR:
		if (event->status == -ETIMEDOUT)
			snprintf(why, sizeof(why), "no host answers to that address (within %d ms)",
				 STEP_MS);
		else
			snprintf(why, sizeof(why), "no RDMA device reaches it (%s: %s)",
				 rdma_event_str(event->kind),
				 haul_strerror(error_of(event->status)));
		connect_failed(channel, error_of(event->status), why);
		break;
	case RDMA_CM_EVENT_CONNECT_RESPONSE:
		accepted(channel, &event->greeting, event->wrong, true);
		break;
	case RDMA_CM_EVENT_ESTABLISHED:
		if (channel->attached && link->connector)
			accepted(channel, &event->greeting, event->wrong, false);
		else
			link_opened(link, channel);
		break;
	case RDMA_CM_EVENT_REJECTED:
	case RDMA_CM_EVENT_CONNECT_ERROR:
		rejected(channel, event->status, event->refusal);
		break;
	case RDMA_CM_EVENT_UNREACHABLE:
		connect_failed(channel, -ETIMEDOUT, "its host does not answer");
		break;
	case RDMA_CM_EVENT_DISCONNECTED:
		link_disconnected(channel);
		break;
	case RDMA_CM_EVENT_DEVICE_REMOVAL:
		/* Before its address is resolved, a connection may have one that we don't know. */
		link_fail(link, -ENODEV, "device %s was removed",
			  link->device ? ibv_get_device_name(link->device->verbs->device)
				       : "of the route");
		break;
	case RDMA_CM_EVENT_ADDR_CHANGE:
		link_fail(link, -ENETRESET, "the address of this side has moved to another device");
		break;
	default:
		break;
	}
}

static void take_event(struct backend_context *context, struct rdma_cm_event *found)
{
	struct event event = {.kind = found->event, .status = found->status, .id = found->id};
	const struct rdma_conn_param *parameters = &found->param.conn;
	struct request request = {.id = found->id};

	if (event.kind == RDMA_CM_EVENT_CONNECT_REQUEST) {
		struct backend_listener *listener = found->listen_id->context;

		request.wrong = verbs_decode_greeting(
			parameters->private_data, parameters->private_data_len, &request.greeting);
		request.responder_resources = parameters->responder_resources;
		request.initiator_depth = parameters->initiator_depth;
		rdma_ack_cm_event(found);
		accept_request(context, listener, &request);
		return;
	}
	event.wrong = verbs_decode_greeting(parameters->private_data, parameters->private_data_len,
					    &event.greeting);
	event.refusal = event.kind == RDMA_CM_EVENT_REJECTED
				? verbs_decode_refusal(parameters->private_data,
						       parameters->private_data_len)
				: 0;
	rdma_ack_cm_event(found);
	/* The contexts of listeners' own connections are no channels, and nothing happens to them.
	 */
	if (event.id->context && !is_listener(context, event.id))
		channel_event(event.id->context, &event);
}

int connect_events(struct backend_context *context)
{
	struct rdma_cm_event *event;
	int count = 0;

	while (count < 64 && rdma_get_cm_event(context->events, &event) == 0) {
		take_event(context, event);
		count++;
	}
	return count;
}
