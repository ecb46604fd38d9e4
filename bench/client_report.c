/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The JSON that --json writes: one object,
 *
 *   {"tool": "haul-bench-client", "transport": SPEC as it was asked for, or the name of what was
 * chosen, "transport_options": SPEC with every option, "rounds": N, "options": {...}, "failed":
 * bool, "results": [RESULT...], "clients": [CLIENT...]|null, "jain_index": NUMBER|null}
 *
 * RESULT of the tests throughput, bidirectional and rate:
 *   "test", "size_bytes", "concurrency", "endpoints", "direction", "waiting",
 *   "goodput_gbps": median, "goodput_gbps_rounds": [each], "goodput_gbps_min", "goodput_gbps_max",
 *   "sent_gbps", "received_gbps": medians of the directions,
 *   "rate_per_s", "rate_per_s_rounds": tensors per second, "offered_per_s": --rate|null,
 *   "ceiling_gbps", "ceiling_gbps_rounds", "ratio_to_ceiling",
 *   "cpu_s_per_gb": both sides, "cpu_client_s_per_gb", "cpu_server_s_per_gb", and of these
 *   "cpu_client_user_s_per_gb", "cpu_client_system_s_per_gb", "cpu_server_user_s_per_gb",
 *   "cpu_server_system_s_per_gb"; "ceiling_cpu_s_per_gb" and the same six with "ceiling_" before;
 *   "tensor_us": {"p50", "p90", "p99", "p99_9", "max"} from a tensor's send to its arrival (or
 *   from the receive, when it receives; with --rate from when it was due), "tensor_us_rounds":
 *   [each], "verified", "mismatches", "streams" (of the endpoint that
 *   has most), "chunks_sent", "chunks_again", "clients_gbps": [each client]|null, "jain_index"
 *
 * RESULT of the test latency:
 *   "test", "size_bytes", "concurrency", "endpoints", "waiting", "pings": number,
 *   "latency_us": round trips, medians of the rounds but for "max", which is that of all,
 *   "latency_us_rounds": [each], "latency_us_all": of all rounds' pings together,
 *   "ceiling_latency_us": the same of a bare TCP socket|null, "ceiling_latency_us_rounds",
 *   "ratio_to_ceiling": {"p50", "p99"}, "rate_per_s", "offered_per_s", "verified", "mismatches",
 * "streams"
 *
 * CLIENT, with --clients of 2 and more, for the first result that has a goodput:
 *   "client", "goodput_gbps": median
 *
 * What was not measured is null. CPU seconds are those of whole processes, from the round's
 * start to its end, for each GB (1e9 bytes) that went through in that time.
 */
#include <math.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>

#include "client.h"

#define MEMBER(name) offsetof(struct round, name)

static void add_rounds(cJSON *object, const char *name, const struct round *rounds, size_t count,
		       size_t offset)
{
	double *values = round_values(rounds, count, offset);

	if (values)
		bench_json_numbers(object, name, values, count);
	free(values);
}

static void add_cpu(cJSON *object, const char *prefix, const struct round *rounds, size_t count)
{
	static const struct {
		const char *name;
		size_t offset;
	} parts[] = {
		{"client_user", MEMBER(client_user)},
		{"client_system", MEMBER(client_system)},
		{"server_user", MEMBER(server_user)},
		{"server_system", MEMBER(server_system)},
	};
	char name[64];

	snprintf(name, sizeof(name), "%scpu_s_per_gb", prefix);
	bench_json_number(object, name, round_cpu(rounds, count, true, true));
	snprintf(name, sizeof(name), "%scpu_client_s_per_gb", prefix);
	bench_json_number(object, name, round_cpu(rounds, count, true, false));
	snprintf(name, sizeof(name), "%scpu_server_s_per_gb", prefix);
	bench_json_number(object, name, round_cpu(rounds, count, false, true));
	for (size_t i = 0; i < ARRAY_LENGTH(parts); i++) {
		snprintf(name, sizeof(name), "%scpu_%s_s_per_gb", prefix, parts[i].name);
		bench_json_number(object, name, round_median(rounds, count, parts[i].offset));
	}
}

static cJSON *percentiles(const double values[PERCENTILES])
{
	cJSON *object;

	if (isnan(values[P50]))
		return cJSON_CreateNull();
	object = cJSON_CreateObject();
	for (size_t i = 0; i < PERCENTILES; i++)
		bench_json_number(object, percentile_names[i], values[i]);
	return object;
}

