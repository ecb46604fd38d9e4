/* SPDX-License-Identifier: Apache-2.0 */
/* The receiver's side: slots, where the bytes go, and when they are all there. */
#include <errno.h>
#include <stdlib.h>

#include "engine.h"

/* A tensor of this size is acknowledged at once, not with the caller's next message. */
#define PLACED_AT_ONCE 65536u

#define NO_SLOT UINT32_MAX

/* ---- Slots ------------------------------------------------------------- */

static uint64_t name_of(const haul_endpoint *endpoint, uint32_t index)
{
	return (uint64_t)endpoint->slots[index].generation << 32 | index;
}

/* The slot of that name; NULL when the name is from an earlier use, or never was one. */
static struct local_slot *slot_find(haul_endpoint *endpoint, uint64_t name)
{
	uint32_t index = (uint32_t)name;
	struct local_slot *slot;

	if (index >= endpoint->slot_count)
		return NULL;
	slot = &endpoint->slots[index];
	return slot->state != SLOT_FREE && slot->generation == (uint32_t)(name >> 32) ? slot : NULL;
}

struct operation *recv_of(haul_endpoint *endpoint, uint64_t name)
{
	struct local_slot *slot = slot_find(endpoint, name);

	return slot && slot->state == SLOT_OPEN ? slot->operation : NULL;
}

static bool slot_was_used(const haul_endpoint *endpoint, uint64_t name)
{
	uint32_t index = (uint32_t)name;

	return index < endpoint->slot_count &&
	       (uint32_t)(name >> 32) < endpoint->slots[index].generation;
}

static int slots_grow(haul_endpoint *endpoint)
{
	uint32_t count = endpoint->slot_count ? 2 * endpoint->slot_count : 16;
	struct local_slot *grown = realloc(endpoint->slots, count * sizeof(*grown));

	if (!grown)
		return -ENOMEM;
	memset(grown + endpoint->slot_count, 0, (count - endpoint->slot_count) * sizeof(*grown));
	/* Low indexes are taken first. */
	for (uint32_t i = count; i-- > endpoint->slot_count;) {
		grown[i].next_free = endpoint->slot_free;
		endpoint->slot_free = i;
	}
	endpoint->slots = grown;
	endpoint->slot_count = count;
	return 0;
}

static uint32_t slot_take(haul_endpoint *endpoint)
{
	struct local_slot *slot;
	uint32_t index;

	if (endpoint->slot_free == NO_SLOT && slots_grow(endpoint))
		return NO_SLOT;
	index = endpoint->slot_free;
	slot = &endpoint->slots[index];
	endpoint->slot_free = slot->next_free;
	endpoint->slots_used++;
	slot->state = SLOT_OPEN;
	slot->arrived = 0;
	slot->announced = false;
	return index;
}

static void slot_give_back(haul_endpoint *endpoint, struct local_slot *slot)
{
	slot->state = SLOT_FREE;
	slot->operation = NULL;
	slot->generation++;
	slot->next_free = endpoint->slot_free;
	endpoint->slot_free = (uint32_t)(slot - endpoint->slots);
	endpoint->slots_used--;
}

/* Take the peer's right back; true when no byte lands from now on. */
static bool slot_close(haul_endpoint *endpoint, uint32_t index, bool over)
{
	const struct haul_data_ops *data = endpoint->context->backend->data;

	return !data->slot_close ||
	       data->slot_close(endpoint->link, name_of(endpoint, index), over) == 0;
}

static void tell(haul_endpoint *endpoint, enum wire_type type, uint64_t name)
{
	uint8_t message[HAUL_CONTROL_MAX];

	endpoint_control(endpoint, message, wire_encode_slot(message, type, name));
}

/* The receive is over and its slot as well. */
static void end(haul_endpoint *endpoint, struct local_slot *slot, int result)
{
	struct operation *operation = slot->operation;

	slot_close(endpoint, operation->slot, true);
	slot_give_back(endpoint, slot);
	operation_complete(operation, result);
}

/* ---- Posting ----------------------------------------------------------- */

