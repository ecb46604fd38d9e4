/* SPDX-License-Identifier: Apache-2.0 */
/*
 * F30: listeners that are none, or lie. Whoever connects to one is told so, and nothing else of it
 * suffers.
 *
 *   test_dpdk_listeners [TEST...]
 */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>

#include "scene.h"

/* A good pair, of which b connects to a raw listener, too. */
struct place {
	struct world *world;
	struct pair pair;
	struct raw_dpdk *peer;
	struct entry *connected;
};

static struct place *place_open(struct world *world)
{
	struct place *place = world_memory(world, sizeof(*place));

	place->world = world;
	place->peer = world_memory(world, sizeof(*place->peer));
	pair_open(world, "progress=thread,peer_ms=5000", &place->pair);
	return place;
}

/* Connect to a new listener; its OPEN has come. */
static struct packet_open place_next(struct place *place)
{
	struct raw_dpdk *peer = place->peer;
	struct raw_side side = raw_find(haul_listener_address(place->pair.a->listener));
	uint8_t bytes[HUB_FRAME_MOST];
	uint64_t until = now_ms() + RAW_PATIENCE_MS;
	struct packet_open open;

	raw_start(peer, &side);
	place->connected = post_connect(place->pair.b, world_text(place->world, "10.77.%u.%u:%u",
								  peer->ip >> 8 & 255,
								  peer->ip & 255, peer->port));
	while (now_ms() < until) {
		size_t length = hub_receive(bytes, 100);
		struct frame frame;

		frame_read(bytes, length, (struct frame_checked){0}, &frame, NULL);
		if (frame.kind != FRAME_IS_UDP || frame.target != peer->ip ||
		    frame.target_port != peer->port ||
		    !packet_read_open(frame.payload, frame.length, &open))
			continue;
		peer->side.ip = frame.source;
		peer->side.port = frame.source_port;
		memcpy(peer->side.mac, frame.source_mac, FRAME_MAC);
		peer->name = UINT64_C(0x6060606060606060);
		peer->side_name = open.name;
		assert_int_equal(open.version, PACKET_VERSION);
		return open;
	}
	fail_msg("no OPEN came");
	return open;
}

static void say_cookie(struct place *place, uint8_t version, uint16_t payload)
{
	const struct packet_answer answer = {
		.version = version, .payload = payload, .cookie = {1, 2, 3}};
	uint8_t bytes[PACKET_COOKIE];

	raw_udp(place->peer, bytes, packet_write_cookie(bytes, place->peer->side_name, &answer));
}

static void say_refused(struct place *place, uint16_t reason)
{
	const struct packet_answer answer = {.version = PACKET_VERSION, .reason = reason};
	uint8_t bytes[PACKET_REFUSED];

	raw_udp(place->peer, bytes, packet_write_refused(bytes, place->peer->side_name, &answer));
}

static void say_opened(struct place *place, const struct packet_open *open)
{
	uint8_t bytes[RAW_PAYLOAD] = {0};

	packet_write_opened(bytes, place->peer->side_name, open);
	raw_udp(place->peer, bytes, sizeof(bytes));
}

static struct packet_open good_opened(const struct place *place)
{
	return (struct packet_open){.name = place->peer->name,
				    .incarnation = 5,
				    .window = 1000,
				    .payload = RAW_PAYLOAD,
				    .version = PACKET_VERSION};
}

/* The next OPEN has a cookie. */
static void expect_proof(struct place *place, size_t length)
{
	uint8_t payload[PACKET_PAYLOAD_MOST];
	struct packet_open open;
	size_t got;

	for (unsigned i = 0; i < 20; i++) {
		assert_true(
			raw_answer(place->peer, PACKET_TYPE_OPEN, payload, &got, RAW_PATIENCE_MS));
		assert_true(packet_read_open(payload, got, &open));
		if (open.cookie[0] == 0)
			continue;
		assert_int_equal(got, length);
		return;
	}
	fail_msg("no OPEN with the cookie came");
}

