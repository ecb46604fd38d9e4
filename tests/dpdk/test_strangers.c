/* SPDX-License-Identifier: Apache-2.0 */
/*
 * F30: strangers who send whatever they like to a port. They get a short answer or none, cost
 * little, and those who are connected notice nothing.
 *
 *   test_dpdk_strangers [TEST...]
 */
#include <errno.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>

#include "scene.h"

/* So many answers to strangers leave in each 10 ms. */
#define ANSWERS 100

/* How long nothing must come for it to count as nothing, in ms. */
#define SILENCE_MS 20

static const struct frame_checked unchecked;

/* ---- ARP and echo ------------------------------------------------------ */

/* The answer to an ARP packet: false when there is none. */
static bool arp_answer(const uint8_t *bytes, size_t length, struct frame *frame)
{
	static uint8_t answer[HUB_FRAME_MOST];
	size_t got;

	hub_send(bytes, length);
	while ((got = hub_receive(answer, SILENCE_MS))) {
		frame_read(answer, got, unchecked, frame, NULL);
		if (frame->kind == FRAME_IS_ARP)
			return true;
	}
	return false;
}

static void test_arp(void **state)
{
	struct scene *scene = scene_open(*state, "", 1000);
	uint8_t bytes[FRAME_LEAST + FRAME_TAG], mac[FRAME_MAC];
	const struct raw_side *side = &scene->where;
	struct frame frame;
	size_t length;

	hub_mac(HUB_IP(5), mac);
	length = frame_write_arp(bytes, mac, HUB_IP(5), 0, NULL, side->ip);
	assert_true(arp_answer(bytes, length, &frame));
	assert_false(frame.arp_asks);
	assert_int_equal(frame.source, side->ip);
	assert_int_equal(frame.target, HUB_IP(5));
	assert_memory_equal(frame.arp_mac, side->mac, FRAME_MAC);
	/* Cut short, it is none. */
	for (size_t cut = 0; cut < FRAME_ETHERNET + FRAME_ARP; cut++) {
		if (cut)
			assert_false(cut > 30 && arp_answer(bytes, cut, &frame));
	}
	/* A group has asked. */
	bytes[FRAME_ETHERNET + 8] |= 1;
	assert_false(arp_answer(bytes, length, &frame));
	/* For somebody else. */
	length = frame_write_arp(bytes, mac, HUB_IP(5), 0, NULL, HUB_NET + 200);
	assert_false(arp_answer(bytes, length, &frame));
	/* In another VLAN. */
	length = frame_write_arp(bytes, mac, HUB_IP(5), 7, NULL, side->ip);
	assert_false(arp_answer(bytes, length, &frame));
	/* Somebody else has our address: that is told, and nothing else happens. */
	length = frame_write_arp(bytes, mac, side->ip, 0, NULL, side->ip);
	assert_false(arp_answer(bytes, length, &frame));
	check_alive(&scene->pair);
}

/* An echo request of so many bytes of ICMP; gives the frame's length. */
static size_t echo_request(const struct raw_side *side, uint32_t target, uint8_t *bytes,
			   size_t icmp)
{
	static uint8_t message[HUB_FRAME_MOST];
	struct frame request = {.kind = FRAME_IS_ECHO,
				.source = target,
				.target = HUB_IP(5),
				.source_mac = side->mac,
				.payload = message,
				.length = icmp};
	uint8_t mac[FRAME_MAC], *at;
	size_t length;

	hub_mac(HUB_IP(5), mac);
	length = frame_write_echo(bytes, HUB_FRAME_MOST, mac, &request);
	at = bytes + FRAME_ETHERNET + FRAME_IPV4;
	at[0] = 8;
	at[2] = at[3] = 0;
	memcpy(at + 2, (uint8_t[]){0xf7, 0xff}, 2); /* of 8, and of zeros */
	return length;
}

static size_t echoed(const uint8_t *bytes, size_t length)
{
	static uint8_t answer[HUB_FRAME_MOST];

	hub_forget();
	hub_send(bytes, length);
	while ((length = hub_receive(answer, SILENCE_MS))) {
		/* ICMP; there is ARP, too. */
		if (answer[FRAME_ETHERNET] == 0x45 && answer[FRAME_ETHERNET + 9] == 1)
			return length;
	}
	return 0;
}