static int post(struct operation *operation)
{
	haul_endpoint *endpoint = operation->endpoint;
	const struct haul_data_ops *data = endpoint->context->backend->data;
	uint8_t message[HAUL_CONTROL_MAX], descriptor[HAUL_DESCRIPTOR_MAX];
	struct wire_ready ready = {.descriptor = descriptor};
	uint32_t index = slot_take(endpoint);
	int length = 0;

	if (index == NO_SLOT)
		return context_fail(endpoint->context, -ENOMEM, "no memory for a slot");
	ready.slot = name_of(endpoint, index);
	if (data->slot_open && operation->bytes > 0)
		length = data->slot_open(endpoint->link, ready.slot, operation->data,
					 operation->bytes, operation->registered, descriptor);
	if (length < 0) {
		slot_give_back(endpoint, &endpoint->slots[index]);
		return length;
	}
	if (operation->kind == OPERATION_QUERY)
		ready.flags = WIRE_READY_QUERY;
	ready.room = operation->bytes;
	ready.descriptor_length = (size_t)length;
	ready.key = operation_key(operation);
	ready.key_length = operation->key_length;
	endpoint->slots[index].operation = operation;
	operation->slot = index;
	operation->state = STATE_POSTED;
	operation->trace.slot = ready.slot;
	trace_point(operation, TRACE_POSTED);
	endpoint_control(endpoint, message, wire_encode_ready(message, &ready));
	return 0;
}

/* The first of those that wait for a slot. */
static void wait_unposted(struct operation *operation)
{
	operation->state = STATE_UNPOSTED;
	TAILQ_INSERT_HEAD(&operation->endpoint->unposted, operation, queued);
}

void recv_post_waiting(haul_endpoint *endpoint)
{
	struct operation *operation;
	int error;

	while (endpoint->slots_used < endpoint->slots_max &&
	       (operation = TAILQ_FIRST(&endpoint->unposted))) {
		TAILQ_REMOVE(&endpoint->unposted, operation, queued);
		error = post(operation);
		if (error == -EAGAIN) {
			wait_unposted(operation);
			return;
		}
		if (error)
			operation_complete(operation, error);
	}
}

void haul_on_room(haul_endpoint *endpoint)
{
	if (endpoint->state == ENDPOINT_OPEN && !endpoint->doomed)
		recv_post_waiting(endpoint);
}

/* ---- Bytes ------------------------------------------------------------- */

enum haul_place haul_place(haul_endpoint *endpoint, uint64_t name, uint64_t offset, uint64_t length,
			   uint8_t **address)
{
	struct local_slot *slot = slot_find(endpoint, name);
	struct operation *operation;

	if (endpoint->doomed || endpoint->state != ENDPOINT_OPEN)
		return HAUL_PLACE_FORGED;
	if (!slot)
		return slot_was_used(endpoint, name) ? HAUL_PLACE_DISCARD : HAUL_PLACE_FORGED;
	if (slot->state == SLOT_CLOSED)
		return HAUL_PLACE_DISCARD;
	operation = slot->operation;
	if (offset > operation->bytes || length > operation->bytes - offset)
		return HAUL_PLACE_FORGED;
	*address = operation->data + offset;
	return HAUL_PLACE_HERE;
}

/* Every byte is in place and, if it had to be, found to be right. */
static void finish(haul_endpoint *endpoint, struct local_slot *slot)
{
	struct operation *operation = slot->operation;
	uint64_t bytes = operation->tensor.bytes;

	endpoint->counters.tensors_received++;
	endpoint->counters.bytes_received += bytes;
	tell(endpoint, WIRE_PLACED, name_of(endpoint, operation->slot));
	end(endpoint, slot, 0);
	recv_post_waiting(endpoint);
	if (bytes >= PLACED_AT_ONCE)
		endpoint->context->backend->link->flush(endpoint->link);
}

static void check_complete(haul_endpoint *endpoint, struct local_slot *slot)
{
	struct operation *operation = slot->operation;

	if (!slot->announced || slot->arrived < slot->expected)
		return;
	/* The peer takes the send back: its answer ends the receive, not the bytes. */
	if (operation->state == STATE_CANCELLING)
		return;
	if (slot->arrived > slot->expected) {
		endpoint_doom(endpoint, -EPROTO, "the peer sent more bytes than it announced");
		return;
	}
	if (!slot->checked || slot->expected == 0) {
		finish(endpoint, slot);
		return;
	}
	if (operation->state == STATE_DIGESTING)
		return;
	operation->state = STATE_DIGESTING;
	trace_point(operation, TRACE_ARRIVED);
	operation->digested = 0;
	operation->crc = 0;
	TAILQ_INSERT_TAIL(&endpoint->context->digests, operation, queued);
}

