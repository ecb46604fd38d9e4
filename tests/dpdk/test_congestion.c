/* SPDX-License-Identifier: Apache-2.0 */
/* The congestion controllers, told of round trips that the test makes up. */
#include "congestion.h"
#include "packet.h"

#include "unit.h"

#define US UINT64_C(1000)
#define MS UINT64_C(1000000)
#define SECOND UINT64_C(1000000000)

#define PACKET 1500
#define MOST (UINT64_C(40000) * PACKET)
#define ACKED 16 /* packets at a time */

/* One connection: a controller, and the clock. */
static struct {
	const struct congestion_ops *ops;
	_Alignas(16) uint8_t state[CONGESTION_STATE];
	uint8_t behind[64];
	uint64_t now;
} test;

/* What a round trip is like. */
struct trip {
	uint64_t rtt, least;
	double loss, marks; /* parts of the packets */
	bool limited;
	bool unused; /* less than half of the window was under way */
};

static void start(const struct congestion_ops *ops)
{
	const struct congestion_config config = {.packet = PACKET, .most = MOST};

	memset(&test, 0xa5, sizeof(test));
	test.ops = ops;
	test.now = 5 * SECOND;
	ops->start(test.state, &config, test.now);
}

/* In packets. */
static double window(void)
{
	return (double)test.ops->window(test.state) / PACKET;
}

/* One window is sent, and what becomes of it is told in acknowledgements of up to 16 packets. */
static void go_round(const struct trip *trip)
{
	uint64_t packets = test.ops->window(test.state) / PACKET, begin = test.now;
	double lost = 0, marked = 0;

	for (uint64_t first = 0; first < packets; first += ACKED) {
		uint64_t count = packets - first < ACKED ? packets - first : ACKED;
		struct congestion_sample sample = {
			.rtt = trip->rtt,
			.rtt_least = trip->least,
			.rtt_smooth = trip->rtt,
			.in_flight = packets * PACKET / (trip->unused ? 3 : 1),
			.round = first + ACKED >= packets,
			.limited = trip->limited,
		};

		lost += trip->loss * (double)count;
		marked += trip->marks * (double)count;
		sample.lost = (uint64_t)lost * PACKET;
		sample.acked = count * PACKET - sample.lost;
		sample.marks = (uint32_t)marked;
		lost -= (double)(uint64_t)lost;
		marked -= (double)(uint64_t)marked;
		test.now = begin + trip->rtt * (first + count) / packets;
		sample.now = test.now;
		sample.clock = (uint16_t)(test.now >> PACKET_CLOCK_UNIT);
		test.ops->on_ack(test.state, &sample);
	}
}

static void go_rounds(const struct trip *trip, unsigned count)
{
	while (count--)
		go_round(trip);
}

static const struct trip empty = {.rtt = 100 * US, .least = 100 * US};
static const struct trip full = {.rtt = 3 * MS, .least = 100 * US};

/* ---- Swift ------------------------------------------------------------- */

/* Out of slow start, with a window of some hundred packets and a delay that keeps it there. */
static void settle_swift(void)
{
	start(&congestion_swift);
	go_rounds(&empty, 5);
	while (window() > 200 || window() < 100)
		go_round(window() > 150 ? &full : &empty);
	go_rounds(&(struct trip){.rtt = 400 * US, .least = 100 * US}, 50);
	assert_true(window() > 30 && window() < 1000);
}

static void test_swift_starts(void **state)
{
	start(&congestion_swift);
	assert_true(window() == 16);
	assert_int_equal(test.ops->rate(test.state, 0), 0);
	assert_in_range(test.ops->rate(test.state, MS), 2 * 16 * PACKET * 1000,
			2 * 16 * PACKET * 1000 + 1);
	for (unsigned i = 0; i < 5; i++) {
		double before = window();

		go_round(&empty);
		assert_true(window() == 2 * before);
	}
	/* Never more than allowed. */
	go_rounds(&empty, 20);
	assert_int_equal(test.ops->window(test.state), MOST);
}

