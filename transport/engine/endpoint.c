/* SPDX-License-Identifier: Apache-2.0 */
/* Listeners and endpoints: how they come, how they go, and what arrives in between. */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>

#include "engine.h"
#include "resolve.h"

/* ---- Events and ends --------------------------------------------------- */

void endpoint_event(haul_endpoint *endpoint, enum haul_event event, int result, const char *detail)
{
	haul_context *context = endpoint->context;

	endpoint->event = event;
	endpoint->event_result = result;
	endpoint->event_detail = detail && *detail ? strdup(detail) : NULL;
	TAILQ_INSERT_TAIL(&context->events, endpoint, event_entry);
}

static void drop_event(haul_endpoint *endpoint)
{
	if (!endpoint->event)
		return;
	TAILQ_REMOVE(&endpoint->context->events, endpoint, event_entry);
	free(endpoint->event_detail);
	endpoint->event = 0;
	endpoint->event_detail = NULL;
}

haul_endpoint *endpoint_new(haul_context *context, enum wire_role role)
{
	haul_endpoint *endpoint = calloc(1, sizeof(*endpoint));
	uint64_t seed;

	if (!endpoint)
		return NULL;
	if (haul_random(&seed, sizeof(seed))) {
		free(endpoint);
		return NULL;
	}
	keys_init(&endpoint->keys, seed);
	endpoint->context = context;
	endpoint->role = role;
	endpoint->timer.kind = TIMER_HANDSHAKE;
	endpoint->slot_free = UINT32_MAX;
	endpoint->flushed_in = UINT64_MAX;
	TAILQ_INIT(&endpoint->operations);
	TAILQ_INIT(&endpoint->unposted);
	TAILQ_INSERT_TAIL(&context->endpoints, endpoint, all);
	return endpoint;
}

static void add_statistics(struct haul_statistics *sum, const struct haul_statistics *more)
{
	sum->tensors_sent += more->tensors_sent;
	sum->tensors_received += more->tensors_received;
	sum->bytes_sent += more->bytes_sent;
	sum->bytes_received += more->bytes_received;
	sum->bytes_arrived += more->bytes_arrived;
	sum->chunks_sent += more->chunks_sent;
	sum->chunks_again += more->chunks_again;
	sum->tensors_again += more->tensors_again;
	sum->streams_replaced += more->streams_replaced;
	sum->wait_ns += more->wait_ns;
	sum->move_ns += more->move_ns;
}

/* Take the link away. The backend touches nothing of ours or the caller's after this. */
static void unlink_endpoint(haul_endpoint *endpoint, bool in_order)
{
	haul_context *context = endpoint->context;

	if (endpoint->dirty)
		TAILQ_REMOVE(&context->dirty, endpoint, dirty_entry);
	endpoint->dirty = false;
	if (endpoint->doomed)
		context->doomed--;
	endpoint->doomed = 0;
	deadlines_clear(&context->deadlines, &endpoint->timer.deadline);
	if (!endpoint->link)
		return;
	context->backend->link->statistics(endpoint->link, &endpoint->counters);
	endpoint->counters.streams = 0;
	context->backend->link->disconnect(endpoint->link, in_order);
	endpoint->link = NULL;
}

/* End every operation; the link is gone. */
static void end_operations(haul_endpoint *endpoint, int result, const char *why)
{
	haul_context *context = endpoint->context;
	struct operation *operation;

	while ((operation = TAILQ_FIRST(&endpoint->operations))) {
		if (operation->state == STATE_DIGESTING)
			TAILQ_REMOVE(&context->digests, operation, queued);
		if (operation->state == STATE_ENDING && operation->ending == ENDING_PLACED) {
			/* It arrived; only the backend had not let go of it yet. */
			endpoint->counters.tensors_sent++;
			endpoint->counters.bytes_sent += operation->tensor.bytes;
			operation_complete(operation, 0);
			continue;
		}
		if (why)
			operation_explain(operation, why);
		operation_complete(operation, result);
	}
	TAILQ_INIT(&endpoint->unposted);
	send_forget(endpoint);
	recv_forget(endpoint);
}

/* The caller doesn't know the handle, and will not. */
static void end_unknown(haul_endpoint *endpoint, int error, const char *why)
{
	haul_context *context = endpoint->context;
	struct operation *connect = endpoint->connect;

	if (connect) {
		connect->endpoint = NULL;
		endpoint->connect = NULL;
		operation_explain(connect, why);
		operation_complete(connect, error ? error : -ECONNRESET);
	} else {
		context->handshakes--;
	}
	/* A callback may still be using it: progress frees it. */
	endpoint->released = true;
	context->released++;
}

