/* SPDX-License-Identifier: Apache-2.0 */
/*
 * F30, F31: strangers at the port, and peers that lie. They lose their own endpoint, reach no
 * memory but their slots, and others notice nothing.
 *
 *   test_verbs_peers SPEC LISTEN_HOST SOURCE [TEST...]
 */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>

#include "bytes.h"
#include "scene.h"

/* ---- Strangers --------------------------------------------------------- */

static void refused(struct scene *scene, const void *bytes, size_t length, unsigned reason)
{
	struct raw_channel channel;
	struct raw_answer answer = raw_channel_open(
		&channel, haul_listener_address(scene->side->listener), bytes, length);

	assert_false(answer.accepted);
	if (answer.refusal && answer.refusal != reason)
		fail_msg("a greeting of %zu bytes was refused for reason %u, not %u", length,
			 answer.refusal, reason);
	raw_channel_close(&channel);
}

static void test_greetings_that_are_none(void **state)
{
	struct world *world = *state;
	struct greeting good = raw_greeting(VERBS_CONTROL, NULL), other;
	uint8_t bytes[56] = {0};
	uint64_t random = random_seed();
	struct scene scene;

	scene_open(world, &scene, "", 100000);
	refused(&scene, bytes, 0, VERBS_REASON_GREETING);
	refused(&scene, bytes, sizeof(bytes), VERBS_REASON_GREETING);
	verbs_encode_greeting(bytes, &good);
	refused(&scene, bytes, 7, VERBS_REASON_GREETING);
	for (int i = 0; i < 5; i++) {
		for (size_t k = 0; k < sizeof(bytes); k++)
			bytes[k] = (uint8_t)random_next(&random);
		refused(&scene, bytes, sizeof(bytes), VERBS_REASON_GREETING);
	}
	verbs_encode_greeting(bytes, &good);
	bytes[4] = VERBS_VERSION + 1;
	refused(&scene, bytes, VERBS_GREETING, VERBS_REASON_VERSION);
	other = good;
	other.ring = 0;
	verbs_encode_greeting(bytes, &other);
	refused(&scene, bytes, VERBS_GREETING, VERBS_REASON_GREETING);
	/* A data channel of a session that never was. */
	other = raw_greeting(VERBS_DATA, (const uint8_t *)"0123456789abcdef");
	verbs_encode_greeting(bytes, &other);
	refused(&scene, bytes, VERBS_GREETING, VERBS_REASON_SESSION);
	check_alive(&scene.pair);
	assert_int_equal(scene.side->accepted_count, 1);
}

/* Half a connection is dropped after handshake_ms and the time that rdma_cm may need to send
 * again, and nobody is told of it. */
static void test_half_a_connection(void **state)
{
	struct world *world = *state;
	struct greeting own = raw_greeting(VERBS_CONTROL, NULL);
	uint8_t bytes[VERBS_GREETING];
	struct raw_channel channel;
	struct scene scene;

	scene_open(world, &scene, "", 100000);
	verbs_encode_greeting(bytes, &own);
	assert_true(raw_channel_open(&channel, haul_listener_address(scene.side->listener), bytes,
				     sizeof(bytes))
			    .accepted);
	assert_true(raw_channel_closed_within(&channel, (unsigned)HANDSHAKE_MS + 15000));
	raw_channel_close(&channel);
	check_alive(&scene.pair);
	assert_int_equal(scene.side->accepted_count, 1);
	assert_int_equal(scene.side->lost_count, 0);
}

/* Data channels of a session that is there, but that have no place in it. */
static void test_data_channels_that_are_none(void **state)
{
	static const unsigned numbers[] = {0, 1, 2, 15, 16, 240};
	struct world *world = *state;
	uint8_t bytes[VERBS_GREETING];
	struct scene scene;

	scene_open(world, &scene, "", 100000);
	scene_next(&scene);
	for (size_t i = 0; i < sizeof(numbers) / sizeof(numbers[0]); i++) {
		struct greeting other = raw_greeting(VERBS_DATA, scene.peer.theirs.session);

		/* Without windows, there may be up to 16. */
		if (numbers[i] % 16 && !(scene.peer.theirs.flags & VERBS_WINDOWS))
			continue;
		other.number = numbers[i];
		verbs_encode_greeting(bytes, &other);
		refused(&scene, bytes, VERBS_GREETING,
			numbers[i] < 2 ? VERBS_REASON_SESSION : VERBS_REASON_ROOM);
	}
	/* It is none the worse for it. */
	scene_receive(&scene, 4);
	raw_verbs_close(&scene.peer);
	wait_lost(scene.side, 1);
	check_alive(&scene.pair);
}

