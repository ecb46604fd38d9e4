/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What the controllers reach on simulated links: the promises of docs/dpdk.md about loss, fairness,
 * neighbours and breaks, each in far less time than it takes.
 */
#include "simulator.h"

#include "unit.h"

#define US SIMULATED_US
#define MS SIMULATED_MS
#define SECOND SIMULATED_SECOND
#define HOUR (3600 * SECOND)

/* A buffer in time. */
static uint64_t bytes(double gigabits, uint64_t time)
{
	return (uint64_t)(gigabits / 8 * (double)time);
}

static struct simulated_link make_link(double gigabits, uint64_t rtt, uint64_t buffer, double loss)
{
	return (struct simulated_link){
		.gigabits = gigabits,
		.rtt = rtt,
		.buffer = bytes(gigabits, buffer),
		.loss = loss,
	};
}

/* The part of the link that one flow fills between two times. */
static double fill_one(const struct simulated_link *link, const struct congestion_ops *ops,
		       uint64_t from, uint64_t until)
{
	struct simulated_flow flow = {.ops = ops};
	struct simulator *simulator = simulator_new(link, 1, &flow);
	double fill = simulator_fill(simulator, from, until, NULL);

	simulator_free(simulator);
	return fill;
}

/* ---- Loss -------------------------------------------------------------- */

static void test_loss_keeps_the_link_full(void **state)
{
	const struct {
		double gigabits;
		uint64_t rtt, buffer, from, until;
	} paths[] = {
		{10, 100 * US, 1 * MS, 20 * MS, 300 * MS},
		{10, 10 * MS, 10 * MS, 1 * SECOND, 3 * SECOND},
		{1, 1 * MS, 5 * MS, 100 * MS, 2 * SECOND},
		{100, 100 * US, 1 * MS, 20 * MS, 100 * MS},
		{1, 10 * US, 5 * MS, 20 * MS, 1 * SECOND},
	};

	for (size_t i = 0; i < COUNT(paths); i++) {
		struct simulated_link link =
			make_link(paths[i].gigabits, paths[i].rtt, paths[i].buffer, 0);

		assert_true(fill_one(&link, &congestion_swift, paths[i].from, paths[i].until) >
			    0.965);
		link.loss = 0.01;
		assert_true(fill_one(&link, &congestion_swift, paths[i].from, paths[i].until) >
			    0.955);
		link.loss = 0.05;
		assert_true(fill_one(&link, &congestion_swift, paths[i].from, paths[i].until) >
			    0.91);
	}
}

/* The same as TCP does it, to show what the difference is. */
static void test_loss_stops_cubic(void **state)
{
	struct simulated_link link = make_link(10, 10 * MS, 10 * MS, 0.01);

	assert_true(fill_one(&link, &congestion_cubic, 1 * SECOND, 5 * SECOND) < 0.05);
	link.loss = 0;
	assert_true(fill_one(&link, &congestion_cubic, 1 * SECOND, 5 * SECOND) > 0.8);
}

static void test_fixed_rate(void **state)
{
	struct simulated_link link = make_link(10, 1 * MS, 1 * MS, 0.01);
	struct simulated_flow flow = {.ops = &congestion_fixed, .rate = 625000000};
	struct simulator *simulator = simulator_new(&link, 1, &flow);
	double fill = simulator_fill(simulator, 10 * MS, 500 * MS, NULL);

	assert_true(fill > 0.485 && fill < 0.505);
	simulator_free(simulator);
}

/* ---- Queues ------------------------------------------------------------ */

static void test_queue_stays_short(void **state)
{
	struct simulated_link link = make_link(10, 100 * US, 20 * MS, 0);
	struct simulated_flow flow = {.ops = &congestion_swift};
	struct simulator *simulator = simulator_new(&link, 1, &flow);

	simulator_fill(simulator, 0, 50 * MS, NULL);
	simulator_queue(simulator);
	assert_true(simulator_fill(simulator, 50 * MS, 500 * MS, NULL) > 0.98);
	assert_true(simulator_queue(simulator) < (double)bytes(10, 600 * US));
	assert_int_equal(simulator_counts(simulator, 0).lost, 0);
	simulator_free(simulator);
}

