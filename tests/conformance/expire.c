/* SPDX-License-Identifier: Apache-2.0 */
/* Deadlines: cancels that a clock asks for. */
#include "harness.h"

#include <errno.h>
#include <stdio.h>

/* How late a deadline may come on a busy machine, in ms. */
#define LATE_MS 1500

static struct entry *post_timed(const struct way *way, enum haul_event event, const char *key,
				struct block *block, uint64_t timeout_ms)
{
	struct extra extra = {.timeout_ms = timeout_ms};

	return post_with(way, event, haul_key(key), block ? &block->tensor : NULL, &extra);
}

static void check_time(uint64_t started, uint64_t timeout_ms)
{
	uint64_t took = now_ms() - started;

	if (took + 1 < timeout_ms || took > timeout_ms + LATE_MS)
		fail_msg("a deadline of %llu ms came after %llu ms", (unsigned long long)timeout_ms,
			 (unsigned long long)took);
}

/* Nothing else happens on the context: the deadline itself must wake it. */
static void test_deadlines_of_each_kind(void **state)
{
	struct world *world = *state;
	struct block *block = block_new(world, 100);
	struct pair pair;
	static const enum haul_event kinds[] = {HAUL_SENT, HAUL_RECEIVED, HAUL_QUERIED};

	pair_open(world, NULL, &pair);
	for (int i = 0; i < 3; i++) {
		uint64_t started = now_ms();
		struct entry *entry = post_timed(&pair.up, kinds[i], "k", block, 60);

		wait_result(entry, -ETIMEDOUT);
		check_time(started, 60);
	}
	check_alive(&pair);
}

static void test_deadlines_wake_a_waiting_poll(void **state)
{
	struct world *world = *state;
	struct block *block = block_new(world, 100);
	struct haul_completion completion;
	struct haul_op op = HAUL_OP_INIT;
	struct pair pair;
	uint64_t started;

	pair_open(world, NULL, &pair);
	op.timeout_ms = 50;
	started = now_ms();
	/* A send: the end of a receive may need the peer's answer. */
	assert_int_equal(haul_send(pair.down.out, haul_key("k"), &block->tensor, NULL, &op), 0);
	assert_int_equal(haul_poll(pair.a->context, &completion, 1, PATIENCE_MS), 1);
	check_time(started, 50);
	assert_int_equal(completion.event, HAUL_SENT);
	assert_int_equal(completion.result, -ETIMEDOUT);
	assert_null(completion.cookie);
}

static void test_expired_receive_then_send(void **state)
{
	struct world *world = *state;
	struct block *source = block_new(world, 5000);
	struct block *first = block_new(world, 5000), *second = block_new(world, 5000);
	struct entry *expired, *sent, *received;
	struct pair pair;

	pair_open(world, NULL, &pair);
	block_fill(source, 1);
	expired = post_timed(&pair.up, HAUL_RECEIVED, "k", first, 20);
	wait_result(expired, -ETIMEDOUT);
	sent = post_send(&pair.up, haul_key("k"), &source->tensor);
	world_run_for(world, 20);
	assert_false(sent->done);
	received = post_timed(&pair.up, HAUL_RECEIVED, "k", second, 10000);
	wait_all(world);
	check_result(received, 0);
	check_result(sent, 0);
	block_check(second, 1);
}

static void test_expired_send_then_receive(void **state)
{
	struct world *world = *state;
	struct block *first = block_new(world, 100), *second = block_new(world, 100);
	struct block *target = block_new(world, 100);
	struct entry *expired, *received;
	struct pair pair;

	pair_open(world, NULL, &pair);
	block_fill(second, 2);
	expired = post_timed(&pair.up, HAUL_SENT, "k", first, 20);
	post_timed(&pair.up, HAUL_SENT, "k", second, 10000);
	wait_result(expired, -ETIMEDOUT);
	received = post_recv(&pair.up, haul_key("k"), &target->tensor);
	wait_all(world);
	check_result(received, 0);
	block_check(target, 2);
}

