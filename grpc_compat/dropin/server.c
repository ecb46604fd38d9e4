/* SPDX-License-Identifier: Apache-2.0 */
/* Servers: each gets one method more, with which clients ask whether messages may go aside. */
#include <stdlib.h>

#include "limits.h"
#include "request.h"
#include "session.h"
#include "sockets.h"

#define QUESTIONS_WAITING 4 /* requests that are posted for each server */

struct server {
	grpc_server *core;
	struct limits limits;
	void *method; /* NULL: the server is left alone */
	struct server *next;
};

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static struct server *servers;
/* Without polling: the program's own threads go on to do all of gRPC's work. */
static grpc_completion_queue *questions;

/* ---- Answering ----------------------------------------------------------- */

/* A question, from the request for it to the end of the answer. */
struct question {
	grpc_call *call;
	grpc_server *server;
	void *method;
	struct limits limits;
	gpr_timespec deadline;
	grpc_metadata_array metadata;
	grpc_byte_buffer *payload, *answer;
	int cancelled;
	bool answered;
};

static void question_free(struct question *question)
{
	if (question->call)
		core()->grpc_call_unref(question->call);
	if (question->payload)
		core()->grpc_byte_buffer_destroy(question->payload);
	if (question->answer)
		core()->grpc_byte_buffer_destroy(question->answer);
	core()->grpc_metadata_array_destroy(&question->metadata);
	free(question);
}

static void request_question(grpc_server *server, void *method, const struct limits *limits)
{
	struct question *question = calloc(1, sizeof(*question));

	if (!question)
		return;
	question->server = server;
	question->method = method;
	question->limits = *limits;
	core()->grpc_metadata_array_init(&question->metadata);
	if (core()->grpc_server_request_registered_call(
		    server, method, &question->call, &question->deadline, &question->metadata,
		    &question->payload, questions, questions, question))
		question_free(question);
}

/* Only connections without TLS: the side path could be read, and changed, by others. */
static bool is_insecure(grpc_call *call)
{
	grpc_auth_context *context = core()->grpc_call_auth_context(call);
	grpc_auth_property_iterator iterator;
	const grpc_auth_property *property;
	bool insecure = true;

	if (!context)
		return true;
	iterator = core()->grpc_auth_context_find_properties_by_name(
		context, GRPC_TRANSPORT_SECURITY_TYPE_PROPERTY_NAME);
	property = core()->grpc_auth_property_iterator_next(&iterator);
	if (property)
		insecure = property->value_length == strlen("insecure") &&
			   !memcmp(property->value, "insecure", property->value_length);
	core()->grpc_auth_context_release(context);
	return insecure;
}

static bool read_question(const struct question *question, struct wire_question *asked)
{
	const grpc_slice_buffer *slices;
	uint8_t bytes[WIRE_QUESTION_BYTES];
	char transport[WIRE_NAME_ROOM];
	size_t length = 0;

	if (!question->payload)
		return false;
	slices = &question->payload->data.raw.slice_buffer;
	if (slices->length != sizeof(bytes))
		return false;
	for (size_t i = 0; i < slices->count; i++) {
		memcpy(bytes + length, GRPC_SLICE_START_PTR(slices->slices[i]),
		       GRPC_SLICE_LENGTH(slices->slices[i]));
		length += GRPC_SLICE_LENGTH(slices->slices[i]);
	}
	side_transport(transport);
	return wire_get_question(bytes, length, asked) &&
	       !memcmp(transport, asked->transport, sizeof(transport));
}

/* A session for the client, which it has to show on the side path. */
static grpc_byte_buffer *make_answer(const struct question *question,
				     const struct wire_question *asked)
{
	struct wire_answer answer = {.process = *side_process(),
				     .receive_limit = question->limits.receive};
	struct session_terms terms = {.peer_limit = asked->receive_limit,
				      .own_limit = question->limits.receive,
				      .send_limit = question->limits.send};
	uint8_t bytes[WIRE_ANSWER_BYTES];
	struct session *session;
	grpc_byte_buffer *buffer;
	grpc_slice slice;
	char why[256];

	if (haul_random(&answer.session, sizeof(answer.session)) ||
	    haul_random(&answer.secret, sizeof(answer.secret)) ||
	    side_listen(answer.address, why, sizeof(why)))
		return NULL;
	terms.secret = answer.secret;
	session = session_new(&answer.session, true, &terms, NULL);
	if (!session)
		return NULL;
	session_put(session);
	wire_put_answer(&answer, bytes);
	slice = core()->grpc_slice_from_copied_buffer((const char *)bytes, sizeof(bytes));
	buffer = core()->grpc_raw_byte_buffer_create(&slice, 1);
	core()->grpc_slice_unref(slice);
	return buffer;
}

