/* SPDX-License-Identifier: Apache-2.0 */
/*
 * One client's endpoint on the server: it waits for a request, does it, sends the answer, and
 * only then waits for the next request, so that a client can't make it queue anything.
 */
#include <errno.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "server.h"

struct peer {
	LIST_ENTRY(peer) link;
	struct server *server;
	haul_endpoint *endpoint; /* NULL once it is disconnected */
	haul_region *region;     /* a request, and behind it an answer */
	char *request_text, *answer_text;
	struct operation request, answer;
	unsigned outstanding; /* of these two */
	struct flow flows[2]; /* what it receives (or echoes), what it sends */
	bool open[2];
	bool finishing; /* the answer to finish is due when the flows are idle */
	bool attending; /* is on the server's list */
	TAILQ_ENTRY(peer) attention;
	bool polling;
	struct haul_statistics before; /* size is 0 when they are not known */
};

enum { FLOW_IN, FLOW_OUT };

static void answer(struct peer *peer, struct answer *reply);

/* ---- Memory ---- */

static bool memory_take(struct peer *peer, uint64_t bytes)
{
	struct server *server = peer->server;

	if (bytes > server->memory_limit - server->memory_used)
		return false;
	server->memory_used += bytes;
	return true;
}

static void memory_give_back(struct peer *peer, uint64_t bytes)
{
	peer->server->memory_used -= bytes;
}

#define PEER_MEMORY (sizeof(struct peer) + 2 * PROTOCOL_TEXT_MAX)

/* ---- Life ---- */

__attribute__((format(printf, 2, 3))) static void say(const struct peer *peer, const char *format,
						      ...)
{
	va_list arguments;

	if (!peer->server->verbose)
		return;
	va_start(arguments, format);
	vfprintf(stderr, format, arguments);
	va_end(arguments);
}

static void close_flows(struct peer *peer)
{
	for (int i = 0; i < 2; i++) {
		uint64_t bytes;

		if (!peer->open[i])
			continue;
		bytes = flow_memory(&peer->flows[i].settings);
		peer->server->tensors += peer->flows[i].tensors;
		peer->server->verified += peer->flows[i].verified;
		peer->server->mismatches += peer->flows[i].mismatches;
		flow_close(&peer->flows[i]);
		memory_give_back(peer, bytes);
		peer->open[i] = false;
	}
	if (peer->polling) {
		peer->polling = false;
		peer->server->polling--;
	}
}

static bool flows_are_idle(const struct peer *peer)
{
	return !(peer->open[FLOW_IN] && peer->flows[FLOW_IN].outstanding) &&
	       !(peer->open[FLOW_OUT] && peer->flows[FLOW_OUT].outstanding);
}

/* Have it looked at when this batch of completions is through: nothing is released inside. */
static void call_attention(struct peer *peer)
{
	if (!peer->attending)
		TAILQ_INSERT_TAIL(&peer->server->attention, peer, attention);
	peer->attending = true;
}

static void release(struct peer *peer)
{
	struct server *server = peer->server;

	close_flows(peer);
	haul_region_release(peer->region);
	LIST_REMOVE(peer, link);
	memory_give_back(peer, PEER_MEMORY);
	server->peer_count--;
	free(peer);
}

void peer_drop(struct peer *peer)
{
	haul_endpoint *endpoint = peer->endpoint;

	if (!endpoint)
		return;
	for (int i = 0; i < 2; i++)
		if (peer->open[i])
			flow_abandon(&peer->flows[i]);
	peer->endpoint = NULL;
	haul_endpoint_set_user(endpoint, NULL);
	haul_disconnect(endpoint);
	call_attention(peer);
}

void peer_lost(struct peer *peer, int result, const char *detail)
{
	if (!peer || !peer->endpoint)
		return;
	if (result)
		bench_complain("client %s was lost: %s", haul_endpoint_address(peer->endpoint),
			       failure_text(result, detail));
	else
		say(peer, "client %s left\n", haul_endpoint_address(peer->endpoint));
	peer_drop(peer);
}

/* ---- Requests ---- */

static void wait_for_request(struct peer *peer)
{
	struct haul_op op = {.size = sizeof(op), .cookie = &peer->request};
	int64_t shape[1] = {PROTOCOL_TEXT_MAX};
	DLTensor tensor = haul_tensor(peer->request_text, (DLDataType){kDLUInt, 8, 1}, 1, shape);
	int result = haul_recv(peer->endpoint, haul_key(PROTOCOL_REQUEST_KEY), &tensor,
			       peer->region, &op);

	if (result)
		peer_drop(peer);
	else
		peer->outstanding++;
}

static void refuse(struct peer *peer, const char *why)
{
	struct answer reply = {0};

	snprintf(reply.error, sizeof(reply.error), "%s", why);
	bench_complain("client %s: %s", haul_endpoint_address(peer->endpoint), why);
	answer(peer, &reply);
}