/* ---- The same peer, telling the truth ---------------------------------- */

/* What it takes to send by hand; shows that the page on the protocol is right. */
static void test_honest_raw_peer(void **state)
{
	struct world *world = *state;
	uint8_t message[HAUL_CONTROL_MAX];
	struct scene scene;

	scene_open(world, &scene, "", 100000);
	scene_next(&scene);
	scene_receive(&scene, 3);
	raw_verbs_message(&scene.peer, message, raw_slot(message, WIRE_BYE, 0) / 2);
	wait_lost(scene.side, 1);
	assert_int_equal(scene.side->lost[0].result, 0);
	raw_verbs_close(&scene.peer);
}

/* ---- Lies -------------------------------------------------------------- */

static void test_f31_packets_that_are_none(void **state)
{
	struct world *world = *state;
	uint8_t bytes[RAW_BUFFER] = {0}, message[HAUL_CONTROL_MAX];
	struct scene scene;
	size_t length;

	scene_open(world, &scene, "", 100000);

	scene_next(&scene);
	raw_channel_send(&scene.peer.control, bytes, 3);
	scene_caught(&scene, -EPROTO, "a packet without a head");

	scene_next(&scene);
	put32(bytes, 1000000);
	raw_channel_send(&scene.peer.control, bytes, VERBS_HEAD);
	scene_caught(&scene, -EPROTO, "more was taken than was sent");

	scene_next(&scene);
	put32(bytes, scene.peer.packets);
	memset(bytes + VERBS_HEAD, 0xee, 100);
	raw_channel_send(&scene.peer.control, bytes, VERBS_HEAD + 100);
	scene_caught(&scene, -EPROTO, "records that are none");

	scene_next(&scene);
	length = raw_push(message, WIRE_PUSH, scene.slot, 100);
	raw_verbs_small(&scene.peer, scene.slot ^ 0x7000, 0, message, length, bytes, 100);
	scene_caught(&scene, -EPROTO, "a small tensor for another slot");

	scene_next(&scene);
	length = raw_push(message, WIRE_PUSH, scene.slot, 100);
	raw_verbs_small(&scene.peer, scene.slot, UINT64_MAX - 50, message, length, bytes, 100);
	scene_caught(&scene, -EPROTO, "a small tensor whose end wraps around");

	scene_next(&scene);
	raw_verbs_message(&scene.peer, bytes + VERBS_HEAD, 40);
	scene_caught(&scene, -EPROTO, "a message that is none");
}

static void test_f31_words_that_lie(void **state)
{
	struct world *world = *state;
	uint8_t word[VERBS_WORD], message[HAUL_CONTROL_MAX];
	struct scene scene;
	uint32_t tag;

	scene_open(world, &scene, "", 100000);

	scene_next(&scene);
	verbs_encode_word(word, &(struct word){.tag = 0x00123456, .length = 10});
	raw_channel_send(&scene.peer.data, word, sizeof(word));
	scene_caught(&scene, -EPROTO, "a word for a slot that never was");

	scene_next(&scene);
	tag = slot_tag(scene.slot);
	verbs_encode_word(word, &(struct word){.tag = tag, .length = 100001});
	raw_channel_send(&scene.peer.data, word, sizeof(word));
	scene_caught(&scene, -EPROTO, "more bytes than the slot has room for");

	scene_next(&scene);
	verbs_encode_word(word, &(struct word){.tag = tag, .length = UINT64_MAX});
	raw_channel_send(&scene.peer.data, word, sizeof(word));
	scene_caught(&scene, -EPROTO, "more bytes than there can be");

	scene_next(&scene);
	verbs_encode_word(word, &(struct word){.taken = 77});
	raw_channel_send(&scene.peer.data, word, sizeof(word));
	scene_caught(&scene, -EPROTO, "more words were taken than were sent");

	scene_next(&scene);
	raw_channel_send(&scene.peer.data, word, 7);
	scene_caught(&scene, -EPROTO, "a word that is too short");

	/* More than it announces: the second write is one too many. */
	scene_next(&scene);
	tag = slot_tag(scene.slot);
	raw_verbs_message(&scene.peer, message, raw_push(message, WIRE_PUSH, scene.slot, 50000));
	raw_channel_write(&scene.peer.data, scene.place.address, scene.place.key[0], 40000, &tag);
	raw_channel_write(&scene.peer.data, scene.place.address, scene.place.key[0], 40000, &tag);
	scene_caught(&scene, -EPROTO, "more bytes than were announced");
}

