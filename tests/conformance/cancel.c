/* SPDX-License-Identifier: Apache-2.0 */
/* Cancelled and expired operations: each ends once, and the other side's are not harmed. */
#include "harness.h"

#include <errno.h>
#include <stdio.h>

#define LARGE ((size_t)24 << 20)

static void cancel(struct entry *entry)
{
	assert_int_equal(haul_cancel(entry->side->context, entry), 1);
}

/* The rule: a cancelled receive never happened. */
static void test_cancelled_receive_then_send(void **state)
{
	struct world *world = *state;
	struct block *source = block_new(world, 5000);
	struct block *first = block_new(world, 5000), *second = block_new(world, 5000);
	struct entry *cancelled, *sent, *received;
	struct pair pair;

	pair_open(world, NULL, &pair);
	block_fill(source, 1);
	cancelled = post_recv(&pair.up, haul_key("k"), &first->tensor);
	world_run_for(world, 5); /* the peer knows of it */
	cancel(cancelled);
	wait_result(cancelled, -ECANCELED);
	sent = post_send(&pair.up, haul_key("k"), &source->tensor);
	world_run_for(world, 20);
	assert_false(sent->done);
	received = post_recv(&pair.up, haul_key("k"), &second->tensor);
	wait_result(received, 0);
	wait_result(sent, 0);
	block_check(second, 1);
	for (size_t i = 0; i < first->bytes; i++)
		assert_int_equal(first->data[i], 0);
}

/* Cancelled before the peer was even told. */
static void test_cancelled_receive_at_once(void **state)
{
	struct world *world = *state;
	struct block *source = block_new(world, 500), *target = block_new(world, 500);
	struct entry *sent, *cancelled, *received;
	struct pair pair;
	int found;

	pair_open(world, NULL, &pair);
	block_fill(source, 2);
	sent = post_send(&pair.up, haul_key("k"), &source->tensor);
	cancelled = post_recv(&pair.up, haul_key("k"), &target->tensor);
	found = haul_cancel(pair.a->context, cancelled);
	wait_done(cancelled);
	if (cancelled->result == 0) {
		/* A thread of the library's was faster. */
		assert_int_equal(found, -ENOENT);
	} else {
		check_result(cancelled, -ECANCELED);
		received = post_recv(&pair.up, haul_key("k"), &target->tensor);
		wait_result(received, 0);
	}
	wait_result(sent, 0);
	block_check(target, 2);
}

static void test_cancelled_send_then_receive(void **state)
{
	struct world *world = *state;
	struct block *first = block_new(world, 500), *second = block_new(world, 500);
	struct block *target = block_new(world, 500);
	struct entry *cancelled, *sent, *received;
	struct pair pair;

	pair_open(world, NULL, &pair);
	block_fill(first, 1);
	block_fill(second, 2);
	cancelled = post_send(&pair.up, haul_key("k"), &first->tensor);
	sent = post_send(&pair.up, haul_key("k"), &second->tensor);
	world_run_for(world, 2);
	cancel(cancelled);
	received = post_recv(&pair.up, haul_key("k"), &target->tensor);
	wait_all(world);
	check_result(cancelled, -ECANCELED);
	check_result(sent, 0);
	check_result(received, 0);
	block_check(target, 2);
}

/* A few steps into a large transfer: then it is under way, or not yet, or over. */
static void steps(struct world *world, unsigned count)
{
	for (unsigned i = 0; i < count; i++) {
		side_poll(world->sides[0]);
		side_poll(world->sides[1]);
	}
}

