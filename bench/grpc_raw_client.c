/* SPDX-License-Identifier: Apache-2.0 */
#include <errno.h>
#include <grpc/byte_buffer.h>
#include <grpc/byte_buffer_reader.h>
#include <grpc/grpc_security.h>
#include <grpc/slice.h>
#include <grpc/support/log.h>
#include <grpc/support/time.h>
#include <math.h>
#include <netinet/in.h>
#include <pthread.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

#include "content.h"
#include "grpc_raw.h"
#include "socket_count.h"

struct channel {
	grpc_channel *channel;
	void *discard, *usage; /* the methods */
};

struct queue {
	struct client *client;
	grpc_completion_queue *queue;
	pthread_t thread;
	bool started;
};

/* One call after the other. Its address is its tag. */
struct call {
	struct channel *channel;
	struct queue *queue;
	grpc_call *call;
	uint64_t start; /* 0: not in flight */
	bool owed;      /* in flight when the window ended */
	grpc_byte_buffer *request, *response;
	grpc_metadata_array initial, trailing;
	grpc_status_code status;
	grpc_slice details;
};

struct client {
	const struct raw_options *options;
	struct raw_result *result;
	struct channel channels[RAW_CHANNELS_MAX];
	struct queue queues[RAW_QUEUES_MAX];
	unsigned channel_count, queue_count;
	struct call *calls;
	size_t call_count;
	uint8_t *message;
	uint64_t response_size;

	/* Guards what follows, each call's `start`, and its `call` while `start` is set. */
	pthread_mutex_t mutex;
	pthread_cond_t ended; /* on the clock of bench_now() */
	unsigned running;     /* threads */
	uint64_t last_end;    /* of a call */
	bool closed;          /* the window is over */
	uint64_t owed;        /* then: calls in flight that began within it */
	bool stopping, failed;
};

/* ---- One call ---- */

static void call_init(struct call *call, struct channel *channel, struct queue *queue)
{
	*call = (struct call){.channel = channel, .queue = queue};
	call->details = grpc_empty_slice();
	grpc_metadata_array_init(&call->initial);
	grpc_metadata_array_init(&call->trailing);
}

static grpc_call *call_create(const struct call *call, void *method)
{
	return grpc_channel_create_registered_call(
		call->channel->channel, NULL, GRPC_PROPAGATE_DEFAULTS, call->queue->queue, method,
		gpr_inf_future(GPR_CLOCK_REALTIME), NULL);
}

/* Send the request; one event says that the answer is there, or that there will be none. */
static void call_start(struct call *call, const void *bytes, size_t length)
{
	grpc_op operations[6] = {
		{.op = GRPC_OP_SEND_INITIAL_METADATA},  {.op = GRPC_OP_SEND_MESSAGE},
		{.op = GRPC_OP_SEND_CLOSE_FROM_CLIENT}, {.op = GRPC_OP_RECV_INITIAL_METADATA},
		{.op = GRPC_OP_RECV_MESSAGE},           {.op = GRPC_OP_RECV_STATUS_ON_CLIENT},
	};

	/* gRPC takes the slices out of a byte buffer: each call needs one of its own. */
	call->request = raw_message(bytes, length);
	operations[1].data.send_message.send_message = call->request;
	operations[3].data.recv_initial_metadata.recv_initial_metadata = &call->initial;
	operations[4].data.recv_message.recv_message = &call->response;
	operations[5].data.recv_status_on_client.trailing_metadata = &call->trailing;
	operations[5].data.recv_status_on_client.status = &call->status;
	operations[5].data.recv_status_on_client.status_details = &call->details;
	GPR_ASSERT(grpc_call_start_batch(call->call, operations, ARRAY_LENGTH(operations), call,
					 NULL) == GRPC_CALL_OK);
}

/* Give back what an ended call holds; it may be started again. */
static void call_reset(struct call *call)
{
	if (call->request)
		grpc_byte_buffer_destroy(call->request);
	if (call->response)
		grpc_byte_buffer_destroy(call->response);
	call->request = call->response = NULL;
	grpc_slice_unref(call->details);
	call->details = grpc_empty_slice();
	call->initial.count = call->trailing.count = 0;
	grpc_call_unref(call->call);
	call->call = NULL;
}

