/* SPDX-License-Identifier: Apache-2.0 */
/*
 * F31: random conversations of a peer that passed the handshake: valid messages, records and chunks
 * with random changes. Whatever it says, it reaches no memory but its slots, each of its operations
 * ends once, and another endpoint of the same context notices nothing.
 */
#include <errno.h>
#include <stdio.h>
#include <sys/socket.h>
#include <unistd.h>

#include "rawpeer.h"

enum { RECEIVES = 6, SENDS = 6, ROOM = 3000, GUARD = 512, SAYS = 40 };

struct chat {
	struct world *world;
	struct pair pair;
	struct side *side;
	struct raw_peer peer;
	struct block *memory;
	struct entry *entries[RECEIVES + SENDS];
	uint64_t random;
	uint64_t features;
};

static uint8_t *room_of(const struct chat *chat, int number)
{
	return chat->memory->data + GUARD + (size_t)number * (ROOM + GUARD);
}

static void check_guards(const struct chat *chat)
{
	for (int i = 0; i <= RECEIVES; i++) {
		const uint8_t *guard = room_of(chat, i) - GUARD;

		for (int j = 0; j < GUARD; j++)
			assert_int_equal(guard[j], 0xa5);
	}
}

/* ---- What it says ------------------------------------------------------ */

static unsigned below(struct chat *chat, unsigned limit)
{
	return random_below(&chat->random, limit);
}

/* Numbers as they are found at the edges of things. */
static uint64_t odd_number(struct chat *chat)
{
	static const uint64_t numbers[] = {0,
					   1,
					   2,
					   ROOM - 1,
					   ROOM,
					   ROOM + 1,
					   65535,
					   65536,
					   UINT32_MAX,
					   UINT64_C(1) << 32,
					   UINT64_C(1) << 63,
					   INT64_MAX,
					   UINT64_MAX,
					   UINT64_MAX - ROOM};

	if (below(chat, 3) == 0)
		return random_next(&chat->random) >> below(chat, 64);
	return numbers[below(chat, sizeof(numbers) / sizeof(numbers[0]))] + below(chat, 3);
}

static uint64_t some_slot(struct chat *chat)
{
	return below(chat, 8) ? below(chat, RECEIVES + 2) : odd_number(chat);
}

static size_t some_message(struct chat *chat, uint8_t *out)
{
	enum wire_type type = 1 + below(chat, WIRE_BYE + 1);
	size_t length;
	char key[16];

	memset(out, 0, HAUL_CONTROL_MAX);
	snprintf(key, sizeof(key), "%u", below(chat, SENDS + 1));
	switch (type) {
	case WIRE_HELLO:
		return raw_hello(out, WIRE_VERSION, 0, 10);
	case WIRE_READY:
		return raw_ready(out, below(chat, 4) == 0, some_slot(chat),
				 below(chat, 3) ? ROOM : odd_number(chat), key);
	case WIRE_PUSH:
	case WIRE_REFUSED:
		length = raw_push(out, type, some_slot(chat),
				  below(chat, 3) ? below(chat, ROOM + 1) : odd_number(chat));
		out[1] = chat->features && below(chat, 4); /* says that it has a checksum */
		return length;
	case WIRE_BYE:
		return below(chat, 8) ? raw_slot(out, WIRE_PLACED, some_slot(chat))
				      : raw_slot(out, type, 0) / 2;
	default:
		return raw_slot(out, type, some_slot(chat));
	}
}

/* Change a few bits and perhaps the length. */
static size_t mutate(struct chat *chat, uint8_t *bytes, size_t length, size_t room)
{
	if (below(chat, 2))
		return length;
	for (unsigned i = below(chat, 3) + 1; i > 0 && length > 0; i--)
		bytes[below(chat, (unsigned)length)] ^= (uint8_t)(1u << below(chat, 8));
	if (below(chat, 6) == 0)
		length = below(chat, (unsigned)room);
	return length;
}

static bool say_record(struct chat *chat)
{
	uint8_t body[SMALL_SIZE + HAUL_CONTROL_MAX + ROOM] = {0};
	enum record_type type = RECORD_MESSAGE + below(chat, 3) * below(chat, 6);
	size_t length = some_message(chat, body + SMALL_SIZE);
	uint16_t header = (uint16_t)length;

	if (type == RECORD_MESSAGE) {
		length = mutate(chat, body + SMALL_SIZE, length, HAUL_CONTROL_MAX);
		return raw_message(&chat->peer, body + SMALL_SIZE, length);
	}
	if (type == RECORD_SMALL) {
		put64(body, some_slot(chat));
		put64(body + 8, below(chat, 2) ? 0 : odd_number(chat));
		length += SMALL_SIZE + below(chat, ROOM + 1);
	} else {
		put64(body, odd_number(chat));
		put64(body + 8, odd_number(chat));
		length = (const size_t[]){8, 4, 16, 8}[below(chat, 4)];
		header = 0;
	}
	length = mutate(chat, body, length, sizeof(body));
	return raw_record(&chat->peer, type, header, body, length);
}

