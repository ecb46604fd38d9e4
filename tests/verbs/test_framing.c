/* SPDX-License-Identifier: Apache-2.0 */
/* What two verbs backends say to each other, and where a slot's bytes go: without any adapter. */
#include "framing.h"
#include "bytes.h"

#include <errno.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

static const struct greeting good = {
	.kind = VERBS_DATA,
	.number = 3,
	.flags = VERBS_IMMEDIATES,
	.session = "0123456789abcde",
	.ring = 32,
	.small = 512,
	.packet = 2048,
	.mailbox = UINT64_C(0x123456789abcdef0),
	.mailbox_key = 0x8badf00d,
	.mtu = 3,
};

/* ---- Greetings --------------------------------------------------------- */

static void test_greeting_comes_back(void **state)
{
	uint8_t bytes[196] = {0};
	struct greeting back;

	verbs_encode_greeting(bytes, &good);
	/* Padded, as InfiniBand's connection manager hands it out. */
	assert_int_equal(verbs_decode_greeting(bytes, sizeof(bytes), &back), 0);
	back.version = 0;
	assert_memory_equal(&back, &good, sizeof(good));
}

static void test_greeting_that_is_none(void **state)
{
	struct greeting wrong, back;
	uint8_t bytes[VERBS_GREETING];

	assert_int_equal(verbs_decode_greeting(NULL, 0, &back), -EPROTO);
	verbs_encode_greeting(bytes, &good);
	for (size_t length = 0; length < VERBS_GREETING; length++) {
		uint8_t *exact = malloc(length ? length : 1);

		memcpy(exact, bytes, length);
		assert_int_equal(verbs_decode_greeting(exact, length, &back), -EPROTO);
		free(exact);
	}
	bytes[0] ^= 1;
	assert_int_equal(verbs_decode_greeting(bytes, sizeof(bytes), &back), -EPROTO);
	verbs_encode_greeting(bytes, &good);
	bytes[4]++;
	assert_int_equal(verbs_decode_greeting(bytes, sizeof(bytes), &back), -EPROTONOSUPPORT);

	const struct {
		unsigned kind, ring, packet;
	} impossible[] = {
		{0, 32, 2048},
		{3, 32, 2048},
		{VERBS_DATA, VERBS_RING_LEAST - 1, 2048},
		{VERBS_DATA, VERBS_RING_MOST + 1, 2048},
		{VERBS_DATA, 32, VERBS_PACKET_LEAST - 1},
		{VERBS_DATA, 32, VERBS_PACKET_MOST + 1},
	};
	for (size_t i = 0; i < sizeof(impossible) / sizeof(impossible[0]); i++) {
		wrong = good;
		wrong.kind = impossible[i].kind;
		wrong.ring = impossible[i].ring;
		wrong.packet = impossible[i].packet;
		verbs_encode_greeting(bytes, &wrong);
		assert_int_equal(verbs_decode_greeting(bytes, sizeof(bytes), &back), -EPROTO);
	}
}

static void test_refusal(void **state)
{
	uint8_t bytes[148] = {0};

	verbs_encode_refusal(bytes, VERBS_REASON_ROOM);
	assert_int_equal(verbs_decode_refusal(bytes, sizeof(bytes)), VERBS_REASON_ROOM);
	assert_int_equal(verbs_decode_refusal(bytes, VERBS_REFUSAL - 1), 0);
	assert_int_equal(verbs_decode_refusal(NULL, 0), 0);
	bytes[3] ^= 0x40;
	assert_int_equal(verbs_decode_refusal(bytes, sizeof(bytes)), 0);
}

/* ---- Records ----------------------------------------------------------- */

static void test_records_come_back(void **state)
{
	uint8_t bytes[200];
	struct record record;
	size_t head = verbs_encode_message(bytes, 5);

	memcpy(bytes + head, "hello", 5);
	assert_int_equal(verbs_decode_record(bytes, head + 5, &record), head + 5);
	assert_false(record.small);
	assert_int_equal(record.length, 5);
	assert_memory_equal(record.message, "hello", 5);

	head = verbs_encode_small(bytes, 3, 4, 77, UINT64_C(1) << 40);
	memcpy(bytes + head, "abcWXYZ", 7);
	assert_int_equal(verbs_decode_record(bytes, sizeof(bytes), &record), head + 7);
	assert_true(record.small);
	assert_int_equal(record.slot, 77);
	assert_int_equal(record.offset, UINT64_C(1) << 40);
	assert_int_equal(record.payload, 4);
	assert_memory_equal(record.message, "abc", 3);
	assert_memory_equal(record.bytes, "WXYZ", 4);
}

