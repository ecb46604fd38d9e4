/* SPDX-License-Identifier: Apache-2.0 */
/*
 * --diagnose: plain sockets from here to the server, one, two and more at once, and the transport
 * after them. What they mean is in client_verdict.c.
 *
 * The JSON: one object,
 *
 *   {"tool": "haul-bench-client", "diagnosis": {"one_socket": LIMIT, "all": LIMIT, "sockets": the
 *   fewest that carry nearly all, "transport": SPEC to take, "words": [text]}, "ping_us": {"p50",
 *   "p99"}, "mtu": of the path, "same_host": bool, "cpus": of this host, "steps": [{"sockets",
 *   "gbps", "loss": share of the bytes that were sent again, "round_trip_us",
 *   "least_round_trip_us", "window_limited", "buffer_limited": shares of the time,
 *   "client_cores", "server_cores", "host_busy"}...], "measured": {"transport": SPEC, "gbps",
 *   "streams"}, "options": {"connect", "seconds", "congestion"}}
 *
 * LIMIT is "link", "loss", "receive window", "send buffer", "sender's core", "receiver's core",
 * "this host's cores" or "one socket", which is: unknown.
 */
#include <math.h>
#include <pthread.h>
#include <sched.h>
#include <stdlib.h>
#include <string.h>

#include "client.h"
#include "plain_tcp.h"

#define PING_SIZE 64
#define PING_SECONDS 0.3
#define LEAD_NS (20 * NS_PER_S / 1000)

struct diagnosis {
	const struct client_options *options;
	struct worker *worker;
	struct result *result; /* of the worker's last command */
	struct path_facts facts;
	uint16_t port;
	char spec[1024];
};

struct socket_run {
	pthread_t thread;
	struct plain_request request;
	struct plain_result result;
	int failed;
	char why[512];
};

static bool execute(struct diagnosis *diagnosis, struct command command)
{
	worker_execute(diagnosis->worker, &command, diagnosis->result);
	if (diagnosis->result->failed)
		bench_complain("%s", diagnosis->result->error);
	return !diagnosis->result->failed;
}

static bool server_usage(struct diagnosis *diagnosis, double *seconds)
{
	if (!execute(diagnosis, (struct command){.kind = COMMAND_USAGE}))
		return false;
	*seconds = diagnosis->result->usage.user_s + diagnosis->result->usage.system_s;
	return true;
}

/* ---- This host's CPU time ---- */

struct host_time {
	double busy, all; /* ticks */
};

static struct host_time host_time_now(void)
{
	unsigned long long ticks[8] = {0};
	struct host_time time = {NAN, NAN};
	FILE *file = fopen("/proc/stat", "re");

	/* user, nice, system, idle, iowait, irq, softirq, steal */
	if (file &&
	    fscanf(file, "cpu %llu %llu %llu %llu %llu %llu %llu %llu", &ticks[0], &ticks[1],
		   &ticks[2], &ticks[3], &ticks[4], &ticks[5], &ticks[6], &ticks[7]) == 8) {
		time.all = 0;
		for (size_t i = 0; i < ARRAY_LENGTH(ticks); i++)
			time.all += (double)ticks[i];
		time.busy = time.all - (double)(ticks[3] + ticks[4]);
	}
	if (file)
		fclose(file);
	return time;
}

/* ---- Sockets ---- */

static struct plain_request request_of(const struct diagnosis *diagnosis, enum plain_mode mode,
				       double warmup, double seconds)
{
	uint64_t begin = bench_now() + LEAD_NS + (uint64_t)(warmup * NS_PER_S);

	return (struct plain_request){
		.host = diagnosis->options->ceiling_host,
		.port = ceiling_port(diagnosis->options, diagnosis->port),
		.congestion = diagnosis->options->congestion,
		.mode = mode,
		.ping_size = PING_SIZE,
		.begin = begin,
		.end = begin + (uint64_t)(seconds * NS_PER_S),
	};
}