static void hello(struct peer *peer)
{
	struct server *server = peer->server;
	struct answer reply = {.memory = server->memory_limit};

	snprintf(reply.spec, sizeof(reply.spec), "%s", haul_spec(server->context));
	if (server->ceiling)
		reply.ceiling_port = plain_server_port(server->ceiling);
	answer(peer, &reply);
}

/* ---- Rounds ---- */

static struct flow_settings settings_of(const struct round_request *round, enum flow_role role)
{
	return (struct flow_settings){.role = role,
				      .size = round->size,
				      .concurrency = round->concurrency,
				      .number = round->number,
				      .seed = round->seed,
				      .verify = round->verify};
}

static bool open_flow(struct peer *peer, int which, const struct flow_settings *settings, char *why,
		      size_t room)
{
	struct flow *flow = &peer->flows[which];
	const struct server *server = peer->server;
	char size[BENCH_SIZE_TEXT], left[BENCH_SIZE_TEXT], limit[BENCH_SIZE_TEXT];
	uint64_t bytes = flow_memory(settings);

	if (!memory_take(peer, bytes)) {
		snprintf(why, room,
			 "%u tensors of %s need more than the %s that are left of the "
			 "server's --memory=%s",
			 settings->concurrency, bench_size_text(size, settings->size),
			 bench_size_text(left, server->memory_limit - server->memory_used),
			 bench_size_text(limit, server->memory_limit));
		return false;
	}
	if (flow_open(flow, peer->server->context, peer->endpoint, settings)) {
		snprintf(why, room, "%s", flow->detail);
		memory_give_back(peer, bytes);
		return false;
	}
	peer->open[which] = true;
	return true;
}

static bool open_round(struct peer *peer, const struct round_request *round, char *why, size_t room)
{
	struct flow_settings in, out;

	if (round->kind == ROUND_PINGS) {
		in = settings_of(round, FLOW_ECHOES);
		return open_flow(peer, FLOW_IN, &in, why, room);
	}
	in = settings_of(round, FLOW_RECEIVES);
	out = settings_of(round, FLOW_SENDS);
	if (round->direction != DIRECTION_RECV && !open_flow(peer, FLOW_IN, &in, why, room))
		return false;
	if (round->direction != DIRECTION_SEND && !open_flow(peer, FLOW_OUT, &out, why, room))
		return false;
	return true;
}

static void read_statistics(struct peer *peer, struct haul_statistics *statistics)
{
	*statistics = (struct haul_statistics){.size = sizeof(*statistics)};
	if (haul_endpoint_statistics(peer->endpoint, statistics))
		statistics->size = 0;
}

static void start_round(struct peer *peer, const struct round_request *round)
{
	struct answer reply = {0};
	char why[sizeof(reply.error)];

	if (peer->open[FLOW_IN] || peer->open[FLOW_OUT]) {
		refuse(peer, "start, although a round is not finished yet");
		return;
	}
	if (!open_round(peer, round, why, sizeof(why))) {
		close_flows(peer);
		refuse(peer, why);
		return;
	}
	peer->server->rounds++;
	peer->polling = round->poll;
	peer->server->polling += round->poll;
	read_statistics(peer, &peer->before);
	for (int i = 0; i < 2; i++)
		if (peer->open[i])
			flow_start(&peer->flows[i]);
	answer(peer, &reply);
}

static void describe_round(struct peer *peer, struct answer *reply)
{
	struct haul_statistics now;

	for (int i = 0; i < 2; i++) {
		const struct flow *flow = &peer->flows[i];

		if (!peer->open[i])
			continue;
		reply->verified += flow->verified;
		reply->mismatches += flow->mismatches;
		if (i == FLOW_IN)
			reply->tensors_received += flow->tensors;
		if (flow->error && !reply->error[0])
			snprintf(reply->error, sizeof(reply->error), "%s", flow->detail);
	}
	read_statistics(peer, &now);
	reply->statistics = now.size && peer->before.size;
	if (reply->statistics) {
		reply->chunks_sent = now.chunks_sent - peer->before.chunks_sent;
		reply->chunks_again = now.chunks_again - peer->before.chunks_again;
	}
}

static void finish_round(struct peer *peer)
{
	if (!peer->open[FLOW_IN] && !peer->open[FLOW_OUT]) {
		refuse(peer, "finish, although no round was started");
		return;
	}
	for (int i = 0; i < 2; i++)
		if (peer->open[i])
			flow_cancel(&peer->flows[i]);
	peer->finishing = true;
	call_attention(peer);
}

static void answer_finish(struct peer *peer)
{
	struct answer reply = {0};

	peer->finishing = false;
	describe_round(peer, &reply);
	close_flows(peer);
	answer(peer, &reply);
}