static bool say_chunk(struct chat *chat)
{
	uint8_t bytes[CHUNK_SIZE + ROOM] = {0};
	uint32_t length = 1 + below(chat, ROOM);

	put64(bytes, some_slot(chat));
	put64(bytes + 8, below(chat, 2) ? 0 : odd_number(chat));
	put32(bytes + 16, below(chat, 8) ? length : (uint32_t)odd_number(chat));
	put32(bytes + 20, CHUNK_MAGIC);
	mutate(chat, bytes, CHUNK_SIZE, CHUNK_SIZE);
	return raw_send(chat->peer.stream, bytes, CHUNK_SIZE + length);
}

/* ---- Rounds ------------------------------------------------------------ */

static void post_all(struct chat *chat, struct block *source)
{
	struct way way = {.from = chat->side,
			  .to = chat->side,
			  .out = chat->peer.endpoint,
			  .in = chat->peer.endpoint};
	int64_t shape = ROOM;

	for (int i = 0; i < RECEIVES; i++) {
		DLTensor tensor = haul_tensor(room_of(chat, i), type_u8, 1, &shape);

		chat->entries[i] = post_recv(&way, haul_key("receive"), &tensor);
	}
	for (int i = 0; i < SENDS; i++) {
		char key[16];

		snprintf(key, sizeof(key), "%d", i);
		chat->entries[RECEIVES + i] = post_send(&way, haul_key(key), &source->tensor);
	}
}

/* Does nothing with what the library says, but takes it. */
static void read_some(struct chat *chat)
{
	uint8_t scrap[4096];

	while (recv(chat->peer.control, scrap, sizeof(scrap), MSG_DONTWAIT) > 0)
		;
	while (recv(chat->peer.stream, scrap, sizeof(scrap), MSG_DONTWAIT) > 0)
		;
}

static void one_round(struct chat *chat, struct block *source, unsigned number)
{
	bool goes_on = true;

	raw_open(&chat->peer, chat->side, chat->features);
	post_all(chat, source);
	for (unsigned i = below(chat, SAYS) + 1; i > 0 && goes_on; i--) {
		goes_on = below(chat, 3) ? say_record(chat) : say_chunk(chat);
		read_some(chat);
	}
	raw_close(&chat->peer);
	wait_lost(chat->side, number + 1);
	for (int i = 0; i < RECEIVES + SENDS; i++) {
		assert_true(chat->entries[i]->done);
		assert_true(chat->entries[i]->result <= 0);
		entry_recycle(chat->entries[i]);
	}
	haul_disconnect(chat->peer.endpoint);
	check_guards(chat);
	if (number % 10 == 0)
		check_alive(&chat->pair);
}

static void fuzz(struct world *world, const char *options, uint64_t features, unsigned count)
{
	struct chat *chat = world_memory(world, sizeof(*chat));
	struct block *source = block_new(world, ROOM / 2);
	uint64_t random = random_seed();

	pair_open(world, options, &chat->pair);
	chat->world = world;
	chat->side = chat->pair.a;
	chat->features = features;
	chat->memory = block_new(world, GUARD + RECEIVES * (ROOM + GUARD));
	memset(chat->memory->data, 0xa5, chat->memory->bytes);
	for (unsigned i = 0; i < count; i++) {
		chat->random = random + i;
		chat->side->accepted_count = 1;
		one_round(chat, source, chat->side->lost_count);
		if (chat->side->lost_count == ENDPOINTS_MAX - 1)
			chat->side->lost_count = 0;
	}
	check_alive(&chat->pair);
}

static void test_f31_random_conversations(void **state)
{
	fuzz(*state, "progress=thread,slots=8", 0, rounds(300, 20000));
}

static void test_f31_random_conversations_with_checksums(void **state)
{
	fuzz(*state, "progress=thread,slots=8,checksum=crc32c", WIRE_FEATURE_CHECKSUM,
	     rounds(150, 10000));
}

/* Records of nonsense before the handshake is over. */
static void test_f31_nonsense_before_hello(void **state)
{
	struct world *world = *state;
	uint64_t random = random_seed();
	struct chat *chat = world_memory(world, sizeof(*chat));

	pair_open(world, "progress=thread", &chat->pair);
	for (unsigned i = 0; i < rounds(100, 5000); i++) {
		uint8_t bytes[2000];
		size_t length = 1 + random_below(&random, sizeof(bytes));

		raw_open_session(&chat->peer, haul_listener_address(chat->pair.a->listener));
		for (size_t j = 0; j < length; j++)
			bytes[j] = (uint8_t)random_next(&random);
		put32(bytes, (uint32_t)length % 200);
		bytes[4] = 1 + (uint8_t)random_below(&random, 6);
		raw_send(chat->peer.control, bytes, length);
		raw_close(&chat->peer);
	}
	check_alive(&chat->pair);
	assert_int_equal(chat->pair.a->accepted_count, 1);
}

static const struct CMUnitTest tests[] = {
	WORLD_TEST(test_f31_random_conversations),
	WORLD_TEST(test_f31_random_conversations_with_checksums),
	WORLD_TEST(test_f31_nonsense_before_hello),
};

int main(int count, char **arguments)
{
	return suite_main("tcp", tests, sizeof(tests) / sizeof(tests[0]), count, arguments);
}
