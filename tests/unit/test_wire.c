/* SPDX-License-Identifier: Apache-2.0 */
#include "unit.h"

#include <errno.h>

#include "wire.h"

/* A message with its bytes as the peer would send them. */
struct sample {
	const char *name;
	size_t length;
	uint8_t bytes[HAUL_CONTROL_MAX];
};

/* Encode whatever was decoded. */
static size_t encode(uint8_t *out, const struct wire_message *message)
{
	switch (message->type) {
	case WIRE_HELLO:
		return wire_encode_hello(out, &message->hello);
	case WIRE_PROOF:
		return wire_encode_proof(out, message->mac);
	case WIRE_REJECT:
		return wire_encode_reject(out, message->reason);
	case WIRE_READY:
		return wire_encode_ready(out, &message->ready);
	case WIRE_PUSH:
	case WIRE_REFUSED:
		return wire_encode_push(out, message->type, &message->push);
	case WIRE_PLACED:
	case WIRE_CANCEL:
	case WIRE_CANCELLED:
	case WIRE_AGAIN:
		return wire_encode_slot(out, message->type, message->slot);
	case WIRE_FAILED:
		return wire_encode_failed(out, message->failed.slot, message->failed.reason);
	case WIRE_BYE:
		return wire_encode_bye(out);
	case WIRE_CLOCK:
		return wire_encode_clock(out, &message->clock);
	}
	fail_msg("decoded as type %d", (int)message->type);
	return 0;
}

/* From a block of exactly this length, so that a read behind it is seen by the sanitizer. */
static int decode(const uint8_t *bytes, size_t length, struct wire_message *message, uint8_t **copy)
{
	const char *why = "untouched";
	int error;

	*copy = malloc(length ? length : 1);
	assert_non_null(*copy);
	memcpy(*copy, bytes, length);
	memset(message, 0xee, sizeof(*message));
	error = wire_decode(*copy, length, message, &why);
	if (error) {
		assert_int_equal(error, -EPROTO);
		assert_non_null(why);
		assert_string_not_equal(why, "");
		assert_string_not_equal(why, "untouched");
	} else {
		assert_null(why);
	}
	return error;
}

static bool accepted(const uint8_t *bytes, size_t length)
{
	struct wire_message message;
	uint8_t *copy;
	int error = decode(bytes, length, &message, &copy);

	free(copy);
	return !error;
}

/* Everything that wire.h promises of a message that was decoded. */
static void assert_valid(const struct wire_message *message)
{
	const struct haul_tensor_info *tensor = &message->push.tensor;
	unsigned __int128 bits = (unsigned)tensor->dtype.bits * tensor->dtype.lanes;

	switch (message->type) {
	case WIRE_HELLO:
		assert_in_range(message->hello.role, WIRE_CONNECTOR, WIRE_ACCEPTOR);
		if (message->hello.version == WIRE_VERSION)
			assert_true(message->hello.slots >= 1);
		break;
	case WIRE_READY:
		assert_in_range(message->ready.key_length, 1, HAUL_KEY_MAX);
		assert_in_range(message->ready.descriptor_length, 0, HAUL_DESCRIPTOR_MAX);
		break;
	case WIRE_PUSH:
	case WIRE_REFUSED:
		assert_in_range(tensor->ndim, 0, HAUL_RANK_MAX);
		for (int i = 0; i < HAUL_RANK_MAX; i++) {
			assert_true(tensor->shape[i] >= 0);
			assert_true(i < tensor->ndim || !tensor->shape[i]);
		}
		for (int i = 0; i < tensor->ndim; i++)
			bits *= (uint64_t)tensor->shape[i];
		assert_true((bits + 7) / 8 == tensor->bytes);
		assert_true(tensor->bytes <= INT64_MAX);
		assert_true(message->push.offset <= INT64_MAX - tensor->bytes);
		break;
	default:
		assert_in_range(message->type, WIRE_HELLO, WIRE_CLOCK);
	}
}

/*
 * Whatever these bytes are: refused, or decoded into something valid that stays the same when it is
 * encoded and decoded once more.
 */
