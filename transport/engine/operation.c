/* SPDX-License-Identifier: Apache-2.0 */
/* What sends, receives, queries and connects share: memory, deadlines, cancelling, ending. */
#include <errno.h>
#include <stdlib.h>

#include "engine.h"
#include "tensor.h"

/* Operations kept for the next ones; more are given back. */
#define SPARE_MAX 4096

static int check_op(haul_context *context, const struct haul_op *op)
{
	if (op && op->size != sizeof(*op))
		return context_fail(
			context, -EINVAL,
			"struct haul_op has size %zu, expected %zu: start from HAUL_OP_INIT",
			op->size, sizeof(*op));
	return 0;
}

struct operation *operation_new(haul_context *context, enum operation_kind kind,
				haul_endpoint *endpoint, const struct haul_op *op)
{
	struct operation *operation = TAILQ_FIRST(&context->spare);

	if (operation) {
		TAILQ_REMOVE(&context->spare, operation, queued);
		context->spare_count--;
	} else {
		operation = malloc(sizeof(*operation));
		if (!operation) {
			context_fail(context, -ENOMEM, "no memory for an operation (%zu bytes)",
				     sizeof(*operation));
			return NULL;
		}
	}
	memset(operation, 0, offsetof(struct operation, header));
	operation->kind = kind;
	operation->context = context;
	operation->endpoint = endpoint;
	operation->cookie = op ? op->cookie : NULL;
	operation->timer.kind = TIMER_OPERATION;
	return operation;
}

void operation_free(struct operation *operation)
{
	haul_context *context = operation->context;

	/* Handed out, or the context is closed; otherwise it never began. */
	if (operation->state == STATE_DONE)
		trace_handed(operation);
	if (operation->region)
		operation->region->uses--;
	else if (operation->temporary)
		context->backend->data->region_remove(context->state, operation->registered);
	free(operation->key_far);
	free(operation->detail);
	if (context->spare_count >= SPARE_MAX) {
		free(operation);
		return;
	}
	context->spare_count++;
	TAILQ_INSERT_HEAD(&context->spare, operation, queued);
}

static int set_key(struct operation *operation, struct haul_key key)
{
	uint8_t *bytes = operation->key_inline;

	if (!key.bytes || key.length < 1 || key.length > HAUL_KEY_MAX)
		return context_fail(operation->context, -EINVAL,
				    "a key has 1 to %d bytes, this one has %zu", HAUL_KEY_MAX,
				    key.bytes ? key.length : 0);
	if (key.length > KEY_INLINE) {
		bytes = operation->key_far = malloc(key.length);
		if (!bytes)
			return context_fail(operation->context, -ENOMEM, "no memory for a key");
	}
	memcpy(bytes, key.bytes, key.length);
	operation->key_length = (uint8_t)key.length;
	return 0;
}

/* Register memory that came without a region, for this operation only. */
static int register_once(struct operation *operation, unsigned use)
{
	haul_context *context = operation->context;
	const struct haul_data_ops *data = context->backend->data;
	int error;

	if (!data->region_add || operation->bytes == 0)
		return 0;
	error = data->region_add(context->state, operation->data, operation->bytes, use,
				 &operation->registered);
	operation->temporary = error == 0;
	return error;
}

static int set_memory(struct operation *operation, const DLTensor *tensor, haul_region *region,
		      unsigned use)
{
	haul_context *context = operation->context;
	char reason[256];
	int error;

	error = tensor_describe(tensor, region && region->memory == REGION_DEVICE,
				&operation->tensor, &operation->data, reason, sizeof(reason));
	if (error)
		return context_fail(context, error, "%s", reason);
	operation->bytes = operation->tensor.bytes;
	if (!region)
		return register_once(operation, use);
	error = region_check(context, region, operation->data, operation->bytes, use);
	if (error)
		return error;
	operation->region = region;
	operation->registered = region->registered;
	region->uses++;
	return 0;
}

