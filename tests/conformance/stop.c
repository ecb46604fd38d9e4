/* SPDX-License-Identifier: Apache-2.0 */
/* Peers that are stopped (SIGSTOP): slow is not dead, but deadlines and cancels hold. */
#include "harness.h"

#include <errno.h>
#include <stdio.h>

#include "load.h"
#include "peer.h"

/* More than any socket buffer holds. */
#define LARGE ((size_t)64 << 20)

static bool load_moved(void *user)
{
	struct load *load = user;

	return load->sent + load->received >= 4;
}

struct progress {
	struct load *load;
	unsigned long sum;
};

static bool load_went_on(void *user)
{
	struct progress *progress = user;

	return progress->load->sent + progress->load->received >= progress->sum + 100;
}

/*
 * Stopped under load for longer than peer_ms, then continued: nothing is lost. Where nobody else
 * answers for a process, peer_ms is longer than that.
 */
static void test_stopped_for_longer_than_peer_ms(void **state)
{
	struct world *world = *state;
	struct progress progress;
	struct peer *peer;
	struct way up, down;
	struct side *side;

	skip_without_peers();
	side = side_open(world, settings.dies_silently ? "peer_ms=12000" : "peer_ms=1000");
	peer = peer_start(world, settings.dies_silently ? "peer_ms=12000" : "peer_ms=1000");
	peer_connect(peer, side, NULL, &up, &down);
	progress.load = load_start(side, up.out, true, 100000, 8);
	peer_ask(peer, "load 100000 8");
	wait_until(world, load_moved, progress.load, "the load to start");
	peer_stop(peer);
	world_run_for(world, settings.full ? 8000 : 3000);
	assert_int_equal(side->lost_count, 0);
	assert_int_equal(progress.load->failed, 0);
	progress.sum = progress.load->sent + progress.load->received;
	peer_continue(peer);
	wait_until(world, load_went_on, &progress, "the peer to go on");
	assert_int_equal(progress.load->failed, 0);
	assert_int_equal(progress.load->wrong, 0);
}

/* This side is the one that does not poll: its owner computes. The peer doesn't give it up. */
static void test_not_polled_for_longer_than_peer_ms(void **state)
{
	struct world *world = *state;
	struct pair pair;

	pair_open(world, "progress=caller,peer_ms=1000", &pair);
	check_alive(&pair);
	pair.b->asleep = true;
	world_run_for(world, 2500);
	pair.b->asleep = false;
	check_alive(&pair);
	assert_int_equal(pair.a->lost_count, 0);
	assert_int_equal(pair.b->lost_count, 0);
}

/* A peer that stopped, with `receives` posted by it and known here. */
static struct peer *stopped_peer(struct world *world, struct side **side, struct way *up,
				 struct way *down, size_t bytes)
{
	struct peer *peer;

	*side = side_open(world, NULL);
	peer = peer_start(world, NULL);
	peer_connect(peer, *side, NULL, up, down);
	peer_wait_accepted(peer, 1);
	peer_ask(peer, "recv k %zu 4 0", bytes);
	world_run_for(world, 30); /* the receives become known here */
	peer_stop(peer);
	return peer;
}

/* Each operation's deadline holds, whatever the state in which a stopped peer left it. */
static void test_f14_deadlines_with_a_stopped_peer(void **state)
{
	struct world *world = *state;
	struct extra extra = {.timeout_ms = 400};
	struct entry *entries[5];
	struct block *large, *small;
	struct way up, down;
	struct peer *peer;
	struct side *side;
	uint64_t started;

	skip_without_peers();
	peer = stopped_peer(world, &side, &up, &down, LARGE);
	large = block_new(world, LARGE);
	small = block_new(world, 100);
	started = now_ms();
	entries[0] = post_with(&up, HAUL_SENT, haul_key("k"), &large->tensor, &extra);
	entries[1] = post_with(&up, HAUL_SENT, haul_key("k"), &small->tensor, &extra);
	entries[2] = post_with(&up, HAUL_SENT, haul_key("unmatched"), &small->tensor, &extra);
	entries[3] = post_with(&down, HAUL_RECEIVED, haul_key("unmatched"), &small->tensor, &extra);
	entries[4] = post_with(&down, HAUL_QUERIED, haul_key("other"), NULL, &extra);
	wait_all(world);
	assert_in_range(now_ms() - started, 399, 400 + 2000);
	for (int i = 0; i < 5; i++)
		check_result(entries[i], -ETIMEDOUT);
	assert_int_equal(side->lost_count, 0);
	peer_continue(peer);
	/* It lives: the receives of the two sends in mid-push end, the other two are still good. */
	block_fill(small, 0);
	for (int i = 0; i < 4; i++)
		entries[i] = post_send(&up, haul_key("k"), &small->tensor);
	wait_result(entries[0], 0);
	wait_result(entries[1], 0);
}

