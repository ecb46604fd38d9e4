/* SPDX-License-Identifier: Apache-2.0 */
/* Batches on calls: what leaves aside when one starts, and what arrives aside when one ends. */
#include "batch.h"

#include <errno.h>
#include <stdlib.h>

#include "transfer.h"

#define OPS_MAX 8 /* there are eight kinds, and each may stand in a batch once */

/*
 * The mark costs a small call more than all else of the layer: bytes that HPACK can't shorten, and
 * a call to know at the server. A unary call whose request is small goes without it when so many
 * answers of its method in a row were small. A large one after that comes within gRPC, and then it
 * takes 16 times as many: a method with a large answer now and then is soon marked for good.
 */
#define SMALL_ANSWERS 64
#define SMALL_ANSWERS_GROWTH 4 /* in bits */
#define MISSED_MOST 5

/* ---- Starting ------------------------------------------------------------ */

/* A batch while it is started. */
struct starting {
	struct call *call;
	grpc_op *ops;
	size_t count;
	grpc_op *metadata, *message;                         /* that it sends */
	grpc_op *received_message, *received_status, *close; /* that it asks for */
	bool closes, sends_status;
	grpc_metadata *marked; /* the metadata with the mark behind it */
	grpc_slice mark;
	grpc_byte_buffer *program_message;
	grpc_byte_buffer *descriptor; /* what leaves in its place */
};

static void survey(struct starting *starting)
{
	for (size_t i = 0; i < starting->count; i++) {
		grpc_op *op = &starting->ops[i];

		switch (op->op) {
		case GRPC_OP_SEND_INITIAL_METADATA:
			starting->metadata = op;
			break;
		case GRPC_OP_SEND_MESSAGE:
			starting->message = op;
			break;
		case GRPC_OP_SEND_STATUS_FROM_SERVER:
			starting->sends_status = true;
			break;
		case GRPC_OP_RECV_MESSAGE:
			starting->received_message = op;
			break;
		case GRPC_OP_RECV_STATUS_ON_CLIENT:
			starting->received_status = op;
			break;
		case GRPC_OP_RECV_CLOSE_ON_SERVER:
			starting->close = op;
			break;
		case GRPC_OP_SEND_CLOSE_FROM_CLIENT:
			starting->closes = true;
			break;
		case GRPC_OP_RECV_INITIAL_METADATA:
			break;
		}
	}
}

static bool slice_is(grpc_slice slice, const char *text)
{
	return GRPC_SLICE_LENGTH(slice) == strlen(text) &&
	       !memcmp(GRPC_SLICE_START_PTR(slice), text, strlen(text));
}

static bool asks_compression(const struct grpc_op_send_initial_metadata *metadata)
{
	if (metadata->maybe_compression_level.is_set &&
	    metadata->maybe_compression_level.level != GRPC_COMPRESS_LEVEL_NONE)
		return true;
	for (size_t i = 0; i < metadata->count; i++) {
		if (slice_is(metadata->metadata[i].key, GRPC_COMPRESSION_REQUEST_ALGORITHM_MD_KEY))
			return true;
	}
	return false;
}

/* Put the mark behind the program's metadata. False without memory: the call stays unmarked. */
static bool add_mark(struct starting *starting)
{
	struct grpc_op_send_initial_metadata *metadata =
		&starting->metadata->data.send_initial_metadata;
	uint8_t bytes[WIRE_MARK_BYTES];

	starting->marked = calloc(metadata->count + 1, sizeof(grpc_metadata));
	if (!starting->marked)
		return false;
	if (metadata->count)
		memcpy(starting->marked, metadata->metadata,
		       metadata->count * sizeof(grpc_metadata));
	wire_put_mark(&starting->call->mark, bytes);
	starting->mark = core()->grpc_slice_from_copied_buffer((const char *)bytes, sizeof(bytes));
	starting->marked[metadata->count].key =
		core()->grpc_slice_from_static_string(WIRE_MARK_KEY);
	starting->marked[metadata->count].value = starting->mark;
	metadata->metadata = starting->marked;
	metadata->count++;
	return true;
}

