/* SPDX-License-Identifier: Apache-2.0 */
/* One round of a worker: from the first tensor to the last, with what the window between saw. */
#include <errno.h>
#include <poll.h>
#include <stdio.h>
#include <string.h>
#include <sys/prctl.h>

#include "client_worker.h"

#define BATCH 256
#define PRECISE_NS (NS_PER_S / 500)

static void read_statistics(struct link *link, struct haul_statistics *statistics)
{
	*statistics = (struct haul_statistics){.size = sizeof(*statistics)};
	if (haul_endpoint_statistics(link->endpoint, statistics))
		statistics->size = 0;
}

/* Look at one edge of the window. Tensors that are not complete count as far as they have come. */
static bool take_samples(struct worker *worker, bool begin, struct result *result)
{
	struct request request = {.kind = REQUEST_USAGE};

	for (uint64_t i = 0; i < worker->options->endpoints; i++) {
		struct link *link = &worker->links[i];
		struct sample *samples = begin ? link->begin : link->end;
		struct haul_statistics statistics;
		struct answer answer;

		if (link->open[FLOW_OUT]) {
			if (!worker_ask(worker, link, &request, &answer, result))
				return false;
			samples[FLOW_OUT] = (struct sample){answer.arrived, answer.clock_s};
		}
		if (link->open[FLOW_IN]) {
			read_statistics(link, &statistics);
			samples[FLOW_IN] = (struct sample){(double)statistics.bytes_arrived,
							   (double)bench_now() / NS_PER_S};
		}
	}
	return true;
}

/* What moved between the samples; a count of tensors has no window, its meter is exact. */
static void use_samples(const struct worker *worker, int which, struct moved *moved)
{
	double rate = 0, seconds = 0;

	for (uint64_t i = 0; i < worker->options->endpoints; i++) {
		const struct link *link = &worker->links[i];
		double time = link->end[which].at_s - link->begin[which].at_s;

		if (time <= 0)
			return;
		rate += (link->end[which].bytes - link->begin[which].bytes) / time;
		seconds += time / (double)worker->options->endpoints;
	}
	if (moved->bytes > 0)
		moved->tensors *= rate * seconds / moved->bytes;
	moved->bytes = rate * seconds;
	moved->seconds = seconds;
}

typedef void flow_function(struct flow *flow);

static void for_all_flows(struct worker *worker, flow_function *function)
{
	for (uint64_t i = 0; i < worker->options->endpoints; i++)
		for (int which = 0; which < 2; which++)
			if (worker->links[i].open[which])
				function(&worker->links[i].flows[which]);
}

/* What must be known of all flows to decide how to go on. */
struct overview {
	uint64_t outstanding, tensors;
	uint64_t early; /* tensors in flight that were started before the window's end */
	const struct flow *broken;
};

static void look_over(const struct worker *worker, struct overview *overview)
{
	*overview = (struct overview){0};
	for (uint64_t i = 0; i < worker->options->endpoints; i++)
		for (int which = 0; which < 2; which++) {
			const struct flow *flow = &worker->links[i].flows[which];

			if (!worker->links[i].open[which])
				continue;
			overview->outstanding += flow->outstanding;
			overview->tensors += flow->tensors;
			if (flow->error)
				overview->broken = flow;
		}
}

static uint64_t count_early(const struct worker *worker)
{
	uint64_t early = 0;

	for (uint64_t i = 0; i < worker->options->endpoints; i++)
		for (int which = 0; which < 2; which++)
			if (worker->links[i].open[which])
				early += flow_started_before(&worker->links[i].flows[which],
							     worker->meters[which].end);
	return early;
}

/* One poll. `now` takes the time behind it. */
static bool turn(struct worker *worker, int timeout_ms, uint64_t *now_out, struct result *result)
{
	struct haul_completion completions[BATCH];
	int count = haul_poll(worker->context, completions, BATCH, timeout_ms);
	uint64_t now = bench_now();

	*now_out = now;
	if (count < 0 && count != -EINTR)
		return result_fail(result, "haul_poll: %s",
				   failure_text(count, haul_detail(worker->context)));
	for (int i = 0; i < count; i++) {
		if (completions[i].event == HAUL_LOST) {
			worker->lost = true;
			snprintf(worker->lost_detail, sizeof(worker->lost_detail), "%s",
				 failure_text(completions[i].result, completions[i].detail));
		} else if (completions[i].cookie) {
			operation_done(&completions[i], now);
		}
	}
	if (count > 0)
		worker->moved_at = now;
	return true;
}

