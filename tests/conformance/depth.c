/* SPDX-License-Identifier: Apache-2.0 */
/* Very many operations at once, and peers that remember only a few receives. */
#include "harness.h"

#include <errno.h>
#include <stdio.h>

enum { OUTSTANDING = 10000 };

struct numbers {
	uint64_t *from, *into;
	unsigned count;
	char prefix; /* of its keys */
};

static struct numbers numbers_new(struct world *world, unsigned count, char prefix)
{
	struct numbers numbers = {.count = count, .prefix = prefix};

	numbers.from = world_memory(world, count * sizeof(uint64_t));
	numbers.into = world_memory(world, count * sizeof(uint64_t));
	for (unsigned i = 0; i < count; i++)
		numbers.from[i] = i + 1;
	return numbers;
}

/* `keys`: how many different keys the numbers are spread over. */
static void post_one(const struct way *way, struct numbers *numbers, unsigned i, unsigned keys,
		     bool send)
{
	DLTensor tensor = haul_tensor(send ? &numbers->from[i] : &numbers->into[i],
				      (DLDataType){kDLUInt, 64, 1}, 0, NULL);
	char key[24];

	snprintf(key, sizeof(key), "%c%u", numbers->prefix, i % keys);
	if (send)
		post_send(way, haul_key(key), &tensor);
	else
		post_recv(way, haul_key(key), &tensor);
}

static void post_all(const struct way *way, struct numbers *numbers, unsigned keys, bool send)
{
	for (unsigned i = 0; i < numbers->count; i++)
		post_one(way, numbers, i, keys, send);
}

static void check_numbers(const struct numbers *numbers)
{
	for (unsigned i = 0; i < numbers->count; i++)
		assert_int_equal(numbers->into[i], i + 1);
}

static void test_f11_10000_sends_then_receives(void **state)
{
	struct world *world = *state;
	struct numbers many = numbers_new(world, OUTSTANDING, 'm');
	struct numbers one = numbers_new(world, OUTSTANDING, 'o');
	struct pair pair;

	pair_open(world, NULL, &pair);
	post_all(&pair.up, &many, OUTSTANDING, true);
	post_all(&pair.up, &one, 1, true);
	world_run_for(world, 20);
	assert_int_equal(pair.b->finished, 1); /* the connect */
	post_all(&pair.up, &many, OUTSTANDING, false);
	post_all(&pair.up, &one, 1, false);
	wait_all(world);
	check_numbers(&many);
	check_numbers(&one);
}

static void test_f11_10000_receives_then_sends(void **state)
{
	struct world *world = *state;
	struct numbers many = numbers_new(world, OUTSTANDING, 'm');
	struct numbers one = numbers_new(world, OUTSTANDING, 'o');
	struct pair pair;

	pair_open(world, NULL, &pair);
	post_all(&pair.up, &many, OUTSTANDING, false);
	post_all(&pair.up, &one, 1, false);
	world_run_for(world, 20);
	post_all(&pair.up, &one, 1, true);
	post_all(&pair.up, &many, OUTSTANDING, true);
	wait_all(world);
	check_numbers(&many);
	check_numbers(&one);
}

/* The receives beyond the peer's slots wait here, and are posted as others end. */
static void few_slots(struct world *world, const char *options, unsigned keys)
{
	struct numbers up = numbers_new(world, 1000, 'u'), down = numbers_new(world, 1000, 'd');
	struct pair pair;

	pair_open(world, options, &pair);
	post_all(&pair.up, &up, keys, false);
	post_all(&pair.down, &down, keys, false);
	world_run_for(world, 10);
	post_all(&pair.up, &up, keys, true);
	post_all(&pair.down, &down, keys, true);
	wait_all(world);
	check_numbers(&up);
	check_numbers(&down);
}

static void test_slots_4_with_1000_receives(void **state)
{
	few_slots(*state, "slots=4", 1000);
}

static void test_slots_4_with_1000_receives_of_7_keys(void **state)
{
	few_slots(*state, "slots=4", 7);
}

static void test_slots_1_with_1000_receives(void **state)
{
	few_slots(*state, "slots=1", 1000);
}

/* Receives that no send will meet fill the peer's slots; cancelling them makes room. */
static void test_slots_filled_by_receives_without_sends(void **state)
{
	struct world *world = *state;
	struct block *blocks[8], *source = block_new(world, 10), *target = block_new(world, 10);
	struct entry *stuck[8], *received;
	struct pair pair;
	char key[24];

	pair_open(world, "slots=4", &pair);
	for (int i = 0; i < 8; i++) {
		snprintf(key, sizeof(key), "stuck %d", i);
		blocks[i] = block_new(world, 10);
		stuck[i] = post_recv(&pair.up, haul_key(key), &blocks[i]->tensor);
	}
	received = post_recv(&pair.up, haul_key("go"), &target->tensor);
	post_send(&pair.up, haul_key("go"), &source->tensor);
	world_run_for(world, 20);
	assert_false(received->done);
	for (int i = 0; i < 8; i++)
		assert_int_equal(haul_cancel(pair.a->context, stuck[i]), 1);
	wait_result(received, 0);
	wait_all(world);
	for (int i = 0; i < 8; i++)
		check_result(stuck[i], -ECANCELED);
}

/* Depth plus one at once, with tensors that don't fit into any socket buffer. */
static void test_f11_many_large_tensors_at_once(void **state)
{
	enum { COUNT = 64, BYTES = 1 << 20 };
	struct world *world = *state;
	struct block *sources[COUNT], *targets[COUNT];
	struct pair pair;
	char key[24];

	pair_open(world, NULL, &pair);
	for (unsigned i = 0; i < COUNT; i++) {
		sources[i] = block_new(world, BYTES + i);
		targets[i] = block_new(world, BYTES + i);
		block_fill(sources[i], i);
		snprintf(key, sizeof(key), "%u", i);
		post_send(i % 2 ? &pair.up : &pair.down, haul_key(key), &sources[i]->tensor);
		post_recv(i % 2 ? &pair.up : &pair.down, haul_key(key), &targets[i]->tensor);
	}
	wait_all(world);
	for (unsigned i = 0; i < COUNT; i++)
		block_check(targets[i], i);
}

static const struct CMUnitTest tests[] = {
	WORLD_TEST(test_f11_10000_sends_then_receives),
	WORLD_TEST(test_f11_10000_receives_then_sends),
	WORLD_TEST(test_slots_4_with_1000_receives),
	WORLD_TEST(test_slots_4_with_1000_receives_of_7_keys),
	WORLD_TEST(test_slots_1_with_1000_receives),
	WORLD_TEST(test_slots_filled_by_receives_without_sends),
	WORLD_TEST(test_f11_many_large_tensors_at_once),
};

const struct test_table depth_tests = TABLE_OF(tests);
