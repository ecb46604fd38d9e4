/* SPDX-License-Identifier: Apache-2.0 */
#include "pool.h"

#include <stdlib.h>

#include "side.h"

#define ROOM_LEAST 4096

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static struct pool_buffer *buffers; /* the one that was used last comes first: its pages are warm */
static uint64_t kept;               /* bytes in `buffers` */

/* At most a quarter more than asked for, so that messages of about one size share buffers. */
static size_t rounded(size_t bytes)
{
	size_t step = ROOM_LEAST;

	if (bytes > SIZE_MAX / 2)
		return bytes;
	while (step * 8 < bytes)
		step *= 2;
	return (bytes + step - 1) / step * step;
}

static struct pool_buffer *allocate(size_t room)
{
	struct pool_buffer *buffer = calloc(1, sizeof(*buffer));

	if (!buffer)
		return NULL;
	if (haul_region_allocate(side_context(), room, HAUL_USE_SEND | HAUL_USE_RECV,
				 &buffer->region)) {
		free(buffer);
		return NULL;
	}
	buffer->base = haul_region_base(buffer->region);
	buffer->room = room;
	return buffer;
}

struct pool_buffer *pool_take(size_t bytes)
{
	size_t room = rounded(bytes);
	struct pool_buffer **place, *found;

	pthread_mutex_lock(&lock);
	for (place = &buffers; (found = *place); place = &found->next) {
		if (found->room == room)
			break;
	}
	if (found) {
		*place = found->next;
		kept -= found->room;
	}
	pthread_mutex_unlock(&lock);
	return found ? found : allocate(room);
}

void pool_give(void *given)
{
	struct pool_buffer *buffer = given;
	bool keep;

	pthread_mutex_lock(&lock);
	keep = kept + buffer->room <= layer_settings()->pool;
	if (keep) {
		buffer->next = buffers;
		buffers = buffer;
		kept += buffer->room;
	}
	pthread_mutex_unlock(&lock);
	if (keep)
		return;
	haul_region_release(buffer->region); /* nothing uses it any more */
	free(buffer);
}
