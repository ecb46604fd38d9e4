/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What a peer may do with the sockets of its session, and what it may not: go on over a new control
 * stream, give streams up, open ever more of them, come late, or prove what it heard from others.
 */
#include <errno.h>
#include <openssl/evp.h>
#include <openssl/hmac.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/socket.h>
#include <unistd.h>

#include "rawpeer.h"

/* More memory than this is never needed for what one of these peers does. */
#define MEMORY_LIMIT (UINT64_C(16) << 20)

struct scene {
	struct world *world;
	struct pair pair; /* of good peers */
	struct side *side;
	struct raw_peer peer;
};

static void scene_open(struct world *world, struct scene *scene)
{
	memset(scene, 0, sizeof(*scene));
	scene->world = world;
	pair_open(world, "progress=thread", &scene->pair);
	scene->side = scene->pair.a;
	raw_open(&scene->peer, scene->side, 0);
}

static struct way to_peer(const struct scene *scene)
{
	return (struct way){.from = scene->side,
			    .to = scene->side,
			    .out = scene->peer.endpoint,
			    .in = scene->peer.endpoint};
}

/* The raw peer is alive: a tensor goes to it. */
static void check_peer(struct scene *scene, uint64_t slot)
{
	struct block *source = block_new(scene->world, 100);
	uint8_t message[HAUL_CONTROL_MAX], bytes[65536];
	struct way way = to_peer(scene);
	struct entry *sent;

	block_fill(source, 5);
	sent = post_send(&way, haul_key("check"), &source->tensor);
	raw_message(&scene->peer, message, raw_ready(message, 0, slot, 100, "check"));
	raw_expect(&scene->peer, WIRE_PUSH, message, bytes);
	assert_memory_equal(bytes, source->data, 100);
	raw_message(&scene->peer, message, raw_slot(message, WIRE_PLACED, slot));
	wait_result(sent, 0);
}

static void expect_lost(struct scene *scene, int result)
{
	wait_lost(scene->side, 1);
	if (scene->side->lost[0].result != result)
		fail_msg("lost with %s instead of %s", haul_strerror(scene->side->lost[0].result),
			 haul_strerror(result));
	check_alive(&scene->pair);
	haul_disconnect(scene->peer.endpoint);
	raw_close(&scene->peer);
}

static void scene_end(struct scene *scene)
{
	check_alive(&scene->pair);
	raw_close(&scene->peer);
	wait_lost(scene->side, 1);
	haul_disconnect(scene->peer.endpoint);
}

/* Read one record of any type; its body's length. */
static size_t next_record(struct raw_peer *peer, uint8_t *type, uint8_t *body, size_t room)
{
	uint8_t head[RECORD_SIZE];
	size_t length;

	assert_true(raw_recv(peer->control, head, sizeof(head)));
	length = get32(head);
	*type = head[4];
	assert_true(length <= room);
	assert_true(raw_recv(peer->control, body, length));
	return length;
}

/* Skip to the next record of this type. */
static size_t expect_record(struct raw_peer *peer, enum record_type wanted, uint8_t *body,
			    size_t room)
{
	size_t length;
	uint8_t type;

	do {
		length = next_record(peer, &type, body, room);
	} while (type != wanted);
	return length;
}

static void say_stream(struct scene *scene, enum record_type type, uint32_t name, uint32_t final,
		       uint64_t chunks)
{
	uint8_t body[16];

	put32(body, name);
	put32(body + 4, final);
	put64(body + 8, chunks);
	raw_record(&scene->peer, type, 0, body, type == RECORD_STREAM_TAKEN ? 16 : 8);
}

/* ---- The control stream goes on ---------------------------------------- */

