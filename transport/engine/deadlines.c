/* SPDX-License-Identifier: Apache-2.0 */
#include "deadlines.h"

#include <errno.h>
#include <stdlib.h>

#define ROOM_MIN 16

static void put(struct deadlines *deadlines, size_t position, struct deadline *deadline)
{
	deadlines->heap[position] = deadline;
	deadline->position = position;
}

static void move_up(struct deadlines *deadlines, struct deadline *deadline)
{
	size_t position = deadline->position;

	while (position > 1 && deadlines->heap[position / 2]->at > deadline->at) {
		put(deadlines, position, deadlines->heap[position / 2]);
		position /= 2;
	}
	put(deadlines, position, deadline);
}

static void move_down(struct deadlines *deadlines, struct deadline *deadline)
{
	size_t position = deadline->position;

	for (;;) {
		size_t child = 2 * position;

		if (child > deadlines->count)
			break;
		if (child < deadlines->count &&
		    deadlines->heap[child + 1]->at < deadlines->heap[child]->at)
			child++;
		if (deadlines->heap[child]->at >= deadline->at)
			break;
		put(deadlines, position, deadlines->heap[child]);
		position = child;
	}
	put(deadlines, position, deadline);
}

static int reserve(struct deadlines *deadlines)
{
	size_t room = deadlines->room ? 2 * deadlines->room : ROOM_MIN;
	struct deadline **heap;

	if (deadlines->count < deadlines->room)
		return 0;
	/* One more than `room`: the heap starts at 1. */
	heap = reallocarray(deadlines->heap, room + 1, sizeof(struct deadline *));
	if (!heap)
		return -ENOMEM;
	deadlines->heap = heap;
	deadlines->room = room;
	return 0;
}

int deadlines_set(struct deadlines *deadlines, struct deadline *deadline, uint64_t at)
{
	if (!deadline->position) {
		int error = reserve(deadlines);

		if (error)
			return error;
		put(deadlines, ++deadlines->count, deadline);
	}
	deadline->at = at;
	move_up(deadlines, deadline);
	move_down(deadlines, deadline);
	return 0;
}

void deadlines_clear(struct deadlines *deadlines, struct deadline *deadline)
{
	struct deadline *last;

	if (!deadline->position)
		return;
	last = deadlines->heap[deadlines->count--];
	if (last != deadline) {
		put(deadlines, deadline->position, last);
		move_up(deadlines, last);
		move_down(deadlines, last);
	}
	deadline->position = 0;
}

struct deadline *deadlines_first(const struct deadlines *deadlines)
{
	return deadlines->count ? deadlines->heap[1] : NULL;
}

void deadlines_free(struct deadlines *deadlines)
{
	for (size_t position = 1; position <= deadlines->count; position++)
		deadlines->heap[position]->position = 0;
	free(deadlines->heap);
	*deadlines = (struct deadlines){0};
}
