/* SPDX-License-Identifier: Apache-2.0 */
#include "../unit/unit.h"

#include "frame.h"

/* The checksum as RFC 1071 tells it, one word after the other. */
static uint16_t slow_sum(const uint8_t *bytes, size_t length)
{
	uint64_t sum = 0;

	for (size_t i = 0; i < length; i++)
		sum += i % 2 ? bytes[i] : (uint64_t)bytes[i] << 8;
	while (sum >> 16)
		sum = (sum & 0xffff) + (sum >> 16);
	return (uint16_t)~sum;
}

static void fill(uint8_t *bytes, size_t length, uint64_t *state)
{
	for (size_t i = 0; i < length; i++)
		bytes[i] = (uint8_t)unit_random(state);
}

/* ---- Sums --------------------------------------------------------------------- */

static void known_sums(void **state)
{
	/* RFC 1071, section 3, and a header whose checksum is known. */
	static const uint8_t example[] = {0x00, 0x01, 0xf2, 0x03, 0xf4, 0xf5, 0xf6, 0xf7};
	static const uint8_t header[] = {0x45, 0x00, 0x00, 0x73, 0x00, 0x00, 0x40,
					 0x00, 0x40, 0x11, 0x00, 0x00, 0xc0, 0xa8,
					 0x00, 0x01, 0xc0, 0xa8, 0x00, 0xc7};
	uint8_t ones[70000];

	assert_int_equal(frame_fold(frame_sum(example, sizeof(example), 0)), 0xffff & ~0xddf2);
	assert_int_equal(frame_fold(frame_sum(header, sizeof(header), 0)), 0xb861);
	assert_int_equal(frame_fold(frame_sum(example, 0, 0)), 0xffff);
	/* Every addition carries. */
	memset(ones, 0xff, sizeof(ones));
	for (size_t length = 0; length <= sizeof(ones); length += length < 100 ? 2 : 998)
		assert_int_equal(frame_fold(frame_sum(ones, length, 0)), slow_sum(ones, length));
}

static void sums_of_all_lengths_and_places(void **state)
{
	uint64_t random = 7;
	uint8_t bytes[400], copy[400];

	fill(bytes, sizeof(bytes), &random);
	for (size_t start = 0; start < 9; start++) {
		for (size_t length = 0; length < 300; length++) {
			uint64_t sum = frame_sum(bytes + start, length, 0), other;

			memset(copy, 0xaa, sizeof(copy));
			other = frame_sum_copy(copy + 3, bytes + start, length, 0);
			assert_int_equal(frame_fold(sum), slow_sum(bytes + start, length));
			assert_int_equal(frame_fold(other), frame_fold(sum));
			assert_memory_equal(copy + 3, bytes + start, length);
			assert_int_equal(copy[2], 0xaa);
			assert_int_equal(copy[3 + length], 0xaa);
		}
	}
}

static void sums_go_on_from_sums(void **state)
{
	uint64_t random = 9;
	uint8_t *bytes = malloc(1 << 20), *copy = malloc(1 << 20);

	assert_true(bytes && copy);
	fill(bytes, 1 << 20, &random);
	for (size_t cut = 0; cut < 1 << 20; cut = cut * 3 + 2) {
		uint64_t sum = frame_sum(bytes, cut, 0),
			 other = frame_sum_copy(copy, bytes, cut, 0);

		sum = frame_sum(bytes + cut, (1 << 20) - 1 - cut, sum);
		other = frame_sum_copy(copy + cut, bytes + cut, (1 << 20) - 1 - cut, other);
		assert_int_equal(frame_fold(sum), slow_sum(bytes, (1 << 20) - 1));
		assert_int_equal(frame_fold(other), frame_fold(sum));
	}
	free(bytes);
	free(copy);
}

/* ---- Frames ---------------------------------------------------------------------- */

static const struct frame_ends ends = {
	.source_mac = {0x02, 1, 2, 3, 4, 5},
	.target_mac = {0x02, 9, 8, 7, 6, 5},
	.source = 0x0a090001,
	.target = 0x0a0900fe,
	.source_port = 4660,
	.target_port = 65535,
	.ecn = FRAME_ECN_0,
	.dscp = 46,
	.ttl = 64,
};

