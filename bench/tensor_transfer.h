/* SPDX-License-Identifier: Apache-2.0 */
/*
 * tensor_transfer_throughput, in parts:
 *
 *   tensor_transfer_throughput   the command line, and what both jobs share
 *   tensor_transfer_server       a parameter server
 *   tensor_transfer_worker       a worker, which measures
 *
 * Each parameter server has one variable for each worker. In each iteration a worker assigns its
 * own variable to its variable on every server, all at once, and goes on when all have answered.
 *
 * What a worker and a server say to each other, by key:
 *
 *   hello     struct hello, from the worker
 *   answer    a text: empty, or why the server refuses
 *   variable  the tensor, float32; once more than there are iterations: the first one warms up
 *   assigned  int64: nanoseconds that the server spent on the assign, after the tensor had come
 *   finish    nothing; the worker has measured
 *   result    int64: elements of the server's variable that are not what they have to be
 */
#ifndef BENCH_TENSOR_TRANSFER_H
#define BENCH_TENSOR_TRANSFER_H

#include <tensorhaul/haul.h>

#include "bench_common.h"
#include "flow.h"

#define TRANSFER_HOSTS_MAX 256
#define TRANSFER_ANSWER_MAX 256

enum assign {
	ASSIGN_PLACE, /* the tensor arrives in the variable */
	ASSIGN_COPY,  /* it arrives in a buffer, and is copied into the variable */
	ASSIGN_ADD,   /* ... and is added to it */
};

extern const char *const assign_names[];

struct host_list {
	char *text;
	char *hosts[TRANSFER_HOSTS_MAX];
	unsigned count;
};

struct transfer_options {
	bool server;
	unsigned task;
	struct host_list servers, workers;
	uint64_t bytes; /* of a variable */
	uint64_t iterations;
	enum assign assign;
	int timeout_ms;
	int wait_ms; /* of a server, for workers that are missing; 0: for ever */
	const char *transport, *json;
	bool verbose;
};

/* Both sides have to mean the same. */
struct hello {
	int64_t magic, version;
	int64_t worker, workers;
	int64_t server, servers;
	int64_t bytes, iterations, assign;
};

#define HELLO_MAGIC INT64_C(0x7265666e61727474)
#define HELLO_VERSION 1
#define HELLO_WORDS ((int64_t)(sizeof(struct hello) / sizeof(int64_t)))

/* What a worker's variable holds: numbers whose sums float32 has exactly. */
void transfer_fill(float *variable, uint64_t elements, unsigned worker);
/* How many elements are not `times` what transfer_fill() wrote. */
uint64_t transfer_mismatches(const float *variable, uint64_t elements, unsigned worker,
			     uint64_t times);

static inline DLTensor words_tensor(int64_t *words, const int64_t *count)
{
	return haul_tensor(words, (DLDataType){kDLInt, 64, 1}, 1, count);
}

static inline DLTensor bytes_tensor(void *bytes, const int64_t *count)
{
	return haul_tensor(bytes, (DLDataType){kDLUInt, 8, 1}, 1, count);
}

static inline DLTensor variable_tensor(float *variable, const int64_t *elements)
{
	return haul_tensor(variable, (DLDataType){kDLFloat, 32, 1}, 1, elements);
}

/* Each job runs from here to its end; they return the program's exit status. */
int transfer_serve(const struct transfer_options *options, haul_context *context);
int transfer_work(const struct transfer_options *options, haul_context *context);

/* Writes what --json asked for and gives `json` back. False after a complaint. */
bool transfer_write_json(const struct transfer_options *options, cJSON *json);

#endif