static void call_fini(struct call *call)
{
	grpc_metadata_array_destroy(&call->initial);
	grpc_metadata_array_destroy(&call->trailing);
}

/* What an ended call has to tell; "" when it went well. */
static void call_failure(const struct call *call, uint64_t response_size, char *why, size_t room)
{
	static const char *const names[] = {
		"OK",
		"CANCELLED",
		"UNKNOWN",
		"INVALID_ARGUMENT",
		"DEADLINE_EXCEEDED",
		"NOT_FOUND",
		"ALREADY_EXISTS",
		"PERMISSION_DENIED",
		"RESOURCE_EXHAUSTED",
		"FAILED_PRECONDITION",
		"ABORTED",
		"OUT_OF_RANGE",
		"UNIMPLEMENTED",
		"INTERNAL",
		"UNAVAILABLE",
		"DATA_LOSS",
		"UNAUTHENTICATED",
	};
	size_t length = call->response ? grpc_byte_buffer_length(call->response) : 0;
	const char *name = (size_t)call->status < ARRAY_LENGTH(names) ? names[call->status] : "?";

	why[0] = '\0';
	if (call->status != GRPC_STATUS_OK)
		snprintf(why, room, "%s: %.*s", name, (int)GRPC_SLICE_LENGTH(call->details),
			 (const char *)GRPC_SLICE_START_PTR(call->details));
	else if (!call->response || length != response_size)
		snprintf(why, room, "a response of %zu bytes came, not one of %llu", length,
			 (unsigned long long)response_size);
}

/* ---- The measured calls ---- */

static void client_fail(struct client *client, const char *format, ...)
	__attribute__((format(printf, 2, 3)));

/* Says the first reason, and has the threads end. */
static void client_fail(struct client *client, const char *format, ...)
{
	va_list arguments;
	char why[1024];

	va_start(arguments, format);
	vsnprintf(why, sizeof(why), format, arguments);
	va_end(arguments);
	pthread_mutex_lock(&client->mutex);
	if (!client->failed)
		bench_complain("%s", why);
	client->failed = client->stopping = true;
	pthread_mutex_unlock(&client->mutex);
}

/* Whether it was started: not when all is over. */
static bool client_start(struct client *client, struct call *call)
{
	uint64_t start = bench_now();
	grpc_call *fresh = call_create(call, call->channel->discard);
	bool stopping;

	pthread_mutex_lock(&client->mutex);
	stopping = client->stopping;
	call->call = fresh;
	call->start = stopping ? 0 : start;
	call->owed = false;
	pthread_mutex_unlock(&client->mutex);
	if (stopping)
		call_reset(call);
	else
		call_start(call, client->message, client->options->message_size);
	return !stopping;
}

/* The window is over: all calls that began within it have to end before the flow may thin out. */
static void close_window(struct client *client)
{
	const struct meter *meter = &client->result->meter;

	client->closed = true;
	for (size_t i = 0; i < client->call_count; i++) {
		struct call *call = &client->calls[i];

		call->owed = call->start && call->start < meter->end;
		client->owed += call->owed;
	}
}

static void client_ended(struct client *client, struct call *call)
{
	struct meter *meter = &client->result->meter;
	uint64_t now = bench_now();
	char why[512];

	call_failure(call, client->response_size, why, sizeof(why));
	if (why[0])
		client_fail(client, "a call failed: %s", why);
	pthread_mutex_lock(&client->mutex);
	if (!why[0])
		meter_add(meter, call->start, now, client->options->message_size);
	client->last_end = now;
	call->start = 0;
	client->owed -= call->owed;
	if (!client->closed && now >= meter->end)
		close_window(client);
	if (client->closed && !client->owed)
		client->stopping = true;
	pthread_mutex_unlock(&client->mutex);
}