static size_t make_udp(uint8_t *to, uint16_t tag, const uint8_t *payload, size_t length,
		       bool summed)
{
	struct frame_ends tagged = ends;
	struct frame_template template;
	uint64_t sum = frame_sum(payload, length, 0);
	size_t headers;

	tagged.tag = tag;
	frame_template_make(&template, &tagged);
	headers = frame_write(&template, to, length, summed ? &sum : NULL);
	assert_int_equal(headers, tag ? 46 : 42);
	memcpy(to + headers, payload, length);
	return headers + length;
}

/* From a block of exactly this length, so that a read behind it is seen by the sanitizer. */
static enum frame_kind kind_of(const uint8_t *bytes, size_t length, bool *bad)
{
	uint8_t *copy = malloc(length ? length : 1);
	struct frame frame;

	assert_non_null(copy);
	memcpy(copy, bytes, length);
	memset(&frame, 0xee, sizeof(frame));
	frame_read(copy, length, (struct frame_checked){0}, &frame, bad);
	if (frame.kind == FRAME_IS_UDP || frame.kind == FRAME_IS_ECHO)
		assert_true(frame.payload >= copy && frame.payload + frame.length <= copy + length);
	free(copy);
	return frame.kind;
}

/* A UDP packet as another stack writes it: its bytes are known. */
static void a_known_packet(void **state)
{
	static const uint8_t known[] = {0x02, 0x09, 0x08, 0x07, 0x06, 0x05, 0x02, 0x01, 0x02, 0x03,
					0x04, 0x05, 0x08, 0x00, 0x45, 0xba, 0x00, 0x21, 0x00, 0x00,
					0x40, 0x00, 0x40, 0x11, 0x25, 0x02, 0x0a, 0x09, 0x00, 0x01,
					0x0a, 0x09, 0x00, 0xfe, 0x12, 0x34, 0xff, 0xff, 0x00, 0x0d,
					0x94, 0xbd, 'h',  'e',  'l',  'l',  'o'};
	uint8_t bytes[64];
	size_t length = make_udp(bytes, 0, (const uint8_t *)"hello", 5, true);
	struct frame frame;
	bool bad;

	assert_int_equal(slow_sum(known + 14, 20), 0);
	assert_int_equal(length, sizeof(known));
	assert_memory_equal(bytes, known, length);
	frame_read(bytes, length, (struct frame_checked){0}, &frame, &bad);
	assert_int_equal(frame.kind, FRAME_IS_UDP);
	assert_false(bad || frame.unchecked);
	assert_memory_equal(frame.source_mac, ends.source_mac, FRAME_MAC);
	assert_int_equal(frame.source, ends.source);
	assert_int_equal(frame.target, ends.target);
	assert_int_equal(frame.source_port, ends.source_port);
	assert_int_equal(frame.target_port, ends.target_port);
	assert_int_equal(frame.tag, 0);
	assert_int_equal(frame.ecn, FRAME_ECN_0);
	assert_int_equal(frame.length, 5);
	assert_memory_equal(frame.payload, "hello", 5);
}

static void packets_of_all_lengths(void **state)
{
	static uint8_t payload[9000], bytes[9100];
	uint64_t random = 3;
	struct frame frame;

	fill(payload, sizeof(payload), &random);
	for (size_t length = 0; length <= sizeof(payload); length += length < 80 ? 1 : 1487) {
		for (unsigned kind = 0; kind < 4; kind++) {
			uint16_t tag = kind & 1 ? 4094 : 0;
			size_t size = make_udp(bytes, tag, payload, length, kind & 2);

			/* What pads a short frame is not the packet's. */
			memset(bytes + size, 0x5a, 40);
			frame_read(bytes, size + 40, (struct frame_checked){0}, &frame, NULL);
			assert_int_equal(frame.kind, FRAME_IS_UDP);
			assert_int_equal(frame.unchecked, !(kind & 2));
			assert_int_equal(frame.tag, tag);
			assert_int_equal(frame.length, length);
			assert_memory_equal(frame.payload, payload, length);
		}
	}
}

/* A sum of 0 means that there is none: it is sent as its other form. */
static void a_sum_of_zero(void **state)
{
	uint8_t bytes[64], payload[2];
	bool found = false, bad;

	for (unsigned word = 0; word < 65536 && !found; word++) {
		payload[0] = (uint8_t)(word >> 8);
		payload[1] = (uint8_t)word;
		make_udp(bytes, 0, payload, 2, true);
		assert_true(bytes[40] || bytes[41]);
		found = bytes[40] == 0xff && bytes[41] == 0xff;
	}
	assert_true(found);
	assert_int_equal(kind_of(bytes, 44, &bad), FRAME_IS_UDP);
}

