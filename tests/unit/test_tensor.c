/* SPDX-License-Identifier: Apache-2.0 */
#include "unit.h"

#include <errno.h>

#include "engine/tensor.h"

static uint8_t memory[64];

static DLTensor make(uint8_t bits, uint16_t lanes, int32_t ndim, const int64_t *shape)
{
	return haul_tensor(memory, (DLDataType){kDLFloat, bits, lanes}, ndim, shape);
}

/* The size, or the error with its reason. */
static int64_t size_of(const DLTensor *tensor, char reason[256])
{
	uint64_t bytes = 12345;
	int error = haul_tensor_bytes(tensor, &bytes, reason, 256);

	assert_int_equal(error, haul_tensor_bytes(tensor, &bytes, NULL, 0));
	if (!error)
		assert_string_equal(reason, "");
	return error ? error : (int64_t)bytes;
}

static void assert_size(const DLTensor *tensor, int64_t bytes)
{
	char reason[256];
	int64_t got = size_of(tensor, reason);

	if (got != bytes)
		fail_msg("%lld instead of %lld: %s", (long long)got, (long long)bytes, reason);
}

/* Refused with -EINVAL; the reason names the value and what is valid. */
static void assert_refused(const DLTensor *tensor, const char *value, const char *valid)
{
	char reason[256];

	assert_int_equal(size_of(tensor, reason), -EINVAL);
	assert_contains(reason, value);
	assert_contains(reason, valid);
}

static void sizes(void **state)
{
	static const struct {
		uint8_t bits;
		uint16_t lanes;
		int32_t ndim;
		int64_t shape[8];
		int64_t bytes;
	} cases[] = {
		{32, 1, 0, {0}, 4},
		{1, 1, 0, {0}, 1},
		{32, 1, 1, {10}, 40},
		{32, 4, 1, {10}, 160},
		{64, 1, 3, {2, 3, 4}, 192},
		{8, 1, 8, {1, 2, 1, 2, 1, 2, 1, 2}, 16},
		{4, 1, 1, {3}, 2},    /* rounded up once */
		{4, 1, 2, {3, 3}, 5}, /* not per row */
		{1, 1, 1, {8}, 1},
		{1, 1, 1, {9}, 2},
		{1, 3, 1, {3}, 2},
		{255, 1, 1, {8}, 255},
		{255, 1, 1, {1}, 32},
		{255, 65535, 1, {1}, (255 * 65535 + 7) / 8},
		{32, 1, 1, {0}, 0},
		{32, 1, 3, {INT64_MAX, INT64_MAX, 0}, 0}, /* no elements, whatever the others are */
		{32, 1, 3, {0, INT64_MAX, INT64_MAX}, 0},
		{8, 1, 1, {INT64_C(3) << 30}, INT64_C(3) << 30},
	};

	for (size_t i = 0; i < COUNT(cases); i++) {
		DLTensor tensor =
			make(cases[i].bits, cases[i].lanes, cases[i].ndim, cases[i].shape);

		assert_size(&tensor, cases[i].bytes);
	}
}

static void too_large(void **state)
{
	static const struct {
		uint8_t bits;
		uint16_t lanes;
		int32_t ndim;
		int64_t shape[8];
		bool fits;
	} cases[] = {
		{8, 1, 1, {INT64_MAX}, true},
		{16, 1, 1, {INT64_MAX}, false},
		{16, 1, 1, {INT64_MAX / 2}, true},
		{16, 1, 1, {INT64_MAX / 2 + 1}, false},
		{8, 2, 1, {INT64_MAX / 2 + 1}, false},
		{8, 1, 2, {INT64_C(1) << 32, INT64_C(1) << 31}, false},
		{8, 1, 2, {INT64_C(1) << 32, INT64_C(1) << 32}, false},
		{1, 1, 2, {INT64_C(1) << 32, INT64_C(1) << 31}, true},
		{255, 65535, 1, {INT64_MAX}, false},
		{255, 65535, 8, {255, 255, 255, 255, 255, 255, 255, 255}, false},
	};
	char reason[256];

	for (size_t i = 0; i < COUNT(cases); i++) {
		struct haul_tensor_info info = {.dtype = {kDLInt, cases[i].bits, cases[i].lanes},
						.ndim = cases[i].ndim};
		DLTensor tensor =
			make(cases[i].bits, cases[i].lanes, cases[i].ndim, cases[i].shape);
		uint64_t bytes;

		memcpy(info.shape, cases[i].shape, sizeof(info.shape));
		assert_int_equal(tensor_info_bytes(&info, &bytes), cases[i].fits ? 0 : -EOVERFLOW);
		if (cases[i].fits)
			continue;
		assert_int_equal(size_of(&tensor, reason), -EOVERFLOW);
		assert_contains(reason, "2^63 - 1");
	}
}

