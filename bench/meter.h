/* SPDX-License-Identifier: Apache-2.0 */
/*
 * How much moved in a window of time, exactly, although a tensor of 100 MiB arrives as a whole.
 *
 * A tensor that was on its way when the window began or ended counts in proportion to the time that
 * it spent inside. In a steady state this has no bias, whether the tensors in flight take turns
 * or queue behind each other: what one edge counts too much, the other one counts too little. For
 * it to stay steady, the flows go on behind the window's end until all that were started
 * before it have arrived.
 */
#ifndef BENCH_METER_H
#define BENCH_METER_H

#include <stdbool.h>
#include <stdint.h>

#include "histogram.h"

struct meter {
	uint64_t begin, end; /* the window; `end` may move closer while it is measured */
	uint64_t enough;     /* close the window after so many tensors; 0 is without a limit */
	double bytes, tensors;
	uint64_t all_bytes, all_tensors; /* warm-up and end included */
	/* Open loop: what was due inside counts, whenever it ends: the late ones are the point. */
	bool by_start;
	struct histogram times; /* of tensors that started and ended inside; see by_start */
	/* Read by others while it is measured: tensors and bytes since the start. */
	struct meter_live *live; /* may be NULL */
};

struct meter_live {
	_Atomic uint64_t bytes, tensors;
};

void meter_reset(struct meter *meter, uint64_t begin, uint64_t end, uint64_t enough);
/* A tensor of `bytes` took from `start` to `now`. */
void meter_add(struct meter *meter, uint64_t start, uint64_t now, uint64_t bytes);
/* In seconds. */
double meter_window(const struct meter *meter);

#endif
