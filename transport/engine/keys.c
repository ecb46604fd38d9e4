/* SPDX-License-Identifier: Apache-2.0 */
/*
 * With many keys the time goes into cache misses, so the table is made to have few of them. A
 * bucket is one cache line: seven places, each with a byte of its key's hash (the tag), so that
 * a look at a key touches this line and, as a rule, no entry but the right one. What finds its
 * bucket full goes into the next one; each bucket counts those that passed it, and where the count
 * is 0 a search ends. Where a peer receives in the order of the sends, the bucket of the next key
 * is fetched ahead.
 */
#include "keys.h"

#include <endian.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <xxhash.h>

#define PLACES 7
#define LINE 64
#define BUCKETS_MIN ((size_t)2)
#define HUGE_PAGE ((size_t)2 << 20)

/* Keys per bucket: more than the first and the table grows, less than the second and it shrinks. */
#define GROW_AT(buckets) ((buckets)*5)
#define SHRINK_AT(buckets) ((buckets)*5 / 8)

/*
 * How many old buckets each change (an entry added or dropped) moves over, so that all are moved
 * before the next resize is due. After growing from n buckets, that is 5 n additions away; after
 * shrinking, as little as 5 n / 16 drops.
 */
#define MOVES_GROWING 1
#define MOVES_SHRINKING 4

/* Those that passed are not counted beyond this; the bucket then stays "passed" for good. */
#define PASSED_MANY UINT8_MAX

struct key_bucket {
	uint8_t tags[PLACES]; /* 0: the place is free */
	uint8_t passed;
	struct key_entry *entries[PLACES];
};

_Static_assert(sizeof(struct key_bucket) <= LINE, "a bucket is one cache line");

void keys_init(struct keys *keys, uint64_t seed)
{
	*keys = (struct keys){.seed = seed};
}

/* ---- Buckets ----------------------------------------------------------- */

static struct key_bucket *home_of(const struct key_index *index, uint64_t hash)
{
	return &index->buckets[hash & index->mask];
}

static struct key_bucket *next_of(const struct key_index *index, struct key_bucket *bucket)
{
	return bucket == &index->buckets[index->mask] ? index->buckets : bucket + 1;
}

/* From the bits that choose no bucket. */
static uint8_t tag_of(uint64_t hash)
{
	uint8_t tag = (uint8_t)(hash >> 56);

	return tag ? tag : 1;
}

/* The top bit of byte n is set where place n has this tag; 0 finds the free places. */
static uint64_t places_with(const struct key_bucket *bucket, uint8_t tag)
{
	const uint64_t low = UINT64_C(0x7f7f7f7f7f7f7f7f);
	uint64_t tags;

	memcpy(&tags, bucket->tags, sizeof(tags));
	tags = le64toh(tags) ^ tag * UINT64_C(0x0101010101010101);
	/* The last byte is no tag. */
	return ~(((tags & low) + low) | tags | low) & (UINT64_MAX >> 8);
}

static unsigned first_place(uint64_t places)
{
	return (unsigned)__builtin_ctzll(places) / 8;
}

/* False: all places of the table are taken. */
static bool put(struct key_index *index, struct key_entry *entry)
{
	struct key_bucket *home = home_of(index, entry->hash), *bucket = home;
	uint64_t free_places;
	unsigned place;

	while (!(free_places = places_with(bucket, 0))) {
		bucket = next_of(index, bucket);
		if (bucket == home)
			return false;
	}
	place = first_place(free_places);
	bucket->tags[place] = tag_of(entry->hash);
	bucket->entries[place] = entry;
	for (; home != bucket; home = next_of(index, home))
		if (home->passed != PASSED_MANY)
			home->passed++;
	return true;
}

static bool take_out(struct key_index *index, const struct key_entry *entry)
{
	struct key_bucket *home = home_of(index, entry->hash), *bucket = home;

	for (;;) {
		uint64_t places = places_with(bucket, tag_of(entry->hash));

		while (places && bucket->entries[first_place(places)] != entry)
			places &= places - 1;
		if (places) {
			bucket->tags[first_place(places)] = 0;
			break;
		}
		if (!bucket->passed || next_of(index, bucket) == home)
			return false;
		bucket = next_of(index, bucket);
	}
	for (; home != bucket; home = next_of(index, home))
		if (home->passed != PASSED_MANY)
			home->passed--;
	return true;
}

static struct key_entry *look(const struct key_index *index, uint64_t hash, const void *bytes,
			      size_t length)
{
	struct key_bucket *home = home_of(index, hash), *bucket = home;

	do {
		uint64_t places = places_with(bucket, tag_of(hash));

		for (; places; places &= places - 1) {
			struct key_entry *entry = bucket->entries[first_place(places)];

			if (entry->hash == hash && entry->length == length &&
			    !memcmp(entry->bytes, bytes, length))
				return entry;
		}
		if (!bucket->passed)
			break;
		bucket = next_of(index, bucket);
	} while (bucket != home);
	return NULL;
}

/* ---- The memory of an index -------------------------------------------- */

/*
 * A large one is not touched as a whole when it is made: the kernel clears its pages one by one.
 * Huge pages, where the host has them, keep a look at a key from missing the TLB as well.
 */
