/* SPDX-License-Identifier: Apache-2.0 */
/* One message on the side path, in either direction. */
#ifndef TENSORHAUL_DROPIN_TRANSFER_H
#define TENSORHAUL_DROPIN_TRANSFER_H

#include "call.h"
#include "pool.h"

struct transfer {
	struct side_operation operation; /* first: the cookie of every piece */
	struct call *call;
	struct batch *batch;        /* a receive's: that waits for it */
	grpc_byte_buffer *message;  /* a send's: holds the slices that leave */
	struct pool_buffer *buffer; /* where a receive arrives, or a send was gathered */
	uint64_t bytes;
	uint64_t placed; /* of a receive; under the call's lock, like all that follows */
	unsigned left;   /* pieces that have not ended */
	unsigned pieces; /* that its connection counts, or 0 */
	int error;       /* the first that a piece ended with */
	TAILQ_ENTRY(transfer) entry;
};

/*
 * Begin to send a message aside: its slices are moved out of the byte buffer, as gRPC does it, and
 * `descriptor` is filled. A negative errno: nothing has happened. The call's lock is held.
 */
int transfer_send(struct call *call, grpc_byte_buffer *message, struct wire_descriptor *descriptor);

/*
 * Begin to receive what the descriptor stands for, for the batch, which then waits for it. A
 * negative errno: nothing has happened. The call's lock is held.
 */
int transfer_receive(struct call *call, struct batch *batch,
		     const struct wire_descriptor *descriptor);

/* Give it up; it still ends by itself. The call's lock is held. */
void transfer_stop(struct transfer *transfer);

/* Whether a batch's writes are far enough for the program to go on. The call's lock is held. */
bool transfer_sends_done(const struct call *call, const struct batch *batch);

/* Tell the peer that this call has ended. */
void transfer_tell_over(struct call *call);

#endif
