/* SPDX-License-Identifier: Apache-2.0 */
/* A round of plain TCP, for the client. */
#include <pthread.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

#include "client.h"
#include "plain_tcp.h"

enum { FLOW_OUT, FLOW_IN };

bool result_fail(struct result *result, const char *format, ...)
{
	va_list arguments;

	if (!result->failed) {
		va_start(arguments, format);
		vsnprintf(result->error, sizeof(result->error), format, arguments);
		va_end(arguments);
	}
	result->failed = true;
	return false;
}

struct plain_run {
	struct plain_request request;
	struct plain_result result;
	int failed;
	char why[512];
};

static void *run_plain(void *argument)
{
	struct plain_run *run = argument;

	run->failed = plain_measure(&run->request, &run->result, run->why, sizeof(run->why));
	return NULL;
}

static struct moved moved_of_plain(const struct plain_run *run)
{
	return (struct moved){.bytes = run->result.bytes,
			      .seconds = run->result.seconds,
			      .all_bytes = run->result.all_bytes};
}

uint16_t ceiling_port(const struct client_options *options, uint16_t told)
{
	return options->ceiling_port ? (uint16_t)options->ceiling_port : told;
}

static void setup(struct plain_run *run, const struct client_options *options, uint16_t port,
		  struct meter_live *live, const struct command *command, enum plain_mode mode)
{
	run->request = (struct plain_request){
		.host = options->ceiling_host,
		.port = ceiling_port(options, port),
		.congestion = options->congestion,
		.mode = mode,
		.poll = options->poll,
		.ping_size = (uint32_t)command->size,
		.begin = command->begin,
		.end = command->end,
		.enough = mode == PLAIN_PINGS ? options->count : 0,
		.live = live ? &live[mode == PLAIN_SOURCE ? FLOW_IN : FLOW_OUT] : NULL,
	};
}

/* Both directions at once are two sockets and two threads. */
bool ceiling_run(const struct client_options *options, uint16_t port, struct meter_live *live,
		 const struct command *command, struct result *result)
{
	bool both = command->test == TEST_BIDIRECTIONAL || options->direction == DIRECTION_BOTH;
	bool pings = command->test == TEST_LATENCY;
	bool out = pings || both || options->direction == DIRECTION_SEND;
	bool in = !pings && (both || options->direction == DIRECTION_RECV);
	struct bench_usage before = bench_usage_now();
	struct plain_run *runs = calloc(2, sizeof(*runs));
	pthread_t thread;
	int started = -1;

	if (!runs)
		return result_fail(result, "no memory");
	setup(&runs[FLOW_OUT], options, port, live, command, pings ? PLAIN_PINGS : PLAIN_SINK);
	setup(&runs[FLOW_IN], options, port, live, command, PLAIN_SOURCE);
	if (in)
		started = pthread_create(&thread, NULL, run_plain, &runs[FLOW_IN]);
	if (out)
		run_plain(&runs[FLOW_OUT]);
	if (in && started == 0)
		pthread_join(thread, NULL);
	else if (in)
		result_fail(result, "no thread: %s", strerror(started));
	for (int which = 0; which < 2; which++)
		if (runs[which].failed)
			result_fail(result, "%s", runs[which].why);
	result->usage = bench_usage_since(&before);
	if (out)
		result->sent = moved_of_plain(&runs[FLOW_OUT]);
	if (in)
		result->received = moved_of_plain(&runs[FLOW_IN]);
	if (pings)
		histogram_merge(&result->times, &runs[FLOW_OUT].result.times);
	free(runs);
	return !result->failed;
}
