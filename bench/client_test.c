/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A test is a number of rounds; with --ceiling each round of the transport is followed by one of
 * plain TCP, so that both see the same host at nearly the same time.
 */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "client.h"

const char *const percentile_names[] = {"p50", "p90", "p99", "p99_9", "max"};
const double percentile_shares[] = {0.5, 0.9, 0.99, 0.999, 1};

/* How long the commands take to reach all processes, so that their windows are the same. */
#define LEAD_NS (20 * NS_PER_S / 1000)
#define CEILING_LEAD_NS (NS_PER_S / 1000)

struct bench {
	struct team *team;
	const struct client_options *options;
	struct report *report;
	struct result *results; /* one for each client */
	struct result *answer;  /* to ask_usage() */
};

static struct round unmeasured_round(void)
{
	struct round round;

	for (size_t i = 0; i < PERCENTILES; i++)
		round.latency_us[i] = NAN;
	round.goodput_gbps = round.sent_gbps = round.received_gbps = round.rate = NAN;
	round.client_user = round.client_system = NAN;
	round.server_user = round.server_system = NAN;
	round.streams = round.chunks_sent = round.chunks_again = NAN;
	round.verified = round.mismatches = NAN;
	round.client_gbps = NULL;
	return round;
}

/* ---- Commands ---- */

static bool ask_usage(struct bench *bench, struct bench_usage *usage)
{
	struct command command = {.kind = COMMAND_USAGE};

	if (!team_first(bench->team, &command, bench->answer, NULL))
		return false;
	*usage = bench->answer->usage;
	return true;
}

static void set_window(const struct client_options *options, uint64_t lead, struct command *command)
{
	double length = options->seconds * NS_PER_S;

	command->begin = bench_now() + lead + (uint64_t)(options->warmup * NS_PER_S);
	/* Without an end by time: as far away as the clock can tell. */
	command->end = isinf(length) ? UINT64_MAX : command->begin + (uint64_t)length;
}

/* ---- What the results of all clients say together ---- */

static double goodput(const struct moved *moved)
{
	return moved->seconds > 0 ? bench_gbps(moved->bytes, moved->seconds) : NAN;
}

/* NAN is nothing only when both are. */
static double plus(double left, double right)
{
	if (isnan(left))
		return right;
	return isnan(right) ? left : left + right;
}

static void describe_percentiles(struct round *round, const struct histogram *times)
{
	for (size_t i = 0; times->count && i < PERCENTILES; i++)
		round->latency_us[i] = (double)histogram_at(times, percentile_shares[i]) * 1e-3;
}

static double rate_of(const struct result *result)
{
	double sent = result->sent.seconds > 0 ? result->sent.tensors / result->sent.seconds : NAN;
	double received = result->received.seconds > 0
				  ? result->received.tensors / result->received.seconds
				  : NAN;

	return plus(sent, received);
}

static void describe_clients(struct bench *bench, struct round *round)
{
	unsigned clients = team_size(bench->team);

	if (clients > 1)
		round->client_gbps = calloc(clients, sizeof(*round->client_gbps));
	for (unsigned i = 0; i < clients; i++) {
		const struct result *result = &bench->results[i];
		double sent = goodput(&result->sent), received = goodput(&result->received);

		round->sent_gbps = plus(round->sent_gbps, sent);
		round->received_gbps = plus(round->received_gbps, received);
		round->goodput_gbps = plus(round->goodput_gbps, plus(sent, received));
		round->rate = plus(round->rate, rate_of(result));
		if (round->client_gbps)
			round->client_gbps[i] = plus(sent, received);
	}
}

