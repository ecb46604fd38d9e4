/* SPDX-License-Identifier: Apache-2.0 */
#include "pool.h"

#include <stdlib.h>
#include <string.h>

#include "side.h"

#define ROOM_LEAST 4096
#define ROOM_MOST (SIZE_MAX / 4)
#define STEPS 8 /* sizes between two powers of two, and below the first */
#define SIZES (64 * STEPS)

TAILQ_HEAD(buffer_list, pool_buffer);

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
/* Free ones. The one that was used last comes first: its pages are warm. */
static struct buffer_list free_alike[SIZES];
static struct buffer_list free_any = TAILQ_HEAD_INITIALIZER(free_any);
static uint64_t kept; /* bytes in `free_any` */
/* All buffers, by their addresses. */
static struct pool_buffer **sorted;
static size_t sorted_count, sorted_room;

/*
 * The size of a buffer, of which there are few, so that messages of about one length share
 * buffers: at most a quarter more than asked for. `number` counts them.
 */
static size_t size_for(size_t bytes, unsigned *number)
{
	size_t step = ROOM_LEAST, steps;
	unsigned doubled = 0;

	while (step * STEPS < bytes) {
		step *= 2;
		doubled++;
	}
	steps = (bytes + step - 1) / step;
	*number = doubled * STEPS + (unsigned)steps - 1;
	return steps * step;
}

/* How many buffers begin at or before an address. The lock is held, here and below. */
static size_t count_up_to(const uint8_t *address)
{
	size_t low = 0, high = sorted_count;

	while (low < high) {
		size_t middle = low + (high - low) / 2;

		if (sorted[middle]->base <= address)
			low = middle + 1;
		else
			high = middle;
	}
	return low;
}

static bool sort_in(struct pool_buffer *buffer)
{
	size_t place = count_up_to(buffer->base);

	if (sorted_count == sorted_room) {
		size_t room = sorted_room ? 2 * sorted_room : 64;
		struct pool_buffer **grown = realloc(sorted, room * sizeof(*sorted));

		if (!grown)
			return false;
		sorted = grown;
		sorted_room = room;
	}
	memmove(&sorted[place + 1], &sorted[place], (sorted_count - place) * sizeof(*sorted));
	sorted[place] = buffer;
	sorted_count++;
	return true;
}

static void take_out(const struct pool_buffer *buffer)
{
	size_t place = count_up_to(buffer->base) - 1;

	sorted_count--;
	memmove(&sorted[place], &sorted[place + 1], (sorted_count - place) * sizeof(*sorted));
}

static struct pool_buffer *allocate(size_t room)
{
	struct pool_buffer *buffer = calloc(1, sizeof(*buffer));
	bool known;

	if (!buffer)
		return NULL;
	if (haul_region_allocate(side_context(), room, HAUL_USE_SEND | HAUL_USE_RECV,
				 &buffer->region)) {
		free(buffer);
		return NULL;
	}
	buffer->base = haul_region_base(buffer->region);
	buffer->room = room;
	pthread_mutex_lock(&lock);
	known = sort_in(buffer);
	pthread_mutex_unlock(&lock);
	if (!known) {
		haul_region_release(buffer->region);
		free(buffer);
		return NULL;
	}
	return buffer;
}

static void no_more_free(struct pool_buffer *buffer)
{
	unsigned number;

	size_for(buffer->room, &number);
	TAILQ_REMOVE(&free_alike[number], buffer, alike);
	TAILQ_REMOVE(&free_any, buffer, any);
	kept -= buffer->room;
}

struct pool_buffer *pool_take(size_t bytes)
{
	struct pool_buffer *buffer;
	unsigned number;
	size_t room;

	if (bytes > ROOM_MOST)
		return NULL;
	room = size_for(bytes, &number);
	pthread_mutex_lock(&lock);
	buffer = TAILQ_FIRST(&free_alike[number]);
	if (buffer)
		no_more_free(buffer);
	pthread_mutex_unlock(&lock);
	if (!buffer)
		buffer = allocate(room);
	if (buffer)
		layer_count(&layer_counters.buffers, 1);
	return buffer;
}

void pool_give(void *given)
{
	struct pool_buffer *buffer = given, *old;
	struct buffer_list released = TAILQ_HEAD_INITIALIZER(released);
	unsigned number;

	size_for(buffer->room, &number);
	pthread_mutex_lock(&lock);
	if (!free_alike[number].tqh_last)
		TAILQ_INIT(&free_alike[number]);
	TAILQ_INSERT_HEAD(&free_alike[number], buffer, alike);
	TAILQ_INSERT_HEAD(&free_any, buffer, any);
	kept += buffer->room;
	while (kept > layer_settings()->pool) {
		old = TAILQ_LAST(&free_any, buffer_list);
		no_more_free(old);
		take_out(old);
		TAILQ_INSERT_TAIL(&released, old, any);
	}
	pthread_mutex_unlock(&lock);
	layer_count(&layer_counters.buffers, (uint64_t)-1);
	while ((old = TAILQ_FIRST(&released))) {
		TAILQ_REMOVE(&released, old, any);
		haul_region_release(old->region); /* nothing uses it any more */
		free(old);
	}
}

haul_region *pool_region(const void *data)
{
	const uint8_t *address = data;
	haul_region *region = NULL;
	size_t count;

	pthread_mutex_lock(&lock);
	count = count_up_to(address);
	if (count && (size_t)(address - sorted[count - 1]->base) < sorted[count - 1]->room)
		region = sorted[count - 1]->region;
	pthread_mutex_unlock(&lock);
	return region;
}