static void test_asked_for_a_target(void **state)
{
	struct simulated_link link = make_link(10, 100 * US, 20 * MS, 0);
	struct simulated_flow flow = {.ops = &congestion_swift, .packet = 1500, .target = 30 * US};
	struct simulator *simulator = simulator_new(&link, 1, &flow);

	simulator_fill(simulator, 0, 50 * MS, NULL);
	simulator_queue(simulator);
	assert_true(simulator_fill(simulator, 50 * MS, 300 * MS, NULL) > 0.9);
	assert_true(simulator_queue(simulator) < (double)bytes(10, 80 * US));
	simulator_free(simulator);
}

/* A buffer that is much shorter than the target, where the delay can't warn. */
static void test_short_buffer(void **state)
{
	struct simulated_link link = make_link(10, 500 * US, 100 * US, 0);
	struct simulated_flow flow = {.ops = &congestion_swift, .packet = 1500};
	struct simulator *simulator = simulator_new(&link, 1, &flow);
	struct simulated_counts before, after;

	simulator_run(simulator, 200 * MS);
	before = simulator_counts(simulator, 0);
	assert_true(simulator_fill(simulator, 200 * MS, SECOND, NULL) > 0.9);
	after = simulator_counts(simulator, 0);
	assert_true(after.lost - before.lost < (after.sent - before.sent) / 20);
	simulator_free(simulator);
}

static void test_marks_keep_the_queue_shorter(void **state)
{
	struct simulated_link link = make_link(10, 100 * US, 5 * MS, 0);
	struct simulated_flow flow = {.ops = &congestion_swift, .packet = 1500};
	struct simulator *simulator;

	link.mark_above = bytes(10, 50 * US);
	simulator = simulator_new(&link, 1, &flow);
	simulator_run(simulator, 50 * MS);
	simulator_queue(simulator);
	assert_true(simulator_fill(simulator, 50 * MS, 400 * MS, NULL) > 0.9);
	assert_true(simulator_queue(simulator) < (double)bytes(10, 80 * US));
	simulator_free(simulator);
}

/* ---- Several flows ----------------------------------------------------- */

/* Flows that start one after the other, and their fairness in the end. */
static double fairness(const struct simulated_link *link, unsigned count, uint64_t apart,
		       struct simulated_flow flow, uint64_t from, uint64_t until)
{
	struct simulated_flow flows[64];
	struct simulator *simulator;
	double shares[64], fair;

	for (unsigned i = 0; i < count; i++) {
		flows[i] = flow;
		flows[i].start = i * apart;
		flows[i].clock = i * flow.clock;
		flows[i].far_clock = i * flow.far_clock;
	}
	simulator = simulator_new(link, count, flows);
	assert_true(simulator_fill(simulator, from, until, shares) > 0.93);
	fair = simulator_fairness(shares, count);
	simulator_free(simulator);
	return fair;
}

static void test_flows_share(void **state)
{
	struct simulated_link link = make_link(10, 100 * US, 5 * MS, 0);
	struct simulated_flow flow = {.ops = &congestion_swift};

	assert_true(fairness(&link, 4, 50 * MS, flow, 500 * MS, SECOND) > 0.98);
	link.loss = 0.01;
	assert_true(fairness(&link, 4, 50 * MS, flow, 500 * MS, SECOND) > 0.98);
	link.loss = 0;
	/* The hosts' clocks have nothing to do with each other: the senders', then all. */
	flow.clock = 777777777;
	assert_true(fairness(&link, 4, 50 * MS, flow, 500 * MS, SECOND) > 0.98);
	flow.far_clock = 888888888;
	assert_true(fairness(&link, 4, 50 * MS, flow, 500 * MS, SECOND) > 0.9);
	flow.clock = flow.far_clock = 0;
	/* The hosts are often away. */
	flow.away_each = 1000 * US;
	flow.away_most = 500 * US;
	assert_true(fairness(&link, 4, 50 * MS, flow, 500 * MS, 2 * SECOND) > 0.95);
}

