/* SPDX-License-Identifier: Apache-2.0 */
/* Tensors, keys, regions and operations that are refused by the call. */
#include "harness.h"

#include <errno.h>
#include <stdio.h>

/* What the tests of this file need: a pair, memory, and a key that nobody else uses. */
struct bench {
	struct pair pair;
	struct block *block;
	int64_t shape[16], strides[16];
	DLTensor tensor; /* good as it is: float32 of 10 x 20 */
};

static struct bench *bench_new(struct world *world)
{
	struct bench *bench = world_memory(world, sizeof(*bench));

	pair_open(world, NULL, &bench->pair);
	bench->block = block_new(world, 1000);
	bench->shape[0] = 10;
	bench->shape[1] = 20;
	bench->tensor =
		haul_tensor(bench->block->data, (DLDataType){kDLFloat, 32, 1}, 2, bench->shape);
	return bench;
}

/* Both calls refuse the tensor as it is now, and haul_tensor_bytes() agrees. */
static void refused(struct bench *bench, int expected, const char *word)
{
	const char *words[] = {word, NULL};
	struct pair *pair = &bench->pair;
	char reason[256] = "";
	uint64_t bytes;
	int error;

	assert_null(try_post(pair->b, pair->up.out, HAUL_SENT, haul_key("bad"), &bench->tensor,
			     NULL, &error));
	check_error(pair->b->context, error, expected, words);
	assert_null(try_post(pair->a, pair->up.in, HAUL_RECEIVED, haul_key("bad"), &bench->tensor,
			     NULL, &error));
	check_error(pair->a->context, error, expected, words);
	assert_int_equal(haul_tensor_bytes(&bench->tensor, &bytes, reason, sizeof(reason)),
			 expected);
	check_words(reason, words);
	assert_int_equal(haul_tensor_bytes(&bench->tensor, &bytes, NULL, 0), expected);
}

static void test_strides(void **state)
{
	struct bench *bench = bench_new(*state);

	bench->tensor.strides = bench->strides;
	bench->strides[0] = 1; /* transposed */
	bench->strides[1] = 10;
	refused(bench, -EINVAL, "strides");
	bench->strides[0] = 40; /* with gaps */
	bench->strides[1] = 1;
	refused(bench, -EINVAL, "strides");
	bench->strides[0] = 0; /* broadcast */
	refused(bench, -EINVAL, "strides");
	bench->strides[0] = -20;
	refused(bench, -EINVAL, "strides");
	check_alive(&bench->pair);
}

static void test_no_data(void **state)
{
	struct bench *bench = bench_new(*state);

	bench->tensor.data = NULL;
	refused(bench, -EINVAL, "NULL");
	bench->tensor.byte_offset = 64;
	refused(bench, -EINVAL, "NULL");
}

static void test_shapes(void **state)
{
	struct bench *bench = bench_new(*state);

	bench->shape[0] = -1;
	refused(bench, -EINVAL, "-1");
	bench->shape[0] = INT64_MIN;
	refused(bench, -EINVAL, NULL);
	bench->shape[0] = INT64_MAX;
	refused(bench, -EOVERFLOW, NULL);
	bench->shape[0] = bench->shape[1] = INT64_C(1) << 32; /* wraps to 0 */
	refused(bench, -EOVERFLOW, NULL);
	bench->shape[0] = INT64_C(1) << 61; /* times 4 bytes: 2^63 */
	bench->shape[1] = 1;
	refused(bench, -EOVERFLOW, NULL);
	bench->shape[1] = 8;
	refused(bench, -EOVERFLOW, NULL);
	bench->tensor.shape = NULL;
	refused(bench, -EINVAL, "shape");
}

static void test_ranks(void **state)
{
	struct bench *bench = bench_new(*state);

	for (int i = 0; i < 16; i++)
		bench->shape[i] = 1;
	bench->tensor.ndim = HAUL_RANK_MAX + 1;
	refused(bench, -EINVAL, "9");
	bench->tensor.ndim = -1;
	refused(bench, -EINVAL, "-1");
	bench->tensor.ndim = INT32_MAX;
	refused(bench, -EINVAL, NULL);
}