/* A new control socket that says how much was taken so far; gives the other side's position. */
static uint64_t resume(struct scene *scene, uint64_t taken)
{
	struct preamble preamble = {
		.version = TCP_VERSION, .kind = PREAMBLE_CONTROL, .taken = taken};
	uint8_t bytes[PREAMBLE_SIZE];
	int fd = raw_connect(haul_listener_address(scene->side->listener));

	memcpy(preamble.session, scene->peer.session, SESSION_SIZE);
	preamble_encode(bytes, &preamble);
	assert_true(raw_send(fd, bytes, sizeof(bytes)));
	assert_true(raw_recv(fd, bytes, sizeof(bytes)));
	assert_int_equal(preamble_decode(bytes, &preamble), 0);
	assert_int_equal(preamble.status, PREAMBLE_WELCOME);
	close(scene->peer.control);
	scene->peer.control = fd;
	return preamble.taken;
}

/* All that was sent comes again from the byte that is asked for, and all that was said was taken.
 */
static void test_control_goes_on(void **state)
{
	uint8_t first[RECORD_SIZE + WIRE_HELLO_SIZE], again[sizeof(first)];
	const uint64_t said = RECORD_SIZE + WIRE_HELLO_SIZE;
	struct scene scene;

	scene_open(*state, &scene);
	assert_int_equal(resume(&scene, 0), said);
	assert_true(raw_recv(scene.peer.control, first, sizeof(first)));
	assert_int_equal(first[RECORD_SIZE], WIRE_HELLO);
	for (uint64_t taken = 0; taken <= sizeof(first); taken += sizeof(first) / 3) {
		assert_int_equal(resume(&scene, taken), said);
		if (taken == sizeof(first))
			break;
		assert_true(raw_recv(scene.peer.control, again, sizeof(first) - taken));
		assert_memory_equal(again, first + taken, sizeof(first) - taken);
	}
	check_peer(&scene, 0);
	scene_end(&scene);
}

/*
 * TAKEN was on its way when the socket broke: it comes again over the next one, whose preamble has
 * said more meanwhile. That is no lie.
 */
static void test_taken_that_comes_late(void **state)
{
	struct scene scene;
	uint8_t body[8];

	scene_open(*state, &scene);
	resume(&scene, RECORD_SIZE + WIRE_HELLO_SIZE);
	put64(body, RECORD_SIZE);
	raw_record(&scene.peer, RECORD_TAKEN, 0, body, sizeof(body));
	check_peer(&scene, 0);
	assert_int_equal(scene.side->lost_count, 0);
	scene_end(&scene);
}

/* ---- Streams that end -------------------------------------------------- */

/* Open a stream and close it again; wait until the library says that it is gone. */
static void stream_comes_and_goes(struct scene *scene, uint32_t name)
{
	int fd = raw_connect(haul_listener_address(scene->side->listener));
	uint8_t body[65536];

	assert_int_equal(raw_greet(fd, PREAMBLE_STREAM, &scene->peer, name).status,
			 PREAMBLE_WELCOME);
	close(fd);
	expect_record(&scene->peer, RECORD_STREAM_GONE, body, sizeof(body));
	assert_int_equal(get32(body), name);
}

static void check_memory(uint64_t before)
{
	uint64_t now = resident_bytes(0);

	print_message("%lld KiB more memory\n", ((long long)now - (long long)before) / 1024);
	if (!sanitized() && now > before + MEMORY_LIMIT)
		fail_msg("%llu KiB more memory", (unsigned long long)(now - before) / 1024);
}

/*
 * A stream whose answer got lost, as docs/protocol.md says: it never arrived at the peer, who
 * answers with a final count of 0. Nothing more may be kept of it.
 */
static void test_streams_that_never_arrived(void **state)
{
	struct scene scene;
	uint64_t before;

	scene_open(*state, &scene);
	stream_comes_and_goes(&scene, 1000);
	before = resident_bytes(0);
	for (uint32_t i = 0; i < rounds(4000, 40000); i++) {
		stream_comes_and_goes(&scene, 2000 + i);
		say_stream(&scene, RECORD_STREAM_TAKEN, 2000 + i, 1, 0);
	}
	check_peer(&scene, 0);
	check_memory(before);
	scene_end(&scene);
}