static void describe_counts(struct bench *bench, struct round *round)
{
	bool statistics = true;
	double sent = 0, again = 0, streams = 0, verified = 0, mismatches = 0;

	for (unsigned i = 0; i < team_size(bench->team); i++) {
		const struct result *result = &bench->results[i];

		statistics = statistics && result->statistics;
		sent += (double)result->chunks_sent;
		again += (double)result->chunks_again;
		streams = fmax(streams, (double)result->streams);
		verified += (double)result->verified;
		mismatches += (double)result->mismatches;
	}
	if (statistics) {
		round->chunks_sent = plus(round->chunks_sent, sent);
		round->chunks_again = plus(round->chunks_again, again);
		if (streams > 0)
			round->streams = streams;
	}
	if (bench->options->verify) {
		round->verified = plus(round->verified, verified);
		round->mismatches = plus(round->mismatches, mismatches);
	}
}

/* Warm-up and end are in both the time and the bytes. */
static void describe_cpu(const struct result *results, unsigned clients,
			 const struct bench_usage *before, const struct bench_usage *after,
			 struct round *round)
{
	double gigabytes = 0, user = 0, system = 0;

	for (unsigned i = 0; i < clients; i++) {
		gigabytes += (results[i].sent.all_bytes + results[i].received.all_bytes) * 1e-9;
		user += results[i].usage.user_s;
		system += results[i].usage.system_s;
	}
	if (gigabytes <= 0)
		return;
	round->client_user = user / gigabytes;
	round->client_system = system / gigabytes;
	round->server_user = (after->user_s - before->user_s) / gigabytes;
	round->server_system = (after->system_s - before->system_s) / gigabytes;
}

/* ---- One round ---- */

static bool measure(struct bench *bench, struct command *command, struct test_result *test,
		    struct round *round)
{
	const char *label = bench->options->live ? test_names[command->test] : NULL;
	unsigned clients = team_size(bench->team);
	struct bench_usage before, after;

	if (!ask_usage(bench, &before))
		return false;
	command->kind = COMMAND_RUN;
	set_window(bench->options, clients > 1 ? LEAD_NS : 0, command);
	if (!team_all(bench->team, command, bench->results, label) || !ask_usage(bench, &after))
		return false;
	describe_clients(bench, round);
	describe_counts(bench, round);
	if (command->test != TEST_LATENCY)
		describe_cpu(bench->results, clients, &before, &after, round);
	for (unsigned i = 1; i < clients; i++)
		histogram_merge(&bench->results[0].times, &bench->results[i].times);
	describe_percentiles(round, &bench->results[0].times);
	histogram_merge(&test->times, &bench->results[0].times);
	return true;
}

static bool transport_round(struct bench *bench, struct test_result *test, struct round *round)
{
	struct command command = {.kind = COMMAND_PREPARE,
				  .test = test->test,
				  .size = test->size,
				  .concurrency = test->concurrency};

	if (!team_all(bench->team, &command, bench->results, NULL) ||
	    !measure(bench, &command, test, round))
		return false;
	command.kind = COMMAND_FINISH;
	if (!team_all(bench->team, &command, bench->results, NULL))
		return false;
	/* What the server has found is added to what the clients have. */
	describe_counts(bench, round);
	return true;
}

static bool ceiling_round(struct bench *bench, const struct test_result *test, struct round *round)
{
	struct command command = {.kind = COMMAND_CEILING, .test = test->test, .size = test->size};
	struct result *result = &bench->results[0];
	struct bench_usage before, after;

	if (!ask_usage(bench, &before))
		return false;
	set_window(bench->options, CEILING_LEAD_NS, &command);
	if (!team_first(bench->team, &command, result, bench->options->live ? "plain TCP" : NULL) ||
	    !ask_usage(bench, &after))
		return false;
	if (test->test == TEST_LATENCY) {
		describe_percentiles(round, &result->times);
		return true;
	}
	round->sent_gbps = goodput(&result->sent);
	round->received_gbps = goodput(&result->received);
	round->goodput_gbps = plus(round->sent_gbps, round->received_gbps);
	describe_cpu(result, 1, &before, &after, round);
	return true;
}

/* ---- Tests ---- */

/* Many small tensors are not what one plain socket is good or bad at: there is no pair for them. */
static bool has_ceiling(const struct client_options *options, enum test_kind kind)
{
	return options->ceiling && kind != TEST_RATE;
}

