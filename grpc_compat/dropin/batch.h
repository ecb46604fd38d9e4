/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A batch of operations that the program has started, or a request for a call, whose event the
 * layer looks at before the program sees it.
 */
#ifndef TENSORHAUL_DROPIN_BATCH_H
#define TENSORHAUL_DROPIN_BATCH_H

#include "queue.h"

struct call;

/* What a batch still waits for after its event has come. */
#define BATCH_WAITS_RECEIVE 1u
#define BATCH_WAITS_SEND 2u
#define BATCH_WAITS_TURN 4u /* a status: until the message before it is complete */

/* Where gRPC writes what it tells of a new call; a request's. */
struct batch_request {
	grpc_call **call;
	grpc_call_details *details; /* or else `deadline` */
	gpr_timespec *deadline;
	grpc_metadata_array *metadata;
	grpc_completion_queue *queue; /* of the new call */
};

struct batch {
	/* First: on a CALLBACK queue the batch itself is gRPC's tag. */
	grpc_completion_queue_functor functor;
	void *tag; /* the program's */
	struct queue *queue;
	struct call *call; /* a request's: NULL until there is one */
	bool is_request;
	struct batch_request request;

	/* Where gRPC writes its results; NULL when the batch doesn't ask for them. */
	grpc_byte_buffer **message;
	grpc_status_code *status;
	grpc_slice *status_details;
	int *cancelled;
	bool sends_aside, sends_status;

	unsigned waits;
	bool success;        /* what the program will see */
	atomic_bool arrived; /* gRPC's event has come */
	atomic_bool ready;   /* posted again: the next event with this tag is the program's */
	struct batch *next;
};

/* Counted on its queue. NULL without memory. */
struct batch *batch_new(struct queue *queue, void *tag);
void batch_free(struct batch *batch);

/* The tag that gRPC gets: the program's own on PLUCK queues, since it is plucked by it. */
void *batch_core_tag(struct batch *batch);

/* The batch that gRPC's tag stands for, or NULL when the tag is the program's. */
struct batch *batch_of_tag(void *core_tag);
struct batch *batch_of_pluck(grpc_completion_queue *core_queue, void *tag);

/* Start a batch on a call of the layer's: grpc_call_start_batch(). */
grpc_call_error batch_start(struct call *call, const grpc_op *ops, size_t count, void *tag);

/*
 * An event of the batch has come out of its queue. True: it is the program's, with batch->success,
 * and batch_free() is due. False: it is held back, and comes again.
 */
bool batch_event(struct batch *batch, bool success);
/* The same for a request, which see in request.c. */
bool request_event(struct batch *batch, bool success);

/* Write the failure of its call into the status that the program gets. */
void batch_fail_status(struct batch *batch);

/* Put the event of a batch that waits for nothing any more into its queue again. */
void batch_post(struct batch *batch);

#endif
