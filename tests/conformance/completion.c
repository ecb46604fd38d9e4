/* SPDX-License-Identifier: Apache-2.0 */
/* F18: "complete" means that the bytes are in place, on both sides. */
#include "harness.h"

#include <errno.h>
#include <stdio.h>

struct torn {
	struct block *source, *target;
	uint64_t expected; /* hash of what was sent */
	bool received;
	struct torn_counts *counts;
};

struct torn_counts {
	unsigned torn_received, torn_sent, sent, received;
};

/* HAUL_RECEIVED was polled just now: the tensor must be whole. */
static void hash_received(struct entry *entry)
{
	struct torn *torn = entry->user;

	check_result(entry, 0);
	torn->counts->received++;
	torn->received = true;
	if (hash_of(torn->target->data, torn->target->bytes) != torn->expected)
		torn->counts->torn_received++;
}

/*
 * HAUL_SENT was polled just now: the bytes must be in the receiver's tensor, whether or not its
 * completion was fetched there, and the sender may overwrite its own.
 */
static void overwrite_sent(struct entry *entry)
{
	struct torn *torn = entry->user;

	check_result(entry, 0);
	torn->counts->sent++;
	if (hash_of(torn->target->data, torn->target->bytes) != torn->expected)
		torn->counts->torn_sent++;
	memset(torn->source->data, 0xff, torn->source->bytes);
}

static void hash_many(struct world *world, const char *options, size_t bytes, unsigned count)
{
	struct torn_counts counts = {0};
	struct torn *torn = world_memory(world, count * sizeof(*torn));
	struct pair pair;

	pair_open(world, options, &pair);
	for (unsigned i = 0; i < count; i++) {
		struct extra send = {.hook = overwrite_sent, .user = &torn[i]};
		struct extra recv = {.hook = hash_received, .user = &torn[i]};
		const struct way *way = i % 2 ? &pair.up : &pair.down;

		torn[i].counts = &counts;
		torn[i].source = block_new(world, bytes + i);
		torn[i].target = block_new(world, bytes + i);
		block_fill(torn[i].source, i);
		torn[i].expected = hash_of(torn[i].source->data, bytes + i);
		if (i % 4 < 2)
			post_with(way, HAUL_RECEIVED, haul_key("k"), &torn[i].target->tensor,
				  &recv);
		post_with(way, HAUL_SENT, haul_key("k"), &torn[i].source->tensor, &send);
		if (i % 4 >= 2)
			post_with(way, HAUL_RECEIVED, haul_key("k"), &torn[i].target->tensor,
				  &recv);
		if (i % 8 == 7)
			wait_all(world);
	}
	wait_all(world);
	assert_int_equal(counts.sent, count);
	assert_int_equal(counts.received, count);
	assert_int_equal(counts.torn_received, 0);
	assert_int_equal(counts.torn_sent, 0);
	/* The overwriting reached nobody. */
	for (unsigned i = 0; i < count; i++)
		block_check(torn[i].target, i);
}

static void test_f18_hashed_at_completion_small(void **state)
{
	hash_many(*state, NULL, 1000, rounds(2000, 20000));
}

static void test_f18_hashed_at_completion_large(void **state)
{
	hash_many(*state, NULL, 2 << 20, rounds(80, 400));
}

static void test_f18_hashed_at_completion_by_threads(void **state)
{
	hash_many(*state, "progress=thread", 1 << 20, rounds(80, 400));
}

static void test_checksums_small(void **state)
{
	hash_many(*state, "checksum=crc32c", 1000, rounds(500, 5000));
}

static void test_checksums_large(void **state)
{
	hash_many(*state, "checksum=crc32c", 3 << 20, rounds(40, 200));
}

/* Checksums for every size near the slice that is digested at once, and none at all. */
static void test_checksums_at_edges(void **state)
{
	static const size_t sizes[] = {
		0, 1, 7, 8, 4096, (1 << 20) - 1, 1 << 20, (1 << 20) + 1, (4 << 20) + 3};
	struct world *world = *state;
	struct pair pair;

	pair_open(world, "checksum=crc32c", &pair);
	for (unsigned i = 0; i < sizeof(sizes) / sizeof(sizes[0]); i++) {
		struct block *source = block_new(world, sizes[i]);
		struct block *target = block_new(world, sizes[i] + 100);

		block_fill(source, i);
		post_send(&pair.up, haul_key("k"), &source->tensor);
		wait_result(post_recv(&pair.up, haul_key("k"), &target->tensor), 0);
		assert_true(pattern_holds(target->data, sizes[i], i, 0, NULL));
	}
}

/* One side checks, the other one doesn't: that is said when they connect. */
static void test_checksum_on_one_side_only(void **state)
{
	struct world *world = *state;
	struct side *a, *b;
	struct entry *connect;

	for (int i = 0; i < 2; i++) {
		a = side_open(world, i ? "checksum=crc32c" : "checksum=none");
		b = side_open(world, i ? "checksum=none" : "checksum=crc32c");
		connect = post_connect(b, side_listen(a));
		wait_done(connect);
		assert_int_equal(connect->result, -EPROTO);
		check_words(connect->detail, (const char *const[]){"checksum", NULL});
		assert_null(connect->endpoint);
		world_run_for(world, 20);
		assert_int_equal(a->accepted_count, 0);
		side_close(a);
		side_close(b);
	}
}

static const struct CMUnitTest tests[] = {
	WORLD_TEST(test_f18_hashed_at_completion_small),
	WORLD_TEST(test_f18_hashed_at_completion_large),
	WORLD_TEST(test_f18_hashed_at_completion_by_threads),
	WORLD_TEST(test_checksums_small),
	WORLD_TEST(test_checksums_large),
	WORLD_TEST(test_checksums_at_edges),
	WORLD_TEST(test_checksum_on_one_side_only),
};

const struct test_table completion_tests = TABLE_OF(tests);
