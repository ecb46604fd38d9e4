/* SPDX-License-Identifier: Apache-2.0 */
/*
 * F31: peers that are connected and lie. They lose their own endpoint, reach no memory but their
 * slots, and others notice nothing. What is merely odd does no harm.
 *
 *   test_dpdk_hostile [TEST...]
 */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>

#include "scene.h"

#define BYTES 100000

/* ---- Packets that are none --------------------------------------------- */

/* What comes is answered, until nothing comes for so long. */
static void serve_for(struct scene *scene, unsigned ms)
{
	uint64_t until = now_ms() + ms;

	while (now_ms() < until)
		raw_serve(scene->peer, 1);
}

/* A packet of each type that is right, and how much of it is needed: less is no packet at all. */
static size_t packet_of(struct scene *scene, enum packet_type type, uint8_t *payload)
{
	struct raw_dpdk *peer = scene->peer;
	struct packet_head head = raw_head(peer, type);
	const struct packet_data data = {.slot = scene->slot};
	const struct packet_ack ack = {.count = 1, .ranges = {{1, 1}}, .window = 1024};

	head.number = peer->number + 1;
	memset(payload, 0, 200);
	packet_write_head(payload, &head);
	switch (type) {
	case PACKET_TYPE_STREAM:
		return PACKET_STREAM;
	case PACKET_TYPE_DATA:
		return packet_write_data(payload, &head, &data);
	case PACKET_TYPE_ACK:
		return PACKET_HEAD + packet_write_ack(payload + PACKET_HEAD, 200, &ack);
	case PACKET_TYPE_CLOSE:
		return packet_write_close(payload, peer->side_name, PACKET_REASON_NONE);
	default:
		return PACKET_HEAD;
	}
}

static void test_f31_packets_cut_short(void **state)
{
	static const enum packet_type types[] = {PACKET_TYPE_STREAM, PACKET_TYPE_DATA,
						 PACKET_TYPE_PING, PACKET_TYPE_ACK,
						 PACKET_TYPE_CLOSE};
	struct scene *scene = scene_open(*state, "", BYTES);
	uint8_t payload[PACKET_PAYLOAD_MOST];

	scene_next(scene);
	for (size_t i = 0; i < sizeof(types) / sizeof(types[0]); i++) {
		size_t whole = packet_of(scene, types[i], payload);

		for (size_t length = 0; length < whole; length++)
			raw_udp(scene->peer, payload, length);
	}
	/* Types that there are not, or not here. */
	for (unsigned type = 0; type < 256; type++) {
		packet_of(scene, PACKET_TYPE_PING, payload);
		payload[8] = (uint8_t)type;
		if (type == 0 || type == PACKET_TYPE_CLOSED || type > PACKET_TYPE_RESET)
			raw_udp(scene->peer, payload, 100);
	}
	scene_receive(scene, 1);
	scene_end(scene);
}

static void test_f31_packets_that_are_none(void **state)
{
	struct scene *scene = scene_open(*state, "", BYTES);
	uint8_t payload[PACKET_PAYLOAD_MOST];
	size_t length;

	for (unsigned i = 0; i < 3; i++) {
		static const enum packet_type types[] = {PACKET_TYPE_STREAM, PACKET_TYPE_DATA,
							 PACKET_TYPE_PING};

		scene_next(scene);
		length = packet_of(scene, types[i], payload);
		memset(payload + 10, 0, 6);
		raw_udp(scene->peer, payload, length + 1);
		scene_caught(scene, -EPROTO, "a packet without a number");
	}
	scene_next(scene);
	length = packet_of(scene, PACKET_TYPE_DATA, payload);
	raw_udp(scene->peer, payload, length);
	scene_caught(scene, -EPROTO, "a piece of a tensor without a byte");
	/* An acknowledgement in front of the stream's bytes, cut anywhere. */
	for (length = PACKET_STREAM; length < PACKET_STREAM + PACKET_ACK_FIXED + PACKET_ACK_RANGE;
	     length += 5) {
		scene_next(scene);
		packet_of(scene, PACKET_TYPE_ACK, payload);
		payload[8] = PACKET_TYPE_STREAM;
		payload[9] = PACKET_HAS_ACK;
		raw_udp(scene->peer, payload, length);
		scene_caught(scene, -EPROTO, "an acknowledgement that is cut off");
	}
}