static uint64_t length_of(const grpc_byte_buffer *message)
{
	return message ? message->data.raw.slice_buffer.length : 0;
}

static bool is_large(const grpc_byte_buffer *message)
{
	return length_of(message) >= layer_settings()->threshold;
}

static bool is_quiet(struct answers *answers)
{
	unsigned missed = atomic_load_explicit(&answers->missed, memory_order_relaxed);
	unsigned small = atomic_load_explicit(&answers->small, memory_order_relaxed);

	return small >= (unsigned)SMALL_ANSWERS << SMALL_ANSWERS_GROWTH * missed;
}

static bool needs_mark(const struct starting *starting)
{
	return !starting->message || !starting->closes || !starting->received_message ||
	       is_large(starting->message->data.send_message.send_message) ||
	       !is_quiet(starting->call->answers);
}

/* What a client learns from an answer as it came. Two at once may count as one. */
static void learn_from_answer(struct call *call, bool large)
{
	struct answers *answers = call->answers;
	unsigned small = atomic_load_explicit(&answers->small, memory_order_relaxed);
	unsigned missed = atomic_load_explicit(&answers->missed, memory_order_relaxed);

	if (large) {
		if (!call->marked && missed < MISSED_MOST)
			atomic_store_explicit(&answers->missed, missed + 1, memory_order_relaxed);
		if (small)
			atomic_store_explicit(&answers->small, 0, memory_order_relaxed);
	} else if (!is_quiet(answers)) {
		atomic_store_explicit(&answers->small, small + 1, memory_order_relaxed);
	}
}

/* The call's lock is held. */
static void start_metadata(struct starting *starting)
{
	struct call *call = starting->call;

	if (!starting->metadata)
		return;
	if (asks_compression(&starting->metadata->data.send_initial_metadata))
		call->stays_inline = true;
	if (!call->server && !call->marked && session_alive(call->session) && needs_mark(starting))
		call->marked = add_mark(starting);
}

static bool goes_aside(const struct starting *starting, const grpc_byte_buffer *message)
{
	const struct call *call = starting->call;
	uint64_t bytes;

	if (!message || !call->session || !call->marked || message->type != GRPC_BB_RAW ||
	    message->data.raw.compression != GRPC_COMPRESS_NONE)
		return false;
	bytes = message->data.raw.slice_buffer.length;
	if (bytes < layer_settings()->threshold || call->stays_inline)
		return false;
	/* What is too long for one of the two programs fails as it always did, within gRPC. */
	return bytes <= call->session->terms.peer_limit &&
	       bytes <= call->session->terms.send_limit && !call->final && !call->given_up &&
	       !call->failure.status && session_alive(call->session);
}

/* The call's lock is held. */
static void start_message(struct starting *starting)
{
	uint8_t bytes[WIRE_DESCRIPTOR_MAX];
	struct wire_descriptor descriptor;
	grpc_byte_buffer *message;
	grpc_slice slice;

	if (!starting->message)
		return;
	message = starting->message->data.send_message.send_message;
	if (!goes_aside(starting, message) || transfer_send(starting->call, message, &descriptor)) {
		if (is_large(message))
			layer_count(&layer_counters.sent_inline, 1);
		return;
	}
	slice = core()->grpc_slice_from_copied_buffer((const char *)bytes,
						      wire_put_descriptor(&descriptor, bytes));
	starting->descriptor = core()->grpc_raw_byte_buffer_create(&slice, 1);
	core()->grpc_slice_unref(slice);
	starting->program_message = message;
	starting->message->data.send_message.send_message = starting->descriptor;
}

static bool is_of_interest(const struct starting *starting)
{
	return starting->received_message || starting->received_status || starting->close ||
	       starting->descriptor || (starting->sends_status && starting->call->under_way);
}

