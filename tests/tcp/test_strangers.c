/* SPDX-License-Identifier: Apache-2.0 */
/* F30: whoever else comes to the port. They are dropped in time, and nobody notices. */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/socket.h>
#include <unistd.h>

#include "load.h"
#include "rawpeer.h"

/* handshake_ms of these tests, and how late a stranger may still be there. */
#define HANDSHAKE_MS 400
#define LATE_MS 3000

/* A pair that works, and that goes on working whatever happens at the port. */
struct scene {
	struct pair pair;
	struct load *first, *second;
	const char *address;
	int descriptors;
};

static void scene_open(struct world *world, struct scene *scene, unsigned handshake_ms)
{
	pair_open(world, world_text(world, "progress=thread,handshake_ms=%u", handshake_ms),
		  &scene->pair);
	scene->first = load_start(scene->pair.a, scene->pair.down.out, true, 30000, 2);
	scene->second = load_start(scene->pair.b, scene->pair.up.out, false, 30000, 2);
	scene->address = haul_listener_address(scene->pair.a->listener);
	world_run_for(world, 50);
	scene->descriptors = descriptors_open();
}

/* The load went on, no stranger was ever reported, and all their descriptors are given back. */
static void scene_check(struct world *world, struct scene *scene)
{
	unsigned long sum = scene->first->sent + scene->first->received;
	uint64_t until = now_ms() + PATIENCE_MS;

	while (scene->first->sent + scene->first->received < sum + 100)
		world_step(world, until, "the load to go on");
	while (descriptors_open() > scene->descriptors) {
		if (now_ms() >= until)
			fail_msg("%d descriptors are left",
				 descriptors_open() - scene->descriptors);
		world_run_for(world, 10);
	}
	assert_int_equal(scene->pair.a->accepted_count, 1);
	assert_int_equal(scene->pair.a->lost_count, 0);
	assert_int_equal(scene->first->failed + scene->second->failed, 0);
	assert_int_equal(scene->first->wrong + scene->second->wrong, 0);
	scene->first->stopping = scene->second->stopping = true;
}

/* Say something; the library closes the connection within `ms`, whether or not we do. */
static void say(const struct scene *scene, const void *bytes, size_t length, unsigned ms)
{
	int fd = raw_connect(scene->address);

	raw_send(fd, bytes, length);
	if (!raw_closed_within(fd, ms))
		fail_msg("a stranger who said %zu bytes is still there after %u ms", length, ms);
	close(fd);
}

static void test_f30_strangers_say_0_7_65536_bytes(void **state)
{
	struct world *world = *state;
	uint64_t random = random_seed();
	struct scene scene;
	char *bytes = world_memory(world, 65536);

	scene_open(world, &scene, HANDSHAKE_MS);
	for (int i = 0; i < 65536; i++)
		bytes[i] = (char)random_next(&random);
	say(&scene, bytes, 0, HANDSHAKE_MS + LATE_MS);
	say(&scene, bytes, 7, HANDSHAKE_MS + LATE_MS);
	say(&scene, bytes, 65536, HANDSHAKE_MS + LATE_MS);
	memset(bytes, 0, 65536);
	say(&scene, bytes, 65536, HANDSHAKE_MS + LATE_MS);
	scene_check(world, &scene);
}

/* What others than tensorhaul say first is recognised at once, without waiting for the time. */
static void test_f30_strangers_with_other_protocols(void **state)
{
	static const char *const words[] = {
		"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n",
		"SSH-2.0-OpenSSH_9.2\r\n",
		"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03",
		"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
		"HATX",
	};
	struct world *world = *state;
	struct scene scene;

	scene_open(world, &scene, 60000);
	for (size_t i = 0; i < sizeof(words) / sizeof(words[0]); i++)
		say(&scene, words[i], strlen(words[i]), LATE_MS);
	scene_check(world, &scene);
}

/* Connect and leave, in order and with a reset, as port scanners do. */
static void test_f30_port_scan(void **state)
{
	struct world *world = *state;
	struct linger reset = {.l_onoff = 1};
	struct scene scene;

	scene_open(world, &scene, HANDSHAKE_MS);
	for (unsigned i = 0; i < rounds(300, 3000); i++) {
		int fd = raw_connect(scene.address);

		if (i % 2)
			setsockopt(fd, SOL_SOCKET, SO_LINGER, &reset, sizeof(reset));
		if (i % 3 == 0)
			raw_send(fd, "HATC\1\1", i % 7);
		close(fd);
		if (i % 50 == 0)
			world_run_for(world, 1);
	}
	scene_check(world, &scene);
}