static void test_swift_leaves_slow_start(void **state)
{
	double before;

	start(&congestion_swift);
	go_rounds(&empty, 6);
	before = window();
	go_round(&full);
	assert_true(window() < before);
	before = window();
	go_rounds(&empty, 1);
	/* No doubling any more. */
	assert_true(window() < 1.3 * before);
}

static void test_swift_follows_delay(void **state)
{
	double before;

	settle_swift();
	before = window();
	go_round(&full);
	assert_true(window() < before);
	assert_true(window() >= before / 2);
	go_rounds(&full, 30);
	assert_true(window() == 2);
	/* A window of one packet is kept by the pace. */
	assert_true(test.ops->rate(test.state, MS) <= 1000 * PACKET + 1);
	before = window();
	go_rounds(&empty, 60);
	assert_true(window() > 4 * before);
	before = window();
	go_rounds(&(struct trip){.rtt = 100 * US, .least = 100 * US, .limited = true}, 20);
	assert_true(window() <= before);
}

/* Some loss, and no delay: nothing happens. */
static void test_swift_bears_loss(void **state)
{
	const double losses[] = {0.01, 0.05};

	for (size_t i = 0; i < COUNT(losses); i++) {
		struct trip trip = {.rtt = 100 * US, .least = 100 * US, .loss = losses[i]};

		start(&congestion_swift);
		go_rounds(&trip, 7);
		assert_true(window() > 1000);
		go_rounds(&trip, 30);
		assert_int_equal(test.ops->window(test.state), MOST);
	}
}

static void test_swift_heavy_loss(void **state)
{
	struct trip trip = {.rtt = 110 * US, .least = 100 * US, .loss = 0.35};
	double before;

	start(&congestion_swift);
	go_rounds(&empty, 8);
	before = window();
	go_rounds(&trip, 12);
	assert_true(window() < before / 4);
}

/* A buffer that is shorter than the target: the delay is moderate, the loss is unusual. */
static void test_swift_excess_loss(void **state)
{
	struct trip trip = {.rtt = 220 * US, .least = 100 * US, .loss = 0.08};
	double before;

	settle_swift();
	before = window();
	go_rounds(&trip, 20);
	assert_true(window() < 0.9 * before);
}

/* Loss that stays, whatever is given up, is the path's own. */
static void test_swift_gives_in_to_loss(void **state)
{
	struct trip trip = {.rtt = 110 * US, .least = 100 * US, .loss = 0.12};

	settle_swift();
	go_rounds(&trip, 2000);
	assert_true(window() > 1000);
}

static void test_swift_marks(void **state)
{
	struct trip few = {.rtt = 120 * US, .least = 100 * US, .marks = 0.05};
	struct trip all = {.rtt = 120 * US, .least = 100 * US, .marks = 1};
	double before, after_few;

	settle_swift();
	before = window();
	go_round(&few);
	after_few = window();
	assert_true(after_few < before);
	go_rounds(&all, 20);
	assert_true(window() < after_few / 4);
}

static void test_swift_timeouts(void **state)
{
	double before;

	settle_swift();
	before = window();
	for (unsigned count = 1; count < 4; count++)
		test.ops->on_timeout(test.state, count, test.now);
	assert_true(window() == before);
	test.ops->on_timeout(test.state, 4, test.now);
	assert_true(window() == 16);
	test.ops->on_timeout(test.state, 5, test.now);
	/* What was lost with the path says nothing; then it doubles again. */
	go_rounds(&(struct trip){.rtt = 100 * US, .least = 100 * US, .loss = 1}, 1);
	go_rounds(&empty, 4);
	assert_true(window() > 100);
}

static void test_swift_idle(void **state)
{
	double before;

	settle_swift();
	before = window();
	test.ops->on_idle(test.state, 10 * MS);
	assert_true(window() == before);
	test.ops->on_idle(test.state, 1 * SECOND);
	assert_true(window() < before && window() > before / 3);
	test.ops->on_idle(test.state, 24 * 3600 * SECOND);
	assert_true(window() == 16);
	/* A window that was less is not made more. */
	settle_swift();
	go_rounds(&full, 30);
	before = window();
	test.ops->on_idle(test.state, 24 * 3600 * SECOND);
	assert_true(window() <= 16);
	go_round(&empty);
	assert_true(window() > before);
}