static void *run_queue(void *argument)
{
	struct queue *queue = argument;
	struct client *client = queue->client;
	size_t in_flight = 0;

	for (size_t i = 0; i < client->call_count; i++)
		if (client->calls[i].queue == queue)
			in_flight += client_start(client, &client->calls[i]);
	while (in_flight) {
		grpc_event event = grpc_completion_queue_next(
			queue->queue, gpr_inf_future(GPR_CLOCK_REALTIME), NULL);
		struct call *call = event.tag;

		client_ended(client, call);
		call_reset(call);
		if (!client_start(client, call))
			in_flight--;
	}
	pthread_mutex_lock(&client->mutex);
	client->running--;
	pthread_cond_signal(&client->ended);
	pthread_mutex_unlock(&client->mutex);
	return NULL;
}

/* ---- Asking the server about itself ---- */

static bool read_number(const cJSON *json, const char *name, double *value)
{
	const cJSON *member = cJSON_GetObjectItem(json, name);

	*value = cJSON_IsNumber(member) ? member->valuedouble : -1;
	return *value >= 0;
}

static bool read_usage(const char *text, size_t length, struct raw_usage *usage)
{
	cJSON *json = cJSON_ParseWithLength(text, length);
	bool well = read_number(json, "cpu_user_s", &usage->cpu.user_s) &&
		    read_number(json, "cpu_system_s", &usage->cpu.system_s) &&
		    read_number(json, "messages", &usage->messages) &&
		    read_number(json, "bytes", &usage->bytes) &&
		    read_number(json, "response_size", &usage->response_size) &&
		    read_number(json, "threads", &usage->threads) &&
		    read_number(json, "completion_queues", &usage->completion_queues);

	usage->keep_memory = cJSON_IsTrue(cJSON_GetObjectItem(json, "keep_memory"));
	cJSON_Delete(json);
	return well;
}

static bool take_usage(const struct call *call, struct raw_usage *usage)
{
	grpc_byte_buffer_reader reader;
	grpc_slice text;
	bool well;

	if (!call->response || !grpc_byte_buffer_reader_init(&reader, call->response))
		return false;
	text = grpc_byte_buffer_reader_readall(&reader);
	grpc_byte_buffer_reader_destroy(&reader);
	well = read_usage((const char *)GRPC_SLICE_START_PTR(text), GRPC_SLICE_LENGTH(text), usage);
	grpc_slice_unref(text);
	return well;
}

/* While no thread runs. It also makes the channel's connection. */
static bool ask_usage(struct client *client, struct channel *channel, struct raw_usage *usage)
{
	const struct raw_options *options = client->options;
	gpr_timespec patience = gpr_time_add(
		gpr_now(GPR_CLOCK_MONOTONIC),
		gpr_time_from_millis((int64_t)(options->patience * 1e3), GPR_TIMESPAN));
	struct call call;
	char why[512];
	bool silent;

	call_init(&call, channel, &client->queues[0]);
	call.call = call_create(&call, channel->usage);
	call_start(&call, NULL, 0);
	silent = grpc_completion_queue_next(call.queue->queue, patience, NULL).type ==
		 GRPC_QUEUE_TIMEOUT;
	if (silent) {
		grpc_call_cancel(call.call, NULL);
		grpc_completion_queue_next(call.queue->queue, gpr_inf_future(GPR_CLOCK_REALTIME),
					   NULL);
	}
	call_failure(&call, call.response ? grpc_byte_buffer_length(call.response) : 0, why,
		     sizeof(why));
	if (silent)
		snprintf(why, sizeof(why), "no answer within %g seconds", options->patience);
	else if (!why[0] && !take_usage(&call, usage))
		snprintf(why, sizeof(why), "it answers, but it is no grpc_raw server");
	call_reset(&call);
	call_fini(&call);
	if (why[0])
		bench_complain("the server on %s port %u: %s", options->host, options->port, why);
	return !why[0];
}

/* ---- Channels and threads ---- */

