/* SPDX-License-Identifier: Apache-2.0 */
/* What socket_loops.c (options, sockets, report) and socket_drivers.c (moving) share. */
#ifndef SOCKET_LOOPS_H
#define SOCKET_LOOPS_H

#include <liburing.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum { KIB = 1024, MAX_STREAMS = 256 };
enum driver { BLOCKING, EPOLL, URING, URING_DEFER };
enum sending { SEND, ZEROCOPY, ZEROCOPY_FIXED, SPLICE };

/* The command line. */
struct settings {
	int listen, streams, seconds, ping, spin, check, huge, wait_all;
	int piece, buffer, pipe, send_buffer, recv_buffer, recv_low, notsent_low; /* KiB */
	char *connect, *congestion, *driver_name, *sending_name;
	enum driver driver;
	enum sending sending;
};

extern struct settings set;

struct stream {
	int socket;
	int pipe[2];
	size_t in_pipe;    /* bytes that the pipe holds and the socket has not taken */
	unsigned char *at; /* the rest of the piece in hand */
	size_t left;
};

/*
 * One end of the transfer. Pieces of the buffer go to whichever stream is ready, as the tcp
 * backend deals its chunks.
 */
struct side {
	bool sends;
	unsigned char *buffer;
	size_t length, next;
	size_t recv_flags;
	int open; /* streams that still have something to do */
	int epoll;
	struct io_uring ring;
	struct stream streams[MAX_STREAMS];
	uint64_t bytes, bytes_in_time, calls, copied;
	double begin, end;
};

static inline bool with_uring(void)
{
	return set.driver >= URING;
}

/* The sockets of `side` are there: get ready to move bytes over them. */
void prepare_driver(struct side *side);

/* Move bytes until the time is up, or until the peer has closed every stream. */
void drive(struct side *side);

/* Round trips of 64 bytes over the first stream: one side pings, the other echoes. */
void ping(struct side *side);
void echo(struct side *side);

/* MSG_ZEROCOPY tells on the error queue which sends are done, and whether it copied after all. */
void drain_notices(struct side *side, struct stream *stream);

#endif