static void test_flows_share_a_slow_link(void **state)
{
	struct simulated_link link = make_link(1, 100 * US, 10 * MS, 0);
	struct simulated_flow flow = {.ops = &congestion_swift, .packet = 1500};

	assert_true(fairness(&link, 4, 300 * MS, flow, 2 * SECOND, 4 * SECOND) > 0.98);
}

static void test_many_flows_share(void **state)
{
	struct simulated_link link = make_link(10, 100 * US, 5 * MS, 0);
	struct simulated_flow flow = {.ops = &congestion_swift};

	assert_true(fairness(&link, 64, 370 * US, flow, 1500 * MS, 2 * SECOND) > 0.95);
}

static void test_flows_share_a_long_path(void **state)
{
	struct simulated_link link = make_link(10, 10 * MS, 20 * MS, 0);
	struct simulated_flow flow = {.ops = &congestion_swift};

	assert_true(fairness(&link, 4, 500 * MS, flow, 8 * SECOND, 10 * SECOND) > 0.95);
}

/* More flows than a link has packets for, whose hosts' clocks have nothing to do with each other.
 */
static void test_strangers_share(void **state)
{
	struct simulated_link link = make_link(1, 100 * US, 20 * MS, 0);
	struct simulated_flow flow = {.ops = &congestion_swift, .packet = 1500, .clock = 777777777};

	assert_true(fairness(&link, 30, 20 * MS, flow, 1800 * MS, 2500 * MS) > 0.95);
}

/* Swift and CUBIC on a link of a quarter of a gigabit. */
static struct simulator *make_crowd(uint64_t buffer, const struct simulated_flow *ours,
				    unsigned count, const struct simulated_flow *theirs,
				    unsigned cubics)
{
	struct simulated_link link = make_link(0.25, 100 * US, buffer, 0);
	struct simulated_flow flows[8];

	for (unsigned i = 0; i < count + cubics; i++) {
		flows[i] = i < count ? *ours : *theirs;
		flows[i].ops = i < count ? &congestion_swift : &congestion_cubic;
		flows[i].packet = 1500;
		flows[i].start += i * 100 * MS;
		flows[i].clock = i * 777777777;
	}
	return simulator_new(&link, count + cubics, flows);
}

/* Beside flows that fill the buffer until it overflows: some, but no more than they take. */
static void test_beside_cubic(void **state)
{
	const struct {
		unsigned ours;
		uint64_t buffer, start, cubics_start, away_each, away_most;
	} crowds[] = {
		{1, 10 * MS, 0, 0, 0, 0},
		{4, 10 * MS, 0, 0, 0, 0},
		{4, 20 * MS, 0, 3 * SECOND, 0, 0},
		{1, 20 * MS, 0, 0, 6 * MS, 4 * MS},
		{4, 20 * MS, 0, 0, 20 * MS, 10 * MS},
		/* What they keep passes for the path. */
		{1, 20 * MS, 3 * SECOND, 0, 0, 0},
		{4, 20 * MS, 3 * SECOND, 0, 0, 0},
	};

	for (size_t i = 0; i < COUNT(crowds); i++) {
		struct simulated_flow ours = {.start = crowds[i].start,
					      .away_each = crowds[i].away_each,
					      .away_most = crowds[i].away_most};
		struct simulated_flow theirs = {.start = crowds[i].cubics_start};
		unsigned count = crowds[i].ours;
		struct simulator *simulator =
			make_crowd(crowds[i].buffer, &ours, count, &theirs, 4);
		double shares[8], sum = 0;

		assert_true(simulator_fill(simulator, 6 * SECOND, 14 * SECOND, shares) > 0.98);
		for (unsigned j = 0; j < count; j++) {
			assert_true(shares[j] > 0.25 / (count + 4));
			sum += shares[j];
		}
		assert_true(sum < 1.1 * count / (count + 4));
		simulator_free(simulator);
	}
}

