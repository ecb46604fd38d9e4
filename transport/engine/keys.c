/* SPDX-License-Identifier: Apache-2.0 */
#include "keys.h"

#include <stdlib.h>
#include <string.h>
#include <xxhash.h>

#define BUCKETS_MIN 16

/*
 * How many old buckets each change (an entry added or dropped) moves over, so that all are moved
 * before the next resize is due. After growing from n buckets, that is n additions away; after
 * shrinking, as little as n / 16 drops, but most of these buckets are empty.
 */
#define MOVES_GROWING 4
#define MOVES_SHRINKING 16

int keys_init(struct keys *keys, uint64_t seed)
{
	*keys = (struct keys){.seed = seed};
	return 0;
}

static void free_entries(struct key_entry **buckets, size_t first, size_t end)
{
	for (size_t i = first; i < end; i++) {
		while (buckets[i]) {
			struct key_entry *entry = buckets[i];

			buckets[i] = entry->next;
			free(entry);
		}
	}
	free(buckets);
}

void keys_free(struct keys *keys)
{
	if (keys->buckets)
		free_entries(keys->buckets, 0, keys->mask + 1);
	if (keys->old_buckets)
		free_entries(keys->old_buckets, keys->old_next, keys->old_mask + 1);
	*keys = (struct keys){.seed = keys->seed};
}

/* ---- Growing and shrinking --------------------------------------------- */

static void move_buckets(struct keys *keys, size_t most)
{
	for (; keys->old_buckets && most; most--) {
		struct key_entry *entry = keys->old_buckets[keys->old_next];

		while (entry) {
			struct key_entry *next = entry->next;
			struct key_entry **bucket = &keys->buckets[entry->hash & keys->mask];

			entry->next = *bucket;
			*bucket = entry;
			entry = next;
		}
		if (keys->old_next++ == keys->old_mask) {
			free(keys->old_buckets);
			keys->old_buckets = NULL;
		}
	}
}

/* Without memory for it the table stays as it is: slower or larger, but right. */
static void start_resize(struct keys *keys, size_t size)
{
	struct key_entry **buckets = calloc(size, sizeof(struct key_entry *));

	if (!buckets)
		return;
	keys->old_buckets = keys->buckets;
	keys->old_mask = keys->mask;
	keys->old_next = 0;
	keys->buckets = buckets;
	keys->mask = size - 1;
}

static void resize_a_little(struct keys *keys)
{
	size_t size = keys->mask + 1;

	if (keys->visiting || !keys->buckets)
		return;
	if (!keys->old_buckets && keys->count > size)
		start_resize(keys, size * 2);
	else if (!keys->old_buckets && size > BUCKETS_MIN && keys->count < size / 8)
		start_resize(keys, size / 2);
	move_buckets(keys, keys->old_mask > keys->mask ? MOVES_SHRINKING : MOVES_GROWING);
}

/* ---- Finding ----------------------------------------------------------- */

/* Where the entries with this hash are chained: the old bucket as long as it was not moved. */
static struct key_entry **bucket_of(struct keys *keys, uint64_t hash)
{
	if (keys->old_buckets && (hash & keys->old_mask) >= keys->old_next)
		return &keys->old_buckets[hash & keys->old_mask];
	return &keys->buckets[hash & keys->mask];
}

static struct key_entry *find(struct keys *keys, uint64_t hash, const void *bytes, size_t length)
{
	struct key_entry *entry = *bucket_of(keys, hash);

	while (entry && (entry->hash != hash || entry->length != length ||
			 memcmp(entry->bytes, bytes, length)))
		entry = entry->next;
	return entry;
}

static struct key_entry *entry_new(uint64_t hash, const void *bytes, size_t length)
{
	struct key_entry *entry = malloc(sizeof(*entry) + length);

	if (!entry)
		return NULL;
	entry->hash = hash;
	TAILQ_INIT(&entry->sends);
	TAILQ_INIT(&entry->slots);
	entry->length = (uint8_t)length;
	memcpy(entry->bytes, bytes, length);
	return entry;
}

struct key_entry *keys_find(struct keys *keys, const void *bytes, size_t length)
{
	if (!keys->count)
		return NULL;
	return find(keys, XXH3_64bits_withSeed(bytes, length, keys->seed), bytes, length);
}

struct key_entry *keys_find_or_add(struct keys *keys, const void *bytes, size_t length)
{
	uint64_t hash = XXH3_64bits_withSeed(bytes, length, keys->seed);
	struct key_entry *entry, **bucket;

	if (!keys->buckets) {
		keys->buckets = calloc(BUCKETS_MIN, sizeof(struct key_entry *));
		if (!keys->buckets)
			return NULL;
		keys->mask = BUCKETS_MIN - 1;
	}
	entry = find(keys, hash, bytes, length);
	if (entry)
		return entry;
	entry = entry_new(hash, bytes, length);
	if (!entry)
		return NULL;
	bucket = bucket_of(keys, hash);
	entry->next = *bucket;
	*bucket = entry;
	keys->count++;
	resize_a_little(keys);
	return entry;
}

void keys_drop_if_empty(struct keys *keys, struct key_entry *entry)
{
	struct key_entry **link;

	if (!TAILQ_EMPTY(&entry->sends) || !TAILQ_EMPTY(&entry->slots))
		return;
	link = bucket_of(keys, entry->hash);
	while (*link != entry)
		link = &(*link)->next;
	*link = entry->next;
	free(entry);
	keys->count--;
	resize_a_little(keys);
}

void keys_each(struct keys *keys, void (*visit)(struct key_entry *entry, void *user), void *user)
{
	if (!keys->buckets)
		return;
	/* One table to walk along, and no entry may move while `visit` drops others. */
	move_buckets(keys, SIZE_MAX);
	keys->visiting = true;
	for (size_t i = 0; i <= keys->mask; i++) {
		struct key_entry *entry = keys->buckets[i];

		while (entry) {
			struct key_entry *next = entry->next;

			visit(entry, user);
			entry = next;
		}
	}
	keys->visiting = false;
	resize_a_little(keys);
}