static void check_any(const uint8_t *bytes, size_t length)
{
	uint8_t first[HAUL_CONTROL_MAX], second[HAUL_CONTROL_MAX];
	struct wire_message message;
	uint8_t *copy, *copy_of_first;
	size_t encoded;

	if (!decode(bytes, length, &message, &copy)) {
		assert_valid(&message);
		encoded = encode(first, &message);
		assert_int_equal(decode(first, encoded, &message, &copy_of_first), 0);
		assert_int_equal(encode(second, &message), encoded);
		assert_memory_equal(first, second, encoded);
		free(copy_of_first);
	}
	free(copy);
}

/* ---- Samples: one per type, and the extremes --------------------------- */

static size_t make_samples(struct sample *samples)
{
	struct wire_hello hello = {WIRE_CONNECTOR, WIRE_VERSION, WIRE_FEATURE_AUTH, 77, 65536, {9}};
	struct wire_ready ready = {0, 5, 1000, (const uint8_t *)"desc", 4, (const uint8_t *)"key",
				   3};
	struct wire_ready longest = {WIRE_READY_QUERY, UINT64_MAX, UINT64_MAX, NULL, 64, NULL, 255};
	struct wire_push push = {
		WIRE_PUSH_CHECKSUM, 5, 0, 0x12345678, {{kDLFloat, 32, 1}, 2, {3, 4}, 48}};
	struct wire_push scalar = {0, 5, 0, 0, {{kDLBfloat, 16, 1}, 0, {0}, 2}};
	struct wire_push deep = {0, 5, 7, 0, {{kDLInt, 4, 1}, 8, {1, 1, 1, 1, 1, 1, 3, 3}, 5}};
	struct wire_clock question = {false, 6, 0}, answer = {true, UINT64_MAX, 7};
	static const uint8_t mac[WIRE_MAC_SIZE] = {1, 2, 3}, filling[255] = {4};
	size_t count = 0;

#define SAMPLE(encode_call)                                                                        \
	do {                                                                                       \
		struct sample *next = &samples[count++];                                           \
		uint8_t *out = next->bytes;                                                        \
		next->name = #encode_call;                                                         \
		next->length = encode_call;                                                        \
	} while (0)
	longest.descriptor = longest.key = filling;
	SAMPLE(wire_encode_hello(out, &hello));
	hello.role = WIRE_ACCEPTOR;
	SAMPLE(wire_encode_hello(out, &hello));
	SAMPLE(wire_encode_proof(out, mac));
	SAMPLE(wire_encode_reject(out, WIRE_REASON_VERSION));
	SAMPLE(wire_encode_ready(out, &ready));
	SAMPLE(wire_encode_ready(out, &longest));
	SAMPLE(wire_encode_push(out, WIRE_PUSH, &push));
	SAMPLE(wire_encode_push(out, WIRE_PUSH, &scalar));
	SAMPLE(wire_encode_push(out, WIRE_PUSH, &deep));
	SAMPLE(wire_encode_push(out, WIRE_REFUSED, &push));
	SAMPLE(wire_encode_slot(out, WIRE_PLACED, 1));
	SAMPLE(wire_encode_slot(out, WIRE_CANCEL, 2));
	SAMPLE(wire_encode_slot(out, WIRE_CANCELLED, UINT64_MAX));
	SAMPLE(wire_encode_slot(out, WIRE_AGAIN, 4));
	SAMPLE(wire_encode_failed(out, 5, WIRE_REASON_GIVEN_UP));
	SAMPLE(wire_encode_bye(out));
	SAMPLE(wire_encode_clock(out, &question));
	SAMPLE(wire_encode_clock(out, &answer));
#undef SAMPLE
	return count;
}

#define SAMPLES_MAX 20

static void every_sample(void (*check)(const struct sample *sample))
{
	static struct sample samples[SAMPLES_MAX];
	size_t count = make_samples(samples);

	assert_true(count <= SAMPLES_MAX);
	for (size_t i = 0; i < count; i++)
		check(&samples[i]);
}

/* ---- Tests ------------------------------------------------------------- */

static void check_whole(const struct sample *sample)
{
	struct wire_message message;
	uint8_t out[HAUL_CONTROL_MAX], *copy;

	assert_int_equal(decode(sample->bytes, sample->length, &message, &copy), 0);
	assert_valid(&message);
	assert_int_equal(encode(out, &message), sample->length);
	assert_memory_equal(out, sample->bytes, sample->length);
	free(copy);
}

static void round_trips(void **state)
{
	every_sample(check_whole);
}