/* Whatever comes: never a record that reaches beyond its packet. */
static void test_records_that_are_none(void **state)
{
	uint8_t bytes[64];
	struct record record;
	unsigned seed = 1;

	for (int round = 0; round < 200000; round++) {
		size_t length = (size_t)rand_r(&seed) % sizeof(bytes), size;
		uint8_t *exact = malloc(length ? length : 1);

		for (size_t i = 0; i < length; i++)
			exact[i] = (uint8_t)(rand_r(&seed) & (i < 8 ? 0x0f : 0xff));
		size = verbs_decode_record(exact, length, &record);
		assert_true(size <= length);
		if (size) {
			assert_true(record.message + record.length <= exact + length);
			if (record.small)
				assert_true(record.bytes + record.payload <= exact + length);
		}
		free(exact);
	}
}

static void test_words(void **state)
{
	struct word word = {0xffffffff, 0x12345678, UINT64_C(1) << 33}, back;
	uint8_t bytes[VERBS_WORD];

	verbs_encode_word(bytes, &word);
	verbs_decode_word(bytes, &back);
	assert_memory_equal(&word, &back, sizeof(word));
}

/* ---- Places ------------------------------------------------------------ */

static void test_place_comes_back(void **state)
{
	struct place place = {.address = 4096, .first = 100, .each = 1000, .keys = PLACE_KEYS},
		     back;
	uint8_t bytes[64];
	size_t length;

	for (unsigned i = 0; i < PLACE_KEYS; i++)
		place.key[i] = 1000 + i;
	length = place_encode(bytes, &place);
	assert_int_equal(length, 64);
	assert_int_equal(place_decode(bytes, length, &back), 0);
	assert_memory_equal(&back, &place, sizeof(place));
	for (size_t wrong = 0; wrong < 28; wrong++)
		assert_int_equal(place_decode(bytes, wrong, &back), -EPROTO);
	assert_int_equal(place_decode(bytes, 29, &back), -EPROTO);
	memset(bytes + 8, 0, 8);
	assert_int_equal(place_decode(bytes, 28, &back), -EPROTO);
	put32(bytes + 8, 1);
	memset(bytes + 16, 0, 8);
	assert_int_equal(place_decode(bytes, 32, &back), -EPROTO);
}

/* Walks over a whole place: each byte comes once, under the key of its registration. */
static void walk(uint64_t total, uint64_t before, uint64_t each, uint64_t most)
{
	struct place place = {.address = 7 << 20, .each = each};
	uint64_t offset = 0, address, length;
	uint32_t key;

	place.first = each - before % each;
	if (place.first > total)
		place.first = total;
	place.keys = (unsigned)((before % each + total - 1) / each + 1);
	assert_in_range(place.keys, 1, PLACE_KEYS);
	for (unsigned i = 0; i < place.keys; i++)
		place.key[i] = i;
	while (offset < total) {
		length = place_piece(&place, offset, total - offset < most ? total - offset : most,
				     &address, &key);
		assert_in_range(length, 1, most);
		assert_int_equal(address, place.address + offset);
		assert_int_equal(key, (before % each + offset) / each);
		assert_int_equal((before % each + offset + length - 1) / each, key);
		offset += length;
	}
	assert_int_equal(offset, total);
}

static void test_pieces(void **state)
{
	const uint64_t gib = UINT64_C(1) << 30;

	walk(1, 0, 4096, 1 << 20);
	walk(4096, 0, 4096, 1 << 20);
	walk(4097, 4095, 4096, 1000);
	walk(30000, 123, 4096, 999);
	/* Beyond 32 bits, in pieces of a device whose messages hold at most 1 GiB. */
	walk(2 * gib + 1, 0, 4 * gib, gib);
	walk(2 * gib + 1, 12345, gib, gib);
	walk(9 * gib, gib - 1, gib, gib / 2);
}

/* A peer may name a place that is smaller than its slot: there is no piece then. */
static void test_no_piece_beyond_the_place(void **state)
{
	struct place place = {.address = 4096, .first = 10, .each = 10, .keys = 1};
	uint64_t address;
	uint32_t key;

	assert_int_equal(place_piece(&place, 9, 100, &address, &key), 1);
	assert_int_equal(place_piece(&place, 10, 100, &address, &key), 0);
	place.keys = 2;
	assert_int_equal(place_piece(&place, 10, 100, &address, &key), 10);
	assert_int_equal(place_piece(&place, 20, 100, &address, &key), 0);
	assert_int_equal(place_piece(&place, UINT64_MAX, 100, &address, &key), 0);
}

static void test_tags(void **state)
{
	assert_int_equal(slot_tag(5), 5);
	assert_int_equal(slot_tag(UINT64_C(1) << 32 | 5), 0x01000005);
	assert_int_equal(slot_tag(UINT64_C(0x123) << 32 | 0xffffff), 0x23ffffff);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_greeting_comes_back),
		cmocka_unit_test(test_greeting_that_is_none),
		cmocka_unit_test(test_refusal),
		cmocka_unit_test(test_records_come_back),
		cmocka_unit_test(test_records_that_are_none),
		cmocka_unit_test(test_words),
		cmocka_unit_test(test_place_comes_back),
		cmocka_unit_test(test_pieces),
		cmocka_unit_test(test_no_piece_beyond_the_place),
		cmocka_unit_test(test_tags),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
