/* SPDX-License-Identifier: Apache-2.0 */
/*
 * key-tables - what one match of the rendezvous table costs.
 *
 * A match is what the engine does for one tensor: a send waits under a key that is new, and a
 * receive of the peer's finds a key that waits, and takes it out. The table always holds --pending
 * keys. In both contenders each of the two calls takes a lock, as the library's calls do:
 *
 *   contexts  each thread has a table and a lock of its own, and its share of the keys
 *   mutex     all threads share one table under one lock
 *
 * The keys are matched in the order in which they were queued, or scattered over all of them.
 *
 * The JSON that --json writes: one object,
 *
 *   {"tool": "key-tables", "seconds", "rounds", "order", "results": [{"contender", "threads",
 *   "pending": keys in all tables together, "matches_per_s": median, "matches_per_s_rounds",
 *   "ns_per_match": threads / matches_per_s}...]}
 */
#include <math.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>

#include "bench_common.h"
#include "bench_options.h"
#include "engine/keys.h"

#define LIST_MAX 16
#define THREADS_MAX 1024
#define ROUNDS_MAX 100
/* Matches between two looks at the clock. */
#define BATCH 64
#define LINE 64

#define SHOWN (POPT_ARG_STRING | POPT_ARGFLAG_SHOW_DEFAULT)

static const char *const order_names[] = {"queued", "scattered", NULL};
static const char *const contender_names[] = {"contexts", "mutex"};

enum { CONTEXTS, MUTEX, CONTENDERS };

static struct {
	char *threads, *pending, *order, *seconds, *rounds, *json;
} given = {
	.threads = "1,2,4,8",
	.pending = "10,1000,100000,1000000",
	.order = "queued",
	.seconds = "0.5",
	.rounds = "3",
};

static struct poptOption option_table[] = {
	{"threads", 't', SHOWN, &given.threads, 0, "how many threads, several with commas", "LIST"},
	{"pending", 'p', SHOWN, &given.pending, 0,
	 "keys that wait, in all tables together, several with commas", "LIST"},
	{"order", 'o', SHOWN, &given.order, 0, "keys are matched as they were queued, or scattered",
	 "NAME"},
	{"seconds", 'S', SHOWN, &given.seconds, 0, "how long each measurement takes", "SECONDS"},
	{"rounds", 'r', SHOWN, &given.rounds, 0, "rounds of each, in turn", "N"},
	{"json", 'j', POPT_ARG_STRING, &given.json, 0,
	 "write the numbers; \"-\" is the standard output (default: none)", "FILE"},
	POPT_AUTOHELP POPT_TABLEEND};

struct options {
	uint64_t threads[LIST_MAX], pending[LIST_MAX];
	size_t thread_count, pending_count;
	bool scattered;
	double seconds;
	size_t rounds;
};

/* ---- The table and those who use it ---- */

struct table {
	_Alignas(LINE) pthread_mutex_t lock;
	struct keys keys;
};

/* 16 bytes, as a short name would have. */
struct key {
	uint32_t thread, generation;
	uint64_t number;
};

/*
 * The keys of a thread come in generations of `pending`: match the next one of a generation, queue
 * it again for the one behind. `stride` visits them all when it has no divisor in common with
 * `pending`; with another stride in each generation the order is never that of the queueing.
 */
struct matcher {
	_Alignas(LINE) struct table *table;
	struct key next;
	uint64_t pending, done_of_generation, stride;
	bool scattered;
	uint64_t matches;
	double seconds;
	uint64_t length_ns;
	pthread_barrier_t *start;
	bool failed;
};

static uint64_t common_divisor(uint64_t left, uint64_t right)
{
	while (right) {
		uint64_t rest = left % right;

		left = right;
		right = rest;
	}
	return left;
}

static void start_generation(struct matcher *matcher)
{
	matcher->next.generation++;
	matcher->next.number = 0;
	matcher->done_of_generation = 0;
	if (!matcher->scattered)
		return;
	/* Around the golden section, and different in each generation. */
	matcher->stride = (uint64_t)((double)matcher->pending * 0.618) +
			  matcher->next.generation * 7919u % 1000;
	matcher->stride %= matcher->pending;
	while (common_divisor(matcher->stride, matcher->pending) != 1)
		matcher->stride++;
}

static bool queue(struct matcher *matcher, const struct key *key)
{
	struct key_entry *entry;

	pthread_mutex_lock(&matcher->table->lock);
	entry = keys_find_or_add(&matcher->table->keys, key, sizeof(*key));
	pthread_mutex_unlock(&matcher->table->lock);
	return entry;
}