static void check_truncations(const struct sample *sample)
{
	for (size_t length = 0; length < sample->length; length++) {
		if (accepted(sample->bytes, length))
			fail_msg("%s, cut off at %zu, was accepted", sample->name, length);
	}
}

static void every_truncation_is_refused(void **state)
{
	every_sample(check_truncations);
}

static void check_longer(const struct sample *sample)
{
	for (size_t more = 1; sample->length + more <= HAUL_CONTROL_MAX; more++) {
		if (accepted(sample->bytes, sample->length + more))
			fail_msg("%s with %zu bytes more was accepted", sample->name, more);
	}
}

static void every_longer_message_is_refused(void **state)
{
	every_sample(check_longer);
}

static void check_mutations(const struct sample *sample)
{
	uint8_t bytes[HAUL_CONTROL_MAX];

	memcpy(bytes, sample->bytes, sizeof(bytes));
	for (size_t i = 0; i < sample->length; i++) {
		for (unsigned change = 1; change <= UINT8_MAX; change++) {
			bytes[i] = sample->bytes[i] ^ (uint8_t)change;
			check_any(bytes, sample->length);
		}
		bytes[i] = sample->bytes[i];
	}
}

static void every_mutation_is_refused_or_valid(void **state)
{
	every_sample(check_mutations);
}

static void random_bytes(void **state)
{
	uint8_t bytes[128];
	uint64_t seed = 1234;

	for (unsigned round = 0; round < 200000; round++) {
		size_t length = unit_random(&seed) % sizeof(bytes);

		for (size_t i = 0; i < length; i++)
			bytes[i] = (uint8_t)unit_random(&seed);
		if (length)
			bytes[0] %= WIRE_CLOCK + 2;
		check_any(bytes, length);
	}
}

static void unknown_types(void **state)
{
	uint8_t bytes[64] = {0};

	assert_false(accepted(bytes, 0));
	for (unsigned type = 0; type <= UINT8_MAX; type++) {
		if (type >= WIRE_HELLO && type <= WIRE_CLOCK)
			continue;
		bytes[0] = (uint8_t)type;
		for (size_t length = 1; length <= sizeof(bytes); length++)
			assert_false(accepted(bytes, length));
	}
}

/* The bytes as wire.h draws them: a change here is a change of the protocol. */
static void layout(void **state)
{
	static const uint8_t ready_bytes[] = {
		4, 1,    2,    3,    0,    0,    0,    0,    8,    7,   6,   5,   4,   3,   2,
		1, 0x18, 0x17, 0x16, 0x15, 0x14, 0x13, 0x12, 0x11, 'a', 'b', 'c', 'k', 'e',
	};
	static const uint8_t push_bytes[] = {
		5,    1,    1,    2,    16, 0, 2, 1, 8,    7, 6, 5, 4, 3, 2, 1,
		0x04, 0x0a, 0,    0,    0,  0, 0, 0, 0x21, 0, 0, 0, 0, 0, 0, 0,
		0x78, 0x56, 0x34, 0x12, 0,  0, 0, 0, 5,    0, 0, 0, 0, 0, 0, 0,
	};
	static const uint8_t failed_bytes[] = {11, 0, 5, 0, 0, 0, 0, 0, 8, 7, 6, 5, 4, 3, 2, 1};
	static const uint8_t clock_bytes[] = {
		13, 1, 0, 0, 0, 0, 0, 0, 8, 7, 6, 5, 4, 3, 2, 1, 0x21, 0, 0, 0, 0, 0, 0, 0,
	};
	static const uint8_t hello_head[] = {
		1, 2, 1, 0, 'H', 'A', 'U', 'L', 2, 0, 0, 0, 0, 0, 0, 0x80, 8,
		7, 6, 5, 4, 3,   2,   1,   0,   0, 1, 0, 0, 0, 0, 0, 0xaa,
	};
	const uint64_t slot = UINT64_C(0x0102030405060708);
	struct wire_hello hello = {WIRE_ACCEPTOR, 1, UINT64_C(1) << 63 | 2, slot, 65536, {0xaa}};
	struct wire_ready ready = {1,
				   slot,
				   UINT64_C(0x1112131415161718),
				   (const uint8_t *)"abc",
				   3,
				   (const uint8_t *)"ke",
				   2};
	struct wire_push push = {1, slot, 0x21, 0x12345678, {{2, 16, 258}, 1, {5}, 0xa04}};
	struct wire_clock clock = {true, slot, 0x21};
	uint8_t out[HAUL_CONTROL_MAX];

	assert_int_equal(wire_encode_hello(out, &hello), WIRE_HELLO_SIZE);
	assert_memory_equal(out, hello_head, sizeof(hello_head));
	memset(out, 0xff, sizeof(out)); /* reserved bytes are cleared */
	assert_int_equal(wire_encode_ready(out, &ready), sizeof(ready_bytes));
	assert_memory_equal(out, ready_bytes, sizeof(ready_bytes));
	memset(out, 0xff, sizeof(out));
	assert_int_equal(wire_encode_push(out, WIRE_PUSH, &push), sizeof(push_bytes));
	assert_memory_equal(out, push_bytes, sizeof(push_bytes));
	memset(out, 0xff, sizeof(out));
	assert_int_equal(wire_encode_failed(out, slot, 5), sizeof(failed_bytes));
	assert_memory_equal(out, failed_bytes, sizeof(failed_bytes));
	memset(out, 0xff, sizeof(out));
	assert_int_equal(wire_encode_clock(out, &clock), sizeof(clock_bytes));
	assert_memory_equal(out, clock_bytes, sizeof(clock_bytes));
	assert_int_equal(wire_encode_proof(out, out + 100), 40);
	assert_int_equal(wire_encode_reject(out, 1), 8);
	assert_int_equal(wire_encode_bye(out), 8);
	assert_int_equal(wire_encode_slot(out, WIRE_PLACED, 1), 16);
}

