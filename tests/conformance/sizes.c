/* SPDX-License-Identifier: Apache-2.0 */
/* Tensors of every size, in both directions and both orders of posting. */
#include "harness.h"

#include <errno.h>
#include <stdio.h>
#include <sys/mman.h>

#define KIB ((size_t)1 << 10)
#define MIB ((size_t)1 << 20)
#define GIB ((size_t)1 << 30)

struct memory {
	haul_region *send, *recv;
};

static struct memory register_both(const struct way *way, struct block *source,
				   struct block *target)
{
	struct memory memory = {NULL, NULL};

	if (!source->bytes)
		return memory;
	assert_int_equal(haul_region_register(way->from->context, source->data, source->bytes,
					      HAUL_USE_SEND, &memory.send),
			 0);
	assert_int_equal(haul_region_register(way->to->context, target->data, target->bytes,
					      HAUL_USE_RECV, &memory.recv),
			 0);
	return memory;
}

/* One tensor one way; `early`: the receive is posted first. */
static void transfer(const struct way *way, struct block *source, struct block *target, bool early,
		     struct memory memory, uint64_t seed)
{
	struct extra send = {.region = memory.send}, recv = {.region = memory.recv};
	struct entry *sent = NULL, *received;

	block_fill(source, seed);
	if (!early)
		sent = post_with(way, HAUL_SENT, haul_key("size"), &source->tensor, &send);
	if (!early)
		world_run_for(way->from->world, 1); /* let a send that is too eager show itself */
	received = post_with(way, HAUL_RECEIVED, haul_key("size"), &target->tensor, &recv);
	if (early)
		sent = post_with(way, HAUL_SENT, haul_key("size"), &source->tensor, &send);
	wait_result(received, 0);
	wait_result(sent, 0);
	assert_int_equal(received->tensor.bytes, source->bytes);
	assert_int_equal(received->tensor.ndim, 1);
	assert_int_equal(received->tensor.shape[0], source->bytes);
	block_check(target, seed);
}

static void test_size(void **state)
{
	struct world *world = *state;
	size_t bytes = (size_t)(uintptr_t)world->parameter;
	struct block *source = block_new(world, bytes), *target = block_new(world, bytes);
	struct pair pair;
	uint64_t seed = bytes;

	pair_open(world, NULL, &pair);
	for (int turn = 0; turn < 2; turn++) {
		const struct way *way = turn ? &pair.down : &pair.up;
		struct memory memory = register_both(way, source, target);

		transfer(way, source, target, true, (struct memory){NULL, NULL}, seed++);
		transfer(way, source, target, false, (struct memory){NULL, NULL}, seed++);
		transfer(way, source, target, true, memory, seed++);
		transfer(way, source, target, false, memory, seed++);
		assert_int_equal(haul_region_release(memory.send), 0);
		assert_int_equal(haul_region_release(memory.recv), 0);
	}
}

/* Sizes around those at which a transport may cut its chunks, each with guard bytes behind it. */
static void test_sizes_around_chunk_edges(void **state)
{
	struct world *world = *state;
	struct block *source = block_new(world, 5 * MIB), *target = block_new(world, 5 * MIB);
	struct pair pair;
	uint64_t seed = 1;

	pair_open(world, NULL, &pair);
	for (size_t edge = 1; edge <= 4 * MIB; edge *= 2) {
		for (size_t bytes = edge - 1; bytes <= edge + 1; bytes++) {
			source->bytes = target->bytes = bytes;
			source->shape[0] = target->shape[0] = (int64_t)bytes;
			memset(target->data + bytes, 0xa5, 64);
			transfer(&pair.up, source, target, true, (struct memory){NULL, NULL},
				 seed++);
			for (int i = 0; i < 64; i++)
				assert_int_equal(target->data[bytes + i], 0xa5);
		}
	}
}

/* A smaller tensor into a larger one: only its own bytes are written. */
static void test_more_room_than_needed(void **state)
{
	struct world *world = *state;
	struct block *source = block_new(world, 100000), *target = block_new(world, 200000);
	struct pair pair;
	struct entry *received;

	pair_open(world, NULL, &pair);
	block_fill(source, 5);
	memset(target->data, 0x5a, target->bytes);
	received = post_recv(&pair.up, haul_key("room"), &target->tensor);
	post_send(&pair.up, haul_key("room"), &source->tensor);
	wait_all(world);
	check_result(received, 0);
	assert_int_equal(received->tensor.bytes, 100000);
	assert_int_equal(received->tensor.shape[0], 100000);
	assert_true(pattern_holds(target->data, 100000, 5, 0, NULL));
	for (size_t i = 100000; i < target->bytes; i++)
		assert_int_equal(target->data[i], 0x5a);
}

