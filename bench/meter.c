/* SPDX-License-Identifier: Apache-2.0 */
#include "meter.h"

#include <stdatomic.h>

#include "bench_common.h"

void meter_reset(struct meter *meter, uint64_t begin, uint64_t end, uint64_t enough)
{
	meter->begin = begin;
	meter->end = end;
	meter->enough = enough;
	meter->bytes = meter->tensors = 0;
	meter->all_bytes = meter->all_tensors = 0;
	histogram_reset(&meter->times);
}

static double share_inside(const struct meter *meter, uint64_t start, uint64_t now)
{
	uint64_t from = start > meter->begin ? start : meter->begin;
	uint64_t to = now < meter->end ? now : meter->end;

	if (from > to)
		return 0;
	if (start >= meter->begin && now <= meter->end)
		return 1; /* also when it took no time */
	return now > start ? (double)(to - from) / (double)(now - start) : 0;
}

void meter_add(struct meter *meter, uint64_t start, uint64_t now, uint64_t bytes)
{
	double share = share_inside(meter, start, now);

	meter->all_bytes += bytes;
	meter->all_tensors++;
	meter->bytes += share * (double)bytes;
	meter->tensors += share;
	if (start >= meter->begin && (meter->by_start ? start < meter->end : now <= meter->end))
		histogram_add(&meter->times, now - start);
	if (meter->enough && meter->tensors >= (double)meter->enough && now < meter->end)
		meter->end = now;
	if (meter->live) {
		/* One writer. */
		atomic_store_explicit(&meter->live->bytes, meter->all_bytes, memory_order_relaxed);
		atomic_store_explicit(&meter->live->tensors, meter->all_tensors,
				      memory_order_relaxed);
	}
}

double meter_window(const struct meter *meter)
{
	return meter->end > meter->begin ? (double)(meter->end - meter->begin) / NS_PER_S : 0;
}