static void test_echo(void **state)
{
	struct scene *scene = scene_open(*state, "", 1000);
	uint8_t bytes[HUB_FRAME_MOST];
	size_t length;

	length = echo_request(&scene->where, scene->where.ip, bytes, 64);
	assert_int_equal(echoed(bytes, length), length);
	length = echo_request(&scene->where, scene->where.ip, bytes, 8000);
	assert_int_equal(echoed(bytes, length), length);
	/* As long as can be, and longer than what the port takes. */
	for (size_t icmp = 9100; icmp < 9600; icmp += 25) {
		size_t answer;

		length = echo_request(&scene->where, scene->where.ip, bytes, icmp);
		answer = echoed(bytes, length);
		assert_true(answer == 0 || answer == length);
	}
	length = echo_request(&scene->where, HUB_NET + 200, bytes, 64);
	assert_int_equal(echoed(bytes, length), 0);
	length = echo_request(&scene->where, HUB_NET + 0xffff, bytes, 64);
	assert_int_equal(echoed(bytes, length), 0);
	length = echo_request(&scene->where, scene->where.ip, bytes, 64);
	bytes[length - 1] ^= 1;
	assert_int_equal(echoed(bytes, length), 0);
	check_alive(&scene->pair);
}

/* ---- OPEN -------------------------------------------------------------- */

/* No packet comes for it. */
static void no_answer(struct raw_dpdk *peer, const char *what)
{
	uint8_t payload[PACKET_PAYLOAD_MOST];
	size_t length = raw_take(peer, payload, SILENCE_MS);

	if (length)
		fail_msg("%s: a packet of type %u and %zu bytes came", what, payload[8], length);
}

static void refused(struct raw_dpdk *peer, const struct packet_open *open, uint16_t reason)
{
	uint8_t payload[PACKET_PAYLOAD_MOST];
	struct packet_answer answer;
	struct packet_head head;
	size_t length;

	raw_say_open(peer, open, PACKET_OPEN);
	assert_true(raw_answer(peer, PACKET_TYPE_REFUSED, payload, &length, RAW_PATIENCE_MS));
	assert_int_equal(length, PACKET_REFUSED);
	assert_true(packet_read_head(payload, length, &head));
	assert_int_equal(head.connection, open->name);
	assert_true(packet_read_refused(payload, length, &answer));
	assert_int_equal(answer.version, PACKET_VERSION);
	assert_int_equal(answer.reason, reason);
}

static void test_f30_open_that_is_none(void **state)
{
	struct scene *scene = scene_open(*state, "", 1000);
	struct packet_open good, open;
	uint8_t payload[PACKET_OPEN];
	struct raw_dpdk *peer = scene->peer;

	raw_start(peer, &scene->where);
	good = raw_open_of(peer);
	packet_write_open(payload, &good);
	for (size_t length = 0; length < PACKET_OPEN; length++)
		raw_udp(peer, payload, length);
	no_answer(peer, "OPEN that is cut short");
	payload[16] ^= 1;
	raw_udp(peer, payload, PACKET_OPEN);
	no_answer(peer, "another magic");
	open = good;
	open.version++;
	refused(peer, &open, PACKET_REASON_VERSION);
	open = good;
	open.payload = PACKET_PAYLOAD_LEAST - 1;
	refused(peer, &open, PACKET_REASON_PAYLOAD);
	open = good;
	open.name = 0;
	refused(peer, &open, PACKET_REASON_PAYLOAD);
	peer->side.port ^= 1;
	refused(peer, &good, PACKET_REASON_NO_LISTENER);
	raw_udp(peer, payload, PACKET_OPEN);
	no_answer(peer, "garbage for a port without a listener");
	peer->side.port ^= 1;
	peer->side.ip = HUB_NET + 200;
	raw_say_open(peer, &good, PACKET_OPEN);
	no_answer(peer, "OPEN to another address");
	assert_int_equal(scene->side->accepted_count, 1);
	check_alive(&scene->pair);
}