/* A slot in the raw peer's own memory, that of the channel which the side writes on. */
static struct place place_here(const struct raw_verbs *peer, size_t room)
{
	const struct raw_channel *inbound =
		peer->theirs.flags & VERBS_WINDOWS ? &peer->other : &peer->data;

	return (struct place){.address = (uintptr_t)(inbound->buffers + RAW_SOURCE),
			      .first = room,
			      .each = room,
			      .keys = 1,
			      .key = {inbound->mr->rkey}};
}

/* READY of slot 7 there, for the key "down". */
static size_t ready(uint8_t *message, const uint8_t *descriptor, size_t length, size_t room)
{
	memset(message, 0, 24);
	message[0] = WIRE_READY;
	message[2] = 4;
	message[3] = (uint8_t)length;
	memcpy(message + 8, &(uint64_t){7}, 8);
	memcpy(message + 16, &(uint64_t){room}, 8);
	memcpy(message + 24, descriptor, length);
	memcpy(message + 24 + length, "down", 4);
	return 24 + length + 4;
}

static size_t ready_here(const struct raw_verbs *peer, uint8_t *message, size_t room)
{
	struct place place = place_here(peer, room);
	uint8_t descriptor[HAUL_DESCRIPTOR_MAX];

	return ready(message, descriptor, place_encode(descriptor, &place), room);
}

/* Two ends of one slot, while its bytes are on their way: the second one must find nothing gone. */
static void test_f31_answers_that_contradict(void **state)
{
	static const enum wire_type seconds[] = {WIRE_FAILED, WIRE_PLACED, WIRE_CANCEL, WIRE_AGAIN};
	struct world *world = *state;
	struct block *source = block_new(world, RAW_SOURCE_SIZE);
	uint8_t message[HAUL_CONTROL_MAX];
	struct scene scene;

	scene_open(world, &scene, "", 100000);
	for (unsigned round = 0; round < 12; round++) {
		unsigned lost = scene.side->lost_count;
		struct way way = {.from = scene.side};
		size_t length;

		scene_next(&scene);
		way.out = scene.peer.endpoint;
		post_send(&way, haul_key("down"), &source->tensor);
		length = ready_here(&scene.peer, message, RAW_SOURCE_SIZE);
		raw_verbs_message(&scene.peer, message, length);
		raw_verbs_expect(&scene.peer, WIRE_PUSH, message);
		raw_verbs_message(&scene.peer, message, raw_slot(message, WIRE_CANCEL, 7));
		length = raw_slot(message, seconds[round % 4], 7);
		if (seconds[round % 4] == WIRE_FAILED)
			message[2] = WIRE_REASON_CHECKSUM;
		raw_verbs_message(&scene.peer, message, length);
		world_run_for(world, 30);
		/* Whether it was caught in the act is a matter of time. */
		if (scene.side->lost_count > lost)
			assert_int_equal(scene.side->lost[lost].result, -EPROTO);
		haul_disconnect(scene.peer.endpoint);
		raw_verbs_close(&scene.peer);
		guarded_check(&scene.guarded);
		check_alive(&scene.pair);
	}
}