void endpoint_lost(haul_endpoint *endpoint, int error, const char *why)
{
	enum endpoint_state before = endpoint->state;
	char text[DETAIL_MAX];

	if (before == ENDPOINT_LOST)
		return;
	/* Who connects is told by the completion, and may well try again until a peer is there. */
	haul_log(error && !endpoint->connect ? HAUL_LOG_WARNING : HAUL_LOG_INFO,
		 "endpoint %s ended: %s", endpoint->address, why);
	endpoint->state = ENDPOINT_LOST;
	endpoint->lost_error = error;
	snprintf(endpoint->lost_why, sizeof(endpoint->lost_why), "%s", why);
	unlink_endpoint(endpoint, endpoint->polite);
	snprintf(text, sizeof(text), "endpoint %s: %s", endpoint->address, why);
	end_operations(endpoint, error == -ETIMEDOUT ? -ETIMEDOUT : -ECONNRESET, text);
	if (before != ENDPOINT_OPEN)
		end_unknown(endpoint, error, text);
	else if (endpoint->announced)
		endpoint_event(endpoint, HAUL_LOST, error, text);
	/* Otherwise HAUL_ACCEPTED still waits, and HAUL_LOST follows it. */
}

void endpoint_announce(haul_endpoint *endpoint)
{
	endpoint->announced = true;
	if (endpoint->state == ENDPOINT_LOST)
		endpoint_event(endpoint, HAUL_LOST, endpoint->lost_error, endpoint->lost_why);
}

void endpoint_doom(haul_endpoint *endpoint, int error, const char *why)
{
	if (endpoint->doomed || endpoint->state == ENDPOINT_LOST)
		return;
	endpoint->doomed = error;
	endpoint->doomed_why = why;
	endpoint->context->doomed++;
}

void endpoint_free(haul_endpoint *endpoint)
{
	haul_context *context = endpoint->context;

	drop_event(endpoint);
	add_statistics(&context->past, &endpoint->counters);
	TAILQ_REMOVE(&context->endpoints, endpoint, all);
	keys_free(&endpoint->keys);
	free(endpoint);
}

void endpoint_close(haul_endpoint *endpoint)
{
	struct operation *connect = endpoint->connect;

	if (endpoint->state != ENDPOINT_LOST) {
		uint8_t message[HAUL_CONTROL_MAX];
		bool open = endpoint->state == ENDPOINT_OPEN;

		if (open) {
			endpoint_control(endpoint, message, wire_encode_bye(message));
			endpoint->context->backend->link->flush(endpoint->link);
		}
		if (!open && !connect)
			endpoint->context->handshakes--;
		endpoint->state = ENDPOINT_LOST;
		unlink_endpoint(endpoint, open);
		end_operations(endpoint, -ECANCELED, NULL);
		if (connect) {
			connect->endpoint = NULL;
			operation_complete(connect, -ECANCELED);
		}
	}
	endpoint_free(endpoint);
}

void haul_disconnect(haul_endpoint *endpoint)
{
	haul_context *context;

	if (!endpoint)
		return;
	context = endpoint->context;
	if (context_enter(context))
		return;
	endpoint_close(endpoint);
	context_leave(context);
}

/* ---- Messages ---------------------------------------------------------- */

void endpoint_dirty(haul_endpoint *endpoint)
{
	if (endpoint->dirty)
		return;
	endpoint->dirty = true;
	TAILQ_INSERT_TAIL(&endpoint->context->dirty, endpoint, dirty_entry);
}

void endpoint_control(haul_endpoint *endpoint, const uint8_t *message, size_t length)
{
	int error = endpoint->context->backend->link->control(endpoint->link, message, length);

	if (error)
		endpoint_doom(endpoint, error,
			      error == -ENOBUFS ? "the peer does not read its messages"
						: "no memory for a message");
	else
		endpoint_dirty(endpoint);
}

