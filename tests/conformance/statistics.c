/* SPDX-License-Identifier: Apache-2.0 */
/* Counters that add up. */
#include "harness.h"

#include <errno.h>

static struct haul_statistics of_endpoint(haul_endpoint *endpoint)
{
	struct haul_statistics statistics = {.size = sizeof(statistics)};

	assert_int_equal(haul_endpoint_statistics(endpoint, &statistics), 0);
	assert_int_equal(statistics.size, sizeof(statistics));
	return statistics;
}

static struct haul_statistics of_context(haul_context *context)
{
	struct haul_statistics statistics = {.size = sizeof(statistics)};

	assert_int_equal(haul_context_statistics(context, &statistics), 0);
	return statistics;
}

static void test_tensors_and_bytes_are_counted(void **state)
{
	enum { COUNT = 10 };
	struct world *world = *state;
	struct block *small = block_new(world, 1000), *large = block_new(world, 4 << 20);
	struct block *target = block_new(world, 4 << 20);
	struct haul_statistics sender, receiver;
	uint64_t bytes = 0, started;
	struct pair pair;

	pair_open(world, NULL, &pair);
	started = now_us();
	for (int i = 0; i < COUNT; i++) {
		struct block *source = i % 2 ? large : small;

		post_recv(&pair.up, haul_key("k"), &target->tensor);
		post_send(&pair.up, haul_key("k"), &source->tensor);
		bytes += source->bytes;
		wait_all(world);
	}
	sender = of_endpoint(pair.up.out);
	receiver = of_endpoint(pair.up.in);
	assert_int_equal(sender.tensors_sent, COUNT);
	assert_int_equal(sender.bytes_sent, bytes);
	assert_int_equal(sender.tensors_received, 0);
	assert_int_equal(sender.bytes_received, 0);
	assert_int_equal(receiver.tensors_received, COUNT);
	assert_int_equal(receiver.bytes_received, bytes);
	assert_int_equal(receiver.tensors_sent, 0);
	assert_true(sender.chunks_sent >= COUNT / 2);
	assert_int_equal(sender.tensors_again, 0);
	assert_true(sender.streams >= 1 && receiver.streams >= 1);
	assert_int_equal(sender.operations, 0);
	assert_int_equal(receiver.operations, 0);
	assert_true(sender.move_ns > 0);
	assert_true(sender.move_ns / 1000 <= now_us() - started);
}

static void test_waiting_for_a_receive_is_counted(void **state)
{
	struct world *world = *state;
	struct block *source = block_new(world, 100), *target = block_new(world, 100);
	struct haul_statistics before, after;
	struct pair pair;

	pair_open(world, NULL, &pair);
	post_recv(&pair.up, haul_key("k"), &target->tensor);
	world_run_for(world, 30);
	post_send(&pair.up, haul_key("k"), &source->tensor);
	wait_all(world);
	before = of_endpoint(pair.up.out);
	assert_in_range(before.wait_ns, 0, 20000000); /* the receive was there already */
	post_send(&pair.up, haul_key("k"), &source->tensor);
	world_run_for(world, 60);
	post_recv(&pair.up, haul_key("k"), &target->tensor);
	wait_all(world);
	after = of_endpoint(pair.up.out);
	assert_in_range(after.wait_ns - before.wait_ns, 59000000, 3000000000u);
}

static void test_open_operations_are_counted(void **state)
{
	struct world *world = *state;
	struct block *block = block_new(world, 100);
	struct pair pair;

	pair_open(world, NULL, &pair);
	post_recv(&pair.up, haul_key("a"), &block->tensor);
	post_query(&pair.up, haul_key("b"));
	post_send(&pair.down, haul_key("c"), &block->tensor);
	world_run_for(world, 5);
	assert_int_equal(of_endpoint(pair.up.in).operations, 3);
	assert_int_equal(of_context(pair.a->context).operations, 3);
	assert_int_equal(of_endpoint(pair.up.out).operations, 0);
	haul_disconnect(pair.up.in);
	assert_int_equal(of_context(pair.a->context).operations, 0);
}

/* A context's sum has its released endpoints in it. */
static void test_sum_of_a_context(void **state)
{
	struct world *world = *state;
	struct block *source = block_new(world, 500), *target = block_new(world, 500);
	struct haul_statistics sum;
	struct way up, down;
	struct pair pair;

	pair_open(world, NULL, &pair);
	connect_sides(pair.b, pair.a, &up, &down);
	for (int i = 0; i < 3; i++) {
		const struct way *way = i ? &up : &pair.up;

		post_recv(way, haul_key("k"), &target->tensor);
		post_send(way, haul_key("k"), &source->tensor);
		wait_all(world);
	}
	haul_disconnect(up.out);
	wait_lost(pair.a, 1);
	haul_disconnect(up.in);
	sum = of_context(pair.b->context);
	assert_int_equal(sum.tensors_sent, 3);
	assert_int_equal(sum.bytes_sent, 1500);
	sum = of_context(pair.a->context);
	assert_int_equal(sum.tensors_received, 3);
	assert_int_equal(sum.bytes_received, 1500);
}

static void test_statistics_of_another_size(void **state)
{
	struct world *world = *state;
	struct haul_statistics statistics = {.size = sizeof(statistics) - 8};
	struct pair pair;

	pair_open(world, NULL, &pair);
	check_error(pair.a->context, haul_endpoint_statistics(pair.up.in, &statistics), -EINVAL,
		    (const char *const[]){"size", NULL});
	check_error(pair.a->context, haul_context_statistics(pair.a->context, &statistics), -EINVAL,
		    (const char *const[]){"size", NULL});
	assert_int_equal(haul_endpoint_statistics(NULL, &statistics), -EINVAL);
	assert_int_equal(haul_endpoint_statistics(pair.up.in, NULL), -EINVAL);
	assert_int_equal(haul_context_statistics(NULL, &statistics), -EINVAL);
	assert_int_equal(haul_context_statistics(pair.a->context, NULL), -EINVAL);
}

static const struct CMUnitTest tests[] = {
	WORLD_TEST(test_tensors_and_bytes_are_counted),
	WORLD_TEST(test_waiting_for_a_receive_is_counted),
	WORLD_TEST(test_open_operations_are_counted),
	WORLD_TEST(test_sum_of_a_context),
	WORLD_TEST(test_statistics_of_another_size),
};

const struct test_table statistics_tests = TABLE_OF(tests);
