/* SPDX-License-Identifier: Apache-2.0 */
/* Acknowledgements, round-trip times, losses, and patience that is learned. */
#include "recovery_case.h"

#include <errno.h>

/* ---- Acknowledgements -------------------------------------------------- */

static void test_arrival(void **state)
{
	send_many(5);
	assert_int_equal(test.recovery.in_flight, 5 * SIZE);
	test.now += 100 * US;
	ack_range(1, 3);
	assert_int_equal(test.arrived, 3);
	assert_int_equal(test.last_arrived, 3);
	assert_int_equal(test.sample.acked, 3 * SIZE);
	assert_int_equal(test.sample.lost, 0);
	assert_int_equal(test.sample.in_flight, 5 * SIZE);
	assert_int_equal(test.sample.rtt, 100 * US);
	assert_int_equal(test.sample.now, test.now);
	assert_int_equal(test.recovery.in_flight, 2 * SIZE);
	assert_int_equal(test.recovery.packets, 2);
	/* The same once more tells nothing. */
	ack_range(1, 3);
	assert_int_equal(test.arrived, 3);
	assert_int_equal(test.sample.acked, 0);
	assert_int_equal(test.sample.rtt, 0);
	assert_false(test.sample.round);
	ack_range(1, 5);
	assert_int_equal(test.arrived, 5);
	assert_int_equal(test.recovery.in_flight, 0);
	assert_int_equal(test.recovery.oldest, test.recovery.next);
}

static void test_impossible_acks(void **state)
{
	const struct {
		struct packet_range ranges[2];
		uint32_t count;
	} wrong[] = {
		{{{11, 11}}, 1},       {{{1, 11}}, 1},         {{{0, 3}}, 1},
		{{{5, 4}}, 1},         {{{1, UINT64_MAX}}, 1}, {{{UINT64_MAX, UINT64_MAX}}, 1},
		{{{5, 8}, {4, 5}}, 2}, {{{5, 8}, {5, 8}}, 2},  {{{2, 3}, {8, 9}}, 2},
		{{{5, 8}, {0, 2}}, 2},
	};
	struct packet_ack ack = {.count = PACKET_RANGES_MAX + 1};

	send_many(10);
	for (size_t i = 0; i < COUNT(wrong); i++)
		assert_int_equal(ack_ranges(wrong[i].ranges, wrong[i].count), -EPROTO);
	assert_int_equal(recovery_on_ack(&test.recovery, &ack, test.now, true, &test.sample),
			 -EPROTO);
	assert_int_equal(test.arrived, 0);
	assert_int_equal(test.recovery.packets, 10);
	/* Odd, but true. */
	assert_int_equal(ack_ranges(NULL, 0), 0);
	assert_int_equal(test.sample.acked, 0);
	assert_int_equal(ack_ranges((struct packet_range[]){{4, 4}, {3, 3}, {1, 2}}, 3), 0);
	assert_int_equal(test.arrived, 4);
}

static void test_ack_of_nothing_sent(void **state)
{
	assert_int_equal(ack_ranges((struct packet_range[]){{1, 1}}, 1), -EPROTO);
	assert_int_equal(ack_ranges(NULL, 0), 0);
}

static void test_rounds_and_limits(void **state)
{
	struct sent sent = {.at = test.now, .size = SIZE, .limited = true};

	send_many(3);
	test.now += MS;
	ack_range(1, 1);
	assert_true(test.sample.round);
	assert_false(test.sample.limited);
	ack_range(2, 3);
	assert_false(test.sample.round);
	send_one();
	assert_true(recovery_room(&test.recovery));
	recovery_sent(&test.recovery, &sent);
	test.now += MS;
	ack_range(4, 5);
	assert_true(test.sample.round);
	assert_true(test.sample.limited);
}