void server_attend(struct server *server)
{
	struct peer *peer, *next;

	for (peer = TAILQ_FIRST(&server->attention); peer; peer = next) {
		next = TAILQ_NEXT(peer, attention);
		if (!flows_are_idle(peer) || (!peer->endpoint && peer->outstanding))
			continue;
		if (peer->endpoint && peer->finishing)
			answer_finish(peer);
		/* Sending the answer may have found that the endpoint is gone. */
		if (!peer->endpoint && peer->outstanding)
			continue;
		TAILQ_REMOVE(&server->attention, peer, attention);
		peer->attending = false;
		if (!peer->endpoint)
			release(peer);
	}
}

static void handle_request(struct peer *peer, const struct haul_completion *completion)
{
	struct request request;
	struct answer reply = {0};
	char why[128], sentence[160];

	if (protocol_read_request(peer->request_text, completion->tensor.bytes, &request, why,
				  sizeof(why))) {
		snprintf(sentence, sizeof(sentence), "a bad request: %s", why);
		refuse(peer, sentence);
		return;
	}
	switch (request.kind) {
	case REQUEST_HELLO:
		hello(peer);
		break;
	case REQUEST_START:
		start_round(peer, &request.round);
		break;
	case REQUEST_USAGE:
		answer(peer, &reply);
		break;
	case REQUEST_FINISH:
		finish_round(peer);
		break;
	}
}

/* ---- Completions ---- */

static void request_done(struct operation *operation, const struct haul_completion *completion,
			 uint64_t now)
{
	struct peer *peer = operation->owner;

	(void)now;
	peer->outstanding--;
	if (peer->endpoint && completion->result == -EMSGSIZE) {
		bench_complain("client %s: a request of %llu bytes, at most %d are taken",
			       haul_endpoint_address(peer->endpoint),
			       (unsigned long long)completion->tensor.bytes, PROTOCOL_TEXT_MAX);
		peer_drop(peer);
	} else if (peer->endpoint && completion->result == 0) {
		handle_request(peer, completion);
	}
	/* Otherwise it was dropped here, or lost: then HAUL_LOST follows. */
}

static void answer_done(struct operation *operation, const struct haul_completion *completion,
			uint64_t now)
{
	struct peer *peer = operation->owner;

	(void)now;
	peer->outstanding--;
	if (peer->endpoint && completion->result == 0)
		wait_for_request(peer);
}

static void answer(struct peer *peer, struct answer *reply)
{
	struct haul_op op = {.size = sizeof(op), .cookie = &peer->answer};
	int64_t shape[1];
	DLTensor tensor;
	struct haul_statistics statistics = {.size = sizeof(statistics)};
	int length, result;

	reply->usage = bench_usage_now();
	if (haul_endpoint_statistics(peer->endpoint, &statistics) == 0)
		reply->arrived = (double)statistics.bytes_arrived;
	reply->clock_s = (double)bench_now() / NS_PER_S;
	length = protocol_write_answer(reply, peer->answer_text);
	if (length < 0) {
		peer_drop(peer);
		return;
	}
	shape[0] = length;
	tensor = haul_tensor(peer->answer_text, (DLDataType){kDLUInt, 8, 1}, 1, shape);
	result = haul_send(peer->endpoint, haul_key(PROTOCOL_ANSWER_KEY), &tensor, peer->region,
			   &op);
	if (result)
		peer_drop(peer);
	else
		peer->outstanding++;
}

void peer_accepted(struct server *server, haul_endpoint *endpoint)
{
	struct peer *peer = calloc(1, sizeof(*peer));

	if (!peer)
		goto fail;
	peer->server = server;
	peer->endpoint = endpoint;
	peer->request = (struct operation){request_done, peer};
	peer->answer = (struct operation){answer_done, peer};
	if (!memory_take(peer, PEER_MEMORY)) {
		bench_complain("client %s turned away: --memory=%llu is used up",
			       haul_endpoint_address(endpoint),
			       (unsigned long long)server->memory_limit);
		goto fail;
	}
	if (haul_region_allocate(server->context, 2 * PROTOCOL_TEXT_MAX,
				 HAUL_USE_SEND | HAUL_USE_RECV, &peer->region)) {
		bench_complain("client %s turned away: %s", haul_endpoint_address(endpoint),
			       haul_detail(server->context));
		memory_give_back(peer, PEER_MEMORY);
		goto fail;
	}
	peer->request_text = haul_region_base(peer->region);
	peer->answer_text = peer->request_text + PROTOCOL_TEXT_MAX;
	haul_endpoint_set_user(endpoint, peer);
	LIST_INSERT_HEAD(&server->peers, peer, link);
	server->peer_count++;
	server->peers_served++;
	say(peer, "client %s came\n", haul_endpoint_address(endpoint));
	wait_for_request(peer);
	return;
fail:
	free(peer);
	haul_disconnect(endpoint);
}

void server_drop_all(struct server *server)
{
	struct peer *peer;

	LIST_FOREACH (peer, &server->peers, link)
		peer_drop(peer);
}
