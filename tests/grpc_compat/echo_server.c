/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A gRPC server in plain C: whatever arrives goes back, message by message, until the client closes
 * its half; then the call ends with OK. Methods with another end:
 *
 *   /test/Silent   reads nothing and answers nothing until the client gives up; tells the call on
 *                  standard error
 *   /test/Deaf     reads one message, and ends the call with status 9
 *   /test/Sorry    answers, and ends the call with status 9
 *   /test/Count    reads all, and answers with one message of 8 bytes: how many there were
 *   /test/Repeat   reads all, and answers each message with it, STEPS_REPEATS times
 *   /test/Slow     like Count, but reads one message in SLOW_US only
 *
 *   echo_server next|pluck|callback LIMIT [ADDRESS]
 *
 * It says its port on standard output, and shuts down in order when standard input ends.
 */
#include <grpc/byte_buffer_reader.h>
#include <grpc/grpc_security.h>
#include <grpc/support/alloc.h>
#include <grpc/support/time.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "steps.h"

#define SLOW_US 20000

/* One call, from the request for it on; it has a queue and, once it is there, a thread of its own.
 */
struct serving {
	struct steps_queue queue;
	grpc_call *call;
	grpc_call_details details;
	grpc_metadata_array metadata;
	struct steps_batch close;
	int cancelled;
	unsigned messages;
	bool sent_metadata;
};

static grpc_server *server;
static grpc_completion_queue *requests;
static grpc_cq_completion_type queue_type;
static atomic_int running;

static void request(void)
{
	struct serving *serving = calloc(1, sizeof(*serving));

	steps_queue_open(&serving->queue, queue_type);
	grpc_call_details_init(&serving->details);
	grpc_metadata_array_init(&serving->metadata);
	if (grpc_server_request_call(server, &serving->call, &serving->details, &serving->metadata,
				     serving->queue.queue, requests, serving))
		abort();
}

static void serving_free(struct serving *serving)
{
	if (serving->call)
		grpc_call_unref(serving->call);
	steps_queue_close(&serving->queue);
	grpc_call_details_destroy(&serving->details);
	grpc_metadata_array_destroy(&serving->metadata);
	free(serving);
}

static bool is_method(const struct serving *serving, const char *name)
{
	return !grpc_slice_str_cmp(serving->details.method, name);
}

static bool counts(const struct serving *serving)
{
	return is_method(serving, "/test/Count") || is_method(serving, "/test/Slow");
}

/* False when no message came. */
static bool receive(struct serving *serving, grpc_byte_buffer **message)
{
	grpc_op op = {.op = GRPC_OP_RECV_MESSAGE, .data.recv_message = {message}};

	if (is_method(serving, "/test/Slow"))
		usleep(SLOW_US);
	*message = NULL;
	return steps_run(&serving->queue, serving->call, &op, 1) && *message;
}

static grpc_byte_buffer *repeated(grpc_byte_buffer *message)
{
	grpc_byte_buffer_reader reader;
	grpc_slice slices[STEPS_REPEATS], all;
	grpc_byte_buffer *answer;

	grpc_byte_buffer_reader_init(&reader, message);
	all = grpc_byte_buffer_reader_readall(&reader);
	grpc_byte_buffer_reader_destroy(&reader);
	grpc_byte_buffer_destroy(message);
	for (size_t i = 0; i < STEPS_REPEATS; i++)
		slices[i] = all;
	answer = grpc_raw_byte_buffer_create(slices, STEPS_REPEATS);
	grpc_slice_unref(all);
	return answer;
}

static bool answer(struct serving *serving, grpc_byte_buffer *message, bool last)
{
	grpc_slice details = grpc_slice_from_static_string("");
	grpc_op ops[3];
	size_t count = 0;

	memset(ops, 0, sizeof(ops));
	if (!serving->sent_metadata)
		ops[count++].op = GRPC_OP_SEND_INITIAL_METADATA;
	serving->sent_metadata = true;
	if (message) {
		ops[count].op = GRPC_OP_SEND_MESSAGE;
		ops[count++].data.send_message.send_message = message;
	}
	if (last) {
		ops[count].op = GRPC_OP_SEND_STATUS_FROM_SERVER;
		ops[count].data.send_status_from_server.status =
			is_method(serving, "/test/Deaf") || is_method(serving, "/test/Sorry")
				? GRPC_STATUS_FAILED_PRECONDITION
				: GRPC_STATUS_OK;
		ops[count++].data.send_status_from_server.status_details = &details;
	}
	return steps_run(&serving->queue, serving->call, ops, count);
}