void haul_on_arrived(haul_endpoint *endpoint, uint64_t name, uint64_t length)
{
	struct local_slot *slot = slot_find(endpoint, name);

	if (endpoint->doomed || !slot || slot->state != SLOT_OPEN)
		return;
	if (length > slot->operation->bytes - slot->arrived) {
		endpoint_doom(endpoint, -EPROTO,
			      "the peer sent more bytes than the slot has room for");
		return;
	}
	slot->arrived += length;
	endpoint->counters.bytes_arrived += length;
	check_complete(endpoint, slot);
}

bool haul_put(haul_endpoint *endpoint, uint64_t name, uint64_t offset, const void *bytes,
	      uint64_t length)
{
	uint64_t begin = endpoint->context->trace ? haul_clock() : 0;
	uint8_t *address = NULL;

	switch (haul_place(endpoint, name, offset, length, &address)) {
	case HAUL_PLACE_HERE:
		if (length)
			memcpy(address, bytes, length);
		if (endpoint->context->trace)
			haul_trace_copy(endpoint, HAUL_SHARE_IN, name, length, begin);
		haul_on_arrived(endpoint, name, length);
		return true;
	case HAUL_PLACE_DISCARD:
		return true;
	default:
		return false;
	}
}

/* The checksum is computed: complete, or ask for the tensor once more. */
void recv_digested(struct operation *operation)
{
	haul_endpoint *endpoint = operation->endpoint;
	struct local_slot *slot = &endpoint->slots[operation->slot];
	uint64_t name = name_of(endpoint, operation->slot);
	uint8_t message[HAUL_CONTROL_MAX];

	if (operation->crc == slot->crc) {
		finish(endpoint, slot);
	} else if (operation->tries++ == 0) {
		haul_log(HAUL_LOG_WARNING,
			 "endpoint %s: the checksum of a tensor of %llu bytes is wrong",
			 endpoint->address, (unsigned long long)operation->tensor.bytes);
		endpoint->counters.tensors_again++;
		slot->arrived = 0;
		slot->announced = false;
		operation->state = STATE_POSTED;
		tell(endpoint, WIRE_AGAIN, name);
	} else {
		endpoint_control(endpoint, message,
				 wire_encode_failed(message, name, WIRE_REASON_CHECKSUM));
		operation_explain(operation, "the checksum of the tensor was wrong twice");
		end(endpoint, slot, -EBADMSG);
		recv_post_waiting(endpoint);
	}
}

/* ---- What the peer says ------------------------------------------------ */

void recv_push(haul_endpoint *endpoint, const struct wire_push *push)
{
	struct local_slot *slot = slot_find(endpoint, push->slot);
	struct operation *operation;

	if (!slot && !slot_was_used(endpoint, push->slot)) {
		endpoint_doom(endpoint, -EPROTO, "the peer pushes into a slot that never was");
		return;
	}
	if (!slot || slot->state == SLOT_CLOSED)
		return;
	operation = slot->operation;
	if (operation->kind == OPERATION_QUERY || slot->announced || push->offset != 0 ||
	    push->tensor.bytes > operation->bytes ||
	    (endpoint->context->config.checksum != CHECKSUM_NONE &&
	     !(push->flags & WIRE_PUSH_CHECKSUM))) {
		endpoint_doom(endpoint, -EPROTO, "the peer pushes what the slot can't take");
		return;
	}
	operation->tensor = push->tensor;
	if (!operation->trace.at[TRACE_MET])
		trace_point(operation, TRACE_MET);
	slot->announced = true;
	slot->expected = push->tensor.bytes;
	slot->checked = push->flags & WIRE_PUSH_CHECKSUM;
	slot->crc = push->crc32c;
	check_complete(endpoint, slot);
}

void recv_refused(haul_endpoint *endpoint, const struct wire_push *refused)
{
	struct local_slot *slot = slot_find(endpoint, refused->slot);
	struct operation *operation;

	if (!slot)
		return;
	if (slot->state == SLOT_CLOSED) {
		slot_give_back(endpoint, slot);
	} else if (slot->announced || slot->arrived) {
		endpoint_doom(endpoint, -EPROTO, "the peer refuses what it has begun to push");
		return;
	} else {
		operation = slot->operation;
		operation->tensor = refused->tensor;
		if (operation->kind == OPERATION_RECV)
			operation_explain(operation,
					  "the tensor that was sent is larger than the room");
		end(endpoint, slot, operation->kind == OPERATION_QUERY ? 0 : -EMSGSIZE);
	}
	recv_post_waiting(endpoint);
}

