/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Small pushes of one link that wait, oldest first, until the control messages have room for them.
 * Uses push->next and push->backend of those that wait.
 */
#ifndef TENSORHAUL_STREAMS_SMALL_PUSHES_H
#define TENSORHAUL_STREAMS_SMALL_PUSHES_H

#include "backend.h"

struct haul_small_pushes {
	struct haul_push *first, *last;
};

void haul_small_pushes_add(struct haul_small_pushes *pushes, struct haul_push *push);

/* Whether it waits, in any link. */
bool haul_small_push_waits(const struct haul_push *push);

/* One that waits. */
void haul_small_pushes_remove(struct haul_small_pushes *pushes, struct haul_push *push);

#endif
