/* SPDX-License-Identifier: Apache-2.0 */
/*
 * F31: peers that are connected and don't do their part: windows that stay closed, packets that
 * never arrive, and whatever chance makes of packets that were right.
 *
 *   test_dpdk_odd_peers [TEST...]
 */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>

#include "scene.h"

#define BYTES 100000

/* ---- Windows ----------------------------------------------------------- */

/* A tensor to the raw peer, of which it knows; with a deadline when it is not 0. */
static struct entry *send_down(struct scene *scene, struct block *source, uint64_t timeout_ms)
{
	uint8_t message[HAUL_CONTROL_MAX];
	struct way way = {.from = scene->side, .out = scene->peer->endpoint};
	struct extra extra = {.timeout_ms = timeout_ms};
	struct entry *sent = post_with(&way, HAUL_SENT, haul_key("down"), &source->tensor, &extra);

	raw_dpdk_message(scene->peer, message, raw_ready(message, 0, 7, source->bytes, "down"));
	return sent;
}

/* The peer's window never opens: what is sent to it waits, and nobody else does. */
static void test_f31_closed_window(void **state)
{
	struct world *world = *state;
	struct scene *scene = scene_open(world, "", BYTES);
	struct block *source = block_new(world, RAW_DATA);
	uint64_t start, before;
	struct entry *sent;

	scene_next(scene);
	scene->peer->window = 0;
	raw_data(scene->peer, scene->slot, 0, source->data, 1);
	before = resident_bytes(0);
	start = now_ms();
	sent = send_down(scene, source, 1000);
	while (!sent->done) {
		raw_serve(scene->peer, 5);
		world_step(world, start + PATIENCE_MS, "the deadline");
		check_alive(&scene->pair);
	}
	check_result(sent, -ETIMEDOUT);
	assert_true(now_ms() - start >= 900 && now_ms() - start < 5000);
	/* What was under way when it closed, and the probes. */
	assert_true(scene->peer->data_packets < 100);
	if (!sanitized())
		assert_true(resident_bytes(0) < before + (8u << 20));
	scene_end(scene);
}

/* One packet at a time is slow, and goes on. */
static void test_window_of_one(void **state)
{
	struct world *world = *state;
	struct scene *scene = scene_open(world, "", BYTES);
	struct block *source = block_new(world, BYTES);
	uint8_t message[HAUL_CONTROL_MAX];
	struct entry *sent;

	scene_next(scene);
	block_fill(source, 6);
	scene->peer->window = 1;
	sent = send_down(scene, source, 0);
	raw_dpdk_expect(scene->peer, WIRE_PUSH, message);
	for (uint64_t until = now_ms() + PATIENCE_MS; scene->peer->data_bytes < BYTES;) {
		assert_true(now_ms() < until);
		raw_serve(scene->peer, 100);
	}
	assert_memory_equal(scene->peer->data, source->data, BYTES);
	raw_dpdk_message(scene->peer, message, raw_slot(message, WIRE_PLACED, 7));
	wait_result(sent, 0);
	scene_receive(scene, 1);
	scene_end(scene);
}

/* The endpoint ends while the port's ring is full of its tensor: nobody reads its memory, or what
 * was known of it, when the ring moves on. */
static void test_end_with_a_full_ring(void **state)
{
	enum { LARGE = 16 << 20 };
	struct world *world = *state;
	struct scene *scene = scene_open(world, "", BYTES);
	struct block *source = block_new(world, LARGE);
	struct entry *sent;

	for (unsigned round = 0; round < 4; round++) {
		scene_next(scene);
		/* Windows are told in acknowledgements. */
		scene->peer->window = 30000;
		while (raw_serve(scene->peer, 20))
			;
		hub_hold(true);
		sent = send_down(scene, source, 0);
		world_run_for(world, 50);
		assert_false(sent->done);
		haul_disconnect(scene->peer->endpoint);
		wait_done(sent);
		wait_done(scene->received);
		world_run_for(world, 20);
		memset(source->data, 0x5a, LARGE);
		hub_hold(false);
		check_alive(&scene->pair);
	}
}

