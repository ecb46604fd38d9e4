/* SPDX-License-Identifier: Apache-2.0 */
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "bench_options.h"
#include "client.h"
#include "plain_tcp.h"

const char *const test_names[] = {"throughput", "latency", "rate", "bidirectional", NULL};

static const char *const waiting_names[] = {"block", "poll", NULL};
static const char *const live_names[] = {"auto", "yes", "no", NULL};

/* What was given, as text: an option that is NULL or "auto" was left to the program. */
static struct {
	char *connect, *transport, *tests, *direction, *size, *rate_size, *latency_size;
	char *concurrency, *rate_concurrency, *latency_concurrency, *endpoints, *clients;
	char *rate, *count, *seconds, *warmup, *rounds, *waiting, *patience, *memory, *seed;
	char *ceiling_address, *congestion, *live, *json, *trace;
	char *sockets;
	int ceiling, verify, verbose, diagnose;
} given = {
	.tests = "throughput",
	.direction = "send",
	.size = "100MiB",
	.rate_size = "64B",
	.latency_size = "64B",
	.concurrency = "auto",
	.rate_concurrency = "256",
	.latency_concurrency = "1",
	.endpoints = "1",
	.clients = "1",
	.rate = "0",
	.count = "0",
	.seconds = "5",
	.warmup = "1",
	.rounds = "3",
	.waiting = "block",
	.patience = "30",
	.memory = "2GiB",
	.seed = "1",
	.ceiling_address = "auto",
	.congestion = "cubic",
	.live = "auto",
	.sockets = "1,2,4,8,16",
};

/* Of the connections that the plain TCP server takes, some are left for others. */
#define DIAGNOSE_SOCKETS_MAX 128

#define SHOWN (POPT_ARG_STRING | POPT_ARGFLAG_SHOW_DEFAULT)

/* --test may be given again and again: each one is handed out with this value. */
enum { OPTION_TEST = 1 };

static char *test_given;

static struct poptOption what_table[] = {
	{"test", 'T', POPT_ARG_STRING, &test_given, OPTION_TEST,
	 "throughput, latency, rate or bidirectional, several with commas or by repeating the "
	 "option (default: \"throughput\")",
	 "LIST"},
	{"direction", 'd', SHOWN, &given.direction, 0,
	 "throughput and rate: send to the server, recv from it, or both", "NAME"},
	{"size", 's', SHOWN, &given.size, 0,
	 "throughput and bidirectional: tensor sizes, several with commas", "LIST"},
	{"concurrency", 'c', SHOWN, &given.concurrency, 0,
	 "tensors in flight on each endpoint, with a buffer each; auto is 64 MiB worth of tensors, "
	 "from 4 (so 4 for 100MiB) to 256, less when --memory is too small",
	 "N"},
	{"endpoints", 'e', SHOWN, &given.endpoints, 0, "endpoints of each client", "N"},
	{"clients", 'n', SHOWN, &given.clients, 0, "clients, a process each if more than one", "N"},
	{"latency-size", 0, SHOWN, &given.latency_size, 0, "latency: size of ping and pong",
	 "SIZE"},
	{"latency-concurrency", 0, SHOWN, &given.latency_concurrency, 0,
	 "latency: pings in flight on each endpoint", "N"},
	{"rate-size", 0, SHOWN, &given.rate_size, 0, "rate: tensor sizes, several with commas",
	 "LIST"},
	{"rate-concurrency", 0, SHOWN, &given.rate_concurrency, 0,
	 "rate: tensors in flight on each endpoint, several with commas", "LIST"},
	{"rate", 0, SHOWN, &given.rate, 0,
	 "rate and latency: start so many tensors or pings a second, of all clients together, and "
	 "count their times from when they were due; 0 starts one when another one has ended",
	 "N"},
	{"waiting", 'w', SHOWN, &given.waiting, 0,
	 "block: sleep until something happens; poll: look again and again, on both sides", "NAME"},
	{"verify", 'V', POPT_ARG_NONE, &given.verify, 0,
	 "hash every tensor; any mismatch is counted and fails the run (default: off)", NULL},
	{"seed", 0, SHOWN, &given.seed, 0, "of the tensors' contents", "N"},
	POPT_TABLEEND};

