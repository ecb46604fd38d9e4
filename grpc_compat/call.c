/* SPDX-License-Identifier: Apache-2.0 */
/*
 * One call of gRPC's, of either side: its batches, and the messages that have come and nobody has
 * looked at. These are few: beyond that nothing is read, and HTTP/2 holds the sender back.
 */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "rpc.h"

/* Bytes of an inbox beyond which no more is read. */
#define INBOX_CONTROL ((size_t)256 * 1024)

static void event_set(struct event *event, void *owner, enum event_kind kind)
{
	event->owner = owner;
	event->kind = kind;
}

static struct rpc_call *call_new(struct backend_context *context)
{
	struct rpc_call *call = calloc(1, sizeof(*call));

	if (!call)
		return NULL;
	call->context = context;
	event_set(&call->begun, call, EVENT_BEGUN);
	event_set(&call->sent, call, EVENT_SENT);
	event_set(&call->got, call, EVENT_GOT);
	event_set(&call->ended, call, EVENT_ENDED);
	grpc_metadata_array_init(&call->first);
	grpc_metadata_array_init(&call->last);
	call->why = grpc_empty_slice();
	grpc_slice_buffer_init(&call->after);
	return call;
}

static void call_free(struct rpc_call *call)
{
	if (call->call)
		grpc_call_unref(call->call);
	grpc_metadata_array_destroy(&call->first);
	grpc_metadata_array_destroy(&call->last);
	grpc_slice_unref(call->why);
	grpc_slice_buffer_destroy(&call->after);
	free(call);
}

static void call_enlist(struct rpc_call *call, struct backend_link *link, struct stream *stream)
{
	call->link = link;
	call->stream = stream;
	call->inbox_most = stream ? 1 : INBOX_CONTROL;
	TAILQ_INSERT_TAIL(&call->context->calls, call, all);
}

/* True when it is under way. */
static bool start(struct rpc_call *call, const grpc_op *operations, size_t count,
		  struct event *event)
{
	return grpc_call_start_batch(call->call, operations, count, event, NULL) == GRPC_CALL_OK;
}

/* ---- Making ------------------------------------------------------------- */

/* gRPC keeps a reference of its own on what a batch needs. */
static grpc_metadata metadata(const char *key, const char *value)
{
	return (grpc_metadata){.key = grpc_slice_from_static_string(key),
			       .value = grpc_slice_from_copied_string(value)};
}

static void metadata_drop(grpc_metadata *all, size_t count)
{
	while (count--)
		grpc_slice_unref(all[count].value);
}

static void begin_client(struct rpc_call *call)
{
	grpc_op operations[2] = {{0}}, end = {0};
	grpc_metadata request[3];
	size_t count = 0;
	char number[16];

	request[count++] = metadata(METADATA_VERSION, RPC_VERSION);
	if (call->stream) {
		snprintf(number, sizeof(number), "%u", call->stream->name);
		request[count++] = metadata(METADATA_SESSION, call->link->session);
		request[count++] = metadata(METADATA_STREAM, number);
	}
	operations[0].op = GRPC_OP_SEND_INITIAL_METADATA;
	operations[0].data.send_initial_metadata.count = count;
	operations[0].data.send_initial_metadata.metadata = request;
	operations[1].op = GRPC_OP_RECV_INITIAL_METADATA;
	operations[1].data.recv_initial_metadata.recv_initial_metadata = &call->first;
	end.op = GRPC_OP_RECV_STATUS_ON_CLIENT;
	end.data.recv_status_on_client.trailing_metadata = &call->last;
	end.data.recv_status_on_client.status = &call->status;
	end.data.recv_status_on_client.status_details = &call->why;
	call->begin_pending = start(call, operations, 2, &call->begun);
	call->end_pending = start(call, &end, 1, &call->ended);
	metadata_drop(request, count);
}

struct rpc_call *call_make(struct backend_link *link, struct stream *stream, grpc_channel *channel)
{
	struct rpc_call *call = call_new(link->context);

	if (!call)
		return NULL;
	call->client = true;
	call->call = grpc_channel_create_call(
		channel, NULL, GRPC_PROPAGATE_DEFAULTS, link->context->queue,
		grpc_slice_from_static_string(stream ? METHOD_STREAM : METHOD_CONTROL), NULL,
		gpr_inf_future(GPR_CLOCK_REALTIME), NULL);
	if (!call->call) {
		call_free(call);
		return NULL;
	}
	call_enlist(call, link, stream);
	begin_client(call);
	call->reading = true;
	call_read(call);
	return call;
}

struct rpc_call *call_take(struct backend_context *context, struct request *request)
{
	struct rpc_call *call = call_new(context);
	grpc_op end = {.op = GRPC_OP_RECV_CLOSE_ON_SERVER};

