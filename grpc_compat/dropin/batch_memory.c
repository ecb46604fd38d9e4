/* SPDX-License-Identifier: Apache-2.0 */
/* Batches: where they live, and how they are found again by their tags. */
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#include "batch.h"

/*
 * All batches live in one range of addresses, so that a tag of the layer's is told from the
 * program's, which may be any number, without touching what it points to.
 */
#define BATCHES_MAX 262144
#define ARENA_BYTES (BATCHES_MAX * sizeof(struct batch))

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static struct batch *arena;
static size_t used;         /* of the arena, from its start */
static struct batch *spare; /* batches that were given back */

static struct batch *take(void)
{
	struct batch *batch = NULL;

	pthread_mutex_lock(&lock);
	if (!arena) {
		void *memory = mmap(NULL, ARENA_BYTES, PROT_READ | PROT_WRITE,
				    MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);

		if (memory != MAP_FAILED)
			arena = memory;
	}
	if (spare) {
		batch = spare;
		spare = batch->next;
	} else if (arena && used < BATCHES_MAX) {
		batch = &arena[used++];
	}
	pthread_mutex_unlock(&lock);
	return batch;
}

struct batch *batch_of_tag(void *core_tag)
{
	uintptr_t distance = (uintptr_t)core_tag - (uintptr_t)arena;

	return arena && distance < ARENA_BYTES ? core_tag : NULL;
}

/* ---- Batches on PLUCK queues --------------------------------------------- */

#define BUCKETS 256

static struct bucket {
	pthread_mutex_t lock;
	struct batch *first;
} plucks[BUCKETS] = {[0 ... BUCKETS - 1] = {.lock = PTHREAD_MUTEX_INITIALIZER}};

static struct bucket *bucket_of(const void *tag)
{
	return &plucks[((uintptr_t)tag >> 4 ^ (uintptr_t)tag) % BUCKETS];
}

static void add_pluck(struct batch *batch)
{
	struct bucket *bucket = bucket_of(batch->tag);
	struct batch **place;

	pthread_mutex_lock(&bucket->lock);
	for (place = &bucket->first; *place; place = &(*place)->next)
		;
	*place = batch;
	pthread_mutex_unlock(&bucket->lock);
}

static void remove_pluck(struct batch *batch)
{
	struct bucket *bucket = bucket_of(batch->tag);
	struct batch **place;

	pthread_mutex_lock(&bucket->lock);
	for (place = &bucket->first; *place != batch; place = &(*place)->next)
		;
	*place = batch->next;
	pthread_mutex_unlock(&bucket->lock);
}

struct batch *batch_of_pluck(grpc_completion_queue *core_queue, void *tag)
{
	struct bucket *bucket = bucket_of(tag);
	struct batch *batch;

	if (!layer_used())
		return NULL;
	pthread_mutex_lock(&bucket->lock);
	for (batch = bucket->first; batch; batch = batch->next) {
		if (batch->tag == tag && batch->queue->core == core_queue &&
		    (!batch->arrived || batch->ready))
			break;
	}
	pthread_mutex_unlock(&bucket->lock);
	return batch;
}

/* ---- Life ---------------------------------------------------------------- */

/* The functor of a batch on a CALLBACK queue: gRPC runs it, and it the program's. */
static void run(grpc_completion_queue_functor *functor, int success)
{
	struct batch *batch = (struct batch *)functor;
	grpc_completion_queue_functor *program = batch->tag;

	if (!batch_event(batch, success))
		return;
	success = batch->success;
	batch_free(batch);
	program->functor_run(program, success);
}

struct batch *batch_new(struct queue *queue, void *tag)
{
	struct batch *batch = take();

	if (!batch)
		return NULL;
	memset(batch, 0, sizeof(*batch));
	batch->tag = tag;
	batch->queue = queue;
	queue_enter(queue);
	if (queue->type == GRPC_CQ_PLUCK) {
		add_pluck(batch);
	} else if (queue->type == GRPC_CQ_CALLBACK) {
		batch->functor.functor_run =
			run; /* not inlineable: never on the side path's thread */
	}
	return batch;
}

void batch_free(struct batch *batch)
{
	struct queue *queue = batch->queue;

	if (queue->type == GRPC_CQ_PLUCK)
		remove_pluck(batch);
	pthread_mutex_lock(&lock);
	batch->next = spare;
	spare = batch;
	pthread_mutex_unlock(&lock);
	queue_leave(queue);
}

void *batch_core_tag(struct batch *batch)
{
	return batch->queue->type == GRPC_CQ_PLUCK ? batch->tag : batch;
}

/* ---- Events -------------------------------------------------------------- */

grpc_event grpc_completion_queue_next(grpc_completion_queue *core_queue, gpr_timespec deadline,
				      void *reserved)
{
	grpc_event event;
	struct batch *batch;

	do {
		event = core()->grpc_completion_queue_next(core_queue, deadline, reserved);
		batch = event.type == GRPC_OP_COMPLETE ? batch_of_tag(event.tag) : NULL;
	} while (batch && !batch_event(batch, event.success));
	if (batch) {
		event.tag = batch->tag;
		event.success = batch->success;
		batch_free(batch);
	}
	return event;
}

grpc_event grpc_completion_queue_pluck(grpc_completion_queue *core_queue, void *tag,
				       gpr_timespec deadline, void *reserved)
{
	grpc_event event;
	struct batch *batch;

	do {
		event = core()->grpc_completion_queue_pluck(core_queue, tag, deadline, reserved);
		batch = event.type == GRPC_OP_COMPLETE ? batch_of_pluck(core_queue, tag) : NULL;
	} while (batch && !batch_event(batch, event.success));
	if (batch) {
		event.success = batch->success;
		batch_free(batch);
	}
	return event;
}

int grpc_completion_queue_thread_local_cache_flush(grpc_completion_queue *core_queue, void **tag,
						   int *ok)
{
	int found = core()->grpc_completion_queue_thread_local_cache_flush(core_queue, tag, ok);
	struct batch *batch = found ? batch_of_tag(*tag) : NULL;

	if (!batch)
		return found;
	if (!batch_event(batch, *ok))
		return 0;
	*tag = batch->tag;
	*ok = batch->success;
	batch_free(batch);
	return found;
}