/* Cancelled while its bytes come in: the send isn't used up and meets the next receive. */
static void cancel_receive_after(const struct way *way, unsigned count)
{
	struct world *world = way->from->world;
	static struct block *source, *first, *second;
	struct entry *cancelled, *sent, *received;
	int found;

	if (!count) {
		source = block_new(world, LARGE);
		first = block_new(world, LARGE);
		second = block_new(world, LARGE);
		block_fill(source, 7);
	}
	memset(second->data, 0, 4096);
	sent = post_send(way, haul_key("large"), &source->tensor);
	cancelled = post_recv(way, haul_key("large"), &first->tensor);
	steps(world, count);
	found = haul_cancel(way->to->context, cancelled);
	assert_true(found == -ENOENT || (found == 1 && !cancelled->done));
	wait_done(cancelled);
	if (cancelled->result == 0) {
		block_check(first, 7);
		wait_result(sent, 0);
		return;
	}
	check_result(cancelled, -ECANCELED);
	/* Not a byte may land there any more. */
	memset(first->data, 0xee, first->bytes);
	received = post_recv(way, haul_key("large"), &second->tensor);
	wait_result(received, 0);
	wait_result(sent, 0);
	block_check(second, 7);
	for (size_t i = 0; i < first->bytes; i += 1021)
		assert_int_equal(first->data[i], 0xee);
}

static void test_receive_cancelled_in_mid_transfer(void **state)
{
	unsigned most = rounds(24, 100);
	struct pair pair;

	pair_open(*state, NULL, &pair);
	for (unsigned i = 0; i < most; i++)
		cancel_receive_after(&pair.up, i);
	check_alive(&pair);
}

/* Given up by the sender: the receive ends with -ECANCELED, or had everything already. */
static void cancel_send_after(const struct way *way, struct block *source, struct block *target,
			      unsigned count)
{
	struct world *world = way->from->world;
	struct entry *sent, *received, *next, *again;

	received = post_recv(way, haul_key("large"), &target->tensor);
	sent = post_send(way, haul_key("large"), &source->tensor);
	steps(world, count);
	haul_cancel(way->from->context, sent);
	/* The caller may use its memory again as soon as the send has ended. */
	wait_done(sent);
	memset(source->data, 0xbb, 4096);
	memset(source->data + source->bytes - 4096, 0xbb, 4096);
	if (sent->result == 0) {
		wait_result(received, 0);
		block_check(target, 3);
	} else {
		check_result(sent, -ECANCELED);
		world_run_for(world, 2);
		/* Unmatched when it was cancelled: then the receive still waits. */
		if (!received->done)
			haul_cancel(way->to->context, received);
		wait_done(received);
		if (received->result == 0)
			block_check(target, 3);
		else
			check_result(received, -ECANCELED);
	}
	block_fill(source, 3);
	next = post_recv(way, haul_key("large"), &target->tensor);
	again = post_send(way, haul_key("large"), &source->tensor);
	wait_result(next, 0);
	wait_result(again, 0);
	block_check(target, 3);
}

static void test_send_cancelled_in_mid_transfer(void **state)
{
	struct world *world = *state;
	struct block *source = block_new(world, LARGE), *target = block_new(world, LARGE);
	unsigned most = rounds(24, 100);
	struct pair pair;

	pair_open(world, NULL, &pair);
	block_fill(source, 3);
	for (unsigned i = 0; i < most; i++)
		cancel_send_after(&pair.up, source, target, i);
	check_alive(&pair);
}

/* The peer isn't polled, so nothing can be known of it: its receive must be told nevertheless. */
static void test_send_cancelled_in_mid_push_ends_the_receive(void **state)
{
	struct world *world = *state;
	struct block *source = block_new(world, LARGE), *target = block_new(world, LARGE);
	struct entry *sent, *received;
	struct pair pair;

	pair_open(world, "progress=caller,checksum=none", &pair);
	/* A transport may need some time before it can take a large tensor. */
	received = post_recv(&pair.up, haul_key("first"), &target->tensor);
	sent = post_send(&pair.up, haul_key("first"), &source->tensor);
	wait_result(received, 0);
	wait_result(sent, 0);
	received = post_recv(&pair.up, haul_key("large"), &target->tensor);
	world_run_for(world, 20); /* b knows of the receive */
	pair.a->asleep = true;
	sent = post_send(&pair.up, haul_key("large"), &source->tensor);
	world_run_for(world, 20); /* it pushes until nothing more can leave */
	assert_false(sent->done);
	cancel(sent);
	wait_result(sent, -ECANCELED);
	pair.a->asleep = false;
	wait_result(received, -ECANCELED);
	check_alive(&pair);
}

