/* SPDX-License-Identifier: Apache-2.0 */
/* A worker of haul-bench-client from within: its endpoints, and the round that they are in. */
#ifndef TENSORHAUL_BENCH_CLIENT_WORKER_H
#define TENSORHAUL_BENCH_CLIENT_WORKER_H

#include "client.h"
#include "flow.h"

/* How many bytes had arrived at a moment, by the receiver's count and clock. */
struct sample {
	double bytes, at_s;
};

/* One endpoint with its control texts and the flows of the round. */
struct link {
	haul_endpoint *endpoint;
	struct flow flows[2]; /* sends or pings, receives */
	bool open[2];
	struct haul_statistics before;  /* size is 0 when they are not known */
	struct sample begin[2], end[2]; /* of the window */
};

enum { FLOW_OUT, FLOW_IN };

struct worker {
	const struct client_options *options;
	unsigned number;
	struct meter_live *live;
	haul_context *context;
	haul_region *region; /* a request, and behind it an answer */
	char *request_text, *answer_text;
	struct link *links;
	struct meter meters[2]; /* as the flows */
	uint32_t round;
	uint16_t ceiling_port;
	uint64_t moved_at; /* when something completed last */
	enum { BEFORE_WINDOW, IN_WINDOW, BEHIND_WINDOW } phase;
	bool lost;
	char lost_detail[256];
};

/* client_worker.c */
bool worker_ask(struct worker *worker, struct link *link, const struct request *request,
		struct answer *answer, struct result *result);
void worker_close_flows(struct worker *worker);

/* client_measurement.c: the flows are open */
bool measurement_run(struct worker *worker, const struct command *command, struct result *result);
void measurement_give_up(struct worker *worker); /* the endpoints and flows are closed */

#endif