/* One frame, with the IPv4 header's checksum made right. */
static void ip_frame(uint8_t *frame, size_t length)
{
	uint8_t *ip = frame + FRAME_ETHERNET;
	uint16_t sum;

	ip[10] = ip[11] = 0;
	sum = frame_fold(frame_sum(ip, (ip[0] & 15u) * 4, 0));
	ip[10] = (uint8_t)(sum >> 8);
	ip[11] = (uint8_t)sum;
	hub_send(frame, length);
}

/* Each would be answered, if it were not for one thing. */
static void test_f30_frames_that_are_none(void **state)
{
	struct scene *scene = scene_open(*state, ",sums=yes", 1000);
	struct raw_dpdk *peer = scene->peer;
	uint8_t payload[PACKET_OPEN], good[200], frame[204];
	struct packet_open open;
	size_t length;

	raw_start(peer, &scene->where);
	open = raw_open_of(peer);
	packet_write_open(payload, &open);
	length = raw_frame(peer, good, payload, PACKET_OPEN);
	assert_true(length < sizeof(good));
	memcpy(frame, good, length);
	frame[length - 1] ^= 1;
	hub_send(frame, length);
	no_answer(peer, "a bad UDP checksum");
	memcpy(frame, good, length);
	frame[FRAME_ETHERNET + 10] ^= 1;
	hub_send(frame, length);
	no_answer(peer, "a bad IPv4 checksum");
	memcpy(frame, good, length);
	frame[FRAME_ETHERNET + 6] = 0x20;
	ip_frame(frame, length);
	no_answer(peer, "the first fragment");
	frame[FRAME_ETHERNET + 6] = 0;
	frame[FRAME_ETHERNET + 7] = 9;
	ip_frame(frame, length);
	no_answer(peer, "the last fragment");
	memcpy(frame, good, length);
	frame[FRAME_ETHERNET] = 0x4f;
	ip_frame(frame, length);
	no_answer(peer, "options where there are none");
	memcpy(frame, good, length);
	frame[FRAME_ETHERNET] = 0x44;
	ip_frame(frame, length);
	no_answer(peer, "an IPv4 header that is too short");
	memcpy(frame, good, length);
	frame[FRAME_ETHERNET + 3] += 8;
	ip_frame(frame, length);
	no_answer(peer, "an IPv4 length beyond the frame");
	/* A VLAN's tag, where there is no VLAN. */
	memcpy(frame, good, 12);
	memcpy(frame + 12, "\x81\0\0\7", 4);
	memcpy(frame + 16, good + 12, length - 12);
	hub_send(frame, length + 4);
	no_answer(peer, "a tag");
	for (size_t cut = FRAME_ETHERNET; cut < length; cut++)
		hub_send(good, cut);
	no_answer(peer, "a frame that is cut short");
	/* And that is how it is. */
	hub_send(good, length);
	assert_true(raw_answer(peer, PACKET_TYPE_COOKIE, frame, &length, RAW_PATIENCE_MS));
	check_alive(&scene->pair);
}