/* ---- What is not right --------------------------------------------------------------- */

static void a_truncated_packet_is_none(void **state)
{
	uint8_t bytes[200], payload[100];
	uint64_t random = 5;
	bool bad;

	fill(payload, sizeof(payload), &random);
	for (unsigned tag = 0; tag < 2; tag++) {
		size_t size = make_udp(bytes, (uint16_t)tag, payload, sizeof(payload), true);

		assert_int_equal(kind_of(bytes, size, &bad), FRAME_IS_UDP);
		for (size_t length = 0; length < size; length++)
			assert_int_equal(kind_of(bytes, length, &bad), FRAME_OTHER);
	}
}

/* From the IPv4 header on every bit is covered by a sum, except UDP's own, which may turn it off.
 */
static void each_flipped_bit_is_found(void **state)
{
	uint8_t bytes[200], payload[100];
	uint64_t random = 6;
	unsigned found = 0;
	size_t size;
	bool bad;

	fill(payload, sizeof(payload), &random);
	size = make_udp(bytes, 0, payload, sizeof(payload), true);
	for (size_t bit = 14 * 8; bit < size * 8; bit++) {
		bytes[bit / 8] ^= (uint8_t)(1 << bit % 8);
		assert_int_equal(kind_of(bytes, size, &bad), FRAME_OTHER);
		found += bad;
		bytes[bit / 8] ^= (uint8_t)(1 << bit % 8);
	}
	/* The others gave lengths or versions that can't be. */
	assert_true(found > (size - 14) * 8 - 48);
	assert_int_equal(kind_of(bytes, size, &bad), FRAME_IS_UDP);
	assert_false(bad);
}

/* Put the right checksum into the IPv4 header after it was changed. */
static void mend(uint8_t *ip)
{
	size_t header = (ip[0] & 15u) * 4;
	uint16_t sum;

	ip[10] = ip[11] = 0;
	sum = slow_sum(ip, header);
	ip[10] = (uint8_t)(sum >> 8);
	ip[11] = (uint8_t)sum;
}

/* Change one byte of the header, which is right otherwise. */
static enum frame_kind changed(size_t at, uint8_t value)
{
	uint8_t bytes[100];
	size_t size = make_udp(bytes, 0, (const uint8_t *)"some bytes", 10, false);
	bool bad;

	bytes[at] = value;
	mend(bytes + 14);
	return kind_of(bytes, size, &bad);
}

static void lengths_that_lie(void **state)
{
	assert_int_equal(changed(14, 0x45), FRAME_IS_UDP);
	for (unsigned length = 0; length < 256; length++) {
		/* IPv4's is 38, UDP's 18. */
		assert_int_equal(changed(17, (uint8_t)length),
				 length == 38 ? FRAME_IS_UDP : FRAME_OTHER);
		assert_int_equal(changed(39, (uint8_t)length),
				 length == 18 ? FRAME_IS_UDP : FRAME_OTHER);
	}
	assert_int_equal(changed(16, 1), FRAME_OTHER);
	assert_int_equal(changed(38, 1), FRAME_OTHER);
	for (unsigned words = 0; words < 16; words++)
		assert_int_equal(changed(14, (uint8_t)(0x40 | words)),
				 words == 5 ? FRAME_IS_UDP : FRAME_OTHER);
	for (unsigned version = 0; version < 16; version++)
		assert_int_equal(changed(14, (uint8_t)(version << 4 | 5)),
				 version == 4 ? FRAME_IS_UDP : FRAME_OTHER);
}

static void fragments_and_strangers_are_left_alone(void **state)
{
	assert_int_equal(changed(20, 0x00), FRAME_IS_UDP); /* may be cut, but was not */
	assert_int_equal(changed(20, 0x20), FRAME_OTHER);  /* more follow */
	assert_int_equal(changed(21, 0x01), FRAME_OTHER);  /* not the first */
	assert_int_equal(changed(20, 0x1f), FRAME_OTHER);
	assert_int_equal(changed(23, 6), FRAME_OTHER);   /* TCP */
	assert_int_equal(changed(26, 224), FRAME_OTHER); /* from a group */
	assert_int_equal(changed(26, 127), FRAME_OTHER);
	assert_int_equal(changed(26, 255), FRAME_OTHER);
	assert_int_equal(changed(6, 0x03), FRAME_OTHER);
	assert_int_equal(changed(12, 0x86), FRAME_OTHER);
	assert_int_equal(changed(13, 0x06), FRAME_OTHER); /* ARP, which it is not */
	assert_int_equal(changed(12, 0x81), FRAME_OTHER); /* a tag, and nothing right behind it */
}

