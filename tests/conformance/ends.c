/* SPDX-License-Identifier: Apache-2.0 */
/* Endpoints and contexts: several at once, and how they are closed. */
#include "harness.h"

#include <errno.h>
#include <stdio.h>

static void test_both_directions_at_once(void **state)
{
	enum { COUNT = 20, BYTES = 3 << 20 };
	struct world *world = *state;
	struct block *sources[2][COUNT], *targets[2][COUNT];
	struct pair pair;
	char key[24];

	pair_open(world, NULL, &pair);
	for (unsigned i = 0; i < 2 * COUNT; i++) {
		const struct way *way = i % 2 ? &pair.up : &pair.down;

		sources[i % 2][i / 2] = block_new(world, BYTES + i);
		targets[i % 2][i / 2] = block_new(world, BYTES + i);
		block_fill(sources[i % 2][i / 2], i);
		snprintf(key, sizeof(key), "%u", i / 2);
		post_recv(way, haul_key(key), &targets[i % 2][i / 2]->tensor);
		post_send(way, haul_key(key), &sources[i % 2][i / 2]->tensor);
	}
	wait_all(world);
	for (unsigned i = 0; i < 2 * COUNT; i++)
		block_check(targets[i % 2][i / 2], i);
}

/* Tensors both ways on each, all at once. */
static void exchange(struct way *ups, struct way *downs, unsigned count, size_t bytes)
{
	struct world *world = ups[0].from->world;
	struct block **targets = world_memory(world, 2 * count * sizeof(*targets));

	for (unsigned i = 0; i < 2 * count; i++) {
		const struct way *way = i % 2 ? &ups[i / 2] : &downs[i / 2];
		struct block *source = block_new(world, bytes + i);

		targets[i] = block_new(world, bytes + i);
		block_fill(source, i);
		post_send(way, haul_key("exchange"), &source->tensor);
		post_recv(way, haul_key("exchange"), &targets[i]->tensor);
	}
	wait_all(world);
	for (unsigned i = 0; i < 2 * count; i++)
		block_check(targets[i], i);
}

static void test_several_endpoints_between_two_contexts(void **state)
{
	enum { COUNT = 16 };
	struct world *world = *state;
	struct side *a = side_open(world, NULL), *b = side_open(world, NULL);
	struct way ups[COUNT], downs[COUNT];

	for (unsigned i = 0; i < COUNT; i++)
		connect_sides(b, a, &ups[i], &downs[i]);
	exchange(ups, downs, COUNT, 200000);
}

/* Everyone is connected with everyone. */
static void test_several_contexts(void **state)
{
	enum { SIDES = 4, WAYS = SIDES * (SIDES - 1) / 2 };
	struct world *world = *state;
	struct side *sides[SIDES];
	struct way ups[WAYS], downs[WAYS];
	unsigned count = 0;

	for (unsigned i = 0; i < SIDES; i++) {
		sides[i] = side_open(world, NULL);
		for (unsigned j = 0; j < i; j++, count++)
			connect_sides(sides[i], sides[j], &ups[count], &downs[count]);
	}
	exchange(ups, downs, WAYS, 500000);
}

/* A context can talk to itself. */
static void test_context_connects_to_itself(void **state)
{
	struct world *world = *state;
	struct side *a = side_open(world, NULL);
	struct way up, down;

	connect_sides(a, a, &up, &down);
	exchange(&up, &down, 1, 1 << 20);
}

/* Sixteen connects at once, to one listener. */
static void test_connects_at_once(void **state)
{
	enum { COUNT = 16 };
	struct world *world = *state;
	struct side *a = side_open(world, NULL), *b = side_open(world, NULL);
	const char *address = side_listen(a);
	struct entry *connects[COUNT];
	char told[128];

	for (int i = 0; i < COUNT; i++)
		connects[i] = post_connect(b, address);
	wait_all(world);
	for (int i = 0; i < COUNT; i++)
		check_result(connects[i], 0);
	wait_accepted(a, COUNT);
	for (int i = 0; i < COUNT; i++) {
		snprintf(told, sizeof(told), "%s", haul_endpoint_address(connects[i]->endpoint));
		assert_non_null(strchr(told, ':'));
		if (!settings.connect_host)
			assert_string_equal(told, address);
		assert_non_null(strchr(haul_endpoint_address(a->accepted[i]), ':'));
	}
}

