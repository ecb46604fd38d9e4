/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Flows over one link, in simulated time: the real loss detection, receiver's memory, congestion
 * control and pacing on both ends of a link that has a rate, a length, a buffer and faults. Times
 * are ns, sizes bytes. The same configuration gives the same run, bit by bit.
 */
#ifndef TENSORHAUL_TESTS_DPDK_SIMULATOR_H
#define TENSORHAUL_TESTS_DPDK_SIMULATOR_H

#include <stdbool.h>
#include <stdint.h>

#include "congestion.h"
#include "recovery.h"

#define SIMULATED_US UINT64_C(1000)
#define SIMULATED_MS UINT64_C(1000000)
#define SIMULATED_SECOND UINT64_C(1000000000)

/* One bottleneck; the way back is as long and loses as much, but is never full. */
struct simulated_link {
	double gigabits;     /* per second */
	uint64_t rtt;        /* without queues, both ways together */
	uint64_t buffer;     /* bytes that may wait; what comes beyond is dropped */
	double loss;         /* of packets and acknowledgements, at random: 0.01 is 1 % */
	uint64_t mark_above; /* bytes: packets that meet more waiting are marked (ECN); 0: none */
	uint64_t cut_from, cut_until; /* nothing passes between these */
	unsigned seed;
};

struct simulated_flow {
	const struct congestion_ops *ops;
	uint32_t packet;      /* bytes; 0: 9000 */
	uint64_t start, stop; /* there is something to send between these; stop 0: for ever */
	uint64_t burst;       /* 0: always. Else so many bytes at once, */
	uint64_t every;       /* again after this time */
	/* Both hosts are away once in each `away_each`, for up to `away_most`. 0: never. */
	uint64_t away_each, away_most;
	/* What the clock of the sender's host, and of the receiver's, is ahead of the others. */
	uint64_t clock, far_clock;
	uint64_t rate;   /* of congestion=fixed, bytes per second */
	uint64_t target; /* ns; 0: automatic */
};

struct simulated_counts {
	uint64_t delivered;               /* bytes that the sender knows to have arrived */
	uint64_t sent, lost, late, again; /* packets; again: that came a second time */
	uint64_t bursts;                  /* that were delivered as a whole, */
	uint64_t burst_longest;           /* and the longest time that one took */
	uint64_t window, in_flight, rtt_least;
	uint32_t ring; /* entries */
};

struct simulator;

struct simulator *simulator_new(const struct simulated_link *link, unsigned flows,
				const struct simulated_flow *flow);
void simulator_free(struct simulator *simulator);

/* Go on until this time. */
void simulator_run(struct simulator *simulator, uint64_t until);
struct simulated_counts simulator_counts(const struct simulator *simulator, unsigned flow);
/* Bytes that wait at the link now, and on the average of all packets since the last time. */
double simulator_queue(struct simulator *simulator);

/*
 * The part of the link that all flows together filled with new bytes from `from` to `until`, both
 * in the future. `shares`, unless NULL, takes each flow's part.
 */
double simulator_fill(struct simulator *simulator, uint64_t from, uint64_t until, double *shares);
/* Jain's index of shares: 1 when all are the same. */
double simulator_fairness(const double *shares, unsigned count);

#endif
