/* SPDX-License-Identifier: Apache-2.0 */
/* The side path: one tensorhaul context of the process, its thread, its listener, its connections.
 */
#ifndef TENSORHAUL_DROPIN_SIDE_H
#define TENSORHAUL_DROPIN_SIDE_H

#include <sys/queue.h>

#include "wire.h"

/*
 * The cookie of every operation on the side path. `done` runs on the side path's thread, which
 * must not wait there for anything.
 */
struct side_operation {
	void (*done)(struct side_operation *operation, const struct haul_completion *completion);
};

#define SIDE_TARGET_ROOM (2 * WIRE_ADDRESS_ROOM)

/*
 * Pieces of one connection that may be in flight. A receiver fails what is beyond, or a peer that
 * sends descriptors and no bytes would use up memory and the transport's slots (its option
 * `slots`). An honest peer stays below: its count goes down after that of the receiver.
 */
#define SIDE_PIECES_OUT 4096
#define SIDE_PIECES_IN (2 * SIDE_PIECES_OUT)

/* One side connection, between a client's and a server's process. Lives until the peer is lost. */
struct side_link {
	pthread_rwlock_t endpoint_lock;  /* held for reading by those who use the endpoint */
	haul_endpoint *endpoint;         /* NULL once it is lost */
	char address[WIRE_ADDRESS_ROOM]; /* the peer's */
	char target[SIDE_TARGET_ROOM];   /* not accepted: the address that was asked for */
	atomic_uint references;
	atomic_bool lost;
	_Atomic uint64_t next_number; /* of pieces that are sent */
	atomic_uint pieces_out;       /* on their way, or waiting to be asked for */
	atomic_uint pieces_in;        /* asked for, and not there yet */
	bool accepted;                /* this process is the server */
	bool shown;                   /* accepted: a session's secret was shown on it */
	unsigned sessions;            /* that were shown and live; under session_lock */
	struct layer_id process;      /* not accepted: the server's */
	TAILQ_ENTRY(side_link) entry; /* in one of two lists of side.c */
};

/* Open the context and start its thread, once. 0 or a negative errno, and `why`. */
int side_open(char *why, size_t room);
haul_context *side_context(void);

/* This process, as peers know it. */
const struct layer_id *side_process(void);
/* The transport's name, cut to WIRE_NAME_ROOM with its zeros. */
void side_transport(char *name);

/* Listen once; `address` is what an answer says, and `why` a sentence. 0 or a negative errno. */
int side_listen(char *address, char *why, size_t room);

/*
 * The connection to a server's process at that address, made when there is none. Waits; the caller
 * puts it back. A server can claim to be another's process, but not be at its address.
 */
int side_connect(const struct layer_id *process, const char *address, struct side_link **link);

void side_link_get(struct side_link *link);
void side_link_put(struct side_link *link);

/* haul_send() and haul_recv() on a connection; -ENOTCONN once it is lost. */
int side_send(struct side_link *link, struct haul_key key, const DLTensor *tensor,
	      haul_region *region, const struct haul_op *op);
int side_recv(struct side_link *link, struct haul_key key, DLTensor *tensor, haul_region *region,
	      const struct haul_op *op);

/* Send a note; when that fails, the connection is lost anyway. */
void side_note(struct side_link *link, const struct wire_note *note);

/* Bytes as a tensor. `length` must live until haul_send() or haul_recv() has returned. */
static inline DLTensor side_tensor(void *data, const int64_t *length)
{
	return haul_tensor(data, (DLDataType){kDLUInt, 8, 1}, 1, length);
}

#endif