/* The receiver gives up while a large tensor is on its way; the sender's send goes on. */
static void test_receive_expires_in_mid_transfer(void **state)
{
	struct world *world = *state;
	/* The thread sanitizer moves bytes slowly, and its shadow of so many is slow to come. */
	size_t bytes = (size_t)(thread_sanitized() ? 32 : 256) << 20;
	struct block *source = block_new(world, bytes), *target = block_new(world, bytes);
	struct entry *sent, *received;
	unsigned expired = 0;
	struct pair pair;

	pair_open(world, NULL, &pair);
	pattern_fill(source->data, 4096, 1, 0);
	sent = post_send(&pair.up, haul_key("large"), &source->tensor);
	for (uint64_t timeout = 1; timeout <= 16; timeout *= 2) {
		received = post_timed(&pair.up, HAUL_RECEIVED, "large", target, timeout);
		wait_done(received);
		if (received->result == 0)
			break;
		check_result(received, -ETIMEDOUT);
		expired++;
	}
	/* Not "unless sent is done": what arrived at last is known here before it is there. */
	if (received->result)
		received = post_recv(&pair.up, haul_key("large"), &target->tensor);
	wait_result(received, 0);
	wait_result(sent, 0);
	assert_true(pattern_holds(target->data, 4096, 1, 0, NULL));
	print_message("%u receives expired\n", expired);
}

/* When a deadline is: somewhere between the call's begin and its end, plus the time it was given.
 */
struct span {
	uint64_t from, to;
	uint64_t *last; /* the highest `from` of those that ended */
};

static void note_order(struct entry *entry)
{
	struct span *span = entry->user;

	check_result(entry, -ETIMEDOUT);
	/* Deadlines that are 10 ms apart must not change places. */
	assert_true(span->to + 10 >= *span->last);
	if (span->from > *span->last)
		*span->last = span->from;
}

static void test_many_deadlines_in_order(void **state)
{
	enum { COUNT = 2000 };
	struct world *world = *state;
	struct block *block = block_new(world, 10);
	uint64_t random = random_seed();
	struct span *spans = world_memory(world, COUNT * sizeof(*spans));
	uint64_t last = 0;
	struct pair pair;
	char key[24];

	pair_open(world, NULL, &pair);
	for (unsigned i = 0; i < COUNT; i++) {
		struct extra extra = {.hook = note_order, .user = &spans[i]};

		snprintf(key, sizeof(key), "%u", i);
		extra.timeout_ms = 100 + random_below(&random, 300);
		spans[i].last = &last;
		spans[i].from = now_ms() + extra.timeout_ms;
		post_with(&pair.up, HAUL_RECEIVED, haul_key(key), &block->tensor, &extra);
		spans[i].to = now_ms() + extra.timeout_ms;
	}
	wait_all(world);
}

/* Long deadlines that are met leave nothing behind. */
static void test_deadlines_that_are_met(void **state)
{
	struct world *world = *state;
	struct block *source = block_new(world, 100), *target = block_new(world, 100);
	struct pair pair;

	pair_open(world, NULL, &pair);
	for (unsigned i = 0; i < rounds(500, 5000); i++) {
		struct entry *sent = post_timed(&pair.up, HAUL_SENT, "k", source, UINT64_MAX);
		struct entry *received = post_timed(&pair.up, HAUL_RECEIVED, "k", target, 30000);

		wait_result(received, 0);
		wait_result(sent, 0);
	}
}

static const struct CMUnitTest tests[] = {
	WORLD_TEST(test_deadlines_of_each_kind),
	WORLD_TEST(test_deadlines_wake_a_waiting_poll),
	WORLD_TEST(test_expired_receive_then_send),
	WORLD_TEST(test_expired_send_then_receive),
	WORLD_TEST(test_receive_expires_in_mid_transfer),
	WORLD_TEST(test_many_deadlines_in_order),
	WORLD_TEST(test_deadlines_that_are_met),
};

const struct test_table expire_tests = TABLE_OF(tests);