static void hello_of_another_version(void **state)
{
	uint8_t bytes[HAUL_CONTROL_MAX + 1] = {WIRE_HELLO, WIRE_ACCEPTOR, 2, 1, 'H', 'A', 'U', 'L'};
	struct wire_message message;
	uint8_t *copy;

	for (size_t length = 8; length <= HAUL_CONTROL_MAX; length++) {
		assert_int_equal(decode(bytes, length, &message, &copy), 0);
		assert_int_equal(message.hello.version, 258);
		assert_int_equal(message.hello.role, WIRE_ACCEPTOR);
		free(copy);
	}
	assert_false(accepted(bytes, 7));
	assert_false(accepted(bytes, HAUL_CONTROL_MAX + 1));
	bytes[1] = 3;
	assert_false(accepted(bytes, 64));
	bytes[1] = WIRE_CONNECTOR;
	bytes[7] = 'l';
	assert_false(accepted(bytes, 64));
}

static void hello_without_slots(void **state)
{
	struct wire_hello hello = {WIRE_CONNECTOR, WIRE_VERSION, 0, 1, 0, {0}};
	uint8_t bytes[HAUL_CONTROL_MAX];

	assert_false(accepted(bytes, wire_encode_hello(bytes, &hello)));
	hello.slots = 1;
	assert_true(accepted(bytes, wire_encode_hello(bytes, &hello)));
}

static void ready_limits(void **state)
{
	uint8_t bytes[HAUL_CONTROL_MAX] = {WIRE_READY, 0, 1, 0};

	assert_true(accepted(bytes, 25));
	bytes[2] = 0; /* no key */
	assert_false(accepted(bytes, 24));
	assert_false(accepted(bytes, 25));
	bytes[2] = 255;
	bytes[3] = HAUL_DESCRIPTOR_MAX;
	assert_true(accepted(bytes, 24 + 255 + HAUL_DESCRIPTOR_MAX));
	bytes[3]++;
	assert_false(accepted(bytes, 24 + 255 + HAUL_DESCRIPTOR_MAX + 1));
	bytes[3] = 0;
	bytes[1] = WIRE_READY_QUERY;
	assert_true(accepted(bytes, 24 + 255));
	bytes[1] = WIRE_READY_PERSISTENT; /* reserved */
	assert_false(accepted(bytes, 24 + 255));
	bytes[1] = 0x80;
	assert_false(accepted(bytes, 24 + 255));
}

static bool push_accepted(struct wire_push push)
{
	uint8_t push_bytes[HAUL_CONTROL_MAX], refused_bytes[HAUL_CONTROL_MAX];
	bool result = accepted(push_bytes, wire_encode_push(push_bytes, WIRE_PUSH, &push));

	assert_int_equal(
		accepted(refused_bytes, wire_encode_push(refused_bytes, WIRE_REFUSED, &push)),
		result);
	return result;
}

