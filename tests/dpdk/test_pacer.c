/* SPDX-License-Identifier: Apache-2.0 */
/* The token bucket. */
#include "congestion.h"

#include "unit.h"

#define US UINT64_C(1000)
#define MS UINT64_C(1000000)
#define SECOND UINT64_C(1000000000)

static void test_no_pace(void **state)
{
	struct pacer pacer;

	pacer_start(&pacer, 6000, 5);
	assert_int_equal(pacer_room(&pacer, 5), INT64_MAX);
	pacer_sent(&pacer, UINT64_C(1) << 40);
	assert_int_equal(pacer_room(&pacer, 6), INT64_MAX);
	assert_true(pacer_next(&pacer) <= 6);
}

/* A burst, and then one packet after the other. */
static void test_burst_and_rate(void **state)
{
	struct pacer pacer;

	pacer_start(&pacer, 6000, 0);
	pacer_set_rate(&pacer, 1000000, 0); /* 1 byte in 1 us */
	for (unsigned i = 0; i < 4; i++) {
		assert_true(pacer_room(&pacer, 0) > 0);
		assert_true(pacer_next(&pacer) == 0);
		pacer_sent(&pacer, 1500);
	}
	assert_int_equal(pacer_room(&pacer, 0), 0);
	/* One byte is enough: the rest is a debt. */
	assert_int_equal(pacer_next(&pacer), 1 * US);
	assert_int_equal(pacer_room(&pacer, 1 * US - 1), 0);
	assert_int_equal(pacer_room(&pacer, 1 * US), 1);
	pacer_sent(&pacer, 1500);
	assert_int_equal(pacer_room(&pacer, 1 * US), -1499);
	assert_int_equal(pacer_next(&pacer), 1501 * US);
	assert_int_equal(pacer_room(&pacer, 1500 * US), 0);
	assert_int_equal(pacer_room(&pacer, 1501 * US), 1);
}

/* Looking often must not make it slower: parts of bytes count. */
static void test_looking_often(void **state)
{
	const uint64_t rates[] = {1000, 125000000, 1250000000, 12500000000, 99999999999};
	const uint64_t steps[] = {1, 7, 50, 999};

	for (size_t i = 0; i < COUNT(rates) * COUNT(steps); i++) {
		uint64_t rate = rates[i / COUNT(steps)], step = steps[i % COUNT(steps)];
		uint64_t end = step * 1000000, sent = 0;
		double due;
		struct pacer pacer;

		pacer_start(&pacer, 18000, 0);
		pacer_set_rate(&pacer, rate, 0);
		for (uint64_t now = 0; now <= end; now += step)
			while (pacer_room(&pacer, now) > 0) {
				pacer_sent(&pacer, 9000);
				sent += 9000;
			}
		due = (double)rate * (double)end / 1e9;
		assert_true((double)sent <= due + 18000 + 9000);
		assert_true((double)sent >= due * 0.999);
	}
}

/* Idle time fills the bucket, and no more. */
static void test_idle_is_not_saved(void **state)
{
	struct pacer pacer;
	uint64_t now = 0;

	pacer_start(&pacer, 6000, 0);
	pacer_set_rate(&pacer, 125000000, 0);
	pacer_sent(&pacer, 6000);
	for (; now < 1000 * MS; now += US)
		assert_true(pacer_room(&pacer, now) <= 6000);
	assert_int_equal(pacer_room(&pacer, now), 6000);
}

/* Who was away for a while gets what was due meanwhile, up to half a millisecond of it. */
static void test_pauses(void **state)
{
	struct pacer pacer;

	pacer_start(&pacer, 6000, 0);
	pacer_set_rate(&pacer, 125000000, 0);
	pacer_sent(&pacer, 6000);
	assert_int_equal(pacer_room(&pacer, 0), 0);
	assert_int_equal(pacer_room(&pacer, 200 * US), 25000);
	pacer_sent(&pacer, 25000);
	assert_int_equal(pacer_room(&pacer, 200 * US + 10 * SECOND), 62500);
	/* It is for now, not for later. */
	assert_int_equal(pacer_room(&pacer, 200 * US + 10 * SECOND + 1), 62500);
	pacer_sent(&pacer, 62500);
	assert_int_equal(pacer_room(&pacer, 200 * US + 10 * SECOND + 9), 1);
}

static void test_rate_changes(void **state)
{
	struct pacer pacer;

	pacer_start(&pacer, 6000, 0);
	pacer_set_rate(&pacer, 1000000, 0);
	pacer_sent(&pacer, 6000);
	/* What was due before the change is due at the old rate. */
	pacer_set_rate(&pacer, 2000000, 100 * US);
	assert_int_equal(pacer_room(&pacer, 200 * US), 100 + 200);
	/* Slower: what has been saved is worth its time. */
	pacer_set_rate(&pacer, 200000, 200 * US);
	assert_int_equal(pacer_room(&pacer, 200 * US), 30);
	/* But debts stay. */
	pacer_sent(&pacer, 1030);
	pacer_set_rate(&pacer, 100000, 200 * US);
	assert_int_equal(pacer_room(&pacer, 200 * US), -1000);
	pacer_set_rate(&pacer, 0, 201 * US);
	assert_int_equal(pacer_room(&pacer, 201 * US), INT64_MAX);
}

static void test_clock_that_stands_or_goes_back(void **state)
{
	struct pacer pacer;

	pacer_start(&pacer, 6000, 5 * SECOND);
	pacer_set_rate(&pacer, 1000000, 5 * SECOND);
	pacer_sent(&pacer, 6000);
	assert_int_equal(pacer_room(&pacer, 5 * SECOND), 0);
	assert_int_equal(pacer_room(&pacer, 4 * SECOND), 0);
	pacer_set_rate(&pacer, 2000000, 1 * SECOND);
	assert_int_equal(pacer_room(&pacer, 0), 0);
	assert_int_equal(pacer_room(&pacer, 5 * SECOND + 50 * US), 100);
}

/* No overflow, at any rate and after any time. */
static void test_extremes(void **state)
{
	const uint64_t rates[] = {1, 1000, UINT64_C(1) << 38};

	for (size_t i = 0; i < COUNT(rates); i++) {
		struct pacer pacer;
		uint64_t now = UINT64_C(1) << 62;

		pacer_start(&pacer, 1 << 20, 0);
		pacer_set_rate(&pacer, rates[i], 0);
		pacer_sent(&pacer, 1 << 30);
		assert_true(pacer_room(&pacer, now) >= 1 << 20);
		assert_true(pacer_room(&pacer, now) <= 1 << 28);
		assert_true(pacer_next(&pacer) <= now);
		pacer_sent(&pacer, 1 << 30);
		assert_true(pacer_next(&pacer) > now);
	}
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_no_pace),
		cmocka_unit_test(test_burst_and_rate),
		cmocka_unit_test(test_looking_often),
		cmocka_unit_test(test_idle_is_not_saved),
		cmocka_unit_test(test_pauses),
		cmocka_unit_test(test_rate_changes),
		cmocka_unit_test(test_clock_that_stands_or_goes_back),
		cmocka_unit_test(test_extremes),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
