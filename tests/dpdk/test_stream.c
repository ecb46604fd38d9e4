/* SPDX-License-Identifier: Apache-2.0 */
/* The control stream over packets that are lost, doubled and reordered, and over a peer that lies.
 */
#include <errno.h>
#include <stdarg.h>
#include <setjmp.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "dpdk.h"

/* ---- The engine's part ------------------------------------------------- */

static uint64_t messages, small_bytes;
static int failure;
/* The engine ends the link within the message of this number. */
static uint64_t ends_at;

static struct backend_link link_;

/* Message n is n as 8 bytes, then n % 900 times its low byte. */
static uint16_t message_length(uint64_t number)
{
	return (uint16_t)(8 + number % 900);
}

static void message_make(uint8_t *bytes, uint64_t number)
{
	memcpy(bytes, &number, 8);
	memset(bytes + 8, (uint8_t)number, message_length(number) - 8u);
}

void haul_on_control(haul_endpoint *endpoint, const uint8_t *message, size_t length)
{
	uint8_t wanted[1024];

	message_make(wanted, messages);
	assert_int_equal(length, message_length(messages));
	assert_memory_equal(message, wanted, length);
	messages++;
	if (messages == ends_at)
		link_.endpoint = NULL;
}

bool haul_put(haul_endpoint *endpoint, uint64_t slot, uint64_t offset, const void *bytes,
	      uint64_t length)
{
	const uint8_t *payload = bytes;

	if (slot == 666)
		return false;
	assert_int_equal(slot, messages);
	for (uint64_t i = 0; i < length; i++)
		assert_int_equal(payload[i], (uint8_t)(slot * 7));
	small_bytes += length;
	return true;
}

void link_fail(struct backend_link *link, int error, const char *format, ...)
{
	failure = link->error = error;
}

/* ---- Both ends --------------------------------------------------------- */

static int setup(void **state)
{
	memset(&link_, 0, sizeof(link_));
	stream_start(&link_.stream);
	link_.endpoint = (haul_endpoint *)&link_;
	messages = small_bytes = ends_at = 0;
	failure = 0;
	return 0;
}

static int teardown(void **state)
{
	stream_stop(&link_.stream);
	return 0;
}

/* Message `number`; each third has a tensor of `number` % 3000 bytes with it. Gives its bytes. */
static uint32_t append(struct stream *out, uint64_t number)
{
	static uint8_t message[1024], payload[3000];
	struct packet_record record = {.message = message,
				       .message_length = message_length(number)};

	message_make(message, number);
	if (number % 3 == 0) {
		record.small = true;
		record.slot = number + 1;
		record.payload = payload;
		record.payload_length = (uint32_t)(number % sizeof(payload));
		memset(payload, (uint8_t)(record.slot * 7), record.payload_length);
	}
	assert_int_equal(stream_append(out, &record), 0);
	stream_flush(out);
	return record.payload_length;
}

/* A piece under way. The bytes are copied: the stream's may move. */
struct flight {
	uint64_t segment, offset;
	uint32_t length;
	uint8_t *bytes;
};

#define FLIGHT_MAX 64

static unsigned depart(struct stream *out, struct flight *flights, unsigned count)
{
	struct stream_piece piece;

	while (count < FLIGHT_MAX && stream_pending(out) &&
	       stream_next(out, 1 + (uint32_t)(rand() % 2000), &piece)) {
		flights[count] = (struct flight){piece.segment, piece.offset, piece.length,
						 malloc(piece.length)};
		memcpy(flights[count++].bytes, piece.bytes, piece.length);
	}
	return count;
}

/* One of those under way arrives, comes twice, or is lost. */
static unsigned land(struct stream *out, struct flight *flights, unsigned count, int loss)
{
	unsigned which = (unsigned)rand() % count;
	struct flight flight = flights[which];
	bool lost = rand() % 100 < loss;

	flights[which] = flights[count - 1];
	if (!lost) {
		lost = stream_input(&link_, flight.offset, flight.bytes, flight.length) != 0;
		if (rand() % 10 == 0)
			stream_input(&link_, flight.offset, flight.bytes, flight.length);
	}
	/* It may be taken for lost, and then be told to have arrived. */
	if (lost || rand() % 20 == 0)
		stream_lost(out, flight.segment);
	if (!lost)
		stream_arrived(out, flight.segment);
	free(flight.bytes);
	return count - 1;
}

static void carry(int loss, uint64_t total)
{
	struct flight flights[FLIGHT_MAX];
	uint64_t number = 0, bytes = 0;
	struct stream out;
	unsigned count = 0;

	srand(1);
	stream_start(&out);
	while (messages < total || !stream_empty(&out)) {
		while (number < total && out.end - out.base < 100000)
			bytes += append(&out, number++);
		count = depart(&out, flights, count);
		if (count)
			count = land(&out, flights, count, loss);
		assert_int_equal(failure, 0);
	}
	assert_int_equal(messages, total);
	assert_int_equal(small_bytes, bytes);
	assert_int_equal(link_.stream.early_count, 0);
	assert_int_equal(link_.stream.early_bytes, 0);
	while (count)
		free(flights[--count].bytes);
	assert_false(stream_pending(&out));
	stream_stop(&out);
}

static void test_in_any_order(void **state)
{
	carry(0, 20000);
}