static bool is_well(struct worker *worker, const struct overview *overview, uint64_t now,
		    struct result *result)
{
	if (worker->lost)
		return result_fail(result, "the server was lost: %s", worker->lost_detail);
	if (overview->broken)
		return result_fail(result, "%s", overview->broken->detail);
	if (now - worker->moved_at > (uint64_t)(worker->options->patience * NS_PER_S))
		return result_fail(
			result,
			"nothing moved for %g seconds (--timeout), %llu tensors are through",
			worker->options->patience, (unsigned long long)overview->tensors);
	return true;
}

/* Start what is due; returns when the next one is. */
static uint64_t pace_flows(struct worker *worker, uint64_t now)
{
	uint64_t due = UINT64_MAX;

	for (uint64_t i = 0; i < worker->options->endpoints; i++) {
		struct link *link = &worker->links[i];

		if (!link->open[FLOW_OUT])
			continue;
		flow_pace(&link->flows[FLOW_OUT], now);
		if (link->flows[FLOW_OUT].idle && flow_due(&link->flows[FLOW_OUT]) < due)
			due = flow_due(&link->flows[FLOW_OUT]);
	}
	return due;
}

/*
 * Sleep until the next tensor is due, or something has happened: haul_poll() counts milliseconds.
 * To look again and again instead would take the core that the other side may need.
 */
static bool sleep_until_due(struct worker *worker, uint64_t due, struct result *result)
{
	uint64_t now = bench_now(), wait = due > now ? due - now : 0;
	struct timespec time = {(time_t)(wait / NS_PER_S), (long)(wait % NS_PER_S)};
	struct pollfd event = {.fd = haul_event_fd(worker->context), .events = POLLIN};

	if (event.fd < 0)
		return result_fail(result, "haul_event_fd: %s",
				   failure_text(event.fd, haul_detail(worker->context)));
	if (wait)
		ppoll(&event, 1, &time, NULL);
	return true;
}

/* Wakes up for the window's edges, the end of patience and the next tensor that is due. */
static int turn_timeout(const struct worker *worker, uint64_t now, uint64_t due)
{
	const struct meter *meter =
		&worker->meters[worker->links[0].open[FLOW_OUT] ? FLOW_OUT : FLOW_IN];
	uint64_t edge = worker->phase == BEFORE_WINDOW ? meter->begin : meter->end;

	if (worker->options->poll || due < now + PRECISE_NS)
		return 0;
	if (edge <= now || due - PRECISE_NS < edge)
		edge = due - PRECISE_NS;
	return edge > now && edge - now < 250000000 ? (int)((edge - now) / 1000000) + 1 : 250;
}

/* Tensors that move are sampled at both edges of the window; pings and what is paced are not. */
static bool watch_edges(struct worker *worker, uint64_t now, bool samples, struct result *result)
{
	const struct meter *meter =
		&worker->meters[worker->links[0].open[FLOW_OUT] ? FLOW_OUT : FLOW_IN];

	if (!samples)
		return true;
	if (worker->phase == BEFORE_WINDOW && now >= meter->begin) {
		worker->phase = IN_WINDOW;
		return take_samples(worker, true, result);
	}
	if (worker->phase == IN_WINDOW && now >= meter->end) {
		worker->phase = BEHIND_WINDOW;
		return take_samples(worker, false, result);
	}
	return true;
}

/*
 * Start everything, go on until all tensors that were started inside of the window are
 * through, then let the rest come to its end.
 */
