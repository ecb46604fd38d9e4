/* SPDX-License-Identifier: Apache-2.0 */
#include "transfer.h"

#include <errno.h>
#include <stdlib.h>

/* Slices of less on average are gathered: a piece costs more than the copy of so many bytes. */
#define PIECE_WORTH 32768

static const char broken[] = "the side path of tensorhaul broke";

static atomic_uint *pieces_of(const struct transfer *transfer)
{
	struct side_link *link = transfer->call->session->link;

	return transfer->batch ? &link->pieces_in : &link->pieces_out;
}

/* Counted on its connection until it is freed. False: there would be too many. */
static bool count_pieces(struct transfer *transfer, unsigned pieces)
{
	atomic_uint *count = pieces_of(transfer);
	unsigned most = transfer->batch ? SIDE_PIECES_IN : SIDE_PIECES_OUT;

	if (atomic_fetch_add(count, pieces) + pieces > most) {
		atomic_fetch_sub(count, pieces);
		return false;
	}
	transfer->pieces = pieces;
	return true;
}

static void transfer_free(struct transfer *transfer)
{
	atomic_fetch_sub(pieces_of(transfer), transfer->pieces);
	if (transfer->message)
		core()->grpc_byte_buffer_destroy(transfer->message);
	if (transfer->buffer)
		pool_give(transfer->buffer);
	layer_count(&layer_counters.transfers, (uint64_t)-1);
	call_put(transfer->call);
	free(transfer);
}

static struct transfer *transfer_new(struct call *call, uint64_t bytes)
{
	struct transfer *transfer = calloc(1, sizeof(*transfer));

	if (!transfer)
		return NULL;
	transfer->call = call;
	transfer->bytes = bytes;
	call_get(call);
	layer_count(&layer_counters.transfers, 1);
	return transfer;
}

void transfer_stop(struct transfer *transfer)
{
	haul_cancel(side_context(), transfer);
}

void transfer_tell_over(struct call *call)
{
	struct wire_note note = {
		.kind = WIRE_NOTE_OVER, .session = call->mark.session, .call = call->number};

	if (!atomic_load(&call->session->link->lost))
		side_note(call->session->link, &note);
}

/* One piece, in the direction of the transfer. */
static int start_piece(struct transfer *transfer, uint64_t number, void *data, uint64_t bytes)
{
	struct side_link *link = transfer->call->session->link;
	haul_region *region = transfer->buffer ? transfer->buffer->region : pool_region(data);
	const int64_t length = (int64_t)bytes;
	DLTensor tensor = side_tensor(data, &length);
	struct haul_op op = HAUL_OP_INIT;
	uint64_t name = htole64(number);
	struct haul_key key = {&name, sizeof(name)};

	op.cookie = transfer;
	op.timeout_ms = call_timeout_ms(transfer->call);
	return transfer->batch ? side_recv(link, key, &tensor, region, &op)
			       : side_send(link, key, &tensor, region, &op);
}

/* How it has ended. What a lost connection has given up is not what the program has. */
static int error_of(const struct transfer *transfer, const struct haul_completion *completion)
{
	if (transfer->error)
		return transfer->error;
	if (completion->result == -ECANCELED && atomic_load(&transfer->call->session->link->lost))
		return -ECONNRESET;
	return completion->result;
}

/* ---- Sends --------------------------------------------------------------- */

bool transfer_sends_done(const struct call *call, const struct batch *batch)
{
	/* After the status the program may end, so that every byte must be there before. */
	return call->under_way <= (batch->sends_status ? 0 : layer_settings()->window);
}

static void release_waiting_send(struct call *call, struct aftermath *aftermath)
{
	struct batch *batch = call->waiting_send;

	if (!batch || !transfer_sends_done(call, batch))
		return;
	call->waiting_send = NULL;
	if (call->failure.status && !batch->status && !batch->cancelled)
		batch->success = false;
	batch->waits &= ~BATCH_WAITS_SEND;
	if (!batch->waits)
		aftermath->post[aftermath->posts++] = batch;
}