/* The call's lock is held. NULL: gRPC's event is none of the layer's business, or no memory. */
static struct batch *wrap(const struct starting *starting, void *tag)
{
	struct call *call = starting->call;
	struct batch *batch = batch_new(call->queue, tag);

	if (!batch)
		return NULL;
	batch->call = call;
	call_get(call);
	call->batches++;
	core()->grpc_call_ref(call->core);
	call->reads += starting->received_message != NULL;
	if (starting->received_message)
		batch->message = starting->received_message->data.recv_message.recv_message;
	if (starting->received_status) {
		struct grpc_op_recv_status_on_client *status =
			&starting->received_status->data.recv_status_on_client;

		batch->status = status->status;
		batch->status_details = status->status_details;
	}
	if (starting->close)
		batch->cancelled = starting->close->data.recv_close_on_server.cancelled;
	batch->sends_aside = starting->descriptor;
	batch->sends_status = starting->sends_status;
	return batch;
}

/* The layer's reference on gRPC's call, which the batch had. Without the lock. */
static void unwrap(struct batch *batch)
{
	struct call *call = batch->call;

	pthread_mutex_lock(&call->lock);
	call->batches--;
	pthread_mutex_unlock(&call->lock);
	core()->grpc_call_unref(call->core);
	call_put(call);
}

static void starting_free(struct starting *starting)
{
	if (starting->marked) {
		core()->grpc_slice_unref(starting->mark);
		free(starting->marked);
	}
	if (starting->descriptor)
		core()->grpc_byte_buffer_destroy(starting->descriptor);
}

grpc_call_error batch_start(struct call *call, const grpc_op *ops, size_t count, void *tag)
{
	grpc_op own[OPS_MAX];
	struct starting starting = {.call = call, .ops = own, .count = count};
	struct batch *batch = NULL;
	grpc_call_error error;

	if (!count || count > OPS_MAX)
		return core()->grpc_call_start_batch(call->core, ops, count, tag, NULL);
	memcpy(own, ops, count * sizeof(*ops));
	survey(&starting);
	pthread_mutex_lock(&call->lock);
	start_metadata(&starting);
	start_message(&starting);
	if (is_of_interest(&starting)) {
		batch = wrap(&starting, tag);
		if (!batch) {
			call_stop_sends(call);
			pthread_mutex_unlock(&call->lock);
			starting_free(&starting);
			return GRPC_CALL_ERROR_TOO_MANY_OPERATIONS;
		}
	}
	call->sent_status |= starting.sends_status;
	pthread_mutex_unlock(&call->lock);
	error = core()->grpc_call_start_batch(call->core, starting.ops, count,
					      batch ? batch_core_tag(batch) : tag, NULL);
	if (error && batch) {
		pthread_mutex_lock(&call->lock);
		call->reads -= batch->message != NULL;
		call_stop_sends(call);
		pthread_mutex_unlock(&call->lock);
		unwrap(batch);
		batch_free(batch);
	}
	starting_free(&starting);
	return error;
}

grpc_call_error grpc_call_start_batch(grpc_call *core_call, const grpc_op *ops, size_t count,
				      void *tag, void *reserved)
{
	struct call *call = reserved ? NULL : call_find(core_call);
	grpc_call_error error;

	if (!call)
		return core()->grpc_call_start_batch(core_call, ops, count, tag, reserved);
	error = batch_start(call, ops, count, tag);
	call_put(call);
	return error;
}

/* ---- Ending -------------------------------------------------------------- */

void batch_fail_status(struct batch *batch)
{
	const struct call_failure *failure = &batch->call->failure;

	*batch->status = failure->status;
	core()->grpc_slice_unref(*batch->status_details);
	*batch->status_details = core()->grpc_slice_from_copied_string(failure->text);
}

