/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The traces that tensorhaul writes, as haul-trace reads them: one event in each line. Times are
 * microseconds of the clock of the host that wrote the file.
 */
#ifndef BENCH_TRACE_FILE_H
#define BENCH_TRACE_FILE_H

#include <cjson/cJSON.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>

#define TRACE_PEER_MAX 128

/* What a tensor is called on both sides: the receiver's slot. */
struct tensor_name {
	uint64_t link, slot;
	bool to_acceptor;
};

/* A send or a receive. */
struct tensor {
	struct tensor_name name;
	bool send;
	int result;
	double bytes;
	double begin, end;
	double wait, checksum, move, copy, kernel, complete; /* copy and kernel lie within move */
	char peer[TRACE_PEER_MAX];
};

struct share {
	struct tensor_name name;
	bool out;
	double begin;
	double thread;
};

/* The peer's clock minus the file's. */
struct clock_sample {
	uint64_t link;
	double at, offset, uncertainty;
};

/* Spans of one name. */
struct span_sum {
	char *name;
	double count, total, bytes;
};

/* How the file's times get onto the common clock: t + offset + drift * (t - from). */
struct alignment {
	bool known;
	double offset, drift, from;
	double uncertainty;
};

struct trace_file {
	const char *path;
	char *program, *host, *spec;
	unsigned processes; /* more than one: merged already */
	uint64_t *links;
	struct tensor *tensors;
	struct share *shares;
	struct clock_sample *clocks;
	struct span_sum *spans;
	size_t link_count, tensor_count, share_count, clock_count, span_count;
	size_t link_room, tensor_room, share_room, clock_room, span_room;
	double first, last; /* of its tensors and spans */
	double written, lost;
	bool whole; /* the context was closed, and its last events are there */
	struct alignment alignment;
};

/* 0, or a negative errno and in `why` what is wrong. trace_file_free() is due in either case. */
int trace_file_read(struct trace_file *file, const char *path, char *why, size_t room);
void trace_file_free(struct trace_file *file);

/*
 * Hand each event to `take`, which may change it. What the end of a file that was cut off has of an
 * event is left out, and *whole is false then. `take` returns NULL, or what is wrong with the
 * event.
 */
typedef const char *trace_event_function(void *user, cJSON *event);
int trace_file_events(const char *path, trace_event_function *take, void *user, bool *whole,
		      char *why, size_t room);

/* For qsort() and bsearch(). */
int tensor_name_compare(const struct tensor_name *left, const struct tensor_name *right);

/* A time of the file on the common clock. */
double trace_file_time(const struct trace_file *file, double time);

/*
 * Lay the files over each other: each gets its alignment to the first one. False, and in `why`
 * which file and for what reason, when that can't be.
 */
bool trace_align(struct trace_file *files, size_t count, char *why, size_t room);

/* Write all into one trace. 0, or a negative errno with `why`. */
int trace_merge(const struct trace_file *files, size_t count, const char *path, char *why,
		size_t room);

/* What the files say: tables, and the same as JSON. */
void trace_summary_print(const struct trace_file *files, size_t count, FILE *out);
cJSON *trace_summary_json(const struct trace_file *files, size_t count);

#endif