/* While the port takes nothing, deadlines hold all the same. */
static void test_deadline_with_a_full_ring(void **state)
{
	enum { LARGE = 16 << 20 };
	struct world *world = *state;
	struct scene *scene = scene_open(world, "", BYTES);
	struct block *source = block_new(world, LARGE);
	struct entry *sent;
	uint64_t start, used;

	scene_next(scene);
	scene->peer->window = 30000;
	while (raw_serve(scene->peer, 20))
		;
	hub_hold(true);
	start = now_ms();
	used = cpu_us();
	sent = send_down(scene, source, 300);
	wait_done(sent);
	used = cpu_us() - used;
	hub_hold(false);
	printf("%llu us of CPU within %llu ms\n", (unsigned long long)used,
	       (unsigned long long)(now_ms() - start));
	/* Whoever waits for a port sleeps. */
	if (!sanitized())
		assert_true(used < 500 * (now_ms() - start));
	check_result(sent, -ETIMEDOUT);
	assert_true(now_ms() - start < 3000);
	check_alive(&scene->pair);
}

/* Nothing that is sent to it is ever acknowledged, but it speaks. */
static void test_f31_peer_that_acknowledges_nothing(void **state)
{
	struct world *world = *state;
	struct scene *scene = scene_open(world, "", BYTES);
	struct block *source = block_new(world, RAW_DATA);
	uint64_t start = now_ms(), before;
	struct entry *sent;

	scene_next(scene);
	scene->peer->silent = true;
	before = cpu_us();
	sent = send_down(scene, source, 1000);
	while (!sent->done) {
		struct packet_head head = raw_head(scene->peer, PACKET_TYPE_PING);
		uint8_t ping[PACKET_HEAD];

		head.number = ++scene->peer->number;
		raw_udp(scene->peer, ping, packet_write_head(ping, &head));
		while (raw_serve(scene->peer, 0))
			;
		world_step(world, start + PATIENCE_MS, "the deadline");
		check_alive(&scene->pair);
	}
	check_result(sent, -ETIMEDOUT);
	printf("%llu packets, %llu us of processor time\n",
	       (unsigned long long)scene->peer->data_packets,
	       (unsigned long long)(cpu_us() - before));
	scene_end(scene);
}

/* Everything it gets is marked, and so is what it sends. */
static void test_marked_path(void **state)
{
	struct scene *scene = scene_open(*state, "", BYTES);

	scene_next(scene);
	scene->peer->ecn = FRAME_ECN_MET;
	scene_receive(scene, 7);
	scene_end(scene);
}

/* A tensor of its own is lost on the way, and comes again, once all else is there. */
static void test_pieces_that_come_late(void **state)
{
	enum { PIECES = 3000, SIZE = 32 };
	struct scene *scene = scene_open(*state, "", PIECES * SIZE);
	uint8_t bytes[PIECES * SIZE], message[HAUL_CONTROL_MAX];
	uint64_t first;

	scene_next(scene);
	pattern_fill(bytes, sizeof(bytes), 3, 0);
	first = scene->peer->number + 1;
	scene->peer->number += PIECES;
	for (unsigned i = 1; i < PIECES; i++) {
		raw_data_as(scene->peer, first + i, 0, scene->slot, i * SIZE, bytes + i * SIZE,
			    SIZE);
		if (i % 64 == 0)
			while (raw_serve(scene->peer, 0))
				;
	}
	raw_dpdk_message(scene->peer, message,
			 raw_push(message, WIRE_PUSH, scene->slot, sizeof(bytes)));
	/* Far above, and what is far below after it. */
	scene->peer->number += 30000;
	raw_data_as(scene->peer, ++scene->peer->number, 0, scene->slot ^ 0, 0, bytes, SIZE);
	raw_data_as(scene->peer, first, 0, scene->slot, 0, bytes, SIZE);
	scene_caught(scene, -EPROTO, "one piece more than there are");
}

/* ---- Chance ------------------------------------------------------------ */

