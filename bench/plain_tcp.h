/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What one plain TCP socket reaches: the ceiling that a transport is held against.
 *
 * A good plain program and nothing else: blocking reads and writes of 128 KiB from and into one
 * buffer that stays in the cache, as iperf3 does, buffers that the kernel sizes, TCP_NODELAY. No
 * tensors, no checks. The server runs it on a port of its own, one thread for each
 * connection.
 *
 * A client begins with 32 bytes, numbers little-endian:
 *   0 magic[8] "HAULTCP1"  8 u8 mode  9 u8 poll  10 u16 reserved  12 u32 ping size
 *   16 congestion[16], ends in a NUL
 * and the server answers with 4 bytes: 0, or the errno of what it could not do.
 */
#ifndef BENCH_PLAIN_TCP_H
#define BENCH_PLAIN_TCP_H

#include <stdbool.h>
#include <stdint.h>

#include "histogram.h"
#include "meter.h"

#define PLAIN_PING_MAX (1u << 20)
#define PLAIN_CONGESTION_MAX 16

enum plain_mode {
	PLAIN_SINK = 1,   /* the client sends */
	PLAIN_SOURCE = 2, /* the server sends */
	PLAIN_PINGS = 3,
};

struct plain_server;

/*
 * Serve on host:port from a thread of its own; host "*" is every address, port 0 a free one.
 * Signals stay with the caller's threads. Returns 0 or a negative errno, with a sentence in `why`.
 */
int plain_server_open(const char *host, uint16_t port, struct plain_server **server, char *why,
		      size_t room);
uint16_t plain_server_port(const struct plain_server *server);
/* Connections that are still served are cut. NULL is allowed. */
void plain_server_close(struct plain_server *server);

struct plain_request {
	const char *host;
	uint16_t port;
	const char *congestion; /* of the side that sends, both sides for pings */
	enum plain_mode mode;
	bool poll;
	uint32_t ping_size;
	uint64_t begin, end;     /* the window, on the clock of bench_now() */
	uint64_t enough;         /* pings; 0 is without a limit */
	struct meter_live *live; /* may be NULL */
};

/* What the kernel says of the socket that sends (TCP_INFO), for the window. */
struct plain_path {
	double round_trip_us; /* smoothed, at the end; with what waits in queues */
	double least_round_trip_us;
	double sent, again; /* bytes; of these, sent once more */
	/* Seconds: with something to send; of these, kept back by the receiver's window, and by the
	 * sender's buffer. */
	double busy, window_limited, buffer_limited;
	double mtu; /* of the path, bytes */
	bool same_host;
};

struct plain_result {
	double bytes, seconds; /* inside the window: acknowledged, or received */
	double all_bytes;
	struct plain_path path; /* PLAIN_SINK only */
	struct histogram times; /* of pings */
};

/*
 * Make one connection and measure. 0, or a negative errno with a sentence in `why`.
 */
int plain_measure(const struct plain_request *request, struct plain_result *result, char *why,
		  size_t room);

#endif
