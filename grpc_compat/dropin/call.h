/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A call whose messages may go aside: a client's on a channel with a session, or a server's that
 * came with a mark. Other calls are not known here, and pass through untouched.
 */
#ifndef TENSORHAUL_DROPIN_CALL_H
#define TENSORHAUL_DROPIN_CALL_H

#include "batch.h"
#include "session.h"

struct transfer;

/* Why a call ends here and not in gRPC. */
struct call_failure {
	grpc_status_code status; /* GRPC_STATUS_OK: none */
	const char *text;        /* static */
};

struct call {
	grpc_call *core;
	struct session *session; /* NULL: the server does not know the mark's session */
	uint64_t number;         /* within the session */
	struct wire_mark mark;
	struct queue *queue;
	uint64_t deadline;       /* by haul_clock(); UINT64_MAX: none */
	struct answers *answers; /* client: its method's, within the session */
	bool server;
	atomic_uint references;

	pthread_mutex_t lock;
	/* Under the lock: */
	unsigned program_references; /* 0: the program has let go of it */
	unsigned batches;            /* that hold a reference on `core` for the layer */
	bool marked;       /* the initial metadata has left with the mark, or came with it */
	bool stays_inline; /* compression was asked for */
	bool final;        /* the status (server: the close) has arrived */
	bool sent_status;
	bool given_up;  /* by either side: bytes that have not come may never come */
	bool owes_over; /* the peer has to be told that nothing of it goes on */
	bool told_over; /* one of the two has told the other */
	unsigned reads; /* batches that have asked for a message, whose event has not come */
	struct call_failure failure;
	uint64_t under_way; /* bytes that were sent aside and are not placed */
	TAILQ_HEAD(, transfer) sends;
	struct transfer *receive;
	struct batch *waiting_send;   /* held back until enough of `sends` has ended */
	struct batch *waiting_status; /* held back until `receive` has ended */

	TAILQ_ENTRY(call) entry; /* among its session's */
	struct call *next;       /* in the table */
};

/* What is left to do when the lock of a call is free again. */
struct aftermath {
	struct batch *post[3]; /* batches that wait for nothing any more */
	unsigned posts;
	bool fail; /* tell gRPC of the call's failure */
};

/*
 * Known from here on, with a reference for the caller; takes over that on `session`. A server's
 * came with a mark; a client's (mark == NULL) has a method, by any number that stands for it.
 */
struct call *call_new(grpc_call *core_call, struct session *session, struct queue *queue,
		      gpr_timespec deadline, const struct wire_mark *mark, uint64_t method);
struct call *call_find(grpc_call *core_call);
void call_get(struct call *call);
void call_put(struct call *call);

/* The peer will not read any more of it. */
void call_over(struct call *call);

/* Give up what is on its way out, or in both directions. The lock is held. */
void call_stop_sends(struct call *call);
void call_give_up(struct call *call);

/*
 * Tell the peer, when it has to be told and all is read that it may have sent before: gRPC's own
 * word for it is an event that the peer's program may not look at before it has its bytes. The lock
 * is held.
 */
void call_settle(struct call *call);

/* End the call with a status of the layer's. The lock is held. */
void call_fail(struct call *call, grpc_status_code status, const char *text,
	       struct aftermath *aftermath);

/* The same for one whose bytes were given up: since it was cancelled, or its time was over. */
void call_fail_given_up(struct call *call, struct aftermath *aftermath);

/* Without the lock. */
void call_follow(struct call *call, const struct aftermath *aftermath);

/*
 * The message of a batch has come and may be a descriptor: then it is taken away, and the batch
 * waits for what it stands for, or the call has failed. The lock is held. False: it is the
 * program's.
 */
bool batch_take_descriptor(struct batch *batch, struct aftermath *aftermath);

/* How long an operation of this call may take, for struct haul_op. */
uint64_t call_timeout_ms(const struct call *call);
bool call_expired(const struct call *call);

#endif