static bool run_rounds(struct bench *bench, struct test_result *test)
{
	const struct client_options *options = bench->options;

	for (size_t i = 0; i < options->rounds; i++) {
		test->round[i] = unmeasured_round();
		test->ceiling[i] = unmeasured_round();
		test->rounds = i + 1;
		if (!transport_round(bench, test, &test->round[i]) ||
		    (has_ceiling(options, test->test) &&
		     !ceiling_round(bench, test, &test->ceiling[i])))
			return false;
		if (options->verify && test->round[i].mismatches > 0)
			bench->report->mismatches += (uint64_t)test->round[i].mismatches;
	}
	return true;
}

static bool run_test(struct bench *bench, enum test_kind kind, uint64_t size, uint32_t concurrency)
{
	struct report *report = bench->report;
	struct test_result *results =
		realloc(report->results, (report->count + 1) * sizeof(*results));
	struct test_result *test;

	if (!results)
		return false;
	report->results = results;
	test = &results[report->count++];
	*test = (struct test_result){
		.test = kind,
		.size = size,
		.concurrency = concurrency,
		.round = calloc(bench->options->rounds, sizeof(*test->round)),
		.ceiling = calloc(bench->options->rounds, sizeof(*test->ceiling)),
	};
	histogram_reset(&test->times);
	return test->round && test->ceiling && run_rounds(bench, test);
}

static bool run_rates(struct bench *bench)
{
	const struct client_options *options = bench->options;

	for (size_t i = 0; i < options->rate_size_count; i++)
		for (size_t j = 0; j < options->rate_concurrency_count; j++)
			if (!run_test(bench, TEST_RATE, options->rate_sizes[i],
				      (uint32_t)options->rate_concurrencies[j]))
				return false;
	return true;
}

static bool run_kind(struct bench *bench, enum test_kind kind)
{
	const struct client_options *options = bench->options;

	if (kind == TEST_LATENCY)
		return run_test(bench, kind, options->latency_size,
				(uint32_t)options->latency_concurrency);
	if (kind == TEST_RATE)
		return run_rates(bench);
	for (size_t i = 0; i < options->size_count; i++)
		if (!run_test(bench, kind, options->sizes[i],
			      client_concurrency(options, kind, options->sizes[i])))
			return false;
	return true;
}

static bool open_clients(struct bench *bench)
{
	struct command command = {.kind = COMMAND_OPEN};

	if (!team_all(bench->team, &command, bench->results, NULL))
		return false;
	snprintf(bench->report->spec, sizeof(bench->report->spec), "%s", bench->results[0].spec);
	if (bench->options->ceiling && !bench->options->ceiling_port &&
	    !bench->results[0].ceiling_port) {
		bench_complain("--ceiling: the server has no plain TCP side (--no-ceiling, or "
			       "--listen is not an address of its kernel's)");
		return false;
	}
	return true;
}

bool run_tests(struct team *team, const struct client_options *options, struct report *report)
{
	struct command command = {.kind = COMMAND_CLOSE};
	struct bench bench = {.team = team, .options = options, .report = report};
	bool well;

	bench.results = calloc(team_size(team), sizeof(*bench.results));
	bench.answer = calloc(1, sizeof(*bench.answer));
	well = bench.results && bench.answer && open_clients(&bench);
	for (int kind = 0; well && kind < TEST_KINDS; kind++)
		if (options->tests[kind])
			well = run_kind(&bench, (enum test_kind)kind);
	if (well)
		team_all(team, &command, bench.results, NULL);
	report->failed = !well;
	free(bench.results);
	free(bench.answer);
	return well;
}

void report_free(struct report *report)
{
	for (size_t i = 0; i < report->count; i++) {
		struct test_result *test = &report->results[i];

		for (size_t round = 0; test->round && round < test->rounds; round++)
			free(test->round[round].client_gbps);
		free(test->round);
		free(test->ceiling);
	}
	free(report->results);
}
