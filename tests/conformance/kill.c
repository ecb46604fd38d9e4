/* SPDX-License-Identifier: Apache-2.0 */
/* Peers that die (kill -9): every operation of the survivor still ends, once. */
#include "harness.h"

#include <errno.h>
#include <stdio.h>
#include <unistd.h>

#include "load.h"
#include "peer.h"

static bool allowed(int result)
{
	/* A peer that ends by itself can say so. */
	return result == death() || result == -ECONNRESET || result == -ENOTCONN;
}

/* After the peer's death: all ended, once (the ledger saw to that), and for that reason. */
static void check_ended(const struct load *load)
{
	assert_int_equal(load->running, 0);
	assert_int_equal(load->wrong, 0);
	for (unsigned i = 0; i < load->failed && i < 4; i++) {
		if (!allowed(load->errors[i]))
			fail_msg("an operation ended with %d (%s)", load->errors[i],
				 haul_strerror(load->errors[i]));
	}
}

static bool load_moved(void *user)
{
	struct load *load = user;

	return load->sent + load->received >= 4;
}

/* One peer under load dies somewhere in its work. */
static void kill_one(struct side *side, size_t bytes, unsigned depth, uint64_t *random)
{
	struct world *world = side->world;
	struct peer *peer = peer_start(world, NULL);
	unsigned lost = side->lost_count;
	struct way up, down;
	struct load *load;

	peer_connect(peer, side, NULL, &up, &down);
	load = load_start(side, up.out, true, bytes, depth);
	peer_ask(peer, "load %zu %u", bytes, depth);
	wait_until(world, load_moved, load, "the load to start");
	for (unsigned i = random_below(random, 60); i > 0; i--)
		world_step(world, now_ms() + PATIENCE_MS, "the load to go on");
	peer_kill(peer);
	wait_lost(side, lost + 1);
	assert_int_equal(side->lost[lost].result, death());
	check_ended(load);
	haul_disconnect(up.out);
	/* The memory of the world is only given back at its end. */
}

/* Rounds in worlds of their own, so that their memory goes back. */
static void kill_many(struct world *world, unsigned count, size_t bytes, unsigned depth)
{
	uint64_t random = random_seed();
	void *inner;

	skip_without_peers();
	for (unsigned i = 0; i < count; i += 10) {
		struct side *side;

		inner = NULL;
		assert_int_equal(world_setup(&inner), 0);
		side = side_open(inner, NULL);
		for (unsigned j = i; j < i + 10 && j < count; j++)
			kill_one(side, bytes, depth, &random);
		assert_int_equal(world_free(inner), 0);
	}
	(void)world;
}

/* 1,000 kills over the suite at full scale. */
static void test_f12_kill_under_load_small(void **state)
{
	kill_many(*state, rounds(20, 400), 3000, 16);
}

static void test_f12_kill_under_load_medium(void **state)
{
	kill_many(*state, rounds(20, 400), 200000, 8);
}

static void test_f12_kill_under_load_large(void **state)
{
	kill_many(*state, rounds(10, 200), 8 << 20, 2);
}

struct group {
	struct load *loads[3];
	unsigned long sum[3];
};

/* The two that live have moved on by 20 tensors each way since the sums were taken. */
static bool others_went_on(void *user)
{
	struct group *group = user;

	for (int i = 0; i < 3; i++) {
		struct load *load = group->loads[i];

		if (i != 1 && load->sent + load->received < group->sum[i] + 40)
			return false;
	}
	return true;
}

static void load_stop(struct group *group)
{
	for (int i = 0; i < 3; i++)
		group->loads[i]->stopping = true;
}

/* What the process burns in a time in which nothing happens. */
static uint64_t idle_share(struct world *world, unsigned ms)
{
	struct haul_completion completion;
	uint64_t before = cpu_us(), until = now_ms() + ms;

	while (now_ms() < until)
		haul_poll(world->sides[0]->context, &completion, 1, (int)(until - now_ms()));
	return (cpu_us() - before) * 100 / (ms * 1000u);
}

/* One of three dies: the two others notice nothing, and the survivor comes to rest. */
static void test_f13_one_of_three_killed(void **state)
{
	struct world *world = *state;
	struct peer *peers[3];
	struct way ups[3], downs[3];
	struct group group;
	struct side *side;
	uint64_t share;

	skip_without_peers();
	side = side_open(world, NULL);
	for (int i = 0; i < 3; i++) {
		peers[i] = peer_start(world, NULL);
		peer_connect(peers[i], side, NULL, &ups[i], &downs[i]);
		group.loads[i] = load_start(side, ups[i].out, true, 50000, 4);
		peer_ask(peers[i], "load 50000 4");
		wait_until(world, load_moved, group.loads[i], "the load to start");
	}
	peer_kill(peers[1]);
	for (int i = 0; i < 3; i++)
		group.sum[i] = group.loads[i]->sent + group.loads[i]->received;
	wait_until(world, others_went_on, &group, "the other two to go on");
	wait_lost(side, 1);
	assert_ptr_equal(side->lost[0].endpoint, ups[1].out);
	assert_int_equal(side->lost[0].result, death());
	check_ended(group.loads[1]);
	for (int i = 0; i < 3; i++)
		group.sum[i] = group.loads[i]->sent + group.loads[i]->received;
	wait_until(world, others_went_on, &group, "the other two to go on after the loss");
	/* The lost endpoint isn't disconnected yet: even so nothing may spin. */
	load_stop(&group);
	world_run_for(world, 300);
	share = idle_share(world, 500);
	if (!sanitized() && share > 20)
		fail_msg("the survivor burns %llu %% of a core", (unsigned long long)share);
	haul_disconnect(ups[1].out);
	assert_int_equal(side->lost_count, 1);
	for (int i = 0; i < 3; i += 2) {
		assert_int_equal(group.loads[i]->failed, 0);
		assert_int_equal(group.loads[i]->wrong, 0);
	}
}