static void ranks_and_shapes(void **state)
{
	int64_t shape[9] = {1, 1, 1, 1, 1, 1, 1, 1, 1};
	DLTensor tensor = make(8, 1, 8, shape);

	assert_size(&tensor, 1);
	tensor.ndim = 9;
	assert_refused(&tensor, "is 9", "0 to 8");
	tensor.ndim = -1;
	assert_refused(&tensor, "is -1", "0 to 8");
	tensor.ndim = INT32_MIN;
	assert_refused(&tensor, "is -2147483648", "0 to 8");
	tensor.ndim = 2;
	shape[1] = -3;
	assert_refused(&tensor, "shape[1] is -3", "0 and above");
	shape[1] = INT64_MIN;
	assert_refused(&tensor, "shape[1] is -9223372036854775808", "0 and above");
	tensor.shape = NULL;
	assert_refused(&tensor, "shape is NULL", "2 dimensions");
	tensor.ndim = 0;
	assert_size(&tensor, 1);
	assert_refused(NULL, "NULL", "DLTensor");
}

static void dtypes(void **state)
{
	const int64_t shape[] = {2};
	DLTensor tensor = make(8, 1, 1, shape);

	for (unsigned code = 0; code <= UINT8_MAX; code++) {
		tensor.dtype.code = (uint8_t)code;
		assert_size(&tensor, 2);
	}
	tensor.dtype.bits = 0;
	assert_refused(&tensor, "0 bits", "1 to 255 bits");
	tensor.dtype.bits = 8;
	tensor.dtype.lanes = 0;
	assert_refused(&tensor, "0 lanes", "1 to 65535 lanes");
}

static void devices(void **state)
{
	const int64_t shape[] = {2};
	DLTensor tensor = make(8, 1, 1, shape);

	for (unsigned type = 0; type < 20; type++) {
		char value[32];

		tensor.device.device_type = type;
		tensor.device.device_id = 3;
		snprintf(value, sizeof(value), "type %u;", type);
		if (type == kDLCPU || type == kDLCUDAHost || type == kDLROCMHost)
			assert_size(&tensor, 2);
		else
			assert_refused(&tensor, value, "CPU (1), CUDA host (3)");
	}
}

static void compact_strides(void **state)
{
	int64_t shape[3] = {2, 3, 4}, strides[3] = {12, 4, 1};
	DLTensor tensor = make(8, 1, 3, shape);

	tensor.strides = strides;
	assert_size(&tensor, 24);
	strides[0] = 13;
	assert_refused(&tensor, "strides[0] is 13", "valid is 12");
	strides[0] = 12;
	strides[2] = 2;
	assert_refused(&tensor, "strides[2] is 2", "valid is 1");
	strides[2] = -1;
	assert_refused(&tensor, "strides[2] is -1", "valid is 1");
	memcpy(strides, (int64_t[]){1, 2, 6}, sizeof(strides)); /* column-major */
	assert_refused(&tensor, "strides[2] is 6", "valid is 1");
	memset(strides, 0, sizeof(strides)); /* broadcast */
	assert_refused(&tensor, "strides[2] is 0", "valid is 1");
	tensor.ndim = 0;
	assert_size(&tensor, 1);
}

/* Nobody steps along a dimension of size 1, nor through an empty tensor. */
static void strides_that_do_not_matter(void **state)
{
	int64_t shape[3] = {1, 3, 1}, strides[3] = {-77, 1, INT64_MAX};
	DLTensor tensor = make(8, 1, 3, shape);

	tensor.strides = strides;
	assert_size(&tensor, 3);
	strides[1] = 2;
	assert_refused(&tensor, "strides[1] is 2", "valid is 1");
	shape[0] = 0;
	assert_size(&tensor, 0);
}

