/* SPDX-License-Identifier: Apache-2.0 */
/* The grpc backend: opening, progress, waiting. */
#include <errno.h>
#include <poll.h>
#include <stdlib.h>
#include <sys/epoll.h>
#include <unistd.h>

#include "rpc.h"

#define EVENTS_MAX 128

/* ---- Opening ------------------------------------------------------------ */

static void context_free(struct backend_context *context)
{
	if (context->queue) {
		grpc_completion_queue_shutdown(context->queue);
		mailbox_stop(context);
		grpc_completion_queue_destroy(context->queue);
	}
	if (context->runs)
		runtime_leave();
	if (context->epoll >= 0)
		close(context->epoll);
	mailbox_close(context);
	tls_close(context);
	free(context->epoll_events);
	free(context->scratch);
	free(context);
}

static int open_descriptors(struct backend_context *context)
{
	struct epoll_event event = {.events = EPOLLIN};
	int error;

	context->epoll = haul_descriptor(epoll_create1(EPOLL_CLOEXEC));
	error = context->epoll < 0 ? -errno : mailbox_open(context);
	if (error)
		return no_descriptor(context->engine, error);
	context->epoll_events = calloc(EVENTS_MAX, sizeof(struct epoll_event));
	context->scratch = malloc(CONTROL_MESSAGE_MAX);
	if (!context->epoll_events || !context->scratch)
		return -ENOMEM;
	return epoll_ctl(context->epoll, EPOLL_CTL_ADD, context->mail.fd, &event) ? -errno : 0;
}

static int rpc_open(haul_context *engine, const void *config, struct backend_context **out)
{
	struct backend_context *context = calloc(1, sizeof(*context));
	int error;

	if (!context)
		return -ENOMEM;
	context->engine = engine;
	context->traced = haul_is_traced(engine);
	context->config = config;
	context->next_timer = UINT64_MAX;
	context->mail.fd = -1;
	TAILQ_INIT(&context->links);
	TAILQ_INIT(&context->gone_links);
	TAILQ_INIT(&context->listeners);
	TAILQ_INIT(&context->servers);
	TAILQ_INIT(&context->connections);
	TAILQ_INIT(&context->strangers);
	TAILQ_INIT(&context->settling);
	TAILQ_INIT(&context->dead);
	TAILQ_INIT(&context->calls);
	TAILQ_INIT(&context->dropped);
	error = open_descriptors(context);
	if (!error)
		error = tls_open(context);
	if (!error)
		error = runtime_enter(engine, context->config->warm);
	if (!error) {
		context->runs = true;
		context->queue = grpc_completion_queue_create_for_next(NULL);
		error = context->queue ? mailbox_start(context) : -ENOMEM;
	}
	if (error) {
		context_free(context);
		return error;
	}
	*out = context;
	return 0;
}

/* ---- Closing ------------------------------------------------------------ */

static int reap(struct backend_context *context)
{
	struct backend_link *link;
	struct connection *connection;
	struct rpc_call *call, *next_call;
	struct rpc_server *server, *next_server;
	int done = 0;

	for (call = TAILQ_FIRST(&context->dropped); call; call = next_call) {
		next_call = TAILQ_NEXT(call, all);
		done += call_reap(call);
	}
	for (server = TAILQ_FIRST(&context->servers); server; server = next_server) {
		next_server = TAILQ_NEXT(server, all);
		done += server_reap(server);
	}
	while ((connection = TAILQ_FIRST(&context->dead))) {
		TAILQ_REMOVE(&context->dead, connection, all);
		free(connection);
	}
	while ((link = TAILQ_FIRST(&context->gone_links))) {
		TAILQ_REMOVE(&context->gone_links, link, all);
		free(link->addresses);
		free(link);
	}
	return done;
}

static void rpc_close(struct backend_context *context)
{
	struct backend_link *link;
	struct rpc_call *call;
	struct rpc_server *server;
	uint64_t value;

	while ((link = TAILQ_FIRST(&context->links)))
		link_free(link);
	while (!TAILQ_EMPTY(&context->strangers))
		connection_close(TAILQ_FIRST(&context->strangers));
	while (!TAILQ_EMPTY(&context->connections))
		connection_close(TAILQ_FIRST(&context->connections));
	while ((call = TAILQ_FIRST(&context->calls)))
		call_drop(call);
	TAILQ_FOREACH (server, &context->servers, all)
		server_stop(server, true);
	/* All connections are cut, so gRPC ends whatever there is at once. */
	mailbox_hungry(context, true);
	for (;;) {
		struct pollfd fd = {.fd = context->mail.fd, .events = POLLIN};

		mailbox_look(context);
		reap(context);
		if (TAILQ_EMPTY(&context->dropped) && TAILQ_EMPTY(&context->servers) &&
		    TAILQ_EMPTY(&context->settling))
			break;
		if (mailbox_arm(context))
			poll(&fd, 1, -1);
		if (read(context->mail.fd, &value, sizeof(value)) < 0)
			continue;
	}
	context_free(context);
}