/* A right packet of the connection, of any type. */
static size_t some_packet(struct scene *scene, uint64_t *random, uint8_t *payload)
{
	struct raw_dpdk *peer = scene->peer;
	struct packet_head head = raw_head(peer, (enum packet_type)(5 + random_below(random, 7)));
	const struct packet_data data = {.slot = scene->slot,
					 .offset = random_below(random, BYTES - 200),
					 .back = random_below(random, 4) ? 0
									 : random_below(random, 3)};
	struct packet_ack ack = {.count = 1, .window = 1024};
	uint8_t message[HAUL_CONTROL_MAX];
	struct packet_record record = {.message = message};
	size_t length;

	ack.ranges[0].first = 1;
	ack.ranges[0].last = peer->largest ? peer->largest : 1;
	head.number = peer->number + 1 + random_below(random, 3);
	switch (head.type) {
	case PACKET_TYPE_STREAM:
		record.message_length = (uint16_t)raw_push(message, WIRE_PUSH, scene->slot, BYTES);
		if (random_below(random, 2))
			head.flags = PACKET_HAS_ACK;
		length = packet_write_head(payload, &head);
		if (head.flags)
			length += packet_write_ack(payload + length, 100, &ack);
		length += packet_write_offset(payload + length, peer->stream_sent);
		return length + packet_write_record(payload + length, &record);
	case PACKET_TYPE_DATA:
		memset(payload, 0, 200);
		return packet_write_data(payload, &head, &data) + random_below(random, 168);
	case PACKET_TYPE_ACK:
		head.number = 0;
		length = packet_write_head(payload, &head);
		return length + packet_write_ack(payload + length, 100, &ack);
	case PACKET_TYPE_RESET:
		return packet_write_reset(payload, peer->name);
	case PACKET_TYPE_CLOSE:
		return packet_write_close(payload, peer->side_name, PACKET_REASON_NONE);
	default:
		memset(payload, 0, 100);
		return packet_write_head(payload, &head) + random_below(random, 80);
	}
}

static size_t mutate(uint64_t *random, uint8_t *payload, size_t length)
{
	unsigned times = random_below(random, 5);

	if (random_below(random, 8) == 0)
		length = random_below(random, (unsigned)length + 1);
	for (unsigned i = 0; i < times && length > 8; i++) {
		/* Mostly behind the name, or nobody would read it. */
		size_t at = 8 + random_below(random, (unsigned)length - 8);

		if (random_below(random, 50) == 0)
			at = random_below(random, 8);
		if (random_below(random, 2))
			payload[at] ^= (uint8_t)(1u << random_below(random, 8));
		else
			payload[at] =
				(uint8_t)(random_below(random, 2) ? random_next(random) : 255u);
	}
	return length;
}

static bool next_life(struct scene *scene)
{
	unsigned lost = scene->side->lost_count;

	if (lost == scene->lost)
		return false;
	haul_disconnect(scene->peer->endpoint);
	scene->lost = lost;
	wait_done(scene->received);
	scene_next(scene);
	return true;
}

/* Whatever it was, it harms none but the one who sent it. */
static void test_f31_fuzz(void **state)
{
	struct world *world = *state;
	struct scene *scene = scene_open(world, "", BYTES);
	uint64_t random = random_seed();
	unsigned packets = rounds(20000, 1000000), lives = 1;
	uint8_t payload[PACKET_PAYLOAD_MOST];

	scene_next(scene);
	for (unsigned i = 0; i < packets; i++) {
		size_t length = some_packet(scene, &random, payload);

		/* One of them in a while is right, and time goes on. */
		if (random_below(&random, 20))
			length = mutate(&random, payload, length);
		else
			scene->peer->number += 3;
		raw_udp(scene->peer, payload, length);
		if (i % 16)
			continue;
		while (raw_take(scene->peer, payload, 0))
			;
		side_poll(scene->side);
		/* What it was told to receive may have come. */
		if (scene->received->done && scene->side->lost_count == scene->lost) {
			haul_disconnect(scene->peer->endpoint);
			scene_next(scene);
			lives++;
		}
		lives += next_life(scene);
		if (i % 1024 == 0)
			check_alive(&scene->pair);
		guarded_check(&scene->guarded);
	}
	printf("%u packets, %u connections\n", packets, lives);
	check_alive(&scene->pair);
}

int main(int count, char **words)
{
	static const struct CMUnitTest tests[] = {
		WORLD_TEST(test_f31_closed_window),
		WORLD_TEST(test_window_of_one),
		WORLD_TEST(test_end_with_a_full_ring),
		WORLD_TEST(test_deadline_with_a_full_ring),
		WORLD_TEST(test_f31_peer_that_acknowledges_nothing),
		WORLD_TEST(test_marked_path),
		WORLD_TEST(test_pieces_that_come_late),
		WORLD_TEST(test_f31_fuzz),
	};

	return scene_main(tests, sizeof(tests) / sizeof(tests[0]), count, words);
}
