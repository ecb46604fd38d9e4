/* SPDX-License-Identifier: Apache-2.0 */
/*
 * haul-bench-client, in parts:
 *
 *   client_options   the command line
 *   client_worker    one client: a context, its endpoints, one round after the other
 *   client_ceiling   a round of plain TCP
 *   client_diagnose  --diagnose: what the path and the hosts are, by plain sockets
 *   client_verdict   what limits them, from those figures
 *   client_team      the workers: the one in this process, or one process for each of --clients
 *   client_test      a test: rounds of the transport and of plain TCP in turn, and their numbers
 *   client_rounds    what several rounds say together
 *   client_report    the JSON
 *   client_table     the table
 */
#ifndef BENCH_CLIENT_H
#define BENCH_CLIENT_H

#include <stdbool.h>
#include <stdint.h>
#include <sys/types.h>

#include "bench_common.h"
#include "histogram.h"
#include "meter.h"
#include "protocol.h"

/* ---- Options ---- */

enum test_kind {
	TEST_THROUGHPUT,
	TEST_LATENCY,
	TEST_RATE,
	TEST_BIDIRECTIONAL,
	TEST_KINDS,
};

extern const char *const test_names[];

#define SIZES_MAX 64

struct client_options {
	const char *connect;
	const char *transport; /* NULL: the environment's, or auto */
	const char *traced;    /* that, with --trace */
	bool tests[TEST_KINDS];
	uint64_t sizes[SIZES_MAX];
	size_t size_count;
	uint64_t rate_sizes[SIZES_MAX], rate_concurrencies[SIZES_MAX];
	size_t rate_size_count, rate_concurrency_count;
	uint64_t latency_size;
	uint64_t concurrency; /* 0: chosen by size */
	uint64_t latency_concurrency;
	double rate;    /* tensors or pings a second of all clients; 0: as many as they can */
	uint64_t count; /* 0: by time */
	uint64_t endpoints, clients, rounds;
	double seconds, warmup; /* seconds is INFINITY when only --count ends a round */
	double patience;        /* seconds without any progress */
	enum direction direction;
	bool poll, verify, ceiling, verbose, diagnose;
	uint64_t sockets[SIZES_MAX]; /* --diagnose: how many at once */
	size_t socket_count;
	bool live;
	char ceiling_host[256];
	uint64_t ceiling_port; /* 0: what the server says */
	const char *congestion;
	uint64_t memory;
	uint64_t seed;
	const char *json;
};

/* Ends the program when something is wrong. */
void client_options_parse(int argc, const char **argv, struct client_options *options);
/* Tensors in flight on one endpoint, of the tests that move tensors of `size` bytes. */
uint32_t client_concurrency(const struct client_options *options, enum test_kind kind,
			    uint64_t size);
/* Whether the test starts tensors at a set rate. */
bool client_is_paced(const struct client_options *options, enum test_kind kind);

/* ---- Worker ---- */

enum command_kind {
	COMMAND_OPEN,    /* connect */
	COMMAND_PREPARE, /* make the buffers of a round, here and at the server */
	COMMAND_USAGE,   /* ask for the server's CPU time */
	COMMAND_RUN,     /* measure */
	COMMAND_FINISH,  /* give the buffers back */
	COMMAND_CEILING, /* measure plain TCP */
	COMMAND_CLOSE,
};

struct command {
	enum command_kind kind;
	enum test_kind test;
	uint64_t size;
	uint32_t concurrency;
	uint64_t begin, end; /* the window of RUN and CEILING */
};

/* What moved in one direction. */
struct moved {
	double bytes, tensors, seconds; /* in the window */
	double all_bytes;               /* warm-up and end included */
};

struct result {
	bool failed;
	char error[512];
	/* OPEN */
	uint16_t ceiling_port;
	char spec[1024];
	/* USAGE: the server's; RUN and CEILING: the client's */
	struct bench_usage usage;
	/* RUN and CEILING */
	struct moved sent, received;
	struct histogram times; /* of pings or tensors */
	uint64_t streams;       /* of the endpoint that has most */
	/* RUN: what this side sent; FINISH: what the server sent */
	bool statistics;
	uint64_t chunks_sent, chunks_again;
	/* RUN and FINISH: what was found here, and at the server */
	uint64_t verified, mismatches;
};

struct worker;

/* Keeps the first error; always false. */
bool result_fail(struct result *result, const char *format, ...)
	__attribute__((format(printf, 2, 3)));

/* `number` of --clients; `live[2]` is where the worker counts what it sent and received. */
struct worker *worker_new(const struct client_options *options, unsigned number,
			  struct meter_live *live);
void worker_execute(struct worker *worker, const struct command *command, struct result *result);
void worker_free(struct worker *worker);

/* COMMAND_CEILING, which needs no context. */
bool ceiling_run(const struct client_options *options, uint16_t port, struct meter_live *live,
		 const struct command *command, struct result *result);