static void test_devices(void **state)
{
	static const int devices[] = {kDLCUDA, kDLOpenCL, kDLMetal, kDLROCM, 0, -1, 12345};
	struct bench *bench = bench_new(*state);

	for (size_t i = 0; i < sizeof(devices) / sizeof(devices[0]); i++) {
		bench->tensor.device.device_type = (DLDeviceType)devices[i];
		refused(bench, -EINVAL, "device");
	}
}

static void test_dtypes(void **state)
{
	struct bench *bench = bench_new(*state);

	bench->tensor.dtype.bits = 0;
	refused(bench, -EINVAL, NULL);
	bench->tensor.dtype = (DLDataType){kDLFloat, 32, 0};
	refused(bench, -EINVAL, NULL);
}

static void test_offset_that_wraps(void **state)
{
	struct bench *bench = bench_new(*state);

	bench->tensor.byte_offset = UINT64_MAX - 100;
	refused(bench, -EINVAL, NULL);
}

static void test_no_tensor(void **state)
{
	struct bench *bench = bench_new(*state);
	struct pair *pair = &bench->pair;
	uint64_t bytes;

	check_error(pair->b->context, haul_send(pair->up.out, haul_key("k"), NULL, NULL, NULL),
		    -EINVAL, NULL);
	check_error(pair->a->context, haul_recv(pair->up.in, haul_key("k"), NULL, NULL, NULL),
		    -EINVAL, NULL);
	assert_int_equal(haul_tensor_bytes(NULL, &bytes, NULL, 0), -EINVAL);
	assert_int_equal(haul_send(NULL, haul_key("k"), &bench->tensor, NULL, NULL), -EINVAL);
	assert_int_equal(haul_recv(NULL, haul_key("k"), &bench->tensor, NULL, NULL), -EINVAL);
	assert_int_equal(haul_query(NULL, haul_key("k"), NULL), -EINVAL);
	assert_int_equal(haul_send_wait(NULL, haul_key("k"), &bench->tensor, NULL, 1), -EINVAL);
	assert_int_equal(haul_recv_wait(NULL, haul_key("k"), &bench->tensor, NULL, 1, NULL),
			 -EINVAL);
	assert_int_equal(haul_query_wait(NULL, haul_key("k"), 1, NULL), -EINVAL);
}

static void test_keys_of_0_and_256_bytes(void **state)
{
	struct bench *bench = bench_new(*state);
	static const enum haul_event kinds[] = {HAUL_SENT, HAUL_RECEIVED, HAUL_QUERIED};
	char bytes[HAUL_KEY_MAX + 1] = {'k'};
	const struct haul_key keys[] = {
		{bytes, 0},        {bytes, HAUL_KEY_MAX + 1},
		{bytes, SIZE_MAX}, {NULL, 0},
		{NULL, 5},         haul_key(""),
		haul_key(NULL),
	};

	for (size_t i = 0; i < sizeof(keys) / sizeof(keys[0]); i++) {
		for (int kind = 0; kind < 3; kind++) {
			bool sends = kinds[kind] == HAUL_SENT;
			struct side *side = sends ? bench->pair.b : bench->pair.a;
			int error;

			assert_null(try_post(side, sends ? bench->pair.up.out : bench->pair.up.in,
					     kinds[kind], keys[i], &bench->tensor, NULL, &error));
			check_error(side->context, error, -EINVAL,
				    (const char *const[]){"key", "255", NULL});
		}
	}
}

