/* SPDX-License-Identifier: Apache-2.0 */
#include <errno.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/queue.h>

#include "tensor_transfer.h"

/* How long a signal may go unnoticed: it may arrive just before haul_poll() begins to wait. */
#define LOOK_AROUND_MS 250

/* A connected peer, which is a worker once its hello was taken. */
struct peer {
	LIST_ENTRY(peer) entry;
	struct server *server;
	haul_endpoint *endpoint;
	bool is_worker, finished;
	struct hello hello;
	haul_region *variable, *buffer; /* the buffer only where it is not the variable */
	int64_t elements;
	uint64_t tensors; /* that were assigned */
	char answer[TRANSFER_ANSWER_MAX];
	int64_t assigned, mismatches;
	struct operation greeting, answering, receiving, telling, finishing, ending;
};

struct server {
	const struct transfer_options *options;
	haul_context *context;
	LIST_HEAD(, peer) peers;
	bool *seen;                     /* by worker */
	unsigned came, ended, finished; /* workers */
	uint64_t idle_since;            /* bench_now(): workers are missing, and none is at work */
	uint64_t told_at;               /* ... when that was told last */
	bool failed;
	uint64_t tensors, assign_ns;
	int64_t mismatches;
};

static volatile sig_atomic_t told_to_stop;

static void stop(int number)
{
	(void)number;
	told_to_stop = 1;
}

/* ---- Operations ---- */

static void peer_fail(struct peer *peer, const char *what, int error, const char *detail)
{
	if (peer->is_worker)
		bench_complain("worker %lld (%s): %s: %s", (long long)peer->hello.worker,
			       haul_endpoint_address(peer->endpoint), what,
			       failure_text(error, detail));
	else
		bench_complain("%s: %s: %s", haul_endpoint_address(peer->endpoint), what,
			       failure_text(error, detail));
	peer->server->failed |= peer->is_worker;
}

static void receive(struct peer *peer, const char *key, DLTensor *tensor, haul_region *region,
		    struct operation *operation)
{
	struct haul_op op = HAUL_OP_INIT;
	int error;

	op.cookie = operation;
	error = haul_recv(peer->endpoint, haul_key(key), tensor, region, &op);
	if (error && error != -ENOTCONN) /* what was lost is told by HAUL_LOST */
		peer_fail(peer, key, error, haul_detail(peer->server->context));
}

static void send_words(struct peer *peer, const char *key, int64_t *word,
		       struct operation *operation)
{
	const int64_t one = 1;
	DLTensor tensor = words_tensor(word, &one);
	struct haul_op op = HAUL_OP_INIT;
	int error;

	op.cookie = operation;
	error = haul_send(peer->endpoint, haul_key(key), &tensor, NULL, &op);
	if (error && error != -ENOTCONN)
		peer_fail(peer, key, error, haul_detail(peer->server->context));
}

/* ---- The variable ---- */

static void receive_variable(struct peer *peer)
{
	haul_region *region = peer->buffer ? peer->buffer : peer->variable;
	DLTensor tensor = variable_tensor(haul_region_base(region), &peer->elements);

	receive(peer, "variable", &tensor, region, &peer->receiving);
}

static void assign(struct peer *peer)
{
	float *variable = haul_region_base(peer->variable);
	const float *value = peer->buffer ? haul_region_base(peer->buffer) : variable;

	if (peer->server->options->assign == ASSIGN_COPY)
		memcpy(variable, value, (size_t)peer->elements * sizeof(*variable));
	for (int64_t i = 0; peer->server->options->assign == ASSIGN_ADD && i < peer->elements; i++)
		variable[i] += value[i];
}

static void variable_came(struct operation *operation, const struct haul_completion *completion,
			  uint64_t now)
{
	struct peer *peer = operation->owner;
	haul_context *context = peer->server->context;
	uint64_t begin;

	(void)now;
	if (completion->result)
		return; /* the end of the peer, which is told for itself */
	now = bench_now();
	begin = haul_trace_clock(context);
	assign(peer);
	haul_trace_span(context, "assign", begin, (uint64_t)peer->elements * sizeof(float));
	peer->assigned = (int64_t)(bench_now() - now);
	peer->server->assign_ns += (uint64_t)peer->assigned;
	peer->server->tensors++;
	/* The next one may come as soon as the worker knows of this one. */
	if (++peer->tensors <= peer->server->options->iterations)
		receive_variable(peer);
	send_words(peer, "assigned", &peer->assigned, &peer->telling);
}

