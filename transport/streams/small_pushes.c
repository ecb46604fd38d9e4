/* SPDX-License-Identifier: Apache-2.0 */
#include "streams/small_pushes.h"

/* What push->backend names while a push waits. */
static char waits;

void haul_small_pushes_add(struct haul_small_pushes *pushes, struct haul_push *push)
{
	push->backend = &waits;
	push->next = NULL;
	if (pushes->first)
		pushes->last->next = push;
	else
		pushes->first = push;
	pushes->last = push;
}

bool haul_small_push_waits(const struct haul_push *push)
{
	return push->backend == &waits;
}

void haul_small_pushes_remove(struct haul_small_pushes *pushes, struct haul_push *push)
{
	struct haul_push **at, *last = NULL;

	for (at = &pushes->first; *at != push; at = &(*at)->next)
		last = *at;
	*at = push->next;
	if (pushes->last == push)
		pushes->last = last;
	push->backend = NULL;
}