/* ---- Numbers ----------------------------------------------------------- */

static void test_f31_numbers_that_come_twice(void **state)
{
	struct scene *scene = scene_open(*state, "", BYTES);
	uint8_t bytes[BYTES], message[HAUL_CONTROL_MAX];

	scene_next(scene);
	pattern_fill(bytes, BYTES, 2, 0);
	for (uint64_t number = 100; number; number--) {
		for (unsigned again = 0; again < 3; again++)
			raw_data_as(scene->peer, 50 + number, 0, scene->slot, (number - 1) * 1000,
				    bytes + (number - 1) * 1000, 1000);
	}
	scene->peer->number = 1000;
	raw_dpdk_message(scene->peer, message, raw_push(message, WIRE_PUSH, scene->slot, BYTES));
	scene_received(scene, 2);
	scene_end(scene);
}

/* After the last number nothing new can come; the peer has only shut itself out. */
static void test_f31_last_number(void **state)
{
	struct scene *scene = scene_open(*state, "", BYTES);
	uint8_t byte = 0;

	scene_next(scene);
	raw_data_as(scene->peer, PACKET_NUMBER_MAX, 0, scene->slot, 0, &byte, 1);
	serve_for(scene, 20);
	raw_data(scene->peer, scene->slot, 0, &byte, 1);
	/* A number that is as far away from all others as it can be. */
	raw_data_as(scene->peer, PACKET_NUMBER_MAX / 2, 0, scene->slot, 1, &byte, 1);
	raw_data_as(scene->peer, PACKET_NUMBER_MAX - 70000, 0, scene->slot, 1, &byte, 1);
	raw_data_as(scene->peer, PACKET_NUMBER_MAX, 32767, scene->slot, 1, &byte, 1);
	serve_for(scene, 20);
	scene_end(scene);
}

/* ---- Acknowledgements -------------------------------------------------- */

static void lying_ack(struct scene *scene, uint64_t largest, uint32_t count, uint32_t gap,
		      uint32_t arrived, const char *lie)
{
	uint8_t payload[PACKET_HEAD + PACKET_ACK_FIXED + 600] = {0};
	struct packet_head head;
	uint8_t *ack = payload + PACKET_HEAD;

	scene_next(scene);
	head = raw_head(scene->peer, PACKET_TYPE_ACK);
	packet_write_head(payload, &head);
	memcpy(ack, &largest, 8);
	memset(ack + 12, 1, 4);
	memcpy(ack + 20, &count, 2);
	memcpy(ack + PACKET_ACK_FIXED, &gap, 4);
	memcpy(ack + PACKET_ACK_FIXED + 4, &arrived, 4);
	raw_udp(scene->peer, payload, sizeof(payload));
	scene_caught(scene, -EPROTO, lie);
}

static void test_f31_acknowledgements_that_lie(void **state)
{
	struct scene *scene = scene_open(*state, "", BYTES);

	lying_ack(scene, 1000000, 1, 0, 1, "a number that was never sent");
	lying_ack(scene, PACKET_NUMBER_MAX, 1, 0, 1, "the last number that there can be");
	lying_ack(scene, UINT64_MAX, 1, 0, 1, "a number that there can't be");
	lying_ack(scene, 0, 1, 0, 1, "the number 0");
	lying_ack(scene, 1, 0, 0, 1, "no ranges");
	lying_ack(scene, 1, 65, 0, 1, "too many ranges");
	lying_ack(scene, 1, UINT16_MAX, 0, 1, "far too many ranges");
	lying_ack(scene, 1, 1, 1, 1, "a gap in front");
	lying_ack(scene, 1, 1, 0, 2, "a range down to number 0");
	lying_ack(scene, 1, 1, 0, UINT32_MAX, "a range around the world");
	lying_ack(scene, 1, 1, 0, 0, "an empty range");
	lying_ack(scene, 1, 2, 0, 1, "a second range of nothing");
}