/*
 * The same behind a short queue, on hosts that are away for nearly as long as that lasts: what they
 * want in the queue does not fit, so that no delay is too long.
 */
static void test_beside_cubic_on_busy_hosts(void **state)
{
	const struct {
		uint64_t buffer, each, most;
	} hosts[] = {
		{2 * MS, 4 * MS, 2 * MS},
		{1 * MS, 4 * MS, 2 * MS},
	};

	for (size_t i = 0; i < COUNT(hosts); i++) {
		struct simulated_link link = make_link(10, 100 * US, hosts[i].buffer, 0);
		struct simulated_flow flows[8];
		struct simulator *simulator;
		double shares[8], sum;

		for (unsigned j = 0; j < 8; j++)
			flows[j] = (struct simulated_flow){
				.ops = j < 4 ? &congestion_swift : &congestion_cubic,
				.start = j * 100 * MS,
				.clock = j * 777777777,
				.away_each = hosts[i].each,
				.away_most = hosts[i].most,
			};
		simulator = simulator_new(&link, 8, flows);
		assert_true(simulator_fill(simulator, 2 * SECOND, 4 * SECOND, shares) > 0.98);
		sum = shares[0] + shares[1] + shares[2] + shares[3];
		assert_true(sum > 0.25 && sum < 0.55);
		assert_true(simulator_fairness(shares, 4) > 0.85);
		simulator_free(simulator);
	}
}

/* When they have gone the queue goes, too, and does not pass for one of others. */
static void test_cubic_leaves(void **state)
{
	const struct simulated_flow ours = {0}, theirs = {.stop = 6 * SECOND};
	struct simulator *simulator = make_crowd(20 * MS, &ours, 4, &theirs, 4);
	double shares[8];

	simulator_run(simulator, 8 * SECOND);
	simulator_queue(simulator);
	assert_true(simulator_fill(simulator, 8 * SECOND, 10 * SECOND, shares) > 0.98);
	assert_true(simulator_queue(simulator) < (double)bytes(0.25, 2 * MS));
	assert_true(simulator_fairness(shares, 4) > 0.95);
	simulator_free(simulator);
}

/* ---- Hosts that are away ----------------------------------------------- */

static void test_busy_hosts(void **state)
{
	const struct {
		uint64_t each, most;
		double fill;
	} hosts[] = {
		{1000 * US, 900 * US, 0.95},
		{2 * MS, 1800 * US, 0.95},
		{6 * MS, 4 * MS, 0.9},
	};
	struct simulated_link link = make_link(1, 100 * US, 10 * MS, 0);

	for (size_t i = 0; i < COUNT(hosts); i++) {
		struct simulated_flow flow = {
			.ops = &congestion_swift,
			.packet = 1500,
			.away_each = hosts[i].each,
			.away_most = hosts[i].most,
		};
		struct simulator *simulator = simulator_new(&link, 1, &flow);

		assert_true(simulator_fill(simulator, SECOND, 3 * SECOND, NULL) > hosts[i].fill);
		assert_int_equal(simulator_counts(simulator, 0).again, 0);
		simulator_free(simulator);
	}
}

/* Losses that have nothing to do with the queue leave it as long as such hosts need it. */
static void test_busy_hosts_on_a_lossy_path(void **state)
{
	const double losses[] = {0.001, 0.01};

	for (size_t i = 0; i < COUNT(losses); i++) {
		struct simulated_link link = make_link(10, 100 * US, 4 * MS, losses[i]);
		struct simulated_flow flow = {
			.ops = &congestion_swift, .away_each = 2 * MS, .away_most = 1 * MS};
		struct simulator *simulator = simulator_new(&link, 1, &flow);

		assert_true(simulator_fill(simulator, SECOND, 2 * SECOND, NULL) > 0.94);
		simulator_free(simulator);
	}
}

/* ---- Breaks and long times --------------------------------------------- */