static void data_and_offset(void **state)
{
	const int64_t shape[] = {8}, none[] = {0};
	DLTensor tensor = make(8, 1, 1, shape);
	struct haul_tensor_info info;
	uint8_t *data;

	tensor.byte_offset = 5;
	assert_int_equal(tensor_describe(&tensor, false, &info, &data, NULL, 0), 0);
	assert_ptr_equal(data, memory + 5);
	tensor.byte_offset = UINT64_MAX;
	assert_refused(&tensor, "byte_offset 18446744073709551615", "address space");
	tensor.byte_offset = UINT64_MAX - (uintptr_t)memory - 4;
	assert_refused(&tensor, "and 8 bytes", "address space");
	tensor.byte_offset = 0;
	tensor.data = NULL;
	assert_refused(&tensor, "data is NULL", "only for 0 bytes");
	tensor.shape = (int64_t *)none;
	tensor.byte_offset = 3;
	assert_int_equal(tensor_describe(&tensor, false, &info, &data, NULL, 0), 0);
	assert_null(data);
	assert_int_equal(info.bytes, 0);
}

static void description(void **state)
{
	const int64_t shape[] = {3, 2};
	DLTensor tensor = make(16, 2, 2, shape);
	struct haul_tensor_info info, expected = {{kDLFloat, 16, 2}, 2, {3, 2}, 24};
	uint8_t *data;

	memset(&info, 0xff, sizeof(info));
	assert_int_equal(tensor_describe(&tensor, false, &info, &data, NULL, 0), 0);
	assert_ptr_equal(data, memory);
	assert_int_equal(info.dtype.code, expected.dtype.code);
	assert_int_equal(info.dtype.bits, expected.dtype.bits);
	assert_int_equal(info.dtype.lanes, expected.dtype.lanes);
	assert_int_equal(info.ndim, 2);
	assert_memory_equal(info.shape, expected.shape, sizeof(info.shape)); /* zeros behind */
	assert_int_equal(info.bytes, 24);
}

static void info_from_a_peer(void **state)
{
	struct haul_tensor_info info = {{kDLFloat, 32, 1}, 1, {4}, 0};
	uint64_t bytes;

	assert_int_equal(tensor_info_bytes(&info, &bytes), 0);
	assert_int_equal(bytes, 16);
	info.shape[0] = -1;
	assert_int_equal(tensor_info_bytes(&info, &bytes), -EINVAL);
	info.shape[0] = 1;
	info.ndim = HAUL_RANK_MAX + 1;
	assert_int_equal(tensor_info_bytes(&info, &bytes), -EINVAL);
	info.ndim = -1;
	assert_int_equal(tensor_info_bytes(&info, &bytes), -EINVAL);
	info.ndim = 1;
	info.dtype.bits = 0;
	assert_int_equal(tensor_info_bytes(&info, &bytes), -EINVAL);
	info.dtype.bits = 1;
	info.dtype.lanes = 0;
	assert_int_equal(tensor_info_bytes(&info, &bytes), -EINVAL);
}

/* A reason that does not fit is cut off, not written past the end. */
static void small_rooms(void **state)
{
	uint64_t bytes;
	char reason[9] = "12345678";

	assert_int_equal(haul_tensor_bytes(NULL, &bytes, reason, 4), -EINVAL);
	assert_string_equal(reason, "the");
	assert_string_equal(reason + 4, "5678");
	assert_int_equal(haul_tensor_bytes(NULL, &bytes, reason, 0), -EINVAL);
	assert_string_equal(reason, "the");
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(sizes),
		cmocka_unit_test(too_large),
		cmocka_unit_test(ranks_and_shapes),
		cmocka_unit_test(dtypes),
		cmocka_unit_test(devices),
		cmocka_unit_test(compact_strides),
		cmocka_unit_test(strides_that_do_not_matter),
		cmocka_unit_test(data_and_offset),
		cmocka_unit_test(description),
		cmocka_unit_test(info_from_a_peer),
		cmocka_unit_test(small_rooms),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