static void test_cancel_counts_what_it_found(void **state)
{
	struct world *world = *state;
	struct block *blocks[5];
	struct haul_op op = HAUL_OP_INIT;
	struct haul_completion completion;
	struct pair pair;
	int ended = 0, other;
	uint64_t until = now_ms() + PATIENCE_MS;

	pair_open(world, NULL, &pair);
	assert_int_equal(haul_cancel(pair.a->context, &other), -ENOENT);
	op.cookie = &other;
	for (int i = 0; i < 5; i++) {
		blocks[i] = block_new(world, 100);
		assert_int_equal(
			haul_recv(pair.up.in, haul_key("five"), &blocks[i]->tensor, NULL, &op), 0);
	}
	assert_int_equal(haul_query(pair.up.in, haul_key("six"), &op), 0);
	assert_int_equal(haul_send(pair.down.out, haul_key("seven"), &blocks[0]->tensor, NULL, &op),
			 0);
	assert_int_equal(haul_cancel(pair.b->context, &other), -ENOENT);
	assert_int_equal(haul_cancel(pair.a->context, &other), 7);
	while (ended < 7) {
		assert_true(now_ms() < until);
		side_poll(pair.b);
		if (haul_poll(pair.a->context, &completion, 1, 1) != 1)
			continue;
		assert_ptr_equal(completion.cookie, &other);
		assert_int_equal(completion.result, -ECANCELED);
		ended++;
	}
	assert_int_equal(haul_cancel(pair.a->context, &other), -ENOENT);
	check_alive(&pair);
}

static void test_cancelled_query(void **state)
{
	struct world *world = *state;
	struct block *source = block_new(world, 100), *target = block_new(world, 100);
	struct entry *query, *received;
	struct pair pair;

	pair_open(world, NULL, &pair);
	query = post_query(&pair.up, haul_key("k"));
	received = post_recv(&pair.up, haul_key("k"), &target->tensor);
	world_run_for(world, 5);
	cancel(query);
	post_send(&pair.up, haul_key("k"), &source->tensor);
	wait_all(world);
	check_result(query, -ECANCELED);
	check_result(received, 0);
}

static void test_cancelled_connect(void **state)
{
	struct world *world = *state;
	struct side *a = side_open(world, NULL), *b = side_open(world, NULL);
	const char *address = side_listen(a);
	struct entry *connect;
	struct way up, down;

	a->asleep = true; /* with progress=caller it can't answer */
	connect = post_connect(b, address);
	if (haul_cancel(b->context, connect) == 1) {
		wait_done(connect);
		if (connect->result)
			check_result(connect, -ECANCELED);
	}
	wait_done(connect);
	if (connect->result == 0)
		haul_disconnect(connect->endpoint);
	else
		assert_null(connect->endpoint);
	a->asleep = false;
	world_run_for(world, 50);
	for (unsigned i = 0; i < a->accepted_count; i++)
		haul_disconnect(a->accepted[i]);
	connect_sides(b, a, &up, &down);
	check_way_alive(&up);
}

static const struct CMUnitTest tests[] = {
	WORLD_TEST(test_cancelled_receive_then_send),
	WORLD_TEST(test_cancelled_receive_at_once),
	WORLD_TEST(test_cancelled_send_then_receive),
	WORLD_TEST(test_receive_cancelled_in_mid_transfer),
	WORLD_TEST(test_send_cancelled_in_mid_transfer),
	WORLD_TEST(test_send_cancelled_in_mid_push_ends_the_receive),
	WORLD_TEST(test_cancel_counts_what_it_found),
	WORLD_TEST(test_cancelled_query),
	WORLD_TEST(test_cancelled_connect),
};

const struct test_table cancel_tests = TABLE_OF(tests);