/* A cookie is good for one address and one name. */
static void test_f30_cookies(void **state)
{
	struct scene *scene = scene_open(*state, "", 1000);
	struct raw_dpdk *peer = scene->peer, other;
	uint8_t payload[PACKET_PAYLOAD_MOST], again[PACKET_PAYLOAD_MOST];
	struct packet_open open, lie, opened;
	size_t length, second;

	raw_start(peer, &scene->where);
	open = raw_open_of(peer);
	raw_cookie(peer, open.cookie);
	hub_forget();
	for (unsigned i = 0; i < PACKET_COOKIE_SIZE; i += 3) {
		lie = open;
		lie.cookie[i] ^= 0x10;
		raw_say_open(peer, &lie, RAW_PAYLOAD);
		assert_false(raw_answer(peer, PACKET_TYPE_OPENED, payload, &length, 5));
	}
	lie = open;
	lie.name++;
	raw_say_open(peer, &lie, RAW_PAYLOAD);
	assert_false(raw_answer(peer, PACKET_TYPE_OPENED, payload, &length, SILENCE_MS));
	raw_start(&other, &scene->where);
	raw_say_open(&other, &open, RAW_PAYLOAD);
	assert_false(raw_answer(&other, PACKET_TYPE_OPENED, payload, &length, SILENCE_MS));
	other.ip = peer->ip;
	raw_say_open(&other, &open, RAW_PAYLOAD);
	assert_false(raw_answer(&other, PACKET_TYPE_OPENED, payload, &length, SILENCE_MS));
	/* Too short for any connection: the path is not proven. */
	raw_say_open(peer, &open, PACKET_OPEN);
	no_answer(peer, "OPEN with a cookie that is shorter than any connection's");
	raw_say_open(peer, &open, RAW_PAYLOAD);
	assert_true(raw_answer(peer, PACKET_TYPE_OPENED, payload, &length, RAW_PATIENCE_MS));
	assert_int_equal(length, RAW_PAYLOAD);
	/* The same once more, and once more but shorter: the connection fits into both. */
	raw_say_open(peer, &open, RAW_PAYLOAD);
	assert_true(raw_answer(peer, PACKET_TYPE_OPENED, again, &second, RAW_PATIENCE_MS));
	assert_int_equal(length, second);
	assert_memory_equal(payload, again, length);
	raw_say_open(peer, &open, 600);
	assert_true(raw_answer(peer, PACKET_TYPE_OPENED, again, &second, RAW_PATIENCE_MS));
	assert_int_equal(second, 600);
	assert_true(packet_read_opened(again, second, &opened));
	assert_memory_equal(payload + 24, again + 24, 8);
	assert_int_equal(opened.payload, 600);
	check_alive(&scene->pair);
	assert_int_equal(scene->side->accepted_count, 1);
}

/* ---- Floods ------------------------------------------------------------ */

struct flood {
	struct raw_side side;
	unsigned least; /* frames to send */
	unsigned long sent;
	bool stop; /* atomic: after the least */
	pthread_t thread;
};

/* From addresses all over the net, none of which is who sends. */
static void *flood_run(void *argument)
{
	struct flood *flood = argument;
	struct raw_dpdk *peer = calloc(1, sizeof(*peer));
	uint64_t random = 1;

	assert_non_null(peer);
	raw_start(peer, &flood->side);
	while (flood->sent < flood->least || !__atomic_load_n(&flood->stop, __ATOMIC_RELAXED)) {
		struct packet_open open;

		peer->name = random_next(&random);
		peer->port = (uint16_t)random_next(&random);
		peer->ip = HUB_IP(1 + random_below(&random, 65000));
		open = raw_open_of(peer);
		if (flood->sent % 2)
			memset(open.cookie, (int)random_next(&random), sizeof(open.cookie));
		raw_say_open(peer, &open, PACKET_OPEN);
		flood->sent++;
	}
	free(peer);
	return NULL;
}

static void test_f30_flood_of_opens(void **state)
{
	struct world *world = *state;
	struct scene *scene = scene_open(world, "", 1000);
	struct flood flood = {.side = scene->where, .least = sanitized() ? 20000 : 100000};
	uint64_t before = resident_bytes(0), start = now_ms(), answers = 0;
	uint8_t bytes[HUB_FRAME_MOST];
	struct way up = {0}, down = {0};
	struct frame frame;
	size_t length;

	assert_int_equal(pthread_create(&flood.thread, NULL, flood_run, &flood), 0);
	/* A good one connects all the same, and those that are connected notice nothing. */
	connect_sides(scene->pair.b, scene->pair.a, &up, &down);
	check_way_alive(&up);
	check_alive(&scene->pair);
	__atomic_store_n(&flood.stop, true, __ATOMIC_RELAXED);
	assert_int_equal(pthread_join(flood.thread, NULL), 0);
	while ((length = hub_receive(bytes, 100))) {
		frame_read(bytes, length, unchecked, &frame, NULL);
		answers += frame.kind == FRAME_IS_UDP;
		if (frame.kind == FRAME_IS_UDP)
			assert_true(frame.length <= PACKET_OPEN);
	}
	printf("%lu OPENs, %llu answers, %llu ms\n", flood.sent, (unsigned long long)answers,
	       (unsigned long long)(now_ms() - start));
	assert_true(answers > 0);
	assert_true(answers <= ((now_ms() - start) / 10 + 2) * ANSWERS);
	if (!sanitized())
		assert_true(resident_bytes(0) < before + (8u << 20));
	check_alive(&scene->pair);
	assert_int_equal(scene->side->accepted_count, 2);
}

