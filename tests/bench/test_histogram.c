/* SPDX-License-Identifier: Apache-2.0 */
#include <stdarg.h>
#include <stddef.h>
#include <setjmp.h>
#include <stdint.h>
#include <cmocka.h>

#include <math.h>
#include <stdlib.h>

#include "bench_common.h"
#include "histogram.h"

static struct histogram histogram, other;

static int reset(void **state)
{
	(void)state;
	histogram_reset(&histogram);
	histogram_reset(&other);
	return 0;
}

static void empty_is_zero(void **state)
{
	(void)state;
	assert_int_equal(histogram_at(&histogram, 0.5), 0);
	assert_int_equal(histogram_at(&histogram, 1), 0);
}

static void one_value_is_every_percentile(void **state)
{
	(void)state;
	histogram_add(&histogram, 123456789);
	assert_int_equal(histogram_at(&histogram, 0), 123456789);
	assert_int_equal(histogram_at(&histogram, 0.5), 123456789);
	assert_int_equal(histogram_at(&histogram, 1), 123456789);
}

/* Two others keep the value away from the exact ends. */
static void check_error(uint64_t value)
{
	double error;

	histogram_reset(&histogram);
	histogram_add(&histogram, 0);
	histogram_add(&histogram, value);
	histogram_add(&histogram, UINT64_C(1) << 43);
	error = fabs((double)histogram_at(&histogram, 0.5) - (double)value);
	assert_true(error <= 0.004 * (double)value);
}

static void error_is_below_half_a_percent(void **state)
{
	(void)state;
	for (uint64_t value = 1; value < 100000; value++)
		check_error(value);
	for (double value = 100000; value < 8e12; value *= 1.0137)
		check_error((uint64_t)value);
	for (unsigned bit = 1; bit < 43; bit++) {
		check_error((UINT64_C(1) << bit) - 1);
		check_error(UINT64_C(1) << bit);
		check_error((UINT64_C(1) << bit) + 1);
	}
}

static void values_beyond_the_range_stay_the_maximum(void **state)
{
	(void)state;
	histogram_add(&histogram, UINT64_MAX);
	histogram_add(&histogram, 1);
	assert_int_equal(histogram_at(&histogram, 1), UINT64_MAX);
	assert_int_equal(histogram.count, 2);
}

static int compare(const void *left, const void *right)
{
	uint64_t a = *(const uint64_t *)left, b = *(const uint64_t *)right;

	return (a > b) - (a < b);
}

static void percentiles_agree_with_sorting(void **state)
{
	static const double shares[] = {0.01, 0.5, 0.9, 0.99, 0.999, 1};
	enum { COUNT = 20000 };
	static uint64_t values[COUNT];

	(void)state;
	srand48(7);
	for (size_t i = 0; i < COUNT; i++) {
		/* From 1 us to about 1 s, as round trips are. */
		values[i] = (uint64_t)(1000 * exp(13.8 * drand48() * drand48()));
		histogram_add(&histogram, values[i]);
	}
	qsort(values, COUNT, sizeof(values[0]), compare);
	for (size_t i = 0; i < ARRAY_LENGTH(shares); i++) {
		uint64_t exact = values[(size_t)ceil(shares[i] * COUNT) - 1];
		double found = (double)histogram_at(&histogram, shares[i]);

		assert_true(fabs(found - (double)exact) <= 0.005 * (double)exact);
	}
	assert_int_equal(histogram_at(&histogram, 1), values[COUNT - 1]);
}

static void merge_is_as_if_added_to_one(void **state)
{
	struct histogram both;

	(void)state;
	histogram_reset(&both);
	for (uint64_t i = 1; i < 5000; i++) {
		histogram_add(i % 3 ? &histogram : &other, i * i);
		histogram_add(&both, i * i);
	}
	histogram_merge(&histogram, &other);
	assert_memory_equal(&histogram, &both, sizeof(both));
}

static void merge_with_nothing_changes_nothing(void **state)
{
	(void)state;
	histogram_add(&histogram, 5);
	histogram_merge(&histogram, &other);
	assert_int_equal(histogram.least, 5);
	assert_int_equal(histogram.most, 5);
	assert_int_equal(histogram.count, 1);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test_setup(empty_is_zero, reset),
		cmocka_unit_test_setup(one_value_is_every_percentile, reset),
		cmocka_unit_test_setup(error_is_below_half_a_percent, reset),
		cmocka_unit_test_setup(values_beyond_the_range_stay_the_maximum, reset),
		cmocka_unit_test_setup(percentiles_agree_with_sorting, reset),
		cmocka_unit_test_setup(merge_is_as_if_added_to_one, reset),
		cmocka_unit_test_setup(merge_with_nothing_changes_nothing, reset),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
