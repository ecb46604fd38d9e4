/* SPDX-License-Identifier: Apache-2.0 */
/*
 * tensor_transfer_throughput: workers assign their variables to parameter servers' again and again.
 * See tensor_transfer.h.
 *
 * --json of a worker writes one object:
 *
 *   {"tool": "tensor_transfer_throughput", "job": "worker", "task", "workers", "servers",
 *   "transport": SPEC with every option, "assign", "variable_bytes", "iterations": measured,
 *   "seconds", "transfer_mb_per_s": with all steps, "transfer_only_mb_per_s": without the steps
 *   beside the transfer, "goodput_gbps": of the first, "transfer_s": until the last tensor was in
 *   place, "assign_s": from there until all servers had answered, "server_assign_s": what the
 *   servers say that they spent, the slowest one of each iteration, "prepare_s": memory and
 *   connections, once, before it measures, "iteration_ms": {"p50", "p99", "max"}, "cpu_s_per_gb":
 *   of this worker, "mismatches": elements that were wrong at the end}
 *
 * and of a parameter server:
 *
 *   {"tool", "job": "ps", "task", "workers", "finished": workers, "transport", "assign",
 *   "variable_bytes", "tensors": with the first ones, "assign_s", "cpu_s_per_gb", "mismatches"}
 */
#include "tensor_transfer.h"

#include <signal.h>
#include <stdlib.h>
#include <string.h>

#include "bench_options.h"

static const char *const job_names[] = {"ps", "worker", NULL};
const char *const assign_names[] = {"place", "copy", "add", NULL};

#define MB 1000000
#define MB_MOST 1000000000

static struct {
	char *job, *ps_hosts, *worker_hosts, *task, *data_mb, *iters, *assign, *timeout, *wait;
	char *transport, *json, *trace;
	int verbose;
} given = {
	.ps_hosts = "127.0.0.1:7414",
	.worker_hosts = "127.0.0.1:7415",
	.task = "0",
	.data_mb = "128",
	.iters = "20",
	.assign = "place",
	.timeout = "30",
	.wait = "0",
};

#define SHOWN (POPT_ARG_STRING | POPT_ARGFLAG_SHOW_DEFAULT)

static struct poptOption option_table[] = {
	{"job", 0, POPT_ARG_STRING, &given.job, 0, "ps or worker (default: none, must be given)",
	 "NAME"},
	{"ps-hosts", 0, SHOWN, &given.ps_hosts, 0,
	 "where the parameter servers listen, the same list for all processes; a server's own port "
	 "0 takes a free one, which it prints",
	 "HOST:PORT,..."},
	{"worker-hosts", 0, SHOWN, &given.worker_hosts, 0,
	 "the workers; only their number counts, they do not listen", "HOST:PORT,..."},
	{"task", 0, SHOWN, &given.task, 0, "which one of its list this process is, from 0", "N"},
	{"data-mb", 0, SHOWN, &given.data_mb, 0,
	 "size of a variable, in 10^6 bytes, the same for all processes", "N"},
	{"iters", 0, SHOWN, &given.iters, 0,
	 "measured iterations, after one that is not, the same for all processes", "N"},
	{"assign", 0, SHOWN, &given.assign, 0,
	 "place: the tensor arrives in the variable; copy: in a buffer, and is copied into it; "
	 "add: "
	 "and is added to it",
	 "NAME"},
	{"timeout", 0, SHOWN, &given.timeout, 0,
	 "of a worker: give up when a server can't be reached, or a tensor does not arrive, for so "
	 "long; of a server: say which workers are missing whenever it has waited for so long",
	 "SECONDS"},
	{"wait", 0, SHOWN, &given.wait, 0,
	 "of a server: give up when workers are missing, and none of the others is at work, for so "
	 "long; 0: never",
	 "SECONDS"},
	{"transport", 't', POPT_ARG_STRING, &given.transport, 0,
	 "transport spec, \"tcp,streams=8\" (default: $HAUL_TRANSPORT, else auto)", "SPEC"},
	{"json", 'j', POPT_ARG_STRING, &given.json, 0,
	 "write the numbers; \"-\" is the standard output (default: none)", "FILE"},
	{"trace", 0, POPT_ARG_STRING, &given.trace, 0,
	 "write where the time of each tensor goes, for haul-trace and Perfetto (default: none)",
	 "FILE"},
	{"verbose", 'v', POPT_ARG_NONE, &given.verbose, 0,
	 "the library's messages too (default: warnings only)", NULL},
	POPT_AUTOHELP POPT_TABLEEND};

/* ---- Options ---- */

/* A port that is taken when the process listens. */
static bool port_is_open(const char *host)
{
	size_t length = strlen(host);

	return length > 2 && strcmp(host + length - 2, ":0") == 0;
}

static void check_twice(const char *option, const struct host_list *list, const char *host)
{
	for (unsigned i = 0; i < list->count && !port_is_open(host); i++)
		if (strcmp(list->hosts[i], host) == 0)
			bench_usage_error("--%s: %s is there twice", option, host);
}

