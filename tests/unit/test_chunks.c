/* SPDX-License-Identifier: Apache-2.0 */
#include "unit.h"

#include <errno.h>

#include "failing_memory.h"
#include "streams/chunks.h"

#define KIB ((uint64_t)1024)
#define LONGEST (256 * KIB)

static struct haul_transfer *add(struct haul_chunks *chunks, struct haul_push *push)
{
	struct haul_transfer *transfer = calloc(1, sizeof(*transfer));

	assert_non_null(transfer);
	haul_chunks_add(chunks, transfer, push);
	return transfer;
}

static void end_all(struct haul_chunks *chunks)
{
	struct haul_transfer *transfer;

	while ((transfer = TAILQ_FIRST(&chunks->transfers)))
		haul_chunks_end(chunks, transfer);
	haul_chunks_free(chunks);
	assert_false(haul_chunks_pending(chunks));
}

static void nothing_to_give(void **state)
{
	struct haul_chunks chunks;
	struct haul_chunk chunk;

	haul_chunks_init(&chunks);
	assert_false(haul_chunks_pending(&chunks));
	assert_false(haul_chunks_next(&chunks, LONGEST, 1, &chunk));
	end_all(&chunks);
}

/* Whatever the number of streams, each byte is given out once. */
static void every_byte_once(void **state)
{
	static const uint64_t lengths[] = {1, 64 * KIB, 64 * KIB + 1, LONGEST, 10 * LONGEST + 3};

	for (unsigned streams = 1; streams <= 64; streams *= 4) {
		for (size_t i = 0; i < COUNT(lengths); i++) {
			struct haul_push push = {.length = lengths[i]};
			struct haul_chunks chunks;
			struct haul_chunk chunk;
			uint64_t next = 0;

			haul_chunks_init(&chunks);
			add(&chunks, &push);
			while (haul_chunks_next(&chunks, LONGEST, streams, &chunk)) {
				assert_int_equal(chunk.offset, next);
				assert_in_range(chunk.length, 1, LONGEST);
				next += chunk.length;
				haul_transfer_release(chunk.transfer);
			}
			assert_int_equal(next, push.length);
			end_all(&chunks);
		}
	}
}

/* With several streams the last chunks are no longer than the least. */
static void small_towards_the_end(void **state)
{
	struct haul_push push = {.length = 8 * LONGEST};
	struct haul_chunks chunks;
	struct haul_chunk chunk, last = {0};

	haul_chunks_init(&chunks);
	add(&chunks, &push);
	while (haul_chunks_next(&chunks, LONGEST, 4, &chunk)) {
		if (last.length)
			assert_true(chunk.length <= last.length);
		last = chunk;
		haul_transfer_release(chunk.transfer);
	}
	assert_in_range(last.length, 1, 64 * KIB);
	end_all(&chunks);
}

static void oldest_and_smallest_take_turns(void **state)
{
	struct haul_push pushes[] = {
		{.length = 8 * LONGEST}, {.length = 9 * LONGEST}, {.length = LONGEST}};
	struct haul_transfer *transfers[COUNT(pushes)];
	static const int order[] = {2, 0, 0, 0, 1};
	struct haul_chunks chunks;
	struct haul_chunk chunk;

	haul_chunks_init(&chunks);
	for (size_t i = 0; i < COUNT(pushes); i++)
		transfers[i] = add(&chunks, &pushes[i]);
	for (size_t i = 0; i < COUNT(order) - 1; i++) {
		assert_true(haul_chunks_next(&chunks, LONGEST, 1, &chunk));
		assert_ptr_equal(chunk.transfer, transfers[order[i]]);
		haul_transfer_release(chunk.transfer);
	}
	/* One that is taken back has no more turns. */
	haul_chunks_withdraw(&chunks, transfers[0]);
	haul_chunks_withdraw(&chunks, transfers[0]);
	assert_true(haul_chunks_next(&chunks, LONGEST, 1, &chunk));
	assert_ptr_equal(chunk.transfer, transfers[1]);
	haul_transfer_release(chunk.transfer);
	end_all(&chunks);
}

static void what_comes_back_goes_first(void **state)
{
	struct haul_push pushes[] = {{.length = 100 * LONGEST}, {.length = 1}};
	struct haul_chunk given[40], chunk;
	struct haul_chunks chunks;

	haul_chunks_init(&chunks);
	add(&chunks, &pushes[0]);
	for (size_t i = 0; i < COUNT(given); i++)
		assert_true(haul_chunks_next(&chunks, LONGEST, 1, &given[i]));
	for (size_t i = 0; i < COUNT(given); i++)
		assert_int_equal(haul_chunks_return(&chunks, &given[i]), 0);
	add(&chunks, &pushes[1]);
	for (size_t i = COUNT(given); i-- > 0;) {
		assert_true(haul_chunks_next(&chunks, LONGEST, 1, &chunk));
		assert_int_equal(chunk.offset, given[i].offset);
		assert_int_equal(chunk.length, given[i].length);
		haul_transfer_release(chunk.transfer);
	}
	assert_int_equal(chunks.again, COUNT(given));
	end_all(&chunks);
}

/* A chunk keeps the transfer, though not the push; what comes back of it is forgotten. */
static void an_end_amid_chunks(void **state)
{
	struct haul_push push = {.length = 4 * LONGEST};
	struct haul_transfer *transfer;
	struct haul_chunk given[3], chunk;
	struct haul_chunks chunks;

	haul_chunks_init(&chunks);
	transfer = add(&chunks, &push);
	for (size_t i = 0; i < COUNT(given); i++)
		assert_true(haul_chunks_next(&chunks, LONGEST, 1, &given[i]));
	assert_int_equal(haul_chunks_return(&chunks, &given[0]), 0);
	haul_chunks_end(&chunks, transfer);
	assert_null(given[1].transfer->push);
	assert_int_equal(haul_chunks_return(&chunks, &given[1]), 0);
	assert_true(haul_chunks_pending(&chunks));
	assert_false(haul_chunks_next(&chunks, LONGEST, 1, &chunk));
	assert_false(haul_chunks_pending(&chunks));
	haul_transfer_release(given[2].transfer);
	assert_int_equal(chunks.again, 0);
	end_all(&chunks);
}

static void without_memory(void **state)
{
	struct haul_push push = {.length = 4 * LONGEST};
	struct haul_chunks chunks;
	struct haul_chunk chunk;

	haul_chunks_init(&chunks);
	add(&chunks, &push);
	assert_true(haul_chunks_next(&chunks, LONGEST, 1, &chunk));
	memory_left = 0;
	assert_int_equal(haul_chunks_return(&chunks, &chunk), -ENOMEM);
	memory_left = -1;
	end_all(&chunks);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(nothing_to_give),
		cmocka_unit_test(every_byte_once),
		cmocka_unit_test(small_towards_the_end),
		cmocka_unit_test(oldest_and_smallest_take_turns),
		cmocka_unit_test(what_comes_back_goes_first),
		cmocka_unit_test(an_end_amid_chunks),
		cmocka_unit_test(without_memory),
	};

	return cmocka_run_group_tests_name("chunks", tests, NULL, NULL);
}