/* A delay that can't be, marks without end: the worst is that it gets its tensor slowly. */
static void test_odd_acknowledgements(void **state)
{
	struct scene *scene = scene_open(*state, "", BYTES);
	struct block *source = block_new(*state, BYTES);
	uint8_t message[HAUL_CONTROL_MAX];
	struct way way = {.from = scene->side};
	uint32_t marks = 0;
	struct entry *sent;

	block_fill(source, 5);
	scene_next(scene);
	way.out = scene->peer->endpoint;
	scene->peer->delay = UINT32_MAX;
	sent = post_send(&way, haul_key("down"), &source->tensor);
	raw_dpdk_message(scene->peer, message, raw_ready(message, 0, 7, BYTES, "down"));
	raw_dpdk_expect(scene->peer, WIRE_PUSH, message);
	for (uint64_t until = now_ms() + RAW_PATIENCE_MS; scene->peer->data_bytes < BYTES;) {
		struct packet_ack ack = {.count = 1, .window = 1024, .marks = marks += 77};

		ack.ranges[0].first = ack.ranges[0].last = 1;
		assert_true(now_ms() < until);
		if (raw_serve(scene->peer, 10))
			raw_acknowledge(scene->peer, &ack);
	}
	assert_memory_equal(scene->peer->data, source->data, BYTES);
	raw_dpdk_message(scene->peer, message, raw_slot(message, WIRE_PLACED, 7));
	wait_result(sent, 0);
	scene_end(scene);
}

/* ---- Messages ---------------------------------------------------------- */

static void test_f31_stream_that_lies(void **state)
{
	struct scene *scene = scene_open(*state, "", BYTES);
	uint8_t bytes[2000] = {0}, message[HAUL_CONTROL_MAX];
	size_t length;

	scene_next(scene);
	raw_stream_at(scene->peer, scene->peer->stream_sent + (2u << 20), bytes, 1);
	scene_caught(scene, -EPROTO, "bytes far ahead of their turn");
	scene_next(scene);
	raw_stream_at(scene->peer, UINT64_MAX, bytes, 1);
	scene_caught(scene, -EPROTO, "bytes at the end of the world");
	scene_next(scene);
	memset(bytes, 0xee, sizeof(bytes));
	raw_stream(scene->peer, bytes, 100);
	scene_caught(scene, -EPROTO, "records that are none");
	scene_next(scene);
	memcpy(bytes, "\1\0\0\0\0\0\0\0", 8);
	raw_stream(scene->peer, bytes, 8);
	scene_caught(scene, -EPROTO, "an empty message");
	scene_next(scene);
	memcpy(bytes, "\1\0\1\4", 4);
	raw_stream(scene->peer, bytes, 8);
	scene_caught(scene, -EPROTO, "a message that is too long");
	scene_next(scene);
	memcpy(bytes, "\2\0\20\0\1\40\0\0", 8);
	raw_stream(scene->peer, bytes, 8);
	scene_caught(scene, -EPROTO, "a small tensor that is too long");
	scene_next(scene);
	raw_dpdk_message(scene->peer, bytes + 100, 40);
	scene_caught(scene, -EPROTO, "a message that is none");
	scene_next(scene);
	length = raw_push(message, WIRE_PUSH, scene->slot + 1, 100);
	raw_dpdk_message(scene->peer, message, length);
	scene_caught(scene, -EPROTO, "a tensor for a slot that is none");
}

static void small_lies(struct scene *scene, uint64_t slot, uint64_t offset, const char *lie)
{
	uint8_t message[HAUL_CONTROL_MAX], bytes[500] = {0}, payload[100] = {0};
	struct packet_record record = {.small = true,
				       .message = message,
				       .payload = payload,
				       .payload_length = 100,
				       .offset = offset};

	scene_next(scene);
	record.slot = scene->slot ^ slot;
	record.message_length = (uint16_t)raw_push(message, WIRE_PUSH, scene->slot, 100);
	raw_stream(scene->peer, bytes, packet_write_record(bytes, &record));
	scene_caught(scene, -EPROTO, lie);
}

