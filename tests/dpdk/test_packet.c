/* SPDX-License-Identifier: Apache-2.0 */
/* The packets of dpdk's protocol: what is written is read again, and what can't be is refused. */
#include <stdarg.h>
#include <setjmp.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "packet.h"

static const struct packet_open an_open = {
	.name = 0x1122334455667788,
	.incarnation = 0x99aabbccddeeff00,
	.window = 4096,
	.payload = 8972,
	.version = PACKET_VERSION,
	.cookie = {1, 2, 3, [PACKET_COOKIE_SIZE - 1] = 32},
};

/* The layout that the header tells of, as a program of another author would write it. */
static void test_layout_of_data(void **state)
{
	static const uint8_t wanted[PACKET_DATA] = {
		0x08, 0x07, 0x06, 0x05, 0x04, 0x03, 0x02, 0x01, 6,    2,    0x66,
		0x55, 0x44, 0x33, 0x22, 0x11, 0x18, 0x17, 0x16, 0x15, 0x14, 0x13,
		0x12, 0x11, 0xf6, 0xe5, 0xd4, 0xc3, 0xb2, 0xa1, 0x34, 0x12,
	};
	const struct packet_head head = {0x0102030405060708, 0x112233445566, PACKET_TYPE_DATA,
					 PACKET_ASKS_NOW};
	const struct packet_data data = {0x1112131415161718, 0xa1b2c3d4e5f6, 0x1234};
	uint8_t bytes[PACKET_DATA + 1] = {0};
	struct packet_head head_read;
	struct packet_data data_read;

	assert_int_equal(packet_write_data(bytes, &head, &data), PACKET_DATA);
	assert_memory_equal(bytes, wanted, PACKET_DATA);
	assert_true(packet_read_head(bytes, sizeof(bytes), &head_read));
	assert_true(head_read.connection == head.connection && head_read.number == head.number);
	assert_true(head_read.type == head.type && head_read.flags == head.flags);
	assert_true(packet_read_data(bytes, sizeof(bytes), &data_read));
	assert_true(data_read.slot == data.slot && data_read.offset == data.offset &&
		    data_read.back == data.back);
	/* A piece without bytes is none. */
	assert_false(packet_read_data(bytes, PACKET_DATA, &data_read));
	bytes[31] = 0x80;
	assert_false(packet_read_data(bytes, sizeof(bytes), &data_read));
}

static void test_open(void **state)
{
	uint8_t bytes[PACKET_OPEN];
	struct packet_open open;
	struct packet_head head;

	assert_int_equal(packet_write_open(bytes, &an_open), PACKET_OPEN);
	assert_true(packet_read_head(bytes, sizeof(bytes), &head));
	assert_true(head.type == PACKET_TYPE_OPEN && head.connection == 0 && head.number == 0);
	assert_true(packet_read_open(bytes, sizeof(bytes), &open));
	assert_true(open.name == an_open.name && open.incarnation == an_open.incarnation);
	assert_true(open.window == 4096 && open.payload == 8972 && open.version == PACKET_VERSION);
	assert_memory_equal(open.cookie, an_open.cookie, PACKET_COOKIE_SIZE);
	for (size_t length = 0; length < PACKET_OPEN; length++) {
		assert_false(packet_read_open(bytes, length, &open));
		assert_false(packet_read_head(bytes, length, &head));
	}
	bytes[16] ^= 1;
	assert_false(packet_read_open(bytes, sizeof(bytes), &open));
}

