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

#include "rawpeer.h"

#define GUARD ((size_t)4096)
/* A sanitizer in an emulated machine takes its time. */
#define HANDSHAKE_MS (sanitized() ? 8000 : 1500)

struct scene {
	struct world *world;
	struct pair pair; /* of good peers */
	struct side *side;
	struct block *memory;
	struct block target; /* between two guards, in one region */
	haul_region *region;
	uint64_t slot;
	struct place place;
	struct entry *received;
	struct raw_verbs peer;
	unsigned lost;
};

static void scene_open(struct world *world, struct scene *scene, const char *options, size_t bytes)
{
	memset(scene, 0, sizeof(*scene));
	scene->world = world;
	pair_open(world,
		  world_text(world, "progress=thread,handshake_ms=%d%s", HANDSHAKE_MS, options),
		  &scene->pair);
	scene->side = scene->pair.a;
	scene->memory = block_new(world, bytes + 2 * GUARD);
	memset(scene->memory->data, 0xa5, scene->memory->bytes);
	scene->target.data = scene->memory->data + GUARD;
	scene->target.bytes = bytes;
	scene->target.shape[0] = (int64_t)bytes;
	scene->target.tensor = haul_tensor(scene->target.data, type_u8, 1, scene->target.shape);
	assert_int_equal(haul_region_register(scene->side->context, scene->memory->data,
					      scene->memory->bytes, HAUL_USE_RECV, &scene->region),
			 0);
}

/* A new bad peer, with one receive posted that it knows of. */
static void scene_next(struct scene *scene)
{
	struct extra extra = {.region = scene->region};
	uint8_t message[HAUL_CONTROL_MAX];
	struct way way = {.to = scene->side};

	raw_verbs_open(&scene->peer, scene->side);
	way.in = scene->peer.endpoint;
	scene->received =
		post_with(&way, HAUL_RECEIVED, haul_key("k"), &scene->target.tensor, &extra);
	raw_verbs_expect(&scene->peer, WIRE_READY, message);
	memcpy(&scene->slot, message + 8, 8);
	assert_int_equal(place_decode(message + 24, message[3], &scene->place), 0);
	assert_int_equal(scene->place.address, (uintptr_t)scene->target.data);
}

static void check_guards(const struct scene *scene)
{
	const uint8_t *end = scene->memory->data + scene->memory->bytes - GUARD;

	for (size_t i = 0; i < GUARD; i++) {
		assert_int_equal(scene->memory->data[i], 0xa5);
		assert_int_equal(end[i], 0xa5);
	}
}

/* The lie was found: the endpoint is lost, its receive has ended, all else is as it was. */
static void scene_caught(struct scene *scene, int error, const char *lie)
{
	uint64_t until = now_ms() + PATIENCE_MS;

	while (scene->side->lost_count <= scene->lost) {
		if (now_ms() >= until)
			fail_msg("not caught: %s", lie);
		world_step(scene->world, until, lie);
	}
	if (scene->side->lost[scene->lost].result != error)
		fail_msg("%s: lost with %d, not with %d", lie,
			 scene->side->lost[scene->lost].result, error);
	assert_ptr_equal(scene->side->lost[scene->lost].endpoint, scene->peer.endpoint);
	scene->lost++;
	wait_done(scene->received);
	check_result(scene->received, -ECONNRESET);
	haul_disconnect(scene->peer.endpoint);
	raw_verbs_close(&scene->peer);
	check_guards(scene);
	check_alive(&scene->pair);
}

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

/* Half a connection is dropped when handshake_ms is over, and nobody is told of it. */
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
	assert_true(raw_channel_closed_within(&channel, (unsigned)HANDSHAKE_MS + 5000));
	raw_channel_close(&channel);
	check_alive(&scene.pair);
	assert_int_equal(scene.side->accepted_count, 1);
	assert_int_equal(scene.side->lost_count, 0);
}

/* ---- The same peer, telling the truth ---------------------------------- */

