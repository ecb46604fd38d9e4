/* SPDX-License-Identifier: Apache-2.0 */
/* Tensors that don't fit, and questions of what will come. */
#include "harness.h"

#include <errno.h>
#include <stdio.h>

static struct block *filled(struct world *world, size_t bytes, uint64_t seed)
{
	struct block *block = block_new(world, bytes);

	block_fill(block, seed);
	return block;
}

static void check_told(const struct entry *entry, int result, uint64_t bytes)
{
	check_result(entry, result);
	assert_int_equal(entry->tensor.bytes, bytes);
	assert_int_equal(entry->tensor.ndim, 1);
	assert_int_equal(entry->tensor.shape[0], bytes);
	assert_int_equal(entry->tensor.dtype.bits, 8);
}

/* 8 bytes into 4: refused with the size, nothing is written, and the traffic goes on. */
static void test_f17_refused_then_next(void **state)
{
	struct world *world = *state;
	struct block *source = filled(world, 8, 1), *large = filled(world, 4000, 2);
	struct block *small = block_new(world, 4), *target = block_new(world, 4000);
	struct pair pair;

	pair_open(world, NULL, &pair);
	for (int early = 0; early < 2; early++) {
		struct entry *refused = NULL, *sent, *received;

		if (early)
			refused = post_recv(&pair.up, haul_key("k"), &small->tensor);
		sent = post_send(&pair.up, haul_key("k"), &source->tensor);
		if (!early)
			refused = post_recv(&pair.up, haul_key("k"), &small->tensor);
		wait_done(refused);
		check_told(refused, -EMSGSIZE, 8);
		assert_false(sent->done);
		for (int i = 0; i < 4; i++)
			assert_int_equal(small->data[i], 0);
		received = post_recv(&pair.up, haul_key("k"), &target->tensor);
		wait_result(received, 0);
		wait_result(sent, 0);
		assert_true(pattern_holds(target->data, 8, 1, 0, NULL));
		post_send(&pair.up, haul_key("k"), &large->tensor);
		post_recv(&pair.up, haul_key("k"), &target->tensor);
		wait_all(world);
		block_check(target, 2);
	}
}

/* The refused send keeps its place before later sends of its key. */
static void test_refused_send_keeps_its_place(void **state)
{
	enum { COUNT = 50 };
	struct world *world = *state;
	struct block *first = filled(world, 1000, 1), *second = filled(world, 10, 2);
	struct block *one = block_new(world, 1000), *two = block_new(world, 1000);
	struct block *small = block_new(world, 999);
	struct entry *refused[COUNT];
	struct pair pair;

	pair_open(world, NULL, &pair);
	post_send(&pair.up, haul_key("k"), &first->tensor);
	post_send(&pair.up, haul_key("k"), &second->tensor);
	for (int i = 0; i < COUNT; i++)
		refused[i] = post_recv(&pair.up, haul_key("k"), &small->tensor);
	post_recv(&pair.up, haul_key("k"), &one->tensor);
	post_recv(&pair.up, haul_key("k"), &two->tensor);
	wait_all(world);
	for (int i = 0; i < COUNT; i++)
		check_told(refused[i], -EMSGSIZE, 1000);
	block_check(one, 1);
	assert_true(pattern_holds(two->data, 10, 2, 0, NULL));
}

static void test_refused_into_no_room_at_all(void **state)
{
	struct world *world = *state;
	struct block *source = filled(world, 1, 1), *none = block_new(world, 0);
	struct block *target = block_new(world, 1);
	struct entry *refused;
	struct pair pair;

	pair_open(world, NULL, &pair);
	post_send(&pair.up, haul_key("k"), &source->tensor);
	refused = post_recv(&pair.up, haul_key("k"), &none->tensor);
	wait_done(refused);
	check_told(refused, -EMSGSIZE, 1);
	post_recv(&pair.up, haul_key("k"), &target->tensor);
	wait_all(world);
	block_check(target, 1);
}