static void add_percentiles(cJSON *object, const char *name, const struct round *rounds,
			    size_t count)
{
	double values[PERCENTILES];
	char rounds_name[64];
	cJSON *array;

	round_percentiles(rounds, count, values);
	cJSON_AddItemToObject(object, name, percentiles(values));
	snprintf(rounds_name, sizeof(rounds_name), "%s_rounds", name);
	array = cJSON_AddArrayToObject(object, rounds_name);
	for (size_t i = 0; i < count; i++)
		cJSON_AddItemToArray(array, percentiles(rounds[i].latency_us));
}

static void add_counts(cJSON *object, const struct test_result *result)
{
	const struct round *rounds = result->round;
	size_t count = result->rounds;
	double low, high;

	round_range(rounds, count, MEMBER(streams), &low, &high);
	bench_json_number(object, "verified", round_sum(rounds, count, MEMBER(verified)));
	bench_json_number(object, "mismatches", round_sum(rounds, count, MEMBER(mismatches)));
	bench_json_number(object, "streams", high);
	bench_json_number(object, "chunks_sent", round_sum(rounds, count, MEMBER(chunks_sent)));
	bench_json_number(object, "chunks_again", round_sum(rounds, count, MEMBER(chunks_again)));
}

static void add_clients(cJSON *object, const struct report *report,
			const struct test_result *result)
{
	cJSON *array;

	if (report->options->clients == 1) {
		cJSON_AddNullToObject(object, "clients_gbps");
	} else {
		array = cJSON_AddArrayToObject(object, "clients_gbps");
		for (unsigned i = 0; i < report->options->clients; i++) {
			double value = client_median(report, result, i);

			cJSON_AddItemToArray(array, isnan(value) ? cJSON_CreateNull()
								 : cJSON_CreateNumber(value));
		}
	}
	bench_json_number(object, "jain_index", clients_jain(report, result));
}

static void add_goodput(cJSON *object, const struct report *report,
			const struct test_result *result)
{
	const struct round *rounds = result->round, *ceiling = result->ceiling;
	size_t count = result->rounds;
	double median = round_median(rounds, count, MEMBER(goodput_gbps));
	double ceiling_median = round_median(ceiling, count, MEMBER(goodput_gbps));
	double low, high;

	cJSON_AddStringToObject(
		object, "direction",
		direction_names[result->test == TEST_BIDIRECTIONAL ? DIRECTION_BOTH
								   : report->options->direction]);
	bench_json_number(object, "goodput_gbps", median);
	add_rounds(object, "goodput_gbps_rounds", rounds, count, MEMBER(goodput_gbps));
	round_range(rounds, count, MEMBER(goodput_gbps), &low, &high);
	bench_json_number(object, "goodput_gbps_min", low);
	bench_json_number(object, "goodput_gbps_max", high);
	bench_json_number(object, "sent_gbps", round_median(rounds, count, MEMBER(sent_gbps)));
	bench_json_number(object, "received_gbps",
			  round_median(rounds, count, MEMBER(received_gbps)));
	bench_json_number(object, "rate_per_s", round_median(rounds, count, MEMBER(rate)));
	add_rounds(object, "rate_per_s_rounds", rounds, count, MEMBER(rate));
	bench_json_number(object, "ceiling_gbps", ceiling_median);
	add_rounds(object, "ceiling_gbps_rounds", ceiling, count, MEMBER(goodput_gbps));
	bench_json_number(object, "ratio_to_ceiling", median / ceiling_median);
	add_cpu(object, "", rounds, count);
	add_cpu(object, "ceiling_", ceiling, count);
	add_percentiles(object, "tensor_us", rounds, count);
	add_clients(object, report, result);
}

static void add_latency(cJSON *object, const struct test_result *result)
{
	const struct round *rounds = result->round, *ceiling = result->ceiling;
	double ours[PERCENTILES], theirs[PERCENTILES], all[PERCENTILES];
	const struct histogram *times = &result->times;
	size_t count = result->rounds;
	cJSON *ratio;

	bench_json_number(object, "pings", (double)times->count);
	add_percentiles(object, "latency_us", rounds, count);
	for (size_t i = 0; i < PERCENTILES; i++)
		all[i] = times->count ? (double)histogram_at(times, percentile_shares[i]) * 1e-3
				      : NAN;
	cJSON_AddItemToObject(object, "latency_us_all", percentiles(all));
	add_percentiles(object, "ceiling_latency_us", ceiling, count);
	round_percentiles(rounds, count, ours);
	round_percentiles(ceiling, count, theirs);
	if (isnan(ours[P50]) || isnan(theirs[P50])) {
		cJSON_AddNullToObject(object, "ratio_to_ceiling");
	} else {
		ratio = cJSON_AddObjectToObject(object, "ratio_to_ceiling");
		bench_json_number(ratio, "p50", ours[P50] / theirs[P50]);
		bench_json_number(ratio, "p99", ours[P99] / theirs[P99]);
	}
	bench_json_number(object, "rate_per_s", round_median(rounds, count, MEMBER(rate)));
}

