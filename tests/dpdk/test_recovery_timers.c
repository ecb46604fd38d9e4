/* SPDX-License-Identifier: Apache-2.0 */
/* Probe timeouts, and the ring of packets: that it grows, lasts, and is given back. */
#include "recovery_case.h"

/* ---- Probe timeouts ---------------------------------------------------- */

static void expect_probe_after(uint64_t from, uint64_t wait)
{
	assert_int_equal(recovery_deadline(&test.recovery), from + wait);
	test.now = from + wait - 1;
	assert_int_equal(timer(), RECOVERY_NOTHING);
	test.now++;
	assert_int_equal(timer(), RECOVERY_PROBE);
}

static void test_probe_without_rtt(void **state)
{
	uint64_t wait = 20 * MS + ACK_DELAY;

	send_one();
	for (unsigned i = 0; i < 6; i++) {
		expect_probe_after(test.now, wait);
		assert_int_equal(test.recovery.timeouts, i + 1);
		wait *= 2;
		if (wait > SECOND)
			wait = SECOND;
	}
	/* No end, and no overflow. */
	for (unsigned i = 0; i < 200; i++)
		expect_probe_after(test.now, SECOND);
	ack_range(1, 1);
	assert_int_equal(test.recovery.timeouts, 0);
}

static void test_probe_with_rtt(void **state)
{
	learn_rtt(10 * MS);
	/* smooth 10 ms, variation 5 ms. */
	send_one();
	expect_probe_after(test.now, 30 * MS + ACK_DELAY);
	/* The probe itself restarts the clock. */
	test.now += 3 * MS;
	send_one();
	expect_probe_after(test.now, 2 * (30 * MS + ACK_DELAY));
}

static void test_probe_is_no_faster_than_hosts(void **state)
{
	for (unsigned i = 0; i < 100; i++) {
		uint64_t number = send_one();

		test.now += 20 * US;
		ack_range(number, number);
	}
	send_one();
	assert_in_range(recovery_deadline(&test.recovery), test.now + MS, test.now + MS + 100 * US);
}

/* A round trip of more than a second needs longer than the usual longest wait. */
static void test_probe_on_a_very_long_path(void **state)
{
	learn_rtt(4 * SECOND);
	send_one();
	expect_probe_after(test.now, 12 * SECOND + ACK_DELAY);
	expect_probe_after(test.now, 12 * SECOND + ACK_DELAY);
}

static void test_no_timer_when_idle(void **state)
{
	assert_int_equal(recovery_deadline(&test.recovery), UINT64_MAX);
	assert_int_equal(timer(), RECOVERY_NOTHING);
	learn_rtt(MS);
	assert_int_equal(recovery_deadline(&test.recovery), test.recovery.last_sent + 10 * SECOND);
}

/* ---- The ring ---------------------------------------------------------- */

static void test_ring_grows(void **state)
{
	send_many(64);
	assert_int_equal(test.recovery.room, 64);
	send_one();
	assert_int_equal(test.recovery.room, 128);
	send_many(RECOVERY_SPAN - 65);
	assert_int_equal(test.recovery.room, RECOVERY_SPAN);
	assert_false(recovery_room(&test.recovery));
	/* Everything is still there. */
	test.recovery.reordering = RECOVERY_SPAN;
	test.recovery.calm_at = test.now;
	ack_range(2, RECOVERY_SPAN);
	assert_int_equal(test.arrived, RECOVERY_SPAN - 1);
	assert_false(recovery_room(&test.recovery));
	ack_range(1, 1);
	assert_int_equal(test.arrived, RECOVERY_SPAN);
	assert_true(recovery_room(&test.recovery));
}

/* What was lost is remembered until its place is needed. */
static void test_ring_keeps_lost_ones(void **state)
{
	send_many(64);
	ack_range(60, 60);
	assert_int_equal(test.lost, 57);
	send_many(7); /* 65 to 71 take the places of 1 to 7 */
	assert_int_equal(test.recovery.room, 64);
	ack_range(1, 57);
	assert_int_equal(test.late, 50);
	assert_int_equal(test.sample.late, 50 * SIZE);
	ack_range(58, 71);
	assert_int_equal(test.arrived, 14);
	assert_int_equal(test.recovery.in_flight, 0);
}

