/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A server that speaks the layer's protocol by hand, and wrongly: its answers are the forgeries of
 * forged.c, as descriptors of messages that are not there, not theirs or not that long. For
 * echo_client with the layer, whose requests stay inline.
 *
 *   hostile_server lies       one forgery after the other, and behind each an honest answer
 *   hostile_server waits      those that a client can only wait for
 *   hostile_server floods     descriptors of as many pieces as there may be, of which none comes;
 * an honest answer first, and then now and then hostile_server as TARGET  claims to be the process
 * of the server there, and is honest then
 *
 * It says its port on standard output, and then the status of each call that it will answer. It
 * ends when standard input does.
 */
#include <grpc/grpc_security.h>
#include <grpc/support/time.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "forged.h"

static grpc_server *server;
static struct steps_queue queue;
static haul_listener *listener;
static haul_endpoint *side; /* the one that was taken last */
static const struct forgery_kind *answers[64];
static unsigned answer_count, next_answer;
static uint64_t next_number = FORGED_FIRST_NUMBER;
static bool floods;
static struct wire_answer session;

bool layer_id_equal(const struct layer_id *one, const struct layer_id *other)
{
	return !memcmp(one, other, sizeof(*one));
}

/* ---- The side path ------------------------------------------------------- */

/* Every session is good, whatever its secret. */
static void *take_sessions(void *unused)
{
	struct wire_note note;
	haul_endpoint *endpoint;

	while (!haul_accept_wait(listener, -1, &endpoint)) {
		if (!forged_note_wait(endpoint, &note) || note.kind != WIRE_NOTE_SHOW)
			continue;
		side = endpoint;
		note.kind = WIRE_NOTE_GOOD;
		forged_note(endpoint, &note);
	}
	return NULL;
}

static grpc_byte_buffer *answer_question(void)
{
	uint8_t bytes[WIRE_ANSWER_BYTES];

	session.session.bytes[0]++;
	wire_put_answer(&session, bytes);
	return forged_message(bytes, sizeof(bytes));
}

/* ---- Answers ------------------------------------------------------------- */

/* Whoever it is that listens there, says the layer of that server. */
static void become(const char *target)
{
	struct wire_question question = {.receive_limit = UINT64_MAX, .transport = "tcp"};
	grpc_channel_credentials *credentials = grpc_insecure_credentials_create();
	grpc_channel *channel = grpc_channel_create(target, credentials, NULL);
	grpc_slice details = grpc_empty_slice(),
		   method = grpc_slice_from_static_string(WIRE_METHOD);
	grpc_metadata_array initial, trailing;
	grpc_status_code status;
	grpc_byte_buffer *message, *answer = NULL;
	uint8_t bytes[WIRE_ANSWER_BYTES];
	struct wire_answer theirs;
	grpc_call *call;
	grpc_op ops[6] = {
		{.op = GRPC_OP_SEND_INITIAL_METADATA},
		{.op = GRPC_OP_SEND_MESSAGE},
		{.op = GRPC_OP_SEND_CLOSE_FROM_CLIENT},
		{.op = GRPC_OP_RECV_INITIAL_METADATA, .data.recv_initial_metadata = {&initial}},
		{.op = GRPC_OP_RECV_MESSAGE, .data.recv_message = {&answer}},
		{.op = GRPC_OP_RECV_STATUS_ON_CLIENT,
		 .data.recv_status_on_client = {.trailing_metadata = &trailing,
						.status = &status,
						.status_details = &details}},
	};

	wire_put_question(&question, bytes);
	message = forged_message(bytes, WIRE_QUESTION_BYTES);
	ops[1].data.send_message.send_message = message;
	grpc_metadata_array_init(&initial);
	grpc_metadata_array_init(&trailing);
	call = grpc_channel_create_call(channel, NULL, GRPC_PROPAGATE_DEFAULTS, queue.queue, method,
					NULL, gpr_inf_future(GPR_CLOCK_REALTIME), NULL);
	steps_run(&queue, call, ops, 6);
	if (!wire_get_answer(bytes, forged_copy(answer, bytes, sizeof(bytes)), &theirs))
		forged_die("the question had no answer", 0);
	session.process = theirs.process;
	grpc_byte_buffer_destroy(answer);
	grpc_byte_buffer_destroy(message);
	grpc_metadata_array_destroy(&initial);
	grpc_metadata_array_destroy(&trailing);
	grpc_slice_unref(details);
	grpc_call_unref(call);
	grpc_channel_destroy(channel);
	grpc_channel_credentials_release(credentials);
}

static grpc_byte_buffer *forge(const struct forgery_kind *kind, const struct wire_mark *mark,
			       const uint8_t *data)
{
	struct forgery forgery = {.mark = *mark};
	uint8_t bytes[WIRE_DESCRIPTOR_MAX];
	size_t length;

	forged_descriptor(mark, next_number, FORGED_BYTES, &forgery.descriptor);
	kind->forge(&forgery);
	if (floods && forgery.waits) {
		forgery.descriptor.pieces = WIRE_PIECES_MAX;
		for (unsigned i = 1; i < WIRE_PIECES_MAX; i++)
			forgery.descriptor.piece[i] = 1;
		forgery.descriptor.bytes += WIRE_PIECES_MAX - 1;
	}
	next_number += forgery.descriptor.pieces + 1;
	if (forgery.aside)
		forged_send(side, forgery.descriptor.number,
			    forgery.aside == FORGED_BYTES ? data : NULL, forgery.aside);
	length = wire_put_descriptor(&forgery.descriptor, bytes);
	return forged_message(bytes, forgery.length ? forgery.length : length);
}