static void test_with_losses(void **state)
{
	carry(30, 20000);
}

/* No more is under way than the window allows, however much waits. */
static void test_window(void **state)
{
	struct stream_piece piece;
	struct stream out;
	uint64_t sent = 0;

	stream_start(&out);
	for (uint64_t i = 0; i < 3000; i++)
		append(&out, i);
	assert_true(out.end > STREAM_WINDOW);
	while (stream_pending(&out) && stream_next(&out, 1400, &piece))
		sent += piece.length;
	assert_int_equal(sent, STREAM_WINDOW);
	assert_false(stream_next(&out, 1400, &piece));
	stream_arrived(&out, 0);
	assert_true(stream_next(&out, 5000, &piece));
	assert_int_equal(piece.length, 1400);
	stream_stop(&out);
}

static void test_too_much_waits(void **state)
{
	static const uint8_t message[1024] = {1};
	struct packet_record record = {.message = message, .message_length = sizeof(message)};
	struct stream out;
	int error = 0;

	stream_start(&out);
	for (unsigned i = 0; i < 2 * OUTBOX_MAX / sizeof(message) && !error; i++)
		error = stream_append(&out, &record);
	assert_int_equal(error, -ENOBUFS);
	assert_true(out.end <= OUTBOX_MAX);
	stream_stop(&out);
}

/* A batch leaves together: the first of it does not leave before the last. */
static void test_batch_waits(void **state)
{
	static const uint8_t message[16] = {1};
	struct packet_record record = {.message = message, .message_length = sizeof(message)};
	struct stream_piece piece;
	struct stream out;

	stream_start(&out);
	assert_int_equal(stream_append(&out, &record), 0);
	assert_false(stream_pending(&out));
	assert_false(stream_next(&out, 1000, &piece));
	assert_false(stream_empty(&out));
	assert_int_equal(stream_append(&out, &record), 0);
	stream_flush(&out);
	assert_true(stream_pending(&out));
	assert_true(stream_next(&out, 1000, &piece));
	assert_int_equal(piece.length, out.end);
	assert_false(stream_pending(&out));
	stream_stop(&out);
}

/* ---- A peer that lies -------------------------------------------------- */

static void test_far_ahead(void **state)
{
	const uint8_t bytes[16] = {0};

	assert_int_equal(stream_input(&link_, STREAM_WINDOW + 1, bytes, sizeof(bytes)), -EPROTO);
	assert_int_equal(failure, -EPROTO);
}

static void test_wraps_around(void **state)
{
	const uint8_t bytes[16] = {0};

	assert_int_equal(stream_input(&link_, UINT64_MAX - 3, bytes, sizeof(bytes)), -EPROTO);
}

/* One byte each, all out of turn: memory stays bounded, and the rest counts as lost. */
static void test_many_early_pieces(void **state)
{
	const uint8_t byte = 0;
	unsigned kept = 0;

	for (uint64_t i = 1; i < STREAM_WINDOW; i += 2)
		kept += stream_input(&link_, i, &byte, 1) == 0;
	assert_in_range(kept, 1000, 5000);
	assert_int_equal(link_.stream.early_count, kept);
	assert_int_equal(failure, 0);
}

static void test_no_record(void **state)
{
	uint8_t bytes[RECORD_MESSAGE + 8] = {9};

	stream_input(&link_, 0, bytes, sizeof(bytes));
	assert_int_equal(failure, -EPROTO);
	assert_int_equal(messages, 0);
}

static void test_message_too_long(void **state)
{
	uint8_t bytes[RECORD_MESSAGE] = {1, 0, 0xff, 0xff};

	/* The record's start is enough to know. */
	stream_input(&link_, 0, bytes, sizeof(bytes));
	assert_int_equal(failure, -EPROTO);
}

static void test_forged_slot(void **state)
{
	uint8_t bytes[100], message[8] = {0};
	struct packet_record record = {.message = message,
				       .message_length = 8,
				       .small = true,
				       .slot = 666,
				       .payload = message,
				       .payload_length = 8};

	stream_input(&link_, 0, bytes, (uint32_t)packet_write_record(bytes, &record));
	assert_int_equal(failure, -EPROTO);
}

/* The engine ends the link from within a message: nothing that follows is told. */
static void test_end_within(void **state)
{
	struct stream_piece piece;
	struct stream out;

	stream_start(&out);
	for (uint64_t i = 0; i < 20; i++)
		append(&out, i);
	ends_at = 5;
	assert_true(stream_next(&out, 60000, &piece));
	stream_input(&link_, piece.offset, piece.bytes, piece.length);
	assert_int_equal(messages, 5);
	stream_stop(&out);
}

#define STREAM_TEST(function) cmocka_unit_test_setup_teardown(function, setup, teardown)

int main(void)
{
	const struct CMUnitTest tests[] = {
		STREAM_TEST(test_in_any_order), STREAM_TEST(test_with_losses),
		STREAM_TEST(test_window),       STREAM_TEST(test_too_much_waits),
		STREAM_TEST(test_batch_waits),  STREAM_TEST(test_far_ahead),
		STREAM_TEST(test_wraps_around), STREAM_TEST(test_many_early_pieces),
		STREAM_TEST(test_no_record),    STREAM_TEST(test_message_too_long),
		STREAM_TEST(test_forged_slot),  STREAM_TEST(test_end_within),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
