/* SPDX-License-Identifier: Apache-2.0 */
#include <errno.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "tensor_transfer.h"

/* Between two attempts to reach a server that is not there yet. */
#define AGAIN_MS 50

struct server {
	struct worker *worker;
	const char *address;
	haul_endpoint *endpoint;
	int64_t assigned; /* its answer */
	struct operation sending, answering;
};

struct worker {
	const struct transfer_options *options;
	haul_context *context;
	haul_region *region;
	int64_t elements;
	struct server servers[TRANSFER_HOSTS_MAX];
	bool failed;
	/* Of the iteration that runs. */
	unsigned sending, answering; /* servers */
	uint64_t placed_at;          /* when the last tensor was in place */
	/* Of all that are measured. */
	uint64_t seconds_ns, transfer_ns, server_assign_ns, prepare_ns;
	struct histogram times; /* of iterations */
	struct bench_usage usage;
	int64_t mismatches;
};

static bool fail(struct worker *worker, const struct server *server, const char *what, int error,
		 const char *detail)
{
	if (!worker->failed)
		bench_complain("ps %u (%s): %s: %s", (unsigned)(server - worker->servers),
			       server->address, what, failure_text(error, detail));
	worker->failed = true;
	return false;
}

/* ---- Connecting ---- */

/* Servers and workers are started in any order. */
static bool reach(struct worker *worker, struct server *server)
{
	uint64_t limit = bench_now() + (uint64_t)worker->options->timeout_ms * NS_PER_MS;
	struct timespec pause = {.tv_nsec = AGAIN_MS * 1000000};
	int error;

	for (;;) {
		error = haul_connect_wait(worker->context, server->address,
					  worker->options->timeout_ms, &server->endpoint);
		if (error != -ECONNREFUSED || bench_now() >= limit)
			break;
		nanosleep(&pause, NULL);
	}
	return !error ||
	       fail(worker, server, "can't be reached", error, haul_detail(worker->context));
}

static bool introduce(struct worker *worker, struct server *server)
{
	const struct transfer_options *options = worker->options;
	struct hello hello = {
		.magic = HELLO_MAGIC,
		.version = HELLO_VERSION,
		.worker = options->task,
		.workers = options->workers.count,
		.server = server - worker->servers,
		.servers = options->servers.count,
		.bytes = (int64_t)options->bytes,
		.iterations = (int64_t)options->iterations,
		.assign = options->assign,
	};
	const int64_t words = HELLO_WORDS, room = TRANSFER_ANSWER_MAX - 1;
	char answer[TRANSFER_ANSWER_MAX] = "";
	DLTensor question = words_tensor(&hello.magic, &words);
	DLTensor text = bytes_tensor(answer, &room);
	int error = haul_send_wait(server->endpoint, haul_key("hello"), &question, NULL,
				   options->timeout_ms);

	if (!error)
		error = haul_recv_wait(server->endpoint, haul_key("answer"), &text, NULL,
				       options->timeout_ms, NULL);
	if (error)
		return fail(worker, server, "does not answer", error, haul_detail(worker->context));
	return !answer[0] || fail(worker, server, "refuses", -EPROTO, answer);
}

static bool prepare(struct worker *worker)
{
	const struct transfer_options *options = worker->options;
	int error = haul_region_allocate(worker->context, options->bytes, HAUL_USE_SEND,
					 &worker->region);

	if (error) {
		bench_complain("the variable: %s",
			       failure_text(error, haul_detail(worker->context)));
		return false;
	}
	worker->elements = (int64_t)(options->bytes / sizeof(float));
	transfer_fill(haul_region_base(worker->region), (uint64_t)worker->elements, options->task);
	for (unsigned i = 0; i < options->servers.count; i++) {
		struct server *server = &worker->servers[i];

		*server = (struct server){.worker = worker, .address = options->servers.hosts[i]};
		if (!reach(worker, server) || !introduce(worker, server))
			return false;
	}
	return true;
}

/* ---- Iterations ---- */

static void sent(struct operation *operation, const struct haul_completion *completion,
		 uint64_t now)
{
	struct server *server = operation->owner;

	server->worker->sending--;
	server->worker->placed_at = now;
	if (completion->result)
		fail(server->worker, server, "the variable did not arrive", completion->result,
		     completion->detail);
}

static void answered(struct operation *operation, const struct haul_completion *completion,
		     uint64_t now)
{
	struct server *server = operation->owner;

	(void)now;
	server->worker->answering--;
	if (completion->result)
		fail(server->worker, server, "no answer", completion->result, completion->detail);
}

