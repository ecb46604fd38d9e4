/* SPDX-License-Identifier: Apache-2.0 */
#include "queue.h"

#include <stdlib.h>

#define BUCKETS 64

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static struct queue *table[BUCKETS];

static struct queue **place_of(grpc_completion_queue *core_queue)
{
	struct queue **place = &table[((uintptr_t)core_queue >> 4) % BUCKETS];

	while (*place && (*place)->core != core_queue)
		place = &(*place)->next;
	return place;
}

void queue_created(grpc_completion_queue *core_queue, grpc_cq_completion_type type)
{
	struct queue *queue = calloc(1, sizeof(*queue));
	struct queue **place;

	if (!queue)
		return;
	queue->core = core_queue;
	queue->type = type;
	pthread_mutex_lock(&lock);
	place = place_of(core_queue);
	if (*place)
		free(queue); /* gRPC's functions that create queues call each other */
	else
		*place = queue;
	pthread_mutex_unlock(&lock);
}

struct queue *queue_find(grpc_completion_queue *core_queue)
{
	struct queue *queue;

	if (!layer_used())
		return NULL;
	pthread_mutex_lock(&lock);
	queue = *place_of(core_queue);
	pthread_mutex_unlock(&lock);
	return queue;
}

void queue_destroyed(grpc_completion_queue *core_queue)
{
	struct queue **place, *queue;

	pthread_mutex_lock(&lock);
	place = place_of(core_queue);
	queue = *place;
	if (queue)
		*place = queue->next;
	pthread_mutex_unlock(&lock);
	free(queue);
}

void queue_enter(struct queue *queue)
{
	pthread_mutex_lock(&lock);
	queue->batches++;
	pthread_mutex_unlock(&lock);
}

void queue_leave(struct queue *queue)
{
	grpc_completion_queue *shutdown = NULL;

	pthread_mutex_lock(&lock);
	queue->batches--;
	if (!queue->batches && queue->shutdown) {
		queue->shutdown = false;
		shutdown = queue->core;
	}
	pthread_mutex_unlock(&lock);
	if (shutdown)
		core()->grpc_completion_queue_shutdown(shutdown);
}

void grpc_completion_queue_shutdown(grpc_completion_queue *core_queue)
{
	struct queue *queue;
	bool later;

	if (!layer_used()) {
		core()->grpc_completion_queue_shutdown(core_queue);
		return;
	}
	pthread_mutex_lock(&lock);
	queue = *place_of(core_queue);
	later = queue && queue->batches;
	if (later)
		queue->shutdown = true;
	pthread_mutex_unlock(&lock);
	if (!later)
		core()->grpc_completion_queue_shutdown(core_queue);
}

/* ---- Making and destroying ----------------------------------------------- */

static grpc_completion_queue *created(grpc_completion_queue *core_queue,
				      grpc_cq_completion_type type)
{
	if (core_queue && layer_on())
		queue_created(core_queue, type);
	return core_queue;
}

grpc_completion_queue *grpc_completion_queue_create(
	const grpc_completion_queue_factory *factory,
	const grpc_completion_queue_attributes *attributes, void *reserved)
{
	return created(core()->grpc_completion_queue_create(factory, attributes, reserved),
		       attributes->cq_completion_type);
}

grpc_completion_queue *grpc_completion_queue_create_for_next(void *reserved)
{
	return created(core()->grpc_completion_queue_create_for_next(reserved), GRPC_CQ_NEXT);
}

grpc_completion_queue *grpc_completion_queue_create_for_pluck(void *reserved)
{
	return created(core()->grpc_completion_queue_create_for_pluck(reserved), GRPC_CQ_PLUCK);
}

grpc_completion_queue *grpc_completion_queue_create_for_callback(
	grpc_completion_queue_functor *shutdown_callback, void *reserved)
{
	return created(
		core()->grpc_completion_queue_create_for_callback(shutdown_callback, reserved),
		GRPC_CQ_CALLBACK);
}

void grpc_completion_queue_destroy(grpc_completion_queue *core_queue)
{
	if (layer_used())
		queue_destroyed(core_queue);
	core()->grpc_completion_queue_destroy(core_queue);
}
