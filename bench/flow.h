/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A flow keeps a fixed number of tensors moving in one direction over one endpoint, each from or
 * into a buffer of its own. Both programs are made of flows: a stream has one that sends on one
 * side and one that receives on the other, pings have one that pings and one that echoes.
 *
 * The cookie of each operation of the programs is a struct operation: whoever calls haul_poll()
 * hands completions to operation_done() and need not know what they belong to.
 */
#ifndef BENCH_FLOW_H
#define BENCH_FLOW_H

#include <stdbool.h>
#include <tensorhaul/haul.h>

#include "meter.h"
#include "protocol.h"

struct operation {
	void (*done)(struct operation *operation, const struct haul_completion *completion,
		     uint64_t now);
	void *owner;
};

static inline void operation_done(const struct haul_completion *completion, uint64_t now)
{
	struct operation *operation = completion->cookie;

	operation->done(operation, completion, now);
}

/* What went wrong, in the library's words: the detail, or the error's name without one. */
static inline const char *failure_text(int error, const char *detail)
{
	return detail && detail[0] ? detail : haul_strerror(error);
}

enum flow_role {
	FLOW_SENDS,
	FLOW_RECEIVES,
	FLOW_PINGS,
	FLOW_ECHOES,
};

struct flow_settings {
	enum flow_role role;
	uint64_t size;
	uint32_t concurrency;
	uint32_t number;
	uint32_t seed;
	bool verify;
	struct meter *meter; /* NULL: nobody measures here */
	/*
	 * 0: as many as there are buffers are in flight all the time. Otherwise one tensor or ping
	 * is due every so many nanoseconds, and its time counts from then, also when it has to
	 * wait for a buffer. The first one is due so long after the start.
	 */
	double interval_ns, first_due_ns;
};

struct flow_slot;

struct flow {
	struct flow_settings settings;
	haul_context *context;
	haul_endpoint *endpoint;
	haul_region *region;
	struct flow_slot *slots;
	uint32_t slot_count;
	struct flow_slot *idle; /* buffers that wait for the next tensor that is due */
	uint64_t paced_from;    /* bench_now() of the start */
	double due;             /* the next tensor: nanoseconds since then */
	int64_t shape[1], companion_shape[1];
	uint64_t next_sequence;
	uint64_t outstanding; /* operations */
	bool stopped, cancelled;
	/* What was done so far. */
	uint64_t tensors, verified, mismatches;
	int error; /* the first one, or 0 */
	char detail[256];
};

/* The bytes of memory that a flow will take; UINT64_MAX when that overflows. */
uint64_t flow_memory(const struct flow_settings *settings);

/*
 * Make the buffers. On failure flow->detail says what failed and nothing is left behind.
 */
int flow_open(struct flow *flow, haul_context *context, haul_endpoint *endpoint,
	      const struct flow_settings *settings);
/* Start all tensors; errors are found in flow->error. */
void flow_start(struct flow *flow);
/* With interval_ns: start what is due. The next tensor is due at flow_due(), UINT64_MAX: never. */
void flow_pace(struct flow *flow, uint64_t now);
uint64_t flow_due(const struct flow *flow);
/* Start no more; what is in flight ends by itself. */
void flow_stop(struct flow *flow);
/* Start no more, and give up what waits for the peer; flow->outstanding tells when it is over. */
void flow_cancel(struct flow *flow);
/* The endpoint was disconnected, which gives up everything. */
void flow_abandon(struct flow *flow);
/* How many tensors that were started, or due, before `time` are not through. */
uint64_t flow_started_before(const struct flow *flow, uint64_t time);
/* Nothing may be outstanding. A flow that was not opened, all zero, is allowed. */
void flow_close(struct flow *flow);

#endif
