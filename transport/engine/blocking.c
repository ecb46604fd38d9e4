/* SPDX-License-Identifier: Apache-2.0 */
/* Blocking helpers: an operation, and the wait for it. */
#include <errno.h>

#include "engine.h"

static bool done(haul_context *context, void *user)
{
	return ((struct operation *)user)->state == STATE_DONE;
}

static struct haul_op op_of(int timeout_ms)
{
	struct haul_op op = HAUL_OP_INIT;

	/* 0 ends at the first look, which is as near as a deadline comes. */
	if (timeout_ms >= 0)
		op.timeout_ms = timeout_ms > 0 ? (uint64_t)timeout_ms : 1;
	return op;
}

/* Wait for the end of an operation that was started with `blocking`, and free it. */
static int finish(haul_context *context, struct operation *operation, haul_endpoint **endpoint,
		  struct haul_tensor_info *info)
{
	int result;

	result = context_enter(context);
	if (result)
		return result;
	context->round++;
	engine_wait(context, done, operation, UINT64_MAX);
	/* The caller may be away for long now: acknowledgements leave first. */
	engine_flush(context);
	result = operation->result;
	if (endpoint)
		*endpoint = operation->endpoint;
	if (info)
		*info = operation->tensor;
	if (result)
		context_fail(context, result, "%s",
			     operation->detail ? operation->detail : haul_strerror(result));
	operation_free(operation);
	context_leave(context);
	return result;
}

int haul_connect_wait(haul_context *context, const char *address, int timeout_ms,
		      haul_endpoint **endpoint)
{
	struct haul_op op = op_of(timeout_ms);
	struct operation *operation;
	int error;

	if (!endpoint)
		return -EINVAL;
	*endpoint = NULL;
	error = connect_start(context, address, &op, &operation);
	return error ? error : finish(context, operation, endpoint, NULL);
}

int haul_send_wait(haul_endpoint *endpoint, struct haul_key key, const DLTensor *tensor,
		   haul_region *region, int timeout_ms)
{
	struct haul_op op = op_of(timeout_ms);
	struct operation *operation;
	int error = send_start(endpoint, key, tensor, region, &op, &operation);

	return error ? error : finish(operation->context, operation, NULL, NULL);
}

int haul_recv_wait(haul_endpoint *endpoint, struct haul_key key, DLTensor *tensor,
		   haul_region *region, int timeout_ms, struct haul_tensor_info *info)
{
	struct haul_op op = op_of(timeout_ms);
	struct operation *operation;
	int error = recv_start(endpoint, OPERATION_RECV, key, tensor, region, &op, &operation);

	return error ? error : finish(operation->context, operation, NULL, info);
}

int haul_query_wait(haul_endpoint *endpoint, struct haul_key key, int timeout_ms,
		    struct haul_tensor_info *info)
{
	struct haul_op op = op_of(timeout_ms);
	struct operation *operation;
	int error = recv_start(endpoint, OPERATION_QUERY, key, NULL, NULL, &op, &operation);

	return error ? error : finish(operation->context, operation, NULL, info);
}

/* ---- Accepting --------------------------------------------------------- */

static haul_endpoint *accepted(haul_context *context, const haul_listener *listener)
{
	haul_endpoint *endpoint;

	TAILQ_FOREACH (endpoint, &context->events, event_entry) {
		if (endpoint->event == HAUL_ACCEPTED && endpoint->listener == listener)
			return endpoint;
	}
	return NULL;
}

static bool any_accepted(haul_context *context, void *user)
{
	return accepted(context, user) != NULL;
}

int haul_accept_wait(haul_listener *listener, int timeout_ms, haul_endpoint **out)
{
	haul_context *context;
	haul_endpoint *endpoint;
	uint64_t until = UINT64_MAX;
	int error;

	if (!listener || !out)
		return -EINVAL;
	*out = NULL;
	context = listener->context;
	error = context_enter(context);
	if (error)
		return error;
	if (timeout_ms >= 0)
		until = haul_clock() + (uint64_t)timeout_ms * 1000000;
	error = engine_wait(context, any_accepted, listener, until);
	endpoint = accepted(context, listener);
	if (endpoint) {
		TAILQ_REMOVE(&context->events, endpoint, event_entry);
		endpoint->event = 0;
		endpoint_announce(endpoint);
		*out = endpoint;
		error = 0;
	} else {
		context_fail(context, error, "nobody connected to %s within %d ms",
			     listener->address, timeout_ms);
	}
	context_leave(context);
	return error;
}