/* A client that can't be served learns what a plain server would have said. */
static void answer_question(struct question *question)
{
	struct wire_question asked;
	grpc_slice details = core()->grpc_slice_from_static_string("");
	grpc_op ops[4] = {
		{.op = GRPC_OP_SEND_INITIAL_METADATA},
		{.op = GRPC_OP_RECV_CLOSE_ON_SERVER,
		 .data.recv_close_on_server = {&question->cancelled}},
		{.op = GRPC_OP_SEND_STATUS_FROM_SERVER,
		 .data.send_status_from_server = {.status = GRPC_STATUS_UNIMPLEMENTED,
						  .status_details = &details}},
	};
	size_t count = 3;

	if (layer_on() && is_insecure(question->call) && read_question(question, &asked))
		question->answer = make_answer(question, &asked);
	if (question->answer) {
		ops[2].data.send_status_from_server.status = GRPC_STATUS_OK;
		ops[3].op = GRPC_OP_SEND_MESSAGE;
		ops[3].data.send_message.send_message = question->answer;
		count++;
	}
	question->answered = true;
	if (core()->grpc_call_start_batch(question->call, ops, count, question, NULL))
		question_free(question);
}

static void *run(void *unused)
{
	gpr_timespec never = {INT64_MAX, 0, GPR_CLOCK_REALTIME};
	grpc_event event;

	while ((event = core()->grpc_completion_queue_next(questions, never, NULL)).type ==
	       GRPC_OP_COMPLETE) {
		struct question *question = event.tag;

		if (!event.success || question->answered) {
			question_free(question);
			continue;
		}
		request_question(question->server, question->method, &question->limits);
		answer_question(question);
	}
	return NULL;
}

static bool start_thread(void)
{
	grpc_completion_queue_attributes attributes = {GRPC_CQ_CURRENT_VERSION, GRPC_CQ_NEXT,
						       GRPC_CQ_NON_POLLING, NULL};
	pthread_t thread;

	if (questions)
		return true;
	questions = core()->grpc_completion_queue_create(
		core()->grpc_completion_queue_factory_lookup(&attributes), &attributes, NULL);
	if (pthread_create(&thread, NULL, run, NULL))
		return false;
	pthread_setname_np(thread, "haul-grpc-asked");
	pthread_detach(thread);
	return true;
}

/* ---- The program's servers ----------------------------------------------- */

static struct server *server_of(grpc_server *core_server)
{
	struct server *server = servers;

	while (server && server->core != core_server)
		server = server->next;
	return server;
}

grpc_server *grpc_server_create(const grpc_channel_args *args, void *reserved)
{
	struct server *server = layer_on() ? calloc(1, sizeof(*server)) : NULL;
	struct socket_arguments room;
	grpc_server *core_server;

	if (!server)
		return core()->grpc_server_create(args, reserved);
	core_server = core()->grpc_server_create(sockets_arguments(args, &room), reserved);
	if (!core_server) {
		free(server);
		return NULL;
	}
	server->core = core_server;
	limits_read(args, &server->limits);
	server->limits.service = NULL;
	pthread_mutex_lock(&lock);
	server->next = servers;
	servers = server;
	pthread_mutex_unlock(&lock);
	return core_server;
}

/* Before gRPC starts the server, and while nobody else knows it. */
static void prepare(struct server *server)
{
	char address[WIRE_ADDRESS_ROOM], why[512];

	if (server->limits.compresses) {
		layer_log(LAYER_LOG_INFO, "a server compresses, and is left alone");
		return;
	}
	if (!allocators_found()) {
		layer_log(
			LAYER_LOG_WARNING,
			"this libgrpc takes calls of C++ servers in another way: servers are left "
			"alone");
		return;
	}
	if (side_open(why, sizeof(why)) || side_listen(address, why, sizeof(why))) {
		layer_fail("no side path: %s", why);
		return;
	}
	if (!start_thread()) {
		layer_fail("no side path: no thread for the questions of clients");
		return;
	}
	server->method = core()->grpc_server_register_method(
		server->core, WIRE_METHOD, NULL, GRPC_SRM_PAYLOAD_READ_INITIAL_BYTE_BUFFER, 0);
	if (server->method)
		core()->grpc_server_register_completion_queue(server->core, questions, NULL);
	layer_log(LAYER_LOG_INFO, "a server takes messages aside at %s%s over %s",
		  *address == ':' ? "*" : "", address, haul_spec(side_context()));
}

void grpc_server_start(grpc_server *core_server)
{
	struct server *server = NULL;

	if (layer_on()) {
		pthread_mutex_lock(&lock);
		server = server_of(core_server);
		if (server)
			prepare(server);
		pthread_mutex_unlock(&lock);
	}
	core()->grpc_server_start(core_server);
	for (int i = 0; server && server->method && i < QUESTIONS_WAITING; i++)
		request_question(core_server, server->method, &server->limits);
}

void grpc_server_destroy(grpc_server *core_server)
{
	struct server **place, *server = NULL;

	if (layer_used()) {
		pthread_mutex_lock(&lock);
		for (place = &servers; *place && (*place)->core != core_server;
		     place = &(*place)->next)
			;
		server = *place;
		if (server)
			*place = server->next;
		pthread_mutex_unlock(&lock);
	}
	free(server);
	core()->grpc_server_destroy(core_server);
}