	if (!call) {
		grpc_call_cancel(request->call, NULL);
		grpc_call_unref(request->call);
		return NULL;
	}
	call->call = request->call;
	call_enlist(call, NULL, NULL);
	end.data.recv_close_on_server.cancelled = &call->cancelled;
	call->end_pending = start(call, &end, 1, &call->ended);
	return call;
}

void call_answer(struct rpc_call *call, struct backend_link *link, struct stream *stream)
{
	grpc_op answer = {.op = GRPC_OP_SEND_INITIAL_METADATA};
	grpc_metadata words[2] = {metadata(METADATA_VERSION, RPC_VERSION),
				  metadata(METADATA_SESSION, link->session)};

	call->link = link;
	call->stream = stream;
	call->inbox_most = stream ? 1 : INBOX_CONTROL;
	answer.data.send_initial_metadata.count = stream ? 1 : 2;
	answer.data.send_initial_metadata.metadata = words;
	call->begin_pending = start(call, &answer, 1, &call->begun);
	metadata_drop(words, 2);
	call->reading = true;
	call_read(call);
}

/* ---- Ending ------------------------------------------------------------- */

static void set_dropped(struct rpc_call *call)
{
	struct mailbox *mail = &call->context->mail;

	pthread_mutex_lock(&mail->lock);
	call->dropped = true;
	pthread_mutex_unlock(&mail->lock);
	TAILQ_REMOVE(&call->context->calls, call, all);
	TAILQ_INSERT_TAIL(&call->context->dropped, call, all);
}

void call_refuse(struct rpc_call *call, grpc_status_code status, const char *why)
{
	grpc_op answer[2] = {{.op = GRPC_OP_SEND_INITIAL_METADATA},
			     {.op = GRPC_OP_SEND_STATUS_FROM_SERVER}};
	grpc_slice text = grpc_slice_from_copied_string(why);

	answer[1].data.send_status_from_server.status = status;
	answer[1].data.send_status_from_server.status_details = &text;
	call->send_pending = start(call, answer, 2, &call->sent);
	grpc_slice_unref(text);
	set_dropped(call);
}

void call_say_end(struct rpc_call *call)
{
	grpc_op end = {.op = GRPC_OP_SEND_CLOSE_FROM_CLIENT};

	if (!call->client) {
		end.op = GRPC_OP_SEND_STATUS_FROM_SERVER;
		end.data.send_status_from_server.status = GRPC_STATUS_OK;
	}
	call->send_pending = start(call, &end, 1, &call->sent);
}

static void inbox_clear(struct rpc_call *call)
{
	for (; call->inbox_count; call->inbox_count--) {
		grpc_byte_buffer_destroy(call->inbox[call->inbox_first]);
		call->inbox_first = (call->inbox_first + 1) % INBOX_MESSAGES;
	}
}

void call_drop(struct rpc_call *call)
{
	if (!call)
		return;
	call->link = NULL;
	call->stream = NULL;
	set_dropped(call);
	if (call->end_pending)
		grpc_call_cancel(call->call, NULL);
}

bool call_reap(struct rpc_call *call)
{
	struct mailbox *mail = &call->context->mail;
	bool busy;

	if (!call->dropped || call->serving || call->begin_pending || call->send_pending ||
	    call->end_pending)
		return false;
	pthread_mutex_lock(&mail->lock);
	busy = call->reading || call->got.queued;
	if (!busy)
		inbox_clear(call);
	pthread_mutex_unlock(&mail->lock);
	if (busy)
		return false;
	TAILQ_REMOVE(&call->context->dropped, call, all);
	call_free(call);
	return true;
}

/* ---- Messages ----------------------------------------------------------- */

static bool send_message(struct rpc_call *call, grpc_slice *slices, size_t count)
{
	grpc_op send = {.op = GRPC_OP_SEND_MESSAGE};
	/* One for each call: the batch moves the slices out of it. */
	grpc_byte_buffer *message = grpc_raw_byte_buffer_create(slices, count);
	bool started;

	send.data.send_message.send_message = message;
	started = start(call, &send, 1, &call->sent);
	grpc_byte_buffer_destroy(message);
	return started;
}

int call_send(struct rpc_call *call, grpc_slice *slices, size_t count)
{
	call->send_pending = send_message(call, slices, count);
	while (count)
		grpc_slice_unref(slices[--count]);
	return call->send_pending ? 0 : -EPIPE;
}

bool call_follow(struct rpc_call *call, grpc_slice slice)
{
	struct mailbox *mail = &call->context->mail;
	bool taken;

	pthread_mutex_lock(&mail->lock);
	taken = !call->sent.queued &&
		call->after.length + GRPC_SLICE_LENGTH(slice) <= CONTROL_MESSAGE_MAX;
	if (taken)
		grpc_slice_buffer_add(&call->after, slice);
	pthread_mutex_unlock(&mail->lock);
	return taken;
}