static cJSON *describe_result(const struct report *report, const struct test_result *result)
{
	cJSON *object = cJSON_CreateObject();

	cJSON_AddStringToObject(object, "test", test_names[result->test]);
	bench_json_number(object, "size_bytes", (double)result->size);
	bench_json_number(object, "concurrency", result->concurrency);
	bench_json_number(object, "endpoints", (double)report->options->endpoints);
	cJSON_AddStringToObject(object, "waiting", report->options->poll ? "poll" : "block");
	bench_json_number(object, "offered_per_s",
			  client_is_paced(report->options, result->test) ? report->options->rate
									 : NAN);
	if (result->test == TEST_LATENCY)
		add_latency(object, result);
	else
		add_goodput(object, report, result);
	add_counts(object, result);
	return object;
}

static void describe_options(cJSON *json, const struct client_options *options)
{
	cJSON *object = cJSON_AddObjectToObject(json, "options");

	cJSON_AddStringToObject(object, "connect", options->connect);
	bench_json_number(object, "seconds", options->seconds);
	bench_json_number(object, "warmup", options->warmup);
	bench_json_number(object, "count", options->count ? (double)options->count : NAN);
	bench_json_number(object, "clients", (double)options->clients);
	bench_json_number(object, "endpoints", (double)options->endpoints);
	cJSON_AddStringToObject(object, "direction", direction_names[options->direction]);
	cJSON_AddStringToObject(object, "waiting", options->poll ? "poll" : "block");
	cJSON_AddBoolToObject(object, "verify", options->verify);
	cJSON_AddBoolToObject(object, "ceiling", options->ceiling);
	cJSON_AddStringToObject(object, "ceiling_congestion", options->congestion);
	bench_json_number(object, "seed", (double)options->seed);
}

/* The first result with a goodput stands for the run. */
static void describe_clients(cJSON *json, const struct report *report)
{
	const struct test_result *result = NULL;
	cJSON *array;

	for (size_t i = 0; !result && i < report->count; i++)
		if (report->results[i].test != TEST_LATENCY)
			result = &report->results[i];
	if (report->options->clients == 1 || !result) {
		cJSON_AddNullToObject(json, "clients");
		cJSON_AddNullToObject(json, "jain_index");
		return;
	}
	array = cJSON_AddArrayToObject(json, "clients");
	for (unsigned i = 0; i < report->options->clients; i++) {
		cJSON *client = cJSON_CreateObject();

		cJSON_AddNumberToObject(client, "client", i);
		bench_json_number(client, "goodput_gbps", client_median(report, result, i));
		cJSON_AddItemToArray(array, client);
	}
	bench_json_number(json, "jain_index", clients_jain(report, result));
}

bool report_write_json(const struct report *report)
{
	const struct client_options *options = report->options;
	cJSON *json = cJSON_CreateObject(), *results;
	char name[BENCH_NAME_TEXT];
	int result;

	cJSON_AddStringToObject(json, "tool", "haul-bench-client");
	cJSON_AddStringToObject(json, "transport",
				options->transport ? options->transport
						   : bench_spec_name(name, report->spec));
	cJSON_AddStringToObject(json, "transport_options", report->spec);
	bench_json_number(json, "rounds", (double)options->rounds);
	cJSON_AddBoolToObject(json, "failed", report->failed);
	describe_options(json, options);
	results = cJSON_AddArrayToObject(json, "results");
	for (size_t i = 0; i < report->count; i++)
		cJSON_AddItemToArray(results, describe_result(report, &report->results[i]));
	describe_clients(json, report);
	result = bench_json_write(options->json, json);
	cJSON_Delete(json);
	if (result)
		bench_complain("--json=%s: %s", options->json, strerror(-result));
	return result == 0;
}
