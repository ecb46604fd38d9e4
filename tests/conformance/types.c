/* SPDX-License-Identifier: Apache-2.0 */
/* Dtypes, ranks, shapes, and where a tensor's memory may come from. */
#include "harness.h"

#include <errno.h>
#include <stdio.h>

enum { CODE_BOOL = 6 }; /* DLPack 0.8 and later */

static const DLDataType dtypes[] = {
	{kDLInt, 8, 1},     {kDLInt, 16, 1},     {kDLInt, 32, 1},          {kDLInt, 64, 1},
	{kDLUInt, 8, 1},    {kDLUInt, 16, 1},    {kDLUInt, 32, 1},         {kDLUInt, 64, 1},
	{kDLFloat, 16, 1},  {kDLFloat, 32, 1},   {kDLFloat, 64, 1},        {kDLFloat, 128, 1},
	{kDLBfloat, 16, 1}, {kDLFloat, 8, 1},    {kDLComplex, 64, 1},      {kDLComplex, 128, 1},
	{CODE_BOOL, 8, 1},  {kDLInt, 4, 1},      {kDLUInt, 4, 1},          {kDLUInt, 1, 1},
	{kDLUInt, 2, 1},    {kDLFloat, 4, 2},    {kDLFloat, 32, 4},        {kDLInt, 8, 16},
	{kDLFloat, 16, 3},  {kDLUInt, 4, 65535}, {kDLOpaqueHandle, 64, 1},
};

/* The size of a compact tensor, computed apart from the library. */
static uint64_t size_of(DLDataType dtype, int ndim, const int64_t *shape)
{
	uint64_t bits = (uint64_t)dtype.bits * dtype.lanes;

	for (int i = 0; i < ndim; i++)
		bits *= (uint64_t)shape[i];
	return (bits + 7) / 8;
}

static void check_info(const struct haul_tensor_info *info, const DLTensor *tensor)
{
	assert_int_equal(info->dtype.code, tensor->dtype.code);
	assert_int_equal(info->dtype.bits, tensor->dtype.bits);
	assert_int_equal(info->dtype.lanes, tensor->dtype.lanes);
	assert_int_equal(info->ndim, tensor->ndim);
	assert_int_equal(info->bytes, size_of(tensor->dtype, tensor->ndim, tensor->shape));
	for (int i = 0; i < HAUL_RANK_MAX; i++)
		assert_int_equal(info->shape[i], i < tensor->ndim ? tensor->shape[i] : 0);
}

/* Send a tensor of this kind into bytes, and compare bytes and description. */
static void transfer_described(const struct way *way, DLDataType dtype, int ndim,
			       const int64_t *shape)
{
	struct world *world = way->from->world;
	uint64_t bytes = size_of(dtype, ndim, shape), told = 0;
	struct block *source = block_new(world, bytes), *target = block_new(world, bytes);
	DLTensor tensor = haul_tensor(source->data, dtype, ndim, shape);
	struct entry *received, *queried;

	assert_int_equal(haul_tensor_bytes(&tensor, &told, NULL, 0), 0);
	assert_int_equal(told, bytes);
	block_fill(source, bytes);
	queried = post_query(way, haul_key("kind"));
	received = post_recv(way, haul_key("kind"), &target->tensor);
	post_send(way, haul_key("kind"), &tensor);
	wait_all(world);
	check_result(queried, 0);
	check_info(&queried->tensor, &tensor);
	check_result(received, 0);
	check_info(&received->tensor, &tensor);
	block_check(target, bytes);
}

static void test_every_dtype(void **state)
{
	static const int64_t shape[] = {7, 5};
	struct pair pair;

	pair_open(*state, NULL, &pair);
	for (size_t i = 0; i < sizeof(dtypes) / sizeof(dtypes[0]); i++) {
		transfer_described(&pair.up, dtypes[i], 2, shape);
		transfer_described(&pair.down, dtypes[i], 2, shape);
	}
}

