/* SPDX-License-Identifier: Apache-2.0 */
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "client_worker.h"

static int patience_ms(const struct worker *worker)
{
	return (int)(worker->options->patience * 1000);
}

/* ---- Requests ---- */

bool worker_ask(struct worker *worker, struct link *link, const struct request *request,
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
	if (!worker_ask(worker, link, &request, &answer, result))
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

/* ---- Rounds ---- */

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
		/* The server may have too little memory: ours is filled when it has agreed. */
		if (!worker_ask(worker, &worker->links[i], &request, &answer, result) ||
		    !open_flows(worker, &worker->links[i], command->test, round, result))
			return false;
	}
	return true;
}

static bool ask_usage(struct worker *worker, struct result *result)
{
	struct request request = {.kind = REQUEST_USAGE};
	struct answer answer;

	if (!worker_ask(worker, &worker->links[0], &request, &answer, result))
		return false;
	result->usage = answer.usage;
	return true;
}

void worker_close_flows(struct worker *worker)
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

		well = worker_ask(worker, &worker->links[i], &request, &answer, result);
		if (!well)
			break;
		result->verified += answer.verified;
		result->mismatches += answer.mismatches;
		result->chunks_sent += answer.chunks_sent;
		result->chunks_again += answer.chunks_again;
		result->statistics = result->statistics && answer.statistics;
	}
	worker_close_flows(worker);
	return well;
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
		well = measurement_run(worker, command, result);
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
		measurement_give_up(worker);
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