static struct poptOption how_long_table[] = {
	{"rounds", 'r', SHOWN, &given.rounds, 0, "rounds of each test", "N"},
	{"seconds", 'S', SHOWN, &given.seconds, 0,
	 "how long a round measures; without end if only --count is given", "SECONDS"},
	{"warmup", 0, SHOWN, &given.warmup, 0, "before each round, not measured", "SECONDS"},
	{"count", 'C', SHOWN, &given.count, 0,
	 "end a round after so many tensors or pings of a client; 0 is without a limit", "N"},
	{"timeout", 0, SHOWN, &given.patience, 0,
	 "give up when nothing moves for so long, or when the server does not answer", "SECONDS"},
	{"memory", 'm', SHOWN, &given.memory, 0, "for the tensors of all clients together", "SIZE"},
	POPT_TABLEEND};

static struct poptOption ceiling_table[] = {
	{"ceiling", 'x', POPT_ARG_NONE, &given.ceiling, 0,
	 "measure one plain TCP socket to the same host too, round by round in turn (default: off)",
	 NULL},
	{"ceiling-congestion", 0, SHOWN, &given.congestion, 0,
	 "its congestion control algorithm, on both sides", "NAME"},
	{"ceiling-connect", 0, SHOWN, &given.ceiling_address, 0,
	 "where its server is: auto is the host of --connect and the port that the server tells; "
	 "port 0 is that one too",
	 "HOST:PORT"},
	POPT_TABLEEND};

static struct poptOption diagnose_table[] = {
	{"diagnose", 'D', POPT_ARG_NONE, &given.diagnose, 0,
	 "find out what limits the two hosts, with plain TCP sockets and the transport, instead of "
	 "the tests (default: off)",
	 NULL},
	{"sockets", 0, SHOWN, &given.sockets, 0, "how many of them at once, one after the other",
	 "LIST"},
	POPT_TABLEEND};

static struct poptOption output_table[] = {
	{"json", 'j', POPT_ARG_STRING, &given.json, 0,
	 "write the numbers; \"-\" is the standard output (default: none)", "FILE"},
	{"trace", 0, POPT_ARG_STRING, &given.trace, 0,
	 "write where the time of each tensor goes, for haul-trace and Perfetto; clients beyond "
	 "the "
	 "first take FILE.2, FILE.3, ... (default: none)",
	 "FILE"},
	{"live", 'L', SHOWN, &given.live, 0,
	 "a line each second: yes, no, or auto: when the standard output is a terminal", "NAME"},
	{"verbose", 'v', POPT_ARG_NONE, &given.verbose, 0,
	 "the library's messages too (default: warnings only)", NULL},
	POPT_TABLEEND};

static struct poptOption option_table[] = {
	{"connect", 'a', POPT_ARG_STRING, &given.connect, 0,
	 "where haul-bench-server listens (default: none, must be given)", "HOST:PORT"},
	{"transport", 't', POPT_ARG_STRING, &given.transport, 0,
	 "transport spec, \"tcp,streams=8\" (default: $HAUL_TRANSPORT, else auto)", "SPEC"},
	{NULL, 0, POPT_ARG_INCLUDE_TABLE, what_table, 0, "What is measured:", NULL},
	{NULL, 0, POPT_ARG_INCLUDE_TABLE, how_long_table, 0, "How long, and how much:", NULL},
	{NULL, 0, POPT_ARG_INCLUDE_TABLE, ceiling_table, 0, "Plain TCP beside it:", NULL},
	{NULL, 0, POPT_ARG_INCLUDE_TABLE, diagnose_table, 0, "What limits the path:", NULL},
	{NULL, 0, POPT_ARG_INCLUDE_TABLE, output_table, 0, "Output:", NULL},
	POPT_AUTOHELP POPT_TABLEEND};

static char *copy(const char *text)
{
	char *own = strdup(text);

	if (!own) {
		bench_complain("no memory");
		exit(EXIT_FAILED);
	}
	return own;
}

