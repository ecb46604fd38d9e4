/* SPDX-License-Identifier: Apache-2.0 */
/*
 * F31: a peer that passed the handshake and then lies. It loses its own endpoint, with -EPROTO,
 * reaches no memory but its slots, and others notice nothing.
 */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/socket.h>
#include <unistd.h>

#include "load.h"
#include "rawpeer.h"

/* A side with one good endpoint, and memory between two guards for one receive. */
struct scene {
	struct world *world;
	struct pair pair; /* of good peers */
	struct side *side;
	struct guarded guarded; /* what is received into */
	uint64_t slot;          /* of the receive that is posted on the bad peer's endpoint */
	struct entry *received;
	struct raw_peer peer;
	unsigned lost;
};

static void scene_open(struct world *world, struct scene *scene, size_t bytes)
{
	memset(scene, 0, sizeof(*scene));
	scene->world = world;
	pair_open(world, "progress=thread,slots=64", &scene->pair);
	scene->side = scene->pair.a;
	guarded_new(world, &scene->guarded, bytes);
}

/* A new bad peer, with one receive posted that it knows of. */
static void scene_next(struct scene *scene)
{
	uint8_t message[HAUL_CONTROL_MAX];
	struct way way = {.to = scene->side};

	raw_open(&scene->peer, scene->side, 0);
	way.in = scene->peer.endpoint;
	scene->received = post_recv(&way, haul_key("k"), &scene->guarded.target.tensor);
	raw_expect(&scene->peer, WIRE_READY, message, NULL);
	scene->slot = get64(message + 8);
	assert_int_equal(get64(message + 16), scene->guarded.target.bytes);
	assert_int_equal(message[2], 1);
	assert_int_equal(message[24 + message[3]], 'k');
}

/* The lie was found: the endpoint is lost, its receive has ended, all else is as it was. */
static void scene_caught(struct scene *scene, const char *lie)
{
	wait_caught(scene->side, scene->lost++, scene->peer.endpoint, -EPROTO, lie);
	wait_done(scene->received);
	check_result(scene->received, -ECONNRESET);
	haul_disconnect(scene->peer.endpoint);
	assert_true(raw_closed_within(scene->peer.control, 3000));
	raw_close(&scene->peer);
	guarded_check(&scene->guarded);
	check_alive(&scene->pair);
}

/* ---- The same client, telling the truth -------------------------------- */

/* What it takes to send and receive by hand; shows that the pages on the protocol are right. */
static void test_honest_raw_peer(void **state)
{
	struct world *world = *state;
	uint8_t message[HAUL_CONTROL_MAX], bytes[65536];
	struct block *wide = block_new(world, 100000), *source = block_new(world, 5000);
	struct scene scene;
	struct way way;
	struct entry *sent;
	size_t length;

	scene_open(world, &scene, 100000);
	scene_next(&scene);
	/* PUSH: a message on the control stream, the bytes in two chunks of a stream, last first.
	 */
	block_fill(wide, 3);
	length = raw_push(message, WIRE_PUSH, scene.slot, 100000);
	assert_true(raw_message(&scene.peer, message, length));
	assert_true(raw_chunk(&scene.peer, scene.slot, 60000, wide->data + 60000, 40000));
	assert_true(raw_chunk(&scene.peer, scene.slot, 0, wide->data, 60000));
	raw_expect(&scene.peer, WIRE_PLACED, message, NULL);
	assert_int_equal(get64(message + 8), scene.slot);
	wait_result(scene.received, 0);
	block_check(&scene.guarded.target, 3);
	guarded_check(&scene.guarded);
	/* READY, and a small tensor comes along with its message. */
	way = (struct way){.from = scene.side, .out = scene.peer.endpoint};
	block_fill(source, 4);
	sent = post_send(&way, haul_key("down"), &source->tensor);
	raw_message(&scene.peer, message, raw_ready(message, 0, 7, 5000, "down"));
	raw_expect(&scene.peer, WIRE_PUSH, message, bytes);
	assert_int_equal(get64(message + 8), 7);
	assert_int_equal(get64(message + 16), 5000);
	assert_memory_equal(bytes, source->data, 5000);
	world_run_for(world, 20);
	assert_false(sent->done); /* not before PLACED */
	raw_message(&scene.peer, message, raw_slot(message, WIRE_PLACED, 7));
	wait_result(sent, 0);
	/* BYE */
	raw_message(&scene.peer, message, raw_slot(message, WIRE_BYE, 0) / 2);
	wait_lost(scene.side, 1);
	assert_int_equal(scene.side->lost[0].result, 0);
	raw_close(&scene.peer);
}