/* The message that has come stands for another one. False: the program gets it as it is. */
bool batch_take_descriptor(struct batch *batch, struct aftermath *aftermath)
{
	struct call *call = batch->call;
	uint8_t bytes[WIRE_DESCRIPTOR_MAX];
	struct wire_descriptor descriptor;
	const grpc_slice_buffer *slices = &(*batch->message)->data.raw.slice_buffer;
	size_t length = 0;
	int error;

	if (slices->length > sizeof(bytes))
		return false;
	for (size_t i = 0; i < slices->count; i++) {
		memcpy(bytes + length, GRPC_SLICE_START_PTR(slices->slices[i]),
		       GRPC_SLICE_LENGTH(slices->slices[i]));
		length += GRPC_SLICE_LENGTH(slices->slices[i]);
	}
	if (!wire_is_descriptor(bytes, length, &call->mark.session))
		return false;
	core()->grpc_byte_buffer_destroy(*batch->message);
	*batch->message = NULL;
	if (!wire_get_descriptor(bytes, length, &descriptor) ||
	    descriptor.mark.call != call->number) {
		call_fail(call, GRPC_STATUS_INTERNAL, "a descriptor of tensorhaul is malformed",
			  aftermath);
	} else if (call->given_up) {
		call_fail_given_up(call, aftermath);
	} else if (!call->session) {
		call_fail(call, GRPC_STATUS_UNAVAILABLE, "the side path of tensorhaul is gone",
			  aftermath);
	} else if (descriptor.bytes > call->session->terms.own_limit) {
		call_fail(call, GRPC_STATUS_RESOURCE_EXHAUSTED, "Received message larger than max",
			  aftermath);
	} else {
		error = transfer_receive(call, batch, &descriptor);
		if (error == -ENOMEM)
			call_fail(call, GRPC_STATUS_RESOURCE_EXHAUSTED,
				  "no memory for a message of that size", aftermath);
		else if (error == -ENOBUFS)
			call_fail(call, GRPC_STATUS_RESOURCE_EXHAUSTED,
				  "too many messages of the peer's have not come", aftermath);
		else if (error)
			call_fail(call, GRPC_STATUS_UNAVAILABLE,
				  "the side path of tensorhaul is gone", aftermath);
	}
	return true;
}

/* The call has ended for gRPC. The lock is held. */
static void end_call(struct batch *batch)
{
	struct call *call = batch->call;

	call->final = true;
	if (call->receive && call->receive->batch != batch) {
		batch->waits |= BATCH_WAITS_TURN;
		call->waiting_status = batch;
	}
	if (batch->cancelled) {
		if (*batch->cancelled)
			call_give_up(call);
		return;
	}
	call_stop_sends(call);
	if (call->failure.status && !call->receive)
		batch_fail_status(batch);
	call->owes_over |= *batch->status != GRPC_STATUS_OK;
}

bool batch_event(struct batch *batch, bool success)
{
	struct call *call = batch->call;
	struct aftermath aftermath = {0};
	bool held;

	if (!batch->arrived && batch->is_request)
		return request_event(batch, success);
	if (batch->arrived) {
		if (!batch->is_request)
			unwrap(batch);
		else
			call_put(call);
		return true;
	}
	call_get(call); /* once the batch is held back, it may be gone at any moment */
	pthread_mutex_lock(&call->lock);
	batch->success = success;
	call->reads -= batch->message != NULL;
	if (batch->message && *batch->message) {
		bool large = is_large(*batch->message);
		bool aside = batch_take_descriptor(batch, &aftermath);
		if (aside && !batch->waits && !batch->status && !batch->cancelled)
			batch->success = false;
		if (!call->server)
			learn_from_answer(call, large || aside);
	}
	if (batch->status || batch->cancelled)
		end_call(batch);
	call_settle(call);
	if ((batch->sends_aside || batch->sends_status) && !batch->status && success &&
	    !transfer_sends_done(call, batch)) {
		batch->waits |= BATCH_WAITS_SEND;
		call->waiting_send = batch;
	}
	held = batch->waits;
	batch->arrived = true;
	pthread_mutex_unlock(&call->lock);
	call_follow(call, &aftermath);
	if (!held)
		unwrap(batch);
	call_put(call);
	return !held;
}
