/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What the test programs for gRPC have in common: plain gRPC code, in straight lines, over each
 * kind of completion queue. Nothing here knows tensorhaul.
 */
#ifndef TENSORHAUL_TEST_GRPC_STEPS_H
#define TENSORHAUL_TEST_GRPC_STEPS_H

#include <grpc/byte_buffer.h>
#include <grpc/grpc.h>
#include <pthread.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* A completion queue of one kind, and a wait for one batch on it. */
struct steps_queue {
	grpc_completion_queue *queue;
	grpc_cq_completion_type type;
	/* CALLBACK: what the functors tell. */
	pthread_mutex_t lock;
	pthread_cond_t changed;
	bool is_shut;
	grpc_completion_queue_functor shut;
};

/* One batch that was started and not waited for. */
struct steps_batch {
	grpc_completion_queue_functor functor; /* first */
	struct steps_queue *queue;
	bool ended, success;
};

void steps_queue_open(struct steps_queue *queue, grpc_cq_completion_type type);
/* Shut down, drain, destroy. */
void steps_queue_close(struct steps_queue *queue);

grpc_call_error steps_start(struct steps_batch *batch, struct steps_queue *queue, grpc_call *call,
			    const grpc_op *ops, size_t count);
/* True when the batch was successful. Only for the batch that will end next on NEXT queues. */
bool steps_wait(struct steps_batch *batch);
/* Start and wait. */
bool steps_run(struct steps_queue *queue, grpc_call *call, const grpc_op *ops, size_t count);

/* A message of `bytes` in that many slices, whose contents follow from the seed. */
grpc_byte_buffer *steps_message(uint64_t seed, size_t bytes, unsigned slices);
/* Whether a message is that one, so many times in a row. */
#define STEPS_REPEATS 64
bool steps_is(grpc_byte_buffer *message, uint64_t seed, size_t bytes, unsigned times);

grpc_cq_completion_type steps_queue_type(const char *name);

#endif