static void sent(struct side_operation *operation, const struct haul_completion *completion)
{
	struct transfer *transfer = (struct transfer *)operation;
	struct call *call = transfer->call;
	struct aftermath aftermath = {0};
	bool ended;

	pthread_mutex_lock(&call->lock);
	transfer->error = error_of(transfer, completion);
	ended = !--transfer->left;
	if (ended) {
		TAILQ_REMOVE(&call->sends, transfer, entry);
		call->under_way -= transfer->bytes;
		if (transfer->error && transfer->error != -ECANCELED && !call_expired(call))
			call_fail(call, GRPC_STATUS_UNAVAILABLE, broken, &aftermath);
		release_waiting_send(call, &aftermath);
	}
	pthread_mutex_unlock(&call->lock);
	call_follow(call, &aftermath);
	if (ended)
		transfer_free(transfer);
}

/* Slices that are few and long leave from where they are. */
static void describe_slices(const grpc_slice_buffer *slices, struct wire_descriptor *descriptor)
{
	for (size_t i = 0; i < slices->count; i++) {
		size_t length = GRPC_SLICE_LENGTH(slices->slices[i]);

		if (length)
			descriptor->piece[descriptor->pieces++] = length;
	}
}

static int gather(struct transfer *transfer, const grpc_slice_buffer *slices)
{
	uint8_t *next;

	transfer->buffer = pool_take(transfer->bytes);
	if (!transfer->buffer)
		return -ENOMEM;
	layer_count(&layer_counters.copied_bytes, transfer->bytes);
	next = transfer->buffer->base;
	for (size_t i = 0; i < slices->count; i++) {
		memcpy(next, GRPC_SLICE_START_PTR(slices->slices[i]),
		       GRPC_SLICE_LENGTH(slices->slices[i]));
		next += GRPC_SLICE_LENGTH(slices->slices[i]);
	}
	return 0;
}

/* The pieces, in order. What can't be started after the first has ended with that error. */
static int send_pieces(struct transfer *transfer, const struct wire_descriptor *descriptor)
{
	const grpc_slice_buffer *slices = &transfer->message->data.raw.slice_buffer;
	size_t next = 0;
	int error = 0;

	for (unsigned i = 0; i < descriptor->pieces && !error; i++) {
		void *data;

		if (transfer->buffer) {
			data = transfer->buffer->base;
		} else {
			while (!GRPC_SLICE_LENGTH(slices->slices[next]))
				next++;
			data = GRPC_SLICE_START_PTR(slices->slices[next]);
			next++;
		}
		error = start_piece(transfer, descriptor->number + i, data, descriptor->piece[i]);
		if (error && i) {
			transfer->error = error;
			transfer->left = i;
			transfer_stop(transfer);
			return 0;
		}
	}
	return error;
}

int transfer_send(struct call *call, grpc_byte_buffer *message, struct wire_descriptor *descriptor)
{
	grpc_slice_buffer *slices = &message->data.raw.slice_buffer;
	struct transfer *transfer = transfer_new(call, slices->length);
	int error;

	if (!transfer)
		return -ENOMEM;
	transfer->operation.done = sent;
	transfer->message = core()->grpc_byte_buffer_copy(message);
	*descriptor = (struct wire_descriptor){.mark = call->mark, .bytes = slices->length};
	if (slices->count <= WIRE_PIECES_MAX && slices->length / slices->count >= PIECE_WORTH)
		describe_slices(&transfer->message->data.raw.slice_buffer, descriptor);
	if (!descriptor->pieces || !count_pieces(transfer, descriptor->pieces)) {
		descriptor->pieces = 1;
		descriptor->piece[0] = descriptor->bytes;
		error = count_pieces(transfer, 1) ? gather(transfer, slices) : -ENOBUFS;
		if (error) {
			transfer_free(transfer);
			return error;
		}
	}
	descriptor->number =
		atomic_fetch_add(&call->session->link->next_number, descriptor->pieces);
	transfer->left = descriptor->pieces;
	error = send_pieces(transfer, descriptor);
	if (error) {
		layer_log(LAYER_LOG_DEBUG, "a message of %llu bytes stays inline: %s",
			  (unsigned long long)transfer->bytes, haul_detail(side_context()));
		transfer_free(transfer);
		return error;
	}
	TAILQ_INSERT_TAIL(&call->sends, transfer, entry);
	call->under_way += transfer->bytes;
	layer_count(&layer_counters.sent_aside, 1);
	layer_count(&layer_counters.sent_aside_bytes, transfer->bytes);
	core()->grpc_slice_buffer_reset_and_unref(slices);
	return 0;
}

/* ---- Receives ------------------------------------------------------------ */

/* Hand the bytes to the program as gRPC would: a byte buffer that gives the memory back by itself.
 */