static bool run_flows(struct worker *worker, bool samples, struct result *result)
{
	uint64_t now = bench_now(), due;
	struct overview overview;
	bool ending = false;
	int timeout;

	worker->moved_at = now;
	worker->phase = BEFORE_WINDOW;
	for_all_flows(worker, flow_start);
	do {
		due = pace_flows(worker, now);
		timeout = turn_timeout(worker, now, due);
		if (!timeout && !worker->options->poll && !sleep_until_due(worker, due, result))
			return false;
		if (!turn(worker, timeout, &now, result))
			return false;
		look_over(worker, &overview);
		if (!is_well(worker, &overview, now, result) ||
		    !watch_edges(worker, now, samples, result))
			return false;
		if (!ending && now >= worker->meters[FLOW_OUT].end &&
		    now >= worker->meters[FLOW_IN].end && !count_early(worker)) {
			for_all_flows(worker, flow_stop);
			ending = true;
		}
	} while (!ending || overview.outstanding);
	return true;
}

/* After an error: nothing may be in flight any more when the buffers go. */
void measurement_give_up(struct worker *worker)
{
	struct result ignored = {0};
	struct overview overview;
	uint64_t now;

	for_all_flows(worker, flow_abandon);
	for (uint64_t i = 0; i < worker->options->endpoints; i++) {
		haul_disconnect(worker->links[i].endpoint);
		worker->links[i].endpoint = NULL;
	}
	for (int i = 0; i < 100; i++) {
		look_over(worker, &overview);
		if (!overview.outstanding || !turn(worker, 10, &now, &ignored))
			break;
	}
	worker_close_flows(worker);
}

static void describe_statistics(struct worker *worker, struct result *result)
{
	result->statistics = true;
	for (uint64_t i = 0; i < worker->options->endpoints; i++) {
		struct link *link = &worker->links[i];
		struct haul_statistics now;

		read_statistics(link, &now);
		if (!now.size || !link->before.size) {
			result->statistics = false;
			continue;
		}
		result->chunks_sent += now.chunks_sent - link->before.chunks_sent;
		result->chunks_again += now.chunks_again - link->before.chunks_again;
		if (now.streams > result->streams)
			result->streams = now.streams;
	}
}

static void describe_flow(struct flow *flow, struct result *result)
{
	result->verified += flow->verified;
	result->mismatches += flow->mismatches;
}

static struct moved moved_of(const struct meter *meter)
{
	return (struct moved){.bytes = meter->bytes,
			      .tensors = meter->tensors,
			      .seconds = meter_window(meter),
			      .all_bytes = (double)meter->all_bytes};
}

bool measurement_run(struct worker *worker, const struct command *command, struct result *result)
{
	struct bench_usage before = bench_usage_now();
	uint64_t enough = worker->options->count;
	bool flows[2] = {worker->links[0].open[0], worker->links[0].open[1]};
	bool paced = client_is_paced(worker->options, command->test);

	for (int which = 0; which < 2; which++) {
		/* A direction that is not used must not keep the round from ending. */
		meter_reset(&worker->meters[which], command->begin, flows[which] ? command->end : 0,
			    enough);
		worker->meters[which].by_start = paced;
		worker->meters[which].live = worker->live ? &worker->live[which] : NULL;
	}
	for (uint64_t i = 0; i < worker->options->endpoints; i++)
		read_statistics(&worker->links[i], &worker->links[i].before);
	/* Or else the kernel may end each sleep 50 us late. */
	if (paced)
		prctl(PR_SET_TIMERSLACK, 1);
	if (!run_flows(worker, command->test != TEST_LATENCY && !enough && !paced, result))
		return false;
	result->usage = bench_usage_since(&before);
	describe_statistics(worker, result);
	for (uint64_t i = 0; i < worker->options->endpoints; i++)
		for (int which = 0; which < 2; which++)
			if (worker->links[i].open[which])
				describe_flow(&worker->links[i].flows[which], result);
	histogram_merge(&result->times, &worker->meters[FLOW_OUT].times);
	histogram_merge(&result->times, &worker->meters[FLOW_IN].times);
	if (flows[FLOW_OUT])
		result->sent = moved_of(&worker->meters[FLOW_OUT]);
	if (flows[FLOW_IN])
		result->received = moved_of(&worker->meters[FLOW_IN]);
	if (worker->phase == BEHIND_WINDOW) {
		if (flows[FLOW_OUT])
			use_samples(worker, FLOW_OUT, &result->sent);
		if (flows[FLOW_IN])
			use_samples(worker, FLOW_IN, &result->received);
	}
	return true;
}
