/* SPDX-License-Identifier: Apache-2.0 */
/*
 * haul-bench-server: the other side of haul-bench-client. It does what clients ask for, any number
 * of them at once, in one thread; the plain TCP side has threads of its own.
 *
 * --json writes, at the end:
 *   {"tool": "haul-bench-server", "transport": SPEC, "transport_options": SPEC with every option,
 *    "address": "HOST:PORT", "ceiling_port": N|null, "clients": N, "rounds": N, "tensors": N,
 *    "bytes_sent": N|null, "bytes_received": N|null, "verified": N, "mismatches": N,
 *    "cpu_user_s", "cpu_system_s", "memory_peak_bytes"}
 */
#include <errno.h>
#include <fcntl.h>
#include <math.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <unistd.h>

#include "bench_options.h"
#include "server.h"

/* How long a signal may go unnoticed: it may arrive just before haul_poll() begins to wait. */
#define LOOK_AROUND_MS 250
#define BATCH 256

static volatile sig_atomic_t told_to_stop;

/* ---- Options ---- */

static struct {
	char *listen, *transport, *memory, *ceiling_host, *ceiling_port, *json, *ready_fd, *trace,
		*traced;
	char *address_file;
	int once, no_ceiling, verbose;
	bool ceiling_asked; /* on the command line, for a host or a port of its own */
	uint64_t memory_limit, ceiling_port_number, ready_fd_number;
} options = {
	.listen = "*:" BENCH_DEFAULT_PORT,
	.memory = "4GiB",
	.ceiling_port = "0",
};

#define SHOWN (POPT_ARG_STRING | POPT_ARGFLAG_SHOW_DEFAULT)

static struct poptOption option_table[] = {
	{"listen", 'l', SHOWN, &options.listen, 0,
	 "where to listen; \"*\" is every address, port 0 takes a free one", "HOST:PORT"},
	{"transport", 't', POPT_ARG_STRING, &options.transport, 0,
	 "transport spec, \"tcp,streams=8\" (default: $HAUL_TRANSPORT, else auto)", "SPEC"},
	{"memory", 'm', SHOWN, &options.memory, 0, "for the tensors of all clients together",
	 "SIZE"},
	{"ceiling-port", 0, SHOWN, &options.ceiling_port, 0,
	 "port of the plain TCP side; 0 takes a free one, clients are told", "PORT"},
	{"ceiling-host", 0, POPT_ARG_STRING, &options.ceiling_host, 0,
	 "address of the plain TCP side (default: the host of --listen)", "HOST"},
	{"no-ceiling", 0, POPT_ARG_NONE, &options.no_ceiling, 0,
	 "no plain TCP side (default: there is one)", NULL},
	{"once", '1', POPT_ARG_NONE, &options.once, 0,
	 "exit after the last client left (default: run until a signal)", NULL},
	{"address-file", 0, POPT_ARG_STRING, &options.address_file, 0,
	 "write the address into a file once it listens (default: none)", "FILE"},
	{"ready-fd", 0, POPT_ARG_STRING, &options.ready_fd, 0,
	 "write the address to this descriptor once it listens, and close it (default: none)",
	 "FD"},
	{"json", 'j', POPT_ARG_STRING, &options.json, 0,
	 "write a summary at the end, \"-\" is the standard output (default: none)", "FILE"},
	{"trace", 0, POPT_ARG_STRING, &options.trace, 0,
	 "write where the time of each tensor goes, for haul-trace and Perfetto (default: none)",
	 "FILE"},
	{"verbose", 'v', POPT_ARG_NONE, &options.verbose, 0,
	 "tell about clients and the library's messages (default: warnings only)", NULL},
	POPT_AUTOHELP POPT_TABLEEND};

