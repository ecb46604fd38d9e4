/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What haul-bench-client and haul-bench-server say to each other, over the transport that is
 * measured. Requests and answers are JSON texts in tensors of bytes, with a key for each direction.
 * A client sends one request and takes its answer before it sends the next one.
 *
 *   hello    who is there: the server's spec, its memory limit, the port of its plain TCP side
 *   start    make the buffers of one round and be ready; the tensors' keys end in `number`
 *   usage    the CPU seconds that the server has used so far, the bytes that have arrived from this
 *            client, and the time on the server's clock
 *   finish   the round is over: give the buffers back, tell what arrived
 *
 * Neither side trusts the other: texts are limited in length, every member is checked for
 * its type and range, and a request that is not understood is answered with an error.
 *
 * Round of a stream (throughput, rate, bidirectional): the receiver keeps `concurrency` receives
 * posted, the sender keeps as many sends in flight. The client alone decides when it is over: it
 * stops sending, or receiving, and waits for what is in flight before it says finish.
 * Round of pings (latency): the server sends each ping back as a pong.
 *
 * With verification each tensor has a companion of 16 bytes under a key of its own: its number
 * in the flow and its XXH3 hash. The n-th tensor and the n-th companion belong together.
 */
#ifndef BENCH_PROTOCOL_H
#define BENCH_PROTOCOL_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "bench_common.h"

#define PROTOCOL_VERSION 1
#define PROTOCOL_TEXT_MAX 4096
#define PROTOCOL_REQUEST_KEY "bench.request"
#define PROTOCOL_ANSWER_KEY "bench.answer"

#define PROTOCOL_CONCURRENCY_MAX 65536

enum request_kind {
	REQUEST_HELLO,
	REQUEST_START,
	REQUEST_USAGE,
	REQUEST_FINISH,
};

enum round_kind {
	ROUND_STREAM,
	ROUND_PINGS,
};

/* Seen from the client. */
enum direction {
	DIRECTION_SEND,
	DIRECTION_RECV,
	DIRECTION_BOTH,
};

extern const char *const direction_names[];

/* What `start` asks for. */
struct round_request {
	enum round_kind kind;
	enum direction direction; /* streams only */
	uint32_t number;          /* different for each round of a client */
	uint64_t size;            /* of a tensor, in bytes */
	uint32_t concurrency;
	uint32_t seed;
	bool verify;
	bool poll; /* wait by polling, without sleeping */
};

struct request {
	enum request_kind kind;
	struct round_request round;
};

struct answer {
	char error[256]; /* "" when the request was done */
	struct bench_usage usage;
	/* usage */
	double arrived, clock_s;
	/* hello */
	char spec[1024];
	uint64_t memory;
	uint16_t ceiling_port; /* 0: there is none */
	/* finish */
	uint64_t tensors_received;
	uint64_t verified, mismatches;
	uint64_t chunks_sent, chunks_again;
	bool statistics; /* the two above are known */
};

/* They return the length of the text, without its end, or -ENOSPC. */
int protocol_write_request(const struct request *request, char text[PROTOCOL_TEXT_MAX]);
int protocol_write_answer(const struct answer *answer, char text[PROTOCOL_TEXT_MAX]);

/*
 * Read what a peer sent; the text need not end in a NUL. 0, or -EPROTO with a sentence in `why`
 * that names the member.
 */
int protocol_read_request(const char *text, size_t length, struct request *request, char *why,
			  size_t room);
int protocol_read_answer(const char *text, size_t length, struct answer *answer, char *why,
			 size_t room);

#endif