bool call_sent(struct rpc_call *call, grpc_slice_buffer *after)
{
	if (call->dropped || !call->after.count)
		return false;
	grpc_slice_buffer_swap(&call->after, after);
	return true;
}

bool call_send_after(struct rpc_call *call, grpc_slice_buffer *after)
{
	return send_message(call, after->slices, after->count);
}

/* In any thread, by whoever has set `reading`. */
void call_read(struct rpc_call *call)
{
	grpc_op receive = {.op = GRPC_OP_RECV_MESSAGE};

	receive.data.recv_message.recv_message = &call->arriving;
	if (start(call, &receive, 1, &call->got))
		return;
	pthread_mutex_lock(&call->context->mail.lock);
	call->reading = false;
	call->ends = true;
	pthread_mutex_unlock(&call->context->mail.lock);
}

/* Whether the next message may be read. With the mailbox's lock. */
static bool may_read(const struct rpc_call *call)
{
	return !call->ends && !call->dropped && call->inbox_count < INBOX_MESSAGES &&
	       call->inbox_bytes < call->inbox_most;
}

bool call_got(struct rpc_call *call, bool ok)
{
	grpc_byte_buffer *message = call->arriving;

	call->arriving = NULL;
	if (!ok || !message || call->dropped) {
		call->ends = true;
		if (message)
			grpc_byte_buffer_destroy(message);
	} else {
		call->inbox[(call->inbox_first + call->inbox_count++) % INBOX_MESSAGES] = message;
		call->inbox_bytes += grpc_byte_buffer_length(message);
	}
	call->reading = may_read(call);
	return call->reading;
}

grpc_byte_buffer *call_next(struct rpc_call *call)
{
	struct mailbox *mail = &call->context->mail;
	grpc_byte_buffer *message = NULL;
	bool again = false;

	pthread_mutex_lock(&mail->lock);
	if (call->inbox_count) {
		message = call->inbox[call->inbox_first];
		call->inbox_first = (call->inbox_first + 1) % INBOX_MESSAGES;
		call->inbox_count--;
		call->inbox_bytes -= grpc_byte_buffer_length(message);
		again = !call->reading && may_read(call);
		call->reading |= again;
	}
	pthread_mutex_unlock(&mail->lock);
	if (again)
		call_read(call);
	return message;
}

bool call_has_ended(struct rpc_call *call)
{
	struct mailbox *mail = &call->context->mail;
	bool read;

	pthread_mutex_lock(&mail->lock);
	read = !call->reading && !call->inbox_count && call->ends;
	pthread_mutex_unlock(&mail->lock);
	/* The client's last word is the status; a server only sees that no message follows. */
	return read && (!call->client || !call->end_pending);
}

bool call_metadata(const grpc_metadata_array *array, const char *key, char *text, size_t room)
{
	for (size_t i = 0; i < array->count; i++) {
		size_t length = GRPC_SLICE_LENGTH(array->metadata[i].value);

		if (grpc_slice_str_cmp(array->metadata[i].key, key) || length >= room)
			continue;
		memcpy(text, GRPC_SLICE_START_PTR(array->metadata[i].value), length);
		text[length] = 0;
		return true;
	}
	return false;
}

void call_why(const struct rpc_call *call, char *text, size_t room)
{
	snprintf(text, room, "%.*s", (int)GRPC_SLICE_LENGTH(call->why),
		 (const char *)GRPC_SLICE_START_PTR(call->why));
}

/* ---- Events ------------------------------------------------------------- */

static void on_sent(struct rpc_call *call)
{
	call->send_pending = false;
	if (!call->link || !call->sent.ok)
		return;
	if (call->stream) {
		stream_wrote(call->stream);
	} else {
		control_write(call->link);
		push_small_waiting(call->link);
	}
	if (call->link)
		link_hunger(call->link);
}

static void on_got(struct rpc_call *call)
{
	if (!call->link)
		return;
	if (call->stream)
		stream_read(call->stream);
	else
		control_read(call->link);
}

static void on_begun(struct rpc_call *call)
{
	call->begin_pending = false;
	if (!call->link || !call->client)
		return;
	if (call->stream)
		stream_begun(call->stream, call->begun.ok);
	else
		link_begun(call->link, call->begun.ok);
}

void call_event(struct event *event)
{
	struct rpc_call *call = event->owner;
	bool before = call->serving;

	/* What is called from here may drop it, and wait until dropped calls are freed. */
	call->serving = true;
	if (event->kind == EVENT_BEGUN)
		on_begun(call);
	else if (event->kind == EVENT_SENT)
		on_sent(call);
	else if (event->kind == EVENT_GOT)
		on_got(call);
	else
		call->end_pending = false;
	call->serving = before;
	if (!call->link || call->over || event->kind == EVENT_SENT || !call_has_ended(call))
		return;
	call->over = true;
	if (call->stream)
		stream_break(call->stream);
	else
		link_ended(call->link);
}