/* A refused send can be cancelled like any that waits. */
static void test_refused_then_cancelled(void **state)
{
	struct world *world = *state;
	struct block *source = filled(world, 100, 1), *next = filled(world, 50, 2);
	struct block *target = block_new(world, 50);
	struct entry *sent, *refused;
	struct pair pair;

	pair_open(world, NULL, &pair);
	sent = post_send(&pair.up, haul_key("k"), &source->tensor);
	refused = post_recv(&pair.up, haul_key("k"), &target->tensor);
	wait_result(refused, -EMSGSIZE);
	assert_int_equal(haul_cancel(pair.b->context, sent), 1);
	wait_result(sent, -ECANCELED);
	post_send(&pair.up, haul_key("k"), &next->tensor);
	post_recv(&pair.up, haul_key("k"), &target->tensor);
	wait_all(world);
	block_check(target, 2);
}

static void test_query_before_and_after_the_send(void **state)
{
	struct world *world = *state;
	struct block *source = filled(world, 777, 1), *target = block_new(world, 777);
	struct entry *before, *after, *again, *sent;
	struct pair pair;

	pair_open(world, NULL, &pair);
	before = post_query(&pair.up, haul_key("k"));
	world_run_for(world, 10);
	assert_false(before->done);
	sent = post_send(&pair.up, haul_key("k"), &source->tensor);
	wait_done(before);
	check_told(before, 0, 777);
	after = post_query(&pair.up, haul_key("k"));
	again = post_query(&pair.up, haul_key("k"));
	wait_done(after);
	wait_done(again);
	check_told(after, 0, 777);
	check_told(again, 0, 777);
	assert_false(sent->done);
	post_recv(&pair.up, haul_key("k"), &target->tensor);
	wait_all(world);
	block_check(target, 1);
}

/* A query takes its place among the receives: it tells what the next of them gets. */
static void test_query_among_receives(void **state)
{
	struct world *world = *state;
	struct block *sources[3], *targets[3];
	struct entry *queries[4];
	struct pair pair;

	pair_open(world, NULL, &pair);
	for (int early = 0; early < 2; early++) {
		for (int i = 0; i < 3; i++) {
			sources[i] = filled(world, 100 + (size_t)i, (uint64_t)i);
			targets[i] = block_new(world, 100 + (size_t)i);
		}
		for (int i = 0; i < 3 && !early; i++)
			post_send(&pair.up, haul_key("k"), &sources[i]->tensor);
		for (int i = 0; i < 3; i++) {
			queries[i] = post_query(&pair.up, haul_key("k"));
			post_recv(&pair.up, haul_key("k"), &targets[i]->tensor);
		}
		queries[3] = post_query(&pair.up, haul_key("k"));
		for (int i = 0; i < 3 && early; i++)
			post_send(&pair.up, haul_key("k"), &sources[i]->tensor);
		for (int i = 0; i < 3; i++) {
			wait_done(queries[i]);
			check_told(queries[i], 0, 100 + (uint64_t)i);
		}
		world_run_for(world, 10);
		assert_false(queries[3]->done); /* nothing is left to be told of */
		assert_int_equal(haul_cancel(pair.a->context, queries[3]), 1);
		wait_all(world);
		for (int i = 0; i < 3; i++)
			block_check(targets[i], (uint64_t)i);
	}
}

/* The use of a query: memory of the right size. */
static void test_query_then_receive_of_that_size(void **state)
{
	struct world *world = *state;
	uint64_t random = random_seed();
	struct pair pair;

	pair_open(world, NULL, &pair);
	for (uint64_t i = 0; i < 50; i++) {
		struct block *source = filled(world, random_below(&random, 100000), i), *target;
		struct entry *query = post_query(&pair.up, haul_key("k"));

		post_send(&pair.up, haul_key("k"), &source->tensor);
		wait_result(query, 0);
		target = block_new(world, query->tensor.bytes);
		assert_int_equal(target->bytes, source->bytes);
		wait_result(post_recv(&pair.up, haul_key("k"), &target->tensor), 0);
		block_check(target, i);
	}
}

static const struct CMUnitTest tests[] = {
	WORLD_TEST(test_f17_refused_then_next),
	WORLD_TEST(test_refused_send_keeps_its_place),
	WORLD_TEST(test_refused_into_no_room_at_all),
	WORLD_TEST(test_refused_then_cancelled),
	WORLD_TEST(test_query_before_and_after_the_send),
	WORLD_TEST(test_query_among_receives),
	WORLD_TEST(test_query_then_receive_of_that_size),
};

const struct test_table refuse_tests = TABLE_OF(tests);
