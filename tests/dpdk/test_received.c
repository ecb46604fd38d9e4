/* SPDX-License-Identifier: Apache-2.0 */
/* What a receiver remembers, against a model that remembers everything. */
#include "recovery.h"

#include "failing_memory.h"
#include "unit.h"

#define MODEL_MOST 400000

/* ---- The model --------------------------------------------------------- */

struct model {
	uint8_t arrived[MODEL_MOST];
	uint8_t told[MODEL_MOST]; /* how often */
	uint64_t largest;
};

static enum received_packet model_add(struct model *model, uint64_t number)
{
	bool known = number + RECEIVED_SPAN > model->largest;

	if (model->arrived[number] || !known)
		return RECEIVED_AGAIN;
	model->arrived[number] = 1;
	if (number > model->largest)
		model->largest = number;
	return RECEIVED_NEW;
}

/* The ranges are true, in falling order, and leave nothing out that was not told often enough. */
static void check_ack(struct model *model, const struct packet_ack *ack)
{
	uint64_t lowest = model->largest > RECEIVED_SPAN ? model->largest - RECEIVED_SPAN + 1 : 1;
	uint64_t number = model->largest;

	assert_in_range(ack->count, 1, PACKET_RANGES_MAX);
	assert_int_equal(ack->ranges[0].last, model->largest);
	for (uint32_t i = 0; i < ack->count; i++) {
		const struct packet_range *range = &ack->ranges[i];

		for (; number > range->last; number--)
			assert_false(model->arrived[number]);
		assert_int_equal(number, range->last);
		assert_true(range->first <= range->last);
		for (; number >= range->first; number--) {
			assert_true(model->arrived[number] || number < lowest);
			model->told[number] += model->told[number] < RECEIVED_TELL;
		}
	}
	for (; number >= lowest; number--) {
		if (ack->count == PACKET_RANGES_MAX) /* no more room: that counts, too */
			model->told[number] += model->told[number] < RECEIVED_TELL;
		else
			assert_true(!model->arrived[number] ||
				    model->told[number] == RECEIVED_TELL);
	}
}

/* ---- Simple cases ------------------------------------------------------ */

static void test_nothing(void **state)
{
	struct received received;
	struct packet_ack ack;

	received_start(&received);
	assert_false(received_ack(&received, 5, &ack));
	assert_false(received_has(&received, 1));
	assert_int_equal(received_add(&received, 0, 5), RECEIVED_AGAIN);
	assert_null(received.bits);
	received_stop(&received);
}

static void test_in_order(void **state)
{
	struct received received;
	struct packet_ack ack;

	received_start(&received);
	for (uint64_t number = 1; number <= 100000; number++)
		assert_int_equal(received_add(&received, number, 1000 + number), RECEIVED_NEW);
	assert_int_equal(received.pending, 100000);
	assert_false(received.gap);
	/* A path without loss costs a few words only. */
	assert_in_range(received.room, 64, 256);
	received.marks = 7;
	/* And still tells of all that the sender can want to know. */
	assert_true(received_ack(&received, 1000 + 100000 + 55, &ack));
	assert_int_equal(ack.count, 1);
	assert_int_equal(ack.ranges[0].first, 100000 - RECEIVED_SPAN + 1);
	assert_int_equal(ack.ranges[0].last, 100000);
	assert_int_equal(ack.delay_ns, 55);
	assert_int_equal(ack.marks, 7);
	assert_int_equal(received.pending, 0);
	assert_int_equal(received_add(&received, 100000, 0), RECEIVED_AGAIN);
	assert_int_equal(received_add(&received, 1, 0), RECEIVED_AGAIN);
	assert_int_equal(received.pending, 0);
	received_stop(&received);
}

static void test_gap(void **state)
{
	struct received received;
	struct packet_ack ack;

	received_start(&received);
	received_add(&received, 1, 1);
	received_add(&received, 3, 2);
	assert_true(received.gap);
	assert_true(received_has(&received, 1));
	assert_false(received_has(&received, 2));
	assert_true(received_has(&received, 3));
	assert_false(received_has(&received, 4));
	received_ack(&received, 2, &ack);
	assert_false(received.gap);
	assert_int_equal(ack.count, 2);
	assert_int_equal(ack.ranges[0].first, 3);
	assert_int_equal(ack.ranges[0].last, 3);
	assert_int_equal(ack.ranges[1].first, 1);
	assert_int_equal(ack.ranges[1].last, 1);
	/* What fills it is old, and tells nothing about the delay of the largest. */
	assert_int_equal(received_add(&received, 2, 900), RECEIVED_NEW);
	received_ack(&received, 1000, &ack);
	assert_int_equal(ack.count, 1);
	assert_int_equal(ack.ranges[0].first, 1);
	assert_int_equal(ack.ranges[0].last, 3);
	assert_int_equal(ack.delay_ns, 998);
	received_stop(&received);
}