static void test_answers(void **state)
{
	struct packet_answer answer = {.version = 7, .payload = 1472, .cookie = {9, 8, 7}}, read;
	struct packet_open opened;
	uint8_t bytes[PACKET_OPEN];
	struct packet_head head;
	uint64_t name;
	uint16_t reason;

	assert_int_equal(packet_write_cookie(bytes, 42, &answer), PACKET_COOKIE);
	assert_true(packet_read_head(bytes, PACKET_COOKIE, &head) && head.connection == 42);
	assert_true(packet_read_cookie(bytes, PACKET_COOKIE, &read));
	assert_true(read.version == 7 && read.payload == 1472);
	assert_memory_equal(read.cookie, answer.cookie, PACKET_COOKIE_SIZE);
	assert_false(packet_read_cookie(bytes, PACKET_COOKIE - 1, &read));

	answer.reason = PACKET_REASON_FULL;
	assert_int_equal(packet_write_refused(bytes, 43, &answer), PACKET_REFUSED);
	assert_true(packet_read_refused(bytes, PACKET_REFUSED, &read));
	assert_int_equal(read.reason, PACKET_REASON_FULL);
	assert_int_equal(read.version, 7);

	assert_int_equal(packet_write_opened(bytes, 44, &an_open), PACKET_OPENED);
	assert_true(packet_read_opened(bytes, PACKET_OPENED, &opened));
	assert_true(opened.name == an_open.name && opened.window == an_open.window);

	assert_int_equal(packet_write_close(bytes, 45, 3), PACKET_CLOSE);
	assert_true(packet_read_close(bytes, PACKET_CLOSE, &reason) && reason == 3);
	assert_int_equal(packet_write_reset(bytes, 46), PACKET_RESET);
	assert_true(packet_read_reset(bytes, PACKET_RESET, &name) && name == 46);
	assert_int_equal(packet_write_closed(bytes, 47), PACKET_HEAD);
	assert_true(packet_read_head(bytes, PACKET_HEAD, &head) && head.connection == 47);
}

static void test_types_that_are_none(void **state)
{
	uint8_t bytes[256] = {0};
	struct packet_head head;

	for (unsigned type = 0; type < 256; type++) {
		bytes[8] = (uint8_t)type;
		assert_int_equal(packet_read_head(bytes, sizeof(bytes), &head),
				 type >= PACKET_TYPE_OPEN && type <= PACKET_TYPE_RESET);
	}
}

/* ---- Acknowledgements -------------------------------------------------- */

static struct packet_ack an_ack(uint32_t count)
{
	struct packet_ack ack = {
		.delay_ns = 1234, .window = 77, .marks = 5, .clock = 0xfedc, .count = count};
	uint64_t last = 1000000;

	for (uint32_t i = 0; i < count; i++) {
		ack.ranges[i] = (struct packet_range){last - i * 3, last};
		last -= i * 3 + 2 + i;
	}
	return ack;
}

static void assert_same_ack(const struct packet_ack *ack, const struct packet_ack *wanted,
			    uint32_t count)
{
	assert_int_equal(ack->count, count);
	assert_int_equal(ack->delay_ns, wanted->delay_ns);
	assert_int_equal(ack->window, wanted->window);
	assert_int_equal(ack->marks, wanted->marks);
	assert_int_equal(ack->clock, wanted->clock);
	assert_memory_equal(ack->ranges, wanted->ranges, count * sizeof(ack->ranges[0]));
}

static void test_acknowledgements(void **state)
{
	uint8_t bytes[PACKET_ACK_FIXED + PACKET_ACK_RANGE * PACKET_RANGES_MAX];
	struct packet_ack wanted = an_ack(PACKET_RANGES_MAX), ack;
	size_t length, used = 0;

	length = packet_write_ack(bytes, sizeof(bytes), &wanted);
	assert_int_equal(length, sizeof(bytes));
	assert_true(packet_read_ack(bytes, length, &ack, &used));
	assert_int_equal(used, length);
	assert_same_ack(&ack, &wanted, PACKET_RANGES_MAX);
	for (size_t less = 0; less < length; less++)
		assert_false(packet_read_ack(bytes, less, &ack, &used));
	/* Room for three: the newest ones. */
	length = packet_write_ack(bytes, PACKET_ACK_FIXED + 3 * PACKET_ACK_RANGE + 7, &wanted);
	assert_true(packet_read_ack(bytes, length, &ack, &used));
	assert_same_ack(&ack, &wanted, 3);
}

static void put_ack(uint8_t *bytes, uint64_t largest, uint16_t count, const uint32_t *ranges)
{
	memset(bytes, 0, PACKET_ACK_FIXED);
	memcpy(bytes, &largest, 8);
	memcpy(bytes + 20, &count, 2);
	memcpy(bytes + PACKET_ACK_FIXED, ranges, (size_t)count * PACKET_ACK_RANGE);
}