static void test_operation_of_another_size(void **state)
{
	struct bench *bench = bench_new(*state);
	struct pair *pair = &bench->pair;
	struct haul_op op = {0};
	static const size_t sizes[] = {0, sizeof(op) - 1, sizeof(op) + 8, SIZE_MAX};

	for (size_t i = 0; i < sizeof(sizes) / sizeof(sizes[0]); i++) {
		op.size = sizes[i];
		check_error(pair->b->context,
			    haul_send(pair->up.out, haul_key("k"), &bench->tensor, NULL, &op),
			    -EINVAL, (const char *const[]){"size", NULL});
		check_error(pair->a->context,
			    haul_recv(pair->up.in, haul_key("k"), &bench->tensor, NULL, &op),
			    -EINVAL, (const char *const[]){"size", NULL});
		check_error(pair->a->context, haul_query(pair->up.in, haul_key("k"), &op), -EINVAL,
			    (const char *const[]){"size", NULL});
	}
	check_alive(pair);
}

/* ---- Regions ----------------------------------------------------------- */

static haul_region *region_of(struct side *side, uint8_t *base, size_t length, unsigned use)
{
	haul_region *region;

	assert_int_equal(haul_region_register(side->context, base, length, use, &region), 0);
	return region;
}

static void refused_region(struct bench *bench, enum haul_event event, haul_region *region,
			   DLTensor *tensor, int expected)
{
	bool sends = event == HAUL_SENT;
	struct side *side = sends ? bench->pair.b : bench->pair.a;
	struct extra extra = {.region = region};
	int error;

	assert_null(try_post(side, sends ? bench->pair.up.out : bench->pair.up.in, event,
			     haul_key("k"), tensor, &extra, &error));
	check_error(side->context, error, expected, (const char *const[]){"region", NULL});
}

/* By one byte at either end, by far, and by an offset. */
static void test_memory_outside_its_region(void **state)
{
	struct bench *bench = bench_new(*state);
	uint8_t *data = bench->block->data;
	haul_region *send = region_of(bench->pair.b, data + 100, 800, HAUL_USE_SEND);
	haul_region *recv = region_of(bench->pair.a, data + 100, 800, HAUL_USE_RECV);
	static const long places[] = {-200, -1, 1, 100, 2000};
	DLTensor *tensor = &bench->tensor; /* 800 bytes: fits exactly at 100 */

	for (size_t i = 0; i < sizeof(places) / sizeof(places[0]); i++) {
		tensor->data = (void *)((uintptr_t)data + 100 + (uintptr_t)places[i]);
		refused_region(bench, HAUL_SENT, send, tensor, -EFAULT);
		refused_region(bench, HAUL_RECEIVED, recv, tensor, -EFAULT);
	}
	tensor->data = data + 100;
	tensor->byte_offset = 1;
	refused_region(bench, HAUL_SENT, send, tensor, -EFAULT);
	tensor->byte_offset = 0;
	bench->shape[0] = INT64_C(1) << 55; /* large, but no overflow */
	refused_region(bench, HAUL_SENT, send, tensor, -EFAULT);
	bench->shape[0] = 10;
	post_with(&bench->pair.up, HAUL_SENT, haul_key("k"), tensor,
		  &(struct extra){.region = send});
	post_with(&bench->pair.up, HAUL_RECEIVED, haul_key("k"), tensor,
		  &(struct extra){.region = recv});
	wait_all(*state);
}

static void test_region_without_the_right_use(void **state)
{
	struct bench *bench = bench_new(*state);
	uint8_t *data = bench->block->data;
	haul_region *recv = region_of(bench->pair.b, data, 1000, HAUL_USE_RECV);
	haul_region *send = region_of(bench->pair.a, data, 1000, HAUL_USE_SEND);

	refused_region(bench, HAUL_SENT, recv, &bench->tensor, -EACCES);
	refused_region(bench, HAUL_RECEIVED, send, &bench->tensor, -EACCES);
}

static void test_region_of_another_context(void **state)
{
	struct bench *bench = bench_new(*state);
	haul_region *other =
		region_of(bench->pair.a, bench->block->data, 1000, HAUL_USE_SEND | HAUL_USE_RECV);

	refused_region(bench, HAUL_SENT, other, &bench->tensor, -EINVAL);
}