/* One address asks all the time: the others are answered. One of them may share its limit. */
static void test_f30_flood_from_one_address(void **state)
{
	enum { ROUNDS = 10, OPENS = 2 * ANSWERS, QUIET = 3 };
	struct scene *scene = scene_open(*state, "", 1000);
	struct raw_dpdk *loud = scene->peer, *quiet = world_memory(*state, QUIET * sizeof(*quiet));
	unsigned missed[QUIET] = {0}, disturbed = 0;
	uint8_t payload[PACKET_PAYLOAD_MOST];
	struct packet_open open;
	size_t length;

	raw_start(loud, &scene->where);
	for (unsigned i = 0; i < QUIET; i++)
		raw_start(&quiet[i], &scene->where);
	for (unsigned round = 0; round < ROUNDS * QUIET; round++) {
		struct raw_dpdk *peer = &quiet[round % QUIET];

		open = raw_open_of(loud);
		for (unsigned i = 0; i < OPENS; i++)
			raw_say_open(loud, &open, PACKET_OPEN);
		open = raw_open_of(peer);
		raw_say_open(peer, &open, PACKET_OPEN);
		missed[round % QUIET] +=
			!raw_answer(peer, PACKET_TYPE_COOKIE, payload, &length, 10 * SILENCE_MS);
		hub_forget();
	}
	for (unsigned i = 0; i < QUIET; i++)
		disturbed += missed[i] > 0;
	printf("missed %u, %u, %u of %d\n", missed[0], missed[1], missed[2], ROUNDS);
	assert_in_range(disturbed, 0, 1);
	check_alive(&scene->pair);
}

/* Strangers whose streams lack the first byte: what is kept of them has an end. */
static void test_f30_streams_with_a_hole(void **state)
{
	enum { STRANGERS = 64, PIECES = 1450, PIECE = 1400, STEP = 600 };
	struct world *world = *state;
	struct scene *scene = scene_open(world, "", 1000);
	uint64_t before = resident_bytes(0);
	uint8_t bytes[PIECE] = {0};

	for (unsigned i = 0; i < STRANGERS / (sanitized() ? 16 : 1); i++) {
		raw_start(scene->peer, &scene->where);
		raw_connect_link(scene->peer);
		for (uint64_t piece = 0; piece < PIECES; piece++)
			raw_stream_at(scene->peer, 1 + piece * STEP, bytes, sizeof(bytes));
		hub_forget();
	}
	check_alive(&scene->pair);
	if (!sanitized())
		assert_true(resident_bytes(0) < before + (88u << 20));
}