static void start_one(struct worker *worker, struct server *server)
{
	struct haul_op op = HAUL_OP_INIT;
	const int64_t one = 1;
	DLTensor answer = words_tensor(&server->assigned, &one);
	DLTensor variable = variable_tensor(haul_region_base(worker->region), &worker->elements);
	int error;

	op.timeout_ms = (uint64_t)worker->options->timeout_ms;
	server->sending = (struct operation){sent, server};
	server->answering = (struct operation){answered, server};
	op.cookie = &server->answering;
	error = haul_recv(server->endpoint, haul_key("assigned"), &answer, NULL, &op);
	worker->answering += !error;
	if (!error) {
		op.cookie = &server->sending;
		error = haul_send(server->endpoint, haul_key("variable"), &variable, worker->region,
				  &op);
		worker->sending += !error;
	}
	if (error)
		fail(worker, server, "the variable can't be sent", error,
		     haul_detail(worker->context));
}

static void take(struct worker *worker, const struct haul_completion *completion)
{
	if (completion->event == HAUL_SENT || completion->event == HAUL_RECEIVED)
		operation_done(completion, bench_now());
	else if (completion->event == HAUL_LOST)
		fail(worker, completion->cookie, "was lost", completion->result,
		     completion->detail);
}

/* The variable to all servers, until all have answered. */
static bool iterate(struct worker *worker)
{
	struct haul_completion completions[16];

	for (unsigned i = 0; i < worker->options->servers.count && !worker->failed; i++)
		start_one(worker, &worker->servers[i]);
	while (!worker->failed && worker->sending + worker->answering) {
		int count = haul_poll(worker->context, completions, ARRAY_LENGTH(completions), -1);

		if (count < 0 && count != -EINTR) {
			bench_complain("haul_poll: %s", haul_strerror(count));
			worker->failed = true;
		}
		for (int i = 0; i < count; i++)
			take(worker, &completions[i]);
	}
	return !worker->failed;
}

static void count_iteration(struct worker *worker, uint64_t start)
{
	uint64_t now = bench_now();
	int64_t slowest = 0;

	for (unsigned i = 0; i < worker->options->servers.count; i++)
		if (worker->servers[i].assigned > slowest)
			slowest = worker->servers[i].assigned;
	worker->seconds_ns += now - start;
	worker->transfer_ns += worker->placed_at - start;
	worker->server_assign_ns += (uint64_t)slowest;
	histogram_add(&worker->times, now - start);
}

static bool measure(struct worker *worker)
{
	struct bench_usage before;

	histogram_reset(&worker->times);
	if (!iterate(worker)) /* warms up */
		return false;
	before = bench_usage_now();
	for (uint64_t i = 0; i < worker->options->iterations; i++) {
		uint64_t start = bench_now();

		if (!iterate(worker))
			return false;
		count_iteration(worker, start);
	}
	worker->usage = bench_usage_since(&before);
	return true;
}

/* The servers look whether all is as it has to be. */
static bool finish(struct worker *worker, struct server *server)
{
	const int64_t none = 0, one = 1;
	int64_t wrong = 0;
	DLTensor question = bytes_tensor(NULL, &none);
	DLTensor answer = words_tensor(&wrong, &one);
	int timeout = worker->options->timeout_ms;
	int error = haul_send_wait(server->endpoint, haul_key("finish"), &question, NULL, timeout);

	if (!error)
		error = haul_recv_wait(server->endpoint, haul_key("result"), &answer, NULL, timeout,
				       NULL);
	if (error)
		return fail(worker, server, "the end", error, haul_detail(worker->context));
	worker->mismatches += wrong;
	if (wrong)
		bench_complain("ps %u (%s): %lld elements of the variable are wrong",
			       (unsigned)(server - worker->servers), server->address,
			       (long long)wrong);
	return true;
}

/* ---- The report ---- */

static double megabytes(const struct worker *worker)
{
	const struct transfer_options *options = worker->options;

	return (double)options->bytes * options->servers.count * (double)options->iterations / 1e6;
}

static double seconds(uint64_t ns)
{
	return (double)ns / NS_PER_S;
}

/* Where what people read goes to. */
static FILE *output_of(const struct transfer_options *options)
{
	return options->json && strcmp(options->json, "-") == 0 ? stderr : stdout;
}