/* As the engine does when a receive of the peer's comes: it would wait if nothing were there. */
static bool match(struct matcher *matcher, const struct key *key)
{
	struct keys *keys = &matcher->table->keys;
	struct key_entry *entry;
	size_t waiting;
	bool waited;

	pthread_mutex_lock(&matcher->table->lock);
	waiting = keys->count;
	entry = keys_find_or_add(keys, key, sizeof(*key));
	waited = entry && keys->count == waiting;
	if (waited)
		keys_drop_if_empty(keys, entry);
	pthread_mutex_unlock(&matcher->table->lock);
	return waited;
}

static bool match_one(struct matcher *matcher)
{
	struct key later = matcher->next;

	later.generation++;
	if (!match(matcher, &matcher->next) || !queue(matcher, &later))
		return false;
	matcher->next.number += matcher->stride;
	if (matcher->next.number >= matcher->pending)
		matcher->next.number -= matcher->pending;
	if (++matcher->done_of_generation == matcher->pending)
		start_generation(matcher);
	return true;
}

/* Twice all keys, at least: the memory is then as worn as it will be. */
static bool fill(struct matcher *matcher)
{
	bool well = true;

	matcher->stride = 1;
	matcher->next.generation = 0;
	for (uint64_t i = 0; well && i < matcher->pending; i++) {
		struct key key = {matcher->next.thread, 1, i};

		well = queue(matcher, &key);
	}
	start_generation(matcher);
	for (uint64_t i = 0; well && i < matcher->pending; i++)
		well = match_one(matcher);
	return well;
}

static void *run_matcher(void *argument)
{
	struct matcher *matcher = argument;
	uint64_t begin, end, now;

	matcher->failed = !fill(matcher);
	pthread_barrier_wait(matcher->start);
	begin = now = bench_now();
	end = begin + matcher->length_ns;
	while (!matcher->failed && now < end) {
		for (unsigned i = 0; i < BATCH && !matcher->failed; i++)
			matcher->failed = !match_one(matcher);
		matcher->matches += BATCH;
		now = bench_now();
	}
	matcher->seconds = (double)(now - begin) / NS_PER_S;
	return NULL;
}

/* ---- One measurement ---- */

struct bench {
	struct options options;
	struct matcher *matchers;
	struct table *tables;
};

static void run_threads(struct matcher *matchers, size_t count)
{
	pthread_t threads[THREADS_MAX];
	pthread_barrier_t start;

	pthread_barrier_init(&start, NULL, (unsigned)count);
	for (size_t i = 0; i < count; i++) {
		matchers[i].start = &start;
		if (pthread_create(&threads[i], NULL, run_matcher, &matchers[i])) {
			/* The others wait at the barrier: there is no way back. */
			bench_complain("can't start %zu threads", count);
			exit(EXIT_FAILED);
		}
	}
	for (size_t i = 0; i < count; i++)
		pthread_join(threads[i], NULL);
	pthread_barrier_destroy(&start);
}

/* Matches per second of all threads; NAN when memory was short. */
static double measure(struct bench *bench, int contender, uint64_t threads, uint64_t pending)
{
	double rate = 0;

	for (uint64_t i = 0; i < threads; i++) {
		struct table *table = &bench->tables[i];

		pthread_mutex_init(&table->lock, NULL);
		keys_init(&table->keys, bench_now() + i);
		bench->matchers[i] = (struct matcher){
			.table = contender == MUTEX ? bench->tables : table,
			.next.thread = (uint32_t)i,
			.pending = pending / threads + (i < pending % threads),
			.scattered = bench->options.scattered,
			.length_ns = (uint64_t)(bench->options.seconds * NS_PER_S),
		};
	}
	run_threads(bench->matchers, threads);
	for (uint64_t i = 0; i < threads; i++) {
		const struct matcher *matcher = &bench->matchers[i];

		rate += matcher->failed ? NAN : (double)matcher->matches / matcher->seconds;
		keys_free(&bench->tables[i].keys);
		pthread_mutex_destroy(&bench->tables[i].lock);
	}
	return rate;
}

/* ---- All of them, and the report ---- */

struct report {
	struct bench_table table;
	cJSON *results;
};

