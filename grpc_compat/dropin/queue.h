/* SPDX-License-Identifier: Apache-2.0 */
/* The program's completion queues. */
#ifndef TENSORHAUL_DROPIN_QUEUE_H
#define TENSORHAUL_DROPIN_QUEUE_H

#include <sys/queue.h>

#include "core.h"
#include "layer.h"

struct batch;

/*
 * What the layer knows of one queue. A batch whose event was taken from gRPC's queue and is held
 * back is not counted by gRPC any more, so the program's shutdown of the queue waits here until no
 * batch of the layer is left on it.
 */
struct queue {
	grpc_completion_queue *core;
	grpc_cq_completion_type type;
	unsigned batches;   /* of the layer; under the lock of queue.c, like `shutdown` */
	bool shutdown;      /* wished by the program, and not told to gRPC yet */
	atomic_uint plucks; /* batches that are found by their tag: on PLUCK queues */
	struct queue *next;
};

void queue_created(grpc_completion_queue *core_queue, grpc_cq_completion_type type);
/* NULL for a queue that was made behind the layer's back. */
struct queue *queue_find(grpc_completion_queue *core_queue);
void queue_destroyed(grpc_completion_queue *core_queue);

/* Count a batch on a queue; and no more, which may be the end of the queue. */
void queue_enter(struct queue *queue);
void queue_leave(struct queue *queue);

#endif