static void add_channels(struct client *client)
{
	grpc_channel_credentials *credentials = grpc_insecure_credentials_create();
	grpc_arg arguments[] = {
		{.type = GRPC_ARG_INTEGER,
		 .key = (char *)GRPC_ARG_MAX_RECEIVE_MESSAGE_LENGTH,
		 .value.integer = -1},
		/* Channels to one target would share one socket. */
		{.type = GRPC_ARG_INTEGER,
		 .key = (char *)GRPC_ARG_USE_LOCAL_SUBCHANNEL_POOL,
		 .value.integer = client->options->channels > 1},
		/* What is measured is the way to the server. */
		{.type = GRPC_ARG_INTEGER, .key = (char *)GRPC_ARG_ENABLE_HTTP_PROXY},
	};
	grpc_channel_args list = {ARRAY_LENGTH(arguments), arguments};
	char *address = raw_address(client->options->host, client->options->port);

	for (; address && client->channel_count < client->options->channels;
	     client->channel_count++) {
		struct channel *channel = &client->channels[client->channel_count];

		channel->channel = grpc_channel_create(address, credentials, &list);
		channel->discard =
			grpc_channel_register_call(channel->channel, RAW_DISCARD, NULL, NULL);
		channel->usage =
			grpc_channel_register_call(channel->channel, RAW_USAGE, NULL, NULL);
	}
	grpc_channel_credentials_release(credentials);
	free(address);
}

/* The calls of a channel stay on one queue, but for more queues than channels. */
static struct queue *queue_of(struct client *client, size_t call)
{
	bool few = client->queue_count <= client->channel_count;

	return &client->queues[(few ? call % client->channel_count : call) % client->queue_count];
}

static bool client_open(struct client *client)
{
	const struct raw_options *options = client->options;

	client->call_count = (size_t)options->channels * options->concurrency;
	client->calls = calloc(client->call_count, sizeof(*client->calls));
	client->message = malloc(options->message_size ? options->message_size : 1);
	if (!client->calls || !client->message) {
		bench_complain("no memory for --message-size=%llu and %zu calls",
			       (unsigned long long)options->message_size, client->call_count);
		return false;
	}
	content_fill(client->message, options->message_size, 2);
	for (; client->queue_count < options->completion_queues; client->queue_count++)
		client->queues[client->queue_count] = (struct queue){
			.client = client, .queue = grpc_completion_queue_create_for_next(NULL)};
	add_channels(client);
	for (size_t i = 0; i < client->call_count; i++)
		call_init(&client->calls[i], &client->channels[i % client->channel_count],
			  queue_of(client, i));
	return true;
}

static void client_close(struct client *client)
{
	for (size_t i = 0; client->channel_count && i < client->call_count; i++)
		call_fini(&client->calls[i]);
	for (unsigned i = 0; i < client->channel_count; i++)
		grpc_channel_destroy(client->channels[i].channel);
	for (unsigned i = 0; i < client->queue_count; i++) {
		grpc_completion_queue_shutdown(client->queues[i].queue);
		grpc_completion_queue_next(client->queues[i].queue,
					   gpr_inf_future(GPR_CLOCK_REALTIME), NULL);
		grpc_completion_queue_destroy(client->queues[i].queue);
	}
	free(client->message);
	free(client->calls);
}

static void start_threads(struct client *client)
{
	for (unsigned i = 0; i < client->queue_count; i++) {
		struct queue *queue = &client->queues[i];
		int error;

		pthread_mutex_lock(&client->mutex);
		client->running++;
		pthread_mutex_unlock(&client->mutex);
		error = pthread_create(&queue->thread, NULL, run_queue, queue);
		queue->started = error == 0;
		if (error) {
			client_fail(client, "thread %u of --completion-queues=%u: %s", i + 1,
				    client->queue_count, strerror(error));
			pthread_mutex_lock(&client->mutex);
			client->running--;
			pthread_mutex_unlock(&client->mutex);
			return;
		}
	}
}

