/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What delays differ by, within some time and in the mean of many: the work of hosts that are away
 * now and then, for which swift keeps a longer queue.
 */
#ifndef TENSORHAUL_DPDK_SWIFT_NOISE_H
#define TENSORHAUL_DPDK_SWIFT_NOISE_H

#include <stdint.h>

/* Times in ns. */
struct noise {
	double mean;
	uint64_t since, least, most; /* what is being looked at: from when, and the extremes */
};

/* Look at a new span of time; the mean stays. */
void noise_begin(struct noise *noise, uint64_t now);
/* A sample of the delay. */
void noise_count(struct noise *noise, uint64_t now, uint64_t delay);

#endif