static bool measure_pings(struct diagnosis *diagnosis)
{
	struct plain_request request = request_of(diagnosis, PLAIN_PINGS, 0, PING_SECONDS);
	struct plain_result *result = calloc(1, sizeof(*result));
	char why[512] = "no memory";
	int failed = result ? plain_measure(&request, result, why, sizeof(why)) : -1;

	if (failed) {
		bench_complain("%s", why);
	} else {
		diagnosis->facts.ping_us[0] = (double)histogram_at(&result->times, 0.5) * 1e-3;
		diagnosis->facts.ping_us[1] = (double)histogram_at(&result->times, 0.99) * 1e-3;
	}
	free(result);
	return !failed;
}

static void *run_socket(void *argument)
{
	struct socket_run *run = argument;

	run->failed = plain_measure(&run->request, &run->result, run->why, sizeof(run->why));
	return NULL;
}

static bool run_sockets(struct socket_run *runs, unsigned count)
{
	unsigned started = 0;
	bool well;

	while (started < count &&
	       !pthread_create(&runs[started].thread, NULL, run_socket, &runs[started]))
		started++;
	well = started == count;
	if (!well)
		bench_complain("can't start %u threads", count);
	for (unsigned i = 0; i < started; i++) {
		pthread_join(runs[i].thread, NULL);
		if (runs[i].failed && well)
			bench_complain("%s", runs[i].why);
		well = well && !runs[i].failed;
	}
	return well;
}

static void add_up(const struct socket_run *runs, struct path_step *step, struct path_facts *facts)
{
	double sent = 0, again = 0, busy = 0;

	for (unsigned i = 0; i < step->sockets; i++) {
		const struct plain_path *path = &runs[i].result.path;

		step->gbps += bench_gbps(runs[i].result.bytes, runs[i].result.seconds);
		step->round_trip_us += path->round_trip_us / step->sockets;
		step->least_round_trip_us += path->least_round_trip_us / step->sockets;
		sent += path->sent;
		again += path->again;
		busy += path->busy;
		step->window_limited += path->window_limited;
		step->buffer_limited += path->buffer_limited;
		facts->mtu = path->mtu;
		facts->same_host = path->same_host;
	}
	step->loss = sent > 0 ? again / sent : NAN;
	step->window_limited = busy > 0 ? step->window_limited / busy : NAN;
	step->buffer_limited = busy > 0 ? step->buffer_limited / busy : NAN;
}

/* CPU times are those of warm-up and window: the same traffic. */
static bool measure_step(struct diagnosis *diagnosis, struct path_step *step)
{
	const struct client_options *options = diagnosis->options;
	struct socket_run *runs = calloc(step->sockets, sizeof(*runs));
	struct bench_usage ours = bench_usage_now();
	struct host_time host = host_time_now(), host_after;
	uint64_t begin = bench_now();
	double before, after, seconds;
	bool well = runs && server_usage(diagnosis, &before);

	for (unsigned i = 0; well && i < step->sockets; i++)
		runs[i].request =
			request_of(diagnosis, PLAIN_SINK, options->warmup, options->seconds);
	well = well && run_sockets(runs, step->sockets);
	seconds = (double)(bench_now() - begin) / NS_PER_S;
	ours = bench_usage_since(&ours);
	host_after = host_time_now();
	well = well && server_usage(diagnosis, &after);
	if (well) {
		add_up(runs, step, &diagnosis->facts);
		step->client_cores = (ours.user_s + ours.system_s) / seconds;
		step->server_cores = (after - before) / seconds;
		step->host_busy = (host_after.busy - host.busy) / (host_after.all - host.all);
	}
	free(runs);
	return well;
}

/* ---- The transport ---- */

static bool measure_transport(struct diagnosis *diagnosis)
{
	const struct client_options *options = diagnosis->options;
	struct command command = {
		.kind = COMMAND_PREPARE,
		.test = TEST_THROUGHPUT,
		.size = options->sizes[0],
		.concurrency = client_concurrency(options, TEST_THROUGHPUT, options->sizes[0])};
	struct path_facts *facts = &diagnosis->facts;
	const struct moved *sent = &diagnosis->result->sent;

	if (!execute(diagnosis, command))
		return false;
	command.kind = COMMAND_RUN;
	command.begin = bench_now() + (uint64_t)(options->warmup * NS_PER_S);
	command.end = command.begin + (uint64_t)(options->seconds * NS_PER_S);
	if (!execute(diagnosis, command))
		return false;
	facts->transport_gbps = sent->seconds > 0 ? bench_gbps(sent->bytes, sent->seconds) : NAN;
	if (diagnosis->result->statistics && diagnosis->result->streams)
		facts->transport_streams = (double)diagnosis->result->streams;
	command.kind = COMMAND_FINISH;
	return execute(diagnosis, command);
}