static void nothing_more(struct operation *operation, const struct haul_completion *completion,
			 uint64_t now)
{
	(void)operation;
	(void)completion;
	(void)now;
}

static void result_arrived(struct operation *operation, const struct haul_completion *completion,
			   uint64_t now)
{
	struct peer *peer = operation->owner;

	(void)now;
	peer->finished = completion->result == 0;
}

static void worker_finishes(struct operation *operation, const struct haul_completion *completion,
			    uint64_t now)
{
	struct peer *peer = operation->owner;
	bool adds = peer->server->options->assign == ASSIGN_ADD;

	(void)now;
	if (completion->result)
		return;
	peer->mismatches = (int64_t)transfer_mismatches(
		haul_region_base(peer->variable), (uint64_t)peer->elements,
		(unsigned)peer->hello.worker, adds ? peer->tensors : 1);
	peer->server->mismatches += peer->mismatches;
	if (peer->mismatches)
		bench_complain("worker %lld: %lld elements of its variable are wrong",
			       (long long)peer->hello.worker, (long long)peer->mismatches);
	send_words(peer, "result", &peer->mismatches, &peer->ending);
}

/* ---- Workers come ---- */

/* "" when the worker means the same as this server. */
static void check_hello(struct peer *peer)
{
	const struct transfer_options *options = peer->server->options;
	const struct hello *hello = &peer->hello;
	char *why = peer->answer;
	size_t room = sizeof(peer->answer);

	if (hello->magic != HELLO_MAGIC || hello->version != HELLO_VERSION)
		snprintf(why, room, "this is tensor_transfer_throughput, version %d",
			 HELLO_VERSION);
	else if (hello->workers != options->workers.count ||
		 hello->servers != options->servers.count)
		snprintf(why, room,
			 "the server has %u --ps-hosts and %u --worker-hosts, the worker %lld and "
			 "%lld",
			 options->servers.count, options->workers.count, (long long)hello->servers,
			 (long long)hello->workers);
	else if (hello->server != options->task)
		snprintf(why, room, "this is --task=%u of --ps-hosts, not %lld", options->task,
			 (long long)hello->server);
	else if (hello->worker < 0 || hello->worker >= hello->workers)
		snprintf(why, room, "there is no worker %lld", (long long)hello->worker);
	else if (peer->server->seen[hello->worker])
		snprintf(why, room, "a worker with --task=%lld is there already",
			 (long long)hello->worker);
	else if (hello->bytes != (int64_t)options->bytes)
		snprintf(why, room, "the server has --data-mb=%llu, the worker %lld",
			 (unsigned long long)options->bytes / 1000000,
			 (long long)hello->bytes / 1000000);
	else if (hello->iterations != (int64_t)options->iterations)
		snprintf(why, room, "the server has --iters=%llu, the worker %lld",
			 (unsigned long long)options->iterations, (long long)hello->iterations);
	else if (hello->assign != (int64_t)options->assign)
		snprintf(why, room, "the server has --assign=%s, the worker another one",
			 assign_names[options->assign]);
}

static bool make_variable(struct peer *peer)
{
	const struct transfer_options *options = peer->server->options;
	haul_context *context = peer->server->context;
	int error = haul_region_allocate(context, options->bytes, HAUL_USE_RECV, &peer->variable);

	if (!error && options->assign != ASSIGN_PLACE)
		error = haul_region_allocate(context, options->bytes, HAUL_USE_RECV, &peer->buffer);
	if (error)
		snprintf(peer->answer, sizeof(peer->answer), "the server's variable: %s",
			 failure_text(error, haul_detail(context)));
	peer->elements = (int64_t)(options->bytes / sizeof(float));
	return error == 0;
}

static void answer_hello(struct peer *peer)
{
	const int64_t none = 0, length = (int64_t)strlen(peer->answer);
	DLTensor text = bytes_tensor(peer->answer, &length);
	DLTensor nothing = bytes_tensor(NULL, &none);
	struct haul_op op = HAUL_OP_INIT;
	int error;

	if (!peer->answer[0]) {
		receive_variable(peer);
		receive(peer, "finish", &nothing, NULL, &peer->finishing);
	}
	op.cookie = &peer->answering;
	error = haul_send(peer->endpoint, haul_key("answer"), &text, NULL, &op);
	if (error && error != -ENOTCONN)
		peer_fail(peer, "answer", error, haul_detail(peer->server->context));
}

