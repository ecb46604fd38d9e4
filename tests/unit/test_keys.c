/* SPDX-License-Identifier: Apache-2.0 */
#include "unit.h"

#include "engine/keys.h"
#include "failing_memory.h"

#define MILLION 1000000
/* Of the smallest table: two buckets. */
#define FIRST_PLACES 14
#define FIRST_KEYS (FIRST_PLACES + KEYS_YOUNG)

struct operation {
	TAILQ_ENTRY(operation) queued;
};

struct remote_slot {
	TAILQ_ENTRY(remote_slot) queued;
};

static struct key_entry *add(struct keys *keys, uint64_t number)
{
	return keys_find_or_add(keys, &number, sizeof(number));
}

/* NULL: it is not there. */
static struct key_entry *find_bytes(struct keys *keys, const void *bytes, size_t length)
{
	size_t count = keys->count;
	struct key_entry *entry = keys_find_or_add(keys, bytes, length);

	if (keys->count == count)
		return entry;
	keys_drop_if_empty(keys, entry);
	return NULL;
}

static struct key_entry *find(struct keys *keys, uint64_t number)
{
	return find_bytes(keys, &number, sizeof(number));
}

static void empty(void **state)
{
	struct keys keys;

	keys_init(&keys, 1);
	assert_null(find_bytes(&keys, "a", 1));
	assert_null(keys.index.tags); /* few keys need no index */
	keys_free(&keys);
	keys_free(&keys);
}

static void lengths_and_bytes_count(void **state)
{
	static uint8_t bytes[255];
	struct keys keys;
	struct key_entry *entries[256] = {0};

	keys_init(&keys, 2);
	for (size_t length = 1; length <= 255; length++) {
		assert_null(find_bytes(&keys, bytes, length));
		entries[length] = keys_find_or_add(&keys, bytes, length);
		assert_non_null(entries[length]);
		assert_int_equal(entries[length]->length, length);
		assert_memory_equal(entries[length]->bytes, bytes, length);
		assert_true(TAILQ_EMPTY(&entries[length]->sends));
		assert_true(TAILQ_EMPTY(&entries[length]->slots));
	}
	for (size_t length = 1; length <= 255; length++) {
		assert_ptr_equal(find_bytes(&keys, bytes, length), entries[length]);
		assert_ptr_equal(keys_find_or_add(&keys, bytes, length), entries[length]);
	}
	bytes[254] = 1;
	assert_null(find_bytes(&keys, bytes, 255));
	assert_ptr_equal(find_bytes(&keys, bytes, 254), entries[254]);
	assert_int_equal(keys.count, 255);
	keys_free(&keys);
}

/* A stranger under the same hash (forged here) is not taken for the key. */
static void same_hash_other_key(void **state)
{
	struct keys keys;
	struct key_entry *entry, *other;

	keys_init(&keys, 3);
	entry = keys_find_or_add(&keys, "apple", 5);
	other = keys_find_or_add(&keys, "peach", 5);
	memcpy(entry->bytes, "grape", 5); /* under the hash of "apple" */
	assert_null(find_bytes(&keys, "apple", 5));
	entry->length = 4;
	memcpy(entry->bytes, "apple", 5); /* or the beginning of it */
	assert_null(find_bytes(&keys, "apple", 5));
	assert_ptr_equal(find_bytes(&keys, "peach", 5), other);
	assert_ptr_not_equal(keys_find_or_add(&keys, "apple", 5), entry);
	assert_int_equal(keys.count, 3);
	keys_drop_if_empty(&keys, entry); /* found by its address among those of the same hash */
	assert_non_null(find_bytes(&keys, "apple", 5));
	assert_int_equal(keys.count, 2);
	keys_free(&keys);
}

static void kept_while_a_queue_is_not_empty(void **state)
{
	struct operation send;
	struct remote_slot slot;
	struct keys keys;
	struct key_entry *entry;

	keys_init(&keys, 4);
	entry = keys_find_or_add(&keys, "k", 1);
	TAILQ_INSERT_TAIL(&entry->sends, &send, queued);
	keys_drop_if_empty(&keys, entry);
	assert_ptr_equal(find_bytes(&keys, "k", 1), entry);
	TAILQ_REMOVE(&entry->sends, &send, queued);
	TAILQ_INSERT_TAIL(&entry->slots, &slot, queued);
	keys_drop_if_empty(&keys, entry);
	assert_ptr_equal(find_bytes(&keys, "k", 1), entry);
	TAILQ_REMOVE(&entry->slots, &slot, queued);
	keys_drop_if_empty(&keys, entry);
	assert_null(find_bytes(&keys, "k", 1));
	assert_int_equal(keys.count, 0);
	keys_free(&keys);
}

static void a_million(void **state)
{
	static struct key_entry *entries[MILLION];
	struct keys keys;

	keys_init(&keys, 5);
	for (uint64_t i = 0; i < MILLION; i++) {
		entries[i] = add(&keys, i);
		assert_non_null(entries[i]);
	}
	assert_int_equal(keys.count, MILLION);
	/* Seven keys to a bucket: 40 to 75 % of the places are taken. */
	assert_in_range(keys.index.mask + 1, MILLION / 5.25, MILLION / 2.8);
	for (uint64_t i = 0; i < MILLION; i++)
		assert_ptr_equal(find(&keys, i), entries[i]);
	for (uint64_t i = MILLION; i < 2 * MILLION; i++)
		assert_null(find(&keys, i));
	for (uint64_t i = 0; i < MILLION; i++) {
		keys_drop_if_empty(&keys, entries[i]);
		assert_null(find(&keys, i));
		if (i % 997 == 0 && i + 1 < MILLION)
			assert_ptr_equal(find(&keys, MILLION - 1), entries[MILLION - 1]);
	}
	assert_int_equal(keys.count, 0);
	/* The memory went back with the keys. */
	assert_true(keys.index.mask + 1 <= 64);
	keys_free(&keys);
}