/* The same by a peer who answers nothing at all: it is lost, or it costs little. */
static void test_streams_without_answers(void **state)
{
	struct scene scene;
	uint64_t before;

	scene_open(*state, &scene);
	stream_comes_and_goes(&scene, 1000);
	before = resident_bytes(0);
	for (uint32_t i = 0; i < rounds(4000, 40000) && !scene.side->lost_count; i++) {
		int fd = raw_connect(haul_listener_address(scene.side->listener));
		struct preamble answer = raw_greet(fd, PREAMBLE_STREAM, &scene.peer, 2000 + i);

		close(fd);
		side_poll(scene.side);
		if (answer.status != PREAMBLE_WELCOME)
			break;
	}
	check_memory(before);
	check_alive(&scene.pair);
	raw_close(&scene.peer);
	wait_lost(scene.side, 1);
}

/* STREAM_GONE for streams that never were, without reading an answer. */
static void test_streams_gone_without_end(void **state)
{
	struct timeval patience = {.tv_usec = 300000};
	struct scene scene;
	uint64_t before;
	uint8_t bytes[4096 * (RECORD_SIZE + 8)] = {0};
	uint64_t said = 0;

	scene_open(*state, &scene);
	before = resident_bytes(0);
	for (uint32_t i = 0; i < 4096; i++) {
		uint8_t *record = bytes + (size_t)i * (RECORD_SIZE + 8);

		put32(record, 8);
		record[4] = RECORD_STREAM_GONE;
		put32(record + 8, 100000 + i);
	}
	setsockopt(scene.peer.control, SOL_SOCKET, SO_SNDTIMEO, &patience, sizeof(patience));
	/* Twice what it takes to fill the outbox. */
	while (said < (UINT64_C(100) << 20) &&
	       send(scene.peer.control, bytes, sizeof(bytes), MSG_NOSIGNAL) == sizeof(bytes))
		said += sizeof(bytes);
	side_poll(scene.side);
	print_message("%llu MiB were said\n", (unsigned long long)said >> 20);
	if (!sanitized())
		assert_true(resident_bytes(0) < before + (UINT64_C(200) << 20));
	check_alive(&scene.pair);
	raw_close(&scene.peer);
	wait_lost(scene.side, 1);
	haul_disconnect(scene.peer.endpoint);
}

static void test_stream_gone_twice(void **state)
{
	struct scene scene;

	scene_open(*state, &scene);
	for (int i = 0; i < 2; i++)
		say_stream(&scene, RECORD_STREAM_GONE, 1, 0, 0);
	expect_lost(&scene, -EPROTO);
}

/* A stream that is given up in order is answered, and forgotten. */
static void test_stream_gone_once(void **state)
{
	uint8_t body[65536];
	struct scene scene;

	scene_open(*state, &scene);
	say_stream(&scene, RECORD_STREAM_GONE, 1, 0, 0);
	assert_int_equal(expect_record(&scene.peer, RECORD_STREAM_TAKEN, body, sizeof(body)), 16);
	assert_int_equal(get32(body), 1);
	assert_int_equal(get32(body + 4), 1);
	assert_int_equal(get64(body + 8), 0);
	say_stream(&scene, RECORD_STREAM_TAKEN, 1, 1, 0);
	assert_true(raw_closed_within(scene.peer.stream, 3000));
	check_peer(&scene, 0);
	scene_end(&scene);
}