static void failed(struct place *place, int error, const char *what)
{
	uint64_t until = now_ms() + PATIENCE_MS;

	while (!place->connected->done)
		world_step(place->world, until, what);
	if (place->connected->result != error)
		fail_msg("%s: connect ended with %d, not with %d", what, place->connected->result,
			 error);
	check_alive(&place->pair);
}

static void test_f30_refusals(void **state)
{
	static const struct {
		uint16_t reason;
		int error;
	} cases[] = {
		{PACKET_REASON_VERSION, -EPROTO},    {PACKET_REASON_NO_LISTENER, -ECONNREFUSED},
		{PACKET_REASON_FULL, -ECONNREFUSED}, {PACKET_REASON_PAYLOAD, -ECONNREFUSED},
		{PACKET_REASON_NONE, -ECONNREFUSED}, {UINT16_MAX, -ECONNREFUSED}};
	struct place *place = place_open(*state);

	for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
		place_next(place);
		say_refused(place, cases[i].reason);
		failed(place, cases[i].error, "REFUSED");
	}
}

static void test_f30_answers_that_lie(void **state)
{
	struct place *place = place_open(*state);
	struct packet_open opened;

	place_next(place);
	say_cookie(place, PACKET_VERSION + 1, RAW_PAYLOAD);
	failed(place, -EPROTO, "a cookie of another version");
	place_next(place);
	say_cookie(place, PACKET_VERSION, PACKET_PAYLOAD_LEAST - 1);
	failed(place, -EPROTO, "a cookie with packets that are too short");
	place_next(place);
	opened = good_opened(place);
	say_opened(place, &opened);
	failed(place, -EPROTO, "OPENED before the cookie");
	for (unsigned i = 0; i < 4; i++) {
		static const char *const lies[] = {"the name 0", "another version",
						   "packets that are too short",
						   "packets longer than what was asked for"};

		place_next(place);
		say_cookie(place, PACKET_VERSION, RAW_PAYLOAD);
		expect_proof(place, RAW_PAYLOAD);
		opened = good_opened(place);
		if (i == 0)
			opened.name = 0;
		else if (i == 1)
			opened.version = 0;
		else
			opened.payload = i == 2 ? PACKET_PAYLOAD_LEAST - 1 : UINT16_MAX;
		say_opened(place, &opened);
		failed(place, -EPROTO, lies[i]);
	}
}

/* Answers of others, answers that are cut short, and cookies without end change nothing. */
static void test_f30_answers_of_strangers(void **state)
{
	struct place *place = place_open(*state);
	struct packet_open opened;
	uint8_t bytes[PACKET_COOKIE], message[HAUL_CONTROL_MAX];
	const struct packet_answer refused = {.version = PACKET_VERSION, .reason = 2};
	struct raw_dpdk *peer = place->peer;
	uint32_t ip;

	place_next(place);
	ip = peer->ip;
	peer->ip = ip + 1;
	say_refused(place, PACKET_REASON_NO_LISTENER);
	peer->ip = ip;
	peer->port++;
	say_refused(place, PACKET_REASON_NO_LISTENER);
	peer->port--;
	peer->side_name ^= 1 << 21;
	say_refused(place, PACKET_REASON_NO_LISTENER);
	peer->side_name ^= 1 << 21;
	packet_write_refused(bytes, peer->side_name, &refused);
	for (size_t length = 0; length < PACKET_REFUSED; length++)
		raw_udp(peer, bytes, length);
	bytes[16] ^= 1;
	raw_udp(peer, bytes, PACKET_REFUSED);
	for (unsigned i = 0; i < 500; i++)
		say_cookie(place, PACKET_VERSION, RAW_PAYLOAD);
	expect_proof(place, RAW_PAYLOAD);
	opened = good_opened(place);
	say_opened(place, &opened);
	/* Twice, and another one: the first counts. */
	say_opened(place, &opened);
	opened.name = 99;
	say_opened(place, &opened);
	say_refused(place, PACKET_REASON_NO_LISTENER);
	raw_dpdk_expect(peer, WIRE_HELLO, message);
	assert_int_equal(message[1], WIRE_CONNECTOR);
	message[1] = WIRE_ACCEPTOR;
	raw_dpdk_message(peer, message, WIRE_HELLO_SIZE);
	wait_result(place->connected, 0);
	check_alive(&place->pair);
}

