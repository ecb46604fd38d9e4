/* SPDX-License-Identifier: Apache-2.0 */
/* gRPC's servers: they wait for calls, and hand them to the listeners. */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <grpc/grpc_security.h>

#include "rpc.h"

/* Ready for one more call. */
static void wait_for_call(struct request *request)
{
	struct rpc_server *server = request->server;

	grpc_call_details_init(&request->details);
	grpc_metadata_array_init(&request->metadata);
	request->call = NULL;
	if (grpc_server_request_call(server->server, &request->call, &request->details,
				     &request->metadata, server->context->queue,
				     server->context->queue, &request->event) == GRPC_CALL_OK) {
		server->waiting++;
		return;
	}
	grpc_call_details_destroy(&request->details);
	grpc_metadata_array_destroy(&request->metadata);
}

int server_open(struct backend_context *context, struct backend_listener *listener,
		struct rpc_server **out)
{
	struct rpc_server *server = calloc(1, sizeof(*server));
	grpc_channel_args *arguments = channel_arguments(context);

	if (!server || !arguments) {
		free(server);
		free(arguments);
		return -ENOMEM;
	}
	server->context = context;
	server->listener = listener;
	server->stopped = (struct event){.owner = server, .kind = EVENT_STOPPED};
	server->server = grpc_server_create(arguments, NULL);
	free(arguments);
	grpc_server_register_completion_queue(server->server, context->queue, NULL);
	TAILQ_INSERT_TAIL(&context->servers, server, all);
	*out = server;
	return 0;
}

void server_start(struct rpc_server *server)
{
	grpc_server_start(server->server);
	for (unsigned i = 0; i < REQUESTS; i++) {
		server->requests[i].server = server;
		server->requests[i].event =
			(struct event){.owner = &server->requests[i], .kind = EVENT_CALLED};
		wait_for_call(&server->requests[i]);
	}
}

/* Calls that there are go on; with `all` they end, and all connections with them. */
void server_stop(struct rpc_server *server, bool all)
{
	if (!server->stopping)
		grpc_server_shutdown_and_notify(server->server, server->context->queue,
						&server->stopped);
	server->stopping = true;
	if (all)
		grpc_server_cancel_all_calls(server->server);
}

bool server_reap(struct rpc_server *server)
{
	if (!server->has_stopped || server->waiting)
		return false;
	grpc_server_destroy(server->server);
	TAILQ_REMOVE(&server->context->servers, server, all);
	free(server);
	return true;
}

static void called(struct request *request)
{
	struct rpc_server *server = request->server;

	server->waiting--;
	if (request->event.ok)
		listener_called(server, request);
	grpc_call_details_destroy(&request->details);
	grpc_metadata_array_destroy(&request->metadata);
	if (request->event.ok && !server->stopping)
		wait_for_call(request);
}

void server_event(struct event *event)
{
	struct rpc_server *server = event->owner;

	if (event->kind == EVENT_CALLED)
		called(event->owner);
	else
		server->has_stopped = true;
}