/* ---- The report ---- */

static void print_steps(const struct path_facts *facts, FILE *file)
{
	static const char *const heads[] = {"sockets",      "Gb/s",         "round trip us",
					    "sent again",   "window full",  "buffer full",
					    "client cores", "server cores", "host busy"};
	struct bench_table table;

	bench_table_init(&table, ARRAY_LENGTH(heads));
	bench_table_row(&table);
	for (size_t i = 0; i < ARRAY_LENGTH(heads); i++)
		bench_table_cell(&table, i, "%s", heads[i]);
	for (size_t i = 0; i < facts->count; i++) {
		const struct path_step *step = &facts->steps[i];

		bench_table_row(&table);
		bench_table_cell(&table, 0, "%u", step->sockets);
		bench_table_cell(&table, 1, "%.3f", step->gbps);
		bench_table_cell(&table, 2, "%.0f", step->round_trip_us);
		bench_table_cell(&table, 3, "%.3f %%", step->loss * 100);
		bench_table_cell(&table, 4, "%.0f %%", step->window_limited * 100);
		bench_table_cell(&table, 5, "%.0f %%", step->buffer_limited * 100);
		bench_table_cell(&table, 6, "%.2f", step->client_cores);
		bench_table_cell(&table, 7, "%.2f", step->server_cores);
		bench_table_cell(&table, 8, "%.0f %%", step->host_busy * 100);
	}
	bench_table_print(&table, file);
	bench_table_free(&table);
}

static void print(const struct diagnosis *diagnosis, const struct path_verdict *verdict, FILE *file)
{
	const struct path_facts *facts = &diagnosis->facts;
	char name[BENCH_NAME_TEXT];

	fprintf(file, "plain TCP sockets (%s), round trip %.0f us (p99 %.0f us), path MTU %.0f\n",
		diagnosis->options->congestion, facts->ping_us[0], facts->ping_us[1], facts->mtu);
	print_steps(facts, file);
	fprintf(file, "%s: %.3f Gb/s", bench_spec_name(name, diagnosis->spec),
		facts->transport_gbps);
	if (!isnan(facts->transport_streams))
		fprintf(file, " with %.0f stream%s", facts->transport_streams,
			facts->transport_streams == 1 ? "" : "s");
	fputs("\n\n", file);
	for (size_t i = 0; i < ARRAY_LENGTH(verdict->words); i++)
		if (verdict->words[i][0])
			fprintf(file, "%s\n", verdict->words[i]);
	fflush(file);
}

static void add_steps(cJSON *json, const struct path_facts *facts)
{
	cJSON *steps = cJSON_AddArrayToObject(json, "steps");

	for (size_t i = 0; i < facts->count; i++) {
		const struct path_step *step = &facts->steps[i];
		cJSON *object = cJSON_CreateObject();

		bench_json_number(object, "sockets", step->sockets);
		bench_json_number(object, "gbps", step->gbps);
		bench_json_number(object, "loss", step->loss);
		bench_json_number(object, "round_trip_us", step->round_trip_us);
		bench_json_number(object, "least_round_trip_us", step->least_round_trip_us);
		bench_json_number(object, "window_limited", step->window_limited);
		bench_json_number(object, "buffer_limited", step->buffer_limited);
		bench_json_number(object, "client_cores", step->client_cores);
		bench_json_number(object, "server_cores", step->server_cores);
		bench_json_number(object, "host_busy", step->host_busy);
		cJSON_AddItemToArray(steps, object);
	}
}

static void add_verdict(cJSON *json, const struct path_facts *facts,
			const struct path_verdict *verdict)
{
	cJSON *object = cJSON_AddObjectToObject(json, "diagnosis"), *words;

	cJSON_AddStringToObject(object, "one_socket", path_limit_names[verdict->one]);
	cJSON_AddStringToObject(object, "all", path_limit_names[verdict->all]);
	bench_json_number(object, "sockets", facts->steps[verdict->best].sockets);
	cJSON_AddStringToObject(object, "transport", verdict->spec);
	words = cJSON_AddArrayToObject(object, "words");
	for (size_t i = 0; i < ARRAY_LENGTH(verdict->words); i++)
		if (verdict->words[i][0])
			cJSON_AddItemToArray(words, cJSON_CreateString(verdict->words[i]));
}

