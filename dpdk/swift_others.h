/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What swift does about the other flows of a link: it drains the queue now and then, to see the
 * path without it, and notices when it is with flows that don't care for delay.
 */
#ifndef TENSORHAUL_DPDK_SWIFT_OTHERS_H
#define TENSORHAUL_DPDK_SWIFT_OTHERS_H

#include "congestion.h"

struct others {
	uint64_t started_at;    /* slow start ended */
	uint64_t drained_at;    /* the last drain began */
	uint16_t drained_clock; /* the receiver's clock then */
	uint64_t drain_until;   /* 0: there is no drain now */
	uint64_t full_rtt;      /* the round trip when it began */
	unsigned settle;        /* rounds that are left until the delay is that of the window */
	uint64_t watched_at, crowded_for;
	bool crowded;
};

/* What is to be compared with the delay. */
struct others_delay {
	double delay, target;
	double least_target; /* the target on the shortest of paths */
	bool small;          /* the window has hardly anything left to give up */
};

/* Slow start has ended: from now on the queue is drained now and then. */
void others_start(struct others *others, uint64_t now, uint16_t clock);
/* The path may be another one: end what goes on. */
void others_stop(struct others *others);

/* To be called with each acknowledgement, `idle` while the window is not used. `packets`: it. */
void others_drain(struct others *others, const struct congestion_sample *sample, double packets,
		  bool idle);
/* The delay is not that of the window. */
static inline bool others_disturb(const struct others *others)
{
	return others->drain_until || others->settle;
}
/* A round trip has ended, and others_disturb() said so. */
void others_settle(struct others *others);

/* The delay of a round trip. True: a crowd keeps it now. */
bool others_watch(struct others *others, uint64_t now, const struct others_delay *seen);
/* The round trip of a packet, of which `delay` was the queue's. While that is drained a short one
 * says that there is no crowd. */
void others_sample(struct others *others, uint64_t rtt, double delay, double least_target);

#endif