/* The last message goes together with the status, as servers of unary calls do it. */
static void echo(struct serving *serving)
{
	grpc_byte_buffer *message, *next;
	bool good = receive(serving, &message);

	while (good) {
		serving->messages++;
		if (is_method(serving, "/test/Deaf")) {
			grpc_byte_buffer_destroy(message);
			answer(serving, NULL, true);
			return;
		}
		if (is_method(serving, "/test/Repeat"))
			message = repeated(message);
		good = receive(serving, &next);
		if (!counts(serving))
			answer(serving, message, !good);
		grpc_byte_buffer_destroy(message);
		message = next;
	}
	if (counts(serving)) {
		uint64_t count = serving->messages;
		grpc_slice slice = grpc_slice_from_copied_buffer((char *)&count, sizeof(count));

		message = grpc_raw_byte_buffer_create(&slice, 1);
		grpc_slice_unref(slice);
		answer(serving, message, true);
		grpc_byte_buffer_destroy(message);
	} else if (!serving->messages) {
		answer(serving, NULL, true);
	}
}

/* A client that sends without waiting for the half close would deadlock with echo(). */
static void chat(struct serving *serving)
{
	grpc_byte_buffer *message;

	while (receive(serving, &message)) {
		answer(serving, message, false);
		grpc_byte_buffer_destroy(message);
	}
	answer(serving, NULL, true);
}

static void *serve(void *argument)
{
	struct serving *serving = argument;
	grpc_op close = {.op = GRPC_OP_RECV_CLOSE_ON_SERVER,
			 .data.recv_close_on_server = {&serving->cancelled}};

	steps_start(&serving->close, &serving->queue, serving->call, &close, 1);
	if (is_method(serving, "/test/Chat"))
		chat(serving);
	else if (is_method(serving, "/test/Silent"))
		fprintf(stderr, "a silent call\n");
	else
		echo(serving);
	steps_wait(&serving->close);
	for (size_t i = 0; i < serving->metadata.count; i++) {
		if (!grpc_slice_str_cmp(serving->metadata.metadata[i].key, "tensorhaul-bin"))
			fprintf(stderr, "the layer's mark reached the program\n"), abort();
	}
	serving_free(serving);
	running--;
	return NULL;
}

static void *take_requests(void *unused)
{
	grpc_event event;

	for (;;) {
		pthread_t thread;

		event = grpc_completion_queue_next(requests, gpr_inf_future(GPR_CLOCK_REALTIME),
						   NULL);
		if (event.type == GRPC_QUEUE_SHUTDOWN)
			return NULL;
		if (event.tag == &server)
			continue;
		if (!event.success) {
			serving_free(event.tag);
			continue;
		}
		request();
		running++;
		if (pthread_create(&thread, NULL, serve, event.tag))
			abort();
		pthread_detach(thread);
	}
}

static void wait_for_end_of_input(void)
{
	char byte;

	while (read(STDIN_FILENO, &byte, 1) > 0)
		;
}

int main(int count, char **words)
{
	grpc_arg limit = {.type = GRPC_ARG_INTEGER, .key = GRPC_ARG_MAX_RECEIVE_MESSAGE_LENGTH};
	grpc_channel_args args = {1, &limit};
	grpc_server_credentials *credentials;
	pthread_t thread;
	int port;

	if (count < 3) {
		fprintf(stderr, "usage: echo_server next|pluck|callback LIMIT [ADDRESS]\n");
		return 2;
	}
	queue_type = steps_queue_type(words[1]);
	limit.value.integer = atoi(words[2]);
	grpc_init();
	server = grpc_server_create(&args, NULL);
	credentials = grpc_insecure_server_credentials_create();
	port = grpc_server_add_http2_port(server, count > 3 ? words[3] : "127.0.0.1:0",
					  credentials);
	grpc_server_credentials_release(credentials);
	requests = grpc_completion_queue_create_for_next(NULL);
	grpc_server_register_completion_queue(server, requests, NULL);
	grpc_server_start(server);
	for (int i = 0; i < 8; i++)
		request();
	if (pthread_create(&thread, NULL, take_requests, NULL))
		abort();
	printf("%d\n", port);
	fflush(stdout);
	wait_for_end_of_input();
	grpc_server_shutdown_and_notify(server, requests, &server);
	grpc_server_cancel_all_calls(server);
	while (running)
		usleep(1000);
	grpc_completion_queue_shutdown(requests);
	pthread_join(thread, NULL);
	grpc_server_destroy(server);
	grpc_completion_queue_destroy(requests);
	grpc_shutdown();
	return 0;
}
