/* SPDX-License-Identifier: Apache-2.0 */
#include "steps.h"

#include <grpc/byte_buffer_reader.h>
#include <grpc/support/time.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static gpr_timespec never(void)
{
	return gpr_inf_future(GPR_CLOCK_REALTIME);
}

/* ---- Queues -------------------------------------------------------------- */

static void shut(grpc_completion_queue_functor *functor, int success)
{
	struct steps_queue *queue =
		(struct steps_queue *)((char *)functor - offsetof(struct steps_queue, shut));

	pthread_mutex_lock(&queue->lock);
	queue->is_shut = true;
	pthread_cond_broadcast(&queue->changed);
	pthread_mutex_unlock(&queue->lock);
}

void steps_queue_open(struct steps_queue *queue, grpc_cq_completion_type type)
{
	memset(queue, 0, sizeof(*queue));
	queue->type = type;
	pthread_mutex_init(&queue->lock, NULL);
	pthread_cond_init(&queue->changed, NULL);
	queue->shut.functor_run = shut;
	if (type == GRPC_CQ_NEXT)
		queue->queue = grpc_completion_queue_create_for_next(NULL);
	else if (type == GRPC_CQ_PLUCK)
		queue->queue = grpc_completion_queue_create_for_pluck(NULL);
	else
		queue->queue = grpc_completion_queue_create_for_callback(&queue->shut, NULL);
}

void steps_queue_close(struct steps_queue *queue)
{
	grpc_completion_queue_shutdown(queue->queue);
	if (queue->type == GRPC_CQ_NEXT) {
		while (grpc_completion_queue_next(queue->queue, never(), NULL).type !=
		       GRPC_QUEUE_SHUTDOWN)
			;
	} else if (queue->type == GRPC_CQ_CALLBACK) {
		pthread_mutex_lock(&queue->lock);
		while (!queue->is_shut)
			pthread_cond_wait(&queue->changed, &queue->lock);
		pthread_mutex_unlock(&queue->lock);
	}
	grpc_completion_queue_destroy(queue->queue);
	pthread_cond_destroy(&queue->changed);
	pthread_mutex_destroy(&queue->lock);
}

grpc_cq_completion_type steps_queue_type(const char *name)
{
	if (!strcmp(name, "pluck"))
		return GRPC_CQ_PLUCK;
	return strcmp(name, "callback") ? GRPC_CQ_NEXT : GRPC_CQ_CALLBACK;
}

/* ---- Batches ------------------------------------------------------------- */

static void batch_ended(grpc_completion_queue_functor *functor, int success)
{
	struct steps_batch *batch = (struct steps_batch *)functor;
	struct steps_queue *queue = batch->queue;

	pthread_mutex_lock(&queue->lock);
	batch->success = success;
	batch->ended = true;
	pthread_cond_broadcast(&queue->changed);
	pthread_mutex_unlock(&queue->lock);
}

grpc_call_error steps_start(struct steps_batch *batch, struct steps_queue *queue, grpc_call *call,
			    const grpc_op *ops, size_t count)
{
	memset(batch, 0, sizeof(*batch));
	batch->functor.functor_run = batch_ended;
	batch->queue = queue;
	return grpc_call_start_batch(call, ops, count, batch, NULL);
}

/* Events of other batches of this thread are kept in those. */
static void take_event(struct steps_batch *batch)
{
	struct steps_queue *queue = batch->queue;
	grpc_event event;

	event = queue->type == GRPC_CQ_NEXT
			? grpc_completion_queue_next(queue->queue, never(), NULL)
			: grpc_completion_queue_pluck(queue->queue, batch, never(), NULL);
	if (event.type != GRPC_OP_COMPLETE) {
		fprintf(stderr, "an event of type %d came\n", event.type);
		abort();
	}
	((struct steps_batch *)event.tag)->success = event.success;
	((struct steps_batch *)event.tag)->ended = true;
}

bool steps_wait(struct steps_batch *batch)
{
	struct steps_queue *queue = batch->queue;

	if (queue->type == GRPC_CQ_CALLBACK) {
		pthread_mutex_lock(&queue->lock);
		while (!batch->ended)
			pthread_cond_wait(&queue->changed, &queue->lock);
		pthread_mutex_unlock(&queue->lock);
	} else {
		while (!batch->ended)
			take_event(batch);
	}
	return batch->success;
}

bool steps_run(struct steps_queue *queue, grpc_call *call, const grpc_op *ops, size_t count)
{
	struct steps_batch batch;
	grpc_call_error error = steps_start(&batch, queue, call, ops, count);

	if (error) {
		fprintf(stderr, "grpc_call_start_batch: %s\n", grpc_call_error_to_string(error));
		abort();
	}
	return steps_wait(&batch);
}

/* ---- Messages ------------------------------------------------------------ */

static uint8_t byte_at(uint64_t seed, size_t at)
{
	return (uint8_t)((seed + 1) * 131 + at * 7 + (at >> 8) * 13 + (at >> 20));
}

grpc_byte_buffer *steps_message(uint64_t seed, size_t bytes, unsigned count)
{
	grpc_slice *slices = calloc(count, sizeof(*slices));
	grpc_byte_buffer *message;
	size_t at = 0;

	for (unsigned i = 0; i < count; i++) {
		size_t part = i + 1 < count ? bytes / count : bytes - at;

		slices[i] = grpc_slice_malloc(part);
		for (size_t j = 0; j < part; j++)
			GRPC_SLICE_START_PTR(slices[i])[j] = byte_at(seed, at + j);
		at += part;
	}
	message = grpc_raw_byte_buffer_create(slices, count);
	for (unsigned i = 0; i < count; i++)
		grpc_slice_unref(slices[i]);
	free(slices);
	return message;
}

bool steps_is(grpc_byte_buffer *message, uint64_t seed, size_t bytes, unsigned times)
{
	grpc_byte_buffer_reader reader;
	bool same = message && grpc_byte_buffer_length(message) == bytes * times;
	grpc_slice slice;
	size_t at = 0;

	if (!same || !grpc_byte_buffer_reader_init(&reader, message))
		return false;
	while (grpc_byte_buffer_reader_next(&reader, &slice)) {
		for (size_t i = 0; i < GRPC_SLICE_LENGTH(slice); i++)
			same &= GRPC_SLICE_START_PTR(slice)[i] == byte_at(seed, (at + i) % bytes);
		at += GRPC_SLICE_LENGTH(slice);
		grpc_slice_unref(slice);
	}
	grpc_byte_buffer_reader_destroy(&reader);
	return same && at == bytes * times;
}
