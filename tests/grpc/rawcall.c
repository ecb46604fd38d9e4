/* SPDX-License-Identifier: Apache-2.0 */
#include "rawcall.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <grpc/grpc_security.h>

#include "framing.h"
#include "harness.h"

static gpr_timespec patience(void)
{
	return gpr_time_add(gpr_now(GPR_CLOCK_REALTIME),
			    gpr_time_from_millis(RAW_CALL_MS, GPR_TIMESPAN));
}

static bool await_event(grpc_completion_queue *queue, void *tag)
{
	grpc_event event = grpc_completion_queue_pluck(queue, tag, patience(), NULL);

	if (event.type == GRPC_QUEUE_TIMEOUT)
		fail_msg("a raw call waited too long");
	return event.success;
}

static bool run(struct raw_call *call, const grpc_op *operations, size_t count)
{
	grpc_call_error error = grpc_call_start_batch(call->call, operations, count, call, NULL);

	assert_int_equal(error, GRPC_CALL_OK);
	return await_event(call->queue, call);
}

static grpc_channel *open_channel(const char *address)
{
	grpc_arg arguments[] = {
		{.type = GRPC_ARG_INTEGER,
		 .key = (char *)GRPC_ARG_MAX_RECEIVE_MESSAGE_LENGTH,
		 .value.integer = -1},
		{.type = GRPC_ARG_INTEGER,
		 .key = (char *)GRPC_ARG_USE_LOCAL_SUBCHANNEL_POOL,
		 .value.integer = 1},
	};
	grpc_channel_args all = {2, arguments};
	grpc_channel_credentials *credentials = grpc_insecure_credentials_create();
	grpc_channel *channel = grpc_channel_create(address, credentials, &all);

	grpc_channel_credentials_release(credentials);
	return channel;
}

static void keep_session(struct raw_call *call)
{
	for (size_t i = 0; i < call->first.count; i++) {
		const grpc_metadata *word = &call->first.metadata[i];

		if (grpc_slice_str_cmp(word->key, METADATA_SESSION) == 0)
			snprintf(call->session, sizeof(call->session), "%.*s",
				 (int)GRPC_SLICE_LENGTH(word->value),
				 (const char *)GRPC_SLICE_START_PTR(word->value));
	}
}

/* The status is awaited with the tag `&call->status`. */
static void begin(struct raw_call *call, grpc_metadata *words, size_t count)
{
	grpc_op begin[2] = {{.op = GRPC_OP_SEND_INITIAL_METADATA},
			    {.op = GRPC_OP_RECV_INITIAL_METADATA}};
	grpc_op end = {.op = GRPC_OP_RECV_STATUS_ON_CLIENT};

	begin[0].data.send_initial_metadata.count = count;
	begin[0].data.send_initial_metadata.metadata = words;
	begin[1].data.recv_initial_metadata.recv_initial_metadata = &call->first;
	end.data.recv_status_on_client.trailing_metadata = &call->last;
	end.data.recv_status_on_client.status = &call->status;
	end.data.recv_status_on_client.status_details = &call->why;
	assert_int_equal(grpc_call_start_batch(call->call, &end, 1, &call->status, NULL),
			 GRPC_CALL_OK);
	run(call, begin, 2);
	keep_session(call);
}

void raw_call_open(struct raw_call *call, const struct raw_call *beside, const char *address,
		   enum raw_method method, const char *version, const char *session,
		   const char *stream)
{
	static const char *const names[] = {METHOD_CONTROL, METHOD_STREAM, "/other.Service/Method"};
	const char *keys[] = {METADATA_VERSION, METADATA_SESSION, METADATA_STREAM};
	const char *values[] = {version, session, stream};
	grpc_metadata words[3];
	size_t count = 0;

	grpc_init();
	memset(call, 0, sizeof(*call));
	grpc_metadata_array_init(&call->first);
	grpc_metadata_array_init(&call->last);
	call->queue = grpc_completion_queue_create_for_pluck(NULL);
	if (!beside)
		call->channel = open_channel(address);
	call->call = grpc_channel_create_call(beside ? beside->channel : call->channel, NULL,
					      GRPC_PROPAGATE_DEFAULTS, call->queue,
					      grpc_slice_from_static_string(names[method]), NULL,
					      gpr_inf_future(GPR_CLOCK_REALTIME), NULL);
	for (size_t i = 0; i < 3; i++) {
		if (values[i])
			words[count++] =
				(grpc_metadata){.key = grpc_slice_from_static_string(keys[i]),
						.value = grpc_slice_from_static_string(values[i])};
	}
	begin(call, words, count);
}

void raw_call_close(struct raw_call *call)
{
	grpc_call_cancel(call->call, NULL);
	raw_call_status(call);
	grpc_call_unref(call->call);
	grpc_metadata_array_destroy(&call->first);
	grpc_metadata_array_destroy(&call->last);
	if (call->channel)
		grpc_channel_destroy(call->channel);
	grpc_completion_queue_shutdown(call->queue);
	while (grpc_completion_queue_pluck(call->queue, NULL, patience(), NULL).type !=
	       GRPC_QUEUE_SHUTDOWN)
		;
	grpc_completion_queue_destroy(call->queue);
	grpc_shutdown();
}

grpc_status_code raw_call_status(struct raw_call *call)
{
	if (call->ended)
		return call->status;
	await_event(call->queue, &call->status);
	call->ended = true;
	snprintf(call->text, sizeof(call->text), "%.*s", (int)GRPC_SLICE_LENGTH(call->why),
		 (const char *)GRPC_SLICE_START_PTR(call->why));
	grpc_slice_unref(call->why);
	return call->status;
}