static void test_regions_that_are_none(void **state)
{
	struct bench *bench = bench_new(*state);
	haul_context *context = bench->pair.a->context;
	uint8_t *data = bench->block->data;
	haul_region *region = (haul_region *)data;

	check_error(context, haul_region_register(context, NULL, 10, HAUL_USE_SEND, &region),
		    -EINVAL, NULL);
	check_error(context, haul_region_register(context, data, 0, HAUL_USE_SEND, &region),
		    -EINVAL, NULL);
	check_error(context, haul_region_register(context, data, 10, 0, &region), -EINVAL, NULL);
	check_error(context, haul_region_register(context, data, 10, 4, &region), -EINVAL, NULL);
	check_error(context, haul_region_register(context, data, SIZE_MAX, HAUL_USE_SEND, &region),
		    -EINVAL, NULL);
	assert_null(region);
	assert_int_equal(haul_region_register(context, data, 10, HAUL_USE_SEND, NULL), -EINVAL);
	assert_int_equal(haul_region_register(NULL, data, 10, HAUL_USE_SEND, &region), -EINVAL);
	check_error(context, haul_region_allocate(context, 0, HAUL_USE_SEND, &region), -EINVAL,
		    NULL);
	check_error(context, haul_region_allocate(context, 10, 8, &region), -EINVAL, NULL);
	check_error(context, haul_region_allocate(context, SIZE_MAX - 100, HAUL_USE_SEND, &region),
		    -ENOMEM, NULL);
	assert_int_equal(haul_region_allocate(context, 10, HAUL_USE_SEND, NULL), -EINVAL);
	assert_int_equal(haul_region_allocate(NULL, 10, HAUL_USE_SEND, &region), -EINVAL);
	assert_int_equal(haul_region_release(NULL), 0);
}

/* While an operation uses it a region can't go; afterwards it can. */
static void test_region_released_while_in_use(void **state)
{
	struct bench *bench = bench_new(*state);
	struct pair *pair = &bench->pair;
	struct block *other = block_new(*state, 800);
	struct extra send = {0}, recv = {0};

	send.region = region_of(pair->b, bench->block->data, 1000, HAUL_USE_SEND);
	recv.region = region_of(pair->a, block_new(*state, 1000)->data, 1000, HAUL_USE_RECV);
	/* Of different keys: neither meets the other while we look. */
	post_with(&pair->up, HAUL_SENT, haul_key("s"), &bench->tensor, &send);
	check_error(pair->b->context, haul_region_release(send.region), -EBUSY, NULL);
	bench->tensor.data = haul_region_base(recv.region);
	post_with(&pair->up, HAUL_RECEIVED, haul_key("r"), &bench->tensor, &recv);
	check_error(pair->a->context, haul_region_release(recv.region), -EBUSY, NULL);
	post_send(&pair->up, haul_key("r"), &other->tensor);
	post_recv(&pair->up, haul_key("s"), &block_new(*state, 800)->tensor);
	wait_all(*state);
	assert_int_equal(haul_region_release(send.region), 0);
	assert_int_equal(haul_region_release(recv.region), 0);
}

static const struct CMUnitTest tests[] = {
	WORLD_TEST(test_strides),
	WORLD_TEST(test_no_data),
	WORLD_TEST(test_shapes),
	WORLD_TEST(test_ranks),
	WORLD_TEST(test_devices),
	WORLD_TEST(test_dtypes),
	WORLD_TEST(test_offset_that_wraps),
	WORLD_TEST(test_no_tensor),
	WORLD_TEST(test_keys_of_0_and_256_bytes),
	WORLD_TEST(test_operation_of_another_size),
	WORLD_TEST(test_memory_outside_its_region),
	WORLD_TEST(test_region_without_the_right_use),
	WORLD_TEST(test_region_of_another_context),
	WORLD_TEST(test_regions_that_are_none),
	WORLD_TEST(test_region_released_while_in_use),
};

const struct test_table bad_tensor_tests = TABLE_OF(tests);