static void options_are_skipped(void **state)
{
	uint8_t bytes[200], longer[200];
	size_t size = make_udp(bytes, 0, (const uint8_t *)"some bytes", 10, true);
	bool bad;

	for (unsigned words = 1; words <= 10; words++) {
		memcpy(longer, bytes, 34);
		memset(longer + 34, 1, words * 4); /* "no operation" */
		memcpy(longer + 34 + words * 4, bytes + 34, size - 34);
		longer[14] = (uint8_t)(0x45 + words);
		longer[17] = (uint8_t)(longer[17] + words * 4);
		mend(longer + 14);
		assert_int_equal(kind_of(longer, size + words * 4, &bad), FRAME_IS_UDP);
	}
}

static void the_card_is_believed(void **state)
{
	uint8_t bytes[100];
	size_t size = make_udp(bytes, 0, (const uint8_t *)"some bytes", 10, true);
	struct frame frame;

	bytes[24]++;
	bytes[size - 1]++;
	frame_read(bytes, size, (struct frame_checked){.ip = true, .udp = true}, &frame, NULL);
	assert_int_equal(frame.kind, FRAME_IS_UDP);
	frame_read(bytes, size, (struct frame_checked){.ip = true}, &frame, NULL);
	assert_int_equal(frame.kind, FRAME_OTHER);
	frame_read(bytes, size, (struct frame_checked){.udp = true}, &frame, NULL);
	assert_int_equal(frame.kind, FRAME_OTHER);
}

/* ---- ARP ------------------------------------------------------------------------------- */

static void arp(void **state)
{
	static const uint8_t asks[42] = {0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 2,  1, 2,  3, 4,
					 5,    0x08, 0x06, 0,    1,    8,    0,  6, 4,  0, 1,
					 2,    1,    2,    3,    4,    5,    10, 9, 0,  1, 0,
					 0,    0,    0,    0,    0,    10,   9,  0, 254};
	uint8_t bytes[64];
	struct frame frame;
	size_t length;
	bool bad;

	length = frame_write_arp(bytes, ends.source_mac, ends.source, 0, NULL, ends.target);
	assert_int_equal(length, 60);
	assert_memory_equal(bytes, asks, 42);
	for (unsigned tag = 0; tag < 2; tag++) {
		for (unsigned answers = 0; answers < 2; answers++) {
			length = frame_write_arp(bytes, ends.source_mac, ends.source, (uint16_t)tag,
						 answers ? ends.target_mac : NULL, ends.target);
			frame_read(bytes, length, (struct frame_checked){0}, &frame, &bad);
			assert_int_equal(frame.kind, FRAME_IS_ARP);
			assert_int_equal(frame.arp_asks, !answers);
			assert_int_equal(frame.source, ends.source);
			assert_int_equal(frame.target, ends.target);
			assert_int_equal(frame.tag, tag);
			assert_memory_equal(frame.arp_mac, ends.source_mac, FRAME_MAC);
			for (size_t cut = 0; cut < 42 + 4 * tag; cut++)
				assert_int_equal(kind_of(bytes, cut, &bad), FRAME_OTHER);
		}
	}
	/* Hardware, protocol, their lengths, and what is asked for. */
	length = frame_write_arp(bytes, ends.source_mac, ends.source, 0, NULL, ends.target);
	for (size_t at = 14; at < 22; at++) {
		bytes[at] ^= 4;
		assert_int_equal(kind_of(bytes, length, &bad), FRAME_OTHER);
		bytes[at] ^= 4;
	}
}

/* ---- ICMP ---------------------------------------------------------------------------------- */

