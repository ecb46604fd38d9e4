/* SPDX-License-Identifier: Apache-2.0 */
/*
 * grpc_raw, in parts:
 *
 *   grpc_raw          the command line, and what both sides share
 *   grpc_raw_server   takes messages and throws them away
 *   grpc_raw_client   keeps calls in flight over channels, and measures
 *   grpc_raw_report   the table and the JSON
 *
 * gRPC's C core and nothing above it: unary calls, byte buffers, completion queues of the kind
 * NEXT. Nothing of tensorhaul moves a byte here.
 *
 * The methods: DISCARD takes a message of any size and answers with the server's response; USAGE
 * takes an empty one and answers with a JSON text, see struct raw_usage.
 */
#ifndef BENCH_GRPC_RAW_H
#define BENCH_GRPC_RAW_H

#include <grpc/grpc.h>
#include <stdbool.h>
#include <stdint.h>

#include "bench_common.h"
#include "meter.h"

#define RAW_DEFAULT_PORT "7413"
#define RAW_DISCARD "/tensorhaul.GrpcRaw/Discard"
#define RAW_USAGE "/tensorhaul.GrpcRaw/Usage"

#define RAW_CHANNELS_MAX 1024
#define RAW_QUEUES_MAX 256
#define RAW_CONCURRENCY_MAX 65536
/* What fits into gRPC's frame around a message, whose length has 32 bits. */
#define RAW_MESSAGE_MAX UINT32_MAX

struct raw_options {
	bool server;
	char host[256]; /* without brackets; the server's "*" is every address */
	uint16_t port;
	unsigned server_threads, completion_queues, channels, concurrency;
	uint64_t message_size, response_size, total;
	bool response_given; /* --response-size */
	double seconds, warmup, patience;
	bool keep_memory; /* freed memory stays with the process */
	uint64_t memory;  /* with it: bytes that the server touches first */
	const char *json;
};

/* "host:port" as gRPC wants it; free() it. */
char *raw_address(const char *host, uint16_t port);
/* How malloc() was set: the value of --allocator, and in words. */
const char *raw_allocator_name(bool keep_memory);
const char *raw_allocator_text(bool keep_memory);
/* A slice that stands for memory of the program's; an empty one has none. */
grpc_byte_buffer *raw_message(const void *bytes, size_t length);

/* What the server says about itself: sums since its start. */
struct raw_usage {
	struct bench_usage cpu;
	double messages, bytes; /* that it threw away */
	double response_size;
	double threads, completion_queues;
	bool keep_memory;
};

/* Each side runs from here to its end and returns the program's exit status. */
int raw_serve(const struct raw_options *options);
int raw_measure(const struct raw_options *options);

struct raw_result {
	struct meter meter; /* of messages; `begin` and `end` are the measured window */
	int sockets; /* to the server, of this process; negative when they can't be counted */
	struct bench_usage client, server;
	struct raw_usage service; /* the server's, at the end */
};

/* Prints the table, and writes the JSON that was asked for. False after a complaint. */
bool raw_report(const struct raw_options *options, const struct raw_result *result);

#endif
