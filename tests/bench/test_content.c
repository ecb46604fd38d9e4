/* SPDX-License-Identifier: Apache-2.0 */
#include <stdarg.h>
#include <stddef.h>
#include <setjmp.h>
#include <stdint.h>
#include <cmocka.h>

#include <string.h>

#include "bench_common.h"
#include "content.h"

static uint8_t bytes[3 * 4096 + 5];

static const size_t lengths[] = {0, 1, 7, 8, 63, 64, 65, 4096, sizeof(bytes)};

static void what_was_stamped_is_accepted(void **state)
{
	struct companion companion;

	(void)state;
	for (size_t i = 0; i < ARRAY_LENGTH(lengths); i++) {
		content_fill(bytes, lengths[i], 1);
		content_stamp(bytes, lengths[i], 1, 5, &companion);
		assert_true(content_is(bytes, lengths[i], 5, &companion));
		assert_false(content_is(bytes, lengths[i], 6, &companion));
	}
}

static void any_changed_byte_is_noticed(void **state)
{
	struct companion companion;

	(void)state;
	content_fill(bytes, sizeof(bytes), 1);
	content_stamp(bytes, sizeof(bytes), 1, 0, &companion);
	for (size_t i = 0; i < sizeof(bytes); i += 37) {
		bytes[i] ^= 1;
		assert_false(content_is(bytes, sizeof(bytes), 0, &companion));
		bytes[i] ^= 1;
	}
	assert_true(content_is(bytes, sizeof(bytes), 0, &companion));
}

/* Any line of the tensor before, left in place, is noticed. */
static void a_line_of_an_earlier_tensor_is_noticed(void **state)
{
	static uint8_t earlier[sizeof(bytes)];
	struct companion companion;

	(void)state;
	content_fill(bytes, sizeof(bytes), 1);
	content_stamp(bytes, sizeof(bytes), 1, 7, &companion);
	memcpy(earlier, bytes, sizeof(bytes));
	content_stamp(bytes, sizeof(bytes), 1, 8, &companion);
	for (size_t at = 0; at + 64 <= sizeof(bytes); at += 64)
		assert_memory_not_equal(bytes + at, earlier + at, 64);
	memcpy(bytes + 4096, earlier + 4096, 64);
	assert_false(content_is(bytes, sizeof(bytes), 8, &companion));
}

static void nothing_behind_the_end_is_touched(void **state)
{
	struct companion companion;

	(void)state;
	for (size_t i = 0; i < ARRAY_LENGTH(lengths) - 1; i++) {
		memset(bytes, 0xee, sizeof(bytes));
		content_fill(bytes, lengths[i], 3);
		content_stamp(bytes, lengths[i], 3, 4, &companion);
		for (size_t at = lengths[i]; at < sizeof(bytes); at++)
			assert_int_equal(bytes[at], 0xee);
	}
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(what_was_stamped_is_accepted),
		cmocka_unit_test(any_changed_byte_is_noticed),
		cmocka_unit_test(a_line_of_an_earlier_tensor_is_noticed),
		cmocka_unit_test(nothing_behind_the_end_is_touched),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
