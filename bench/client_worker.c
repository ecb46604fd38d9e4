/* SPDX-License-Identifier: Apache-2.0 */
#include <errno.h>
#include <poll.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>

#include "client.h"
#include "flow.h"

#define BATCH 256
#define PRECISE_NS (NS_PER_S / 500)

/* How many bytes had arrived at a moment, by the receiver's count and clock. */
struct sample {
	double bytes, at_s;
};

/* One endpoint with its control texts and the flows of the round. */
struct link {
	haul_endpoint *endpoint;
	struct flow flows[2]; /* sends or pings, receives */
	bool open[2];
	struct haul_statistics before;  /* size is 0 when they are not known */
	struct sample begin[2], end[2]; /* of the window */
};

enum { FLOW_OUT, FLOW_IN };

struct worker {
	const struct client_options *options;
	unsigned number;
	struct meter_live *live;
	haul_context *context;
	haul_region *region; /* a request, and behind it an answer */
	char *request_text, *answer_text;
	struct link *links;
	struct meter meters[2]; /* as the flows */
	uint32_t round;
	uint16_t ceiling_port;
	uint64_t moved_at; /* when something completed last */
	enum { BEFORE_WINDOW, IN_WINDOW, BEHIND_WINDOW } phase;
	bool lost;
	char lost_detail[256];
};

static int patience_ms(const struct worker *worker)
{
	return (int)(worker->options->patience * 1000);
}

/* ---- Requests ---- */

static bool ask(struct worker *worker, struct link *link, const struct request *request,
		struct answer *answer, struct result *result)
{
	int64_t room[1] = {PROTOCOL_TEXT_MAX}, shape[1];
	const DLDataType bytes = {kDLUInt, 8, 1};
	struct haul_tensor_info info;
	DLTensor out, in;
	char why[128];
	int length, failed;

	length = protocol_write_request(request, worker->request_text);
	if (length < 0)
		return result_fail(result, "the request is too long");
	shape[0] = length;
	out = haul_tensor(worker->request_text, bytes, 1, shape);
	in = haul_tensor(worker->answer_text, bytes, 1, room);
	failed = haul_send_wait(link->endpoint, haul_key(PROTOCOL_REQUEST_KEY), &out,
				worker->region, patience_ms(worker));
	if (!failed)
		failed = haul_recv_wait(link->endpoint, haul_key(PROTOCOL_ANSWER_KEY), &in,
					worker->region, patience_ms(worker), &info);
	if (failed)
		return result_fail(result, "the server does not answer: %s",
				   failure_text(failed, haul_detail(worker->context)));
	if (protocol_read_answer(worker->answer_text, info.bytes, answer, why, sizeof(why)))
		return result_fail(result, "the server's answer is not understood: %s", why);
	if (answer->error[0])
		return result_fail(result, "the server says: %s", answer->error);
	return true;
}

/* ---- Open and close ---- */

static bool open_link(struct worker *worker, struct link *link, struct result *result)
{
	struct request request = {.kind = REQUEST_HELLO};
	struct answer answer;
	int failed = haul_connect_wait(worker->context, worker->options->connect,
				       patience_ms(worker), &link->endpoint);

	if (failed)
		return result_fail(result, "--connect=%s: %s", worker->options->connect,
				   failure_text(failed, haul_detail(worker->context)));
	if (!ask(worker, link, &request, &answer, result))
		return false;
	worker->ceiling_port = answer.ceiling_port;
	return true;
}

static bool open_worker(struct worker *worker, struct result *result)
{
	const char *spec = worker->options->traced;
	int failed = haul_open(spec, &worker->context);

	if (failed)
		return result_fail(result, "%s%s", spec ? "--transport: " : "",
				   failure_text(failed, haul_detail(NULL)));
	snprintf(result->spec, sizeof(result->spec), "%s", haul_spec(worker->context));
	failed = haul_region_allocate(worker->context, 2 * PROTOCOL_TEXT_MAX,
				      HAUL_USE_SEND | HAUL_USE_RECV, &worker->region);
	if (failed)
		return result_fail(result, "haul_region_allocate: %s",
				   failure_text(failed, haul_detail(worker->context)));
	worker->request_text = haul_region_base(worker->region);
	worker->answer_text = worker->request_text + PROTOCOL_TEXT_MAX;
	for (uint64_t i = 0; i < worker->options->endpoints; i++)
		if (!open_link(worker, &worker->links[i], result))
			return false;
	result->ceiling_port = worker->ceiling_port;
	return true;
}

static void close_worker(struct worker *worker)
{
	for (uint64_t i = 0; i < worker->options->endpoints; i++) {
		haul_disconnect(worker->links[i].endpoint);
		worker->links[i].endpoint = NULL;
	}
	haul_region_release(worker->region);
	worker->region = NULL;
	haul_close(worker->context);
	worker->context = NULL;
}

/* ---- Rounds: their buffers ---- */

static bool open_flow(struct worker *worker, struct link *link, int which, enum flow_role role,
		      enum test_kind test, const struct round_request *round, struct result *result)
{
	struct flow_settings settings = {.role = role,
					 .size = round->size,
					 .concurrency = round->concurrency,
					 .number = round->number,
					 .seed = round->seed,
					 .verify = round->verify,
					 .meter = &worker->meters[which]};
	const struct client_options *options = worker->options;
	struct flow *flow = &link->flows[which];