/* One byte now and then: each byte doesn't buy more time. */
static void test_f30_slow_preamble(void **state)
{
	struct world *world = *state;
	struct preamble preamble = {.version = TCP_VERSION, .kind = PREAMBLE_OPEN};
	uint8_t bytes[PREAMBLE_SIZE];
	uint64_t started;
	struct scene scene;
	unsigned said = 0;
	int fd;

	scene_open(world, &scene, HANDSHAKE_MS);
	preamble_encode(bytes, &preamble);
	started = now_ms();
	fd = raw_connect(scene.address);
	while (said < PREAMBLE_SIZE && raw_send(fd, bytes + said, 1)) {
		said++;
		if (raw_closed_within(fd, HANDSHAKE_MS / 8))
			break;
	}
	assert_in_range(now_ms() - started, HANDSHAKE_MS / 2, HANDSHAKE_MS + LATE_MS);
	assert_in_range(said, 2, PREAMBLE_SIZE - 1);
	close(fd);
	scene_check(world, &scene);
}

/* A session is opened, but HELLO never comes, or very slowly. */
static void test_f30_half_a_handshake(void **state)
{
	struct world *world = *state;
	uint8_t message[HAUL_CONTROL_MAX];
	struct raw_peer peer;
	struct scene scene;

	scene_open(world, &scene, HANDSHAKE_MS);
	for (size_t length = 0; length < WIRE_HELLO_SIZE; length += 21) {
		uint8_t record[RECORD_SIZE] = {WIRE_HELLO_SIZE, 0, 0, 0, RECORD_MESSAGE};

		raw_open_session(&peer, scene.address);
		raw_hello(message, WIRE_VERSION, 0, 1);
		if (length) {
			raw_send(peer.control, record, sizeof(record));
			raw_send(peer.control, message, length);
		}
		assert_true(raw_closed_within(peer.control, HANDSHAKE_MS + LATE_MS));
		raw_close(&peer);
	}
	scene_check(world, &scene);
}

/* They all sit there at once, and say nothing: a friend still gets in meanwhile. */
static void test_f30_200_idle_connections(void **state)
{
	enum { COUNT = 200 };
	struct world *world = *state;
	struct scene scene;
	struct side *friend;
	struct way up, down;
	int fds[COUNT];

	scene_open(world, &scene, HANDSHAKE_MS);
	for (int i = 0; i < COUNT; i++)
		fds[i] = raw_connect(scene.address);
	friend = side_open(world, "progress=thread");
	connect_sides(friend, scene.pair.a, &up, &down);
	check_way_alive(&up);
	check_way_alive(&down);
	for (int i = 0; i < COUNT; i++) {
		assert_true(raw_closed_within(fds[i], HANDSHAKE_MS + LATE_MS));
		close(fds[i]);
	}
	haul_disconnect(up.out);
	haul_disconnect(up.in);
	side_close(friend);
	scene.pair.a->accepted_count--;
	scene_check(world, &scene);
}

/* Even when there are more of them than the library keeps. */
static void test_f30_more_strangers_than_are_kept(void **state)
{
	enum { COUNT = 700 };
	struct world *world = *state;
	struct scene scene;
	struct side *friend;
	struct way up, down;
	int *fds = world_memory(world, COUNT * sizeof(*fds));

	scene_open(world, &scene, 60000);
	for (int i = 0; i < COUNT; i++)
		fds[i] = raw_connect(scene.address);
	friend = side_open(world, "progress=thread");
	connect_sides(friend, scene.pair.a, &up, &down);
	check_way_alive(&up);
	for (int i = 0; i < COUNT; i++)
		close(fds[i]);
	haul_disconnect(up.out);
	haul_disconnect(up.in);
	side_close(friend);
	scene.pair.a->accepted_count--;
	scene_check(world, &scene);
}

/* ---- Those who speak the language -------------------------------------- */

static void test_wrong_framing_version(void **state)
{
	struct world *world = *state;
	struct preamble preamble = {.version = TCP_VERSION + 1, .kind = PREAMBLE_OPEN};
	uint8_t bytes[PREAMBLE_SIZE];
	struct scene scene;
	int fd;

	scene_open(world, &scene, HANDSHAKE_MS);
	fd = raw_connect(scene.address);
	preamble_encode(bytes, &preamble);
	assert_true(raw_send(fd, bytes, sizeof(bytes)));
	assert_true(raw_recv(fd, bytes, sizeof(bytes)));
	assert_int_equal(preamble_decode(bytes, &preamble), 0);
	assert_int_equal(preamble.status, PREAMBLE_VERSION);
	assert_int_equal(preamble.version, TCP_VERSION);
	assert_true(raw_closed_within(fd, LATE_MS));
	close(fd);
	scene_check(world, &scene);
}