static void test_f16_cancel_towards_a_stopped_peer(void **state)
{
	struct world *world = *state;
	struct entry *entries[5];
	struct block *large, *small;
	struct way up, down;
	struct peer *peer;
	struct side *side;
	uint64_t started;

	skip_without_peers();
	peer = stopped_peer(world, &side, &up, &down, LARGE);
	large = block_new(world, LARGE);
	small = block_new(world, 100);
	entries[0] = post_send(&up, haul_key("k"), &large->tensor);
	entries[1] = post_send(&up, haul_key("k"), &small->tensor);
	entries[2] = post_send(&up, haul_key("unmatched"), &small->tensor);
	entries[3] = post_recv(&down, haul_key("unmatched"), &small->tensor);
	entries[4] = post_query(&down, haul_key("other"));
	world_run_for(world, 30); /* until nothing more can leave */
	started = now_ms();
	for (int i = 0; i < 5; i++) {
		assert_false(entries[i]->done);
		assert_int_equal(haul_cancel(side->context, entries[i]), 1);
	}
	wait_all(world);
	assert_in_range(now_ms() - started, 0, 12000); /* peer_ms at most, where memory is pinned */
	for (int i = 0; i < 5; i++)
		check_result(entries[i], -ECANCELED);
	peer_continue(peer);
	block_fill(small, 0);
	wait_result(post_send(&up, haul_key("k"), &small->tensor), 0);
}

/* The peer was killed, but nobody has noticed yet. */
static void test_f16_cancel_towards_a_dead_peer(void **state)
{
	struct world *world = *state;

	skip_without_peers();
	for (unsigned round = 0; round < rounds(8, 50); round++) {
		struct entry *entries[5];
		struct block *large, *small;
		struct way up, down;
		struct peer *peer;
		struct side *side;

		peer = stopped_peer(world, &side, &up, &down, LARGE);
		large = block_new(world, LARGE);
		small = block_new(world, 100);
		entries[0] = post_send(&up, haul_key("k"), &large->tensor);
		entries[1] = post_send(&up, haul_key("k"), &small->tensor);
		entries[2] = post_send(&up, haul_key("unmatched"), &small->tensor);
		entries[3] = post_recv(&down, haul_key("unmatched"), &small->tensor);
		entries[4] = post_query(&down, haul_key("other"));
		for (unsigned i = 0; i < round; i++)
			side_poll(side);
		peer_kill(peer);
		for (int i = 0; i < 5; i++)
			haul_cancel(side->context, entries[i]);
		wait_all(world);
		for (int i = 0; i < 5; i++)
			assert_true(entries[i]->result == -ECANCELED ||
				    entries[i]->result == death());
		wait_lost(side, 1);
		haul_disconnect(up.out);
		side_close(side);
	}
}

/* Nobody answers: the connect ends when its time is over. */
static void test_connect_to_a_stopped_peer(void **state)
{
	struct world *world = *state;
	struct entry *connect, *second;
	const char *address;
	struct way up, down;
	struct peer *peer;
	struct side *side;
	uint64_t started;

	skip_without_peers();
	side = side_open(world, "connect_ms=500");
	peer = peer_start(world, NULL);
	address = connect_address(world, peer_ask(peer, "listen"));
	peer_stop(peer);
	started = now_ms();
	connect = post_connect(side, address);
	second = post_connect(side, address);
	wait_result(connect, -ETIMEDOUT);
	wait_result(second, -ETIMEDOUT);
	assert_in_range(now_ms() - started, 499, 500 + 2000);
	assert_true(connect->detail[0]);
	peer_continue(peer);
	peer_connect(peer, side, address, &up, &down);
	peer_exit(peer);
	wait_lost(side, 1);
}

/* Closing while the peer is stopped takes linger_ms at most, and disconnecting nothing. */
static void test_close_towards_a_stopped_peer(void **state)
{
	struct world *world = *state;
	struct block *large;
	struct way up, down;
	struct side *side;
	uint64_t started;

	skip_without_peers();
	stopped_peer(world, &side, &up, &down, LARGE);
	large = block_new(world, LARGE);
	post_send(&up, haul_key("k"), &large->tensor);
	world_run_for(world, 20);
	started = now_ms();
	haul_disconnect(up.out);
	assert_in_range(now_ms() - started, 0, 500);
	wait_all(world);
	started = now_ms();
	side_close(side);
	assert_in_range(now_ms() - started, 0, 1000 + 1500);
}

static const struct CMUnitTest tests[] = {
	WORLD_TEST(test_stopped_for_longer_than_peer_ms),
	WORLD_TEST(test_not_polled_for_longer_than_peer_ms),
	WORLD_TEST(test_f14_deadlines_with_a_stopped_peer),
	WORLD_TEST(test_f16_cancel_towards_a_stopped_peer),
	WORLD_TEST(test_f16_cancel_towards_a_dead_peer),
	WORLD_TEST(test_connect_to_a_stopped_peer),
	WORLD_TEST(test_close_towards_a_stopped_peer),
};

const struct test_table stop_tests = TABLE_OF(tests);