static void report_row(struct report *report, uint64_t threads, uint64_t pending,
		       double rates[CONTENDERS][ROUNDS_MAX], size_t rounds)
{
	double medians[CONTENDERS];

	bench_table_row(&report->table);
	bench_table_cell(&report->table, 0, "%llu", (unsigned long long)pending);
	bench_table_cell(&report->table, 1, "%llu", (unsigned long long)threads);
	for (int contender = 0; contender < CONTENDERS; contender++) {
		double median = medians[contender] = bench_median(rates[contender], rounds);
		cJSON *object = cJSON_CreateObject();

		cJSON_AddStringToObject(object, "contender", contender_names[contender]);
		bench_json_number(object, "threads", (double)threads);
		bench_json_number(object, "pending", (double)pending);
		bench_json_number(object, "matches_per_s", median);
		bench_json_numbers(object, "matches_per_s_rounds", rates[contender], rounds);
		bench_json_number(object, "ns_per_match", (double)threads * 1e9 / median);
		cJSON_AddItemToArray(report->results, object);
		bench_table_cell(&report->table, 2 + 2 * (size_t)contender, "%.2f", median * 1e-6);
		bench_table_cell(&report->table, 3 + 2 * (size_t)contender, "%.0f",
				 (double)threads * 1e9 / median);
	}
	bench_table_cell(&report->table, 6, "%.2f", medians[CONTEXTS] / medians[MUTEX]);
}

static bool measure_all(struct bench *bench, struct report *report)
{
	const struct options *options = &bench->options;
	double rates[CONTENDERS][ROUNDS_MAX];

	for (size_t p = 0; p < options->pending_count; p++)
		for (size_t t = 0; t < options->thread_count; t++) {
			uint64_t threads = options->threads[t], pending = options->pending[p];

			for (size_t i = 0; i < options->rounds; i++)
				for (int contender = 0; contender < CONTENDERS; contender++) {
					double rate = measure(bench, contender, threads, pending);

					if (isnan(rate)) {
						bench_complain("no memory for %llu keys",
							       (unsigned long long)pending);
						return false;
					}
					rates[contender][i] = rate;
				}
			report_row(report, threads, pending, rates, options->rounds);
		}
	return true;
}

static bool write_json(const struct options *options, cJSON *results)
{
	cJSON *json = cJSON_CreateObject();
	int error;

	cJSON_AddStringToObject(json, "tool", "key-tables");
	bench_json_number(json, "seconds", options->seconds);
	bench_json_number(json, "rounds", (double)options->rounds);
	cJSON_AddStringToObject(json, "order", order_names[options->scattered]);
	cJSON_AddItemToObject(json, "results", results);
	error = bench_json_write(given.json, json);
	cJSON_Delete(json);
	if (error)
		bench_complain("--json=%s: %s", given.json, strerror(-error));
	return !error;
}

/* ---- Options ---- */

static void parse(int count, const char **arguments, struct options *options)
{
	options_parse(count, arguments, option_table, NULL);
	options->thread_count = option_numbers("threads", given.threads, 1, THREADS_MAX,
					       options->threads, LIST_MAX);
	options->pending_count =
		option_numbers("pending", given.pending, 1, 100000000, options->pending, LIST_MAX);
	for (size_t t = 0; t < options->thread_count; t++)
		for (size_t p = 0; p < options->pending_count; p++)
			if (options->pending[p] < options->threads[t])
				bench_usage_error("--pending=%llu: fewer keys than --threads=%llu",
						  (unsigned long long)options->pending[p],
						  (unsigned long long)options->threads[t]);
	options->scattered = option_choice("order", given.order, order_names) == 1;
	options->seconds = option_seconds("seconds", given.seconds, 0.01, 3600);
	options->rounds = option_number("rounds", given.rounds, 1, ROUNDS_MAX);
	option_check_json(given.json);
}

int main(int count, const char **arguments)
{
	static const char *const heads[] = {"pending",   "threads",  "contexts M/s", "ns each",
					    "mutex M/s", "ns each ", "ratio"};
	struct bench bench = {0};
	struct report report;
	uint64_t most = 1;
	bool well;

	bench_hold_standard_streams();
	parse(count, arguments, &bench.options);
	for (size_t i = 0; i < bench.options.thread_count; i++)
		most = bench.options.threads[i] > most ? bench.options.threads[i] : most;
	bench.matchers = aligned_alloc(LINE, most * sizeof(*bench.matchers));
	bench.tables = aligned_alloc(LINE, most * sizeof(*bench.tables));
	report.results = cJSON_CreateArray();
	bench_table_init(&report.table, ARRAY_LENGTH(heads));
	bench_table_row(&report.table);
	for (size_t i = 0; i < ARRAY_LENGTH(heads); i++)
		bench_table_cell(&report.table, i, "%s", heads[i]);
	well = bench.matchers && bench.tables && measure_all(&bench, &report);
	if (well && !(given.json && strcmp(given.json, "-") == 0))
		bench_table_print(&report.table, stdout);
	if (well && given.json)
		well = write_json(&bench.options, report.results);
	else
		cJSON_Delete(report.results);
	bench_table_free(&report.table);
	free(bench.matchers);
	free(bench.tables);
	return well && bench_output_arrived() ? 0 : EXIT_FAILED;
}