static void test_f31_small_tensors_that_lie(void **state)
{
	struct scene *scene = scene_open(*state, "", BYTES);

	small_lies(scene, 0x7000, 0, "a small tensor for another slot");
	small_lies(scene, 0, BYTES - 99, "a small tensor over the end");
	small_lies(scene, 0, UINT64_MAX - 50, "a small tensor whose end wraps around");
}

/* Cut anywhere, in any order, overlapping, and with other bytes when they were taken before. */
static void test_stream_in_pieces(void **state)
{
	struct scene *scene = scene_open(*state, "", 900);
	uint8_t message[HAUL_CONTROL_MAX], bytes[3000], other[3000], tensor[900];
	struct packet_record record = {.message = message};
	size_t length = 0;

	scene_next(scene);
	pattern_fill(tensor, sizeof(tensor), 9, 0);
	record.small = true;
	record.slot = scene->slot;
	record.message_length = (uint16_t)raw_push(message, WIRE_PUSH, scene->slot, 900);
	record.payload = tensor;
	record.payload_length = 900;
	length = packet_write_record(bytes, &record);
	memset(other, 0x77, sizeof(other));
	for (size_t at = length - 1; at > 0; at--)
		raw_stream_at(scene->peer, scene->peer->stream_sent + at, bytes + at, 1);
	raw_stream_at(scene->peer, scene->peer->stream_sent + 7, bytes + 7, length / 2);
	raw_stream_at(scene->peer, scene->peer->stream_sent, bytes, 7);
	/* Old news. */
	raw_stream_at(scene->peer, 0, other, 20);
	raw_stream_at(scene->peer, scene->peer->stream_sent, other, length);
	scene->peer->stream_sent += length;
	scene_received(scene, 9);
	scene_end(scene);
}

/* ---- Bytes of tensors -------------------------------------------------- */

static void test_f31_pieces_that_lie(void **state)
{
	struct scene *scene = scene_open(*state, "", BYTES);
	uint8_t bytes[1000] = {0};

	scene_next(scene);
	raw_data(scene->peer, scene->slot ^ 0x7000, 0, bytes, 100);
	scene_caught(scene, -EPROTO, "bytes for a slot that was never given");
	scene_next(scene);
	raw_data(scene->peer, scene->slot, BYTES - 99, bytes, 100);
	scene_caught(scene, -EPROTO, "bytes beyond the end");
	scene_next(scene);
	raw_data(scene->peer, scene->slot, PACKET_OFFSET_MAX, bytes, 1000);
	scene_caught(scene, -EPROTO, "bytes far beyond the end");
	scene_next(scene);
	raw_data_as(scene->peer, 20, 20, scene->slot, 0, bytes, 100);
	scene_caught(scene, -EPROTO, "bytes that were sent before all others");
	scene_next(scene);
	raw_data_as(scene->peer, 100000, 32768, scene->slot, 0, bytes, 100);
	scene_caught(scene, -EPROTO, "bytes that were sent too long ago");
	scene_next(scene);
	raw_tensor(scene->peer, scene->slot, scene->guarded.memory->data, BYTES / 2);
	raw_data(scene->peer, scene->slot, BYTES / 2, bytes, 1000);
	/* Whether the last ones came too late is a matter of time: then they are dropped. */
	serve_for(scene, 20);
	guarded_check(&scene->guarded);
	check_alive(&scene->pair);
}

/* Pieces that came are known by their first number, whichever packet brings them. */
static void test_pieces_sent_again(void **state)
{
	struct scene *scene = scene_open(*state, "", BYTES);
	uint8_t bytes[BYTES], message[HAUL_CONTROL_MAX];

	scene_next(scene);
	pattern_fill(bytes, BYTES, 4, 0);
	raw_dpdk_message(scene->peer, message, raw_push(message, WIRE_PUSH, scene->slot, BYTES));
	/* The first half comes as 201.., and again; the second half is first said again, and
	 * comes then, too. */
	for (unsigned i = 0; i < 50; i++)
		raw_data_as(scene->peer, 201 + i, 0, scene->slot, i * 1000, bytes + i * 1000, 1000);
	for (unsigned i = 0; i < 50; i++) {
		raw_data_as(scene->peer, 401 + i, 200, scene->slot, i * 1000, bytes + i * 1000,
			    1000);
		raw_data_as(scene->peer, 501 + i, 300, scene->slot, i * 1000, bytes + i * 1000,
			    1000);
	}
	for (unsigned i = 50; i < 99; i++) {
		raw_data_as(scene->peer, 601 + i, 400, scene->slot, i * 1000, bytes + i * 1000,
			    1000);
		raw_data_as(scene->peer, 801 + i, 600, scene->slot, i * 1000, bytes + i * 1000,
			    1000);
		raw_data_as(scene->peer, 201 + i, 0, scene->slot, i * 1000, bytes + i * 1000, 1000);
	}
	serve_for(scene, 50);
	world_run_for(*state, 20);
	assert_false(scene->received->done);
	scene->peer->number = 1000;
	raw_data(scene->peer, scene->slot, 99000, bytes + 99000, 1000);
	scene_received(scene, 4);
	scene_end(scene);
}

