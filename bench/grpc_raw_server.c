/* SPDX-License-Identifier: Apache-2.0 */
#include <errno.h>
#include <grpc/byte_buffer.h>
#include <grpc/grpc_security.h>
#include <grpc/slice.h>
#include <grpc/support/log.h>
#include <grpc/support/time.h>
#include <pthread.h>
#include <semaphore.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>

#include "content.h"
#include "grpc_raw.h"

enum service_kind {
	SERVICE_DISCARD,
	SERVICE_USAGE,
	SERVICE_UNKNOWN, /* a method that this server does not have */
};

/* Calls of each kind that one completion queue can hold; more of them wait within gRPC. */
static const unsigned calls_waiting[] = {256, 4, 4};

struct queue {
	struct server *server;
	grpc_completion_queue *queue;
};

struct server {
	const struct raw_options *options;
	grpc_server *server;
	struct queue queues[RAW_QUEUES_MAX];
	unsigned queue_count;
	pthread_t threads[RAW_QUEUES_MAX];
	unsigned thread_count;
	void *methods[2]; /* by service_kind */
	uint8_t *response;
	sem_t shut; /* the last call has ended */
	_Atomic uint64_t messages, bytes;
};

/* One call after the other: asked for, answered, asked for again. Its address is its tag. */
struct service {
	struct server *server;
	grpc_completion_queue *queue;
	enum service_kind kind;
	bool answering;
	grpc_call *call;
	gpr_timespec deadline;
	grpc_metadata_array metadata;
	grpc_call_details details;
	grpc_byte_buffer *request, *response;
	int cancelled;
};

/* ---- Calls ---- */

static void service_free(struct service *service)
{
	grpc_metadata_array_destroy(&service->metadata);
	if (service->kind == SERVICE_UNKNOWN)
		grpc_call_details_destroy(&service->details);
	free(service);
}

/* Ask for the next call. When the server is shutting down, an event says that none came. */
static void service_request(struct service *service)
{
	struct server *server = service->server;
	grpc_call_error error;

	service->answering = false;
	service->metadata.count = 0;
	if (service->kind == SERVICE_UNKNOWN)
		error = grpc_server_request_call(server->server, &service->call, &service->details,
						 &service->metadata, service->queue, service->queue,
						 service);
	else
		error = grpc_server_request_registered_call(
			server->server, server->methods[service->kind], &service->call,
			&service->deadline, &service->metadata,
			service->kind == SERVICE_DISCARD ? &service->request : NULL, service->queue,
			service->queue, service);
	if (error != GRPC_CALL_OK)
		service_free(service);
}

static bool service_new(struct server *server, grpc_completion_queue *queue, enum service_kind kind)
{
	struct service *service = calloc(1, sizeof(*service));

	if (!service)
		return false;
	service->server = server;
	service->queue = queue;
	service->kind = kind;
	grpc_metadata_array_init(&service->metadata);
	if (kind == SERVICE_UNKNOWN)
		grpc_call_details_init(&service->details);
	service_request(service);
	return true;
}

static grpc_byte_buffer *usage_message(struct server *server)
{
	struct bench_usage usage = bench_usage_now();
	cJSON *json = cJSON_CreateObject();
	grpc_byte_buffer *message = NULL;
	grpc_slice slice;
	char *text;

	bench_json_number(json, "cpu_user_s", usage.user_s);
	bench_json_number(json, "cpu_system_s", usage.system_s);
	bench_json_number(json, "messages", (double)atomic_load(&server->messages));
	bench_json_number(json, "bytes", (double)atomic_load(&server->bytes));
	bench_json_number(json, "response_size", (double)server->options->response_size);
	bench_json_number(json, "threads", server->thread_count);
	bench_json_number(json, "completion_queues", server->options->completion_queues);
	cJSON_AddBoolToObject(json, "keep_memory", server->options->keep_memory);
	text = cJSON_PrintUnformatted(json);
	cJSON_Delete(json);
	slice = grpc_slice_from_copied_string(text ? text : "");
	message = grpc_raw_byte_buffer_create(&slice, 1);
	grpc_slice_unref(slice);
	cJSON_free(text);
	return message;
}

static void discard(struct service *service)
{
	struct server *server = service->server;

	if (!service->request)
		return;
	atomic_fetch_add(&server->messages, 1);
	atomic_fetch_add(&server->bytes, grpc_byte_buffer_length(service->request));
	grpc_byte_buffer_destroy(service->request);
	service->request = NULL;
}

static void service_answer(struct service *service)
{
	grpc_status_code status =
		service->kind == SERVICE_UNKNOWN ? GRPC_STATUS_UNIMPLEMENTED : GRPC_STATUS_OK;
	grpc_op operations[4] = {0};
	size_t count = 0;

	discard(service);
	if (service->kind == SERVICE_DISCARD)
		service->response = raw_message(service->server->response,
						service->server->options->response_size);
	else if (service->kind == SERVICE_USAGE)
		service->response = usage_message(service->server);
	operations[count++].op = GRPC_OP_SEND_INITIAL_METADATA;
	if (service->response) {
		operations[count].op = GRPC_OP_SEND_MESSAGE;
		operations[count++].data.send_message.send_message = service->response;
	}
	operations[count].op = GRPC_OP_SEND_STATUS_FROM_SERVER;
	operations[count++].data.send_status_from_server.status = status;
	operations[count].op = GRPC_OP_RECV_CLOSE_ON_SERVER;
	operations[count++].data.recv_close_on_server.cancelled = &service->cancelled;
	service->answering = true;
	GPR_ASSERT(grpc_call_start_batch(service->call, operations, count, service, NULL) ==
		   GRPC_CALL_OK);
}

