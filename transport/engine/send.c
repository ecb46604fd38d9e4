/* SPDX-License-Identifier: Apache-2.0 */
/* The sender's side: sends meet the peer's slots here, by key, and are pushed. */
#include <errno.h>
#include <stdlib.h>

#include "engine.h"

/* ---- The peer's slots -------------------------------------------------- */

static uint32_t index_of(uint64_t name)
{
	return (uint32_t)name;
}

static struct remote_slot *remote_find(haul_endpoint *endpoint, uint64_t name)
{
	struct remote_slot *slot;

	if (index_of(name) >= endpoint->remote_count)
		return NULL;
	slot = endpoint->remotes[index_of(name)];
	return slot && slot->name == name ? slot : NULL;
}

struct operation *send_of(haul_endpoint *endpoint, uint64_t name)
{
	struct remote_slot *slot = remote_find(endpoint, name);

	return slot ? slot->operation : NULL;
}

static void remote_drop(haul_endpoint *endpoint, struct remote_slot *slot)
{
	endpoint->remotes[index_of(slot->name)] = NULL;
	free(slot);
}

/* Make room for an index below what was announced in HELLO. */
static int remote_room(haul_endpoint *endpoint, uint32_t index)
{
	uint32_t count = endpoint->remote_count ? endpoint->remote_count : 16;
	struct remote_slot **grown;

	if (index < endpoint->remote_count)
		return 0;
	while (count <= index)
		count *= 2;
	grown = realloc(endpoint->remotes, count * sizeof(*grown));
	if (!grown)
		return -ENOMEM;
	memset(grown + endpoint->remote_count, 0,
	       (count - endpoint->remote_count) * sizeof(*grown));
	endpoint->remotes = grown;
	endpoint->remote_count = count;
	return 0;
}

/* ---- Answers ----------------------------------------------------------- */

static void tell(haul_endpoint *endpoint, enum wire_type type, uint64_t name)
{
	uint8_t message[HAUL_CONTROL_MAX];

	endpoint_control(endpoint, message, wire_encode_slot(message, type, name));
}

static void refuse(haul_endpoint *endpoint, struct remote_slot *slot,
		   const struct operation *operation)
{
	uint8_t message[HAUL_CONTROL_MAX];
	struct wire_push refused = {.slot = slot->name, .tensor = operation->tensor};

	endpoint_control(endpoint, message, wire_encode_push(message, WIRE_REFUSED, &refused));
}

/* ---- Meeting and pushing ----------------------------------------------- */

static void push_start(struct operation *operation)
{
	haul_endpoint *endpoint = operation->endpoint;
	struct remote_slot *slot = operation->remote;
	struct wire_push header = {.slot = slot->name, .tensor = operation->tensor};

	if (endpoint->context->config.checksum == CHECKSUM_CRC32C) {
		header.flags = WIRE_PUSH_CHECKSUM;
		header.crc32c = operation->crc;
	}
	operation->push = (struct haul_push){
		.slot = slot->name,
		.data = operation->data,
		.length = operation->tensor.bytes,
		.region = operation->registered,
		.descriptor = slot->descriptor,
		.descriptor_length = slot->descriptor_length,
		.header = operation->header,
		.header_length = wire_encode_push(operation->header, WIRE_PUSH, &header),
	};
	operation->state = STATE_PUSHING;
	if (endpoint->context->backend->data->push(endpoint->link, &operation->push))
		endpoint_doom(endpoint, -ENOMEM, "no memory for a push");
	else
		endpoint_dirty(endpoint);
}

static void start(struct operation *operation)
{
	haul_context *context = operation->context;

	if (context->config.checksum == CHECKSUM_NONE || operation->tensor.bytes == 0) {
		operation->crc = 0;
		push_start(operation);
		return;
	}
	operation->state = STATE_DIGESTING;
	operation->digested = 0;
	operation->crc = 0;
	TAILQ_INSERT_TAIL(&context->digests, operation, queued);
}

void send_digested(struct operation *operation)
{
	trace_point(operation, TRACE_MOVING);
	push_start(operation);
}

