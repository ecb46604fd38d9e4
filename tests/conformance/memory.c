/* SPDX-License-Identifier: Apache-2.0 */
/* What contexts, endpoints and tensors that come and go cost in memory. */
#include "harness.h"

#include <errno.h>
#include <malloc.h>
#include <stdio.h>
#include <sys/resource.h>

#include "peer.h"

#define MIB ((uint64_t)1 << 20)

static void skip_when_sanitized(void)
{
	if (sanitized())
		skip_because("a sanitizer's own memory hides the library's");
}

/* What is free in the heap is not the library's. */
static uint64_t resident_now(void)
{
	malloc_trim(0);
	return resident_bytes(0);
}

static uint64_t grown(uint64_t before)
{
	uint64_t now = resident_now();

	return now > before ? now - before : 0;
}

static void check_growth(const char *what, uint64_t growth, uint64_t limit)
{
	print_message("%s: %llu KiB\n", what, (unsigned long long)growth >> 10);
	if (growth > limit)
		fail_msg("%s takes %llu KiB; the limit is %llu", what,
			 (unsigned long long)growth >> 10, (unsigned long long)limit >> 10);
}

static void test_context_memory(void **state)
{
	enum { COUNT = 8 };
	struct world *world = *state;
	uint64_t before;

	skip_when_sanitized();
	side_open(world, NULL);
	side_open(world, NULL);
	before = resident_now();
	for (int i = 0; i < COUNT; i++)
		side_listen(side_open(world, NULL));
	check_growth("a context with a listener", grown(before) / COUNT, 16 * MIB);
}

static void test_idle_endpoint_memory(void **state)
{
	enum { COUNT = 200 };
	struct world *world = *state;
	struct way up, down;
	struct rlimit limit;
	struct pair pair;
	uint64_t before;

	skip_when_sanitized();
	getrlimit(RLIMIT_NOFILE, &limit);
	if (limit.rlim_cur < 8 * COUNT)
		skip_because("needs %d descriptors; ulimit -n is %llu", 8 * COUNT,
			     (unsigned long long)limit.rlim_cur);
	pair_open(world, NULL, &pair);
	check_alive(&pair);
	before = resident_now();
	for (int i = 0; i < COUNT; i++) {
		connect_sides(pair.b, pair.a, &up, &down);
		check_way_alive(i % 2 ? &up : &down);
	}
	world_run_for(world, 20);
	check_growth("an idle endpoint", grown(before) / (2 * COUNT), 64 << 10);
}

/* Small tensors through the same few buffers, `window` at a time. */
static void exchange(const struct way *way, struct block *source, struct block *target,
		     unsigned count, unsigned window)
{
	for (unsigned i = 0; i < count; i += window) {
		struct entry *sent[64], *received[64];

		for (unsigned j = 0; j < window; j++) {
			char key[24];

			snprintf(key, sizeof(key), "%u", i + j);
			received[j] = post_recv(way, haul_key(key), &target->tensor);
			sent[j] = post_send(way, haul_key(key), &source->tensor);
		}
		wait_all(way->from->world);
		for (unsigned j = 0; j < window; j++) {
			entry_recycle(received[j]);
			entry_recycle(sent[j]);
		}
	}
}

/* Keys that are never used again, in both directions: nothing may be kept of them. */
static void test_f32_no_growth_over_100000_tensors(void **state)
{
	unsigned count = sanitized() ? 10000 : 100000;
	struct world *world = *state;
	struct block *source = block_new(world, 1000), *target = block_new(world, 1000);
	struct pair pair;
	uint64_t before, growth;

	pair_open(world, NULL, &pair);
	exchange(&pair.up, source, target, 10000, 50);
	exchange(&pair.down, source, target, 10000, 50);
	before = resident_now();
	exchange(&pair.up, source, target, count / 2, 50);
	exchange(&pair.down, source, target, count / 2, 50);
	growth = grown(before);
	if (!sanitized())
		check_growth("100,000 tensors", growth, MIB / 2);
}

static void test_f32_no_growth_over_many_endpoints(void **state)
{
	enum { FIRST = 100 }; /* until then a transport's pools and tables fill */
	unsigned count = FIRST + rounds(200, 2900);
	struct world *world = *state;
	struct way up, down;
	struct pair pair;
	uint64_t before = 0;

	skip_when_sanitized();
	pair_open(world, NULL, &pair);
	for (unsigned i = 0; i < count; i++) {
		if (i == FIRST)
			before = resident_now();
		pair.a->accepted_count = 1; /* the ledger's list is short */
		pair.a->lost_count = pair.b->lost_count = 0;
		connect_sides(pair.b, pair.a, &up, &down);
		haul_disconnect(up.out);
		haul_disconnect(up.in);
	}
	world_run_for(world, 20);
	/* The ledger keeps an entry for each connect. */
	check_growth("connections that come and go", grown(before),
		     MIB + count * 2 * sizeof(struct entry));
}

/* 100,000 sends that nobody asked for stay where they are: at the sender. */
static void test_f32_100000_sends_without_a_receive(void **state)
{
	enum { COUNT = 100000, BYTES = 4096 };
	struct world *world = *state;
	struct block *target;
	struct side *side;
	struct peer *peer;
	uint64_t before;
	struct way down;

	skip_without_peers();
	side = side_open(world, NULL);
	peer = peer_start(world, NULL);
	peer_ask(peer, "connect %s", side_listen(side));
	wait_accepted(side, 1);
	memset(&down, 0, sizeof(down));
	down.to = side;
	down.in = side->accepted[0];
	target = block_new(world, BYTES);
	before = resident_now();
	peer_ask(peer, "send nobody %d %d 0", BYTES, COUNT);
	world_run_for(world, 300);
	if (!sanitized())
		check_growth("100,000 sends at their receiver", grown(before), MIB);
	/* They are still good. */
	for (int i = 0; i < 100; i++)
		wait_result(post_recv(&down, haul_key("nobody"), &target->tensor), 0);
	block_check(target, 0);
}

/* The other way round: a flood of receives costs the peer no more than its slots. */
static void test_f32_receives_beyond_the_slots_stay_here(void **state)
{
	enum { COUNT = 100000 };
	struct world *world = *state;
	struct side *side;
	struct peer *peer;
	uint64_t before, now;

	skip_without_peers();
	skip_when_sanitized();
	side = side_open(world, "slots=64");
	peer = peer_start(world, NULL);
	peer_ask(peer, "connect %s", side_listen(side));
	wait_accepted(side, 1);
	before = resident_now();
	peer_ask(peer, "recv nobody 100 %d 0", COUNT);
	world_run_for(world, 300);
	now = resident_now();
	check_growth("100,000 receives of the peer", now > before ? now - before : 0, MIB);
}

static const struct CMUnitTest tests[] = {
	WORLD_TEST(test_context_memory),
	WORLD_TEST(test_idle_endpoint_memory),
	WORLD_TEST(test_f32_no_growth_over_100000_tensors),
	WORLD_TEST(test_f32_no_growth_over_many_endpoints),
	WORLD_TEST(test_f32_100000_sends_without_a_receive),
	WORLD_TEST(test_f32_receives_beyond_the_slots_stay_here),
};

const struct test_table memory_tests = TABLE_OF(tests);
