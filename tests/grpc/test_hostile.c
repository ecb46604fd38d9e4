/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A gRPC client that lies: it loses its own endpoint with -EPROTO, the slot's memory and its
 * neighbours are untouched, and other endpoints notice nothing.
 */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>

#include "rawcall.h"
#include "tests/tcp/rawpeer.h"

enum { ROOM = 100000 };

/* A side with a good peer, and one that lies and may write one slot. */
struct scene {
	struct world *world;
	struct pair pair;
	const char *address;
	struct raw_call control, stream;
	haul_endpoint *endpoint; /* of the liar */
	struct guarded guarded;
	struct entry *received;
	uint64_t slot;
	unsigned count; /* liars so far */
};

static void scene_open(struct world *world, struct scene *scene)
{
	memset(scene, 0, sizeof(*scene));
	scene->world = world;
	pair_open(world, "progress=thread,checksum=none", &scene->pair);
	scene->address = connect_address(world, haul_listener_address(scene->pair.a->listener));
	scene->count = scene->pair.a->accepted_count;
}

/* The engine's message in a record that may stand behind others. */
static size_t next_message(struct raw_call *call, uint8_t *message)
{
	static uint8_t bytes[512 * 1024];

	for (;;) {
		size_t length = raw_call_receive(call, bytes, sizeof(bytes)), at = 0;

		if (!length)
			fail_msg("the control call ended");
		while (at < length) {
			size_t next = get32(bytes + at);

			if (bytes[at + 4] == RAW_MESSAGE) {
				memcpy(message, bytes + at + 8, next);
				return next;
			}
			at += 8 + next;
		}
	}
}

/* The next liar: a session with a stream, and a receive whose slot it knows. */
static void scene_next(struct scene *scene)
{
	struct side *side = scene->pair.a;
	uint8_t message[HAUL_CONTROL_MAX];
	struct way way = {.to = side};

	raw_call_open(&scene->control, NULL, scene->address, RAW_CONTROL, "1", NULL, NULL);
	assert_int_equal(strlen(scene->control.session), 32);
	raw_call_record(&scene->control, RAW_MESSAGE, 0, message,
			raw_hello(message, WIRE_VERSION, 0, 65536));
	wait_accepted(side, ++scene->count);
	scene->endpoint = side->accepted[scene->count - 1];
	raw_call_open(&scene->stream, NULL, scene->address, RAW_STREAM, "1", scene->control.session,
		      "7");
	guarded_new(scene->world, &scene->guarded, ROOM);
	way.in = scene->endpoint;
	scene->received = post_recv(&way, haul_key("up"), &scene->guarded.target.tensor);
	do
		next_message(&scene->control, message);
	while (message[0] != WIRE_READY);
	scene->slot = get64(message + 8);
}

static void scene_caught(struct scene *scene, const char *lie)
{
	wait_caught(scene->pair.a, scene->pair.a->lost_count ? scene->pair.a->lost_count - 1 : 0,
		    scene->endpoint, -EPROTO, lie);
	assert_int_not_equal(scene->received->result, 0);
	raw_call_close(&scene->stream);
	raw_call_close(&scene->control);
	guarded_check(&scene->guarded);
	haul_disconnect(scene->endpoint);
	check_alive(&scene->pair);
}

static const struct {
	uint64_t slot_bits; /* xor */
	uint64_t offset;
	uint32_t length;
	const char *lie;
} places[] = {
	{0, 0, ROOM + 1, "one byte more than the room"},
	{0, 1, ROOM, "one byte behind the end"},
	{0, ROOM, 1, "the byte behind the end"},
	{0, UINT64_MAX, 1, "an offset that wraps"},
	{0, UINT64_MAX - 10, 100, "offset + length wraps"},
	{0, (uint64_t)-4096, 100, "before the start"},
	{0, 0, 0, "no byte at all"},
	{0x10, 0, 100, "another slot that never was"},
	{UINT64_C(1) << 32, 0, 100, "a later use of the slot"},
};

enum { PLACES = sizeof(places) / sizeof(places[0]) };

static void test_honest_raw_client(void **state)
{
	uint8_t message[HAUL_CONTROL_MAX];
	struct scene scene;
	struct block *source = block_new(*state, ROOM);

	scene_open(*state, &scene);
	scene_next(&scene);
	block_fill(source, 3);
	raw_call_record(&scene.control, RAW_MESSAGE, 0, message,
			raw_push(message, WIRE_PUSH, scene.slot, ROOM));
	assert_true(raw_call_chunk(&scene.stream, scene.slot, 60000, source->data + 60000, 40000));
	assert_true(raw_call_chunk(&scene.stream, scene.slot, 0, source->data, 60000));
	wait_result(scene.received, 0);
	block_check(&scene.guarded.target, 3);
	guarded_check(&scene.guarded);
	raw_call_close(&scene.stream);
	raw_call_close(&scene.control);
	wait_lost(scene.pair.a, 1);
	check_alive(&scene.pair);
}