/* Sub-byte elements are packed: bits are rounded up to bytes once, for the whole tensor. */
static void test_sub_byte_sizes(void **state)
{
	struct pair pair;

	pair_open(*state, NULL, &pair);
	for (unsigned bits = 1; bits < 8; bits++) {
		for (int64_t count = 0; count < 20; count++)
			transfer_described(&pair.up, (DLDataType){kDLUInt, (uint8_t)bits, 1}, 1,
					   &count);
	}
}

static void test_rank_0_to_8(void **state)
{
	static const int64_t shape[HAUL_RANK_MAX] = {2, 3, 1, 4, 2, 5, 1, 3};
	struct pair pair;

	pair_open(*state, NULL, &pair);
	for (int ndim = 0; ndim <= HAUL_RANK_MAX; ndim++)
		transfer_described(&pair.up, (DLDataType){kDLFloat, 32, 1}, ndim, shape);
}

/* No bytes, but a shape that has to arrive. */
static void test_zero_dimensions(void **state)
{
	static const int64_t shapes[][3] = {
		{0, 3, 4}, {3, 0, 4}, {3, 4, 0}, {0, 0, 0}, {INT64_MAX, 0, 1}, {0, INT64_MAX, 1},
	};
	struct pair pair;

	pair_open(*state, NULL, &pair);
	for (size_t i = 0; i < sizeof(shapes) / sizeof(shapes[0]); i++)
		transfer_described(&pair.up, (DLDataType){kDLFloat, 64, 1}, 3, shapes[i]);
}

/* Compact strides are no strides. The stride of a dimension of 1 says nothing. */
static void test_compact_strides(void **state)
{
	int64_t shape[] = {4, 1, 6}, strides[] = {6, 6, 1}, odd[] = {6, 12345, 1};
	struct world *world = *state;
	struct block *source = block_new(world, 96), *target = block_new(world, 96);
	DLTensor tensor = haul_tensor(source->data, (DLDataType){kDLInt, 32, 1}, 3, shape);
	DLTensor room = haul_tensor(target->data, (DLDataType){kDLInt, 32, 1}, 3, shape);
	struct pair pair;

	pair_open(world, NULL, &pair);
	block_fill(source, 3);
	tensor.strides = strides;
	room.strides = odd;
	post_recv(&pair.up, haul_key("strides"), &room);
	post_send(&pair.up, haul_key("strides"), &tensor);
	wait_all(world);
	block_check(target, 3);
}

static void test_byte_offset_counts(void **state)
{
	struct world *world = *state;
	struct block *source = block_new(world, 1000), *target = block_new(world, 1000);
	int64_t shape[] = {100};
	DLTensor from = haul_tensor(source->data, type_u8, 1, shape);
	DLTensor into = haul_tensor(target->data, type_u8, 1, shape);
	struct pair pair;

	pair_open(world, NULL, &pair);
	block_fill(source, 9);
	from.byte_offset = 333;
	into.byte_offset = 555;
	post_recv(&pair.up, haul_key("offset"), &into);
	post_send(&pair.up, haul_key("offset"), &from);
	wait_all(world);
	assert_true(pattern_holds(target->data + 555, 100, 9, 333, NULL));
	for (int i = 0; i < 1000; i++) {
		if (i < 555 || i >= 655)
			assert_int_equal(target->data[i], 0);
	}
}

/* The call copies the DLTensor, its shape and the key: the caller may reuse them at once. */
static void test_arguments_are_copied(void **state)
{
	struct world *world = *state;
	struct block *source = block_new(world, 60), *target = block_new(world, 60);
	int64_t *shape = world_memory(world, 2 * sizeof(*shape));
	DLTensor from = haul_tensor(source->data, (DLDataType){kDLFloat, 32, 1}, 2, shape);
	DLTensor into = haul_tensor(target->data, type_u8, 1, shape);
	char key[] = "once upon a time there was a key that is longer than most of them are";
	struct entry *received;
	struct pair pair;

	pair_open(world, NULL, &pair);
	block_fill(source, 4);
	shape[0] = 3;
	shape[1] = 5;
	post_send(&pair.up, haul_key(key), &from);
	memset(&from, 0xff, sizeof(from));
	shape[0] = 60;
	received = post_recv(&pair.up, haul_key(key), &into);
	memset(&into, 0xff, sizeof(into));
	memset(key, 'x', sizeof(key) - 1);
	shape[0] = shape[1] = -1;
	wait_all(world);
	check_result(received, 0);
	assert_int_equal(received->tensor.ndim, 2);
	assert_int_equal(received->tensor.shape[0], 3);
	assert_int_equal(received->tensor.shape[1], 5);
	block_check(target, 4);
}