/* A large tensor byte by byte, in an order that jumps over thousands of numbers. */
static void test_bytes_out_of_order(void **state)
{
	enum { COUNT = 20011, STEP = 7919 };
	struct scene *scene = scene_open(*state, "", COUNT);
	uint8_t bytes[COUNT], message[HAUL_CONTROL_MAX];
	uint64_t first;

	scene_next(scene);
	first = scene->peer->number + 1;
	scene->peer->number += COUNT;
	pattern_fill(bytes, COUNT, 8, 0);
	for (uint64_t i = 0, at = 0; i < COUNT; i++, at = (at + STEP) % COUNT) {
		raw_data_as(scene->peer, first + at, 0, scene->slot, at, bytes + at, 1);
		if (i % 64 == 0)
			serve_for(scene, 0);
	}
	raw_dpdk_message(scene->peer, message, raw_push(message, WIRE_PUSH, scene->slot, COUNT));
	scene_received(scene, 8);
	scene_end(scene);
}

/* ---- The end ----------------------------------------------------------- */

static void test_end_in_mid_push(void **state)
{
	struct scene *scene = scene_open(*state, "", BYTES);
	struct block *source = block_new(*state, RAW_DATA);
	uint8_t message[HAUL_CONTROL_MAX], bytes[PACKET_CLOSE];
	struct way way = {.from = scene->side};
	struct entry *sent;

	for (unsigned round = 0; round < 4; round++) {
		uint16_t reason = round % 2 ? PACKET_REASON_PROTOCOL : PACKET_REASON_NONE;

		scene_next(scene);
		way.out = scene->peer->endpoint;
		sent = post_send(&way, haul_key("down"), &source->tensor);
		raw_dpdk_message(scene->peer, message, raw_ready(message, 0, 7, RAW_DATA, "down"));
		raw_data(scene->peer, scene->slot, 0, source->data, 100);
		raw_dpdk_expect(scene->peer, WIRE_PUSH, message);
		scene->peer->silent = round >= 2;
		while (!scene->peer->data_packets)
			raw_serve(scene->peer, 100);
		raw_udp(scene->peer, bytes,
			packet_write_close(bytes, scene->peer->side_name, reason));
		scene_caught(scene, reason ? -ECONNRESET : 0, "CLOSE within a tensor");
		wait_done(sent);
		check_result(sent, -ECONNRESET);
	}
}

int main(int count, char **words)
{
	static const struct CMUnitTest tests[] = {
		WORLD_TEST(test_f31_packets_cut_short),
		WORLD_TEST(test_f31_packets_that_are_none),
		WORLD_TEST(test_f31_numbers_that_come_twice),
		WORLD_TEST(test_f31_last_number),
		WORLD_TEST(test_f31_acknowledgements_that_lie),
		WORLD_TEST(test_odd_acknowledgements),
		WORLD_TEST(test_f31_stream_that_lies),
		WORLD_TEST(test_f31_small_tensors_that_lie),
		WORLD_TEST(test_stream_in_pieces),
		WORLD_TEST(test_f31_pieces_that_lie),
		WORLD_TEST(test_pieces_sent_again),
		WORLD_TEST(test_bytes_out_of_order),
		WORLD_TEST(test_end_in_mid_push),
	};

	return scene_main(tests, sizeof(tests) / sizeof(tests[0]), count, words);
}