static void hello_came(struct operation *operation, const struct haul_completion *completion,
		       uint64_t now)
{
	struct peer *peer = operation->owner;

	(void)now;
	if (completion->result)
		return;
	if (completion->tensor.bytes != sizeof(peer->hello))
		peer->hello.magic = 0;
	check_hello(peer);
	if (!peer->answer[0] && make_variable(peer)) {
		peer->is_worker = true;
		peer->server->seen[peer->hello.worker] = true;
		peer->server->came++;
	} else {
		bench_complain("%s was refused: %s", haul_endpoint_address(peer->endpoint),
			       peer->answer);
	}
	answer_hello(peer);
}

static void accept_peer(struct server *server, haul_endpoint *endpoint)
{
	struct peer *peer = calloc(1, sizeof(*peer));
	const int64_t words = HELLO_WORDS;
	DLTensor hello;

	if (!peer) {
		haul_disconnect(endpoint);
		return;
	}
	peer->server = server;
	peer->endpoint = endpoint;
	peer->greeting = (struct operation){hello_came, peer};
	peer->answering = (struct operation){nothing_more, peer};
	peer->receiving = (struct operation){variable_came, peer};
	peer->telling = (struct operation){nothing_more, peer};
	peer->finishing = (struct operation){worker_finishes, peer};
	peer->ending = (struct operation){result_arrived, peer};
	LIST_INSERT_HEAD(&server->peers, peer, entry);
	haul_endpoint_set_user(endpoint, peer);
	hello = words_tensor(&peer->hello.magic, &words);
	receive(peer, "hello", &hello, NULL, &peer->greeting);
}

/* ---- ... or are missing ---- */

/* As many as a line can name. */
#define NAMED_MAX 8

static void complain_of_missing(const struct server *server, const char *what)
{
	const struct transfer_options *options = server->options;
	unsigned missing = options->workers.count - server->came, named = 0;
	char names[128] = "";

	for (unsigned task = 0; task < options->workers.count && named < NAMED_MAX; task++) {
		size_t used = strlen(names);

		if (!server->seen[task])
			snprintf(names + used, sizeof(names) - used, "%s%u", named++ ? ", " : "",
				 task);
	}
	bench_complain("%s worker%s %s%s of %u", what, missing == 1 ? "" : "s", names,
		       missing > named ? ", ..." : "", options->workers.count);
}

/* False when it has waited for long enough. */
static bool look_for_missing(struct server *server)
{
	const struct transfer_options *options = server->options;
	uint64_t now = bench_now(), ms;
	char what[64];

	if (server->came == options->workers.count)
		return true;
	if (server->came > server->ended)
		server->idle_since = server->told_at = now;
	ms = (now - server->idle_since) / NS_PER_MS;
	if (options->wait_ms && ms >= (uint64_t)options->wait_ms) {
		snprintf(what, sizeof(what), "gave up after --wait=%g s without",
			 options->wait_ms / 1e3);
		complain_of_missing(server, what);
		return false;
	}
	if (now - server->told_at >= (uint64_t)options->timeout_ms * NS_PER_MS) {
		server->told_at = now;
		complain_of_missing(server, "still waiting for");
	}
	return true;
}

/* ---- ... and go ---- */

static void peer_free(struct peer *peer)
{
	LIST_REMOVE(peer, entry);
	haul_disconnect(peer->endpoint);
	haul_region_release(peer->variable);
	haul_region_release(peer->buffer);
	free(peer);
}

/* Its operations have ended: HAUL_LOST is the last completion. */
static void lose_peer(struct peer *peer, const struct haul_completion *completion)
{
	struct server *server = peer->server;

	if (peer->is_worker && !peer->finished)
		peer_fail(peer, "left before its end", completion->result, completion->detail);
	/* It may come again, or another one in its place. */
	if (!peer->is_worker && !peer->answer[0]) {
		bench_complain("%s left before it said which worker it is",
			       haul_endpoint_address(peer->endpoint));
		complain_of_missing(server, "waiting for");
	}
	server->ended += peer->is_worker;
	server->finished += peer->finished;
	peer_free(peer);
}