int operation_set_timeout(struct operation *operation, const struct haul_op *op)
{
	uint64_t now, length;

	if (!op || op->timeout_ms == 0)
		return 0;
	now = haul_now(operation->context);
	/* A time that lies beyond the clock's end is without end. */
	if (op->timeout_ms > (UINT64_MAX - now) / 1000000)
		return 0;
	length = op->timeout_ms * 1000000;
	if (deadlines_set(&operation->context->deadlines, &operation->timer.deadline, now + length))
		return context_fail(operation->context, -ENOMEM, "no memory for a deadline");
	return 0;
}

int operation_begin(haul_endpoint *endpoint, enum operation_kind kind, struct haul_key key,
		    const DLTensor *tensor, haul_region *region, const struct haul_op *op,
		    struct operation **out)
{
	haul_context *context = endpoint->context;
	unsigned use = kind == OPERATION_SEND ? HAUL_USE_SEND : HAUL_USE_RECV;
	struct operation *operation;
	int error = check_op(context, op);

	if (error)
		return error;
	if (endpoint->state != ENDPOINT_OPEN || endpoint->doomed)
		return context_fail(context, -ENOTCONN, "endpoint %s is lost: %s",
				    endpoint->address, endpoint->lost_why);
	operation = operation_new(context, kind, endpoint, op);
	if (!operation)
		return -ENOMEM;
	error = set_key(operation, key);
	if (!error && kind != OPERATION_QUERY)
		error = set_memory(operation, tensor, region, use);
	if (!error)
		error = operation_set_timeout(operation, op);
	if (error)
		operation_abandon(operation);
	else
		*out = operation;
	return error;
}

void operation_abandon(struct operation *operation)
{
	deadlines_clear(&operation->context->deadlines, &operation->timer.deadline);
	operation_free(operation);
}

void operation_explain(struct operation *operation, const char *text)
{
	free(operation->detail);
	operation->detail = text && *text ? strdup(text) : NULL;
}

void operation_complete(struct operation *operation, int result)
{
	haul_context *context = operation->context;

	deadlines_clear(&context->deadlines, &operation->timer.deadline);
	if (operation->kind == OPERATION_CONNECT)
		TAILQ_REMOVE(&context->connects, operation, all);
	else
		TAILQ_REMOVE(&operation->endpoint->operations, operation, all);
	if (operation->region) {
		/* The memory is the caller's again, before the completion is handed out. */
		operation->region->uses--;
		operation->region = NULL;
	} else if (operation->temporary) {
		context->backend->data->region_remove(context->state, operation->registered);
		operation->temporary = false;
	}
	operation->state = STATE_DONE;
	operation->result = result;
	trace_done(operation);
	if (operation->blocking) {
		if (context->waiters)
			pthread_cond_broadcast(&context->changed);
		if (context->sleeping)
			context->backend->context->wake(context->state);
	} else {
		TAILQ_INSERT_TAIL(&context->completions, operation, queued);
	}
}

/* End an operation early, because of a deadline or haul_cancel(). */
void operation_cancel(struct operation *operation, int result)
{
	if (result == -ETIMEDOUT)
		operation_explain(operation, "the operation's timeout_ms is over");
	switch (operation->kind) {
	case OPERATION_CONNECT:
		endpoint_lost(operation->endpoint, result,
			      result == -ETIMEDOUT ? "the connect's time is over" : "cancelled");
		break;
	case OPERATION_SEND:
		send_cancel(operation, result);
		break;
	case OPERATION_RECV:
	case OPERATION_QUERY:
		recv_cancel(operation, result);
		break;
	}
}

static int cancel_list(struct operation_queue *list, void *cookie)
{
	struct operation *operation, *next;
	int found = 0;

	for (operation = TAILQ_FIRST(list); operation; operation = next) {
		next = TAILQ_NEXT(operation, all);
		if (operation->cookie != cookie || operation->blocking)
			continue;
		operation_cancel(operation, -ECANCELED);
		found++;
	}
	return found;
}

int haul_cancel(haul_context *context, void *cookie)
{
	haul_endpoint *endpoint;
	int found, error;

	if (!context)
		return -EINVAL;
	error = context_enter(context);
	if (error)
		return error;
	found = cancel_list(&context->connects, cookie);
	TAILQ_FOREACH (endpoint, &context->endpoints, all)
		found += cancel_list(&endpoint->operations, cookie);
	context_leave(context);
	return found ? found : -ENOENT;
}