static void unqueue_slot(struct remote_slot *slot)
{
	TAILQ_REMOVE(&slot->entry->slots, slot, queued);
	slot->entry = NULL;
}

/*
 * Let the sends and the slots of a key meet, in order, as long as there are both. `now` is
 * haul_clock(), or 0 when the caller had no reason to read it.
 */
static void meet(haul_endpoint *endpoint, struct key_entry *entry, uint64_t now)
{
	struct operation *operation;
	struct remote_slot *slot;

	while ((slot = TAILQ_FIRST(&entry->slots)) && (operation = TAILQ_FIRST(&entry->sends))) {
		unqueue_slot(slot);
		if (slot->query || operation->bytes > slot->room) {
			refuse(endpoint, slot, operation);
			remote_drop(endpoint, slot);
			continue;
		}
		TAILQ_REMOVE(&entry->sends, operation, queued);
		operation->entry = NULL;
		operation->remote = slot;
		slot->operation = operation;
		operation->met_at = now ? now : haul_now(endpoint->context);
		operation->trace.slot = slot->name;
		trace_point(operation, TRACE_MET);
		endpoint->counters.wait_ns += operation->met_at - operation->posted_at;
		start(operation);
	}
	keys_drop_if_empty(&endpoint->keys, entry);
}

static struct key_entry *entry_of(struct operation *operation)
{
	return keys_find_or_add(&operation->endpoint->keys, operation_key(operation),
				operation->key_length);
}

/* The slot was taken back: the send is the first of its key again. */
static void requeue(struct operation *operation)
{
	struct key_entry *entry = entry_of(operation);

	operation->posted_at = haul_now(operation->context);
	operation->trace.at[TRACE_MOVING] = 0;
	operation->tries = 0;
	if (!entry) {
		operation_explain(operation, "no memory for a key");
		operation_complete(operation, -ENOMEM);
		return;
	}
	operation->state = STATE_WAITING;
	operation->entry = entry;
	TAILQ_INSERT_HEAD(&entry->sends, operation, queued);
	meet(operation->endpoint, entry, operation->posted_at);
}

/* The other way round: the send is gone before it moved, the slot is the first of its key again. */
static void return_slot(struct operation *operation)
{
	haul_endpoint *endpoint = operation->endpoint;
	struct remote_slot *slot = operation->remote;
	struct key_entry *entry = entry_of(operation);

	operation->remote = NULL;
	slot->operation = NULL;
	if (!entry) {
		endpoint_doom(endpoint, -ENOMEM, "no memory for a key");
		return;
	}
	slot->entry = entry;
	TAILQ_INSERT_HEAD(&entry->slots, slot, queued);
	meet(endpoint, entry, 0);
}

/* ---- Ends -------------------------------------------------------------- */

/* The backend has let go of the push. */
static void ended(struct operation *operation)
{
	haul_endpoint *endpoint = operation->endpoint;
	struct remote_slot *slot = operation->remote;
	uint8_t message[HAUL_CONTROL_MAX];

	operation->remote = NULL;
	switch (operation->ending) {
	case ENDING_PLACED:
		endpoint->counters.tensors_sent++;
		endpoint->counters.bytes_sent += operation->tensor.bytes;
		endpoint->counters.move_ns += haul_now(endpoint->context) - operation->met_at;
		operation_complete(operation, 0);
		break;
	case ENDING_GIVEN_UP:
		if (slot) {
			endpoint_control(
				endpoint, message,
				wire_encode_failed(message, slot->name, WIRE_REASON_GIVEN_UP));
			remote_drop(endpoint, slot);
		}
		operation_complete(operation, operation->result);
		break;
	case ENDING_RETURNED:
		tell(endpoint, WIRE_CANCELLED, slot->name);
		remote_drop(endpoint, slot);
		if (operation->result)
			operation_complete(operation, operation->result);
		else
			requeue(operation);
		break;
	case ENDING_AGAIN:
		operation->remote = slot;
		push_start(operation);
		break;
	}
}

static void end_push(struct operation *operation, enum ending ending, enum haul_push_end why)
{
	haul_endpoint *endpoint = operation->endpoint;

	operation->ending = ending;
	operation->state = STATE_ENDING;
	if (endpoint->context->backend->data->push_end(endpoint->link, &operation->push, why))
		ended(operation);
}