static void parse_sizes(struct client_options *options)
{
	options->size_count =
		option_sizes("size", given.size, 0, UINT64_C(1) << 46, options->sizes, SIZES_MAX);
	options->rate_size_count = option_sizes("rate-size", given.rate_size, 0, 1 << 20,
						options->rate_sizes, SIZES_MAX);
	options->rate_concurrency_count =
		option_numbers("rate-concurrency", given.rate_concurrency, 1,
			       PROTOCOL_CONCURRENCY_MAX, options->rate_concurrencies, SIZES_MAX);
}

static void parse_diagnosis(struct client_options *options)
{
	options->diagnose = given.diagnose;
	options->socket_count = option_numbers("sockets", given.sockets, 1, DIAGNOSE_SOCKETS_MAX,
					       options->sockets, SIZES_MAX);
	if (options->sockets[0] != 1)
		bench_usage_error("--sockets=%s: the first one is 1, which the others are held "
				  "against",
				  given.sockets);
	if (options->diagnose && (options->clients > 1 || options->endpoints > 1 ||
				  options->count || options->direction != DIRECTION_SEND))
		bench_usage_error("--diagnose takes one client with one endpoint, sends, and goes "
				  "by time: not with --clients, --endpoints, --count or "
				  "--direction. For the other direction run it on the other host");
}

static void parse_rate(struct client_options *options)
{
	options->rate = (double)option_number("rate", given.rate, 0, 100000000);
	if (options->rate > 0 && !options->tests[TEST_RATE] && !options->tests[TEST_LATENCY])
		bench_usage_error("--rate=%s goes with --test=rate or --test=latency", given.rate);
	if (options->rate > 0 && options->direction != DIRECTION_SEND)
		bench_usage_error("--rate=%s: only what this side sends has a set rate; "
				  "--direction=send goes with it",
				  given.rate);
	if (options->rate > 0 && given.ceiling)
		bench_usage_error("--rate=%s: plain TCP has no set rate; not with --ceiling",
				  given.rate);
}

static void parse_tests(struct client_options *options)
{
	char *list = copy(given.tests), *rest = list, *item;

	while ((item = strsep(&rest, ",")))
		options->tests[option_choice("test", item, test_names)] = true;
	free(list);
}

static void parse_live(struct client_options *options)
{
	static const bool answers[] = {false, true, false};
	int live = option_choice("live", given.live, live_names);

	options->live = live ? answers[live] : isatty(STDOUT_FILENO) == 1;
}

static void parse_ceiling(struct client_options *options)
{
	char host[sizeof(options->ceiling_host)];
	uint16_t port;

	options->ceiling = given.ceiling;
	options->congestion = given.congestion;
	if (!*given.congestion || strlen(given.congestion) >= PLAIN_CONGESTION_MAX)
		bench_usage_error("--ceiling-congestion=%s: expected a name of less than %d "
				  "letters, as cubic or bbr",
				  given.congestion, PLAIN_CONGESTION_MAX);
	if (bench_split_address(given.connect, host, sizeof(host), &port) || !port)
		bench_usage_error("--connect=%s: expected HOST:PORT or [IPV6]:PORT, the port from "
				  "1 to 65535",
				  given.connect);
	snprintf(options->ceiling_host, sizeof(options->ceiling_host), "%s", host);
	if (strcmp(given.ceiling_address, "auto") == 0)
		return;
	if (bench_split_address(given.ceiling_address, options->ceiling_host,
				sizeof(options->ceiling_host), &port))
		bench_usage_error("--ceiling-connect=%s: expected HOST:PORT or auto",
				  given.ceiling_address);
	options->ceiling_port = port;
}

/* ---- All of them ---- */