	if (client_is_paced(options, test)) {
		uint64_t links = options->clients * options->endpoints;
		uint64_t number =
			worker->number * options->endpoints + (uint64_t)(link - worker->links);

		/* In turn: all flows together have the rate, not bursts of it. */
		settings.interval_ns = (double)links * NS_PER_S / options->rate;
		settings.first_due_ns = settings.interval_ns * (double)number / (double)links;
	}
	if (flow_open(flow, worker->context, link->endpoint, &settings))
		return result_fail(result, "%s", flow->detail);
	link->open[which] = true;
	return true;
}

static bool open_flows(struct worker *worker, struct link *link, enum test_kind test,
		       const struct round_request *round, struct result *result)
{
	if (round->kind == ROUND_PINGS)
		return open_flow(worker, link, FLOW_OUT, FLOW_PINGS, test, round, result);
	if (round->direction != DIRECTION_RECV &&
	    !open_flow(worker, link, FLOW_OUT, FLOW_SENDS, test, round, result))
		return false;
	if (round->direction != DIRECTION_SEND &&
	    !open_flow(worker, link, FLOW_IN, FLOW_RECEIVES, test, round, result))
		return false;
	return true;
}

static bool prepare(struct worker *worker, const struct command *command, struct result *result)
{
	const struct client_options *options = worker->options;
	struct request request = {.kind = REQUEST_START};
	struct round_request *round = &request.round;
	struct answer answer;

	round->kind = command->test == TEST_LATENCY ? ROUND_PINGS : ROUND_STREAM;
	round->direction =
		command->test == TEST_BIDIRECTIONAL ? DIRECTION_BOTH : options->direction;
	round->number = ++worker->round;
	round->size = command->size;
	round->concurrency = command->concurrency;
	round->verify = options->verify;
	round->poll = options->poll;
	for (uint64_t i = 0; i < options->endpoints; i++) {
		/* Tensors that go astray between endpoints shall be noticed. */
		round->seed = (uint32_t)(options->seed + worker->round * 7919u +
					 (worker->number * 1031u + i) * 104729u);
		if (!open_flows(worker, &worker->links[i], command->test, round, result) ||
		    !ask(worker, &worker->links[i], &request, &answer, result))
			return false;
	}
	return true;
}

static bool ask_usage(struct worker *worker, struct result *result)
{
	struct request request = {.kind = REQUEST_USAGE};
	struct answer answer;

	if (!ask(worker, &worker->links[0], &request, &answer, result))
		return false;
	result->usage = answer.usage;
	return true;
}

static void close_flows(struct worker *worker)
{
	for (uint64_t i = 0; i < worker->options->endpoints; i++)
		for (int which = 0; which < 2; which++)
			if (worker->links[i].open[which]) {
				flow_close(&worker->links[i].flows[which]);
				worker->links[i].open[which] = false;
			}
}

static bool finish(struct worker *worker, struct result *result)
{
	struct request request = {.kind = REQUEST_FINISH};
	bool well = true;

	result->statistics = true;
	for (uint64_t i = 0; well && i < worker->options->endpoints; i++) {
		struct answer answer;

		well = ask(worker, &worker->links[i], &request, &answer, result);
		if (!well)
			break;
		result->verified += answer.verified;
		result->mismatches += answer.mismatches;
		result->chunks_sent += answer.chunks_sent;
		result->chunks_again += answer.chunks_again;
		result->statistics = result->statistics && answer.statistics;
	}
	close_flows(worker);
	return well;
}

/* ---- Rounds: the measurement ---- */

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
			if (!ask(worker, link, &request, &answer, result))
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
static void give_up(struct worker *worker)
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
	close_flows(worker);
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

static bool run(struct worker *worker, const struct command *command, struct result *result)
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

/* ---- The worker ---- */

struct worker *worker_new(const struct client_options *options, unsigned number,
			  struct meter_live *live)
{
	struct worker *worker = calloc(1, sizeof(*worker));

	if (!worker)
		return NULL;
	worker->options = options;
	worker->number = number;
	worker->live = live;
	worker->links = calloc(options->endpoints, sizeof(*worker->links));
	if (!worker->links) {
		free(worker);
		return NULL;
	}
	return worker;
}

void worker_execute(struct worker *worker, const struct command *command, struct result *result)
{
	bool well = true;

	memset(result, 0, sizeof(*result));
	histogram_reset(&result->times);
	switch (command->kind) {
	case COMMAND_OPEN:
		well = open_worker(worker, result);
		break;
	case COMMAND_PREPARE:
		well = prepare(worker, command, result);
		break;
	case COMMAND_USAGE:
		well = ask_usage(worker, result);
		break;
	case COMMAND_RUN:
		well = run(worker, command, result);
		break;
	case COMMAND_FINISH:
		well = finish(worker, result);
		break;
	case COMMAND_CEILING:
		well = ceiling_run(worker->options, worker->ceiling_port, worker->live, command,
				   result);
		break;
	case COMMAND_CLOSE:
		close_worker(worker);
		break;
	}
	if (!well && worker->context && command->kind != COMMAND_CEILING)
		give_up(worker);
}

void worker_free(struct worker *worker)
{
	if (!worker)
		return;
	if (worker->context)
		close_worker(worker);
	free(worker->links);
	free(worker);
}