void haul_on_pushed(haul_endpoint *endpoint, struct haul_push *push)
{
	struct operation *operation = container_of(push, struct operation, push);

	if (operation->state == STATE_ENDING)
		ended(operation);
}

void send_cancel(struct operation *operation, int result)
{
	haul_endpoint *endpoint = operation->endpoint;
	struct key_entry *entry = operation->entry;

	switch (operation->state) {
	case STATE_WAITING:
		TAILQ_REMOVE(&entry->sends, operation, queued);
		keys_drop_if_empty(&endpoint->keys, entry);
		operation_complete(operation, result);
		break;
	case STATE_DIGESTING:
		TAILQ_REMOVE(&operation->context->digests, operation, queued);
		return_slot(operation);
		operation_complete(operation, result);
		break;
	case STATE_PUSHING:
		operation->result = result;
		end_push(operation, ENDING_GIVEN_UP, HAUL_PUSH_ABORT);
		break;
	case STATE_ENDING:
		/* PLACED is decided already; otherwise the send ends here instead of going on. */
		if (operation->ending == ENDING_AGAIN)
			operation->ending = ENDING_GIVEN_UP;
		operation->result = result;
		break;
	default:
		break;
	}
}

/* ---- What the peer says ------------------------------------------------ */

void send_ready(haul_endpoint *endpoint, const struct wire_ready *ready)
{
	struct key_entry *entry;
	struct remote_slot *slot;
	uint32_t index = index_of(ready->slot);

	if (index >= endpoint->context->config.slots ||
	    (index < endpoint->remote_count && endpoint->remotes[index])) {
		endpoint_doom(endpoint, -EPROTO, "the peer posted a slot that it may not use");
		return;
	}
	/* Not calloc(), which passes by the C library's quickest list of free pieces. */
	slot = malloc(sizeof(*slot));
	entry = keys_find_or_add(&endpoint->keys, ready->key, ready->key_length);
	if (!slot || !entry || remote_room(endpoint, index)) {
		free(slot);
		endpoint_doom(endpoint, -ENOMEM, "no memory for a slot of the peer");
		return;
	}
	slot->entry = entry;
	slot->operation = NULL;
	slot->name = ready->slot;
	slot->room = ready->room;
	slot->query = ready->flags & WIRE_READY_QUERY;
	slot->descriptor_length = (uint8_t)ready->descriptor_length;
	memcpy(slot->descriptor, ready->descriptor, ready->descriptor_length);
	endpoint->remotes[index] = slot;
	TAILQ_INSERT_TAIL(&entry->slots, slot, queued);
	meet(endpoint, entry, 0);
}

/* A slot that isn't known was given up by this side while the peer's answer was on its way. */

/*
 * The peer's last word on a slot, which is forgotten. The operation that it ends, or NULL: there is
 * none any more, or this can't be said of it (`lie`).
 */
static struct operation *release_slot(haul_endpoint *endpoint, uint64_t name, const char *lie)
{
	struct remote_slot *slot = remote_find(endpoint, name);
	struct operation *operation;

	if (!slot)
		return NULL;
	operation = slot->operation;
	if (!operation || operation->state == STATE_DIGESTING) {
		endpoint_doom(endpoint, -EPROTO, "the peer has a tensor that was not sent");
		return NULL;
	}
	/* What is to be returned or sent again still needs the slot. */
	if (operation->state == STATE_ENDING && operation->ending != ENDING_GIVEN_UP) {
		endpoint_doom(endpoint, -EPROTO, lie);
		return NULL;
	}
	operation->remote = NULL;
	remote_drop(endpoint, slot);
	return operation->state == STATE_PUSHING ? operation : NULL;
}

void send_placed(haul_endpoint *endpoint, uint64_t name)
{
	struct operation *operation = release_slot(
		endpoint, name, "the peer has placed what it cancelled or asked for again");

	if (operation)
		end_push(operation, ENDING_PLACED, HAUL_PUSH_PLACED);
}