/* ICMP says that the port is closed: believed when it quotes what was sent, and only then. */
static void say_unreachable(struct place *place, uint16_t port)
{
	struct raw_dpdk *peer = place->peer;
	uint8_t sent[HUB_FRAME_MOST], bytes[HUB_FRAME_MOST], payload[8] = {0};
	struct frame_ends ends = {.source = peer->side.ip,
				  .target = peer->ip,
				  .source_port = port,
				  .target_port = peer->port,
				  .ttl = 64};
	struct frame_template template;
	struct frame answer = {.source_mac = peer->side.mac,
			       .source = peer->side.ip,
			       .target = peer->ip,
			       .payload = sent,
			       .length = 8 + FRAME_IP_HEADERS};
	uint8_t frame[HUB_FRAME_MOST], mac[FRAME_MAC], *icmp;
	uint64_t sum = 0;
	uint16_t check;
	size_t length;

	/* What it quotes, behind 8 bytes of its own. */
	frame_template_make(&template, &ends);
	frame_write(&template, frame, sizeof(payload), &sum);
	memset(sent, 0, 8);
	memcpy(sent + 8, frame + FRAME_ETHERNET, FRAME_IP_HEADERS);
	hub_mac(peer->ip, mac);
	length = frame_write_echo(bytes, sizeof(bytes), mac, &answer);
	icmp = bytes + FRAME_ETHERNET + FRAME_IPV4;
	icmp[0] = 3;
	icmp[1] = 3;
	icmp[2] = icmp[3] = 0;
	check = frame_fold(frame_sum(icmp, answer.length, 0));
	icmp[2] = (uint8_t)(check >> 8);
	icmp[3] = (uint8_t)check;
	hub_send(bytes, length);
}

static void test_f30_unreachable(void **state)
{
	struct place *place = place_open(*state);

	place_next(place);
	say_unreachable(place, place->peer->side.port ^ 1);
	world_run_for(place->world, 50);
	assert_false(place->connected->done);
	say_unreachable(place, place->peer->side.port);
	failed(place, -ECONNREFUSED, "ICMP: the port is closed");
	/* When somebody has answered, it is not. */
	place_next(place);
	say_cookie(place, PACKET_VERSION, RAW_PAYLOAD);
	expect_proof(place, RAW_PAYLOAD);
	say_unreachable(place, place->peer->side.port);
	world_run_for(place->world, 50);
	assert_false(place->connected->done);
	say_refused(place, PACKET_REASON_FULL);
	failed(place, -ECONNREFUSED, "REFUSED after the cookie");
}

/* The path carries no long packets: the connection is made of shorter ones. */
static void test_long_packets_get_lost(void **state)
{
	struct place *place = place_open(*state);
	uint8_t payload[PACKET_PAYLOAD_MOST], message[HAUL_CONTROL_MAX];
	struct packet_open opened;
	size_t length;

	place_next(place);
	say_cookie(place, PACKET_VERSION, 8000);
	do {
		assert_true(raw_answer(place->peer, PACKET_TYPE_OPEN, payload, &length,
				       RAW_PATIENCE_MS));
	} while (length > RAW_PAYLOAD || length == PACKET_OPEN);
	assert_int_equal(length, RAW_PAYLOAD);
	opened = good_opened(place);
	say_opened(place, &opened);
	raw_dpdk_expect(place->peer, WIRE_HELLO, message);
	message[1] = WIRE_ACCEPTOR;
	raw_dpdk_message(place->peer, message, WIRE_HELLO_SIZE);
	wait_result(place->connected, 0);
	check_alive(&place->pair);
}

int main(int count, char **words)
{
	static const struct CMUnitTest tests[] = {
		WORLD_TEST(test_f30_refusals),
		WORLD_TEST(test_f30_answers_that_lie),
		WORLD_TEST(test_f30_answers_of_strangers),
		WORLD_TEST(test_f30_unreachable),
		WORLD_TEST(test_long_packets_get_lost),
	};

	return scene_main(tests, sizeof(tests) / sizeof(tests[0]), count, words);
}