void recv_cancelled(haul_endpoint *endpoint, uint64_t name)
{
	struct local_slot *slot = slot_find(endpoint, name);

	if (!slot)
		return;
	if (slot->state == SLOT_CLOSED) {
		slot_give_back(endpoint, slot);
	} else if (slot->operation->state == STATE_CANCELLING) {
		end(endpoint, slot, slot->operation->result);
	} else {
		endpoint_doom(endpoint, -EPROTO, "the peer took back what nobody cancelled");
		return;
	}
	recv_post_waiting(endpoint);
}

void recv_given_up(haul_endpoint *endpoint, uint64_t name)
{
	struct local_slot *slot = slot_find(endpoint, name);
	struct operation *operation;

	if (!slot)
		return;
	if (slot->state == SLOT_CLOSED) {
		slot_give_back(endpoint, slot);
	} else {
		operation = slot->operation;
		if (operation->state == STATE_DIGESTING)
			TAILQ_REMOVE(&endpoint->context->digests, operation, queued);
		operation_explain(operation, "the sender gave the tensor up");
		end(endpoint, slot, -ECANCELED);
	}
	recv_post_waiting(endpoint);
}

void recv_cancel(struct operation *operation, int result)
{
	haul_endpoint *endpoint = operation->endpoint;
	struct local_slot *slot;

	if (operation->state == STATE_UNPOSTED) {
		TAILQ_REMOVE(&endpoint->unposted, operation, queued);
		operation_complete(operation, result);
		return;
	}
	if (operation->state == STATE_CANCELLING && result == -ETIMEDOUT) {
		endpoint_doom(endpoint, -ETIMEDOUT, "it didn't answer a cancel within peer_ms");
		return;
	}
	if (operation->state == STATE_DIGESTING)
		TAILQ_REMOVE(&endpoint->context->digests, operation, queued);
	else if (operation->state != STATE_POSTED)
		return;
	slot = &endpoint->slots[operation->slot];
	tell(endpoint, WIRE_CANCEL, name_of(endpoint, operation->slot));
	if (slot_close(endpoint, operation->slot, false)) {
		/* Late bytes are discarded. The name stays taken until the peer's answer. */
		slot->state = SLOT_CLOSED;
		slot->operation = NULL;
		operation_complete(operation, result);
	} else {
		operation->state = STATE_CANCELLING;
		operation->result = result;
		if (deadlines_set(&endpoint->context->deadlines, &operation->timer.deadline,
				  haul_clock() + endpoint->context->config.peer_ms * 1000000))
			endpoint_doom(endpoint, -ENOMEM, "no memory for a deadline");
	}
}

void recv_forget(haul_endpoint *endpoint)
{
	free(endpoint->slots);
	endpoint->slots = NULL;
	endpoint->slot_count = 0;
	endpoint->slot_free = NO_SLOT;
	endpoint->slots_used = 0;
}

/* ---- The calls --------------------------------------------------------- */

int recv_start(haul_endpoint *endpoint, enum operation_kind kind, struct haul_key key,
	       DLTensor *tensor, haul_region *region, const struct haul_op *op,
	       struct operation **blocking)
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
	error = operation_begin(endpoint, kind, key, tensor, region, op, &operation);
	if (error)
		goto done;
	if (blocking)
		operation->blocking = true;
	trace_called(operation);
	TAILQ_INSERT_TAIL(&endpoint->operations, operation, all);
	operation->state = STATE_UNPOSTED;
	TAILQ_INSERT_TAIL(&endpoint->unposted, operation, queued);
	if (endpoint->slots_used < endpoint->slots_max &&
	    TAILQ_FIRST(&endpoint->unposted) == operation) {
		TAILQ_REMOVE(&endpoint->unposted, operation, queued);
		error = post(operation);
		if (error == -EAGAIN) {
			wait_unposted(operation);
			error = 0;
		} else if (error) {
			TAILQ_REMOVE(&endpoint->operations, operation, all);
			operation_abandon(operation);
			goto done;
		}
	}
	if (blocking)
		*blocking = operation;
done:
	context_leave(context);
	return error;
}

int haul_recv(haul_endpoint *endpoint, struct haul_key key, DLTensor *tensor, haul_region *region,
	      const struct haul_op *op)
{
	return recv_start(endpoint, OPERATION_RECV, key, tensor, region, op, NULL);
}

int haul_query(haul_endpoint *endpoint, struct haul_key key, const struct haul_op *op)
{
	return recv_start(endpoint, OPERATION_QUERY, key, NULL, NULL, op, NULL);
}