static void test_user_pointer_comes_with_lost(void **state)
{
	struct world *world = *state;
	struct pair pair;
	int mine;

	pair_open(world, NULL, &pair);
	assert_null(haul_endpoint_user(pair.up.in));
	haul_endpoint_set_user(pair.up.in, &mine);
	assert_ptr_equal(haul_endpoint_user(pair.up.in), &mine);
	haul_disconnect(pair.up.out);
	wait_lost(pair.a, 1);
	assert_ptr_equal(pair.a->lost[0].endpoint, pair.up.in);
	assert_ptr_equal(pair.a->lost[0].cookie, &mine);
	assert_int_equal(pair.a->lost[0].result, 0);
	assert_int_equal(pair.b->lost_count, 0);
	haul_disconnect(pair.up.in);
}

/* Disconnecting ends the operations here with -ECANCELED and there with -ECONNRESET. */
static void test_disconnect_with_work_outstanding(void **state)
{
	enum { COUNT = 10 };
	struct world *world = *state;
	struct block *block = block_new(world, 1000);
	struct entry *here[2 * COUNT], *there[2 * COUNT];
	struct pair pair;
	char key[24];

	pair_open(world, NULL, &pair);
	for (unsigned i = 0; i < COUNT; i++) {
		snprintf(key, sizeof(key), "%u", i);
		here[2 * i] = post_send(&pair.up, haul_key(key), &block->tensor);
		here[2 * i + 1] = post_recv(&pair.down, haul_key(key), &block->tensor);
		snprintf(key, sizeof(key), "other %u", i);
		there[2 * i] = post_send(&pair.down, haul_key(key), &block->tensor);
		there[2 * i + 1] = post_recv(&pair.up, haul_key(key), &block->tensor);
	}
	world_run_for(world, 5);
	haul_disconnect(pair.up.out);
	side_poll(pair.b); /* "at once": they are there with the next poll */
	for (unsigned i = 0; i < 2 * COUNT; i++) {
		assert_true(here[i]->done);
		check_result(here[i], -ECANCELED);
	}
	wait_all(world);
	wait_lost(pair.a, 1);
	for (unsigned i = 0; i < 2 * COUNT; i++)
		check_result(there[i], -ECONNRESET);
	assert_int_equal(pair.a->lost[0].result, 0);
	world_run_for(world, 20);
	assert_int_equal(pair.b->lost_count, 0);
}

static void test_operations_after_the_peer_is_lost(void **state)
{
	static const enum haul_event kinds[] = {HAUL_SENT, HAUL_RECEIVED, HAUL_QUERIED};
	static const char *const words[] = {NULL};
	struct world *world = *state;
	struct block *block = block_new(world, 10);
	struct pair pair;
	int error;

	pair_open(world, NULL, &pair);
	haul_disconnect(pair.up.out);
	wait_lost(pair.a, 1);
	for (int i = 0; i < 3; i++) {
		assert_null(try_post(pair.a, pair.up.in, kinds[i], haul_key("k"), &block->tensor,
				     NULL, &error));
		check_error(pair.a->context, error, -ENOTCONN, words);
	}
	haul_disconnect(pair.up.in);
}

/* In the middle of large transfers in both directions; the memory is not touched afterwards. */
static void test_disconnect_in_mid_transfer(void **state)
{
	enum { BYTES = 8 << 20 };
	struct world *world = *state;
	struct block *source = block_new(world, BYTES);
	struct block *target = block_new(world, BYTES), *other = block_new(world, BYTES);
	struct side *a = side_open(world, NULL), *b = side_open(world, NULL);
	struct way up, down;

	for (unsigned i = 0; i < rounds(30, 300); i++) {
		struct entry *entries[4];

		connect_sides(b, a, &up, &down);
		entries[0] = post_recv(&up, haul_key("k"), &target->tensor);
		entries[1] = post_send(&up, haul_key("k"), &source->tensor);
		entries[2] = post_send(&down, haul_key("k"), &source->tensor);
		entries[3] = post_recv(&down, haul_key("k"), &other->tensor);
		for (unsigned step = 0; step < i % 20; step++) {
			side_poll(a);
			side_poll(b);
		}
		haul_disconnect(up.in);
		side_poll(a);
		assert_true(entries[0]->done && entries[2]->done);
		wait_all(world);
		wait_lost(b, i + 1);
		haul_disconnect(up.out);
	}
}

