/* SPDX-License-Identifier: Apache-2.0 */
/* A binary heap of links by the time at which they have something to do. */
#include <errno.h>
#include <stdlib.h>

#include "dpdk.h"

static void place(struct timers *timers, uint32_t index, struct backend_link *link)
{
	timers->heap[index] = link;
	link->timer_index = index;
}

/* The entry at `index` is empty: let `link` take it, or one above it. */
static void rise(struct timers *timers, uint32_t index, struct backend_link *link)
{
	while (index > 0) {
		uint32_t above = (index - 1) / 2;

		if (timers->heap[above]->timer_at <= link->timer_at)
			break;
		place(timers, index, timers->heap[above]);
		index = above;
	}
	place(timers, index, link);
}

/* The entry at `index` is empty: let `link` take it, or one below it. */
static void sink(struct timers *timers, uint32_t index, struct backend_link *link)
{
	for (;;) {
		uint32_t below = 2 * index + 1;

		if (below >= timers->count)
			break;
		if (below + 1 < timers->count &&
		    timers->heap[below + 1]->timer_at < timers->heap[below]->timer_at)
			below++;
		if (timers->heap[below]->timer_at >= link->timer_at)
			break;
		place(timers, index, timers->heap[below]);
		index = below;
	}
	place(timers, index, link);
}

int timers_set(struct timers *timers, struct backend_link *link, uint64_t at)
{
	if (at >= link->timer_at)
		return 0;
	if (link->timer_at != UINT64_MAX) {
		link->timer_at = at;
		rise(timers, link->timer_index, link);
		return 0;
	}
	if (timers->count == timers->room) {
		uint32_t room = timers->room ? 2 * timers->room : 16;
		struct backend_link **grown = reallocarray(timers->heap, room, sizeof(*grown));

		if (!grown)
			return -ENOMEM;
		timers->heap = grown;
		timers->room = room;
	}
	link->timer_at = at;
	rise(timers, timers->count++, link);
	return 0;
}

void timers_remove(struct timers *timers, struct backend_link *link)
{
	uint32_t index = link->timer_index;
	struct backend_link *last;

	if (link->timer_at == UINT64_MAX)
		return;
	last = timers->heap[--timers->count];
	if (last != link) {
		if (last->timer_at < link->timer_at)
			rise(timers, index, last);
		else
			sink(timers, index, last);
	}
	link->timer_at = UINT64_MAX;
}

struct backend_link *timers_due(struct timers *timers, uint64_t now)
{
	struct backend_link *link;

	if (timers_next(timers) > now)
		return NULL;
	link = timers->heap[0];
	timers_remove(timers, link);
	return link;
}

uint64_t timers_next(const struct timers *timers)
{
	return timers->count ? timers->heap[0]->timer_at : UINT64_MAX;
}

void timers_free(struct timers *timers)
{
	free(timers->heap);
	*timers = (struct timers){0};
}