/* How many buckets a call moves is bounded, whatever the table's size. */
static void grows_step_by_step(void **state)
{
	struct keys keys;
	size_t most = 0, resizes = 0;

	keys_init(&keys, 6);
	for (uint64_t i = 0; i < 200000; i++) {
		bool moving = keys.old.tags;
		size_t before = keys.old_next, end = keys.old.mask + 1;

		assert_non_null(add(&keys, i));
		resizes += !moving && keys.old.tags;
		if (moving) {
			size_t moved = (keys.old.tags ? keys.old_next : end) - before;

			most = moved > most ? moved : most;
		}
	}
	assert_int_equal(most, 1);
	assert_in_range(resizes, 10, 20);
	keys_free(&keys);
}

/* Add, find and drop at random against a plain array, with phases that grow and shrink. */
static void random_against_model(void **state)
{
	static struct key_entry *model[5000];
	struct keys keys;
	uint64_t seed = 42;
	size_t count = 0;

	keys_init(&keys, 7);
	for (unsigned step = 0; step < 600000; step++) {
		uint64_t number = unit_random(&seed) % COUNT(model);
		bool growing = step / 30000 % 2 == 0;
		bool adding = unit_random(&seed) % 10 < (growing ? 8 : 2);

		assert_ptr_equal(find(&keys, number), model[number]);
		if (adding && !model[number]) {
			model[number] = add(&keys, number);
			assert_non_null(model[number]);
			count++;
		} else if (!adding && model[number]) {
			keys_drop_if_empty(&keys, model[number]);
			model[number] = NULL;
			count--;
		}
		assert_int_equal(keys.count, count);
	}
	for (uint64_t i = 0; i < COUNT(model); i++)
		assert_ptr_equal(find(&keys, i), model[i]);
	keys_free(&keys);
}

static void without_memory(void **state)
{
	struct keys keys;

	keys_init(&keys, 8);
	for (uint64_t i = 0; i < KEYS_YOUNG; i++) {
		memory_left = 0;
		assert_null(add(&keys, i)); /* the entry */
		memory_left = -1;
		assert_non_null(add(&keys, i));
	}
	memory_left = 1;
	assert_null(add(&keys, KEYS_YOUNG)); /* the buckets */
	assert_int_equal(keys.count, KEYS_YOUNG);
	memory_left = 2;
	assert_non_null(add(&keys, KEYS_YOUNG));
	/* One allocation for each entry of the two buckets, and none for a larger table. */
	for (uint64_t i = KEYS_YOUNG + 1; i < FIRST_KEYS; i++) {
		memory_left = 1;
		assert_non_null(add(&keys, i));
	}
	memory_left = 1;
	assert_null(add(&keys, FIRST_KEYS)); /* no place left */
	memory_left = -1;
	assert_int_equal(keys.count, FIRST_KEYS);
	assert_int_equal(keys.index.mask + 1, 2);
	for (uint64_t i = 0; i < FIRST_KEYS; i++)
		assert_non_null(find(&keys, i));
	for (uint64_t i = FIRST_KEYS; i < 100; i++)
		assert_non_null(add(&keys, i));
	assert_true(keys.index.mask + 1 >= 16);
	for (uint64_t i = 0; i < 100; i++)
		assert_non_null(find(&keys, i));
	keys_free(&keys);
}

/* Where many keys want one place they go elsewhere, and are all found as others come and go. */
static void crowded(void **state)
{
	static struct key_entry *entries[KEYS_YOUNG + 3 * FIRST_PLACES / 4];
	struct keys keys;

	for (uint64_t seed = 0; seed < 200; seed++) {
		keys_init(&keys, seed);
		for (uint64_t turn = 0; turn < 50; turn++) {
			for (uint64_t i = 0; i < COUNT(entries); i++) {
				memory_left = keys.index.tags ? 1 : 2; /* it can't grow */
				entries[i] = add(&keys, turn * COUNT(entries) + i);
				assert_non_null(entries[i]);
			}
			memory_left = -1;
			for (uint64_t i = 0; i < COUNT(entries); i++)
				assert_ptr_equal(find(&keys, turn * COUNT(entries) + i),
						 entries[i]);
			for (uint64_t i = 0; i < COUNT(entries); i++)
				keys_drop_if_empty(&keys, entries[(i * 7) % COUNT(entries)]);
		}
		assert_int_equal(keys.count, 0);
		keys_free(&keys);
	}
}

/* The peer chooses keys: under another seed they must fall elsewhere. */
static void seed_matters(void **state)
{
	struct keys first, second;

	keys_init(&first, 1);
	keys_init(&second, 2);
	assert_true(add(&first, 77)->hash != add(&second, 77)->hash);
	keys_free(&first);
	keys_free(&second);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(empty),
		cmocka_unit_test(lengths_and_bytes_count),
		cmocka_unit_test(same_hash_other_key),
		cmocka_unit_test(kept_while_a_queue_is_not_empty),
		cmocka_unit_test(a_million),
		cmocka_unit_test(grows_step_by_step),
		cmocka_unit_test(random_against_model),
		cmocka_unit_test(without_memory),
		cmocka_unit_test(crowded),
		cmocka_unit_test(seed_matters),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