static void service_answered(struct service *service)
{
	if (service->response)
		grpc_byte_buffer_destroy(service->response);
	service->response = NULL;
	grpc_call_unref(service->call);
	service->call = NULL;
	service_request(service);
}

static void *run_queue(void *argument)
{
	struct queue *queue = argument;

	for (;;) {
		grpc_event event = grpc_completion_queue_next(
			queue->queue, gpr_inf_future(GPR_CLOCK_MONOTONIC), NULL);
		struct service *service = event.tag;

		if (event.type == GRPC_QUEUE_SHUTDOWN)
			return NULL;
		if (!service)
			sem_post(&queue->server->shut);
		else if (service->answering)
			service_answered(service);
		else if (event.success)
			service_answer(service);
		else
			service_free(service);
	}
}

/* ---- The server ---- */

static grpc_server *create(void)
{
	grpc_arg arguments[] = {
		{.type = GRPC_ARG_INTEGER,
		 .key = (char *)GRPC_ARG_MAX_RECEIVE_MESSAGE_LENGTH,
		 .value.integer = -1},
		/* Two servers on one port would share the clients without a word. */
		{.type = GRPC_ARG_INTEGER, .key = (char *)GRPC_ARG_ALLOW_REUSEPORT},
	};
	grpc_channel_args list = {ARRAY_LENGTH(arguments), arguments};

	return grpc_server_create(&list, NULL);
}

static void add_queues(struct server *server)
{
	for (; server->queue_count < server->options->completion_queues; server->queue_count++) {
		grpc_completion_queue *queue = grpc_completion_queue_create_for_next(NULL);

		server->queues[server->queue_count] = (struct queue){server, queue};
		grpc_server_register_completion_queue(server->server, queue, NULL);
	}
}

/* Says where it listens. */
static bool listen_on(struct server *server)
{
	const struct raw_options *options = server->options;
	grpc_server_credentials *credentials = grpc_insecure_server_credentials_create();
	char *address = raw_address(options->host, options->port);
	int port = address ? grpc_server_add_http2_port(server->server, address, credentials) : 0;

	grpc_server_credentials_release(credentials);
	free(address);
	if (!port) {
		bench_complain("gRPC can't listen on %s port %u", options->host, options->port);
		return false;
	}
	grpc_server_start(server->server);
	printf(strchr(options->host, ':') ? "listening on [%s]:%d\n" : "listening on %s:%d\n",
	       options->host, port);
	fflush(stdout);
	return true;
}

static bool start(struct server *server)
{
	for (unsigned i = 0; i < server->queue_count; i++)
		for (int kind = SERVICE_DISCARD; kind <= SERVICE_UNKNOWN; kind++)
			for (unsigned n = 0; n < calls_waiting[kind]; n++)
				if (!service_new(server, server->queues[i].queue, kind))
					return false;
	for (; server->thread_count < server->options->server_threads; server->thread_count++) {
		struct queue *queue = &server->queues[server->thread_count % server->queue_count];

		if (pthread_create(&server->threads[server->thread_count], NULL, run_queue, queue))
			return false;
	}
	return true;
}

static void wait_for_signal(void)
{
	sigset_t set;
	int number;

	sigemptyset(&set);
	sigaddset(&set, SIGINT);
	sigaddset(&set, SIGTERM);
	sigwait(&set, &number);
}

static void stop(struct server *server)
{
	grpc_server_shutdown_and_notify(server->server, server->queues[0].queue, NULL);
	grpc_server_cancel_all_calls(server->server);
	if (server->thread_count)
		sem_wait(&server->shut);
	for (unsigned i = 0; i < server->queue_count; i++)
		grpc_completion_queue_shutdown(server->queues[i].queue);
	for (unsigned i = 0; i < server->thread_count; i++)
		pthread_join(server->threads[i], NULL);
	for (unsigned i = 0; i < server->queue_count; i++)
		run_queue(&server->queues[i]); /* of which nothing is left, when threads ran */
	grpc_server_destroy(server->server);
	for (unsigned i = 0; i < server->queue_count; i++)
		grpc_completion_queue_destroy(server->queues[i].queue);
}

int raw_serve(const struct raw_options *options)
{
	struct server server = {.options = options};
	bool well = false;

	server.response = malloc(options->response_size ? options->response_size : 1);
	if (!server.response) {
		bench_complain("no memory for --response-size=%llu",
			       (unsigned long long)options->response_size);
		return EXIT_FAILED;
	}
	content_fill(server.response, options->response_size, 1);
	sem_init(&server.shut, 0, 0);
	server.server = create();
	server.methods[SERVICE_DISCARD] = grpc_server_register_method(
		server.server, RAW_DISCARD, NULL, GRPC_SRM_PAYLOAD_READ_INITIAL_BYTE_BUFFER, 0);
	server.methods[SERVICE_USAGE] = grpc_server_register_method(server.server, RAW_USAGE, NULL,
								    GRPC_SRM_PAYLOAD_NONE, 0);
	add_queues(&server);
	if (listen_on(&server)) {
		well = start(&server);
		if (well)
			wait_for_signal();
		else
			bench_complain("not enough memory or threads: --server-threads=%u",
				       options->server_threads);
	}
	stop(&server);
	sem_destroy(&server.shut);
	free(server.response);
	return well ? 0 : EXIT_FAILED;
}