static void test_delay(void **state)
{
	struct received received;
	struct packet_ack ack;

	received_start(&received);
	received_add(&received, 1, 10);
	received_ack(&received, 10 + UINT64_C(5000000000), &ack);
	assert_int_equal(ack.delay_ns, UINT32_MAX);
	/* Nobody knows when it came. */
	received_add(&received, 2, 0);
	received_ack(&received, UINT64_C(5000000000), &ack);
	assert_int_equal(ack.delay_ns, UINT32_MAX);
	received_stop(&received);
}

/* More holes than an acknowledgement has ranges for: the newest count. */
static void test_many_holes(void **state)
{
	struct received received;
	struct packet_ack ack;

	received_start(&received);
	for (uint64_t number = 2; number <= 1000; number += 2)
		received_add(&received, number, 1);
	received_ack(&received, 1, &ack);
	assert_int_equal(ack.count, PACKET_RANGES_MAX);
	for (uint32_t i = 0; i < ack.count; i++) {
		assert_int_equal(ack.ranges[i].first, 1000 - 2 * i);
		assert_int_equal(ack.ranges[i].last, 1000 - 2 * i);
	}
	received_stop(&received);
}

/* What was told often enough gives way to what was not, and to shorter acknowledgements. */
static void test_old_holes(void **state)
{
	struct received received;
	struct packet_ack ack;
	uint64_t number = 0;

	received_start(&received);
	for (unsigned i = 0; i < 1000; i++) {
		for (number += 2; number % 16; number++)
			received_add(&received, number, 1);
		received_ack(&received, 1, &ack);
	}
	assert_in_range(ack.count, RECEIVED_TELL, 2 * RECEIVED_TELL + 2);
	assert_int_equal(ack.ranges[0].last, number - 1);
	/* One that was late is told as often as the others. */
	received_add(&received, number - 16 * 100, 1);
	for (unsigned i = 0; i < RECEIVED_TELL; i++) {
		received_ack(&received, 1, &ack);
		assert_int_equal(ack.count, PACKET_RANGES_MAX);
	}
	received_ack(&received, 1, &ack);
	assert_in_range(ack.count, 1, 2 * RECEIVED_TELL);
	received_stop(&received);
}

/* ---- The span ---------------------------------------------------------- */

static void test_old_numbers_are_known(void **state)
{
	struct received received;
	struct packet_ack ack;
	uint64_t largest = 3 + RECEIVED_SPAN;

	received_start(&received);
	received_add(&received, 1, 1);
	received_add(&received, largest, 1);
	assert_int_equal(received.room, RECEIVED_SPAN);
	/* 2 and 3 are beyond the span, 4 is the first that can be told. */
	assert_int_equal(received_add(&received, 3, 1), RECEIVED_AGAIN);
	assert_true(received_has(&received, 3));
	assert_false(received_has(&received, 4));
	assert_int_equal(received_add(&received, 4, 1), RECEIVED_NEW);
	assert_int_equal(received_add(&received, 4, 1), RECEIVED_AGAIN);
	received_ack(&received, 1, &ack);
	assert_int_equal(ack.count, 2);
	assert_int_equal(ack.ranges[1].first, 4);
	assert_int_equal(ack.ranges[1].last, 4);
	received_stop(&received);
}

/* A peer that names absurd numbers gets its answer, for no more memory or work than any other. */
static void test_jumps(void **state)
{
	const uint64_t jumps[] = {
		UINT64_C(1) << 20,     UINT64_C(1) << 32, PACKET_NUMBER_MAX - 70000,
		PACKET_NUMBER_MAX - 1, PACKET_NUMBER_MAX,
	};
	struct received received;
	struct packet_ack ack;

	received_start(&received);
	for (size_t i = 0; i < COUNT(jumps); i++) {
		assert_int_equal(received_add(&received, jumps[i], 1), RECEIVED_NEW);
		assert_int_equal(received_add(&received, jumps[i], 1), RECEIVED_AGAIN);
		assert_int_equal(received.room, RECEIVED_SPAN);
		received_ack(&received, 1, &ack);
		assert_int_equal(ack.ranges[0].last, jumps[i]);
	}
	assert_int_equal(ack.count, 1);
	assert_int_equal(ack.ranges[0].first, PACKET_NUMBER_MAX - 1);
	assert_int_equal(received_add(&received, PACKET_NUMBER_MAX - RECEIVED_SPAN, 1),
			 RECEIVED_AGAIN);
	assert_int_equal(received_add(&received, PACKET_NUMBER_MAX - RECEIVED_SPAN + 1, 1),
			 RECEIVED_NEW);
	received_stop(&received);
}