static void test_chunks_for_other_places(void **state)
{
	static uint8_t bytes[ROOM + 1];
	struct scene scene;

	scene_open(*state, &scene);
	for (size_t i = 0; i < PLACES; i++) {
		uint8_t message[HAUL_CONTROL_MAX];

		scene_next(&scene);
		if (i % 2)
			raw_call_record(&scene.control, RAW_MESSAGE, 0, message,
					raw_push(message, WIRE_PUSH, scene.slot, 100));
		raw_call_chunk(&scene.stream, scene.slot ^ places[i].slot_bits, places[i].offset,
			       bytes, places[i].length);
		wait_lost(scene.pair.a, scene.pair.a->lost_count + 1);
		scene_caught(&scene, places[i].lie);
	}
}

static void test_small_tensors_for_other_places(void **state)
{
	static uint8_t body[16 + 48 + 65536];
	struct scene scene;

	scene_open(*state, &scene);
	for (size_t i = 0; i < PLACES; i++) {
		if (places[i].length > 65536 || !places[i].length)
			continue;
		scene_next(&scene);
		for (int byte = 0; byte < 8; byte++) {
			uint64_t slot = scene.slot ^ places[i].slot_bits;

			body[byte] = (uint8_t)(slot >> 8 * byte);
			body[8 + byte] = (uint8_t)(places[i].offset >> 8 * byte);
		}
		raw_push(body + 16, WIRE_PUSH, scene.slot, ROOM);
		raw_call_record(&scene.control, RAW_SMALL, 48, body, 64 + places[i].length);
		wait_lost(scene.pair.a, scene.pair.a->lost_count + 1);
		scene_caught(&scene, places[i].lie);
	}
}

/* Records of the control call, as they are sent. */
static const struct {
	const char *lie;
	size_t length;
	uint8_t bytes[48];
} records[] = {
	{"half a head", 5, {1, 0, 0, 0, 1}},
	{"a length behind the end", 9, {2, 0, 0, 0, 1, 0, 0, 0, 9}},
	{"a length of 4 GiB", 9, {0xff, 0xff, 0xff, 0xff, 1, 0, 0, 0, 9}},
	{"an unknown type", 9, {1, 0, 0, 0, 77, 0, 0, 0, 9}},
	{"a type of 0", 8, {0}},
	{"a SMALL without a body", 8, {0, 0, 0, 0, 2, 0, 0, 0}},
	{"a SMALL whose message is behind its end", 24, {16, 0, 0, 0, 2, 0, 1, 0}},
	{"a SMALL whose message is too long", 24, {16, 0, 0, 0, 2, 0, 0xff, 0xff}},
	{"STREAMS with a short number", 10, {2, 0, 0, 0, 3, 0, 0, 0, 1, 0}},
	{"TAKEN of more than was sent", 24, {16, 0, 0, 0, 4, 0, 0, 0, 7, 0, 0, 0,
					     0,  0, 0, 0, 9, 0, 0, 0, 0, 0, 0, 0}},
	{"a final TAKEN that nobody asked for", 24, {16, 0, 0, 0, 4, 0, 0, 0, 7, 0, 0, 0,
						     1,  0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0}},
	{"GONE with no number", 8, {0, 0, 0, 0, 5, 0, 0, 0}},
	{"a message of the engine that is none", 12, {4, 0, 0, 0, 1, 0, 0, 0, 99, 0, 0, 0}},
};

static void test_records_that_lie(void **state)
{
	struct scene scene;

	scene_open(*state, &scene);
	for (size_t i = 0; i < sizeof(records) / sizeof(records[0]); i++) {
		scene_next(&scene);
		raw_call_send(&scene.control, records[i].bytes, records[i].length);
		wait_lost(scene.pair.a, scene.pair.a->lost_count + 1);
		scene_caught(&scene, records[i].lie);
	}
}

/* A message above what a control call may carry, and one above gRPC's own limit. */
static void test_messages_that_are_too_long(void **state)
{
	size_t length = (size_t)17 << 20;
	uint8_t *bytes = calloc(1, length);
	struct scene scene;

	scene_open(*state, &scene);
	scene_next(&scene);
	raw_call_send(&scene.control, bytes, 256 * 1024 + 1);
	wait_lost(scene.pair.a, 1);
	scene_caught(&scene, "a control message of more than 256 KiB");
	scene_next(&scene);
	raw_call_send(&scene.control, bytes, length);
	wait_lost(scene.pair.a, 2);
	assert_int_equal(scene.pair.a->lost[1].result, -ECONNRESET);
	raw_call_close(&scene.stream);
	raw_call_close(&scene.control);
	/* On a stream: gRPC ends that call, and the session goes on. */
	haul_disconnect(scene.endpoint);
	scene_next(&scene);
	raw_call_send(&scene.stream, bytes, length);
	raw_call_status(&scene.stream);
	assert_int_equal(scene.pair.a->lost_count, 2);
	raw_call_close(&scene.stream);
	raw_call_close(&scene.control);
	wait_lost(scene.pair.a, 3);
	check_alive(&scene.pair);
	free(bytes);
}

