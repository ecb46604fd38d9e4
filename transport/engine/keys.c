/* SPDX-License-Identifier: Apache-2.0 */
/*
 * With many keys the time goes into cache misses, so the table is made to have few that somebody
 * waits for. A bucket has seven places. Each has a byte of its key's hash (the tag): those of all
 * buckets lie together, 1 to 2 bytes for each key, and stay in a cache where the table does not.
 * A new key, as a rule, looks at nothing else. What finds its bucket full goes into the next one;
 * each bucket counts those that passed it, and where the count is 0 a search ends.
 *
 * The other lines are asked for before they are needed. The latest keys stay outside of the table
 * until the lines of their places have come (the young ones). And where a peer receives in
 * the order of the sends, a key that is found fetches the one that was added YOUNG later.
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

/* A cache line. */
struct key_places {
	_Alignas(LINE) struct key_entry *entries[PLACES];
};

struct key_tags {
	uint8_t tags[PLACES]; /* 0: the place is free */
	uint8_t passed;
};

_Static_assert(sizeof(struct key_places) == LINE, "the places of a bucket are one cache line");
_Static_assert(sizeof(struct key_tags) == sizeof(uint64_t), "they are compared as one number");

void keys_init(struct keys *keys, uint64_t seed)
{
	*keys = (struct keys){.seed = seed};
}

/* ---- Buckets ----------------------------------------------------------- */

static size_t home_of(const struct key_index *index, uint64_t hash)
{
	return hash & index->mask;
}

static size_t next_of(const struct key_index *index, size_t bucket)
{
	return (bucket + 1) & index->mask;
}

/* From the bits that choose no bucket. */
static uint8_t tag_of(uint64_t hash)
{
	uint8_t tag = (uint8_t)(hash >> 56);

	return tag ? tag : 1;
}

/* The top bit of byte n is set where byte n is this tag; 0 finds what is free. */
static uint64_t bytes_with(const void *eight, uint8_t tag)
{
	const uint64_t low = UINT64_C(0x7f7f7f7f7f7f7f7f);
	uint64_t bytes;

	memcpy(&bytes, eight, sizeof(bytes));
	bytes = le64toh(bytes) ^ tag * UINT64_C(0x0101010101010101);
	return ~(((bytes & low) + low) | bytes | low);
}

static uint64_t places_with(const struct key_index *index, size_t bucket, uint8_t tag)
{
	/* The last byte is no tag. */
	return bytes_with(&index->tags[bucket], tag) & (UINT64_MAX >> 8);
}

static unsigned first_place(uint64_t places)
{
	return (unsigned)__builtin_ctzll(places) / 8;
}

/* False: all places of the table are taken. */
static bool put(struct key_index *index, struct key_entry *entry)
{
	size_t home = home_of(index, entry->hash), bucket = home;
	uint64_t free_places;
	unsigned place;

	while (!(free_places = places_with(index, bucket, 0))) {
		bucket = next_of(index, bucket);
		if (bucket == home)
			return false;
	}
	place = first_place(free_places);
	index->tags[bucket].tags[place] = tag_of(entry->hash);
	index->places[bucket].entries[place] = entry;
	for (; home != bucket; home = next_of(index, home))
		if (index->tags[home].passed != PASSED_MANY)
			index->tags[home].passed++;
	return true;
}

static bool take_out(struct key_index *index, const struct key_entry *entry)
{
	size_t home = home_of(index, entry->hash), bucket = home;

	for (;;) {
		uint64_t places = places_with(index, bucket, tag_of(entry->hash));

		while (places && index->places[bucket].entries[first_place(places)] != entry)
			places &= places - 1;
		if (places) {
			index->tags[bucket].tags[first_place(places)] = 0;
			break;
		}
		if (!index->tags[bucket].passed || next_of(index, bucket) == home)
			return false;
		bucket = next_of(index, bucket);
	}
	for (; home != bucket; home = next_of(index, home))
		if (index->tags[home].passed != PASSED_MANY)
			index->tags[home].passed--;
	return true;
}

