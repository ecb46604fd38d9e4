/* SPDX-License-Identifier: Apache-2.0 */
/*
 * F12: peers that are killed in the middle of a push, a hundred times. Each operation of the
 * survivor ends once and in time, and from then on its memory belongs to the caller: nothing writes
 * there any more.
 *
 *   test_verbs_kill SPEC LISTEN_HOST [TEST...]
 */
#include <errno.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>

#include "peer.h"

/* Long enough to be in the middle of. */
#define BYTES ((size_t)6 << 20)
#define PEER_MS 4000

/* Each direction. */
#define KILLS 50u

/* What the memory of a receive holds before a byte arrives; peers send the pattern of seed 0. */
#define POISON 0xee

struct victim {
	struct side *side;
	struct peer *peer;
	struct way up, down;
	struct block *block;
	struct entry *entry;
	uint64_t seed; /* of what the caller writes as soon as the operation has ended */
};

/* From the completion on, the memory is the caller's. */
static void use_again(struct entry *entry)
{
	struct victim *victim = entry->user;

	block_fill(victim->block, victim->seed);
}

static bool is_poisoned(const struct block *block, size_t at)
{
	for (size_t i = at; i < at + 16; i++) {
		if (block->data[i] != POISON)
			return false;
	}
	return true;
}

/* Bytes have moved; or it is over already. */
static bool has_begun(void *user)
{
	struct victim *victim = user;
	struct haul_statistics statistics = {.size = sizeof(statistics)};

	if (victim->entry->done)
		return true;
	if (victim->entry->event == HAUL_RECEIVED)
		return !is_poisoned(victim->block, 0);
	assert_int_equal(haul_endpoint_statistics(victim->up.out, &statistics), 0);
	return statistics.chunks_sent > 0;
}

static void begin(struct victim *victim, bool sends)
{
	struct extra extra = {.hook = use_again, .user = victim};

	victim->peer = peer_start(victim->side->world, NULL);
	peer_connect(victim->peer, victim->side, NULL, &victim->up, &victim->down);
	peer_wait_accepted(victim->peer, 1);
	if (sends)
		block_fill(victim->block, 0); /* what a peer looks for that has all of it */
	else
		memset(victim->block->data, POISON, victim->block->bytes);
	peer_ask(victim->peer, "%s k %zu 1 0", sends ? "recv" : "send", BYTES);
	victim->entry =
		post_with(sends ? &victim->up : &victim->down, sends ? HAUL_SENT : HAUL_RECEIVED,
			  haul_key("k"), &victim->block->tensor, &extra);
}

/* True when the peer died in the middle; false when the tensor was there already. */
static bool kill_one(struct side *side, struct block *block, bool sends, uint64_t *random)
{
	struct world *world = side->world;
	struct victim victim = {
		.side = side, .block = block, .seed = 1 + random_next(random) % 1000};
	unsigned lost = side->lost_count;
	bool in_the_middle;
	uint64_t killed;

	begin(&victim, sends);
	wait_until(world, has_begun, &victim, "the push to begin");
	for (unsigned step = random_below(random, 6); step > 0 && !victim.entry->done; step--)
		world_step(world, now_ms() + PATIENCE_MS, "the push to go on");
	in_the_middle = !victim.entry->done;
	killed = now_ms();
	/* Its kernel takes its time to clean up after it, and this side goes on meanwhile. */
	kill(victim.peer->pid, SIGKILL);
	wait_done(victim.entry);
	if (victim.entry->result == 0)
		in_the_middle = false;
	else
		check_result(victim.entry, -ECONNRESET);
	wait_lost(side, lost + 1);
	assert_int_equal(side->lost[lost].result, -ECONNRESET);
	if (now_ms() - killed > PEER_MS)
		fail_msg("noticed after %llu ms", (unsigned long long)(now_ms() - killed));
	peer_kill(victim.peer);
	haul_disconnect(victim.up.out);
	world_run_for(world, 10);
	block_check(block, victim.seed);
	assert_int_equal(side->finished, side->started);
	return in_the_middle;
}

/* Those whose tensor was there before they died don't count. */
static void kill_many(struct side *side, bool sends, unsigned count, uint64_t *random)
{
	struct block *block = block_new(side->world, BYTES);
	unsigned killed = 0, tried = 0;
	int descriptors = -1;

	while (killed < count) {
		if (tried++ > 3 * count)
			fail_msg("only %u of %u were in the middle", killed, tried);
		killed += kill_one(side, block, sends, random);
		/* The first one opens what is opened once. */
		if (descriptors < 0)
			descriptors = descriptors_open();
		assert_int_equal(descriptors_open(), descriptors);
	}
	print_message("%s: %u of %u peers died in the middle\n", sends ? "sending" : "receiving",
		      killed, tried);
}

static void test_f12_killed_in_mid_push(void **state)
{
	struct world *world = *state;
	uint64_t random = random_seed();
	struct side *side = side_open(world, world_text(world, "peer_ms=%d", PEER_MS));

	kill_many(side, true, rounds(KILLS, 4 * KILLS), &random);
	kill_many(side, false, rounds(KILLS, 4 * KILLS), &random);
	assert_int_equal(side->accepted_count, 0);
}

/* This program is its peers' too: `test_verbs_kill --peer --transport=SPEC --listen-host=HOST`. */
static int be_peer(int count, char **words)
{
	for (int i = 2; i < count; i++) {
		char *value = strchr(words[i], '=');

		if (value && !strncmp(words[i], "--transport=", 12))
			settings.transport = settings.peer_transport = value + 1;
		else if (value && !strncmp(words[i], "--listen-host=", 14))
			settings.listen_host = value + 1;
	}
	return peer_main();
}

int main(int count, char **words)
{
	static const struct CMUnitTest tests[] = {
		WORLD_TEST(test_f12_killed_in_mid_push),
	};

	if (count > 1 && !strcmp(words[1], "--peer"))
		return be_peer(count, words);
	if (count < 3) {
		fprintf(stderr, "usage: %s SPEC LISTEN_HOST [TEST...]\n", words[0]);
		return 2;
	}
	settings.listen_host = words[2];
	return suite_main(words[1], tests, sizeof(tests) / sizeof(tests[0]), count - 2, words + 2);
}