/* A message of an open endpoint. */
static void dispatch(haul_endpoint *endpoint, const struct wire_message *message)
{
	switch (message->type) {
	case WIRE_READY:
		send_ready(endpoint, &message->ready);
		break;
	case WIRE_PUSH:
		recv_push(endpoint, &message->push);
		break;
	case WIRE_REFUSED:
		recv_refused(endpoint, &message->push);
		break;
	case WIRE_PLACED:
		send_placed(endpoint, message->slot);
		break;
	case WIRE_CANCEL:
		send_cancelled_by_peer(endpoint, message->slot);
		break;
	case WIRE_CANCELLED:
		recv_cancelled(endpoint, message->slot);
		break;
	case WIRE_AGAIN:
		send_again(endpoint, message->slot);
		break;
	case WIRE_FAILED:
		if (message->failed.reason == WIRE_REASON_CHECKSUM)
			send_failed(endpoint, message->failed.slot);
		else
			recv_given_up(endpoint, message->failed.slot);
		break;
	case WIRE_CLOCK:
		clock_message(endpoint, &message->clock);
		break;
	case WIRE_BYE:
		endpoint_lost(endpoint, 0, "the peer closed it");
		break;
	default:
		endpoint_doom(endpoint, -EPROTO, "a message of the handshake came after it");
		break;
	}
}

void haul_on_control(haul_endpoint *endpoint, const uint8_t *bytes, size_t length)
{
	struct wire_message message;
	const char *why = "";

	if (endpoint->state == ENDPOINT_LOST || endpoint->doomed)
		return;
	if (wire_decode(bytes, length, &message, &why)) {
		haul_log(HAUL_LOG_WARNING, "endpoint %s: a message that is none: %s",
			 endpoint->address, why);
		endpoint_doom(endpoint, -EPROTO, "the peer sent a message that is none");
	} else if (endpoint->state == ENDPOINT_OPEN && message.type != WIRE_REJECT) {
		dispatch(endpoint, &message);
	} else {
		handshake_message(endpoint, &message, bytes, length);
	}
}

/* ---- Links ------------------------------------------------------------- */

static void set_timer(haul_endpoint *endpoint, uint64_t ms)
{
	haul_context *context = endpoint->context;

	if (deadlines_set(&context->deadlines, &endpoint->timer.deadline,
			  haul_clock() + ms * 1000000))
		endpoint_doom(endpoint, -ENOMEM, "no memory for a deadline");
}

haul_endpoint *haul_on_accepted(haul_listener *listener, struct backend_link *link,
				const char *address)
{
	haul_context *context = listener->context;
	haul_endpoint *endpoint;

	if (context->handshakes >= HANDSHAKES_MAX) {
		haul_log(HAUL_LOG_WARNING, "%s was turned away: %d peers are in the handshake",
			 address, HANDSHAKES_MAX);
		return NULL;
	}
	endpoint = endpoint_new(context, WIRE_ACCEPTOR);
	if (!endpoint)
		return NULL;
	context->handshakes++;
	endpoint->listener = listener;
	endpoint->accept_cookie = listener->cookie;
	endpoint->link = link;
	snprintf(endpoint->address, sizeof(endpoint->address), "%s", address);
	set_timer(endpoint, context->config.handshake_ms);
	handshake_start(endpoint);
	return endpoint;
}

void haul_on_connected(haul_endpoint *endpoint)
{
	if (endpoint->state == ENDPOINT_CONNECTING)
		handshake_start(endpoint);
}

void haul_on_lost(haul_endpoint *endpoint, int error, const char *why)
{
	endpoint_lost(endpoint, error, why);
}

int haul_connect(haul_context *context, const char *address, void *cookie)
{
	struct haul_op op = {.size = sizeof(op), .cookie = cookie};

	return connect_start(context, address, &op, NULL);
}

int connect_start(haul_context *context, const char *address, const struct haul_op *op,
		  struct operation **blocking)
{
	char where[RESOLVED_MAX], why[DETAIL_MAX] = "";
	struct operation *operation;
	haul_endpoint *endpoint;
	int error, resolved;

	if (!context)
		return -EINVAL;
	resolved = resolve(address, false, where, sizeof(where), why, sizeof(why));
	error = context_enter(context);
	if (error)
		return error;
	operation = operation_new(context, OPERATION_CONNECT, NULL, op);
	endpoint = operation ? endpoint_new(context, WIRE_CONNECTOR) : NULL;
	if (!endpoint) {
		error = context_fail(context, -ENOMEM, "no memory for an endpoint");
		goto failed;
	}
	error = operation_set_timeout(operation, op);
	if (error)
		goto failed;
	if (resolved)
		error = context_fail(context, resolved, "%s", why);
	else
		error = context->backend->link->connect(context->state, where, endpoint,
							endpoint->address,
							sizeof(endpoint->address), &endpoint->link);
	if (error)
		goto failed;
	endpoint->connect = operation;
	operation->endpoint = endpoint;
	operation->state = STATE_CONNECTING;
	TAILQ_INSERT_TAIL(&context->connects, operation, all);
	set_timer(endpoint, context->config.connect_ms);
	if (blocking) {
		operation->blocking = true;
		*blocking = operation;
	}
	context_leave(context);
	return 0;
failed:
	if (endpoint)
		endpoint_free(endpoint);
	if (operation) {
		deadlines_clear(&context->deadlines, &operation->timer.deadline);
		operation_free(operation);
	}
	context_leave(context);
	return error;
}

