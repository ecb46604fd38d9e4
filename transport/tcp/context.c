/* SPDX-License-Identifier: Apache-2.0 */
/* The tcp backend: opening, progress, waiting. */
#include <errno.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include "tcp.h"

/* One look in so many is at all sockets, also when one of them is hot. */
#define LOOKS 8

static int tcp_probe(char *reason, size_t room)
{
	int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);

	if (fd < 0)
		fd = socket(AF_INET6, SOCK_STREAM | SOCK_CLOEXEC, 0);
	if (fd < 0) {
		snprintf(reason, room, "no TCP socket can be made: %s", haul_strerror(errno));
		return -errno;
	}
	close(fd);
	snprintf(reason, room, "runs on every host with TCP");
	return 0;
}

/* Whether the kernel lets this process choose an algorithm, and why not. */
static int try_congestion(const char *name)
{
	int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
	int error = 0;

	if (fd < 0)
		return -errno;
	if (setsockopt(fd, IPPROTO_TCP, TCP_CONGESTION, name, (socklen_t)strlen(name)))
		error = -errno;
	close(fd);
	return error;
}

static int check_congestion(struct backend_context *context)
{
	const char *name = context->config->congestion;
	int error;

	context->bbr = !name && try_congestion("bbr") == 0;
	if (!name)
		return 0;
	error = try_congestion(name);
	if (error)
		return haul_fail(context->engine, error == -ENOENT ? -EINVAL : error,
				 "congestion=%s: %s; valid are those of "
				 "/proc/sys/net/ipv4/tcp_allowed_congestion_control, for root of "
				 "tcp_available_congestion_control",
				 name,
				 error == -ENOENT ? "no such algorithm" : haul_strerror(error));
	return 0;
}

static void context_free(struct backend_context *context)
{
	if (context->epoll >= 0)
		close(context->epoll);
	if (context->wake >= 0)
		close(context->wake);
	free(context->events);
	free(context->scrap);
	free(context);
}

static int tcp_open(haul_context *engine, const void *config, struct backend_context **out)
{
	struct backend_context *context = calloc(1, sizeof(*context));
	struct epoll_event event = {.events = EPOLLIN};
	int error = -ENOMEM;

	if (!context)
		return -ENOMEM;
	context->engine = engine;
	context->config = config;
	context->traced = haul_is_traced(engine);
	context->next_timer = UINT64_MAX;
	TAILQ_INIT(&context->links);
	TAILQ_INIT(&context->gone);
	TAILQ_INIT(&context->listeners);
	TAILQ_INIT(&context->sockets);
	TAILQ_INIT(&context->strangers);
	TAILQ_INIT(&context->dead);
	TAILQ_INIT(&context->ready);
	context->epoll = haul_descriptor(epoll_create1(EPOLL_CLOEXEC));
	context->wake = haul_descriptor(eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK));
	context->events = calloc(EVENTS_MAX, sizeof(struct epoll_event));
	context->scrap = malloc(SCRAP_SIZE);
	if (context->epoll < 0 || context->wake < 0)
		error = haul_fail(engine, -EMFILE,
				  "no descriptor for the context: the limit of open files is %ld "
				  "(ulimit -n shows and raises it)",
				  sysconf(_SC_OPEN_MAX));
	else if (context->events && context->scrap)
		error = epoll_ctl(context->epoll, EPOLL_CTL_ADD, context->wake, &event) ? -errno
											: 0;
	if (!error)
		error = check_congestion(context);
	if (error) {
		context_free(context);
		return error;
	}
	*out = context;
	return 0;
}

static void free_gone(struct backend_context *context)
{
	struct backend_link *link;
	struct tcp_socket *socket;

	while ((socket = TAILQ_FIRST(&context->dead))) {
		TAILQ_REMOVE(&context->dead, socket, all);
		free(socket);
	}
	while ((link = TAILQ_FIRST(&context->gone))) {
		TAILQ_REMOVE(&context->gone, link, all);
		free(link->inbox);
		free(link->addresses);
		free(link);
	}
}

static void tcp_close(struct backend_context *context)
{
	struct backend_link *link;

	while ((link = TAILQ_FIRST(&context->links)))
		link_free(link);
	while (!TAILQ_EMPTY(&context->strangers))
		socket_dead(TAILQ_FIRST(&context->strangers));
	while (!TAILQ_EMPTY(&context->sockets))
		socket_dead(TAILQ_FIRST(&context->sockets));
	free_gone(context);
	context_free(context);
}

static void tcp_close_in_child(struct backend_context *context)
{
	struct tcp_socket *socket;

	TAILQ_FOREACH (socket, &context->sockets, all)
		close(socket->fd);
	TAILQ_FOREACH (socket, &context->strangers, all)
		close(socket->fd);
	close(context->epoll);
	close(context->wake);
}

/* ---- Progress ---------------------------------------------------------- */

static void take_event(struct backend_context *context, const struct epoll_event *event)
{
	struct tcp_socket *socket = event->data.ptr;
	uint64_t value;
	ssize_t ignored;

	context->hot = NULL;
	if (!socket) {
		ignored = read(context->wake, &value, sizeof(value));
		(void)ignored;
		return;
	}
	if ((event->events & (EPOLLRDHUP | EPOLLHUP)) ||
	    ((event->events & EPOLLERR) && !socket_only_notified(socket)))
		socket->ended = true;
	if (event->events & (EPOLLIN | EPOLLRDHUP | EPOLLHUP | EPOLLERR))
		socket->readable = true;
	if (event->events & (EPOLLOUT | EPOLLHUP | EPOLLERR))
		socket->writable = true;
	socket_ready(socket);
}