static void *map_buckets(size_t size)
{
	uint8_t *mapped = mmap(NULL, size + HUGE_PAGE, PROT_READ | PROT_WRITE,
			       MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	size_t before;

	if (mapped == MAP_FAILED)
		return NULL;
	before = -(uintptr_t)mapped % HUGE_PAGE;
	if (before)
		munmap(mapped, before);
	munmap(mapped + before + size, HUGE_PAGE - before);
	madvise(mapped + before, size, MADV_HUGEPAGE);
	return mapped + before;
}

static bool index_open(struct key_index *index, size_t buckets)
{
	size_t size = buckets * sizeof(struct key_bucket);

	if (size >= HUGE_PAGE) {
		index->buckets = map_buckets(size);
	} else {
		index->buckets = aligned_alloc(LINE, size);
		if (index->buckets)
			memset(index->buckets, 0, size);
	}
	if (!index->buckets)
		return false;
	index->mask = buckets - 1;
	return true;
}

static void index_close(struct key_index *index)
{
	size_t size = (index->mask + 1) * sizeof(struct key_bucket);

	if (index->buckets && size >= HUGE_PAGE)
		munmap(index->buckets, size);
	else
		free(index->buckets);
	*index = (struct key_index){0};
}

static void free_entries(struct key_index *index)
{
	for (size_t i = 0; index->buckets && i <= index->mask; i++)
		for (unsigned place = 0; place < PLACES; place++)
			if (index->buckets[i].tags[place])
				free(index->buckets[i].entries[place]);
	index_close(index);
}

void keys_free(struct keys *keys)
{
	free_entries(&keys->index);
	free_entries(&keys->old);
	keys_init(keys, keys->seed);
}

/* ---- Growing and shrinking --------------------------------------------- */

/*
 * The new index has room for all, and for what is added in the meantime. What has passed a bucket
 * of the old one stays counted: a search there goes too far at worst.
 */
static void move_bucket(struct keys *keys, struct key_bucket *bucket)
{
	for (unsigned place = 0; place < PLACES; place++) {
		if (bucket->tags[place])
			put(&keys->index, bucket->entries[place]);
		bucket->tags[place] = 0;
	}
}

static void move_buckets(struct keys *keys, size_t most)
{
	for (; keys->old.buckets && most; most--) {
		move_bucket(keys, &keys->old.buckets[keys->old_next]);
		if (keys->old_next++ == keys->old.mask)
			index_close(&keys->old);
	}
}

/* Without memory for it the table stays as it is: slower or larger, but right. */
static void start_resize(struct keys *keys, size_t buckets)
{
	struct key_index index;

	if (!index_open(&index, buckets))
		return;
	keys->old = keys->index;
	keys->old_next = 0;
	keys->index = index;
}

static void resize_a_little(struct keys *keys)
{
	size_t buckets = keys->index.mask + 1;

	if (!keys->old.buckets && keys->count > GROW_AT(buckets))
		start_resize(keys, buckets * 2);
	else if (!keys->old.buckets && buckets > BUCKETS_MIN && keys->count < SHRINK_AT(buckets))
		start_resize(keys, buckets / 2);
	move_buckets(keys, keys->old.mask > keys->index.mask ? MOVES_SHRINKING : MOVES_GROWING);
}

/* ---- Finding ----------------------------------------------------------- */

static struct key_entry *find(struct keys *keys, uint64_t hash, const void *bytes, size_t length)
{
	struct key_entry *entry = look(&keys->index, hash, bytes, length);

	if (!entry && keys->old.buckets)
		entry = look(&keys->old, hash, bytes, length);
	if (entry)
		__builtin_prefetch(home_of(&keys->index, entry->follower), 1);
	return entry;
}

static struct key_entry *entry_new(uint64_t hash, const void *bytes, size_t length)
{
	struct key_entry *entry = malloc(sizeof(*entry) + length);

	if (!entry)
		return NULL;
	entry->hash = hash;
	entry->follower = 0;
	TAILQ_INIT(&entry->sends);
	TAILQ_INIT(&entry->slots);
	entry->length = (uint8_t)length;
	memcpy(entry->bytes, bytes, length);
	return entry;
}

/* It is full only where there was no memory for a larger one. There may be some now. */
static bool place(struct keys *keys, struct key_entry *entry)
{
	if (put(&keys->index, entry))
		return true;
	resize_a_little(keys);
	return put(&keys->index, entry);
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
	struct key_entry *entry;

	if (!keys->index.buckets && !index_open(&keys->index, BUCKETS_MIN))
		return NULL;
	entry = find(keys, hash, bytes, length);
	if (entry)
		return entry;
	entry = entry_new(hash, bytes, length);
	if (!entry)
		return NULL;
	if (!place(keys, entry)) {
		free(entry);
		return NULL;
	}
	if (keys->latest)
		keys->latest->follower = hash;
	keys->latest = entry;
	keys->count++;
	resize_a_little(keys);
	return entry;
}

void keys_drop_if_empty(struct keys *keys, struct key_entry *entry)
{
	if (!TAILQ_EMPTY(&entry->sends) || !TAILQ_EMPTY(&entry->slots))
		return;
	if (!take_out(&keys->index, entry))
		take_out(&keys->old, entry);
	if (keys->latest == entry)
		keys->latest = NULL;
	free(entry);
	keys->count--;
	resize_a_little(keys);
}