/* ---- Messages ----------------------------------------------------------- */

static bool send_slices(struct raw_call *call, grpc_slice *slices, size_t count)
{
	grpc_op send = {.op = GRPC_OP_SEND_MESSAGE};
	grpc_byte_buffer *message = grpc_raw_byte_buffer_create(slices, count);
	bool sent;

	while (count)
		grpc_slice_unref(slices[--count]);
	send.data.send_message.send_message = message;
	sent = run(call, &send, 1);
	grpc_byte_buffer_destroy(message);
	return sent;
}

bool raw_call_send(struct raw_call *call, const void *bytes, size_t length)
{
	grpc_slice slice = grpc_slice_from_copied_buffer(bytes, length);

	return send_slices(call, &slice, 1);
}

bool raw_call_chunk(struct raw_call *call, uint64_t slot, uint64_t offset, const void *bytes,
		    size_t length)
{
	uint8_t head[CHUNK_SIZE];
	grpc_slice slices[2];

	put64(head, slot);
	put64(head + 8, offset);
	slices[0] = grpc_slice_from_copied_buffer((const char *)head, sizeof(head));
	slices[1] = grpc_slice_from_copied_buffer(bytes, length);
	return send_slices(call, slices, 2);
}

bool raw_call_record(struct raw_call *call, enum raw_record type, size_t header, const void *body,
		     size_t length)
{
	uint8_t head[RECORD_SIZE];
	grpc_slice slices[2];

	put32(head, length);
	put16(head + 4, type);
	put16(head + 6, header);
	slices[0] = grpc_slice_from_copied_buffer((const char *)head, sizeof(head));
	slices[1] = grpc_slice_from_copied_buffer(body, length);
	return send_slices(call, slices, 2);
}

size_t raw_call_receive(struct raw_call *call, uint8_t *bytes, size_t room)
{
	grpc_op receive = {.op = GRPC_OP_RECV_MESSAGE};
	grpc_byte_buffer *message = NULL;
	size_t used = 0;

	receive.data.recv_message.recv_message = &message;
	run(call, &receive, 1);
	if (!message)
		return 0;
	for (size_t i = 0; i < message->data.raw.slice_buffer.count; i++) {
		grpc_slice slice = message->data.raw.slice_buffer.slices[i];

		assert_true(used + GRPC_SLICE_LENGTH(slice) <= room);
		memcpy(bytes + used, GRPC_SLICE_START_PTR(slice), GRPC_SLICE_LENGTH(slice));
		used += GRPC_SLICE_LENGTH(slice);
	}
	grpc_byte_buffer_destroy(message);
	return used;
}

/* ---- A server ----------------------------------------------------------- */

void raw_server_open(struct raw_server *server)
{
	grpc_server_credentials *credentials;
	int port;

	grpc_init();
	credentials = grpc_insecure_server_credentials_create();
	server->queue = grpc_completion_queue_create_for_pluck(NULL);
	server->server = grpc_server_create(NULL, NULL);
	grpc_server_register_completion_queue(server->server, server->queue, NULL);
	port = grpc_server_add_http2_port(server->server, "127.0.0.1:0", credentials);
	grpc_server_credentials_release(credentials);
	assert_int_not_equal(port, 0);
	snprintf(server->address, sizeof(server->address), "127.0.0.1:%d", port);
	grpc_server_start(server->server);
}

void raw_server_answer(struct raw_server *server)
{
	grpc_metadata word = {.key = grpc_slice_from_static_string(METADATA_VERSION)};
	grpc_op answer[3] = {{.op = GRPC_OP_SEND_INITIAL_METADATA},
			     {.op = GRPC_OP_SEND_STATUS_FROM_SERVER},
			     {.op = GRPC_OP_RECV_CLOSE_ON_SERVER}};
	grpc_metadata_array words;
	grpc_call_details details;
	grpc_call *call;
	int cancelled;

	grpc_call_details_init(&details);
	grpc_metadata_array_init(&words);
	assert_int_equal(grpc_server_request_call(server->server, &call, &details, &words,
						  server->queue, server->queue, server),
			 GRPC_CALL_OK);
	assert_true(await_event(server->queue, server));
	if (server->version) {
		word.value = grpc_slice_from_static_string(server->version);
		answer[0].data.send_initial_metadata.count = 1;
		answer[0].data.send_initial_metadata.metadata = &word;
	}
	answer[1].data.send_status_from_server.status = server->status;
	answer[2].data.recv_close_on_server.cancelled = &cancelled;
	assert_int_equal(grpc_call_start_batch(call, answer, 3, call, NULL), GRPC_CALL_OK);
	await_event(server->queue, call);
	grpc_call_unref(call);
	grpc_call_details_destroy(&details);
	grpc_metadata_array_destroy(&words);
}

void raw_server_close(struct raw_server *server)
{
	grpc_server_shutdown_and_notify(server->server, server->queue, server);
	grpc_server_cancel_all_calls(server->server);
	await_event(server->queue, server);
	grpc_server_destroy(server->server);
	grpc_completion_queue_shutdown(server->queue);
	while (grpc_completion_queue_pluck(server->queue, NULL, patience(), NULL).type !=
	       GRPC_QUEUE_SHUTDOWN)
		;
	grpc_completion_queue_destroy(server->queue);
	grpc_shutdown();
}