/* A tensor for a slot that the peer has no right to announce: it loses its endpoint. */
static void announces(struct scene *scene, const uint8_t *descriptor, size_t length, int error,
		      const char *lie)
{
	struct block *source = block_new(scene->world, 100000);
	struct way way = {.from = scene->side};
	uint8_t message[HAUL_CONTROL_MAX];
	struct entry *sent;

	scene_next(scene);
	way.out = scene->peer.endpoint;
	sent = post_send(&way, haul_key("down"), &source->tensor);
	raw_verbs_message(&scene->peer, message, ready(message, descriptor, length, 100000));
	scene_caught(scene, error, lie);
	assert_true(sent->done);
	check_result(sent, -ECONNRESET);
}

static void test_f31_slots_that_are_none(void **state)
{
	static const uint8_t zeros[HAUL_DESCRIPTOR_MAX];
	struct place place = {.address = 4096, .first = 100000, .each = 100000, .keys = 1};
	uint8_t descriptor[HAUL_DESCRIPTOR_MAX];
	struct world *world = *state;
	struct scene scene;
	size_t length;

	scene_open(world, &scene, "", 100000);
	announces(&scene, zeros, 0, -EPROTO, "a slot that is nowhere");
	announces(&scene, zeros, 3, -EPROTO, "a place that is cut off");
	announces(&scene, zeros, 28, -EPROTO, "a place without a byte");
	announces(&scene, zeros, 64, -EPROTO, "ten places without a byte");
	place.key[0] = 0x12345678;
	length = place_encode(descriptor, &place);
	announces(&scene, descriptor, length, -ECONNRESET, "a key that is none");
	place.address = UINT64_MAX - 50;
	length = place_encode(descriptor, &place);
	announces(&scene, descriptor, length, -ECONNRESET, "a place whose end wraps around");
	place.first = 50000;
	length = place_encode(descriptor, &place);
	announces(&scene, descriptor, length, -EPROTO, "a place smaller than the slot");
}

/* With windows, a key opens the slot and nothing else, and only while the slot is open. */
static void test_f31_writes_beside_the_slot(void **state)
{
	struct world *world = *state;
	struct scene scene;
	uint32_t tag;

	scene_open(world, &scene, "", 100000);
	scene_next(&scene);
	memset(scene.peer.data.buffers + RAW_SOURCE, 0xa5, 200000); /* as the guards are */
	tag = slot_tag(scene.slot);
	if (raw_channel_write(&scene.peer.data, scene.place.address + 100000 - 10,
			      scene.place.key[0], 20, &tag)) {
		raw_verbs_close(&scene.peer);
		wait_lost(scene.side, 1);
		skip_because("this device's driver does not look at the ends of a window (rxe)");
	}
	scene_caught(&scene, -ECONNRESET, "a write over the slot's end");

	scene_next(&scene);
	assert_false(raw_channel_write(&scene.peer.data, scene.place.address - 10,
				       scene.place.key[0], 20, &tag));
	scene_caught(&scene, -ECONNRESET, "a write before the slot");
}

static void test_f31_keys_that_open_nothing(void **state)
{
	struct world *world = *state;
	struct scene scene;
	uint32_t tag;

	scene_open(world, &scene, "", 100000);
	scene_next(&scene);
	tag = slot_tag(scene.slot);
	assert_false(raw_channel_write(&scene.peer.data, scene.place.address,
				       scene.place.key[0] + 1, 20, &tag));
	scene_caught(&scene, -ECONNRESET, "a key that was never given");

	scene_next(&scene);
	assert_false(raw_channel_write(&scene.peer.data, scene.peer.theirs.mailbox,
				       scene.peer.theirs.mailbox_key, 8, NULL));
	scene_caught(&scene, -ECONNRESET, "a write into what may be read only");

	scene_next(&scene);
	assert_false(raw_channel_write(&scene.peer.control, scene.place.address, scene.place.key[0],
				       20, NULL));
	scene_caught(&scene, -ECONNRESET, "a write over the control channel");
}