static void announce(const struct transfer_options *options)
{
	FILE *file = output_of(options);

	fprintf(file, "worker %u of %u: connected\n", options->task, options->workers.count);
	fflush(file);
}

static void print(const struct worker *worker)
{
	const struct transfer_options *options = worker->options;
	FILE *file = output_of(options);
	double assign = seconds(worker->seconds_ns - worker->transfer_ns);

	fprintf(file, "%.0f MB to each of %u parameter %s, %llu times, assign %s\n",
		(double)options->bytes / 1e6, options->servers.count,
		options->servers.count == 1 ? "server" : "servers",
		(unsigned long long)options->iterations, assign_names[options->assign]);
	fprintf(file, "transfer rate: %.1f MB/s\n",
		megabytes(worker) / seconds(worker->seconds_ns));
	fprintf(file, "transfer rate without the steps beside it: %.1f MB/s\n",
		megabytes(worker) / seconds(worker->transfer_ns));
	fprintf(file,
		"beside the transfer: %.1f %% of the time for the assign (%.1f %% at the server), "
		"%.0f ms once for preparation\n",
		100 * assign / seconds(worker->seconds_ns),
		100 * seconds(worker->server_assign_ns) / seconds(worker->seconds_ns),
		1e3 * seconds(worker->prepare_ns));
}

static cJSON *times_json(const struct histogram *times)
{
	cJSON *object = cJSON_CreateObject();

	bench_json_number(object, "p50", (double)histogram_at(times, 0.5) / 1e6);
	bench_json_number(object, "p99", (double)histogram_at(times, 0.99) / 1e6);
	bench_json_number(object, "max", (double)times->most / 1e6);
	return object;
}

static cJSON *report_json(const struct worker *worker)
{
	const struct transfer_options *options = worker->options;
	double moved = megabytes(worker), whole = seconds(worker->seconds_ns);
	cJSON *json = cJSON_CreateObject();

	cJSON_AddStringToObject(json, "tool", "tensor_transfer_throughput");
	cJSON_AddStringToObject(json, "job", "worker");
	bench_json_number(json, "task", options->task);
	bench_json_number(json, "workers", options->workers.count);
	bench_json_number(json, "servers", options->servers.count);
	cJSON_AddStringToObject(json, "transport", haul_spec(worker->context));
	cJSON_AddStringToObject(json, "assign", assign_names[options->assign]);
	bench_json_number(json, "variable_bytes", (double)options->bytes);
	bench_json_number(json, "iterations", (double)options->iterations);
	bench_json_number(json, "seconds", whole);
	bench_json_number(json, "transfer_mb_per_s", moved / whole);
	bench_json_number(json, "transfer_only_mb_per_s", moved / seconds(worker->transfer_ns));
	bench_json_number(json, "goodput_gbps", bench_gbps(moved * 1e6, whole));
	bench_json_number(json, "transfer_s", seconds(worker->transfer_ns));
	bench_json_number(json, "assign_s", whole - seconds(worker->transfer_ns));
	bench_json_number(json, "server_assign_s", seconds(worker->server_assign_ns));
	bench_json_number(json, "prepare_s", seconds(worker->prepare_ns));
	cJSON_AddItemToObject(json, "iteration_ms", times_json(&worker->times));
	bench_json_number(json, "cpu_s_per_gb",
			  (worker->usage.user_s + worker->usage.system_s) * 1e3 / moved);
	bench_json_number(json, "mismatches", (double)worker->mismatches);
	return json;
}

static bool report(const struct worker *worker)
{
	print(worker);
	return !worker->options->json || transfer_write_json(worker->options, report_json(worker));
}

int transfer_work(const struct transfer_options *options, haul_context *context)
{
	struct worker *worker = calloc(1, sizeof(*worker));
	uint64_t start = bench_now();
	bool well;

	if (!worker) {
		bench_complain("no memory");
		return EXIT_FAILED;
	}
	worker->options = options;
	worker->context = context;
	well = prepare(worker);
	worker->prepare_ns = bench_now() - start;
	if (well)
		announce(options);
	well = well && measure(worker);
	for (unsigned i = 0; well && i < options->servers.count; i++)
		well = finish(worker, &worker->servers[i]);
	if (well)
		well = report(worker) && !worker->mismatches;
	for (unsigned i = 0; i < options->servers.count; i++)
		haul_disconnect(worker->servers[i].endpoint);
	haul_region_release(worker->region);
	free(worker);
	return well ? 0 : EXIT_FAILED;
}