/* A call without a mark gets its own message back, inline. */
static grpc_byte_buffer *answer_call(const grpc_metadata_array *metadata, grpc_byte_buffer *request)
{
	static uint8_t echoed[2 * 64][FORGED_BYTES]; /* of each answer: sends are not waited for */
	uint8_t *data = echoed[next_answer % (2 * 64)];
	struct wire_mark mark;

	for (size_t i = 0; i < metadata->count; i++) {
		grpc_slice value = metadata->metadata[i].value;

		if (grpc_slice_str_cmp(metadata->metadata[i].key, WIRE_MARK_KEY) ||
		    !wire_get_mark(GRPC_SLICE_START_PTR(value), GRPC_SLICE_LENGTH(value), &mark) ||
		    forged_copy(request, data, FORGED_BYTES) != FORGED_BYTES)
			continue;
		return forge(answers[next_answer++ % answer_count], &mark, data);
	}
	return grpc_byte_buffer_copy(request);
}

/* One call from the request for it to its end. False: the server is shut down. */
static bool serve_one(void)
{
	grpc_byte_buffer *request = NULL, *answer;
	grpc_call_details details;
	grpc_metadata_array metadata;
	grpc_slice text = grpc_empty_slice();
	grpc_op receive = {.op = GRPC_OP_RECV_MESSAGE, .data.recv_message = {&request}};
	grpc_op ops[3] = {
		{.op = GRPC_OP_SEND_INITIAL_METADATA},
		{.op = GRPC_OP_SEND_MESSAGE},
		{.op = GRPC_OP_SEND_STATUS_FROM_SERVER,
		 .data.send_status_from_server = {.status_details = &text}},
	};
	grpc_call *call;
	bool asked;

	grpc_call_details_init(&details);
	grpc_metadata_array_init(&metadata);
	grpc_server_request_call(server, &call, &details, &metadata, queue.queue, queue.queue,
				 &details);
	if (!grpc_completion_queue_next(queue.queue, gpr_inf_future(GPR_CLOCK_REALTIME), NULL)
		     .success)
		return false;
	steps_run(&queue, call, &receive, 1);
	asked = !grpc_slice_str_cmp(details.method, WIRE_METHOD);
	answer = asked ? answer_question() : answer_call(&metadata, request);
	ops[1].data.send_message.send_message = answer;
	steps_run(&queue, call, ops, 3);
	grpc_byte_buffer_destroy(answer);
	grpc_byte_buffer_destroy(request);
	grpc_call_details_destroy(&details);
	grpc_metadata_array_destroy(&metadata);
	grpc_call_unref(call);
	return true;
}

static void *serve(void *unused)
{
	while (serve_one())
		;
	return NULL;
}

/* ---- Starting ------------------------------------------------------------ */

/* Marks that are forged as well are a client's lies. */
static bool is_of_servers(const struct forgery_kind *kind)
{
	return strcmp(kind->name, "of no session") && strcmp(kind->name, "of another session");
}

static void plan(const char *what)
{
	const struct forgery_kind *truth = &forgeries[0];

	if (strcmp(what, "lies") && strcmp(what, "waits"))
		answers[answer_count++] = truth;
	for (const struct forgery_kind *kind = forgeries; kind->name; kind++) {
		struct forgery tried = {.length = 0};

		kind->forge(&tried);
		if (!strcmp(what, "lies") && !tried.waits && is_of_servers(kind)) {
			answers[answer_count++] = kind;
			answers[answer_count++] = truth;
		} else if ((!strcmp(what, "waits") || floods) && tried.waits) {
			answers[answer_count++] = kind;
		}
	}
	for (unsigned i = 0; i < answer_count; i++)
		printf("%s%d", i ? " " : "", answers[i]->status);
	printf("\n");
	fflush(stdout);
}

int main(int count, char **words)
{
	grpc_server_credentials *credentials;
	haul_context *context;
	pthread_t thread;
	char byte;
	int port, error;

	if (count < 2)
		return 2;
	grpc_init();
	steps_queue_open(&queue, GRPC_CQ_NEXT);
	context = forged_open();
	error = haul_listen(context, "127.0.0.1:0", NULL, &listener);
	if (error)
		forged_die("haul_listen", error);
	session.receive_limit = UINT64_MAX;
	snprintf(session.address, sizeof(session.address), "%s", haul_listener_address(listener));
	if (count > 2)
		become(words[2]);
	floods = !strcmp(words[1], "floods");
	server = grpc_server_create(NULL, NULL);
	credentials = grpc_insecure_server_credentials_create();
	port = grpc_server_add_http2_port(server, "127.0.0.1:0", credentials);
	grpc_server_credentials_release(credentials);
	grpc_server_register_completion_queue(server, queue.queue, NULL);
	grpc_server_start(server);
	if (pthread_create(&thread, NULL, take_sessions, NULL) ||
	    pthread_create(&thread, NULL, serve, NULL))
		abort();
	printf("%d\n", port);
	plan(words[1]);
	while (read(STDIN_FILENO, &byte, 1) > 0)
		;
	_exit(0); /* in the middle of whatever it does */
}
