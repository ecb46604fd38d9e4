/* SPDX-License-Identifier: Apache-2.0 */
/* A binary heap of deadlines, embedded in what has them. */
#ifndef TENSORHAUL_DEADLINES_H
#define TENSORHAUL_DEADLINES_H

#include <stddef.h>
#include <stdint.h>

struct deadline {
	uint64_t at;     /* haul_clock() time in ns */
	size_t position; /* in the heap, from 1; 0: not in it */
};

struct deadlines {
	struct deadline **heap; /* [1..count] */
	size_t count, room;
};

/* All O(log n); deadlines_first() O(1). A zeroed struct is an empty heap. */

/* Moves one that is set; 0 or -ENOMEM. */
int deadlines_set(struct deadlines *deadlines, struct deadline *deadline, uint64_t at);
/* Nothing when it isn't set. */
void deadlines_clear(struct deadlines *deadlines, struct deadline *deadline);
struct deadline *deadlines_first(const struct deadlines *deadlines); /* NULL: empty */
void deadlines_free(struct deadlines *deadlines);

#endif