/* An ICMP message in a packet of its own; gives the length. */
static size_t make_icmp(uint8_t *to, const uint8_t *message, size_t length)
{
	size_t size = make_udp(to, 0, message, length, false);
	uint16_t sum;

	memmove(to + 34, to + 42, length);
	size -= 8;
	to[23] = 1;
	to[16] = (uint8_t)((length + 20) >> 8);
	to[17] = (uint8_t)(length + 20);
	mend(to + 14);
	if (length < 8)
		return size;
	to[36] = to[37] = 0;
	sum = slow_sum(to + 34, length);
	to[36] = (uint8_t)(sum >> 8);
	to[37] = (uint8_t)sum;
	return size;
}

static void echo(void **state)
{
	uint8_t request[200], answer[200],
		message[61] = {8, 0, 0, 0, 0x12, 0x34, 0, 7, 'p', 'i', 'n', 'g'};
	struct frame frame, back;
	bool bad;

	for (size_t length = 8; length <= sizeof(message); length++) {
		size_t size = make_icmp(request, message, length), got;

		frame_read(request, size, (struct frame_checked){0}, &frame, &bad);
		assert_int_equal(frame.kind, FRAME_IS_ECHO);
		got = frame_write_echo(answer, sizeof(answer), ends.target_mac, &frame);
		assert_int_equal(got, size < 60 ? 60 : size);
		assert_int_equal(frame_write_echo(answer, got - 1, ends.target_mac, &frame), 0);
		frame_read(answer, got, (struct frame_checked){0}, &back, &bad);
		assert_int_equal(back.kind, FRAME_OTHER); /* nobody asks */
		assert_false(bad);
		assert_int_equal(slow_sum(answer + 14, 20), 0);
		assert_int_equal(slow_sum(answer + 34, length), 0);
		assert_int_equal(answer[34], 0);
		assert_memory_equal(answer + 38, message + 4, length - 4);
		assert_memory_equal(answer, ends.source_mac, FRAME_MAC);
		assert_memory_equal(answer + 26, request + 30, 4);
		assert_memory_equal(answer + 30, request + 26, 4);
		for (size_t cut = 34; cut < size; cut++)
			assert_int_equal(kind_of(request, cut, &bad), FRAME_OTHER);
		request[38] ^= 1;
		assert_int_equal(kind_of(request, size, &bad), FRAME_OTHER);
		assert_true(bad);
	}
}

static void unreachable(void **state)
{
	uint8_t sent[100], message[100] = {3, 3}, bytes[200];
	struct frame frame;
	size_t size;
	bool bad;

	make_udp(sent, 0, (const uint8_t *)"some bytes", 10, true);
	memcpy(message + 8, sent + 14, 28);
	size = make_icmp(bytes, message, 36);
	frame_read(bytes, size, (struct frame_checked){0}, &frame, &bad);
	assert_int_equal(frame.kind, FRAME_IS_UNREACHABLE);
	assert_int_equal(frame.icmp_code, 3);
	assert_int_equal(frame.source, ends.source);
	assert_int_equal(frame.target, ends.target);
	assert_int_equal(frame.source_port, ends.source_port);
	assert_int_equal(frame.target_port, ends.target_port);
	for (size_t length = 0; length < 36; length++)
		assert_int_equal(kind_of(bytes, make_icmp(bytes, message, length), &bad),
				 FRAME_OTHER);
	message[8 + 9] = 6; /* TCP is none of ours */
	assert_int_equal(kind_of(bytes, make_icmp(bytes, message, 36), &bad), FRAME_OTHER);
	message[8 + 9] = 17;
	message[8] = 0x4f; /* options that are not there */
	assert_int_equal(kind_of(bytes, make_icmp(bytes, message, 36), &bad), FRAME_OTHER);
	message[8] = 0x44;
	assert_int_equal(kind_of(bytes, make_icmp(bytes, message, 36), &bad), FRAME_OTHER);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(known_sums),
		cmocka_unit_test(sums_of_all_lengths_and_places),
		cmocka_unit_test(sums_go_on_from_sums),
		cmocka_unit_test(a_known_packet),
		cmocka_unit_test(packets_of_all_lengths),
		cmocka_unit_test(a_sum_of_zero),
		cmocka_unit_test(a_truncated_packet_is_none),
		cmocka_unit_test(each_flipped_bit_is_found),
		cmocka_unit_test(lengths_that_lie),
		cmocka_unit_test(fragments_and_strangers_are_left_alone),
		cmocka_unit_test(options_are_skipped),
		cmocka_unit_test(the_card_is_believed),
		cmocka_unit_test(arp),
		cmocka_unit_test(echo),
		cmocka_unit_test(unreachable),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