static void parse_amounts(struct client_options *options)
{
	options->concurrency = strcmp(given.concurrency, "auto") == 0
				       ? 0
				       : option_number("concurrency", given.concurrency, 1,
						       PROTOCOL_CONCURRENCY_MAX);
	options->latency_concurrency =
		option_number("latency-concurrency", given.latency_concurrency, 1, 1024);
	options->endpoints = option_number("endpoints", given.endpoints, 1, 1024);
	options->clients = option_number("clients", given.clients, 1, 1024);
	options->rounds = option_number("rounds", given.rounds, 1, 1000);
	options->count = option_number("count", given.count, 0, UINT64_C(1) << 53);
	options->seconds = option_seconds("seconds", given.seconds, 0.05, 86400);
	options->warmup = option_seconds("warmup", given.warmup, 0, 3600);
	options->patience = option_seconds("timeout", given.patience, 1, 86400);
	options->latency_size = option_size("latency-size", given.latency_size, 1, PLAIN_PING_MAX);
	options->memory = option_size("memory", given.memory, 1 << 20, UINT64_C(1) << 46);
	options->seed = option_number("seed", given.seed, 0, UINT32_MAX);
}

/* Only what was asked for explicitly can be too much. */
static void check_memory(const struct client_options *options)
{
	uint64_t flows =
		options->clients * options->endpoints *
		(options->tests[TEST_BIDIRECTIONAL] || options->direction == DIRECTION_BOTH ? 2
											    : 1);

	for (size_t i = 0; i < options->size_count; i++) {
		uint64_t concurrency = options->concurrency ? options->concurrency : 1, bytes;
		char each[BENCH_SIZE_TEXT];

		if (!__builtin_mul_overflow(options->sizes[i], flows * concurrency, &bytes) &&
		    bytes <= options->memory)
			continue;
		bench_usage_error("--memory=%s is too small for %llu tensor%s of %s in flight",
				  given.memory, (unsigned long long)(flows * concurrency),
				  flows * concurrency == 1 ? "" : "s",
				  bench_size_text(each, options->sizes[i]));
	}
}

static void check_options(struct client_options *options)
{
	if (!given.connect)
		bench_usage_error("--connect=HOST:PORT is missing");
	options->connect = given.connect;
	options->transport = given.transport;
	options->traced = bench_spec_traced(given.transport, given.trace);
	options->direction =
		(enum direction)option_choice("direction", given.direction, direction_names);
	options->poll = option_choice("waiting", given.waiting, waiting_names) == 1;
	options->verify = given.verify;
	options->verbose = given.verbose;
	options->json = given.json;
	parse_ceiling(options);
	parse_tests(options);
	parse_sizes(options);
	parse_amounts(options);
	parse_rate(options);
	parse_diagnosis(options);
	if (options->tests[TEST_THROUGHPUT] || options->tests[TEST_BIDIRECTIONAL])
		check_memory(options);
	parse_live(options);
	option_check_json(options->json);
}

/* OPTION_TEST, the only one. */
static void add_test(int value)
{
	static char *list;
	char *longer = NULL;

	(void)value;
	if (asprintf(&longer, "%s%s%s", list ? list : "", list ? "," : "", test_given) < 0) {
		bench_complain("no memory");
		exit(EXIT_FAILED);
	}
	free(list);
	free(test_given);
	test_given = NULL;
	given.tests = list = longer;
}

void client_options_parse(int argc, const char **argv, struct client_options *options)
{
	const char *time = given.seconds;

	options_parse(argc, argv, option_table, add_test);
	*options = (struct client_options){0};
	check_options(options);
	if (options->count && given.seconds == time)
		options->seconds = INFINITY;
}

/* ---- How many tensors in flight ---- */

#define WORTH (UINT64_C(64) << 20)

uint32_t client_concurrency(const struct client_options *options, enum test_kind kind,
			    uint64_t tensor)
{
	uint64_t flows =
		options->clients * options->endpoints *
		(kind == TEST_BIDIRECTIONAL || options->direction == DIRECTION_BOTH ? 2 : 1);
	uint64_t share = options->memory / flows;
	uint64_t concurrency;

	if (options->concurrency)
		return (uint32_t)options->concurrency;
	concurrency = tensor ? WORTH / tensor : 256;
	if (concurrency < 4)
		concurrency = 4;
	if (concurrency > 256)
		concurrency = 256;
	if (tensor && concurrency > share / tensor)
		concurrency = share / tensor;
	return concurrency ? (uint32_t)concurrency : 1;
}

bool client_is_paced(const struct client_options *options, enum test_kind kind)
{
	return options->rate > 0 && (kind == TEST_RATE || kind == TEST_LATENCY);
}