/* Received is received: the sender learns of it although the receiver goes away at once. */
static void acknowledged(struct world *world, bool close)
{
	struct block *source = block_new(world, 3000), *target = block_new(world, 3000);
	struct side *a = side_open(world, NULL), *b;
	struct entry *sent, *received;
	struct way up, down;

	for (unsigned i = 0; i < rounds(40, 400); i++) {
		b = side_open(world, "linger_ms=20"); /* nobody polls the other side meanwhile */
		connect_sides(b, a, &down, &up);
		received = post_recv(&up, haul_key("k"), &target->tensor);
		sent = post_send(&up, haul_key("k"), &source->tensor);
		while (!received->done) {
			side_poll(a);
			side_poll(b);
		}
		check_result(received, 0);
		if (!close)
			haul_disconnect(up.in);
		side_close(b);
		wait_result(sent, 0);
		wait_lost(a, i + 1);
		assert_int_equal(a->lost[i].result, 0);
		haul_disconnect(up.out);
	}
}

static void test_received_then_disconnected_is_acknowledged(void **state)
{
	acknowledged(*state, false);
}

static void test_received_then_closed_is_acknowledged(void **state)
{
	acknowledged(*state, true);
}

/* A context is closed with everything outstanding; the other one learns of it. */
static void test_close_with_work_outstanding(void **state)
{
	enum { COUNT = 100, BYTES = 1 << 20 };
	struct world *world = *state;
	struct block *source = block_new(world, BYTES);
	struct block *target = block_new(world, BYTES), *other = block_new(world, BYTES);
	struct entry *there[2 * COUNT];
	struct haul_region *region;
	struct pair pair;
	char key[24];

	pair_open(world, NULL, &pair);
	assert_int_equal(
		haul_region_register(pair.b->context, source->data, BYTES, HAUL_USE_SEND, &region),
		0);
	for (unsigned i = 0; i < COUNT; i++) {
		struct extra extra = {.region = region};

		snprintf(key, sizeof(key), "%u", i);
		post_with(&pair.up, HAUL_SENT, haul_key(key), &source->tensor, &extra);
		post_recv(&pair.down, haul_key(key), &other->tensor);
		there[2 * i] =
			post_recv(&pair.up, haul_key(i % 2 ? key : "never"), &target->tensor);
		there[2 * i + 1] =
			post_send(&pair.down, haul_key(i % 2 ? key : "never"), &source->tensor);
	}
	post_connect(pair.b, haul_listener_address(pair.a->listener));
	for (int i = 0; i < 5; i++) {
		side_poll(pair.a);
		side_poll(pair.b);
	}
	side_close(pair.b);
	wait_all(world);
	wait_lost(pair.a, 1);
	for (unsigned i = 0; i < 2 * COUNT; i++)
		assert_true(there[i]->result == 0 || there[i]->result == -ECONNRESET);
}

/* Closing takes at most linger_ms even when the peer is not listening to reason. */
static void test_close_lingers_no_longer_than_told(void **state)
{
	struct world *world = *state;
	struct block *source = block_new(world, 24 << 20), *target = block_new(world, 24 << 20);
	struct pair pair;
	uint64_t started;

	pair_open(world, "progress=caller,linger_ms=300", &pair);
	post_recv(&pair.up, haul_key("k"), &target->tensor);
	world_run_for(world, 10);
	pair.a->asleep = true;
	post_send(&pair.up, haul_key("k"), &source->tensor);
	world_run_for(world, 20);
	started = now_ms();
	side_close(pair.b);
	assert_in_range(now_ms() - started, 0, 300 + 1500);
	pair.a->asleep = false;
	wait_all(world);
	wait_lost(pair.a, 1);
}

/* Both sides go on, and the completions of `keeps` wait. */
static void drive(struct side *keeps, struct side *side, struct haul_completion *completion)
{
	assert_int_equal(haul_poll(keeps->context, NULL, 0, 0), 0);
	if (haul_poll(side->context, completion, 1, 1) != 1)
		completion->event = 0;
}

/*
 * An endpoint that is lost before the caller has heard of it: the loss comes in a call after that
 * one, so that it bears the pointer that the caller set in between.
 */