static void rpc_close_in_child(struct backend_context *context)
{
	struct connection_list *lists[] = {&context->connections, &context->strangers};
	struct backend_listener *listener;
	struct connection *connection;

	/* gRPC's own descriptors are left alone where it may have closed them. */
	for (size_t i = 0; i < 2; i++) {
		TAILQ_FOREACH (connection, lists[i], all) {
			connection_close_in_child(connection);
		}
	}
	TAILQ_FOREACH (listener, &context->listeners, all)
		close(listener->fd);
	close(context->epoll);
	close(context->mail.fd);
}

/* ---- Progress ----------------------------------------------------------- */

static void take_event(struct backend_context *context, const struct epoll_event *event)
{
	uintptr_t what = (uintptr_t)event->data.ptr;
	struct backend_listener *listener;
	uint64_t value;
	ssize_t ignored;

	if (!what) {
		ignored = read(context->mail.fd, &value, sizeof(value));
		(void)ignored;
	} else if (what & 1) {
		/* It may have been closed since. */
		TAILQ_FOREACH (listener, &context->listeners, all) {
			if (listener == (void *)(what & ~(uintptr_t)1)) {
				listener_accept(listener);
				return;
			}
		}
	} else {
		connection_event((struct connection *)what);
	}
}

static void run_timers(struct backend_context *context, uint64_t now)
{
	struct backend_listener *listener;
	struct backend_link *link, *next;

	context->next_timer = UINT64_MAX;
	strangers_expire(context, now);
	TAILQ_FOREACH (listener, &context->listeners, all)
		listener_timers(listener, now);
	for (link = TAILQ_FIRST(&context->links); link; link = next) {
		next = TAILQ_NEXT(link, all);
		link_timers(link, now);
	}
}

static void report_errors(struct backend_context *context)
{
	struct backend_link *link, *next;

	for (link = TAILQ_FIRST(&context->links); link && context->errors; link = next) {
		next = TAILQ_NEXT(link, all);
		if (!link->error || !link->endpoint || link->lost)
			continue;
		context->errors--;
		link->lost = true;
		/* The engine disconnects the link from within. */
		haul_on_lost(link->endpoint, link->error, link->why);
	}
}

static int rpc_progress(struct backend_context *context)
{
	struct epoll_event *events = context->epoll_events;
	int done;

	if (context->event_count == 0) {
		done = epoll_wait(context->epoll, events, EVENTS_MAX, 0);
		context->event_count = done > 0 ? done : 0;
	}
	done = context->event_count;
	for (int i = 0; i < context->event_count; i++)
		take_event(context, &events[i]);
	context->event_count = 0;
	done += mailbox_look(context);
	done += push_released(context);
	if (context->next_timer != UINT64_MAX) {
		uint64_t now = haul_clock();

		if (now >= context->next_timer) {
			run_timers(context, now);
			done++;
		}
	}
	if (context->errors) {
		report_errors(context);
		done++;
	}
	return done + reap(context);
}

static void rpc_wait(struct backend_context *context, int timeout_ms)
{
	int count;

	if (context->event_count)
		return;
	count = epoll_wait(context->epoll, context->epoll_events, EVENTS_MAX, timeout_ms);
	/* Other threads look at the count meanwhile, at the events only this one does. */
	__atomic_store_n(&context->event_count, count > 0 ? count : 0, __ATOMIC_RELAXED);
}

static void rpc_wake(struct backend_context *context)
{
	mailbox_wake(&context->mail);
}

static int rpc_event_fd(struct backend_context *context)
{
	return context->epoll;
}

static uint64_t rpc_next_timer(struct backend_context *context)
{
	if (context->errors || __atomic_load_n(&context->event_count, __ATOMIC_RELAXED) ||
	    !mailbox_arm(context))
		return 0;
	return context->next_timer;
}

static const struct haul_context_ops context_ops = {
	.probe = rpc_probe,
	.describe = rpc_describe,
	.open = rpc_open,
	.close = rpc_close,
	.close_in_child = rpc_close_in_child,
	.progress = rpc_progress,
	.wait = rpc_wait,
	.wake = rpc_wake,
	.event_fd = rpc_event_fd,
	.next_timer = rpc_next_timer,
};

static const struct haul_link_ops link_ops = {
	.listen = rpc_listen,
	.unlisten = rpc_unlisten,
	.connect = rpc_connect,
	.disconnect = rpc_disconnect,
	.leaving = rpc_leaving,
	.control = rpc_control,
	.flush = rpc_flush,
	.statistics = rpc_statistics,
};

static const struct haul_data_ops data_ops = {
	.push = rpc_push,
	.push_end = rpc_push_end,
};

extern const struct haul_backend haul_backend_grpc;

__attribute__((visibility("default"))) const struct haul_backend haul_backend_grpc = {
	.version = HAUL_BACKEND_VERSION,
	.name = "grpc",
	.summary = "gRPC calls, over one or many connections, with TLS if wanted",
	.options = rpc_options,
	.config_size = sizeof(struct rpc_config),
	.context = &context_ops,
	.link = &link_ops,
	.data = &data_ops,
};