/* The plain TCP server that the tests are held against. */
uint16_t ceiling_port(const struct client_options *options, uint16_t told);

/* ---- Diagnosis ---- */

/* So many plain sockets at once, from here to the server. */
struct path_step {
	unsigned sockets;
	double gbps;
	double round_trip_us, least_round_trip_us; /* means of the sockets */
	double loss;                               /* bytes sent again, of all bytes */
	double window_limited, buffer_limited;     /* shares of the time that there was to send */
	double client_cores, server_cores;         /* CPU seconds of the process per second */
	double host_busy;                          /* share of this host's CPU time; NAN: unknown */
};

struct path_facts {
	struct path_step steps[SIZES_MAX];
	size_t count;
	double ping_us[2]; /* idle: p50, p99 */
	double mtu;
	double cpus; /* that this process may use */
	bool same_host;
	/* The transport, after that; NAN where it was not measured. */
	double transport_gbps, transport_streams;
};

enum path_limit {
	LIMIT_LINK,
	LIMIT_LOSS,
	LIMIT_WINDOW,        /* the receiver's */
	LIMIT_BUFFER,        /* the sender's */
	LIMIT_SENDER_CORE,   /* of one socket */
	LIMIT_RECEIVER_CORE, /* of one socket */
	LIMIT_CORES,         /* all of this host's */
	LIMIT_SOCKET,        /* several sockets are faster, and none of the above says why */
};

extern const char *const path_limit_names[];

struct path_verdict {
	enum path_limit one, all; /* what limits one socket, and any number of them */
	size_t best;              /* the step with the fewest sockets that reaches (nearly) all */
	char words[5][320];       /* sentences for people; "" where there is none */
	char spec[64];            /* what to give to --transport */
};

void path_judge(const struct path_facts *facts, struct path_verdict *verdict);
/* --diagnose as a whole. False after a complaint. */
bool diagnose(const struct client_options *options);

/* ---- Team ---- */

struct team;

/* Forks the processes: before anything of the library was opened. NULL after a complaint. */
struct team *team_new(const struct client_options *options);
unsigned team_size(const struct team *team);
/*
 * Have all workers, or only the first, do a command; results has room for as many. `label` names
 * the live lines, NULL shows none. False after a complaint.
 */
bool team_all(struct team *team, const struct command *command, struct result *results,
	      const char *label);
bool team_first(struct team *team, const struct command *command, struct result *result,
		const char *label);
void team_free(struct team *team);

/* ---- Tests ---- */

/* Percentiles in microseconds. */
enum { P50, P90, P99, P99_9, P_MAX, PERCENTILES };

extern const char *const percentile_names[];
extern const double percentile_shares[];

/* NAN where something was not measured. */
struct round {
	double goodput_gbps; /* both directions together */
	double sent_gbps, received_gbps;
	double rate;                       /* tensors per second */
	double latency_us[PERCENTILES];    /* round trips of pings, or times of tensors */
	double client_user, client_system; /* CPU seconds per GB */
	double server_user, server_system;
	double streams, chunks_sent, chunks_again;
	double verified, mismatches;
	double *client_gbps; /* of each client, or NULL */
};

struct test_result {
	enum test_kind test;
	uint64_t size;
	uint32_t concurrency;
	size_t rounds; /* done */
	struct round *round, *ceiling;
	struct histogram times; /* of all rounds */
};

struct report {
	const struct client_options *options;
	char spec[1024]; /* with every option */
	struct test_result *results;
	size_t count;
	bool failed; /* a test could not be finished */
	uint64_t mismatches;
};

/* Run all tests that were asked for. False after a complaint; what was finished is in the report.
 */
bool run_tests(struct team *team, const struct client_options *options, struct report *report);
/* The median over the rounds of one member, and how to name it: offsetof(struct round, member). */
double round_median(const struct round *rounds, size_t count, size_t offset);
void round_range(const struct round *rounds, size_t count, size_t offset, double *low,
		 double *high);
/* The members of all rounds, one after the other; free() it. */
double *round_values(const struct round *rounds, size_t count, size_t offset);
/* Of the rounds where it is known; NAN when it is in none. */
double round_sum(const struct round *rounds, size_t count, size_t offset);
/* The medians of the percentiles, but the largest maximum. */
void round_percentiles(const struct round *rounds, size_t count, double values[PERCENTILES]);
/* CPU seconds per GB: the client's, the server's, or both when `client` and `server` are set. */
double round_cpu(const struct round *rounds, size_t count, bool client, bool server);
/* The median goodput of each client, and their fairness; NAN for a single client. */
double client_median(const struct report *report, const struct test_result *result,
		     unsigned client);
double clients_jain(const struct report *report, const struct test_result *result);
void report_free(struct report *report);

/* ---- Report ---- */

void report_print(const struct report *report, FILE *file);
/* False after a complaint. */
bool report_write_json(const struct report *report);

#endif