/* The peer dies while the connection is being made. */
static void test_peer_killed_in_its_handshake(void **state)
{
	struct world *world = *state;
	uint64_t random = random_seed();
	struct side *side;

	skip_without_peers();
	side = side_open(world, "connect_ms=5000");
	for (unsigned i = 0; i < rounds(20, 100); i++) {
		struct peer *peer = peer_start(world, NULL);
		const char *address = connect_address(world, peer_ask(peer, "listen"));
		struct entry *connect;
		unsigned lost = side->lost_count;

		connect = post_connect(side, address);
		for (unsigned step = random_below(&random, 8); step > 0 && !connect->done; step--)
			world_step(world, now_ms() + 1000, "a handshake");
		peer_kill(peer);
		wait_done(connect);
		if (connect->result) {
			assert_null(connect->endpoint);
			assert_true(connect->detail[0]);
			continue;
		}
		wait_lost(side, lost + 1);
		haul_disconnect(connect->endpoint);
	}
}

/* A new process on the same address: the survivor can connect again. */
static void test_peer_restarted(void **state)
{
	struct world *world = *state;
	struct way up, down;
	struct side *side;
	char address[128];

	skip_without_peers();
	side = side_open(world, NULL);
	for (int i = 0; i < 4; i++) {
		struct peer *peer = peer_start(world, NULL);
		struct block *source = block_new(world, 4000);
		struct entry *sent;

		if (i == 0)
			snprintf(address, sizeof(address), "%s", peer_ask(peer, "listen"));
		else
			peer_ask(peer, "listen %s", address);
		peer_connect(peer, side, connect_address(world, address), &up, &down);
		block_fill(source, 0);
		sent = post_send(&up, haul_key("k"), &source->tensor);
		peer_wait_accepted(peer, 1);
		peer_ask(peer, "recv k 4000 1 0");
		wait_result(sent, 0);
		assert_string_equal(peer_ask(peer, "wait"), "1 0");
		peer_kill(peer);
		peer_succeed(peer);
		wait_lost(side, (unsigned)i + 1);
		haul_disconnect(up.out);
	}
}

/* The connecting side dies: the listening one is told, and accepts others. */
static void test_connecting_peer_killed(void **state)
{
	struct world *world = *state;
	struct side *side;
	const char *address;

	skip_without_peers();
	side = side_open(world, NULL);
	address = side_listen(side);
	for (unsigned i = 0; i < rounds(10, 50); i++) {
		struct peer *peer = peer_start(world, NULL);
		struct load *load;

		peer_ask(peer, "connect %s", address);
		wait_accepted(side, i + 1);
		load = load_start(side, side->accepted[i], true, 100000, 4);
		peer_ask(peer, "load 100000 4");
		wait_until(world, load_moved, load, "the load to start");
		peer_kill(peer);
		wait_lost(side, i + 1);
		assert_int_equal(side->lost[i].result, death());
		check_ended(load);
		haul_disconnect(side->accepted[i]);
	}
}

/* A process that exits in order while there is work: HAUL_LOST with 0. */
static void test_peer_exits_with_work_outstanding(void **state)
{
	struct world *world = *state;
	struct peer *peer;
	struct load *load;
	struct way up, down;
	struct side *side;

	skip_without_peers();
	side = side_open(world, NULL);
	peer = peer_start(world, NULL);
	peer_connect(peer, side, NULL, &up, &down);
	load = load_start(side, up.out, true, 300000, 4);
	peer_ask(peer, "load 300000 4");
	wait_until(world, load_moved, load, "the load to start");
	peer_exit(peer);
	wait_lost(side, 1);
	assert_int_equal(side->lost[0].result, 0);
	check_ended(load);
}

/* Its death is not looked at before: there was something that it had not read. */
static void test_disconnect_from_a_dead_peer(void **state)
{
	struct world *world = *state;
	struct block *target = block_new(world, 4000);
	struct side *side;

	skip_without_peers();
	side = side_open(world, NULL);
	for (int i = 0; i < 4; i++) {
		struct peer *peer = peer_start(world, NULL);
		struct way up, down;
		struct entry *received;

		peer_connect(peer, side, NULL, &up, &down);
		peer_wait_accepted(peer, 1);
		peer_stop(peer);
		received = post_recv(&down, haul_key("k"), &target->tensor);
		world_run_for(world, 10);
		peer_kill(peer);
		/* One more word for the peer, in two of the cases. */
		if (i % 2)
			post_recv(&down, haul_key("more"), &target->tensor);
		haul_disconnect(up.out);
		wait_done(received);
		assert_int_not_equal(received->result, 0);
	}
}

static const struct CMUnitTest tests[] = {
	WORLD_TEST(test_f12_kill_under_load_small),
	WORLD_TEST(test_f12_kill_under_load_medium),
	WORLD_TEST(test_f12_kill_under_load_large),
	WORLD_TEST(test_f13_one_of_three_killed),
	WORLD_TEST(test_peer_killed_in_its_handshake),
	WORLD_TEST(test_peer_restarted),
	WORLD_TEST(test_connecting_peer_killed),
	WORLD_TEST(test_peer_exits_with_work_outstanding),
	WORLD_TEST(test_disconnect_from_a_dead_peer),
};

const struct test_table kill_tests = TABLE_OF(tests);