/* ---- Lies about places ------------------------------------------------- */

struct place {
	uint64_t slot_bits; /* xor */
	uint64_t offset;
	uint32_t length;
	const char *lie;
};

enum { ROOM = 10000 };

/* Of a slot with ROOM bytes. */
static const struct place places[] = {
	{0, 0, ROOM + 1, "one byte more than the room"},
	{0, 1, ROOM, "one byte behind the end"},
	{0, ROOM, 1, "the byte behind the end"},
	{0, ROOM + 1, 1, "behind the end"},
	{0, UINT64_MAX, 1, "an offset that wraps"},
	{0, UINT64_MAX - 10, 100, "offset + length wraps"},
	{0, (uint64_t) - (int64_t)GUARD_BYTES, 100, "before the start"},
	{0, 0, UINT32_MAX, "4 GiB"},
	{0, UINT64_C(1) << 63, 1, "half of the address space away"},
	{0, UINT64_C(1) << 32, 1, "an offset whose low half is 0"},
	{0x10, 0, 100, "another slot that never was"},
	{0xffffff, 0, 100, "a slot far beyond all"},
	{UINT64_C(1) << 32, 0, 100, "a later use of the slot"},
	{UINT64_C(1) << 63, 0, 100, "a much later use of the slot"},
};

static void test_f31_chunks_for_other_places(void **state)
{
	struct scene scene;

	scene_open(*state, &scene, ROOM);
	for (size_t i = 0; i < sizeof(places) / sizeof(places[0]); i++) {
		uint8_t message[HAUL_CONTROL_MAX];

		scene_next(&scene);
		raw_message(&scene.peer, message, raw_push(message, WIRE_PUSH, scene.slot, 100));
		raw_chunk(&scene.peer, scene.slot ^ places[i].slot_bits, places[i].offset, NULL,
			  places[i].length);
		scene_caught(&scene, places[i].lie);
	}
}

/* The same without a PUSH before. */
static void test_f31_chunks_without_a_push(void **state)
{
	struct scene scene;

	scene_open(*state, &scene, ROOM);
	for (size_t i = 0; i < sizeof(places) / sizeof(places[0]); i++) {
		scene_next(&scene);
		raw_chunk(&scene.peer, scene.slot ^ places[i].slot_bits, places[i].offset, NULL,
			  places[i].length);
		scene_caught(&scene, places[i].lie);
	}
}

static void test_f31_small_tensors_for_other_places(void **state)
{
	struct scene scene;
	static const uint8_t bytes[65536];

	scene_open(*state, &scene, ROOM);
	for (size_t i = 0; i < sizeof(places) / sizeof(places[0]); i++) {
		uint8_t message[HAUL_CONTROL_MAX];
		uint32_t length = places[i].length;

		if (length > sizeof(bytes))
			continue;
		scene_next(&scene);
		raw_small(&scene.peer, scene.slot ^ places[i].slot_bits, places[i].offset, message,
			  raw_push(message, WIRE_PUSH, scene.slot, ROOM), bytes, length);
		scene_caught(&scene, places[i].lie);
	}
}

static void test_f31_chunks_that_are_none(void **state)
{
	struct scene scene;
	uint8_t header[CHUNK_SIZE];

	scene_open(*state, &scene, ROOM);
	for (int wrong = 0; wrong < 3; wrong++) {
		scene_next(&scene);
		put64(header, scene.slot);
		put64(header + 8, 0);
		put32(header + 16, wrong == 0 ? 0 : 10);
		put32(header + 20, wrong == 1 ? CHUNK_MAGIC ^ 1 : CHUNK_MAGIC);
		if (wrong == 2)
			memset(header, 0xff, sizeof(header));
		raw_send(scene.peer.stream, header, sizeof(header));
		scene_caught(&scene, wrong == 0   ? "a chunk without bytes"
				     : wrong == 1 ? "a chunk without its magic number"
						  : "a chunk of nonsense");
	}
}

