/* SPDX-License-Identifier: Apache-2.0 */
#include "unit.h"

#include <errno.h>

#include "engine/deadlines.h"
#include "failing_memory.h"

#define MANY 3000

/* The heap's rule, and that everybody in it knows his place. */
static void check_heap(const struct deadlines *deadlines)
{
	for (size_t i = 1; i <= deadlines->count; i++) {
		assert_int_equal(deadlines->heap[i]->position, i);
		if (i > 1)
			assert_true(deadlines->heap[i / 2]->at <= deadlines->heap[i]->at);
	}
}

static void empty(void **state)
{
	struct deadlines deadlines = {0};
	struct deadline never = {0};

	assert_null(deadlines_first(&deadlines));
	deadlines_clear(&deadlines, &never);
	assert_null(deadlines_first(&deadlines));
	deadlines_free(&deadlines);
	deadlines_free(&deadlines);
}

static void one(void **state)
{
	struct deadlines deadlines = {0};
	struct deadline deadline = {0};

	assert_int_equal(deadlines_set(&deadlines, &deadline, 5), 0);
	assert_ptr_equal(deadlines_first(&deadlines), &deadline);
	assert_int_equal(deadline.at, 5);
	assert_int_equal(deadlines_set(&deadlines, &deadline, UINT64_MAX), 0);
	assert_int_equal(deadlines.count, 1);
	assert_int_equal(deadline.at, UINT64_MAX);
	deadlines_clear(&deadlines, &deadline);
	assert_int_equal(deadline.position, 0);
	assert_null(deadlines_first(&deadlines));
	deadlines_clear(&deadlines, &deadline);
	deadlines_free(&deadlines);
}

static void come_out_in_order(void **state)
{
	static struct deadline all[MANY];
	struct deadlines deadlines = {0};
	uint64_t seed = 7, last = 0;

	for (size_t i = 0; i < MANY; i++)
		assert_int_equal(deadlines_set(&deadlines, &all[i], unit_random(&seed) % 500), 0);
	check_heap(&deadlines);
	for (size_t i = 0; i < MANY; i++) {
		struct deadline *first = deadlines_first(&deadlines);

		assert_non_null(first);
		assert_true(first->at >= last);
		last = first->at;
		deadlines_clear(&deadlines, first);
	}
	assert_null(deadlines_first(&deadlines));
	deadlines_free(&deadlines);
}

/* Set, move and clear at random; the first one is always the least of those that are set. */
static void random_against_model(void **state)
{
	static struct deadline all[64];
	struct deadlines deadlines = {0};
	uint64_t seed = 99;

	for (unsigned step = 0; step < 50000; step++) {
		struct deadline *chosen = &all[unit_random(&seed) % COUNT(all)];
		struct deadline *first;
		uint64_t least = UINT64_MAX;
		size_t set = 0;

		if (unit_random(&seed) % 3)
			assert_int_equal(
				deadlines_set(&deadlines, chosen, unit_random(&seed) % 1000), 0);
		else
			deadlines_clear(&deadlines, chosen);
		for (size_t i = 0; i < COUNT(all); i++) {
			if (!all[i].position)
				continue;
			set++;
			least = all[i].at < least ? all[i].at : least;
		}
		first = deadlines_first(&deadlines);
		assert_int_equal(deadlines.count, set);
		assert_true(set ? first->at == least : !first);
		check_heap(&deadlines);
	}
	deadlines_free(&deadlines);
	for (size_t i = 0; i < COUNT(all); i++)
		assert_int_equal(all[i].position, 0);
}

static void without_memory(void **state)
{
	static struct deadline all[1000];
	struct deadlines deadlines = {0};
	size_t set = 0;

	memory_left = 0;
	assert_int_equal(deadlines_set(&deadlines, &all[0], 1), -ENOMEM);
	assert_int_equal(all[0].position, 0);
	assert_null(deadlines_first(&deadlines));
	memory_left = 2;
	while (set < COUNT(all) && !deadlines_set(&deadlines, &all[set], 1000 - set))
		set++;
	assert_in_range(set, 1, COUNT(all) - 1);
	/* Those that are set can still be moved. */
	assert_int_equal(deadlines_set(&deadlines, &all[0], 0), 0);
	memory_left = -1;
	assert_ptr_equal(deadlines_first(&deadlines), &all[0]);
	check_heap(&deadlines);
	deadlines_free(&deadlines);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(empty),
		cmocka_unit_test(one),
		cmocka_unit_test(come_out_in_order),
		cmocka_unit_test(random_against_model),
		cmocka_unit_test(without_memory),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