/* Calls that are refused, each with a status that says why. */
static void test_calls_that_are_refused(void **state)
{
	static const struct {
		enum raw_method method;
		const char *version, *session, *stream;
		grpc_status_code status;
	} cases[] = {
		{RAW_UNKNOWN, "1", NULL, NULL, GRPC_STATUS_UNIMPLEMENTED},
		{RAW_CONTROL, NULL, NULL, NULL, GRPC_STATUS_FAILED_PRECONDITION},
		{RAW_CONTROL, "2", NULL, NULL, GRPC_STATUS_FAILED_PRECONDITION},
		{RAW_CONTROL, "a version that is much too long", NULL, NULL,
		 GRPC_STATUS_FAILED_PRECONDITION},
		{RAW_STREAM, "1", NULL, "0", GRPC_STATUS_NOT_FOUND},
		{RAW_STREAM, "1", "0123456789abcdef0123456789abcdef", "0", GRPC_STATUS_NOT_FOUND},
		{RAW_STREAM, "1", "", "0", GRPC_STATUS_NOT_FOUND},
	};
	struct scene scene;

	scene_open(*state, &scene);
	for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
		struct raw_call call;

		raw_call_open(&call, NULL, scene.address, cases[i].method, cases[i].version,
			      cases[i].session, cases[i].stream);
		assert_int_equal(raw_call_status(&call), cases[i].status);
		assert_true(call.text[0]);
		raw_call_close(&call);
	}
	check_alive(&scene.pair);
}

/* Within a session: numbers that are none, taken or too many, and a connection that is in use. */
static void test_streams_that_are_refused(void **state)
{
	static const char *const numbers[] = {NULL, "", "-1", "7x", "12345678901"};
	struct raw_call more[70], call;
	unsigned opened = 0;
	struct scene scene;

	scene_open(*state, &scene);
	scene_next(&scene);
	for (size_t i = 0; i < sizeof(numbers) / sizeof(numbers[0]); i++) {
		raw_call_open(&call, NULL, scene.address, RAW_STREAM, "1", scene.control.session,
			      numbers[i]);
		assert_int_equal(raw_call_status(&call), GRPC_STATUS_INVALID_ARGUMENT);
		raw_call_close(&call);
	}
	raw_call_open(&call, NULL, scene.address, RAW_STREAM, "1", scene.control.session, "7");
	assert_int_equal(raw_call_status(&call), GRPC_STATUS_RESOURCE_EXHAUSTED);
	raw_call_close(&call);
	raw_call_open(&call, &scene.control, scene.address, RAW_CONTROL, "1", NULL, NULL);
	assert_int_equal(raw_call_status(&call), GRPC_STATUS_FAILED_PRECONDITION);
	raw_call_close(&call);
	for (; opened < 70; opened++) {
		char number[16];

		snprintf(number, sizeof(number), "%u", 100 + opened);
		raw_call_open(&more[opened], NULL, scene.address, RAW_STREAM, "1",
			      scene.control.session, number);
		if (!more[opened].first.count || more[opened].first.metadata == NULL)
			break;
	}
	/* With number 7 there are 64 at most. */
	assert_int_equal(opened, 63);
	assert_int_equal(raw_call_status(&more[opened]), GRPC_STATUS_RESOURCE_EXHAUSTED);
	for (unsigned i = 0; i <= opened; i++)
		raw_call_close(&more[i]);
	raw_call_close(&scene.stream);
	raw_call_close(&scene.control);
	wait_lost(scene.pair.a, 1);
	check_alive(&scene.pair);
}

static const struct CMUnitTest tests[] = {
	WORLD_TEST(test_honest_raw_client),
	WORLD_TEST(test_chunks_for_other_places),
	WORLD_TEST(test_small_tensors_for_other_places),
	WORLD_TEST(test_records_that_lie),
	WORLD_TEST(test_messages_that_are_too_long),
	WORLD_TEST(test_calls_that_are_refused),
	WORLD_TEST(test_streams_that_are_refused),
};

int main(int count, char **arguments)
{
	return suite_main("grpc", tests, sizeof(tests) / sizeof(tests[0]), count, arguments);
}
