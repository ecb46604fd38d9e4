/* SPDX-License-Identifier: Apache-2.0 */
/* grpc_raw: what gRPC alone reaches between two hosts. See grpc_raw.h. */
#include "grpc_raw.h"

#include <arpa/inet.h>
#include <grpc/byte_buffer.h>
#include <grpc/slice.h>
#include <grpc/support/log.h>
#include <malloc.h>
#include <math.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>

#include "bench_options.h"

static const char *const job_names[] = {"server", "client", NULL};
static const char *const allocator_names[] = {"keep", "default", NULL};

static struct {
	char *job_type, *target_ip, *port, *server_threads, *completion_queues, *channels;
	char *concurrency, *message_size, *response_size, *total_message, *seconds, *warmup;
	char *timeout, *allocator, *memory, *json;
} given = {
	.port = RAW_DEFAULT_PORT,
	.server_threads = "1",
	.completion_queues = "1",
	.channels = "1",
	.concurrency = "4",
	.message_size = "100MiB",
	.total_message = "0",
	.seconds = "5",
	.warmup = "1",
	.timeout = "30",
	.allocator = "keep",
	.memory = "512MiB",
};

#define SHOWN (POPT_ARG_STRING | POPT_ARGFLAG_SHOW_DEFAULT)

static struct poptOption server_table[] = {
	{"server-threads", 0, SHOWN, &given.server_threads, 0,
	 "threads that wait on the completion queues, at least one for each", "N"},
	{"memory", 'm', SHOWN, &given.memory, 0,
	 "with --allocator=keep: memory that is touched before it listens, best as much as all "
	 "messages in flight take",
	 "SIZE"},
	{"response-size", 0, POPT_ARG_STRING, &given.response_size, 0,
	 "of the server's answers (default: 0); a client that is given another one than the "
	 "server says so and ends",
	 "SIZE"},
	POPT_TABLEEND};

static struct poptOption client_table[] = {
	{"channels", 0, SHOWN, &given.channels, 0, "to the server, each with a socket of its own",
	 "N"},
	{"concurrency", 'c', SHOWN, &given.concurrency, 0, "calls in flight on each channel", "N"},
	{"message-size", 's', SHOWN, &given.message_size, 0, "of each call's request", "SIZE"},
	{"total-message", 0, SHOWN, &given.total_message, 0,
	 "end after so many measured messages; 0 is without a limit", "N"},
	{"seconds", 'S', SHOWN, &given.seconds, 0,
	 "how long it measures; without end if only --total-message is given", "SECONDS"},
	{"warmup", 0, SHOWN, &given.warmup, 0, "before that, not measured", "SECONDS"},
	{"timeout", 0, SHOWN, &given.timeout, 0, "give up when no call ends for so long",
	 "SECONDS"},
	{"json", 'j', POPT_ARG_STRING, &given.json, 0,
	 "write the numbers; \"-\" is the standard output (default: none)", "FILE"},
	POPT_TABLEEND};

static struct poptOption option_table[] = {
	{"job-type", 0, POPT_ARG_STRING, &given.job_type, 0,
	 "server or client (default: none, must be given)", "NAME"},
	{"target-ip", 0, POPT_ARG_STRING, &given.target_ip, 0,
	 "client: where the server is (default: 127.0.0.1); server: the address that it listens "
	 "on (default: \"*\", every address)",
	 "HOST[:PORT]"},
	{"port", 'p', SHOWN, &given.port, 0,
	 "of the server, where --target-ip has none; the server's 0 takes a free one", "PORT"},
	{"completion-queues", 0, SHOWN, &given.completion_queues, 0,
	 "of each side; the client has a thread for each", "N"},
	{"allocator", 0, SHOWN, &given.allocator, 0,
	 "keep: malloc() keeps what gRPC frees, which is what makes it fast; default: as glibc "
	 "does by itself",
	 "NAME"},
	{NULL, 0, POPT_ARG_INCLUDE_TABLE, server_table, 0, "The server:", NULL},
	{NULL, 0, POPT_ARG_INCLUDE_TABLE, client_table, 0, "The client:", NULL},
	POPT_AUTOHELP POPT_TABLEEND};

/* ---- Options ---- */

static void parse_target(struct raw_options *options)
{
	const char *target = given.target_ip   ? given.target_ip
			     : options->server ? "*"
					       : "127.0.0.1";
	struct in6_addr address;

	options->port = (uint16_t)option_number("port", given.port, options->server ? 0 : 1, 65535);
	if (bench_split_address(target, options->host, sizeof(options->host), &options->port)) {
		bool plain = !strpbrk(target, ":[]") || inet_pton(AF_INET6, target, &address) == 1;

		if (!*target || strlen(target) >= sizeof(options->host) || !plain)
			bench_usage_error("--target-ip=%s: expected HOST, HOST:PORT or "
					  "[IPV6]:PORT",
					  target);
		snprintf(options->host, sizeof(options->host), "%s", target);
	}
	if (!options->server && (!options->port || strcmp(options->host, "*") == 0))
		bench_usage_error("--target-ip=%s: the client needs a host and a port from 1",
				  target);
}