static void test_marks(void **state)
{
	struct packet_ack ack = {.count = 1, .marks = 5, .ranges = {{2, 2}}};

	test.recovery.marks = UINT32_MAX - 1;
	send_many(4);
	assert_int_equal(recovery_on_ack(&test.recovery, &ack, test.now, true, &test.sample), 0);
	assert_int_equal(test.sample.marks, 7);
	/* An older one knows of fewer; one that is as new and says less lies. */
	ack.marks = 3;
	ack.ranges[0] = (struct packet_range){1, 1};
	recovery_on_ack(&test.recovery, &ack, test.now, true, &test.sample);
	assert_int_equal(test.sample.marks, 0);
	ack.ranges[0] = (struct packet_range){3, 3};
	recovery_on_ack(&test.recovery, &ack, test.now, true, &test.sample);
	assert_int_equal(test.sample.marks, 0);
	ack.marks = 6;
	ack.ranges[0] = (struct packet_range){4, 4};
	recovery_on_ack(&test.recovery, &ack, test.now, true, &test.sample);
	assert_int_equal(test.sample.marks, 1);
}

/* ---- Round-trip times -------------------------------------------------- */

static void ack_with_delay(uint64_t number, uint32_t delay, bool heard)
{
	struct packet_ack ack = {.count = 1, .delay_ns = delay, .ranges = {{number, number}}};

	assert_int_equal(recovery_on_ack(&test.recovery, &ack, test.now, heard, &test.sample), 0);
}

static void test_rtt_and_delay(void **state)
{
	const struct rtt *rtt = &test.recovery.rtt;

	send_many(1);
	test.now += 100 * US;
	ack_with_delay(1, 20 * US, true);
	assert_int_equal(test.sample.rtt, 80 * US);
	assert_int_equal(rtt->smooth, 80 * US);
	assert_int_equal(rtt->variation, 40 * US);
	assert_int_equal(rtt->least, 80 * US);
	/* A slow host: the controller does not hear of it, the timers do. */
	send_many(1);
	test.now += 1100 * US;
	ack_with_delay(2, 1000 * US, true);
	assert_int_equal(test.sample.rtt, 100 * US);
	assert_int_equal(rtt->latest, 1075 * US);
	assert_int_equal(rtt->smooth, (7 * 80 * US + 1075 * US) / 8);
	assert_int_equal(rtt->least, 80 * US);
	assert_int_equal(test.sample.rtt_least, 80 * US);
	assert_int_equal(test.sample.rtt_smooth, rtt->smooth);
}

static void test_rtt_that_tells_nothing(void **state)
{
	learn_rtt(100 * US);
	send_many(3);
	test.now += 900 * US;
	/* This side was away. */
	ack_with_delay(2, 0, false);
	assert_int_equal(test.sample.rtt, 0);
	assert_int_equal(test.sample.acked, SIZE);
	/* The peer was, or it lies. */
	ack_with_delay(3, UINT32_MAX, true);
	assert_int_equal(test.sample.rtt, 0);
	ack_with_delay(4, 900 * US, true);
	assert_int_equal(test.sample.rtt, 0);
	/* The largest is not new: its delay says nothing about the others. */
	send_many(3);
	test.now += 100 * US;
	ack_range(7, 7);
	assert_int_equal(test.sample.rtt, 100 * US);
	test.now += 100 * US;
	ack_range(5, 7);
	assert_int_equal(test.sample.rtt, 0);
	assert_int_equal(test.recovery.rtt.smooth, 100 * US);
}

/* A path that got longer is noticed after one to two times ten seconds. */
static void test_least_rises_again(void **state)
{
	uint64_t begin;

	learn_rtt(100 * US);
	begin = test.now;
	while (test.now < begin + 9 * SECOND) {
		uint64_t number = send_one();

		test.now += 10 * MS;
		ack_range(number, number);
		assert_int_equal(test.recovery.rtt.least, 100 * US);
	}
	while (test.now < begin + 21 * SECOND) {
		uint64_t number = send_one();

		test.now += 10 * MS;
		ack_range(number, number);
	}
	assert_int_equal(test.recovery.rtt.least, 10 * MS);
}