/* The chunks of a broken stream come again over another one, from the first that was not taken. */
static void test_chunks_come_again(void **state)
{
	enum { BYTES = 3 << 20 };
	struct block *source = block_new(*state, BYTES), *target = block_new(*state, BYTES);
	uint8_t message[HAUL_CONTROL_MAX], header[CHUNK_SIZE];
	struct scene scene;
	uint64_t left = BYTES;
	struct entry *sent;
	struct way way;

	scene_open(*state, &scene);
	block_fill(source, 6);
	way = to_peer(&scene);
	sent = post_send(&way, haul_key("k"), &source->tensor);
	raw_message(&scene.peer, message, raw_ready(message, 0, 9, BYTES, "k"));
	raw_expect(&scene.peer, WIRE_PUSH, message, NULL);
	/* One chunk whole, and a part of the next. */
	for (int i = 0; i < 2; i++) {
		uint32_t length;

		assert_true(raw_recv(scene.peer.stream, header, sizeof(header)));
		length = get32(header + 16);
		assert_int_equal(get64(header), 9);
		assert_true(get64(header + 8) + length <= BYTES);
		assert_true(raw_recv(scene.peer.stream, target->data + get64(header + 8),
				     i ? length / 2 : length));
		left -= i ? 0 : length;
	}
	close(scene.peer.stream);
	say_stream(&scene, RECORD_STREAM_GONE, 1, 0, 0);
	say_stream(&scene, RECORD_STREAM_TAKEN, 1, 1, 1);
	scene.peer.stream = raw_connect(haul_listener_address(scene.side->listener));
	raw_greet(scene.peer.stream, PREAMBLE_STREAM, &scene.peer, 2);
	while (left > 0) {
		assert_true(raw_recv(scene.peer.stream, header, sizeof(header)));
		assert_true(get64(header + 8) + get32(header + 16) <= BYTES);
		assert_true(raw_recv(scene.peer.stream, target->data + get64(header + 8),
				     get32(header + 16)));
		left -= get32(header + 16);
	}
	block_check(target, 6);
	raw_message(&scene.peer, message, raw_slot(message, WIRE_PLACED, 9));
	wait_result(sent, 0);
	scene_end(&scene);
}

/* ---- Words that come late ---------------------------------------------- */

/* What both sides ended at the same time: bytes and messages for an earlier use are ignored. */
static void test_late_words_are_ignored(void **state)
{
	static const uint8_t types[] = {WIRE_PUSH,      WIRE_REFUSED, WIRE_PLACED, WIRE_CANCEL,
					WIRE_CANCELLED, WIRE_AGAIN,   WIRE_FAILED};
	struct block *first = block_new(*state, 1000), *second = block_new(*state, 1000);
	uint8_t message[HAUL_CONTROL_MAX], wrong[1000];
	struct scene scene;
	struct entry *received;
	struct way way;
	uint64_t slot;
	size_t length;

	scene_open(*state, &scene);
	way = to_peer(&scene);
	block_fill(first, 1);
	memset(wrong, 0xee, sizeof(wrong));
	received = post_recv(&way, haul_key("k"), &second->tensor);
	raw_expect(&scene.peer, WIRE_READY, message, NULL);
	slot = get64(message + 8);
	length = raw_push(message, WIRE_PUSH, slot, 1000);
	raw_small(&scene.peer, slot, 0, message, length, first->data, 1000);
	wait_result(received, 0);
	/* The same slot once more, for an earlier use now. */
	raw_small(&scene.peer, slot, 0, message, length, wrong, 1000);
	raw_chunk(&scene.peer, slot, 0, wrong, 1000);
	for (size_t i = 0; i < sizeof(types); i++) {
		bool push = types[i] == WIRE_PUSH || types[i] == WIRE_REFUSED;

		length = push ? raw_push(message, types[i], slot, 1000)
			      : raw_slot(message, types[i], slot);
		if (types[i] == WIRE_FAILED)
			put16(message + 2, WIRE_REASON_GIVEN_UP);
		raw_message(&scene.peer, message, length);
	}
	check_peer(&scene, 0);
	block_check(second, 1);
	assert_int_equal(scene.side->lost_count, 0);
	scene_end(&scene);
}