/* HELLO of another version, magic, role, or with no slots: the first is told why. */
static void test_wrong_hello(void **state)
{
	struct world *world = *state;
	uint8_t message[HAUL_CONTROL_MAX], answer[HAUL_CONTROL_MAX];
	struct raw_peer peer;
	struct scene scene;

	scene_open(world, &scene, HANDSHAKE_MS);
	for (int wrong = 0; wrong < 6; wrong++) {
		size_t length = raw_hello(message, WIRE_VERSION, 0, 100);

		if (wrong == 0)
			put16(message + 2, WIRE_VERSION + 1);
		else if (wrong == 1)
			message[4] ^= 1;
		else if (wrong == 2)
			message[1] = WIRE_ACCEPTOR;
		else if (wrong == 3)
			put32(message + 24, 0);
		else if (wrong == 4)
			put64(message + 8, UINT64_C(1) << 20); /* a feature that nobody knows */
		else
			length--;
		raw_open_session(&peer, scene.address);
		raw_message(&peer, message, length);
		if (wrong == 0) {
			raw_expect(&peer, WIRE_REJECT, answer, NULL);
			assert_int_equal(get16(answer + 2), WIRE_REASON_VERSION);
		} else if (wrong == 4) {
			raw_expect(&peer, WIRE_REJECT, answer, NULL);
			assert_int_equal(get16(answer + 2), WIRE_REASON_FEATURES);
		}
		assert_true(raw_closed_within(peer.control, LATE_MS));
		raw_close(&peer);
	}
	scene_check(world, &scene);
}

/* Messages before the handshake is over are none: nothing is remembered for such a peer. */
static void test_messages_before_hello(void **state)
{
	struct world *world = *state;
	uint8_t message[HAUL_CONTROL_MAX];
	struct raw_peer peer;
	struct scene scene;

	scene_open(world, &scene, HANDSHAKE_MS);
	for (int type = WIRE_PROOF; type <= WIRE_BYE; type++) {
		size_t length = raw_slot(message, type, 0);

		if (type == WIRE_READY)
			length = raw_ready(message, 0, 0, 100, "k");
		else if (type == WIRE_PUSH || type == WIRE_REFUSED)
			length = raw_push(message, type, 0, 100);
		else if (type == WIRE_BYE || type == WIRE_REJECT)
			length = 8;
		raw_open_session(&peer, scene.address);
		raw_message(&peer, message, length);
		assert_true(raw_closed_within(peer.control, LATE_MS));
		raw_close(&peer);
	}
	scene_check(world, &scene);
}

/* Sockets for sessions that are not there, or that belong to somebody else. */
static void test_joining_an_unknown_session(void **state)
{
	struct world *world = *state;
	struct raw_peer nobody = {.session = {1, 2, 3}};
	struct scene scene;

	scene_open(world, &scene, HANDSHAKE_MS);
	for (enum preamble_kind kind = PREAMBLE_CONTROL; kind <= PREAMBLE_STREAM; kind++) {
		int fd = raw_connect(scene.address);

		assert_int_equal(raw_greet(fd, kind, &nobody, 1).status, PREAMBLE_UNKNOWN);
		assert_true(raw_closed_within(fd, LATE_MS));
		close(fd);
	}
	scene_check(world, &scene);
}

static void test_unknown_kind_of_preamble(void **state)
{
	struct world *world = *state;
	struct preamble preamble = {.version = TCP_VERSION};
	uint8_t bytes[PREAMBLE_SIZE];
	struct scene scene;

	scene_open(world, &scene, HANDSHAKE_MS);
	for (unsigned kind = 0; kind < 256; kind += kind == 0 ? 5 : 50) {
		preamble.kind = (uint8_t)kind;
		preamble_encode(bytes, &preamble);
		say(&scene, bytes, sizeof(bytes), LATE_MS);
	}
	scene_check(world, &scene);
}

/* More streams than a session may have. */
static void test_too_many_streams(void **state)
{
	enum { COUNT = 100 };
	struct world *world = *state;
	struct side *side = side_open(world, "progress=thread");
	struct raw_peer peer;
	int fds[COUNT], refused = 0;

	side_listen(side);
	raw_open(&peer, side, 0);
	for (int i = 0; i < COUNT; i++) {
		fds[i] = raw_connect(haul_listener_address(side->listener));
		refused += raw_greet(fds[i], PREAMBLE_STREAM, &peer, (uint32_t)i + 2).status ==
			   PREAMBLE_REFUSED;
	}
	assert_in_range(refused, COUNT - 64, COUNT - 1);
	for (int i = 0; i < COUNT; i++)
		close(fds[i]);
	raw_close(&peer);
	wait_lost(side, 1);
}

static const struct CMUnitTest tests[] = {
	WORLD_TEST(test_f30_strangers_say_0_7_65536_bytes),
	WORLD_TEST(test_f30_strangers_with_other_protocols),
	WORLD_TEST(test_f30_port_scan),
	WORLD_TEST(test_f30_slow_preamble),
	WORLD_TEST(test_f30_half_a_handshake),
	WORLD_TEST(test_f30_200_idle_connections),
	WORLD_TEST(test_f30_more_strangers_than_are_kept),
	WORLD_TEST(test_wrong_framing_version),
	WORLD_TEST(test_wrong_hello),
	WORLD_TEST(test_messages_before_hello),
	WORLD_TEST(test_joining_an_unknown_session),
	WORLD_TEST(test_unknown_kind_of_preamble),
	WORLD_TEST(test_too_many_streams),
};

int main(int count, char **arguments)
{
	return suite_main("tcp", tests, sizeof(tests) / sizeof(tests[0]), count, arguments);
}
