/* SPDX-License-Identifier: Apache-2.0 */
/* The estimate of a peer's clock against simulated round trips whose truth is known. */
#include "unit.h"

#include "engine/clock_offset.h"

struct path {
	int64_t offset;    /* the peer's clock minus ours */
	uint64_t way;      /* ns each way, at least */
	uint64_t queue[2]; /* every other time up to so much more, there and back */
};

static uint64_t below(uint64_t *seed, uint64_t limit)
{
	return limit ? unit_random(seed) % limit : 0;
}

static uint64_t queue(uint64_t *seed, uint64_t limit)
{
	return below(seed, 2) ? below(seed, limit) : 0;
}

/* One row of questions from `now` on; the time behind it. */
static uint64_t run_row(struct clock_offset *clock, const struct path *path, uint64_t now,
			uint64_t *seed)
{
	clock_offset_begin(clock);
	while (clock->left) {
		uint64_t asked = now, answered;

		clock_offset_ask(clock, asked);
		now += path->way + queue(seed, path->queue[0]);
		answered = now + (uint64_t)path->offset;
		now += path->way + queue(seed, path->queue[1]);
		assert_true(clock_offset_answer(clock, asked, answered, now));
		now += 1000;
	}
	return now;
}

static uint64_t error_of(const struct clock_offset *clock, int64_t truth)
{
	int64_t error = clock->best.offset - truth;

	return (uint64_t)(error < 0 ? -error : error);
}

static void an_even_path_has_no_error(void **state)
{
	const struct path path = {.offset = 123456789, .way = 25000};
	struct clock_offset clock = {0};
	uint64_t seed = 1;

	run_row(&clock, &path, 1000000, &seed);
	assert_int_equal(clock.best.offset, 123456789);
	assert_int_equal(clock.best.uncertainty, 25000);
	assert_in_range(clock.best.at, 1000000, 1600000);
}

/* Whatever queues there are, the truth lies within what the estimate says of itself. */
static void the_truth_is_within_the_uncertainty(void **state)
{
	uint64_t seed = 4711, now = 1;

	for (unsigned round = 0; round < 20000; round++) {
		struct path path = {
			.offset = (int64_t)unit_random(&seed) / 1024,
			.way = 1 + below(&seed, 100000),
			.queue = {below(&seed, 2000000), below(&seed, 2000000)},
		};
		struct clock_offset clock = {0};

		now = run_row(&clock, &path, now, &seed);
		assert_true(error_of(&clock, path.offset) <= clock.best.uncertainty);
		assert_true(clock.best.uncertainty >= path.way);
	}
}

/* With queues that come and go, the shortest of the row is much better than the average. */
static void the_shortest_round_trip_counts(void **state)
{
	const struct path path = {.offset = -5000000000, .way = 10000, .queue = {1000000, 1000000}};
	uint64_t seed = 99, now = 1, shortest = 0, first = 0;

	for (unsigned round = 0; round < 1000; round++) {
		struct clock_offset clock = {0};
		uint64_t asked = now, there = queue(&seed, 1000000);

		now = run_row(&clock, &path, now, &seed);
		shortest += error_of(&clock, path.offset);
		/* What one question alone would have said. */
		clock_offset_begin(&clock);
		clock_offset_ask(&clock, asked);
		clock_offset_answer(&clock, asked, asked + 10000 + there + (uint64_t)path.offset,
				    asked + 20000 + there + queue(&seed, 1000000));
		first += error_of(&clock, path.offset);
	}
	assert_true(shortest < first / 5);
}

static void clocks_that_wrap_around(void **state)
{
	const int64_t offsets[] = {INT64_MAX, INT64_MIN, -1, 0, 1};
	uint64_t seed = 5;

	for (size_t i = 0; i < COUNT(offsets); i++) {
		const struct path path = {.offset = offsets[i], .way = 7};
		struct clock_offset clock = {0};

		run_row(&clock, &path, UINT64_C(1) << 60, &seed);
		assert_int_equal(clock.best.offset, offsets[i]);
	}
}

static void answers_that_nobody_asked_for(void **state)
{
	struct clock_offset clock = {0};

	assert_false(clock_offset_answer(&clock, 0, 5, 10));
	clock_offset_begin(&clock);
	clock_offset_ask(&clock, 100);
	assert_false(clock_offset_answer(&clock, 99, 5, 200));
	assert_true(clock_offset_answer(&clock, 100, 5, 200));
	assert_int_equal(clock.left, CLOCK_QUESTIONS - 1);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(an_even_path_has_no_error),
		cmocka_unit_test(the_truth_is_within_the_uncertainty),
		cmocka_unit_test(the_shortest_round_trip_counts),
		cmocka_unit_test(clocks_that_wrap_around),
		cmocka_unit_test(answers_that_nobody_asked_for),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