static void push_that_lies(void **state)
{
	struct wire_push good = {0, 1, 0, 0, {{kDLFloat, 32, 1}, 2, {3, 4}, 48}}, push = good;

	assert_true(push_accepted(push));
	push.tensor.bytes = 47;
	assert_false(push_accepted(push));
	push.tensor.bytes = 49;
	assert_false(push_accepted(push));
	push = good;
	push.tensor.shape[0] = -3;
	assert_false(push_accepted(push));
	push.tensor.shape[1] = -4; /* two wrongs: the product is right */
	assert_false(push_accepted(push));
	push = good;
	push.tensor.dtype.bits = 0;
	push.tensor.bytes = 0;
	assert_false(push_accepted(push));
	push = good;
	push.tensor.dtype.lanes = 0;
	push.tensor.bytes = 0;
	assert_false(push_accepted(push));
	push = good;
	push.flags = 2;
	assert_false(push_accepted(push));
	push = good; /* 4 x 2^62 x 4: 0 when it overflows */
	push.tensor.shape[0] = INT64_C(1) << 62;
	push.tensor.bytes = 0;
	assert_false(push_accepted(push));
	push.tensor.shape[1] = 0; /* but this has no elements */
	assert_true(push_accepted(push));
}

static void push_offsets(void **state)
{
	struct wire_push push = {0, 1, INT64_MAX - 48, 0, {{kDLFloat, 32, 1}, 2, {3, 4}, 48}};

	assert_true(push_accepted(push));
	push.offset++;
	assert_false(push_accepted(push));
	push.offset = UINT64_MAX;
	assert_false(push_accepted(push));
	push.offset = UINT64_MAX - 47; /* the sum is 0 when it overflows */
	assert_false(push_accepted(push));
}

static void push_ranks(void **state)
{
	uint8_t bytes[HAUL_CONTROL_MAX] = {WIRE_PUSH, 0, 0, 2, 32, 0, 1};

	bytes[16] = 4;
	assert_true(accepted(bytes, 40)); /* a scalar */
	bytes[16] = 0;
	for (unsigned rank = 1; rank <= UINT8_MAX; rank++) {
		size_t length = 40 + 8 * (size_t)rank;

		bytes[2] = (uint8_t)rank;
		if (length <= sizeof(bytes))
			assert_int_equal(accepted(bytes, length), rank <= HAUL_RANK_MAX);
		assert_false(accepted(bytes, 40));
	}
}

static void reasons(void **state)
{
	uint8_t bytes[HAUL_CONTROL_MAX];
	struct wire_message message;
	uint8_t *copy;

	for (unsigned reason = 0; reason <= UINT16_MAX; reason++) {
		size_t length = wire_encode_failed(bytes, 1, reason);

		assert_int_equal(accepted(bytes, length),
				 reason == WIRE_REASON_GIVEN_UP || reason == WIRE_REASON_CHECKSUM);
	}
	/* A later version may have reasons that are not known here. */
	assert_int_equal(decode(bytes, wire_encode_reject(bytes, 999), &message, &copy), 0);
	assert_int_equal(message.reason, 999);
	free(copy);
}

static void reserved_bytes_are_ignored(void **state)
{
	uint8_t bytes[HAUL_CONTROL_MAX];
	size_t length = wire_encode_slot(bytes, WIRE_PLACED, 3);

	memset(bytes + 1, 0xff, 7);
	assert_true(accepted(bytes, length));
	length = wire_encode_bye(bytes);
	memset(bytes + 1, 0xff, 7);
	assert_true(accepted(bytes, length));
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(round_trips),
		cmocka_unit_test(every_truncation_is_refused),
		cmocka_unit_test(every_longer_message_is_refused),
		cmocka_unit_test(every_mutation_is_refused_or_valid),
		cmocka_unit_test(random_bytes),
		cmocka_unit_test(unknown_types),
		cmocka_unit_test(layout),
		cmocka_unit_test(hello_of_another_version),
		cmocka_unit_test(hello_without_slots),
		cmocka_unit_test(ready_limits),
		cmocka_unit_test(push_that_lies),
		cmocka_unit_test(push_offsets),
		cmocka_unit_test(push_ranks),
		cmocka_unit_test(reasons),
		cmocka_unit_test(reserved_bytes_are_ignored),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