/* The one of these entries that is this key. */
static struct key_entry *choose(struct key_entry *const *entries, uint64_t places, uint64_t hash,
				const void *bytes, size_t length)
{
	for (; places; places &= places - 1) {
		struct key_entry *entry = entries[first_place(places)];

		if (entry->hash == hash && entry->length == length &&
		    !memcmp(entry->bytes, bytes, length))
			return entry;
	}
	return NULL;
}

static struct key_entry *look(const struct key_index *index, uint64_t hash, const void *bytes,
			      size_t length)
{
	size_t home = home_of(index, hash), bucket = home;
	struct key_entry *entry;

	do {
		entry = choose(index->places[bucket].entries,
			       places_with(index, bucket, tag_of(hash)), hash, bytes, length);
		if (entry || !index->tags[bucket].passed)
			return entry;
		bucket = next_of(index, bucket);
	} while (bucket != home);
	return NULL;
}

/* What put() or a look for a key with this hash will touch. */
static void fetch(const struct key_index *index, uint64_t hash)
{
	__builtin_prefetch(&index->places[home_of(index, hash)], 1);
	__builtin_prefetch(&index->tags[home_of(index, hash)], 1);
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

/* Of the tags, which come first: the places behind them begin a line. */
static size_t tags_size(size_t buckets)
{
	size_t size = buckets * sizeof(struct key_tags);

	return size < LINE ? LINE : size;
}

static size_t index_size(size_t buckets)
{
	return tags_size(buckets) + buckets * sizeof(struct key_places);
}

static bool index_open(struct key_index *index, size_t buckets)
{
	size_t size = index_size(buckets);
	uint8_t *memory;

	if (size >= HUGE_PAGE) {
		memory = map_buckets(size);
	} else {
		memory = aligned_alloc(LINE, size);
		if (memory)
			memset(memory, 0, tags_size(buckets));
	}
	if (!memory)
		return false;
	index->tags = (struct key_tags *)memory;
	index->places = (struct key_places *)(memory + tags_size(buckets));
	index->mask = buckets - 1;
	return true;
}

static void index_close(struct key_index *index)
{
	size_t size = index_size(index->mask + 1);

	if (index->tags && size >= HUGE_PAGE)
		munmap(index->tags, size);
	else
		free(index->tags);
	*index = (struct key_index){0};
}

static void free_entries(struct key_index *index)
{
	for (size_t i = 0; index->tags && i <= index->mask; i++)
		for (unsigned place = 0; place < PLACES; place++)
			if (index->tags[i].tags[place])
				free(index->places[i].entries[place]);
	index_close(index);
}

void keys_free(struct keys *keys)
{
	for (unsigned i = 0; i < KEYS_YOUNG; i++)
		if (keys->young_tags[i])
			free(keys->young[i]);
	free_entries(&keys->index);
	free_entries(&keys->old);
	keys_init(keys, keys->seed);
}

/* ---- Growing and shrinking --------------------------------------------- */

/*
 * The new index has room for all, and for what is added in the meantime. What has passed a bucket
 * of the old one stays counted: a search there goes too far at worst.
 */
static void move_bucket(struct keys *keys, size_t bucket)
{
	struct key_tags *tags = &keys->old.tags[bucket];

	for (unsigned place = 0; place < PLACES; place++) {
		if (tags->tags[place])
			put(&keys->index, keys->old.places[bucket].entries[place]);
		tags->tags[place] = 0;
	}
}

static void move_buckets(struct keys *keys, size_t most)
{
	for (; keys->old.tags && most; most--) {
		move_bucket(keys, keys->old_next);
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

	if (!keys->index.tags)
		return;
	if (!keys->old.tags && keys->count > GROW_AT(buckets))
		start_resize(keys, buckets * 2);
	else if (!keys->old.tags && buckets > BUCKETS_MIN && keys->count < SHRINK_AT(buckets))
		start_resize(keys, buckets / 2);
	move_buckets(keys, keys->old.mask > keys->index.mask ? MOVES_SHRINKING : MOVES_GROWING);
}

/* ---- The young ones ---------------------------------------------------- */

static struct key_entry *look_among_young(struct keys *keys, uint64_t hash, const void *bytes,
					  size_t length)
{
	return choose(keys->young, bytes_with(keys->young_tags, tag_of(hash)), hash, bytes, length);
}

/* False: no memory for a table, or for a larger one where this one is full. */
static bool place(struct keys *keys, struct key_entry *entry)
{
	if (!keys->index.tags && !index_open(&keys->index, BUCKETS_MIN))
		return false;
	if (put(&keys->index, entry))
		return true;
	resize_a_little(keys);
	return put(&keys->index, entry);
}

/* It takes the place of the one that was added KEYS_YOUNG keys ago, which goes into the table. */
static bool add_young(struct keys *keys, struct key_entry *entry)
{
	unsigned at = keys->young_next;
	struct key_entry *grown = keys->young[at];

	if (keys->young_tags[at]) {
		if (!place(keys, grown))
			return false;
		grown->ahead = entry;
		grown->ahead_hash = (uint32_t)entry->hash;
	}
	keys->young[at] = entry;
	keys->young_tags[at] = tag_of(entry->hash);
	keys->young_next = (at + 1) % KEYS_YOUNG;
	if (keys->index.tags)
		fetch(&keys->index, entry->hash);
	return true;
}

static bool drop_young(struct keys *keys, const struct key_entry *entry)
{
	uint64_t young = bytes_with(keys->young_tags, tag_of(entry->hash));

	for (; young; young &= young - 1)
		if (keys->young[first_place(young)] == entry) {
			keys->young_tags[first_place(young)] = 0;
			return true;
		}
	return false;
}

/* ---- Finding ----------------------------------------------------------- */

static struct key_entry *find(struct keys *keys, uint64_t hash, const void *bytes, size_t length)
{
	struct key_entry *entry = look_among_young(keys, hash, bytes, length);

	if (entry || !keys->index.tags)
		return entry;
	entry = look(&keys->index, hash, bytes, length);
	if (!entry && keys->old.tags)
		entry = look(&keys->old, hash, bytes, length);
	if (entry && entry->ahead) {
		/* It may be gone: to fetch what is no entry any more does nothing. */
		__builtin_prefetch(entry->ahead, 1);
		fetch(&keys->index, entry->ahead_hash);
	}
	return entry;
}

static struct key_entry *entry_new(uint64_t hash, const void *bytes, size_t length)
{
	struct key_entry *entry = malloc(sizeof(*entry) + length);

	if (!entry)
		return NULL;
	entry->hash = hash;
	entry->ahead = NULL;
	TAILQ_INIT(&entry->sends);
	TAILQ_INIT(&entry->slots);
	entry->length = (uint8_t)length;
	memcpy(entry->bytes, bytes, length);
	return entry;
}

struct key_entry *keys_find_or_add(struct keys *keys, const void *bytes, size_t length)
{
	uint64_t hash = XXH3_64bits_withSeed(bytes, length, keys->seed);
	struct key_entry *entry = find(keys, hash, bytes, length);

	if (entry)
		return entry;
	entry = entry_new(hash, bytes, length);
	if (!entry)
		return NULL;
	if (!add_young(keys, entry)) {
		free(entry);
		return NULL;
	}
	keys->count++;
	resize_a_little(keys);
	return entry;
}

void keys_drop_if_empty(struct keys *keys, struct key_entry *entry)
{
	if (!TAILQ_EMPTY(&entry->sends) || !TAILQ_EMPTY(&entry->slots))
		return;
	if (!drop_young(keys, entry) && !take_out(&keys->index, entry))
		take_out(&keys->old, entry);
	free(entry);
	keys->count--;
	resize_a_little(keys);
}