/* Many tensors of mixed sizes at once: large ones may not hold up or damage small ones. */
static void test_mixed_sizes_at_once(void **state)
{
	enum { COUNT = 200 };
	struct world *world = *state;
	struct block *sources[COUNT], *targets[COUNT];
	uint64_t random = random_seed();
	struct pair pair;
	char key[24];

	pair_open(world, NULL, &pair);
	for (unsigned i = 0; i < COUNT; i++) {
		size_t bytes = random_below(&random, 1u << (random_below(&random, 22) + 1));

		sources[i] = block_new(world, bytes);
		targets[i] = block_new(world, bytes);
		block_fill(sources[i], i);
		snprintf(key, sizeof(key), "%u", i);
		post_recv(&pair.up, haul_key(key), &targets[i]->tensor);
		post_send(&pair.up, haul_key(key), &sources[i]->tensor);
	}
	wait_all(world);
	for (unsigned i = 0; i < COUNT; i++)
		block_check(targets[i], i);
}

/* The places of a sparse tensor that hold something: head, tail, and a page here and there. */
static void each_sample(struct block *block, void (*visit)(uint8_t *at, size_t bytes, size_t first))
{
	for (size_t first = 0; first < block->bytes; first += 97 * MIB)
		visit(block->data + first, 4 * KIB, first);
	visit(block->data + block->bytes - 4 * KIB - 1, 4 * KIB + 1, block->bytes - 4 * KIB - 1);
}

static void sample_fill(uint8_t *at, size_t bytes, size_t first)
{
	pattern_fill(at, bytes, 21, first);
}

static void sample_check(uint8_t *at, size_t bytes, size_t first)
{
	size_t where = 0;

	if (!pattern_holds(at, bytes, 21, first, &where))
		fail_msg("byte %zu is wrong", first + where);
}

/* 64-bit sizes: the source takes almost no memory, the target 2 GiB for as long as needed. */
static void test_f21_two_gib_and_one_byte(void **state)
{
	struct world *world = *state;
	size_t bytes = 2 * GIB + 1;
	struct block *source, *target;
	uint64_t until = now_ms() + 100000;
	struct entry *received;
	struct pair pair;

	if (thread_sanitized())
		skip_because("the thread sanitizer's shadow of 2 GiB is too large");
	if (memory_available() < 3 * GIB)
		skip_because("needs 3 GiB of free memory");
	pair_open(world, NULL, &pair);
	source = block_new(world, bytes);
	target = block_new(world, bytes);
	madvise(source->data, bytes, MADV_HUGEPAGE);
	madvise(target->data, bytes, MADV_HUGEPAGE);
	each_sample(source, sample_fill);
	received = post_recv(&pair.up, haul_key("2 GiB + 1"), &target->tensor);
	post_send(&pair.up, haul_key("2 GiB + 1"), &source->tensor);
	while (!received->done) /* memory may be slow to come by */
		world_step(world, until, "2 GiB");
	wait_all(world);
	check_result(received, 0);
	assert_int_equal(received->tensor.bytes, bytes);
	assert_int_equal(received->tensor.shape[0], bytes);
	each_sample(target, sample_check);
	for (size_t at = 50 * MIB; at + 4 * KIB < bytes; at += 97 * MIB)
		assert_int_equal(target->data[at], 0);
}

#define SIZE(name, bytes) WORLD_TEST_WITH("test_size_" name, test_size, (void *)(uintptr_t)(bytes))

static const struct CMUnitTest tests[] = {
	SIZE("0", 0),
	SIZE("1", 1),
	SIZE("63", 63),
	SIZE("4_kib", 4 * KIB),
	SIZE("1_mib_less_1", MIB - 1),
	SIZE("1_mib", MIB),
	SIZE("1_mib_and_1", MIB + 1),
	SIZE("100_mib", 100 * MIB),
	WORLD_TEST(test_sizes_around_chunk_edges),
	WORLD_TEST(test_more_room_than_needed),
	WORLD_TEST(test_mixed_sizes_at_once),
	WORLD_TEST(test_f21_two_gib_and_one_byte),
};

const struct test_table sizes_tests = TABLE_OF(tests);