static void test_acknowledgements_that_lie(void **state)
{
	static const struct {
		uint64_t largest;
		uint32_t ranges[4];
		uint16_t count;
		bool right;
	} cases[] = {
		{10, {0, 10}, 1, true},
		{10, {0, 11}, 1, false},        /* number 0 */
		{10, {0, 0}, 1, false},         /* nothing */
		{10, {1, 5}, 1, false},         /* the largest did not arrive */
		{10, {0, 5, 1, 4}, 2, true},    /* 10..6, 4..1 */
		{10, {0, 5, 1, 5}, 2, false},   /* down to 0 */
		{10, {0, 5, 0, 4}, 2, false},   /* no gap */
		{10, {0, 5, 6, 1}, 2, false},   /* below 0 */
		{10, {0, 5, ~0u, 2}, 2, false}, /* wraps around */
		{PACKET_NUMBER_MAX, {0, 1}, 1, true},
		{PACKET_NUMBER_MAX + 1, {0, 1}, 1, false},
		{~UINT64_C(0), {0, ~0u}, 1, false},
	};
	uint8_t bytes[PACKET_ACK_FIXED + 2 * PACKET_ACK_RANGE];
	struct packet_ack ack;
	size_t used;

	for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
		put_ack(bytes, cases[i].largest, cases[i].count, cases[i].ranges);
		if (packet_read_ack(bytes, sizeof(bytes), &ack, &used) != cases[i].right)
			fail_msg("case %zu", i);
	}
	put_ack(bytes, 10, 1, cases[0].ranges);
	bytes[20] = 0;
	assert_false(packet_read_ack(bytes, sizeof(bytes), &ack, &used));
	bytes[20] = PACKET_RANGES_MAX + 1;
	assert_false(packet_read_ack(bytes, sizeof(bytes), &ack, &used));
}

/* ---- Records ----------------------------------------------------------- */

static void test_records(void **state)
{
	static const uint8_t message[40] = {1, 2, 3}, payload[100] = {4, 5, 6};
	struct packet_record small = {.message = message,
				      .payload = payload,
				      .slot = 0x1234567890,
				      .offset = 17,
				      .payload_length = sizeof(payload),
				      .message_length = sizeof(message),
				      .small = true};
	struct packet_record plain = {.message = message, .message_length = 8}, read;
	uint8_t bytes[RECORD_SMALL + sizeof(message) + sizeof(payload)];

	assert_int_equal(packet_write_record(bytes, &small), sizeof(bytes));
	for (size_t length = 0; length < sizeof(bytes); length++)
		assert_int_equal(packet_read_record(bytes, length, 100, &read), 0);
	assert_int_equal(packet_read_record(bytes, sizeof(bytes), 100, &read), sizeof(bytes));
	assert_true(read.small && read.slot == small.slot && read.offset == small.offset);
	assert_int_equal(read.payload_length, sizeof(payload));
	assert_memory_equal(read.payload, payload, sizeof(payload));
	assert_memory_equal(read.message, message, sizeof(message));
	/* More than the peer may send, no message, no such kind. */
	assert_int_equal(packet_read_record(bytes, sizeof(bytes), 99, &read), -1);
	bytes[2] = bytes[3] = 0;
	assert_int_equal(packet_read_record(bytes, sizeof(bytes), 100, &read), -1);
	assert_int_equal(packet_write_record(bytes, &plain), RECORD_MESSAGE + 8);
	assert_int_equal(packet_read_record(bytes, sizeof(bytes), 0, &read), RECORD_MESSAGE + 8);
	assert_false(read.small);
	bytes[0] = 3;
	assert_int_equal(packet_read_record(bytes, sizeof(bytes), 100, &read), -1);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_layout_of_data),
		cmocka_unit_test(test_open),
		cmocka_unit_test(test_answers),
		cmocka_unit_test(test_types_that_are_none),
		cmocka_unit_test(test_acknowledgements),
		cmocka_unit_test(test_acknowledgements_that_lie),
		cmocka_unit_test(test_records),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