/* Packets for names that nobody has: RESET says so, but not to everybody. */
static void test_f30_unknown_names(void **state)
{
	static const enum packet_type asked[] = {PACKET_TYPE_STREAM, PACKET_TYPE_DATA,
						 PACKET_TYPE_ACK, PACKET_TYPE_CLOSE};
	struct scene *scene = scene_open(*state, "", 1000);
	struct raw_dpdk *peer = scene->peer;
	uint8_t payload[PACKET_PAYLOAD_MOST], other[200] = {0};
	uint64_t name, start, answers = 0;
	struct packet_head head = {.number = 1, .connection = UINT64_C(0x1234567890abcdef)};
	size_t length;

	raw_start(peer, &scene->where);
	for (size_t i = 0; i < sizeof(asked) / sizeof(asked[0]); i++) {
		head.type = (uint8_t)asked[i];
		packet_write_head(other, &head);
		raw_udp(peer, other, 100);
		assert_true(raw_answer(peer, PACKET_TYPE_RESET, payload, &length, RAW_PATIENCE_MS));
		assert_int_equal(length, PACKET_RESET);
		assert_true(packet_read_reset(payload, length, &name));
		assert_int_equal(name, head.connection);
	}
	head.type = PACKET_TYPE_PING;
	packet_write_head(other, &head);
	raw_udp(peer, other, PACKET_HEAD);
	no_answer(peer, "a packet that is shorter than its answer");
	head.type = PACKET_TYPE_CLOSED;
	packet_write_head(other, &head);
	raw_udp(peer, other, 100);
	head.type = PACKET_TYPE_RESET;
	packet_write_head(other, &head);
	raw_udp(peer, other, 100);
	head.type = PACKET_TYPE_OPENED;
	packet_write_head(other, &head);
	raw_udp(peer, other, 100);
	no_answer(peer, "what must not be answered");
	head.type = PACKET_TYPE_DATA;
	packet_write_head(other, &head);
	start = now_ms();
	for (unsigned i = 0; i < 20000; i++) {
		raw_udp(peer, other, 100);
		while (raw_take(peer, payload, 0))
			answers++;
	}
	while (raw_take(peer, payload, 50))
		answers++;
	assert_true(answers > 0);
	assert_true(answers <= ((now_ms() - start) / 10 + 2) * ANSWERS);
	check_alive(&scene->pair);
}

/* ---- RESET ------------------------------------------------------------- */

static void test_f30_reset(void **state)
{
	struct scene *scene = scene_open(*state, "", 10000);
	uint8_t bytes[PACKET_RESET];
	struct raw_dpdk other;

	scene_next(scene);
	raw_start(&other, &scene->where);
	raw_udp(&other, bytes, packet_write_reset(bytes, scene->peer->name));
	raw_udp(scene->peer, bytes, packet_write_reset(bytes, scene->peer->name + 1));
	raw_udp(scene->peer, bytes, packet_write_reset(bytes, scene->peer->side_name));
	raw_udp(scene->peer, bytes, packet_write_reset(bytes, 0));
	scene_receive(scene, 3);
	raw_udp(scene->peer, bytes, packet_write_reset(bytes, scene->peer->name));
	scene_caught(scene, -ECONNRESET, "RESET with the right name");
}

/* ---- Too many ---------------------------------------------------------- */

static void test_f30_too_many_connections(void **state)
{
	struct world *world = *state;
	struct scene *scene = scene_open(world, ",connections=4", 1000);
	struct raw_dpdk *peers = world_memory(world, 4 * sizeof(*peers));
	struct packet_open open;
	uint8_t payload[PACKET_PAYLOAD_MOST];
	struct packet_answer answer;
	size_t length;

	/* Two places are left by the good one, or three. */
	for (unsigned i = 0; i < 3; i++) {
		raw_start(&peers[i], &scene->where);
		raw_connect_link(&peers[i]);
	}
	raw_start(&peers[3], &scene->where);
	open = raw_open_of(&peers[3]);
	raw_cookie(&peers[3], open.cookie);
	raw_say_open(&peers[3], &open, RAW_PAYLOAD);
	assert_true(raw_answer(&peers[3], PACKET_TYPE_REFUSED, payload, &length, RAW_PATIENCE_MS));
	assert_true(packet_read_refused(payload, length, &answer));
	assert_int_equal(answer.reason, PACKET_REASON_FULL);
	check_alive(&scene->pair);
}

int main(int count, char **words)
{
	static const struct CMUnitTest tests[] = {
		WORLD_TEST(test_arp),
		WORLD_TEST(test_echo),
		WORLD_TEST(test_f30_open_that_is_none),
		WORLD_TEST(test_f30_frames_that_are_none),
		WORLD_TEST(test_f30_cookies),
		WORLD_TEST(test_f30_flood_of_opens),
		WORLD_TEST(test_f30_flood_from_one_address),
		WORLD_TEST(test_f30_streams_with_a_hole),
		WORLD_TEST(test_f30_unknown_names),
		WORLD_TEST(test_f30_reset),
		WORLD_TEST(test_f30_too_many_connections),
	};

	return scene_main(tests, sizeof(tests) / sizeof(tests[0]), count, words);
}
