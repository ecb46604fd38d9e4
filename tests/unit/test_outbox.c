/* SPDX-License-Identifier: Apache-2.0 */
#include "unit.h"

#include <errno.h>

#include "bytes.h"
#include "failing_memory.h"
#include "streams/outbox.h"
#include "streams/small_pushes.h"

/* Random lengths in and out: what leaves is what came, in order. */
static void bytes_in_order(void **state)
{
	struct haul_outbox box = {0};
	uint64_t seed = 3;
	uint8_t in = 0, out = 0;

	for (int i = 0; i < 20000; i++) {
		size_t length = unit_random(&seed) % 300;
		uint8_t *bytes = haul_outbox_append(&box, length);

		assert_non_null(bytes);
		for (size_t j = 0; j < length; j++)
			bytes[j] = in++;
		length = unit_random(&seed) % (haul_outbox_waiting(&box) + 1);
		for (size_t j = 0; j < length; j++)
			assert_int_equal(box.bytes[box.start + j], out++);
		haul_outbox_drop(&box, length);
	}
	haul_outbox_free(&box);
}

static void large_memory_is_given_back(void **state)
{
	struct haul_outbox box = {0};

	assert_non_null(haul_outbox_append(&box, 100));
	haul_outbox_drop(&box, 100);
	assert_non_null(box.bytes);
	assert_non_null(haul_outbox_append(&box, 1 << 20));
	haul_outbox_drop(&box, 1);
	assert_non_null(box.bytes);
	haul_outbox_drop(&box, haul_outbox_waiting(&box));
	assert_null(box.bytes);
	haul_outbox_free(&box);
}

static void records(void **state)
{
	static const uint8_t header[] = "head", data[] = "tensor";
	const struct haul_push push = {.slot = UINT64_C(0x0102030405060708),
				       .offset = 9,
				       .data = data,
				       .length = sizeof(data),
				       .header = header,
				       .header_length = sizeof(header)};
	struct haul_outbox box = {0};
	const uint8_t *bytes;

	assert_int_equal(haul_outbox_small(&box, 7, &push), 0);
	bytes = box.bytes + box.start;
	assert_int_equal(haul_outbox_waiting(&box), RECORD_SIZE + get32(bytes));
	assert_int_equal(get32(bytes), SMALL_SIZE + sizeof(header) + sizeof(data));
	assert_int_equal(bytes[4], 7);
	assert_int_equal(get16(bytes + 6), sizeof(header));
	assert_int_equal(get64(bytes + 8), push.slot);
	assert_int_equal(get64(bytes + 16), push.offset);
	assert_memory_equal(bytes + RECORD_SIZE + SMALL_SIZE, header, sizeof(header));
	assert_memory_equal(bytes + RECORD_SIZE + SMALL_SIZE + sizeof(header), data, sizeof(data));
	haul_outbox_free(&box);
}

static void without_memory(void **state)
{
	struct haul_outbox box = {0};
	struct haul_push push = {.length = 4096};

	memory_left = 0;
	assert_null(haul_outbox_append(&box, 1));
	assert_int_equal(haul_outbox_small(&box, 1, &push), -ENOMEM);
	assert_int_equal(haul_outbox_waiting(&box), 0);
	memory_left = -1;
	haul_outbox_free(&box);
}

static void small_pushes_wait_in_order(void **state)
{
	struct haul_small_pushes waiting = {0};
	struct haul_push pushes[4] = {0};

	for (size_t i = 0; i < COUNT(pushes); i++) {
		assert_false(haul_small_push_waits(&pushes[i]));
		haul_small_pushes_add(&waiting, &pushes[i]);
		assert_true(haul_small_push_waits(&pushes[i]));
	}
	/* From the middle, the end, and the front. */
	haul_small_pushes_remove(&waiting, &pushes[1]);
	haul_small_pushes_remove(&waiting, &pushes[3]);
	assert_false(haul_small_push_waits(&pushes[3]));
	haul_small_pushes_add(&waiting, &pushes[1]);
	assert_ptr_equal(waiting.first, &pushes[0]);
	haul_small_pushes_remove(&waiting, &pushes[0]);
	assert_ptr_equal(waiting.first, &pushes[2]);
	assert_ptr_equal(waiting.first->next, &pushes[1]);
	haul_small_pushes_remove(&waiting, &pushes[2]);
	haul_small_pushes_remove(&waiting, &pushes[1]);
	assert_null(waiting.first);
	haul_small_pushes_add(&waiting, &pushes[3]);
	assert_ptr_equal(waiting.first, &pushes[3]);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(bytes_in_order),
		cmocka_unit_test(large_memory_is_given_back),
		cmocka_unit_test(records),
		cmocka_unit_test(without_memory),
		cmocka_unit_test(small_pushes_wait_in_order),
	};

	return cmocka_run_group_tests_name("outbox", tests, NULL, NULL);
}