static void hand_over(struct transfer *transfer)
{
	grpc_slice slice = core()->grpc_slice_new_with_user_data(
		transfer->buffer->base, transfer->bytes, pool_give, transfer->buffer);

	*transfer->batch->message = core()->grpc_raw_byte_buffer_create(&slice, 1);
	core()->grpc_slice_unref(slice);
	transfer->buffer = NULL;
	layer_count(&layer_counters.received_aside, 1);
	layer_count(&layer_counters.received_aside_bytes, transfer->bytes);
}

/* gRPC has ended the call for a reason of its own, and that is what the program sees. */
static bool core_has_failed(const struct call *call, const struct batch *batch)
{
	const struct batch *end = batch->status ? batch : call->waiting_status;

	return end && end->status && *end->status != GRPC_STATUS_OK;
}

static void receive_failed(struct transfer *transfer, struct aftermath *aftermath)
{
	struct call *call = transfer->call;
	struct batch *batch = transfer->batch;

	if (core_has_failed(call, batch))
		call_stop_sends(call);
	else if (transfer->error == -EMSGSIZE || transfer->error == -EPROTO)
		call_fail(call, GRPC_STATUS_INTERNAL, "a descriptor of tensorhaul lied", aftermath);
	else if (transfer->error == -ECANCELED || call_expired(call))
		call_fail_given_up(call, aftermath);
	else
		call_fail(call, GRPC_STATUS_UNAVAILABLE, broken, aftermath);
	*batch->message = NULL;
	if (batch->status && call->failure.status)
		batch_fail_status(batch);
	else if (!batch->is_request && !batch->cancelled)
		batch->success = false;
}

static void release_waiting_status(struct call *call, struct aftermath *aftermath)
{
	struct batch *batch = call->waiting_status;

	if (!batch)
		return;
	call->waiting_status = NULL;
	if (batch->status && call->failure.status)
		batch_fail_status(batch);
	batch->waits &= ~BATCH_WAITS_TURN;
	if (!batch->waits)
		aftermath->post[aftermath->posts++] = batch;
}

static void received(struct side_operation *operation, const struct haul_completion *completion)
{
	struct transfer *transfer = (struct transfer *)operation;
	struct call *call = transfer->call;
	struct batch *batch = transfer->batch;
	struct aftermath aftermath = {0};
	bool ended;

	pthread_mutex_lock(&call->lock);
	transfer->error = error_of(transfer, completion);
	if (!completion->result)
		transfer->placed += completion->tensor.bytes;
	ended = !--transfer->left;
	if (ended) {
		if (!transfer->error && transfer->placed != transfer->bytes)
			transfer->error = -EPROTO; /* pieces that are shorter than was said */
		if (!transfer->error)
			hand_over(transfer);
		else
			receive_failed(transfer, &aftermath);
		call->receive = NULL;
		batch->waits &= ~BATCH_WAITS_RECEIVE;
		if (!batch->waits)
			aftermath.post[aftermath.posts++] = batch;
		release_waiting_status(call, &aftermath);
		call_settle(call);
	}
	pthread_mutex_unlock(&call->lock);
	call_follow(call, &aftermath);
	if (ended)
		transfer_free(transfer);
}

int transfer_receive(struct call *call, struct batch *batch,
		     const struct wire_descriptor *descriptor)
{
	struct transfer *transfer = transfer_new(call, descriptor->bytes);
	uint8_t *next;
	int error = 0;

	if (!transfer)
		return -ENOMEM;
	transfer->operation.done = received;
	transfer->batch = batch;
	if (!count_pieces(transfer, descriptor->pieces)) {
		transfer_free(transfer);
		return -ENOBUFS;
	}
	transfer->buffer = pool_take(descriptor->bytes);
	if (!transfer->buffer) {
		transfer_free(transfer);
		return -ENOMEM;
	}
	transfer->left = descriptor->pieces;
	next = transfer->buffer->base;
	for (unsigned i = 0; i < descriptor->pieces && !error; i++) {
		error = start_piece(transfer, descriptor->number + i, next, descriptor->piece[i]);
		next += descriptor->piece[i];
		if (error && !i) {
			transfer_free(transfer);
			return error;
		}
		if (error) {
			transfer->error = error;
			transfer->left = i;
			transfer_stop(transfer);
		}
	}
	call->receive = transfer;
	batch->waits |= BATCH_WAITS_RECEIVE;
	return 0;
}
