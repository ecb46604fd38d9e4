/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A storm of random sends, receives, queries, cancels and deadlines over few keys, checked
 * against what must hold whatever the timing: every operation ends once; a send that ended
 * with 0 was received exactly once; what was received was sent and is whole. Where no receive
 * is given up, tensors also come in the order of their sends: a send whose receive was given up
 * in mid-transfer meets the next one, which may be behind others.
 */
#include "harness.h"

#include <errno.h>
#include <stdio.h>

enum { KEYS = 5, OPERATIONS = 400, ROOM = 100000 };

struct storm;

/* One send or receive. */
struct drop {
	struct storm *storm;
	struct entry *entry;
	struct block *block;
	unsigned key;
	unsigned number;   /* send: its number; receive: what it got */
	unsigned received; /* send: how often */
};

struct storm {
	const struct way *way;
	uint64_t random;
	bool ordered; /* no receive is given up */
	struct drop sends[OPERATIONS], receives[OPERATIONS];
	unsigned send_count, receive_count;
	struct entry *open[3 * OPERATIONS];
	unsigned open_count;
};

/* The tensor's first 8 bytes tell its number; the rest is its pattern. */
static void storm_send(struct storm *storm)
{
	struct drop *drop = &storm->sends[storm->send_count];
	uint64_t number = storm->send_count++;
	struct extra extra = {0};
	char key[8];

	drop->key = random_below(&storm->random, KEYS);
	drop->number = (unsigned)number;
	drop->block = block_new(storm->way->from->world, 8 + random_below(&storm->random, ROOM));
	block_fill(drop->block, number);
	memcpy(drop->block->data, &number, 8);
	if (random_below(&storm->random, 10) == 0)
		extra.timeout_ms = 1 + random_below(&storm->random, 20);
	snprintf(key, sizeof(key), "%u", drop->key);
	drop->entry = post_with(storm->way, HAUL_SENT, haul_key(key), &drop->block->tensor, &extra);
	storm->open[storm->open_count++] = drop->entry;
}

static void storm_receive(struct storm *storm)
{
	struct drop *drop = &storm->receives[storm->receive_count++];
	struct extra extra = {0};
	bool small = random_below(&storm->random, 8) == 0;
	char key[8];

	drop->key = random_below(&storm->random, KEYS);
	drop->block = block_new(storm->way->from->world,
				small ? random_below(&storm->random, ROOM) : ROOM + 8);
	if (!storm->ordered && random_below(&storm->random, 6) == 0)
		extra.timeout_ms = 1 + random_below(&storm->random, 20);
	snprintf(key, sizeof(key), "%u", drop->key);
	drop->entry =
		post_with(storm->way, HAUL_RECEIVED, haul_key(key), &drop->block->tensor, &extra);
	storm->open[storm->open_count++] = drop->entry;
}

static void storm_query(struct storm *storm)
{
	char key[8];

	snprintf(key, sizeof(key), "%u", random_below(&storm->random, KEYS));
	storm->open[storm->open_count++] = post_query(storm->way, haul_key(key));
}

static void storm_cancel(struct storm *storm)
{
	struct entry *entry;
	int found;

	if (!storm->open_count)
		return;
	entry = storm->open[random_below(&storm->random, storm->open_count)];
	if (storm->ordered && entry->event == HAUL_RECEIVED)
		return;
	found = haul_cancel(entry->side->context, entry);
	assert_true(found == -ENOENT || (found == 1 && !entry->done));
}

/* What a receive that ended with 0 holds. */
static void check_received(struct storm *storm, struct drop *receive)
{
	const struct haul_tensor_info *tensor = &receive->entry->tensor;
	uint64_t number;
	struct drop *send;

	assert_true(tensor->bytes >= 8 && tensor->bytes <= receive->block->bytes);
	memcpy(&number, receive->block->data, 8);
	assert_true(number < storm->send_count);
	send = &storm->sends[number];
	assert_int_equal(send->key, receive->key);
	assert_int_equal(send->block->bytes, tensor->bytes);
	assert_memory_equal(send->block->data, receive->block->data, tensor->bytes);
	assert_int_equal(send->received, 0);
	send->received = 1;
	receive->number = (unsigned)number;
}

static void check_storm(struct storm *storm)
{
	unsigned last[KEYS] = {0}, refused = 0, good = 0;

	for (unsigned i = 0; i < storm->receive_count; i++) {
		struct drop *receive = &storm->receives[i];
		int result = receive->entry->result;

		assert_true(result == 0 || result == -ECANCELED || result == -ETIMEDOUT ||
			    result == -EMSGSIZE);
		refused += result == -EMSGSIZE;
		if (result == -EMSGSIZE)
			assert_true(receive->entry->tensor.bytes > receive->block->bytes);
		if (result)
			continue;
		check_received(storm, receive);
		if (storm->ordered)
			assert_true(receive->number + 1 > last[receive->key]);
		last[receive->key] = receive->number + 1;
		good++;
	}
	for (unsigned i = 0; i < storm->send_count; i++) {
		const struct drop *send = &storm->sends[i];
		int result = send->entry->result;

		assert_true(result == 0 || result == -ECANCELED || result == -ETIMEDOUT);
		if (result == 0)
			assert_int_equal(send->received, 1);
	}
	print_message("%u of %u received, %u refused\n", good, storm->receive_count, refused);
}

static void run_storm(struct storm *storm)
{
	struct world *world = storm->way->from->world;

	while (storm->send_count < OPERATIONS && storm->receive_count < OPERATIONS &&
	       storm->open_count < 3 * OPERATIONS) {
		unsigned dice = random_below(&storm->random, 20);

		if (dice < 7)
			storm_send(storm);
		else if (dice < 14)
			storm_receive(storm);
		else if (dice < 15)
			storm_query(storm);
		else if (dice < 17)
			storm_cancel(storm);
		else
			side_poll(dice % 2 ? storm->way->from : storm->way->to);
	}
	world_run_for(world, 30);
	for (unsigned i = 0; i < storm->open_count; i++) {
		if (!storm->open[i]->done)
			haul_cancel(storm->open[i]->side->context, storm->open[i]);
	}
	wait_all(world);
	check_storm(storm);
}

static void storms(struct world *world, const char *options, bool ordered, unsigned count)
{
	uint64_t random = random_seed();
	struct pair pair;

	pair_open(world, options, &pair);
	for (unsigned i = 0; i < count; i++) {
		struct storm *storm = world_memory(world, sizeof(*storm));

		storm->way = i % 2 ? &pair.down : &pair.up;
		storm->random = random + i;
		storm->ordered = ordered;
		run_storm(storm);
	}
	check_alive(&pair);
}

static void test_storm(void **state)
{
	storms(*state, NULL, false, rounds(6, 100));
}

/* A send that is given up while it is checksummed has met its receive already, which waits again.
 */
static void test_storm_in_order(void **state)
{
	storms(*state, "checksum=none", true, rounds(6, 100));
}

static void test_storm_with_few_slots(void **state)
{
	storms(*state, "slots=3", false, rounds(4, 100));
}

static void test_storm_with_checksums(void **state)
{
	storms(*state, "checksum=crc32c", false, rounds(4, 100));
}

static const struct CMUnitTest tests[] = {
	WORLD_TEST(test_storm),
	WORLD_TEST(test_storm_in_order),
	WORLD_TEST(test_storm_with_few_slots),
	WORLD_TEST(test_storm_with_checksums),
};

const struct test_table storm_tests = TABLE_OF(tests);