/* What it takes to send by hand; shows that the page on the protocol is right. */
static void test_honest_raw_peer(void **state)
{
	struct world *world = *state;
	uint8_t message[HAUL_CONTROL_MAX];
	struct scene scene;
	size_t length;
	uint32_t tag;

	scene_open(world, &scene, "", 100000);
	scene_next(&scene);
	tag = slot_tag(scene.slot);
	pattern_fill(scene.peer.data.buffers + RAW_SOURCE, 100000, 3, 0);
	length = raw_push(message, WIRE_PUSH, scene.slot, 100000);
	/* The bytes first, then the word that they came. */
	assert_true(raw_channel_write(&scene.peer.data, scene.place.address, scene.place.key[0],
				      100000, &tag));
	assert_true(raw_verbs_message(&scene.peer, message, length));
	raw_verbs_expect(&scene.peer, WIRE_PLACED, message);
	wait_result(scene.received, 0);
	block_check(&scene.target, 3);
	check_guards(&scene);
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
	verbs_put32(bytes, 1000000);
	raw_channel_send(&scene.peer.control, bytes, VERBS_HEAD);
	scene_caught(&scene, -EPROTO, "more was taken than was sent");

	scene_next(&scene);
	verbs_put32(bytes, scene.peer.packets);
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

/* READY of a slot in the raw peer's own memory, that of the channel which the side writes on. */
static size_t ready_here(struct raw_verbs *peer, uint8_t *message, uint64_t slot, size_t room)
{
	struct raw_channel *inbound =
		peer->theirs.flags & VERBS_WINDOWS ? &peer->other : &peer->data;
	struct place place = {.address = (uintptr_t)(inbound->buffers + RAW_SOURCE),
			      .first = room,
			      .each = room,
			      .keys = 1,
			      .key = {inbound->mr->rkey}};
	uint8_t descriptor[HAUL_DESCRIPTOR_MAX];
	size_t length = place_encode(descriptor, &place);

	memset(message, 0, 24);
	message[0] = WIRE_READY;
	message[2] = 4;
	message[3] = (uint8_t)length;
	memcpy(message + 8, &slot, 8);
	memcpy(message + 16, &(uint64_t){room}, 8);
	memcpy(message + 24, descriptor, length);
	memcpy(message + 24 + length, "down", 4);
	return 24 + length + 4;
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
		length = ready_here(&scene.peer, message, 7, RAW_SOURCE_SIZE);
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
		check_guards(&scene);
		check_alive(&scene.pair);
	}
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
	block_check(&scene.target, 5);
	world_run_for(world, 50); /* the invalidation is done */
	memset(scene.peer.data.buffers + RAW_SOURCE, 0x11, 100000);
	assert_false(raw_channel_write(&scene.peer.data, scene.place.address, scene.place.key[0],
				       100000, NULL));
	block_check(&scene.target, 5);
	while (scene.side->lost_count == 0)
		world_step(world, until, "the liar's end");
	raw_verbs_close(&scene.peer);
	check_guards(&scene);
	check_alive(&scene.pair);
}

int main(int count, char **words)
{
	static const struct CMUnitTest tests[] = {
		WORLD_TEST(test_greetings_that_are_none),
		WORLD_TEST(test_half_a_connection),
		WORLD_TEST(test_honest_raw_peer),
		WORLD_TEST(test_f31_packets_that_are_none),
		WORLD_TEST(test_f31_words_that_lie),
		WORLD_TEST(test_f31_answers_that_contradict),
		WORLD_TEST(test_f31_writes_beside_the_slot),
		WORLD_TEST(test_f31_keys_that_open_nothing),
		WORLD_TEST(test_f31_writes_after_the_slot),
	};

	if (count < 4) {
		fprintf(stderr, "usage: %s SPEC LISTEN_HOST SOURCE [TEST...]\n", words[0]);
		return 2;
	}
	settings.listen_host = words[2];
	raw_source = words[3];
	return suite_main(words[1], tests, sizeof(tests) / sizeof(tests[0]), count - 3, words + 3);
}