/* Now and then nearly nothing is under way, for some round trips. */
static void test_swift_drains(void **state)
{
	struct trip trip = {.rtt = 420 * US, .least = 100 * US};
	unsigned times = 0, rounds = 0;
	uint64_t end;
	bool draining = false;

	settle_swift();
	end = test.now + 3 * SECOND;
	while (test.now < end) {
		bool low = window() == 2 && test.ops->rate(test.state, trip.rtt) < PACKET * 2000;

		times += low && !draining;
		rounds += low;
		draining = low;
		go_round(&trip);
	}
	assert_in_range(times, 9, 20);
	assert_true(rounds <= 6 * times);
}

/* A queue of others that does not go away: take part, and give in with each loss. */
static void test_swift_in_a_crowd(void **state)
{
	struct trip lossy = full;
	double before;
	uint64_t end;

	lossy.loss = 0.1;
	settle_swift();
	go_rounds(&full, 100);
	assert_true(window() <= 2);
	end = test.now + 10 * SECOND;
	while (test.now < end)
		go_round(&full);
	before = window();
	assert_true(before > 100);
	go_rounds(&lossy, 2);
	assert_true(window() < 0.75 * before);
	/* And it ends when the queue does, but not at once: such queues rise and fall. */
	before = window();
	go_rounds(&(struct trip){.rtt = 500 * US, .least = 100 * US}, 50);
	assert_true(window() >= 0.9 * before);
	go_rounds(&(struct trip){.rtt = 500 * US, .least = 100 * US}, 1000);
	go_rounds(&full, 100);
	assert_true(window() <= 2);
}

/* ---- CUBIC ------------------------------------------------------------- */

static const struct trip lossy_one = {.rtt = 10 * MS, .least = 10 * MS, .loss = 0.02};
static const struct trip calm = {.rtt = 10 * MS, .least = 10 * MS};

static void test_cubic_slow_start(void **state)
{
	struct trip risen = calm;
	double before;

	start(&congestion_cubic);
	assert_true(window() == 10);
	go_rounds(&calm, 6);
	assert_true(window() == 640);
	/* HyStart++: a quarter as fast when the round trip rises, for five rounds. */
	risen.rtt += 2 * MS;
	before = window();
	go_round(&risen);
	assert_true(window() > 1.2 * before && window() < 1.6 * before);
	before = window();
	go_round(&risen);
	assert_true(window() > 1.2 * before && window() < 1.3 * before);
	go_rounds(&risen, 4);
	before = window();
	go_round(&risen);
	assert_true(window() < 1.1 * before);
}

static void test_cubic_reduces_once(void **state)
{
	double before;

	start(&congestion_cubic);
	go_rounds(&calm, 6);
	before = window();
	go_round(&lossy_one);
	assert_true(window() >= 0.7 * before - 1 && window() < 0.8 * before);
	/* The losses of the next round belong to what was sent before. */
	before = window();
	go_round(&lossy_one);
	assert_true(window() >= before);
	go_rounds(&lossy_one, 2);
	assert_true(window() < before);
}

/* RFC 9438: back at the old maximum after the cube root of 0.3 W / C seconds. */
static void test_cubic_curve(void **state)
{
	struct trip far = {.rtt = 100 * MS, .least = 100 * MS}, lossy = far;
	uint64_t begin;
	double most;

	lossy.loss = 0.02;
	start(&congestion_cubic);
	go_rounds(&far, 7);
	most = window() + 48; /* when the first loss is told */
	go_round(&lossy);
	go_rounds(&far, 2);
	begin = test.now;
	/* 0.3 * 1328 / 0.4 = 996, and its cube root 9.99 s. Steep at first, flat there... */
	while (test.now < begin + 5 * SECOND)
		go_round(&far);
	assert_true(window() > 0.95 * most && window() < 0.99 * most);
	while (test.now < begin + 10 * SECOND)
		go_round(&far);
	assert_true(window() > 0.99 * most && window() < 1.01 * most);
	/* ...and then steeper and steeper. */
	while (test.now < begin + 20 * SECOND)
		go_round(&far);
	assert_true(window() > 1.25 * most && window() < 1.4 * most);
}