static void take(struct server *server, const struct haul_completion *completion)
{
	if (completion->event == HAUL_ACCEPTED && completion->result == 0)
		accept_peer(server, completion->endpoint);
	else if (completion->event == HAUL_LOST)
		lose_peer(completion->cookie, completion);
	else if (completion->event == HAUL_SENT || completion->event == HAUL_RECEIVED)
		operation_done(completion, 0);
}

/* Until every worker has come and gone, a signal, or nobody came. */
static bool serve(struct server *server)
{
	struct haul_completion completions[64];

	server->idle_since = server->told_at = bench_now();
	while (!told_to_stop && server->ended < server->options->workers.count) {
		int count = haul_poll(server->context, completions, ARRAY_LENGTH(completions),
				      LOOK_AROUND_MS);

		if (count < 0 && count != -EINTR) {
			bench_complain("haul_poll: %s",
				       failure_text(count, haul_detail(server->context)));
			return false;
		}
		for (int i = 0; i < count; i++)
			take(server, &completions[i]);
		if (!look_for_missing(server))
			return false;
	}
	if (server->ended < server->options->workers.count)
		bench_complain("stopped: %u of %u workers have finished", server->finished,
			       server->options->workers.count);
	return server->ended == server->options->workers.count && !server->failed;
}

/* ---- The program ---- */

static cJSON *report_json(const struct server *server)
{
	const struct transfer_options *options = server->options;
	struct bench_usage usage = bench_usage_now();
	double bytes = (double)server->tensors * (double)options->bytes;
	cJSON *json = cJSON_CreateObject();

	cJSON_AddStringToObject(json, "tool", "tensor_transfer_throughput");
	cJSON_AddStringToObject(json, "job", "ps");
	bench_json_number(json, "task", options->task);
	bench_json_number(json, "workers", options->workers.count);
	bench_json_number(json, "finished", server->finished);
	cJSON_AddStringToObject(json, "transport", haul_spec(server->context));
	cJSON_AddStringToObject(json, "assign", assign_names[options->assign]);
	bench_json_number(json, "variable_bytes", (double)options->bytes);
	bench_json_number(json, "tensors", (double)server->tensors);
	bench_json_number(json, "assign_s", (double)server->assign_ns / NS_PER_S);
	bench_json_number(json, "cpu_s_per_gb", (usage.user_s + usage.system_s) * 1e9 / bytes);
	bench_json_number(json, "mismatches", (double)server->mismatches);
	return json;
}

static bool listen_here(struct server *server, haul_listener **listener)
{
	const struct transfer_options *options = server->options;
	const char *host = options->servers.hosts[options->task];
	bool standard = options->json && strcmp(options->json, "-") == 0;
	int error = haul_listen(server->context, host, NULL, listener);

	if (error) {
		bench_complain("--ps-hosts: task %u, %s: %s", options->task, host,
			       failure_text(error, haul_detail(server->context)));
		return false;
	}
	fprintf(standard ? stderr : stdout, "listening on %s\n", haul_listener_address(*listener));
	fflush(stdout);
	return true;
}

int transfer_serve(const struct transfer_options *options, haul_context *context)
{
	struct server server = {.options = options, .context = context};
	struct sigaction action = {.sa_handler = stop};
	haul_listener *listener = NULL;
	struct peer *peer;
	bool well = false;

	/* Without SA_RESTART: what waits shall come back and look. */
	sigaction(SIGINT, &action, NULL);
	sigaction(SIGTERM, &action, NULL);
	LIST_INIT(&server.peers);
	server.seen = calloc(options->workers.count, sizeof(*server.seen));
	if (server.seen && listen_here(&server, &listener)) {
		well = serve(&server);
		if (options->json)
			well = transfer_write_json(options, report_json(&server)) && well;
		else
			printf("ps %u: %u of %u workers finished, %llu tensors, %.3f s for the "
			       "assign\n",
			       options->task, server.finished, options->workers.count,
			       (unsigned long long)server.tensors,
			       (double)server.assign_ns / NS_PER_S);
	}
	haul_listener_close(listener);
	while ((peer = LIST_FIRST(&server.peers)))
		peer_free(peer);
	free(server.seen);
	return well && !server.mismatches ? 0 : EXIT_FAILED;
}