/* Memory of the library: page aligned, zeroed, usable as a region is. */
static void test_allocated_regions(void **state)
{
	struct world *world = *state;
	haul_region *from, *into;
	struct block source = {.bytes = 1 << 20, .shape = {1 << 20}}, target = source;
	struct extra send = {0}, recv = {0};
	struct pair pair;

	pair_open(world, NULL, &pair);
	assert_int_equal(haul_region_allocate(pair.b->context, 1 << 20, HAUL_USE_SEND, &from), 0);
	assert_int_equal(haul_region_allocate(pair.a->context, 1 << 20,
					      HAUL_USE_SEND | HAUL_USE_RECV, &into),
			 0);
	assert_int_equal(haul_region_length(into), 1 << 20);
	source.data = haul_region_base(from);
	target.data = haul_region_base(into);
	assert_int_equal((uintptr_t)source.data % 4096, 0);
	assert_int_equal((uintptr_t)target.data % 4096, 0);
	for (size_t i = 0; i < target.bytes; i++)
		assert_int_equal(target.data[i], 0);
	source.tensor = haul_tensor(source.data, type_u8, 1, source.shape);
	target.tensor = haul_tensor(target.data, type_u8, 1, target.shape);
	block_fill(&source, 8);
	send.region = from;
	recv.region = into;
	post_with(&pair.up, HAUL_SENT, haul_key("allocated"), &source.tensor, &send);
	post_with(&pair.up, HAUL_RECEIVED, haul_key("allocated"), &target.tensor, &recv);
	wait_all(world);
	block_check(&target, 8);
	assert_int_equal(haul_region_release(from), 0);
	assert_int_equal(haul_region_release(into), 0);
}

/* Parts of one region serve many operations at once. */
static void test_one_region_for_many(void **state)
{
	enum { PARTS = 64, PART = 5000 };
	struct world *world = *state;
	struct block *source = block_new(world, PARTS * PART);
	struct block *target = block_new(world, PARTS * PART);
	int64_t shape[] = {PART};
	struct extra send = {0}, recv = {0};
	struct pair pair;
	char key[24];

	pair_open(world, NULL, &pair);
	block_fill(source, 6);
	assert_int_equal(haul_region_register(pair.b->context, source->data, source->bytes,
					      HAUL_USE_SEND, &send.region),
			 0);
	assert_int_equal(haul_region_register(pair.a->context, target->data, target->bytes,
					      HAUL_USE_RECV, &recv.region),
			 0);
	for (int i = 0; i < PARTS; i++) {
		DLTensor from = haul_tensor(source->data + i * PART, type_u8, 1, shape);
		DLTensor into = haul_tensor(target->data + i * PART, type_u8, 1, shape);

		snprintf(key, sizeof(key), "part %d", i);
		post_with(&pair.up, HAUL_SENT, haul_key(key), &from, &send);
		post_with(&pair.up, HAUL_RECEIVED, haul_key(key), &into, &recv);
	}
	wait_all(world);
	block_check(target, 6);
	assert_int_equal(haul_region_release(send.region), 0);
	assert_int_equal(haul_region_release(recv.region), 0);
}

static const struct CMUnitTest tests[] = {
	WORLD_TEST(test_every_dtype),          WORLD_TEST(test_sub_byte_sizes),
	WORLD_TEST(test_rank_0_to_8),          WORLD_TEST(test_zero_dimensions),
	WORLD_TEST(test_compact_strides),      WORLD_TEST(test_byte_offset_counts),
	WORLD_TEST(test_arguments_are_copied), WORLD_TEST(test_allocated_regions),
	WORLD_TEST(test_one_region_for_many),
};

const struct test_table types_tests = TABLE_OF(tests);