/* More bytes than the tensor has, or the same bytes twice. */
static void test_f31_more_bytes_than_announced(void **state)
{
	struct scene scene;
	static const uint8_t bytes[ROOM];

	scene_open(*state, &scene, ROOM);
	for (int twice = 0; twice < 2; twice++) {
		uint8_t message[HAUL_CONTROL_MAX];

		scene_next(&scene);
		if (!twice) {
			raw_chunk(&scene.peer, scene.slot, 0, bytes, ROOM);
			/* All is there, and then PUSH says that it is less. */
			world_run_for(*state, 20);
			raw_message(&scene.peer, message,
				    raw_push(message, WIRE_PUSH, scene.slot, ROOM - 1));
		} else {
			raw_chunk(&scene.peer, scene.slot, 0, bytes, ROOM / 2 + 1);
			raw_chunk(&scene.peer, scene.slot, 0, bytes, ROOM / 2);
		}
		scene_caught(&scene, twice ? "the same bytes twice" : "more than PUSH says");
	}
}

/* ---- Lies in messages -------------------------------------------------- */

/* Write a message that is wrong in its own way; NULL behind the last. */
static const char *bad_message(int which, uint64_t slot, uint8_t *out, size_t *length)
{
	switch (which) {
	case 0:
		*length = raw_push(out, WIRE_PUSH, slot, ROOM + 1);
		return "PUSH of more than the room";
	case 1:
		*length = raw_push(out, WIRE_PUSH, slot + 1, 100);
		return "PUSH into a slot that never was";
	case 2:
		*length = raw_push(out, WIRE_PUSH, slot, 100);
		put64(out + 24, 1);
		return "PUSH at an offset";
	case 3:
		*length = raw_push(out, WIRE_PUSH, slot, 100);
		put64(out + 40, 99);
		return "PUSH with a size that is not its shape's";
	case 4:
		*length = raw_push(out, WIRE_PUSH, slot, 100);
		put64(out + 40, UINT64_MAX);
		return "PUSH with a negative shape";
	case 5:
		*length = raw_push(out, WIRE_PUSH, slot, 100);
		out[2] = 9;
		return "PUSH of rank 9";
	case 6:
		*length = raw_push(out, WIRE_PUSH, slot, 0);
		out[4] = 0;
		return "PUSH of a dtype without bits";
	case 7:
		*length = raw_push(out, WIRE_PUSH, slot, 100) - 1;
		return "PUSH that is too short";
	case 8:
		*length = raw_slot(out, WIRE_CANCELLED, slot);
		return "CANCELLED that nobody asked for";
	case 9:
		*length = raw_ready(out, 0, 64, 100, "k");
		return "READY of more slots than are remembered";
	case 10:
		*length = raw_ready(out, 0, UINT64_MAX, 100, "k");
		return "READY of a slot without end";
	case 11:
		*length = raw_ready(out, 0, 1, 100, "");
		return "READY without a key";
	case 12:
		*length = raw_ready(out, 0, 1, 100, "k") - 1;
		return "READY that is too short";
	case 13:
		*length = raw_ready(out, 0, 1, 100, "k");
		out[3] = 200;
		return "READY with a descriptor that isn't there";
	case 14:
		*length = raw_slot(out, 200, 0);
		return "a message of an unknown type";
	case 15:
		*length = 0;
		return "an empty message";
	case 16:
		*length = raw_hello(out, WIRE_VERSION, 0, 5);
		return "HELLO once more";
	case 17:
		*length = raw_slot(out, WIRE_FAILED, slot);
		return "FAILED without a reason";
	case 18:
		*length = raw_slot(out, WIRE_BYE, slot);
		return "BYE that is too long";
	default:
		return NULL;
	}
}

static void test_f31_messages_that_lie(void **state)
{
	struct scene scene;
	uint8_t message[HAUL_CONTROL_MAX];
	const char *lie;
	size_t length;

	scene_open(*state, &scene, ROOM);
	for (int i = 0; (lie = bad_message(i, scene.slot, message, &length)); i++) {
		scene_next(&scene);
		bad_message(i, scene.slot, message, &length);
		raw_message(&scene.peer, message, length);
		scene_caught(&scene, lie);
	}
}