/* Who loses again before it is back gives up more than that, so that newcomers get some. */
static void test_cubic_fast_convergence(void **state)
{
	struct trip far = {.rtt = 100 * MS, .least = 100 * MS}, lossy = far;
	double most;
	uint64_t begin;

	lossy.loss = 0.02;
	start(&congestion_cubic);
	go_rounds(&far, 7);
	go_round(&lossy);
	go_rounds(&far, 3);
	most = window();
	go_round(&lossy);
	go_rounds(&far, 2);
	begin = test.now;
	/* The plateau is at 0.85 of what it had, after 7 s. */
	while (test.now < begin + 7 * SECOND)
		go_round(&far);
	assert_true(window() > 0.8 * most && window() < 0.9 * most);
}

/* Where Reno would be faster, on short paths: 0.53 packets in a round trip. */
static void test_cubic_is_no_slower_than_reno(void **state)
{
	double before;

	start(&congestion_cubic);
	go_rounds(&calm, 7);
	go_rounds(&lossy_one, 1);
	go_rounds(&calm, 2);
	before = window();
	go_rounds(&calm, 600);
	assert_true(window() > before + 250 && window() < before + 400);
}

static void test_cubic_timeouts_and_idle(void **state)
{
	double before;

	start(&congestion_cubic);
	go_rounds(&calm, 6);
	before = window();
	test.ops->on_timeout(test.state, 1, test.now);
	assert_true(window() == before);
	test.ops->on_timeout(test.state, 2, test.now);
	assert_true(window() == 2);
	/* Slow start up to 0.7 of what it was. */
	go_rounds(&calm, 7);
	assert_true(window() > 200 && window() <= 0.75 * before);
	before = window();
	test.ops->on_idle(test.state, 3 * SECOND);
	assert_true(window() >= 10 && window() < before / 4);
	before = window();
	go_rounds(&(struct trip){.rtt = MS, .least = MS, .limited = true}, 100);
	assert_true(window() == before);
}

static void test_cubic_marks(void **state)
{
	struct trip marked = calm;
	double before;

	marked.marks = 0.1;
	start(&congestion_cubic);
	go_rounds(&calm, 6);
	before = window();
	go_round(&marked);
	assert_true(window() < 0.75 * before);
}

/* ---- Fixed ------------------------------------------------------------- */

static void test_unused_windows_stay(void **state)
{
	const struct trip unused = {.rtt = 100 * US, .least = 100 * US, .unused = true};
	double before;

	for (unsigned i = 0; congestion_all[i]; i++) {
		start(congestion_all[i]);
		before = window();
		go_rounds(&unused, 50);
		assert_true(window() <= before);
	}
	settle_swift();
	before = window();
	go_rounds(&unused, 50);
	assert_true(window() <= before);
}

static void test_fixed(void **state)
{
	struct congestion_config config = {.packet = PACKET, .most = MOST, .link_rate = 125000000};

	start(&congestion_fixed);
	/* Nothing is known: as much as allowed, without a pace. */
	assert_int_equal(test.ops->rate(test.state, MS), 0);
	assert_int_equal(test.ops->window(test.state), MOST);
	test.ops->start(test.state, &config, test.now);
	assert_int_equal(test.ops->rate(test.state, MS), 125000000);
	assert_true(test.ops->window(test.state) >= 125000000 / 100);
	config.rate = 1000000;
	test.ops->start(test.state, &config, test.now);
	assert_int_equal(test.ops->rate(test.state, 50 * MS), 1000000);
	assert_int_equal(test.ops->window(test.state), 64 * PACKET);
	/* Two round trips, whatever is lost. */
	config.rate = 125000000;
	test.ops->start(test.state, &config, test.now);
	go_round(&(struct trip){.rtt = 100 * MS, .least = 100 * MS, .loss = 0.5, .marks = 1});
	test.ops->on_timeout(test.state, 9, test.now);
	test.ops->on_idle(test.state, SECOND);
	assert_in_range(test.ops->window(test.state), 125000000 / 5, 125000000 / 4);
	assert_int_equal(test.ops->rate(test.state, MS), 125000000);
}

