/* SPDX-License-Identifier: Apache-2.0 */
/* The tables at the end of a run. A column that is empty in every row is left out. */
#include <math.h>
#include <stddef.h>
#include <stdlib.h>

#include "client.h"

#define MEMBER(name) offsetof(struct round, name)

static void number(struct bench_table *table, size_t column, const char *format, double value)
{
	char text[32];

	if (isnan(value))
		return;
		/* The format is one of this file's. */
#pragma GCC diagnostic push
#pragma GCC diagnostic ignored "-Wformat-nonliteral"
	snprintf(text, sizeof(text), format, value);
#pragma GCC diagnostic pop
	bench_table_cell(table, column, "%s", text);
}

/* A test may have failed before anything was known. */
static bool was_measured(const struct test_result *result)
{
	return !isnan(round_median(result->round, result->rounds, MEMBER(goodput_gbps)));
}

/* ---- Goodput ---- */

enum {
	TEST,
	SIZE,
	IN_FLIGHT,
	GOODPUT,
	SPREAD,
	CEILING,
	RATIO,
	CPU,
	CEILING_CPU,
	RATE,
	TENSOR_P50,
	TENSOR_P99,
	TENSOR_P99_9,
	STREAMS,
	AGAIN,
	VERIFIED,
	WRONG,
	JAIN,
	GOODPUT_COLUMNS,
};

static const char *const goodput_heads[GOODPUT_COLUMNS] = {
	"test",     "size",     "in flight", "Gb/s",      "min..max",   "TCP Gb/s",
	"ratio",    "CPU s/GB", "TCP s/GB",  "tensors/s", "p50 us",     "p99 us",
	"p99.9 us", "streams",  "again",     "verified",  "mismatches", "Jain index",
};

static void heads(struct bench_table *table, const char *const *names, size_t count)
{
	bench_table_row(table);
	for (size_t i = 0; i < count; i++)
		bench_table_cell(table, i, "%s", names[i]);
}

static void name_row(struct bench_table *table, const struct test_result *result)
{
	char size[BENCH_SIZE_TEXT];

	bench_table_row(table);
	bench_table_cell(table, TEST, "%s", test_names[result->test]);
	bench_table_cell(table, SIZE, "%s", bench_size_text(size, result->size));
	bench_table_cell(table, IN_FLIGHT, "%u", result->concurrency);
}

static void goodput_row(struct bench_table *table, const struct report *report,
			const struct test_result *result)
{
	const struct round *rounds = result->round, *ceiling = result->ceiling;
	size_t count = result->rounds;
	double goodput = round_median(rounds, count, MEMBER(goodput_gbps));
	double tcp = round_median(ceiling, count, MEMBER(goodput_gbps));
	double low, high, times[PERCENTILES];

	name_row(table, result);
	number(table, GOODPUT, "%.3f", goodput);
	round_range(rounds, count, MEMBER(goodput_gbps), &low, &high);
	if (!isnan(low))
		bench_table_cell(table, SPREAD, "%.3f..%.3f", low, high);
	number(table, CEILING, "%.3f", tcp);
	number(table, RATIO, "%.3f", goodput / tcp);
	number(table, CPU, "%.3f", round_cpu(rounds, count, true, true));
	number(table, CEILING_CPU, "%.3f", round_cpu(ceiling, count, true, true));
	number(table, RATE, "%.0f", round_median(rounds, count, MEMBER(rate)));
	round_percentiles(rounds, count, times);
	number(table, TENSOR_P50, "%.0f", times[P50]);
	number(table, TENSOR_P99, "%.0f", times[P99]);
	if (result->test == TEST_RATE)
		number(table, TENSOR_P99_9, "%.0f", times[P99_9]);
	round_range(rounds, count, MEMBER(streams), &low, &high);
	number(table, STREAMS, "%.0f", high);
	number(table, AGAIN, "%.0f", round_sum(rounds, count, MEMBER(chunks_again)));
	number(table, VERIFIED, "%.0f", round_sum(rounds, count, MEMBER(verified)));
	number(table, WRONG, "%.0f", round_sum(rounds, count, MEMBER(mismatches)));
	number(table, JAIN, "%.4f", clients_jain(report, result));
}

