/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A log-linear histogram, after HdrHistogram: each power of two is cut into 128 equal buckets, so
 * a value that is read back is off by less than 0.4 % (half a bucket), from 1 to 2^44. Values are
 * nanoseconds here. It has a fixed size and no pointers, so that a process can hand it to another
 * one as it is.
 */
#ifndef BENCH_HISTOGRAM_H
#define BENCH_HISTOGRAM_H

#include <stdint.h>

#define HISTOGRAM_SUB_BITS 7
#define HISTOGRAM_TOP_BIT 44
#define HISTOGRAM_BUCKETS ((HISTOGRAM_TOP_BIT - HISTOGRAM_SUB_BITS + 1) << HISTOGRAM_SUB_BITS)

struct histogram {
	uint64_t count;
	uint64_t least, most; /* exact */
	uint64_t buckets[HISTOGRAM_BUCKETS];
};

void histogram_reset(struct histogram *histogram);
/* Values of 2^44 and above count as 2^44 - 1; `most` still tells them. */
void histogram_add(struct histogram *histogram, uint64_t value);
void histogram_merge(struct histogram *into, const struct histogram *from);
/* The value that `share` of all values (0 to 1) do not exceed; 0 when there are none. */
uint64_t histogram_at(const struct histogram *histogram, double share);

#endif