void send_cancelled_by_peer(haul_endpoint *endpoint, uint64_t name)
{
	struct remote_slot *slot = remote_find(endpoint, name);
	struct operation *operation;

	if (!slot)
		return;
	operation = slot->operation;
	if (!operation) {
		struct key_entry *entry = slot->entry;

		unqueue_slot(slot);
		keys_drop_if_empty(&endpoint->keys, entry);
		tell(endpoint, WIRE_CANCELLED, name);
		remote_drop(endpoint, slot);
	} else if (operation->state == STATE_DIGESTING) {
		TAILQ_REMOVE(&operation->context->digests, operation, queued);
		operation->ending = ENDING_RETURNED;
		ended(operation);
	} else if (operation->state == STATE_PUSHING) {
		end_push(operation, ENDING_RETURNED, HAUL_PUSH_ABORT);
	} else if (operation->ending == ENDING_AGAIN) {
		operation->ending = ENDING_RETURNED;
	}
	/* Given up here: FAILED is the answer. */
}

void send_again(haul_endpoint *endpoint, uint64_t name)
{
	struct remote_slot *slot = remote_find(endpoint, name);
	struct operation *operation;

	if (!slot)
		return;
	operation = slot->operation;
	if (!operation || endpoint->context->config.checksum == CHECKSUM_NONE ||
	    (operation->state == STATE_PUSHING && operation->tries > 0)) {
		endpoint_doom(endpoint, -EPROTO, "the peer asks again for what it can't");
		return;
	}
	if (operation->state != STATE_PUSHING)
		return;
	operation->tries++;
	endpoint->counters.tensors_again++;
	end_push(operation, ENDING_AGAIN, HAUL_PUSH_PLACED);
}

void send_failed(haul_endpoint *endpoint, uint64_t name)
{
	struct operation *operation = release_slot(
		endpoint, name, "the peer gives up what it cancelled or asked for again");

	if (!operation)
		return;
	operation->result = -EBADMSG;
	operation_explain(operation, "the checksum of the tensor was wrong at the peer, twice");
	end_push(operation, ENDING_GIVEN_UP, HAUL_PUSH_PLACED);
}

void send_forget(haul_endpoint *endpoint)
{
	for (uint32_t i = 0; i < endpoint->remote_count; i++)
		free(endpoint->remotes[i]);
	free(endpoint->remotes);
	endpoint->remotes = NULL;
	endpoint->remote_count = 0;
	keys_free(&endpoint->keys);
}

/* ---- The call ---------------------------------------------------------- */

int send_start(haul_endpoint *endpoint, struct haul_key key, const DLTensor *tensor,
	       haul_region *region, const struct haul_op *op, struct operation **blocking)
{
	struct operation *operation;
	haul_context *context;
	int error;

	if (!endpoint)
		return -EINVAL;
	context = endpoint->context;
	error = context_enter(context);
	if (error)
		return error;
	error = operation_begin(endpoint, OPERATION_SEND, key, tensor, region, op, &operation);
	if (error)
		goto done;
	operation->entry = entry_of(operation);
	if (!operation->entry) {
		operation_abandon(operation);
		error = context_fail(context, -ENOMEM, "no memory for a key");
		goto done;
	}
	if (blocking) {
		operation->blocking = true;
		*blocking = operation;
	}
	operation->posted_at = haul_now(context);
	operation->state = STATE_WAITING;
	trace_called(operation);
	TAILQ_INSERT_TAIL(&endpoint->operations, operation, all);
	TAILQ_INSERT_TAIL(&operation->entry->sends, operation, queued);
	meet(endpoint, operation->entry, operation->posted_at);

	/* The first send after a poll leaves at once; those behind it share a write. */
	if (endpoint->dirty && endpoint->flushed_in != context->round) {
		endpoint->flushed_in = context->round;
		TAILQ_REMOVE(&context->dirty, endpoint, dirty_entry);
		endpoint->dirty = false;
		context->backend->link->flush(endpoint->link);
	}
done:
	context_leave(context);
	return error;
}

int haul_send(haul_endpoint *endpoint, struct haul_key key, const DLTensor *tensor,
	      haul_region *region, const struct haul_op *op)
{
	return send_start(endpoint, key, tensor, region, op, NULL);
}