static void print_goodput(const struct report *report, FILE *file)
{
	struct bench_table table;

	bench_table_init(&table, GOODPUT_COLUMNS);
	heads(&table, goodput_heads, GOODPUT_COLUMNS);
	for (size_t i = 0; i < report->count; i++)
		if (report->results[i].test != TEST_LATENCY && was_measured(&report->results[i]))
			goodput_row(&table, report, &report->results[i]);
	if (table.count > 1)
		bench_table_print(&table, file);
	bench_table_free(&table);
}

/* ---- Latency ---- */

enum { LATENCY_FIRST = IN_FLIGHT + 1, LATENCY_COLUMNS = LATENCY_FIRST + PERCENTILES + 2 };

static const char *const latency_heads[LATENCY_COLUMNS] = {
	"round trip, us", "size", "in flight", "p50",        "p90", "p99",
	"p99.9",          "max",  "verified",  "mismatches",
};

static void latency_row(struct bench_table *table, const struct round *rounds, size_t count)
{
	double times[PERCENTILES];

	round_percentiles(rounds, count, times);
	for (size_t i = 0; i < PERCENTILES; i++)
		number(table, LATENCY_FIRST + i, "%.2f", times[i]);
	number(table, LATENCY_FIRST + PERCENTILES, "%.0f",
	       round_sum(rounds, count, MEMBER(verified)));
	number(table, LATENCY_FIRST + PERCENTILES + 1, "%.0f",
	       round_sum(rounds, count, MEMBER(mismatches)));
}

static void latency_rows(struct bench_table *table, const struct report *report,
			 const struct test_result *result)
{
	double ours[PERCENTILES], theirs[PERCENTILES];

	name_row(table, result);
	latency_row(table, result->round, result->rounds);
	round_percentiles(result->round, result->rounds, ours);
	round_percentiles(result->ceiling, result->rounds, theirs);
	if (!report->options->ceiling || isnan(theirs[P50]))
		return;
	bench_table_row(table);
	bench_table_cell(table, TEST, "plain TCP");
	latency_row(table, result->ceiling, result->rounds);
	bench_table_row(table);
	bench_table_cell(table, TEST, "ratio");
	for (size_t i = 0; i < PERCENTILES; i++)
		number(table, LATENCY_FIRST + i, "%.2f", ours[i] / theirs[i]);
}

static void print_latency(const struct report *report, FILE *file)
{
	struct bench_table table;

	bench_table_init(&table, LATENCY_COLUMNS);
	heads(&table, latency_heads, LATENCY_COLUMNS);
	for (size_t i = 0; i < report->count; i++)
		if (report->results[i].test == TEST_LATENCY && was_measured(&report->results[i]))
			latency_rows(&table, report, &report->results[i]);
	if (table.count > 1)
		bench_table_print(&table, file);
	bench_table_free(&table);
}

/* ---- Clients ---- */

static void print_clients(const struct report *report, FILE *file)
{
	unsigned clients = (unsigned)report->options->clients;

	if (clients == 1)
		return;
	for (size_t i = 0; i < report->count; i++) {
		const struct test_result *result = &report->results[i];
		char size[BENCH_SIZE_TEXT];

		if (result->test == TEST_LATENCY || !was_measured(result))
			continue;
		fprintf(file, "%s, %s, each client in Gb/s:", test_names[result->test],
			bench_size_text(size, result->size));
		for (unsigned client = 0; client < clients; client++)
			fprintf(file, " %.3f", client_median(report, result, client));
		fputc('\n', file);
	}
}

void report_print(const struct report *report, FILE *file)
{
	const struct client_options *options = report->options;

	char name[BENCH_NAME_TEXT], length[48];

	if (!report->count)
		return;
	if (isinf(options->seconds))
		snprintf(length, sizeof(length), "%llu tensors",
			 (unsigned long long)options->count);
	else
		snprintf(length, sizeof(length), "%g s", options->seconds);
	fprintf(file, "%s, %llu round%s of %s, %llu client%s with %llu endpoint%s\n",
		options->transport ? options->transport : bench_spec_name(name, report->spec),
		(unsigned long long)options->rounds, options->rounds == 1 ? "" : "s", length,
		(unsigned long long)options->clients, options->clients == 1 ? "" : "s",
		(unsigned long long)options->endpoints, options->endpoints == 1 ? "" : "s");
	print_goodput(report, file);
	print_latency(report, file);
	print_clients(report, file);
	fflush(file);
}