/* Whoever has to connect to them needs their ports. */
static void parse_hosts(const char *option, const char *text, bool connects, struct host_list *list)
{
	char *rest, *host, name[256];
	uint16_t port;

	list->text = rest = strdup(text);
	while (rest && (host = strsep(&rest, ","))) {
		if (list->count == TRANSFER_HOSTS_MAX)
			bench_usage_error("--%s: more than %d hosts", option, TRANSFER_HOSTS_MAX);
		if (bench_split_address(host, name, sizeof(name), &port))
			bench_usage_error("--%s=%s: '%s' is no HOST:PORT", option, text, host);
		if (connects && !port)
			bench_usage_error("--%s=%s: '%s' has no port from 1", option, text, host);
		check_twice(option, list, host);
		list->hosts[list->count++] = host;
	}
}

static void parse(int argc, const char **argv, struct transfer_options *options)
{
	const struct host_list *own;
	uint64_t task;

	options_parse(argc, argv, option_table, NULL);
	if (!given.job)
		bench_usage_error("--job=ps or --job=worker is missing");
	options->server = option_choice("job", given.job, job_names) == 0;
	parse_hosts("ps-hosts", given.ps_hosts, !options->server, &options->servers);
	parse_hosts("worker-hosts", given.worker_hosts, false, &options->workers);
	for (unsigned i = 0; i < options->servers.count; i++)
		check_twice("ps-hosts and --worker-hosts", &options->workers,
			    options->servers.hosts[i]);
	own = options->server ? &options->servers : &options->workers;
	if (bench_parse_number(given.task, 0, own->count - 1, &task))
		bench_usage_error(
			"--task=%s: expected a number from 0 to %u, as --%s has %u host%s",
			given.task, own->count - 1, options->server ? "ps-hosts" : "worker-hosts",
			own->count, own->count == 1 ? "" : "s");
	options->task = (unsigned)task;
	options->bytes = option_number("data-mb", given.data_mb, 1, MB_MOST) * MB;
	options->iterations = option_number("iters", given.iters, 1, UINT32_MAX);
	options->assign = (enum assign)option_choice("assign", given.assign, assign_names);
	options->timeout_ms = (int)(option_seconds("timeout", given.timeout, 0.1, 86400) * 1e3);
	options->wait_ms = (int)(option_seconds("wait", given.wait, 0, 86400) * 1e3);
	options->transport = given.transport;
	options->json = given.json;
	options->verbose = given.verbose;
	option_check_json(options->json);
}

/* Variables are memory that is written to: what does not fit is found out before. */
static bool check_memory(const struct transfer_options *options)
{
	uint64_t available = bench_memory_available();
	uint64_t variables = options->server ? options->workers.count : 1, bytes;

	if (options->server && options->assign != ASSIGN_PLACE)
		variables *= 2;
	if (!__builtin_mul_overflow(options->bytes, variables, &bytes) && bytes <= available)
		return true;
	bench_complain("--data-mb=%s: %llu times that is needed here, and %llu MB are available",
		       given.data_mb, (unsigned long long)variables,
		       (unsigned long long)(available / MB));
	return false;
}

/* ---- What both jobs share ---- */

static float element(uint64_t number, unsigned worker)
{
	return (float)((number * 7 + worker) % 251);
}

void transfer_fill(float *variable, uint64_t elements, unsigned worker)
{
	for (uint64_t i = 0; i < elements; i++)
		variable[i] = element(i, worker);
}

uint64_t transfer_mismatches(const float *variable, uint64_t elements, unsigned worker,
			     uint64_t times)
{
	uint64_t mismatches = 0;

	for (uint64_t i = 0; i < elements; i++)
		mismatches += variable[i] != element(i, worker) * (float)times;
	return mismatches;
}

bool transfer_write_json(const struct transfer_options *options, cJSON *json)
{
	int error = bench_json_write(options->json, json);

	cJSON_Delete(json);
	if (error)
		bench_complain("--json=%s: %s", options->json, strerror(-error));
	return error == 0;
}

static void log_message(void *user, enum haul_log_level level, const char *message)
{
	static const char *const names[] = {"error", "warning", "info", "debug"};

	(void)user;
	bench_complain("%s: %s", names[level & 3], message);
}

int main(int argc, const char **argv)
{
	struct transfer_options options = {0};
	haul_context *context = NULL;
	char *spec;
	int error, status = EXIT_FAILED;

	bench_hold_standard_streams();
	parse(argc, argv, &options);
	signal(SIGPIPE, SIG_IGN);
	haul_log_set(log_message, NULL, options.verbose ? HAUL_LOG_INFO : HAUL_LOG_WARNING);
	spec = bench_spec_traced(options.transport, given.trace);
	if (!check_memory(&options))
		goto out;
	error = haul_open(spec, &context);
	if (error)
		bench_complain("%s%s", options.transport ? "--transport: " : "",
			       failure_text(error, haul_detail(NULL)));
	else
		status = (options.server ? transfer_serve : transfer_work)(&options, context);
	haul_close(context);
out:
	free(spec);
	free(options.servers.text);
	free(options.workers.text);
	return bench_output_arrived() ? status : EXIT_FAILED;
}
