/* SPDX-License-Identifier: Apache-2.0 */
#include "histogram.h"

#include <math.h>
#include <string.h>

#define SUB_BUCKETS (UINT64_C(1) << HISTOGRAM_SUB_BITS)

void histogram_reset(struct histogram *histogram)
{
	memset(histogram, 0, sizeof(*histogram));
	histogram->least = UINT64_MAX;
}

/* Values below 2 * SUB_BUCKETS have a bucket each; above, a bucket spans 2^shift values. */
static unsigned bucket_of(uint64_t value)
{
	unsigned top, shift;

	if (value >> HISTOGRAM_TOP_BIT)
		value = (UINT64_C(1) << HISTOGRAM_TOP_BIT) - 1;
	if (value < SUB_BUCKETS)
		return (unsigned)value;
	top = 63 - (unsigned)__builtin_clzll(value);
	shift = top - HISTOGRAM_SUB_BITS;
	return (shift << HISTOGRAM_SUB_BITS) + (unsigned)(value >> shift);
}

static uint64_t middle_of(unsigned bucket)
{
	unsigned shift;
	uint64_t low;

	if (bucket < SUB_BUCKETS)
		return bucket;
	shift = (bucket >> HISTOGRAM_SUB_BITS) - 1;
	low = (SUB_BUCKETS + (bucket & (SUB_BUCKETS - 1))) << shift;
	return low + ((UINT64_C(1) << shift) >> 1);
}

void histogram_add(struct histogram *histogram, uint64_t value)
{
	histogram->buckets[bucket_of(value)]++;
	histogram->count++;
	if (value < histogram->least)
		histogram->least = value;
	if (value > histogram->most)
		histogram->most = value;
}

void histogram_merge(struct histogram *into, const struct histogram *from)
{
	for (unsigned i = 0; i < HISTOGRAM_BUCKETS; i++)
		into->buckets[i] += from->buckets[i];
	into->count += from->count;
	if (from->least < into->least)
		into->least = from->least;
	if (from->most > into->most)
		into->most = from->most;
}

uint64_t histogram_at(const struct histogram *histogram, double share)
{
	uint64_t rank, seen = 0;

	if (!histogram->count)
		return 0;
	rank = (uint64_t)ceil(share * (double)histogram->count);
	if (rank < 1)
		rank = 1;
	if (rank >= histogram->count)
		return histogram->most;
	for (unsigned i = 0; i < HISTOGRAM_BUCKETS; i++) {
		seen += histogram->buckets[i];
		if (seen >= rank) {
			uint64_t value = middle_of(i);

			/* The middle of the outermost buckets may lie outside of what was added. */
			if (value < histogram->least)
				return histogram->least;
			return value > histogram->most ? histogram->most : value;
		}
	}
	return histogram->most;
}