/* ---- Listeners --------------------------------------------------------- */

int haul_listen(haul_context *context, const char *address, void *cookie, haul_listener **out)
{
	char where[RESOLVED_MAX], why[DETAIL_MAX] = "";
	haul_listener *listener;
	int error, resolved;

	if (!context || !out)
		return -EINVAL;
	*out = NULL;
	resolved = resolve(address, true, where, sizeof(where), why, sizeof(why));
	error = context_enter(context);
	if (error)
		return error;
	listener = calloc(1, sizeof(*listener));
	if (!listener) {
		error = context_fail(context, -ENOMEM, "no memory for a listener");
		goto out;
	}
	listener->context = context;
	listener->cookie = cookie;
	if (resolved)
		error = context_fail(context, resolved, "%s", why);
	else
		error = context->backend->link->listen(context->state, where, listener,
						       listener->address, sizeof(listener->address),
						       &listener->backend);
	if (error) {
		free(listener);
		goto out;
	}
	TAILQ_INSERT_TAIL(&context->listeners, listener, all);
	*out = listener;
out:
	context_leave(context);
	return error;
}

const char *haul_listener_address(const haul_listener *listener)
{
	return listener->address;
}

void haul_listener_close(haul_listener *listener)
{
	haul_context *context;
	haul_endpoint *endpoint;

	if (!listener)
		return;
	context = listener->context;
	if (context_enter(context))
		return;
	TAILQ_FOREACH (endpoint, &context->endpoints, all) {
		if (endpoint->listener != listener)
			continue;
		endpoint->listener = NULL;
		/* Nobody waits for those that are still in the handshake. */
		if (endpoint->state != ENDPOINT_OPEN)
			endpoint_doom(endpoint, -ECONNABORTED, "the listener was closed");
	}
	TAILQ_REMOVE(&context->listeners, listener, all);
	context->backend->link->unlisten(listener->backend);
	free(listener);
	context_leave(context);
}

/* ---- What is known of an endpoint -------------------------------------- */

const char *haul_endpoint_address(const haul_endpoint *endpoint)
{
	return endpoint->address;
}

void haul_endpoint_set_user(haul_endpoint *endpoint, void *user)
{
	endpoint->user = user;
}

void *haul_endpoint_user(const haul_endpoint *endpoint)
{
	return endpoint->user;
}

/* With the link's own counters. */
static struct haul_statistics count(haul_endpoint *endpoint)
{
	struct haul_statistics sum = endpoint->counters;
	struct operation *operation;

	if (endpoint->link)
		endpoint->context->backend->link->statistics(endpoint->link, &sum);
	TAILQ_FOREACH (operation, &endpoint->operations, all)
		sum.operations++;
	return sum;
}

static int check_statistics(haul_context *context, const struct haul_statistics *statistics)
{
	if (statistics->size == sizeof(*statistics))
		return 0;
	return context_fail(context, -EINVAL, "struct haul_statistics has size %zu, expected %zu",
			    statistics->size, sizeof(*statistics));
}

int haul_endpoint_statistics(haul_endpoint *endpoint, struct haul_statistics *statistics)
{
	haul_context *context;
	int error;

	if (!endpoint || !statistics)
		return -EINVAL;
	context = endpoint->context;
	error = context_enter(context);
	if (error)
		return error;
	error = check_statistics(context, statistics);
	if (!error) {
		*statistics = count(endpoint);
		statistics->size = sizeof(*statistics);
	}
	context_leave(context);
	return error;
}

int haul_context_statistics(haul_context *context, struct haul_statistics *statistics)
{
	haul_endpoint *endpoint;
	int error;

	if (!context || !statistics)
		return -EINVAL;
	error = context_enter(context);
	if (error)
		return error;
	error = check_statistics(context, statistics);
	if (!error) {
		*statistics = context->past;
		statistics->size = sizeof(*statistics);
		TAILQ_FOREACH (endpoint, &context->endpoints, all) {
			struct haul_statistics one = count(endpoint);

			add_statistics(statistics, &one);
			statistics->streams += one.streams;
			statistics->operations += one.operations;
		}
	}
	context_leave(context);
	return error;
}