static void check_options(void)
{
	char host[256];
	uint16_t port;

	if (bench_split_address(options.listen, host, sizeof(host), &port))
		bench_usage_error("--listen=%s: expected HOST:PORT, [IPV6]:PORT or *:PORT",
				  options.listen);
	if (bench_parse_size(options.memory, &options.memory_limit) ||
	    options.memory_limit < 1024 * 1024)
		bench_usage_error("--memory=%s: expected a size of 1MiB or more, as 4GiB",
				  options.memory);
	if (bench_parse_number(options.ceiling_port, 0, 65535, &options.ceiling_port_number))
		bench_usage_error("--ceiling-port=%s: expected a port, 0 to 65535",
				  options.ceiling_port);
	if (options.ready_fd &&
	    (bench_parse_number(options.ready_fd, 0, INT32_MAX, &options.ready_fd_number) ||
	     fcntl((int)options.ready_fd_number, F_GETFD) < 0))
		bench_usage_error("--ready-fd=%s: expected an open file descriptor",
				  options.ready_fd);
	options.traced = bench_spec_traced(options.transport, options.trace);
	options.ceiling_asked = options.ceiling_host || options.ceiling_port_number;
	if (!options.ceiling_host)
		options.ceiling_host = strdup(host);
	option_check_json(options.json);
}

/* ---- Start ---- */

static void stop(int signal)
{
	(void)signal;
	told_to_stop = 1;
}

/* Without SA_RESTART: what waits shall come back and look. */
static void catch_signals(void)
{
	struct sigaction action = {.sa_handler = stop};

	sigaction(SIGINT, &action, NULL);
	sigaction(SIGTERM, &action, NULL);
	signal(SIGPIPE, SIG_IGN);
}

static void log_message(void *user, enum haul_log_level level, const char *message)
{
	static const char *const names[] = {"error", "warning", "info", "debug"};

	(void)user;
	bench_complain("%s: %s", names[level & 3], message);
}

static bool open_context(struct server *server)
{
	int result = haul_open(options.traced, &server->context);

	if (result) {
		bench_complain("%s%s", options.transport ? "--transport: " : "",
			       failure_text(result, haul_detail(NULL)));
		return false;
	}
	result = haul_listen(server->context, options.listen, NULL, &server->listener);
	if (result)
		bench_complain("--listen=%s: %s", options.listen,
			       failure_text(result, haul_detail(server->context)));
	return result == 0;
}

/* The host of --listen need not be the kernel's: dpdk has addresses of its own. */
static bool open_ceiling(struct server *server)
{
	char why[512];
	int result;

	if (options.no_ceiling)
		return true;
	result = plain_server_open(options.ceiling_host, (uint16_t)options.ceiling_port_number,
				   &server->ceiling, why, sizeof(why));
	if (result == 0)
		return true;
	if (result == -EADDRNOTAVAIL && !options.ceiling_asked) {
		bench_complain("no plain TCP side: %s is not an address of the kernel's; "
			       "--ceiling-host=HOST gives one that is",
			       options.ceiling_host);
		return true;
	}
	bench_complain("the plain TCP side: %s; choose --ceiling-host and --ceiling-port, or "
		       "--no-ceiling",
		       why);
	return false;
}

/* Whoever sees the file finds the whole address in it. */
static bool write_address_file(const char *address)
{
	char *draft = NULL;
	FILE *file = NULL;
	bool written = false;

	if (!options.address_file)
		return true;
	if (asprintf(&draft, "%s.%d", options.address_file, (int)getpid()) < 0)
		draft = NULL;
	file = draft ? fopen(draft, "we") : NULL;
	if (file) {
		written = fprintf(file, "%s\n", address) > 0;
		written = fclose(file) == 0 && written;
		written = written && rename(draft, options.address_file) == 0;
	}
	if (!written) {
		bench_complain("--address-file=%s: %s", options.address_file, strerror(errno));
		if (file)
			unlink(draft);
	}
	free(draft);
	return written;
}

static bool announce(struct server *server)
{
	const char *address = haul_listener_address(server->listener);
	FILE *out = options.json && strcmp(options.json, "-") == 0 ? stderr : stdout;
	const char *spec = haul_spec(server->context);
	char name[BENCH_NAME_TEXT];

	if (!write_address_file(address))
		return false;
	if (!options.verbose)
		spec = options.transport ? options.transport : bench_spec_name(name, spec);
	fprintf(out, "listening on %s (%s)", address, spec);
	if (server->ceiling)
		fprintf(out, ", plain TCP on port %u", plain_server_port(server->ceiling));
	fputc('\n', out);
	fflush(out);
	if (options.ready_fd) {
		int fd = (int)options.ready_fd_number;

		if (dprintf(fd, "%s\n", address) < 0) {
			bench_complain("--ready-fd=%d: %s", fd, strerror(errno));
			return false;
		}
		close(fd);
	}
	return true;
}

/* ---- The loop ---- */