static void test_f31_writes_after_the_slot(void **state)
{
	struct world *world = *state;
	uint8_t message[HAUL_CONTROL_MAX];
	struct scene scene;
	uint64_t until = now_ms() + PATIENCE_MS;
	uint32_t tag;

	scene_open(world, &scene, "", 100000);
	scene_next(&scene);
	tag = slot_tag(scene.slot);
	pattern_fill(scene.peer.data.buffers + RAW_SOURCE, 100000, 5, 0);
	raw_verbs_message(&scene.peer, message, raw_push(message, WIRE_PUSH, scene.slot, 100000));
	assert_true(raw_channel_write(&scene.peer.data, scene.place.address, scene.place.key[0],
				      100000, &tag));
	wait_result(scene.received, 0);
	block_check(&scene.guarded.target, 5);
	world_run_for(world, 50); /* the invalidation is done */
	memset(scene.peer.data.buffers + RAW_SOURCE, 0x11, 100000);
	assert_false(raw_channel_write(&scene.peer.data, scene.place.address, scene.place.key[0],
				       100000, NULL));
	block_check(&scene.guarded.target, 5);
	while (scene.side->lost_count == 0)
		world_step(world, until, "the liar's end");
	raw_verbs_close(&scene.peer);
	guarded_check(&scene.guarded);
	check_alive(&scene.pair);
}

/* Keys are for writing, and packets for the control channel. */
static void test_f31_other_verbs(void **state)
{
	struct world *world = *state;
	struct scene scene;
	uint32_t tag;

	scene_open(world, &scene, "", 100000);
	scene_next(&scene);
	assert_false(
		raw_channel_read(&scene.peer.data, scene.place.address, scene.place.key[0], 20));
	scene_caught(&scene, -ECONNRESET, "a read of the slot");

	scene_next(&scene);
	assert_true(raw_channel_read(&scene.peer.control, scene.peer.theirs.mailbox,
				     scene.peer.theirs.mailbox_key, 8));
	assert_false(raw_channel_read(&scene.peer.control, scene.peer.theirs.mailbox,
				      scene.peer.theirs.mailbox_key, 8192));
	scene_caught(&scene, -ECONNRESET, "a read beyond the mailbox");

	scene_next(&scene);
	tag = slot_tag(scene.slot);
	raw_channel_write(&scene.peer.control, 0, 0, 0, &tag);
	scene_caught(&scene, -ECONNRESET, "a write of nothing over the control channel");

	/* Nothing arrives, and nothing is wrong. */
	scene_next(&scene);
	tag = slot_tag(scene.slot);
	assert_true(raw_channel_write(&scene.peer.data, 0, 0, 0, &tag));
	scene_receive(&scene, 6);
	raw_verbs_close(&scene.peer);
	wait_lost(scene.side, scene.lost + 1);
	check_alive(&scene.pair);
}

/* Whoever has a window's key can have it forgotten, and that is seen. */
static void test_f31_window_forgotten(void **state)
{
	struct world *world = *state;
	struct scene scene;

	scene_open(world, &scene, "", 100000);
	scene_next(&scene);
	if (!(scene.peer.theirs.flags & VERBS_WINDOWS)) {
		raw_verbs_close(&scene.peer);
		wait_lost(scene.side, 1);
		skip_because("there are no windows");
	}
	raw_channel_forget(&scene.peer.data, scene.place.key[0]);
	scene_caught(&scene, -EPROTO, "a window that was taken away");
}

int main(int count, char **words)
{
	static const struct CMUnitTest tests[] = {
		WORLD_TEST(test_greetings_that_are_none),
		WORLD_TEST(test_half_a_connection),
		WORLD_TEST(test_data_channels_that_are_none),
		WORLD_TEST(test_honest_raw_peer),
		WORLD_TEST(test_f31_packets_that_are_none),
		WORLD_TEST(test_f31_words_that_lie),
		WORLD_TEST(test_f31_answers_that_contradict),
		WORLD_TEST(test_f31_slots_that_are_none),
		WORLD_TEST(test_f31_writes_beside_the_slot),
		WORLD_TEST(test_f31_keys_that_open_nothing),
		WORLD_TEST(test_f31_writes_after_the_slot),
		WORLD_TEST(test_f31_other_verbs),
		WORLD_TEST(test_f31_window_forgotten),
	};

	if (count < 4) {
		fprintf(stderr, "usage: %s SPEC LISTEN_HOST SOURCE [TEST...]\n", words[0]);
		return 2;
	}
	settings.listen_host = words[2];
	raw_source = words[3];
	return suite_main(words[1], tests, sizeof(tests) / sizeof(tests[0]), count - 3, words + 3);
}