static void test_rtt_of_opening(void **state)
{
	recovery_rtt(&test.recovery, 300 * US, test.now);
	assert_int_equal(test.recovery.rtt.smooth, 300 * US);
	assert_int_equal(test.recovery.rtt.least, 300 * US);
	assert_true(test.recovery.rtt.known);
}

/* ---- Losses ------------------------------------------------------------ */

static void test_lost_by_number(void **state)
{
	learn_rtt(100 * US);
	send_many(10); /* 2 to 11 */
	test.now += 100 * US;
	ack_range(4, 4);
	assert_int_equal(test.lost, 0);
	ack_range(4, 5);
	assert_int_equal(test.lost, 1);
	assert_int_equal(test.last_lost, 2);
	assert_int_equal(test.sample.lost, SIZE);
	assert_int_equal(test.recovery.in_flight, 7 * SIZE);
	ack_range(4, 8);
	assert_int_equal(test.lost, 2);
	assert_int_equal(test.recovery.packets_lost, 2);
}

static void test_lost_by_time(void **state)
{
	uint64_t sent_at;

	learn_rtt(800 * US);
	sent_at = test.now;
	send_many(2); /* 2 and 3 */
	test.now += 800 * US;
	ack_range(3, 3);
	assert_int_equal(test.lost, 0);
	assert_int_equal(recovery_deadline(&test.recovery), sent_at + 900 * US);
	test.now = sent_at + 900 * US - 1;
	assert_int_equal(timer(), RECOVERY_NOTHING);
	test.now++;
	assert_int_equal(timer(), RECOVERY_LOSS);
	assert_int_equal(test.lost, 1);
	assert_int_equal(test.sample.lost, SIZE);
	assert_int_equal(test.recovery.in_flight, 0);
	assert_int_equal(test.recovery.timeouts, 0);
}

/* Nothing that was sent after the newest that arrived is lost, however old it is. */
static void test_not_lost_without_a_sign(void **state)
{
	learn_rtt(100 * US);
	send_many(50);
	test.now += SECOND;
	assert_int_equal(timer(), RECOVERY_PROBE);
	assert_int_equal(test.lost, 0);
	assert_int_equal(test.sample.lost, 0);
	/* The answer to the probe is one. */
	send_one();
	test.now += 100 * US;
	ack_range(52, 52);
	assert_int_equal(test.lost, 50);
	assert_int_equal(test.recovery.packets, 0);
}

/* This side was away: what is missing may be among what it has not looked at. */
static void test_unheard_waits(void **state)
{
	learn_rtt(100 * US);
	send_many(4); /* 2 to 5 */
	test.now += 5 * MS;
	ack_with_delay(3, 0, false);
	assert_int_equal(test.lost, 0);
	assert_int_equal(recovery_deadline(&test.recovery), test.now + 50 * US);
	ack_with_delay(2, 0, false);
	assert_int_equal(test.lost, 0);
	assert_int_equal(test.arrived, 2);
	test.now += 60 * US;
	assert_int_equal(timer(), RECOVERY_NOTHING);
	assert_int_equal(test.lost, 0);
	/* Nor is a probe due, whose time ended meanwhile. */
	assert_true(recovery_deadline(&test.recovery) > test.now + 900 * US);
}

static void test_lose_all(void **state)
{
	learn_rtt(100 * US);
	send_many(100);
	test.now += 100 * US;
	ack_range(50, 50);
	test.lost = 0;
	recovery_lose_all(&test.recovery);
	assert_int_equal(test.lost, 2 + 101 - 50);
	assert_int_equal(test.recovery.in_flight, 0);
	assert_int_equal(test.recovery.packets, 0);
	assert_true(recovery_deadline(&test.recovery) > test.now + SECOND);
	/* They may have arrived all the same. */
	ack_range(51, 101);
	assert_int_equal(test.late, 51);
	assert_int_equal(test.recovery.in_flight, 0);
}