static void test_loss_comes_after_the_endpoint_was_handed_out(void **state)
{
	struct world *world = *state;
	struct side *a = side_open(world, NULL), *b = side_open(world, NULL);
	struct haul_completion completion = {0}, all[8];
	uint64_t until = now_ms() + PATIENCE_MS;
	int mark;

	assert_int_equal(haul_connect(b->context, side_listen(a), NULL), 0);
	while (completion.event != HAUL_CONNECTED && now_ms() < until)
		drive(a, b, &completion);
	assert_int_equal(completion.event, HAUL_CONNECTED);
	assert_int_equal(completion.result, 0);
	haul_disconnect(completion.endpoint);
	for (int i = 0; i < 100; i++)
		drive(a, b, &completion);
	assert_int_equal(haul_poll(a->context, all, 8, PATIENCE_MS), 1);
	assert_int_equal(all[0].event, HAUL_ACCEPTED);
	haul_endpoint_set_user(all[0].endpoint, &mark);
	completion.event = 0;
	while (completion.event != HAUL_LOST && now_ms() < until)
		drive(b, a, &completion);
	assert_int_equal(completion.event, HAUL_LOST);
	assert_ptr_equal(completion.cookie, &mark);
	haul_disconnect(completion.endpoint);
}

static void test_reconnect(void **state)
{
	struct world *world = *state;
	struct side *a = side_open(world, NULL), *b = side_open(world, NULL);
	struct way up, down;

	for (unsigned i = 0; i < rounds(50, 500) && i < ENDPOINTS_MAX; i++) {
		connect_sides(b, a, &up, &down);
		check_way_alive(i % 2 ? &up : &down);
		if (i % 3 == 0) {
			haul_disconnect(up.out);
			wait_lost(a, a->lost_count + 1);
			haul_disconnect(up.in);
		} else {
			haul_disconnect(up.in);
			haul_disconnect(up.out);
		}
	}
}

/* Endpoints outlive their listener; nobody new gets in. */
static void test_listener_closed(void **state)
{
	struct world *world = *state;
	struct entry *connect;
	struct pair pair;
	char address[128];

	pair_open(world, NULL, &pair);
	snprintf(address, sizeof(address), "%s",
		 connect_address(world, haul_listener_address(pair.a->listener)));
	haul_listener_close(pair.a->listener);
	pair.a->listener = NULL;
	check_alive(&pair);
	connect = post_connect(pair.b, address);
	wait_result(connect, -ECONNREFUSED);
	assert_null(connect->endpoint);
	check_alive(&pair);
}

/* Two listeners of one context, and the same port again after the first was closed. */
static void test_listen_again_on_the_same_port(void **state)
{
	struct world *world = *state;
	struct side *a = side_open(world, NULL), *b = side_open(world, NULL);
	haul_listener *second;
	struct way up, down;
	char where[128];

	connect_sides(b, a, &up, &down);
	assert_int_equal(haul_listen(a->context, world_text(world, "%s:0", settings.listen_host), a,
				     &second),
			 0);
	snprintf(where, sizeof(where), "%s", haul_listener_address(a->listener));
	assert_string_not_equal(where, haul_listener_address(second));
	haul_listener_close(a->listener);
	assert_int_equal(haul_listen(a->context, where, a, &a->listener), 0);
	assert_string_equal(where, haul_listener_address(a->listener));
	connect_sides(b, a, &up, &down);
	check_way_alive(&up);
	haul_listener_close(second);
}

static const struct CMUnitTest tests[] = {
	WORLD_TEST(test_both_directions_at_once),
	WORLD_TEST(test_several_endpoints_between_two_contexts),
	WORLD_TEST(test_several_contexts),
	WORLD_TEST(test_context_connects_to_itself),
	WORLD_TEST(test_connects_at_once),
	WORLD_TEST(test_user_pointer_comes_with_lost),
	WORLD_TEST(test_disconnect_with_work_outstanding),
	WORLD_TEST(test_operations_after_the_peer_is_lost),
	WORLD_TEST(test_disconnect_in_mid_transfer),
	WORLD_TEST(test_received_then_disconnected_is_acknowledged),
	WORLD_TEST(test_received_then_closed_is_acknowledged),
	WORLD_TEST(test_close_with_work_outstanding),
	WORLD_TEST(test_close_lingers_no_longer_than_told),
	WORLD_TEST(test_loss_comes_after_the_endpoint_was_handed_out),
	WORLD_TEST(test_reconnect),
	WORLD_TEST(test_listener_closed),
	WORLD_TEST(test_listen_again_on_the_same_port),
};

const struct test_table ends_tests = TABLE_OF(tests);
