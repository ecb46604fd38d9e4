/* SPDX-License-Identifier: Apache-2.0 */
/* Registered memory that messages arrive in, and that those of many slices leave from. */
#ifndef TENSORHAUL_DROPIN_POOL_H
#define TENSORHAUL_DROPIN_POOL_H

#include <sys/queue.h>

#include "layer.h"

struct pool_buffer {
	haul_region *region;
	uint8_t *base;
	size_t room;
	/* While it is free: among those of its size, and among all. */
	TAILQ_ENTRY(pool_buffer) alike;
	TAILQ_ENTRY(pool_buffer) any;
};

/* A buffer of at least `bytes` (not 0), or NULL. */
struct pool_buffer *pool_take(size_t bytes);

/* Takes any buffer back; a void pointer, as the destructor of a slice hands it over. */
void pool_give(void *buffer);

/* The region of memory that is in use within a buffer; NULL when it is not from here. */
haul_region *pool_region(const void *data);

#endif