/* Until all threads have ended; calls that hang are given up. */
static void watch_threads(struct client *client)
{
	uint64_t patience = (uint64_t)(client->options->patience * NS_PER_S);
	bool given_up = false;

	pthread_mutex_lock(&client->mutex);
	while (client->running) {
		uint64_t limit = client->last_end + patience;
		struct timespec time = {(time_t)(limit / NS_PER_S), (long)(limit % NS_PER_S)};

		if (given_up) {
			pthread_cond_wait(&client->ended, &client->mutex);
		} else if (bench_now() < limit) {
			pthread_cond_timedwait(&client->ended, &client->mutex, &time);
		} else {
			given_up = true;
			pthread_mutex_unlock(&client->mutex);
			client_fail(client, "no call ended for %g seconds",
				    client->options->patience);
			pthread_mutex_lock(&client->mutex);
			for (size_t i = 0; i < client->call_count; i++)
				if (client->calls[i].start)
					grpc_call_cancel(client->calls[i].call, NULL);
		}
	}
	pthread_mutex_unlock(&client->mutex);
	for (unsigned i = 0; i < client->queue_count; i++)
		if (client->queues[i].started)
			pthread_join(client->queues[i].thread, NULL);
}

/* ---- The measurement ---- */

static bool connect_channels(struct client *client, struct raw_usage *usage)
{
	const struct raw_options *options = client->options;

	for (unsigned i = 0; i < client->channel_count; i++)
		if (!ask_usage(client, &client->channels[i], usage))
			return false;
	client->response_size = (uint64_t)usage->response_size;
	if (!options->response_given || options->response_size == client->response_size)
		return true;
	bench_complain("--response-size=%llu: the server was started with --response-size=%llu",
		       (unsigned long long)options->response_size,
		       (unsigned long long)client->response_size);
	return false;
}

static void set_window(struct client *client)
{
	const struct raw_options *options = client->options;
	uint64_t begin = bench_now() + (uint64_t)(options->warmup * NS_PER_S);
	uint64_t end = isinf(options->seconds) ? UINT64_MAX
					       : begin + (uint64_t)(options->seconds * NS_PER_S);

	meter_reset(&client->result->meter, begin, end, options->total);
	client->last_end = bench_now();
}

static bool client_measure(struct client *client)
{
	struct raw_result *result = client->result;
	struct bench_usage before;
	struct raw_usage first;
	double arrived;

	if (!connect_channels(client, &first))
		return false;
	before = bench_usage_now();
	set_window(client);
	start_threads(client);
	watch_threads(client);
	if (client->failed)
		return false;
	result->client = bench_usage_since(&before);
	result->sockets = sockets_to_port(client->options->port);
	if (!ask_usage(client, &client->channels[0], &result->service))
		return false;
	result->server.user_s = result->service.cpu.user_s - first.cpu.user_s;
	result->server.system_s = result->service.cpu.system_s - first.cpu.system_s;
	/* Other clients may have added to it. */
	arrived = result->service.bytes - first.bytes;
	if (arrived >= (double)result->meter.all_bytes)
		return true;
	bench_complain("%.0f bytes arrived, of %llu that were sent", arrived,
		       (unsigned long long)result->meter.all_bytes);
	return false;
}

int raw_measure(const struct raw_options *options)
{
	struct client *client = calloc(1, sizeof(*client));
	struct raw_result *result = calloc(1, sizeof(*result));
	pthread_condattr_t attributes;
	bool well = client && result;

	if (!well) {
		bench_complain("no memory");
		goto out;
	}
	client->options = options;
	client->result = result;
	pthread_mutex_init(&client->mutex, NULL);
	pthread_condattr_init(&attributes);
	pthread_condattr_setclock(&attributes, CLOCK_MONOTONIC);
	pthread_cond_init(&client->ended, &attributes);
	pthread_condattr_destroy(&attributes);
	well = client_open(client) && client_measure(client);
	if (well)
		well = raw_report(options, result);
	client_close(client);
	pthread_cond_destroy(&client->ended);
	pthread_mutex_destroy(&client->mutex);
out:
	free(result);
	free(client);
	return well ? 0 : EXIT_FAILED;
}