static void test_starts_anywhere(void **state)
{
	for (uint64_t first = 1; first < 600; first++) {
		struct received received;
		struct packet_ack ack;

		received_start(&received);
		assert_int_equal(received_add(&received, first, 1), RECEIVED_NEW);
		received_ack(&received, 1, &ack);
		assert_int_equal(ack.count, 1);
		assert_int_equal(ack.ranges[0].first, first);
		for (uint64_t number = 1; number < first; number++)
			assert_int_equal(received_add(&received, number, 1), RECEIVED_NEW);
		received_ack(&received, 1, &ack);
		assert_int_equal(ack.count, 1);
		assert_int_equal(ack.ranges[0].first, 1);
		received_stop(&received);
	}
}

/* ---- Memory ------------------------------------------------------------ */

static void test_no_memory(void **state)
{
	struct received received;
	struct packet_ack ack;

	received_start(&received);
	memory_left = 0;
	assert_int_equal(received_add(&received, 1, 1), RECEIVED_NO_MEMORY);
	assert_false(received_ack(&received, 1, &ack));
	memory_left = 1;
	assert_int_equal(received_add(&received, 1, 1), RECEIVED_NEW);
	for (uint64_t number = 3; number <= 256; number++)
		assert_int_equal(received_add(&received, number, 1), RECEIVED_NEW);
	received.pending = 0;
	/* To remember that 2 is missing would need more of it. */
	assert_int_equal(received_add(&received, 258, 1), RECEIVED_NO_MEMORY);
	assert_int_equal(received_add(&received, PACKET_NUMBER_MAX, 1), RECEIVED_NO_MEMORY);
	assert_int_equal(received.pending, 0);
	received_ack(&received, 1, &ack);
	assert_int_equal(ack.ranges[0].last, 256);
	assert_int_equal(ack.count, 2);
	/* As if it had been lost: it can be had with a new number, or when there is memory. */
	assert_int_equal(received_add(&received, 2, 1), RECEIVED_NEW);
	assert_int_equal(received_add(&received, 257, 1), RECEIVED_NEW);
	memory_left = -1;
	assert_int_equal(received_add(&received, 1000, 1), RECEIVED_NEW);
	received_stop(&received);
}

/* ---- Anything ---------------------------------------------------------- */

/* Numbers around the largest, mostly new ones, some far ahead or behind. */
static uint64_t some_number(const struct model *model, unsigned pattern, uint64_t *seed)
{
	uint64_t die = unit_random(seed) % 100;
	uint64_t back = unit_random(seed);

	if (die < (pattern & 1 ? 95 : 60))
		return model->largest + 1;
	if (die < 97)
		back %= pattern & 2 ? 3000 : 20;
	else if (die < 99)
		back %= RECEIVED_SPAN + 100;
	else
		return model->largest + 1 + back % (pattern & 4 ? 5000 : 100);
	return back < model->largest ? model->largest - back : 1;
}

static void test_anything(void **state)
{
	struct model *model = malloc(sizeof(*model));
	uint64_t seed = 88172645463325252;

	for (unsigned pattern = 0; pattern < 8; pattern++) {
		uint64_t ack_each = pattern & 1 ? 997 : 100;
		struct received received;
		struct packet_ack ack;

		memset(model, 0, sizeof(*model));
		received_start(&received);
		for (unsigned i = 0; i < 200000 && model->largest < MODEL_MOST - 6000; i++) {
			uint64_t number = some_number(model, pattern, &seed);
			enum received_packet expected = model_add(model, number);

			assert_int_equal(received_add(&received, number, i), expected);
			assert_true(received_has(&received, number));
			if (unit_random(&seed) % ack_each == 0) {
				received_ack(&received, i, &ack);
				check_ack(model, &ack);
			}
		}
		assert_in_range(received.room, 1, RECEIVED_SPAN);
		received_stop(&received);
	}
	free(model);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_nothing),
		cmocka_unit_test(test_in_order),
		cmocka_unit_test(test_gap),
		cmocka_unit_test(test_delay),
		cmocka_unit_test(test_many_holes),
		cmocka_unit_test(test_old_holes),
		cmocka_unit_test(test_old_numbers_are_known),
		cmocka_unit_test(test_jumps),
		cmocka_unit_test(test_starts_anywhere),
		cmocka_unit_test(test_no_memory),
		cmocka_unit_test(test_anything),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
