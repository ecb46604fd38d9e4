/* SPDX-License-Identifier: Apache-2.0 */
/* Keys: what pairs a send with a receive, and in which order. */
#include "harness.h"

#include <stdio.h>

enum order {
	SENDS_FIRST,
	RECEIVES_FIRST,
	MIXED,
};

/* `count` tensors, each of a key of its own; both ends post in a random order of their own. */
static void permuted_keys(const struct way *way, unsigned count, enum order order, uint64_t *random)
{
	struct world *world = way->from->world;
	unsigned *sends = world_memory(world, count * sizeof(*sends));
	unsigned *receives = world_memory(world, count * sizeof(*receives));
	uint64_t *from = world_memory(world, count * sizeof(*from));
	uint64_t *into = world_memory(world, count * sizeof(*into));
	unsigned sent = 0, received = 0;

	for (unsigned i = 0; i < count; i++)
		sends[i] = receives[i] = i;
	shuffle(sends, count, random);
	shuffle(receives, count, random);
	while (sent < count || received < count) {
		bool send = order == SENDS_FIRST      ? sent < count
			    : order == RECEIVES_FIRST ? received == count
						      : random_below(random, 2);
		unsigned number;
		DLTensor tensor;
		char key[24];

		if (send ? sent == count : received == count)
			continue;
		number = send ? sends[sent++] : receives[received++];
		snprintf(key, sizeof(key), "layer/%u/weights", number);
		from[number] = number * UINT64_C(0x123456789);
		tensor = haul_tensor(send ? &from[number] : &into[number],
				     (DLDataType){kDLUInt, 64, 1}, 0, NULL);
		if (send)
			post_send(way, haul_key(key), &tensor);
		else
			post_recv(way, haul_key(key), &tensor);
		if (order == MIXED && number % 16 == 0)
			side_poll(number % 32 ? way->from : way->to);
	}
	wait_all(world);
	for (unsigned i = 0; i < count; i++)
		assert_int_equal(into[i], i * UINT64_C(0x123456789));
}

static void test_many_keys_in_any_order(void **state)
{
	uint64_t random = random_seed();
	unsigned count = rounds(2000, 20000);
	struct pair pair;

	pair_open(*state, NULL, &pair);
	for (enum order order = SENDS_FIRST; order <= MIXED; order++) {
		permuted_keys(&pair.up, count, order, &random);
		permuted_keys(&pair.down, count, order, &random);
	}
}

/* One tensor of one key, whose number tells it from others. */
static void post_number(const struct way *way, struct haul_key key, uint64_t *from, uint64_t *into)
{
	DLTensor tensor;

	if (from) {
		tensor = haul_tensor(from, (DLDataType){kDLUInt, 64, 1}, 0, NULL);
		post_send(way, key, &tensor);
	}
	if (into) {
		tensor = haul_tensor(into, (DLDataType){kDLUInt, 64, 1}, 0, NULL);
		post_recv(way, key, &tensor);
	}
}

/* All keys are prefixes of one another, sent in rising and received in falling length. */
static void test_key_lengths_1_to_255(void **state)
{
	struct world *world = *state;
	uint64_t *from = world_memory(world, 256 * sizeof(*from));
	uint64_t *into = world_memory(world, 256 * sizeof(*into));
	char *bytes = world_memory(world, HAUL_KEY_MAX);
	struct pair pair;

	pair_open(world, NULL, &pair);
	memset(bytes, 'k', HAUL_KEY_MAX);
	for (size_t length = 1; length <= HAUL_KEY_MAX; length++) {
		from[length] = length;
		post_number(&pair.up, (struct haul_key){bytes, length}, &from[length], NULL);
	}
	for (size_t length = HAUL_KEY_MAX; length >= 1; length--)
		post_number(&pair.up, (struct haul_key){bytes, length}, NULL, &into[length]);
	wait_all(world);
	for (size_t length = 1; length <= HAUL_KEY_MAX; length++)
		assert_int_equal(into[length], length);
}