/* ---- Patience ---------------------------------------------------------- */

static void test_late_packets_teach(void **state)
{
	learn_rtt(100 * US);
	send_many(100); /* 2 to 101 */
	test.now += 100 * US;
	ack_range(12, 12);
	assert_int_equal(test.lost, 8);
	assert_int_equal(test.recovery.reordering, 3);
	/* 2 was overtaken by 10 numbers. */
	ack_range(2, 2);
	assert_int_equal(test.late, 1);
	assert_int_equal(test.last_late, 2);
	assert_int_equal(test.sample.late, SIZE);
	assert_int_equal(test.sample.acked, SIZE);
	assert_int_equal(test.recovery.reordering, 11);
	assert_int_equal(test.recovery.patience, 9);
	ack_range(2, 2);
	assert_int_equal(test.late, 1);
	/* The next ten may be as late. */
	test.lost = 0;
	ack_range(20, 20);
	assert_int_equal(test.lost, 0);
	ack_range(22, 22);
	assert_int_equal(test.lost, 2);
	assert_int_equal(test.recovery.packets_late, 1);
}

static void test_late_in_time(void **state)
{
	learn_rtt(800 * US);
	send_many(2);
	test.now += 800 * US;
	ack_range(3, 3);
	test.now += 100 * US;
	assert_int_equal(timer(), RECOVERY_LOSS);
	test.now += 300 * US; /* it took 12/8 */
	ack_range(2, 3);
	assert_int_equal(test.late, 1);
	assert_int_equal(test.recovery.patience, 13);
	assert_int_equal(test.recovery.reordering, 3);
	/* Away meanwhile: then the time is not the path's. */
	send_many(2); /* 4 and 5 */
	test.now += 800 * US;
	ack_range(5, 5);
	test.now += 600 * US;
	assert_int_equal(timer(), RECOVERY_LOSS);
	test.now += 5 * MS;
	ack_with_delay(4, 0, false);
	assert_int_equal(test.late, 2);
	assert_int_equal(test.recovery.patience, 13);
}

static void test_patience_is_bounded_and_ends(void **state)
{
	unsigned seconds = 0;

	learn_rtt(100 * US);
	send_many(20000);
	ack_range(19000, 19000);
	test.now += 900 * US;
	ack_range(2, 2);
	assert_int_equal(test.recovery.reordering, RECOVERY_SPAN / 4);
	assert_int_equal(test.recovery.patience, 32);
	for (; test.recovery.reordering > 3 || test.recovery.patience > 9; seconds++) {
		uint64_t number;

		test.now += SECOND;
		number = send_one();
		ack_range(number, number);
		assert_true(seconds < 60);
	}
	assert_true(seconds > 3);
	assert_int_equal(test.recovery.reordering, 3);
	assert_int_equal(test.recovery.patience, 9);
}

#define CASE(name) cmocka_unit_test_setup_teardown(name, setup, teardown)

int main(void)
{
	const struct CMUnitTest tests[] = {
		CASE(test_arrival),
		CASE(test_impossible_acks),
		CASE(test_ack_of_nothing_sent),
		CASE(test_rounds_and_limits),
		CASE(test_marks),
		CASE(test_rtt_and_delay),
		CASE(test_rtt_that_tells_nothing),
		CASE(test_least_rises_again),
		CASE(test_rtt_of_opening),
		CASE(test_lost_by_number),
		CASE(test_lost_by_time),
		CASE(test_not_lost_without_a_sign),
		CASE(test_unheard_waits),
		CASE(test_lose_all),
		CASE(test_late_packets_teach),
		CASE(test_late_in_time),
		CASE(test_patience_is_bounded_and_ends),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