static void test_push_into_a_query(void **state)
{
	uint8_t message[HAUL_CONTROL_MAX];
	struct scene scene;
	struct entry *query;
	struct way way;

	scene_open(*state, &scene);
	way = to_peer(&scene);
	query = post_query(&way, haul_key("k"));
	raw_expect(&scene.peer, WIRE_READY, message, NULL);
	assert_int_equal(message[1], WIRE_READY_QUERY);
	raw_message(&scene.peer, message, raw_push(message, WIRE_PUSH, get64(message + 8), 0));
	wait_result(query, -ECONNRESET);
	expect_lost(&scene, -EPROTO);
}

/*
 * A receive is cancelled while its bytes are being checked. They are wrong, the peer is asked for
 * them again, and says nothing any more: the receive ends all the same.
 */
static void test_cancel_while_the_checksum_is_computed(void **state)
{
	enum { BYTES = 64 << 20 };
	struct block *source = block_new(*state, BYTES), *target = block_new(*state, BYTES);
	uint8_t message[HAUL_CONTROL_MAX];
	struct scene scene = {.world = *state,
			      .side = side_open(*state, "progress=thread,"
							"checksum=crc32c")};
	struct haul_statistics statistics = {.size = sizeof(statistics)};

	side_listen(scene.side);
	for (unsigned round = 1; round <= 4; round++) {
		uint64_t until = now_ms() + 5000, slot;
		struct entry *received;
		struct way way;

		raw_open(&scene.peer, scene.side, WIRE_FEATURE_CHECKSUM);
		way = to_peer(&scene);
		received = post_recv(&way, haul_key("k"), &target->tensor);
		raw_expect(&scene.peer, WIRE_READY, message, NULL);
		slot = get64(message + 8);
		raw_push(message, WIRE_PUSH, slot, BYTES);
		message[1] = WIRE_PUSH_CHECKSUM;
		put32(message + 32, 0xbadbad);
		raw_message(&scene.peer, message, 48);
		raw_chunk(&scene.peer, slot, 0, source->data, BYTES);
		do {
			haul_endpoint_statistics(scene.peer.endpoint, &statistics);
		} while (statistics.bytes_arrived < BYTES && now_ms() < until);
		haul_cancel(scene.side->context, received);
		while (!received->done)
			world_step(*state, until, "a cancelled receive to end");
		check_result(received, -ECANCELED);
		raw_close(&scene.peer);
		wait_lost(scene.side, round);
		haul_disconnect(scene.peer.endpoint);
	}
}

/* ---- Keys -------------------------------------------------------------- */

#define KEY "0123456789abcdef0123456789abcdef"

static void prove(uint8_t *message, unsigned role, const uint8_t *own, const uint8_t *other)
{
	uint8_t text[17 + 2 * WIRE_HELLO_SIZE];
	unsigned size = WIRE_MAC_SIZE;

	memcpy(text, "tensorhaul proof", 16);
	text[16] = (uint8_t)role;
	memcpy(text + 17, own, WIRE_HELLO_SIZE);
	memcpy(text + 17 + WIRE_HELLO_SIZE, other, WIRE_HELLO_SIZE);
	memset(message, 0, 8);
	message[0] = WIRE_PROOF;
	assert_non_null(HMAC(EVP_sha256(), KEY, sizeof(KEY) - 1, text, 17 + 2 * WIRE_HELLO_SIZE,
			     message + 8, &size));
}

static struct side *open_with_key(struct world *world)
{
	const char *path = world_file(world, "key", KEY, sizeof(KEY) - 1, 0600);
	struct side *side =
		side_open(world, world_text(world, "progress=thread,auth=psk:%s", path));

	side_listen(side);
	return side;
}

/* Connect and exchange HELLO; both are kept. */
static void greet_with_key(struct raw_peer *peer, struct side *side, uint8_t *own, uint8_t *other)
{
	uint8_t message[HAUL_CONTROL_MAX];

	raw_open_session(peer, haul_listener_address(side->listener));
	raw_hello(own, WIRE_VERSION, WIRE_FEATURE_AUTH, 100);
	assert_true(raw_message(peer, own, WIRE_HELLO_SIZE));
	raw_expect(peer, WIRE_HELLO, message, NULL);
	memcpy(other, message, WIRE_HELLO_SIZE);
}