static void parse(int argc, const char **argv, struct raw_options *options)
{
	const char *seconds = given.seconds;

	options_parse(argc, argv, option_table, NULL);
	if (!given.job_type)
		bench_usage_error("--job-type=server or --job-type=client is missing");
	options->server = option_choice("job-type", given.job_type, job_names) == 0;
	parse_target(options);
	options->completion_queues = (unsigned)option_number(
		"completion-queues", given.completion_queues, 1, RAW_QUEUES_MAX);
	options->server_threads =
		(unsigned)option_number("server-threads", given.server_threads, 1, RAW_QUEUES_MAX);
	options->channels =
		(unsigned)option_number("channels", given.channels, 1, RAW_CHANNELS_MAX);
	options->concurrency =
		(unsigned)option_number("concurrency", given.concurrency, 1, RAW_CONCURRENCY_MAX);
	options->message_size = option_size("message-size", given.message_size, 0, RAW_MESSAGE_MAX);
	options->response_given = given.response_size;
	if (given.response_size)
		options->response_size =
			option_size("response-size", given.response_size, 0, RAW_MESSAGE_MAX);
	options->total = option_number("total-message", given.total_message, 0, UINT64_C(1) << 53);
	options->seconds = option_seconds("seconds", given.seconds, 0.05, 86400);
	options->warmup = option_seconds("warmup", given.warmup, 0, 3600);
	options->patience = option_seconds("timeout", given.timeout, 1, 86400);
	options->keep_memory = option_choice("allocator", given.allocator, allocator_names) == 0;
	options->memory = option_size("memory", given.memory, 0, bench_memory_available());
	options->json = given.json;
	if (options->total && given.seconds == seconds)
		options->seconds = INFINITY;
	if (options->server && options->server_threads < options->completion_queues)
		bench_usage_error("--server-threads=%u: %u completion queues need as many threads",
				  options->server_threads, options->completion_queues);
	if (options->server && options->json)
		bench_usage_error("--json goes with --job-type=client, which measures both sides");
	option_check_json(options->json);
}

/* ---- What both sides share ---- */

char *raw_address(const char *host, uint16_t port)
{
	const char *format = strchr(host, ':') ? "[%s]:%u" : "%s:%u";
	char *address = NULL;

	if (asprintf(&address, format, strcmp(host, "*") == 0 ? "[::]" : host, port) < 0)
		return NULL;
	return address;
}

grpc_byte_buffer *raw_message(const void *bytes, size_t length)
{
	grpc_slice slice =
		length ? grpc_slice_from_static_buffer(bytes, length) : grpc_empty_slice();

	return grpc_raw_byte_buffer_create(&slice, 1);
}

/*
 * gRPC receives into slices of 8 to 64 KiB of malloc()'s. Left to itself, glibc gives them back to
 * the kernel as soon as a message is freed, and takes the page faults again for the next one. Here
 * it keeps everything, in one arena, of which `memory` bytes have been touched before gRPC begins.
 */
static void keep_memory(uint64_t memory)
{
	const size_t piece = 1 << 20;
	void *pieces = NULL, *next;

	mallopt(M_TRIM_THRESHOLD, INT32_MAX);
	mallopt(M_MMAP_THRESHOLD, INT32_MAX);
	mallopt(M_TOP_PAD, 64 << 20);
	mallopt(M_ARENA_MAX, 1);
	for (uint64_t touched = 0; touched < memory && (next = malloc(piece)); touched += piece) {
		memset(next, 1, piece);
		*(void **)next = pieces;
		pieces = next;
	}
	for (; pieces; pieces = next) {
		next = *(void **)pieces;
		free(pieces);
	}
}

const char *raw_allocator_name(bool keep)
{
	return allocator_names[keep ? 0 : 1];
}

const char *raw_allocator_text(bool keep)
{
	return keep ? "freed memory is kept (mallopt)" : "glibc's default allocator";
}

static void log_line(gpr_log_func_args *line)
{
	bench_complain("gRPC: %s", line->message);
}

/* The main thread alone takes signals: the threads that gRPC starts inherit this. */
static void block_signals(void)
{
	sigset_t set;

	sigemptyset(&set);
	sigaddset(&set, SIGINT);
	sigaddset(&set, SIGTERM);
	pthread_sigmask(SIG_BLOCK, &set, NULL);
	signal(SIGPIPE, SIG_IGN);
}

int main(int argc, const char **argv)
{
	struct raw_options options = {0};
	int status;

	bench_hold_standard_streams();
	parse(argc, argv, &options);
	if (options.keep_memory)
		keep_memory(options.server ? options.memory : 0);
	if (options.server)
		block_signals();
	gpr_set_log_function(log_line);
	grpc_init();
	status = options.server ? raw_serve(&options) : raw_measure(&options);
	grpc_shutdown_blocking();
	return status;
}
