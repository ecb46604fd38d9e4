/* SPDX-License-Identifier: Apache-2.0 */
/* Requests of servers for calls: the mark is taken off, and a payload that comes with the call may
 * be aside. */
#include <stdlib.h>

#include "request.h"
#include "transfer.h"

/* An event of one's own goes into a queue as that of a watch whose deadline is over. */
static grpc_channel *idle_channel;
static pthread_once_t once = PTHREAD_ONCE_INIT;

static void make_idle_channel(void)
{
	idle_channel = core()->grpc_channel_create(
		"ipv4:127.0.0.1:1", core()->grpc_insecure_credentials_create(), NULL);
}

void batch_post(struct batch *batch)
{
	struct call *call = batch->call;
	void *tag = batch_core_tag(batch);

	batch->ready = true;
	if (!batch->is_request) {
		/* An empty batch ends at once; the call lives by the reference of this one. */
		core()->grpc_call_start_batch(call->core, NULL, 0, tag, NULL);
		return;
	}
	pthread_once(&once, make_idle_channel);
	core()->grpc_channel_watch_connectivity_state(
		idle_channel, GRPC_CHANNEL_IDLE, (gpr_timespec){INT64_MIN, 0, GPR_CLOCK_MONOTONIC},
		batch->queue->core, tag);
}

static bool take_mark(grpc_metadata_array *array, struct wire_mark *mark)
{
	size_t left = 0;
	bool found = false;

	for (size_t i = 0; i < array->count; i++) {
		grpc_metadata *entry = &array->metadata[i];

		if (GRPC_SLICE_LENGTH(entry->key) == strlen(WIRE_MARK_KEY) &&
		    !memcmp(GRPC_SLICE_START_PTR(entry->key), WIRE_MARK_KEY,
			    strlen(WIRE_MARK_KEY)) &&
		    wire_get_mark(GRPC_SLICE_START_PTR(entry->value),
				  GRPC_SLICE_LENGTH(entry->value), mark)) {
			found = true; /* the slices are the call's */
			continue;
		}
		array->metadata[left++] = *entry;
	}
	array->count = left;
	return found;
}

static struct call *know_call(const struct batch_request *request, const struct wire_mark *mark)
{
	struct queue *queue = queue_find(request->queue);
	struct session *session = queue ? session_find(&mark->session, true) : NULL;
	gpr_timespec deadline = request->details ? request->details->deadline : *request->deadline;
	struct call *call =
		queue ? call_new(*request->call, session, queue, deadline, mark, 0) : NULL;

	if (!call && session)
		session_put(session);
	return call;
}

bool request_event(struct batch *batch, bool success)
{
	struct aftermath aftermath = {0};
	struct wire_mark mark;
	struct call *call;
	bool held = false;

	batch->success = success;
	batch->arrived = true;
	if (!success || !*batch->request.call || !take_mark(batch->request.metadata, &mark))
		return true;
	call = know_call(&batch->request, &mark);
	if (!call)
		return true;
	batch->call = call;
	if (batch->message && *batch->message) {
		pthread_mutex_lock(&call->lock);
		batch_take_descriptor(batch, &aftermath);
		held = batch->waits;
		pthread_mutex_unlock(&call->lock);
		call_follow(call, &aftermath);
	}
	if (!held)
		call_put(call);
	return !held;
}

/* ---- Starting ------------------------------------------------------------ */

struct batch *request_new(grpc_completion_queue *core_queue, void *tag,
			  const struct batch_request *request, grpc_byte_buffer **payload)
{
	struct queue *queue = layer_on() ? queue_find(core_queue) : NULL;
	struct batch *batch = queue ? batch_new(queue, tag) : NULL;

	if (!batch)
		return NULL;
	batch->is_request = true;
	batch->request = *request;
	batch->message = payload;
	return batch;
}

grpc_call_error grpc_server_request_call(grpc_server *server, grpc_call **call,
					 grpc_call_details *details, grpc_metadata_array *metadata,
					 grpc_completion_queue *queue,
					 grpc_completion_queue *notified, void *tag)
{
	struct batch_request request = {
		.call = call, .details = details, .metadata = metadata, .queue = queue};
	struct batch *batch = request_new(notified, tag, &request, NULL);
	grpc_call_error error =
		core()->grpc_server_request_call(server, call, details, metadata, queue, notified,
						 batch ? batch_core_tag(batch) : tag);

	if (error && batch)
		batch_free(batch);
	return error;
}

grpc_call_error grpc_server_request_registered_call(grpc_server *server, void *method,
						    grpc_call **call, gpr_timespec *deadline,
						    grpc_metadata_array *metadata,
						    grpc_byte_buffer **payload,
						    grpc_completion_queue *queue,
						    grpc_completion_queue *notified, void *tag)
{
	struct batch_request request = {
		.call = call, .deadline = deadline, .metadata = metadata, .queue = queue};
	struct batch *batch = request_new(notified, tag, &request, payload);
	grpc_call_error error = core()->grpc_server_request_registered_call(
		server, method, call, deadline, metadata, payload, queue, notified,
		batch ? batch_core_tag(batch) : tag);

	if (error && batch)
		batch_free(batch);
	return error;
}