/* Nothing arrives any more and all numbers are in use: probes need some. */
static void test_full_ring_can_probe(void **state)
{
	learn_rtt(100 * US);
	send_many(RECOVERY_SPAN);
	assert_false(recovery_room(&test.recovery));
	for (unsigned i = 1; i <= 20; i++) {
		test.now += SECOND;
		assert_int_equal(timer(), RECOVERY_PROBE);
		assert_int_equal(test.sample.lost, 2 * SIZE);
		assert_int_equal(test.lost, 2 * i);
		send_many(2);
	}
	/* The way is free again. */
	ack_range(test.recovery.next - 2, test.recovery.next - 1);
	assert_int_equal(test.recovery.packets, 0);
	assert_int_equal(test.recovery.in_flight, 0);
}

static void test_ring_is_given_back(void **state)
{
	uint64_t number;

	send_many(1000);
	ack_range(1, 1000);
	assert_int_equal(test.recovery.room, 1024);
	/* Some packet now and then is no reason to keep it... */
	test.now += 9 * SECOND;
	number = send_one();
	ack_range(number, number);
	assert_int_equal(test.recovery.room, 1024);
	test.now += SECOND;
	assert_true(recovery_deadline(&test.recovery) <= test.now);
	assert_int_equal(timer(), RECOVERY_NOTHING);
	assert_int_equal(test.recovery.room, 64);
	/* ...and without any, all of it goes. */
	test.now += 10 * SECOND;
	assert_true(recovery_deadline(&test.recovery) <= test.now);
	assert_int_equal(timer(), RECOVERY_NOTHING);
	assert_int_equal(test.recovery.room, 0);
	assert_int_equal(recovery_deadline(&test.recovery), UINT64_MAX);
	/* What it forgot is not told any more. */
	ack_range(1, number);
	assert_int_equal(test.sample.acked, 0);
	number = send_one();
	ack_range(number, number);
	assert_int_equal(test.arrived, 1002);
}

/* One packet at a time must not allocate at each. */
static void test_ring_stays_while_used(void **state)
{
	for (unsigned i = 0; i < 100; i++) {
		uint64_t number = send_one();

		ack_range(number, number);
		test.now += 9 * SECOND;
		assert_int_equal(timer(), RECOVERY_NOTHING);
		assert_int_equal(test.recovery.room, 64);
	}
}

static void test_ring_without_memory(void **state)
{
	memory_left = 0;
	assert_false(recovery_room(&test.recovery));
	memory_left = 1;
	send_many(64);
	assert_false(recovery_room(&test.recovery));
	assert_int_equal(test.recovery.room, 64);
	/* No number and no memory for one: the oldest make room for a probe. */
	test.now += SECOND;
	assert_int_equal(timer(), RECOVERY_PROBE);
	assert_int_equal(test.lost, 2);
	assert_true(recovery_room(&test.recovery));
	memory_left = -1;
	send_many(1000);
	ack_range(3, 1064);
	test.now += 10 * SECOND;
	send_one();
	ack_range(1065, 1065);
	memory_left = 0;
	assert_int_equal(timer(), RECOVERY_NOTHING);
	assert_int_equal(test.recovery.room, 2048);
	assert_true(recovery_deadline(&test.recovery) > test.now);
}

static void test_last_numbers(void **state)
{
	test.recovery.next = test.recovery.oldest = PACKET_NUMBER_MAX - 2;
	test.recovery.round_end = test.recovery.next;
	send_many(3);
	assert_int_equal(test.recovery.next, PACKET_NUMBER_MAX + 1);
	assert_false(recovery_room(&test.recovery));
	ack_range(PACKET_NUMBER_MAX - 2, PACKET_NUMBER_MAX);
	assert_int_equal(test.arrived, 3);
	assert_false(recovery_room(&test.recovery));
	ack_range(1, PACKET_NUMBER_MAX);
	assert_int_equal(test.arrived, 3);
}

#define CASE(name) cmocka_unit_test_setup_teardown(name, setup, teardown)

int main(void)
{
	const struct CMUnitTest tests[] = {
		CASE(test_probe_without_rtt),
		CASE(test_probe_with_rtt),
		CASE(test_probe_is_no_faster_than_hosts),
		CASE(test_probe_on_a_very_long_path),
		CASE(test_no_timer_when_idle),
		CASE(test_ring_grows),
		CASE(test_ring_keeps_lost_ones),
		CASE(test_full_ring_can_probe),
		CASE(test_ring_is_given_back),
		CASE(test_ring_stays_while_used),
		CASE(test_ring_without_memory),
		CASE(test_last_numbers),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