static bool write_json(const struct diagnosis *diagnosis, const struct path_verdict *verdict)
{
	const struct client_options *options = diagnosis->options;
	const struct path_facts *facts = &diagnosis->facts;
	cJSON *json = cJSON_CreateObject(), *object;
	int error;

	cJSON_AddStringToObject(json, "tool", "haul-bench-client");
	add_verdict(json, facts, verdict);
	object = cJSON_AddObjectToObject(json, "ping_us");
	bench_json_number(object, "p50", facts->ping_us[0]);
	bench_json_number(object, "p99", facts->ping_us[1]);
	bench_json_number(json, "mtu", facts->mtu);
	cJSON_AddBoolToObject(json, "same_host", facts->same_host);
	bench_json_number(json, "cpus", facts->cpus);
	add_steps(json, facts);
	object = cJSON_AddObjectToObject(json, "measured");
	cJSON_AddStringToObject(object, "transport", diagnosis->spec);
	bench_json_number(object, "gbps", facts->transport_gbps);
	bench_json_number(object, "streams", facts->transport_streams);
	object = cJSON_AddObjectToObject(json, "options");
	cJSON_AddStringToObject(object, "connect", options->connect);
	bench_json_number(object, "seconds", options->seconds);
	cJSON_AddStringToObject(object, "congestion", options->congestion);
	error = bench_json_write(options->json, json);
	cJSON_Delete(json);
	if (error)
		bench_complain("--json=%s: %s", options->json, strerror(-error));
	return !error;
}

/* ---- All of it ---- */

static double cpus_allowed(void)
{
	cpu_set_t set;

	return sched_getaffinity(0, sizeof(set), &set) ? 1 : CPU_COUNT(&set);
}

static bool open_server(struct diagnosis *diagnosis)
{
	if (!execute(diagnosis, (struct command){.kind = COMMAND_OPEN}))
		return false;
	diagnosis->port = diagnosis->result->ceiling_port;
	snprintf(diagnosis->spec, sizeof(diagnosis->spec), "%s", diagnosis->result->spec);
	if (ceiling_port(diagnosis->options, diagnosis->port))
		return true;
	bench_complain("--diagnose: the server has no plain TCP side (--no-ceiling, or "
		       "--listen is not an address of its kernel's)");
	return false;
}

static bool measure_path(struct diagnosis *diagnosis)
{
	const struct client_options *options = diagnosis->options;
	struct path_facts *facts = &diagnosis->facts;

	for (size_t i = 0; i < options->socket_count; i++) {
		facts->steps[i].sockets = (unsigned)options->sockets[i];
		if (!measure_step(diagnosis, &facts->steps[i]))
			return false;
		facts->count++;
	}
	return true;
}

bool diagnose(const struct client_options *options)
{
	struct diagnosis *diagnosis = calloc(1, sizeof(*diagnosis));
	struct result *result = calloc(1, sizeof(*result));
	struct path_verdict verdict;
	bool well = false;

	if (!diagnosis || !result) {
		bench_complain("no memory");
		goto out;
	}
	diagnosis->options = options;
	diagnosis->result = result;
	diagnosis->facts.cpus = cpus_allowed();
	diagnosis->facts.transport_gbps = diagnosis->facts.transport_streams = NAN;
	diagnosis->worker = worker_new(options, 0, NULL);
	if (!diagnosis->worker)
		bench_complain("no memory");
	well = diagnosis->worker && open_server(diagnosis) && measure_pings(diagnosis) &&
	       measure_path(diagnosis) && measure_transport(diagnosis);
	if (!well)
		goto out;
	path_judge(&diagnosis->facts, &verdict);
	print(diagnosis, &verdict,
	      options->json && strcmp(options->json, "-") == 0 ? stderr : stdout);
	if (options->json)
		well = write_json(diagnosis, &verdict);
out:
	if (diagnosis)
		worker_free(diagnosis->worker);
	free(diagnosis);
	free(result);
	return well;
}