/* ---- All --------------------------------------------------------------- */

static void test_list(void **state)
{
	assert_ptr_equal(congestion_all[0], &congestion_swift);
	assert_ptr_equal(congestion_all[1], &congestion_cubic);
	assert_ptr_equal(congestion_all[2], &congestion_fixed);
	assert_null(congestion_all[3]);
	for (unsigned i = 0; congestion_all[i]; i++) {
		assert_true(strlen(congestion_all[i]->name) > 0);
		assert_true(strlen(congestion_all[i]->summary) > 10);
		for (unsigned other = 0; other < i; other++)
			assert_string_not_equal(congestion_all[i]->name,
						congestion_all[other]->name);
	}
}

static struct congestion_sample some_sample(uint64_t *seed)
{
	uint64_t least = 1 + unit_random(seed) % (100 * MS);
	uint64_t rtt = unit_random(seed) % 4 ? least + unit_random(seed) % (10 * MS) : 0;
	uint64_t die = unit_random(seed);

	test.now += die % 7 ? die % (3 * MS) : die % (20 * SECOND);
	return (struct congestion_sample){
		.now = test.now,
		.rtt = die % 50 ? rtt : 1,
		.rtt_least = least,
		.rtt_smooth = rtt,
		.acked = die & 0x100 ? unit_random(seed) % (1 << 20) : 0,
		.lost = die & 0x200 ? unit_random(seed) % (1 << 20) : 0,
		.late = die & 0x400 ? unit_random(seed) % (1 << 10) : 0,
		.in_flight = unit_random(seed) % MOST,
		.marks = die & 0x800 ? 0 : (uint32_t)(unit_random(seed) % 100),
		.round = die & 0x1000,
		.limited = (die & 0x6000) == 0,
	};
}

/* Whatever is told: a window of a packet at least and the most at most, and no byte beyond the
 * state is touched. */
static void test_anything(void **state)
{
	uint64_t seed = 0x9e3779b97f4a7c15;

	for (unsigned i = 0; congestion_all[i]; i++) {
		start(congestion_all[i]);
		for (unsigned step = 0; step < 300000; step++) {
			struct congestion_sample sample = some_sample(&seed);

			test.ops->on_ack(test.state, &sample);
			if (step % 1000 == 999)
				test.ops->on_timeout(test.state, seed % 12, test.now);
			if (step % 777 == 776)
				test.ops->on_idle(test.state, seed % (100 * SECOND));
			assert_in_range(test.ops->window(test.state), PACKET, MOST);
			test.ops->rate(test.state, sample.rtt_smooth);
		}
		for (size_t at = 0; at < sizeof(test.behind); at++)
			assert_int_equal(test.behind[at], 0xa5);
	}
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_swift_starts),
		cmocka_unit_test(test_swift_leaves_slow_start),
		cmocka_unit_test(test_swift_follows_delay),
		cmocka_unit_test(test_swift_bears_loss),
		cmocka_unit_test(test_swift_heavy_loss),
		cmocka_unit_test(test_swift_excess_loss),
		cmocka_unit_test(test_swift_gives_in_to_loss),
		cmocka_unit_test(test_swift_marks),
		cmocka_unit_test(test_swift_timeouts),
		cmocka_unit_test(test_swift_idle),
		cmocka_unit_test(test_swift_drains),
		cmocka_unit_test(test_swift_in_a_crowd),
		cmocka_unit_test(test_cubic_slow_start),
		cmocka_unit_test(test_cubic_reduces_once),
		cmocka_unit_test(test_cubic_curve),
		cmocka_unit_test(test_cubic_fast_convergence),
		cmocka_unit_test(test_cubic_is_no_slower_than_reno),
		cmocka_unit_test(test_cubic_timeouts_and_idle),
		cmocka_unit_test(test_cubic_marks),
		cmocka_unit_test(test_fixed),
		cmocka_unit_test(test_unused_windows_stay),
		cmocka_unit_test(test_list),
		cmocka_unit_test(test_anything),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
