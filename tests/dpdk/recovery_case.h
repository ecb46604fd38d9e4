/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A recovery whose clock the test turns, and what it told. Included by one source file of a
 * program.
 */
#ifndef TENSORHAUL_TESTS_DPDK_RECOVERY_CASE_H
#define TENSORHAUL_TESTS_DPDK_RECOVERY_CASE_H

#include "recovery.h"

#include "failing_memory.h"
#include "unit.h"

#define US UINT64_C(1000)
#define MS UINT64_C(1000000)
#define SECOND UINT64_C(1000000000)

#define ACK_DELAY (25 * US)
#define SIZE 1500

static struct {
	struct recovery recovery;
	struct congestion_sample sample;
	uint64_t now;
	unsigned arrived, lost, late;
	uint64_t last_arrived, last_lost, last_late;
} test;

static inline void on_arrived(void *user, const struct sent *sent)
{
	assert_ptr_equal(user, &test);
	assert_int_equal(sent->state, SENT_ARRIVED);
	test.arrived++;
	test.last_arrived = sent->number;
}

static inline void on_lost(void *user, const struct sent *sent)
{
	assert_int_equal(sent->state, SENT_LOST);
	/* They come in order. */
	assert_true(sent->number > test.last_lost);
	test.lost++;
	test.last_lost = sent->number;
}

static inline void on_late(void *user, const struct sent *sent)
{
	test.late++;
	test.last_late = sent->number;
}

static const struct recovery_ops test_ops = {
	.arrived = on_arrived,
	.lost = on_lost,
	.late = on_late,
};

static inline int setup(void **state)
{
	memset(&test, 0, sizeof(test));
	memory_left = -1;
	test.now = 100 * SECOND;
	recovery_start(&test.recovery, &test_ops, &test, ACK_DELAY);
	return 0;
}

static inline int teardown(void **state)
{
	recovery_stop(&test.recovery);
	return 0;
}

/* ---- Helpers ----------------------------------------------------------- */

static inline uint64_t send_one(void)
{
	struct sent sent = {.at = test.now, .owner = &test, .length = 1400, .size = SIZE};

	assert_true(recovery_room(&test.recovery));
	recovery_sent(&test.recovery, &sent);
	return test.recovery.next - 1;
}

static inline void send_many(unsigned count)
{
	while (count--)
		send_one();
}

static inline int ack_ranges(const struct packet_range *ranges, uint32_t count)
{
	struct packet_ack ack = {.count = count};

	if (count)
		memcpy(ack.ranges, ranges, count * sizeof(*ranges));
	return recovery_on_ack(&test.recovery, &ack, test.now, true, &test.sample);
}

static inline void ack_range(uint64_t first, uint64_t last)
{
	assert_int_equal(ack_ranges(&(struct packet_range){first, last}, 1), 0);
}

/* One packet there and back, so that the round trip is known. */
static inline void learn_rtt(uint64_t rtt)
{
	uint64_t number = send_one();

	test.now += rtt;
	ack_range(number, number);
	assert_int_equal(test.recovery.rtt.smooth, rtt);
	test.arrived = 0;
}

static inline enum recovery_timer timer(void)
{
	return recovery_on_timer(&test.recovery, test.now, &test.sample);
}

#endif
