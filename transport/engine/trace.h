/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The recorder of the option trace=FILE: records go into a ring that is allocated at open, and a
 * thread writes them out as a Chrome trace. Whoever records never waits for the file: what finds no
 * room is counted and dropped.
 */
#ifndef TENSORHAUL_TRACE_H
#define TENSORHAUL_TRACE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* Of a longer key, address or name only this much is kept. */
#define TRACE_KEY_MAX 80
#define TRACE_ADDRESS_MAX 128
#define TRACE_NAME_MAX 64

/* When something happened to an operation, by haul_clock(); 0: it did not. */
enum trace_point {
	TRACE_CALLED,  /* haul_send(), haul_recv() */
	TRACE_POSTED,  /* receive: READY was said */
	TRACE_MET,     /* send: met a receive; receive: the first of its tensor was seen */
	TRACE_MOVING,  /* send: its checksum is computed, the backend gets it */
	TRACE_ARRIVED, /* receive: every byte is in place, its checksum is begun */
	TRACE_DONE,    /* send: PLACED came; receive: it was said. Or it failed */
	TRACE_POINTS,
};

struct trace_link {
	char address[TRACE_ADDRESS_MAX];
};

/* The peer's clock minus ours, seen at `at`. */
struct trace_clock {
	uint64_t at;
	int64_t offset;
	uint64_t uncertainty;
};

struct trace_operation {
	uint64_t at[TRACE_POINTS];
	uint64_t handed; /* haul_poll() gave the completion away */
	uint64_t bytes, slot;
	uint64_t copied, kernel; /* ns in copies and in system calls, as far as it was seen */
	int32_t result;
	bool send;
	uint8_t key_length; /* may be more than TRACE_KEY_MAX */
	uint8_t key[TRACE_KEY_MAX];
};

struct trace_share {
	uint64_t begin, end, bytes, slot, copied, kernel;
	uint32_t lane;
	bool out;
};

struct trace_span {
	uint64_t begin, end, bytes;
	uint32_t thread;
	char name[TRACE_NAME_MAX];
};

enum trace_kind {
	TRACE_LINK,
	TRACE_CLOCK,
	TRACE_OPERATION,
	TRACE_SHARE,
	TRACE_SPAN,
};

struct trace_record {
	enum trace_kind kind;
	uint32_t link;    /* a number within this trace, from 1; 0: none */
	uint64_t link_id; /* the same on both sides */
	bool connector;   /* this side connected: with the slot, it names a tensor on both sides */
	union {
		struct trace_link to;
		struct trace_clock clock;
		struct trace_operation operation;
		struct trace_share share;
		struct trace_span span;
	};
};

/* ---- The recorder ------------------------------------------------------ */

struct haul_trace;

/*
 * Begin a trace. A file that another trace is being written to is left alone: `path`.2, `path`.3,
 * ... is taken then. `bytes` is the room for records that are not written yet. 0, or a negative
 * errno and in `why` what is wrong with the file.
 */
int trace_open(const char *path, uint64_t bytes, const char *spec, uint64_t incarnation,
	       struct haul_trace **trace, char *why, size_t room);

/* From any thread; never waits for the file. */
void trace_record(struct haul_trace *trace, const struct trace_record *record);

/* Write out what is left, and end the file; NULL is allowed. */
void trace_close(struct haul_trace *trace);

/* In a forked child: only the descriptor is given back. */
void trace_close_in_child(struct haul_trace *trace);

/* How many records were lost so far, for want of room in the ring or in the file. */
uint64_t trace_lost(struct haul_trace *trace);

/* ---- Records as JSON (trace_json.c) ------------------------------------ */

/* No record, and no head or end, needs more. */
#define TRACE_JSON_MAX 8192

struct trace_json;

struct trace_json *trace_json_new(void);
void trace_json_free(struct trace_json *json);

/*
 * These write to `out`, which has room for TRACE_JSON_MAX bytes, and return the length. Each event
 * is one line; the comma and the newline come before it, so that a file that was cut off behind any
 * of them lacks nothing but the bracket.
 */
size_t trace_json_head(char *out, const char *spec, uint64_t incarnation);
size_t trace_json_record(struct trace_json *json, const struct trace_record *record, char *out);
size_t trace_json_lost(char *out, uint64_t at, uint64_t lost);
size_t trace_json_end(char *out, uint64_t written, uint64_t lost);

#endif
