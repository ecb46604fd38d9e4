/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The JSON that --json writes: one object,
 *
 *   {"tool": "grpc_raw", "target": "HOST:PORT", "grpc_version": of the C core, "allocator" (of this
 *   side) and "server_allocator": "keep" or "default", "channels", "sockets": to the server,
 *   "concurrency": calls in flight on each channel, "completion_queues": of the client,
 *   "server_completion_queues", "server_threads", "message_size_bytes", "response_size_bytes",
 *   "seconds": measured, "warmup_s", "messages": measured, "goodput_gbps": of messages,
 *   "response_gbps", "megabytes_per_s", "calls_per_s", "latency_us": {"p50", "p90", "p99",
 *   "p99_9", "max"} from a call's start to its end, "cpu_s_per_gb": both sides,
 *   "cpu_client_s_per_gb", "cpu_server_s_per_gb"}
 *
 * CPU seconds are those of whole processes, from the warm-up's start to the last call's end, for
 * each GB (1e9 bytes) that went through in that time. What was not measured is null.
 */
#include <errno.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "grpc_raw.h"

static const struct {
	const char *name;
	double share;
} percentiles[] = {{"p50", 0.5}, {"p90", 0.9}, {"p99", 0.99}, {"p99_9", 0.999}, {"max", 1}};

static double microseconds(const struct raw_result *result, double share)
{
	const struct histogram *times = &result->meter.times;

	return times->count ? (double)histogram_at(times, share) / 1e3 : NAN;
}

static double per_gb(const struct raw_options *options, const struct raw_result *result,
		     struct bench_usage usage)
{
	double bytes = (double)result->meter.all_tensors *
		       ((double)options->message_size + result->service.response_size);

	return bytes > 0 ? (usage.user_s + usage.system_s) * 1e9 / bytes : NAN;
}

static cJSON *latency_json(const struct raw_result *result)
{
	cJSON *object = cJSON_CreateObject();

	for (size_t i = 0; i < ARRAY_LENGTH(percentiles); i++)
		bench_json_number(object, percentiles[i].name,
				  microseconds(result, percentiles[i].share));
	return object;
}

static void add_setting(cJSON *json, const struct raw_options *options,
			const struct raw_result *result)
{
	char *target = raw_address(options->host, options->port);

	cJSON_AddStringToObject(json, "target", target ? target : options->host);
	free(target);
	cJSON_AddStringToObject(json, "grpc_version", grpc_version_string());
	cJSON_AddStringToObject(json, "allocator", raw_allocator_name(options->keep_memory));
	cJSON_AddStringToObject(json, "server_allocator",
				raw_allocator_name(result->service.keep_memory));
	bench_json_number(json, "channels", options->channels);
	bench_json_number(json, "sockets", result->sockets < 0 ? NAN : result->sockets);
	bench_json_number(json, "concurrency", options->concurrency);
	bench_json_number(json, "completion_queues", options->completion_queues);
	bench_json_number(json, "server_completion_queues", result->service.completion_queues);
	bench_json_number(json, "server_threads", result->service.threads);
	bench_json_number(json, "message_size_bytes", (double)options->message_size);
	bench_json_number(json, "response_size_bytes", result->service.response_size);
}

static cJSON *report_json(const struct raw_options *options, const struct raw_result *result)
{
	const struct meter *meter = &result->meter;
	double window = meter_window(meter);
	double client = per_gb(options, result, result->client);
	double server = per_gb(options, result, result->server);
	cJSON *json = cJSON_CreateObject();

	cJSON_AddStringToObject(json, "tool", "grpc_raw");
	add_setting(json, options, result);
	bench_json_number(json, "seconds", window);
	bench_json_number(json, "warmup_s", options->warmup);
	bench_json_number(json, "messages", meter->tensors);
	bench_json_number(json, "goodput_gbps", bench_gbps(meter->bytes, window));
	bench_json_number(json, "response_gbps",
			  bench_gbps(meter->tensors * result->service.response_size, window));
	bench_json_number(json, "megabytes_per_s", meter->bytes / 1e6 / window);
	bench_json_number(json, "calls_per_s", meter->tensors / window);
	cJSON_AddItemToObject(json, "latency_us", latency_json(result));
	bench_json_number(json, "cpu_s_per_gb", client + server);
	bench_json_number(json, "cpu_client_s_per_gb", client);
	bench_json_number(json, "cpu_server_s_per_gb", server);
	return json;
}

static void print_setting(const struct raw_options *options, const struct raw_result *result,
			  FILE *file)
{
	const struct raw_usage *service = &result->service;

	fprintf(file, "gRPC's C core %s, %u %s with %u %s in flight each\n", grpc_version_string(),
		options->channels, options->channels == 1 ? "channel" : "channels",
		options->concurrency, options->concurrency == 1 ? "call" : "calls");
	fprintf(file, "client: a thread for each of %u completion queues, %s\n",
		options->completion_queues, raw_allocator_text(options->keep_memory));
	fprintf(file, "server: %.0f threads on %.0f completion queues, %s\n\n", service->threads,
		service->completion_queues, raw_allocator_text(service->keep_memory));
}

static void print_table(const struct raw_options *options, const struct raw_result *result,
			FILE *file)
{
	static const char *const heads[] = {"message",  "response", "Gb/s",   "MB/s",
					    "calls/s",  "p50 us",   "p99 us", "p99.9 us",
					    "CPU s/GB", "client",   "server", "sockets"};
	const struct meter *meter = &result->meter;
	double window = meter_window(meter);
	double client = per_gb(options, result, result->client);
	double server = per_gb(options, result, result->server);
	char message[BENCH_SIZE_TEXT], response[BENCH_SIZE_TEXT];
	struct bench_table table;

	bench_table_init(&table, ARRAY_LENGTH(heads));
	bench_table_row(&table);
	for (size_t i = 0; i < ARRAY_LENGTH(heads); i++)
		bench_table_cell(&table, i, "%s", heads[i]);
	bench_table_row(&table);
	bench_table_cell(&table, 0, "%s", bench_size_text(message, options->message_size));
	bench_table_cell(&table, 1, "%s",
			 bench_size_text(response, (uint64_t)result->service.response_size));
	bench_table_cell(&table, 2, "%.3f", bench_gbps(meter->bytes, window));
	bench_table_cell(&table, 3, "%.1f", meter->bytes / 1e6 / window);
	bench_table_cell(&table, 4, "%.1f", meter->tensors / window);
	bench_table_cell(&table, 5, "%.1f", microseconds(result, 0.5));
	bench_table_cell(&table, 6, "%.1f", microseconds(result, 0.99));
	bench_table_cell(&table, 7, "%.1f", microseconds(result, 0.999));
	bench_table_cell(&table, 8, "%.3f", client + server);
	bench_table_cell(&table, 9, "%.3f", client);
	bench_table_cell(&table, 10, "%.3f", server);
	bench_table_cell(&table, 11, "%d", result->sockets);
	bench_table_print(&table, file);
	bench_table_free(&table);
}

bool raw_report(const struct raw_options *options, const struct raw_result *result)
{
	FILE *file = options->json && strcmp(options->json, "-") == 0 ? stderr : stdout;
	int error = 0;
	cJSON *json;

	print_setting(options, result, file);
	print_table(options, result, file);
	if (options->json) {
		json = report_json(options, result);
		error = bench_json_write(options->json, json);
		cJSON_Delete(json);
	}
	if (error)
		bench_complain("--json=%s: %s", options->json, strerror(-error));
	return bench_output_arrived() && !error;
}