/* Keys are bytes: NUL, 0xff and what differs only behind a NUL are told apart. */
static void test_binary_keys(void **state)
{
	static const struct {
		char bytes[4];
		size_t length;
	} keys[] = {
		{"\0", 1},       {"\0\0", 2},     {"\0\0\0", 3}, {"a", 1},
		{"a\0", 2},      {"a\0b", 3},     {"a\0c", 3},   {"\xff", 1},
		{"\xff\xff", 2}, {"\xfe\xff", 2}, {"\r\n", 2},   {"\n", 1},
		{"%s", 2},       {"\x80", 1},     {"\0a", 2},    {"A", 1},
	};
	enum { COUNT = sizeof(keys) / sizeof(keys[0]) };
	struct world *world = *state;
	uint64_t *from = world_memory(world, COUNT * sizeof(*from));
	uint64_t *into = world_memory(world, COUNT * sizeof(*into));
	struct pair pair;

	pair_open(world, NULL, &pair);
	for (unsigned i = 0; i < COUNT; i++) {
		from[i] = i + 1;
		post_number(&pair.up, (struct haul_key){keys[i].bytes, keys[i].length}, &from[i],
			    NULL);
	}
	for (unsigned i = COUNT; i-- > 0;)
		post_number(&pair.up, (struct haul_key){keys[i].bytes, keys[i].length}, NULL,
			    &into[i]);
	wait_all(world);
	for (unsigned i = 0; i < COUNT; i++)
		assert_int_equal(into[i], i + 1);
}

/* Sends and receives of one key meet in the order of the calls, whatever their sizes. */
static void test_fifo_per_key(void **state)
{
	enum { COUNT = 300, ROOM = 40000 };
	struct world *world = *state;
	struct block *sources[COUNT], *targets[COUNT];
	uint64_t random = random_seed();
	unsigned sent = 0, received = 0;
	struct pair pair;

	pair_open(world, NULL, &pair);
	while (sent < COUNT || received < COUNT) {
		if (sent < COUNT && random_below(&random, 2)) {
			sources[sent] = block_new(world, random_below(&random, ROOM));
			block_fill(sources[sent], sent);
			post_send(&pair.up, haul_key("one"), &sources[sent]->tensor);
			sent++;
		} else if (received < COUNT) {
			targets[received] = block_new(world, ROOM);
			post_recv(&pair.up, haul_key("one"), &targets[received]->tensor);
			received++;
		}
		if (random_below(&random, 8) == 0)
			side_poll(random_below(&random, 2) ? pair.a : pair.b);
	}
	wait_all(world);
	for (unsigned i = 0; i < COUNT; i++)
		assert_true(pattern_holds(targets[i]->data, sources[i]->bytes, i, 0, NULL));
}

/* A key belongs to one direction of one endpoint. */
static void test_same_key_elsewhere(void **state)
{
	struct world *world = *state;
	uint64_t *from = world_memory(world, 4 * sizeof(*from));
	uint64_t *into = world_memory(world, 4 * sizeof(*into));
	const struct way *ways[4];
	struct way up, down;
	struct pair pair;

	pair_open(world, NULL, &pair);
	connect_sides(pair.b, pair.a, &up, &down);
	ways[0] = &pair.up;
	ways[1] = &pair.down;
	ways[2] = &up;
	ways[3] = &down;
	for (unsigned i = 0; i < 4; i++) {
		from[i] = 100 + i;
		post_number(ways[i], haul_key("same"), &from[i], NULL);
	}
	for (unsigned i = 4; i-- > 0;)
		post_number(ways[i], haul_key("same"), NULL, &into[i]);
	wait_all(world);
	for (unsigned i = 0; i < 4; i++)
		assert_int_equal(into[i], 100 + i);
}

/* A receive without a send holds up no other key. */
static void test_keys_do_not_wait_for_each_other(void **state)
{
	struct world *world = *state;
	struct block *never = block_new(world, 10);
	struct pair pair;
	struct entry *open;

	pair_open(world, NULL, &pair);
	open = post_recv(&pair.up, haul_key("never"), &never->tensor);
	for (int i = 0; i < 100; i++)
		check_alive(&pair);
	assert_false(open->done);
}

static const struct CMUnitTest tests[] = {
	WORLD_TEST(test_many_keys_in_any_order),
	WORLD_TEST(test_key_lengths_1_to_255),
	WORLD_TEST(test_binary_keys),
	WORLD_TEST(test_fifo_per_key),
	WORLD_TEST(test_same_key_elsewhere),
	WORLD_TEST(test_keys_do_not_wait_for_each_other),
};

const struct test_table keys_tests = TABLE_OF(tests);