/* PUSH or REFUSED twice, PLACED for what was not sent: pairs of messages that can't be. */
static void test_f31_messages_out_of_turn(void **state)
{
	struct world *world = *state;
	struct scene scene;
	uint8_t message[HAUL_CONTROL_MAX];
	struct block *source = block_new(world, 100);

	scene_open(world, &scene, ROOM);
	scene_next(&scene);
	for (int i = 0; i < 2; i++)
		raw_message(&scene.peer, message, raw_push(message, WIRE_PUSH, scene.slot, 100));
	scene_caught(&scene, "PUSH twice");
	scene_next(&scene);
	raw_message(&scene.peer, message, raw_push(message, WIRE_PUSH, scene.slot, 100));
	raw_message(&scene.peer, message, raw_push(message, WIRE_REFUSED, scene.slot, ROOM + 1));
	scene_caught(&scene, "PUSH, and then REFUSED");
	scene_next(&scene);
	for (int i = 0; i < 2; i++)
		raw_message(&scene.peer, message, raw_ready(message, 0, 3, 100, "twice"));
	scene_caught(&scene, "READY of a slot that is taken");
	scene_next(&scene);
	raw_message(&scene.peer, message, raw_ready(message, 0, 3, 100, "nothing is sent"));
	raw_message(&scene.peer, message, raw_slot(message, WIRE_PLACED, 3));
	scene_caught(&scene, "PLACED of what was never sent");
	scene_next(&scene);
	post_send(&(struct way){.from = scene.side, .out = scene.peer.endpoint}, haul_key("s"),
		  &source->tensor);
	raw_message(&scene.peer, message, raw_ready(message, 0, 3, 100, "s"));
	raw_expect(&scene.peer, WIRE_PUSH, message, NULL);
	raw_message(&scene.peer, message, raw_slot(message, WIRE_AGAIN, 3));
	scene_caught(&scene, "AGAIN without checksums");
}

/* A refusal that is no lie by itself: of a tensor that would fit. The receive is told, no more. */
static void test_refused_although_it_fits(void **state)
{
	struct scene scene;
	uint8_t message[HAUL_CONTROL_MAX];

	scene_open(*state, &scene, ROOM);
	scene_next(&scene);
	raw_message(&scene.peer, message, raw_push(message, WIRE_REFUSED, scene.slot, 100));
	wait_done(scene.received);
	assert_true(scene.received->result < 0);
	check_alive(&scene.pair);
	raw_close(&scene.peer);
	wait_lost(scene.side, 1);
}

/* ---- Lies in records --------------------------------------------------- */

static void bad_record(struct scene *scene, uint32_t length, uint8_t type, uint16_t header,
		       const char *lie)
{
	uint8_t bytes[RECORD_SIZE + 64] = {0};

	put32(bytes, length);
	bytes[4] = type;
	put16(bytes + 6, header);
	scene_next(scene);
	raw_send(scene->peer.control, bytes, sizeof(bytes));
	scene_caught(scene, lie);
}

static void test_f31_records_that_lie(void **state)
{
	struct scene scene;

	scene_open(*state, &scene, ROOM);
	bad_record(&scene, UINT32_MAX, RECORD_MESSAGE, 0, "a message of 4 GiB");
	bad_record(&scene, HAUL_CONTROL_MAX + 1, RECORD_MESSAGE, 0, "a message that is too long");
	bad_record(&scene, UINT32_MAX, RECORD_SMALL, 0, "a small tensor of 4 GiB");
	bad_record(&scene, 15, RECORD_SMALL, 0, "a small tensor without its head");
	bad_record(&scene, 64, RECORD_SMALL, 49, "a small tensor whose message is too long");
	bad_record(&scene, 64, RECORD_SMALL, UINT16_MAX, "a small tensor with a wild message");
	bad_record(&scene, 64, 0, 0, "a record of type 0");
	bad_record(&scene, 64, 99, 0, "a record of type 99");
	bad_record(&scene, 7, RECORD_TAKEN, 0, "TAKEN that is too short");
	bad_record(&scene, 64, RECORD_STREAMS, 0, "STREAMS that is too long");
	bad_record(&scene, 9, RECORD_STREAM_TAKEN, 0, "STREAM_TAKEN that is too short");
	bad_record(&scene, 64, RECORD_STREAM_GONE, 0, "STREAM_GONE that is too long");
}

static void bad_words(struct scene *scene, enum record_type type, uint64_t first, uint64_t second,
		      const char *lie)
{
	uint8_t body[16];

	put64(body, first);
	put64(body + 8, second);
	scene_next(scene);
	raw_record(&scene->peer, type, 0, body, type == RECORD_STREAM_TAKEN ? 16 : 8);
	scene_caught(scene, lie);
}