static void expect_reject(struct raw_peer *peer, unsigned reason)
{
	uint8_t message[HAUL_CONTROL_MAX];

	raw_expect(peer, WIRE_REJECT, message, NULL);
	assert_int_equal(get16(message + 2), reason);
	assert_true(raw_closed_within(peer->control, 5000));
	raw_close(peer);
}

/* A proof that was right once, the library's own one, and one of zeros: none opens the door. */
static void test_proofs_of_others(void **state)
{
	uint8_t own[WIRE_HELLO_SIZE], other[WIRE_HELLO_SIZE];
	uint8_t proof[8 + WIRE_MAC_SIZE], message[HAUL_CONTROL_MAX];
	struct side *side = open_with_key(*state);
	struct raw_peer right, peer;

	greet_with_key(&right, side, own, other);
	prove(proof, WIRE_CONNECTOR, own, other);
	assert_true(raw_message(&right, proof, sizeof(proof)));
	wait_accepted(side, 1);
	/* Replayed */
	greet_with_key(&peer, side, own, other);
	raw_message(&peer, proof, sizeof(proof));
	expect_reject(&peer, WIRE_REASON_AUTH);
	/* Reflected */
	greet_with_key(&peer, side, own, other);
	raw_expect(&peer, WIRE_PROOF, message, NULL);
	raw_message(&peer, message, sizeof(proof));
	expect_reject(&peer, WIRE_REASON_AUTH);
	/* Computed for the other role */
	greet_with_key(&peer, side, own, other);
	prove(proof, WIRE_ACCEPTOR, own, other);
	raw_message(&peer, proof, sizeof(proof));
	expect_reject(&peer, WIRE_REASON_AUTH);
	/* Nothing */
	greet_with_key(&peer, side, own, other);
	memset(proof + 8, 0, WIRE_MAC_SIZE);
	raw_message(&peer, proof, sizeof(proof));
	expect_reject(&peer, WIRE_REASON_AUTH);
	assert_int_equal(side->accepted_count, 1);
	raw_close(&right);
	wait_lost(side, 1);
	haul_disconnect(side->accepted[0]);
}

/* Who has no key is told so; who has not proved it yet is believed nothing. */
static void test_no_proof(void **state)
{
	uint8_t own[WIRE_HELLO_SIZE], other[WIRE_HELLO_SIZE], message[HAUL_CONTROL_MAX];
	struct side *side = open_with_key(*state);
	struct raw_peer peer;

	raw_open_session(&peer, haul_listener_address(side->listener));
	raw_message(&peer, message, raw_hello(message, WIRE_VERSION, 0, 100));
	expect_reject(&peer, WIRE_REASON_AUTH_NEEDED);
	greet_with_key(&peer, side, own, other);
	raw_message(&peer, message, raw_ready(message, 0, 0, 100, "k"));
	assert_true(raw_closed_within(peer.control, 5000));
	raw_close(&peer);
	assert_int_equal(side->accepted_count, 0);
}

static const struct CMUnitTest tests[] = {
	WORLD_TEST(test_control_goes_on),
	WORLD_TEST(test_taken_that_comes_late),
	WORLD_TEST(test_streams_that_never_arrived),
	WORLD_TEST(test_streams_without_answers),
	WORLD_TEST(test_streams_gone_without_end),
	WORLD_TEST(test_stream_gone_twice),
	WORLD_TEST(test_stream_gone_once),
	WORLD_TEST(test_chunks_come_again),
	WORLD_TEST(test_late_words_are_ignored),
	WORLD_TEST(test_push_into_a_query),
	WORLD_TEST(test_cancel_while_the_checksum_is_computed),
	WORLD_TEST(test_proofs_of_others),
	WORLD_TEST(test_no_proof),
};

int main(int count, char **arguments)
{
	return suite_main("tcp", tests, sizeof(tests) / sizeof(tests[0]), count, arguments);
}