/* Nothing is ever sent on a pulse: whatever can be read there is its end. */
static void feel_pulse(struct tcp_socket *socket)
{
	uint8_t byte;
	ssize_t got = recv(socket->fd, &byte, 1, 0);

	if (got < 0 && (errno == EAGAIN || errno == EINTR))
		socket->readable = false;
	else
		link_socket_broken(socket, got < 0 ? -errno : -ECONNRESET);
}

/* Move what one socket can move. */
static void serve(struct tcp_socket *socket)
{
	if (socket->role == SOCKET_LISTENER) {
		listener_accept(socket);
	} else if (socket->role == SOCKET_STRANGER) {
		stranger_read(socket);
	} else if (socket->state != SOCKET_UP) {
		connect_event(socket);
	} else if (socket->role == SOCKET_CONTROL) {
		if (socket->readable)
			control_read(socket->link);
		/* Otherwise the engine says when: messages share a write. */
		if (socket->role == SOCKET_CONTROL && socket->writable && socket->full)
			control_write(socket->link);
	} else if (socket->role == SOCKET_STREAM) {
		if (socket->readable)
			stream_read(socket->stream);
		if (socket->role == SOCKET_STREAM && socket->writable)
			stream_write(socket->stream);
	} else if (socket->role == SOCKET_PULSE && socket->readable) {
		feel_pulse(socket);
	}
}

static void report_errors(struct backend_context *context)
{
	struct backend_link *link, *next;

	for (link = TAILQ_FIRST(&context->links); link && context->errors; link = next) {
		next = TAILQ_NEXT(link, all);
		if (!link->error || !link->endpoint)
			continue;
		context->errors--;
		link->lost = true;
		/* The engine disconnects the link from within. */
		haul_on_lost(link->endpoint, link->error, link->why);
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

/*
 * A caller who polls gets his answer with one system call, most of the time: the control stream
 * that spoke last is read without being asked for. True: that is what this round does.
 */
static bool look_at_hot(struct backend_context *context)
{
	struct tcp_socket *hot = context->hot;

	if (!hot || ++context->looks % LOOKS == 0)
		return false;
	hot->readable = true;
	socket_ready(hot);
	return true;
}

static int tcp_progress(struct backend_context *context)
{
	struct epoll_event *events = context->events;
	struct tcp_socket *socket;
	unsigned rounds = 0;
	int done;

	if (context->event_count == 0 && !look_at_hot(context)) {
		done = epoll_wait(context->epoll, events, EVENTS_MAX, 0);
		context->event_count = done > 0 ? done : 0;
	}
	done = context->event_count;
	for (int i = 0; i < context->event_count; i++)
		take_event(context, &events[i]);
	context->event_count = 0;

	/* A socket that has more to do puts itself at the end of the list. */
	while ((socket = TAILQ_FIRST(&context->ready)) && rounds++ < EVENTS_MAX) {
		TAILQ_REMOVE(&context->ready, socket, ready_entry);
		socket->ready = false;
		context->in_vain = false;
		serve(socket);
		done += !context->in_vain;
	}
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
	free_gone(context);
	return done;
}

static void tcp_wait(struct backend_context *context, int timeout_ms)
{
	int count;

	if (context->event_count)
		return;
	count = epoll_wait(context->epoll, context->events, EVENTS_MAX, timeout_ms);
	/* Other threads look at the count meanwhile, at the events only this one does. */
	__atomic_store_n(&context->event_count, count > 0 ? count : 0, __ATOMIC_RELAXED);
}

static void tcp_wake(struct backend_context *context)
{
	uint64_t value = 1;
	ssize_t ignored = write(context->wake, &value, sizeof(value));

	(void)ignored;
}

static int tcp_event_fd(struct backend_context *context)
{
	/* Whoever waits for the descriptor polls because of it: its events are what counts. */
	context->watched = true;
	context->hot = NULL;
	return context->epoll;
}

static uint64_t tcp_next_timer(struct backend_context *context)
{
	/* Work that is left for the next round can't wait. */
	if (!TAILQ_EMPTY(&context->ready) || context->errors ||
	    __atomic_load_n(&context->event_count, __ATOMIC_RELAXED))
		return 0;
	return context->next_timer;
}

static const struct haul_context_ops context_ops = {
	.probe = tcp_probe,
	.open = tcp_open,
	.close = tcp_close,
	.close_in_child = tcp_close_in_child,
	.progress = tcp_progress,
	.wait = tcp_wait,
	.wake = tcp_wake,
	.event_fd = tcp_event_fd,
	.next_timer = tcp_next_timer,
};

static const struct haul_link_ops link_ops = {
	.listen = tcp_listen,
	.unlisten = tcp_unlisten,
	.connect = tcp_connect,
	.disconnect = tcp_disconnect,
	.leaving = tcp_leaving,
	.control = tcp_control,
	.flush = tcp_flush,
	.statistics = tcp_statistics,
};

static const struct haul_data_ops data_ops = {
	.push = tcp_push,
	.push_end = tcp_push_end,
};

const struct haul_backend haul_backend_tcp = {
	.version = HAUL_BACKEND_VERSION,
	.name = "tcp",
	.summary = "TCP over one or many sockets",
	.options = tcp_options,
	.config_size = sizeof(struct tcp_config),
	.context = &context_ops,
	.link = &link_ops,
	.data = &data_ops,
};
