/* SPDX-License-Identifier: Apache-2.0 */
#include <stdarg.h>
#include <stddef.h>
#include <setjmp.h>
#include <stdint.h>
#include <cmocka.h>

#include <math.h>

#include "bench_common.h"
#include "meter.h"

static struct meter meter;

#define MS UINT64_C(1000000)
#define TENSOR 1000

static void assert_near(double found, double expected)
{
	assert_true(fabs(found - expected) < 1e-6 * expected);
}

static void what_is_inside_counts_whole(void **state)
{
	(void)state;
	meter_reset(&meter, 100, 200, 0);
	meter_add(&meter, 100, 150, TENSOR);
	meter_add(&meter, 150, 150, TENSOR); /* faster than the clock */
	meter_add(&meter, 150, 200, TENSOR);
	assert_near(meter.bytes, 3 * TENSOR);
	assert_near(meter.tensors, 3);
	assert_int_equal(meter.times.count, 3);
}

static void what_is_outside_does_not(void **state)
{
	(void)state;
	meter_reset(&meter, 100, 200, 0);
	meter_add(&meter, 0, 100, TENSOR);
	meter_add(&meter, 0, 50, TENSOR);
	meter_add(&meter, 50, 50, TENSOR);
	meter_add(&meter, 200, 300, TENSOR);
	meter_add(&meter, 250, 250, TENSOR);
	assert_true(meter.bytes == 0);
	assert_int_equal(meter.all_bytes, 5 * TENSOR);
	assert_int_equal(meter.times.count, 0);
}

static void an_edge_counts_in_proportion(void **state)
{
	(void)state;
	meter_reset(&meter, 100, 200, 0);
	meter_add(&meter, 80, 120, TENSOR);
	assert_near(meter.bytes, TENSOR / 2.0);
	meter_add(&meter, 190, 290, TENSOR);
	assert_near(meter.bytes, 0.6 * TENSOR);
	meter_add(&meter, 50, 250, TENSOR); /* longer than the window */
	assert_near(meter.bytes, 1.1 * TENSOR);
}

/* A link of one tensor each 10 ms, four in flight that wait for each other. */
static void queued_tensors_have_no_bias(void **state)
{
	(void)state;
	for (uint64_t phase = 0; phase < 10; phase++) {
		meter_reset(&meter, 100 * MS + phase * MS, 601 * MS + phase * MS, 0);
		for (uint64_t i = 0; i < 100; i++) {
			uint64_t end = (i + 1) * 10 * MS;

			meter_add(&meter, i < 4 ? 0 : end - 40 * MS, end, TENSOR);
		}
		assert_near(meter_window(&meter), 0.501);
		assert_near(meter.bytes / meter_window(&meter), TENSOR * 100.0);
	}
}

/* The same link, the four take turns and end together. */
static void bundles_of_tensors_have_no_bias(void **state)
{
	(void)state;
	for (uint64_t phase = 0; phase < 40; phase++) {
		meter_reset(&meter, 100 * MS + phase * MS, 600 * MS + phase * MS, 0);
		for (uint64_t i = 0; i < 100; i++) {
			uint64_t end = (i / 4 + 1) * 40 * MS;

			meter_add(&meter, end - 40 * MS, end, TENSOR);
		}
		assert_near(meter.bytes / meter_window(&meter), TENSOR * 100.0);
	}
}

static void enough_closes_the_window(void **state)
{
	(void)state;
	meter_reset(&meter, 0, UINT64_MAX, 10);
	for (uint64_t i = 0; i < 20; i++)
		meter_add(&meter, i * MS, (i + 1) * MS, TENSOR);
	assert_int_equal(meter.end, 10 * MS);
	assert_near(meter.bytes, 10 * TENSOR);
	assert_int_equal(meter.all_tensors, 20);
	assert_near(bench_gbps(meter.bytes, meter_window(&meter)), 0.008);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(what_is_inside_counts_whole),
		cmocka_unit_test(what_is_outside_does_not),
		cmocka_unit_test(an_edge_counts_in_proportion),
		cmocka_unit_test(queued_tensors_have_no_bias),
		cmocka_unit_test(bundles_of_tensors_have_no_bias),
		cmocka_unit_test(enough_closes_the_window),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