static void test_link_cut(void **state)
{
	const uint64_t rtts[] = {100 * US, 10 * MS};

	for (size_t i = 0; i < COUNT(rtts); i++) {
		struct simulated_link link = make_link(10, rtts[i], 10 * MS, 0);
		struct simulated_flow flow = {.ops = &congestion_swift};
		struct simulator *simulator;
		struct simulated_counts counts;
		uint64_t mended = 6 * SECOND;

		link.cut_from = SECOND;
		link.cut_until = mended;
		simulator = simulator_new(&link, 1, &flow);
		assert_true(simulator_fill(simulator, SECOND + 20 * MS, mended, NULL) < 0.001);
		/* Probes were few: one each second in the end. */
		counts = simulator_counts(simulator, 0);
		simulator_run(simulator, mended - SECOND);
		/* A probe within a second, and then all the speed there is. */
		assert_true(simulator_fill(simulator, mended + 1500 * MS, mended + 3 * SECOND,
					   NULL) > 0.93);
		assert_true(simulator_counts(simulator, 0).lost < counts.sent / 2 + 10000);
		simulator_free(simulator);
	}
}

/* A day of bursts with pauses, on a lossy path: each is through soon, and nothing is kept. */
static void test_one_day(void **state)
{
	struct simulated_link link = make_link(10, 1 * MS, 2 * MS, 0.01);
	struct simulated_flow flow = {
		.ops = &congestion_swift,
		.burst = 4 << 20,
		.every = 30 * SECOND,
		.stop = 24 * HOUR - 15 * SECOND,
	};
	struct simulator *simulator = simulator_new(&link, 1, &flow);
	struct simulated_counts counts;

	simulator_run(simulator, 24 * HOUR);
	counts = simulator_counts(simulator, 0);
	assert_int_equal(counts.bursts, 24 * 60 * 2);
	assert_int_equal(counts.delivered, counts.bursts * flow.burst);
	assert_true(counts.burst_longest < 60 * MS);
	assert_int_equal(counts.in_flight, 0);
	assert_int_equal(counts.ring, 0);
	assert_true(counts.lost > 0);
	simulator_free(simulator);
}

/* The same again: what a run shows can be looked at. */
static void test_runs_repeat(void **state)
{
	struct simulated_link link = make_link(1, 1 * MS, 5 * MS, 0.03);
	struct simulated_flow flow = {
		.ops = &congestion_swift, .away_each = MS, .away_most = 500 * US};
	struct simulated_counts counts[3];

	for (unsigned i = 0; i < 3; i++) {
		struct simulator *simulator;

		link.seed = i == 2;
		simulator = simulator_new(&link, 1, &flow);
		simulator_run(simulator, SECOND);
		counts[i] = simulator_counts(simulator, 0);
		simulator_free(simulator);
	}
	assert_memory_equal(&counts[0], &counts[1], sizeof(counts[0]));
	assert_memory_not_equal(&counts[0], &counts[2], sizeof(counts[0]));
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_loss_keeps_the_link_full),
		cmocka_unit_test(test_loss_stops_cubic),
		cmocka_unit_test(test_fixed_rate),
		cmocka_unit_test(test_queue_stays_short),
		cmocka_unit_test(test_asked_for_a_target),
		cmocka_unit_test(test_short_buffer),
		cmocka_unit_test(test_marks_keep_the_queue_shorter),
		cmocka_unit_test(test_flows_share),
		cmocka_unit_test(test_flows_share_a_slow_link),
		cmocka_unit_test(test_many_flows_share),
		cmocka_unit_test(test_flows_share_a_long_path),
		cmocka_unit_test(test_strangers_share),
		cmocka_unit_test(test_beside_cubic),
		cmocka_unit_test(test_beside_cubic_on_busy_hosts),
		cmocka_unit_test(test_cubic_leaves),
		cmocka_unit_test(test_busy_hosts),
		cmocka_unit_test(test_busy_hosts_on_a_lossy_path),
		cmocka_unit_test(test_link_cut),
		cmocka_unit_test(test_one_day),
		cmocka_unit_test(test_runs_repeat),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