static void handle(struct server *server, const struct haul_completion *completion, uint64_t now)
{
	switch (completion->event) {
	case HAUL_ACCEPTED:
		if (completion->result == 0)
			peer_accepted(server, completion->endpoint);
		break;
	case HAUL_LOST:
		peer_lost(completion->cookie, completion->result, completion->detail);
		break;
	case HAUL_SENT:
	case HAUL_RECEIVED:
		operation_done(completion, now);
		break;
	case HAUL_CONNECTED:
	case HAUL_QUERIED:
		break; /* never asked for here */
	}
}

static bool turn(struct server *server)
{
	struct haul_completion completions[BATCH];
	int timeout = server->polling ? 0 : LOOK_AROUND_MS;
	int count = haul_poll(server->context, completions, BATCH, timeout);
	uint64_t now = bench_now();

	if (count < 0 && count != -EINTR) {
		bench_complain("haul_poll: %s", failure_text(count, haul_detail(server->context)));
		return false;
	}
	for (int i = 0; i < count; i++)
		handle(server, &completions[i], now);
	server_attend(server);
	return true;
}

static bool serve(struct server *server)
{
	while (!told_to_stop) {
		if (!turn(server))
			return false;
		if (options.once && server->peers_served && !server->peer_count)
			break;
	}
	return true;
}

/* Disconnected endpoints still hand out the ends of their operations. */
static void wind_up(struct server *server)
{
	server_drop_all(server);
	server_attend(server);
	for (int i = 0; i < 100 && server->peer_count; i++)
		if (!turn(server))
			break;
}

/* ---- The end ---- */

static bool write_json(const struct server *server)
{
	struct haul_statistics sums = {.size = sizeof(sums)};
	bool known = haul_context_statistics(server->context, &sums) == 0;
	struct bench_usage usage = bench_usage_now();
	const char *spec = haul_spec(server->context);
	cJSON *json = cJSON_CreateObject();
	char name[BENCH_NAME_TEXT];
	struct rusage peak;
	int result;

	getrusage(RUSAGE_SELF, &peak);
	cJSON_AddStringToObject(json, "tool", "haul-bench-server");
	cJSON_AddStringToObject(json, "transport",
				options.transport ? options.transport
						  : bench_spec_name(name, spec));
	cJSON_AddStringToObject(json, "transport_options", spec);
	cJSON_AddStringToObject(json, "address", haul_listener_address(server->listener));
	bench_json_number(json, "ceiling_port",
			  server->ceiling ? plain_server_port(server->ceiling) : NAN);
	bench_json_number(json, "clients", (double)server->peers_served);
	bench_json_number(json, "rounds", (double)server->rounds);
	bench_json_number(json, "tensors", (double)server->tensors);
	bench_json_number(json, "bytes_sent", known ? (double)sums.bytes_sent : NAN);
	bench_json_number(json, "bytes_received", known ? (double)sums.bytes_received : NAN);
	bench_json_number(json, "verified", (double)server->verified);
	bench_json_number(json, "mismatches", (double)server->mismatches);
	bench_json_number(json, "cpu_user_s", usage.user_s);
	bench_json_number(json, "cpu_system_s", usage.system_s);
	bench_json_number(json, "memory_peak_bytes", (double)peak.ru_maxrss * 1024);
	result = bench_json_write(options.json, json);
	cJSON_Delete(json);
	if (result)
		bench_complain("--json=%s: %s", options.json, strerror(-result));
	return result == 0;
}

int main(int argc, const char **argv)
{
	struct server server = {0};
	bool well;

	bench_hold_standard_streams();
	options_parse(argc, argv, option_table, NULL);
	check_options();
	LIST_INIT(&server.peers);
	TAILQ_INIT(&server.attention);
	server.memory_limit = options.memory_limit;
	server.verbose = options.verbose;
	catch_signals();
	haul_log_set(log_message, NULL, options.verbose ? HAUL_LOG_INFO : HAUL_LOG_WARNING);
	well = open_context(&server) && open_ceiling(&server) && announce(&server);
	if (well) {
		well = serve(&server);
		wind_up(&server);
		if (options.json)
			well = write_json(&server) && well;
	}
	plain_server_close(server.ceiling);
	haul_listener_close(server.listener);
	haul_close(server.context);
	if (well && options.address_file)
		unlink(options.address_file);
	return well && !server.mismatches ? 0 : EXIT_FAILED;
}