static void test_f31_positions_that_lie(void **state)
{
	struct scene scene;

	scene_open(*state, &scene, ROOM);
	bad_words(&scene, RECORD_TAKEN, UINT64_MAX, 0, "more was taken than can be");
	bad_words(&scene, RECORD_TAKEN, 1000000, 0, "more was taken than was sent");
	bad_words(&scene, RECORD_STREAM_TAKEN, 1, 1, "chunks were taken that were never sent");
	bad_words(&scene, RECORD_STREAM_TAKEN, 1, UINT64_MAX, "very many chunks were taken");
	bad_words(&scene, RECORD_STREAM_TAKEN, UINT64_C(1) << 32 | 1, 0,
		  "a final word on a stream that lives");
}

/* A second control stream at an impossible position. */
static void test_f31_control_stream_that_goes_back(void **state)
{
	struct scene scene;

	scene_open(*state, &scene, ROOM);
	for (int i = 0; i < 2; i++) {
		struct preamble preamble = {.version = TCP_VERSION, .kind = PREAMBLE_CONTROL};
		uint8_t bytes[PREAMBLE_SIZE];
		int fd;

		scene_next(&scene);
		memcpy(preamble.session, scene.peer.session, SESSION_SIZE);
		preamble.taken = i ? UINT64_MAX : 10000000;
		preamble_encode(bytes, &preamble);
		fd = raw_connect(haul_listener_address(scene.side->listener));
		raw_send(fd, bytes, sizeof(bytes));
		scene_caught(&scene, "a position in the control stream that can't be");
		close(fd);
	}
}

/* ---- Floods ------------------------------------------------------------ */

/* It asks for everything, takes nothing, and never reads: it is dropped, or costs little. */
static void test_f32_peer_that_never_reads(void **state)
{
	struct world *world = *state;
	struct scene scene;
	uint8_t message[HAUL_CONTROL_MAX];
	uint64_t before;
	unsigned said = 0;
	struct timeval patience = {.tv_usec = 200000};
	bool blocked = false;

	scene_open(world, &scene, ROOM);
	scene_next(&scene);
	setsockopt(scene.peer.control, SOL_SOCKET, SO_SNDTIMEO, &patience, sizeof(patience));
	before = resident_bytes(0);
	/* Cancels of slots that it has: each asks for an answer. */
	while (said < 400000 && !blocked) {
		uint8_t record[2 * RECORD_SIZE + 256];
		size_t length =
			raw_ready(message, 0, said % 32 + ((uint64_t)said << 32), 1, "flood");

		put32(record, (uint32_t)length);
		put32(record + 4, RECORD_MESSAGE);
		memcpy(record + RECORD_SIZE, message, length);
		put32(record + RECORD_SIZE + length, 16);
		put32(record + RECORD_SIZE + length + 4, RECORD_MESSAGE);
		raw_slot(record + 2 * RECORD_SIZE + length, WIRE_CANCEL,
			 said % 32 + ((uint64_t)said << 32));
		length += 2 * RECORD_SIZE + 16;
		blocked = send(scene.peer.control, record, length, MSG_NOSIGNAL) != (ssize_t)length;
		said++;
	}
	print_message("%u rounds, %llu KiB more memory, %s\n", said,
		      (unsigned long long)(resident_bytes(0) - before) >> 10,
		      scene.side->lost_count ? "dropped" : "still there");
	if (!sanitized())
		assert_true(resident_bytes(0) < before + ((uint64_t)80 << 20));
	check_alive(&scene.pair);
	raw_close(&scene.peer);
	wait_lost(scene.side, 1);
	guarded_check(&scene.guarded);
}

static const struct CMUnitTest tests[] = {
	WORLD_TEST(test_honest_raw_peer),
	WORLD_TEST(test_f31_chunks_for_other_places),
	WORLD_TEST(test_f31_chunks_without_a_push),
	WORLD_TEST(test_f31_small_tensors_for_other_places),
	WORLD_TEST(test_f31_chunks_that_are_none),
	WORLD_TEST(test_f31_more_bytes_than_announced),
	WORLD_TEST(test_f31_messages_that_lie),
	WORLD_TEST(test_f31_messages_out_of_turn),
	WORLD_TEST(test_refused_although_it_fits),
	WORLD_TEST(test_f31_records_that_lie),
	WORLD_TEST(test_f31_positions_that_lie),
	WORLD_TEST(test_f31_control_stream_that_goes_back),
	WORLD_TEST(test_f32_peer_that_never_reads),
};

int main(int count, char **arguments)
{
	return suite_main("tcp", tests, sizeof(tests) / sizeof(tests[0]), count, arguments);
}
