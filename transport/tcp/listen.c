/* SPDX-License-Identifier: Apache-2.0 */
/* Listening, and strangers: sockets that have not shown what they are. */
#include <errno.h>
#include <netinet/in.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/epoll.h>
#include <unistd.h>

#include "tcp.h"

/* How many connections are accepted before others get their turn. */
#define ACCEPT_BATCH 64

/* ns until a listener is looked at again that had no descriptor left. */
#define ACCEPT_PAUSE UINT64_C(100000000)

/* ---- Listening --------------------------------------------------------- */

/* One address of haul_listen_on(). */
struct attempt {
	struct backend_context *context;
	int fd;
};

static int try_listen(void *user, const struct sockaddr_storage *address)
{
	struct attempt *attempt = user;
	int one = 1, zero = 0;
	int fd = socket_open(attempt->context, address);
	int error;

	if (fd < 0)
		return fd;
	setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &one, sizeof(one));
	if (address->ss_family == AF_INET6)
		setsockopt(fd, IPPROTO_IPV6, IPV6_V6ONLY, &zero, sizeof(zero));
	if (bind(fd, (const struct sockaddr *)address, haul_address_size(address)) ||
	    listen(fd, (int)attempt->context->config->backlog)) {
		error = -errno;
		close(fd);
		return error;
	}
	attempt->fd = fd;
	return 0;
}

/* What a peer on this host connects to. */
static void print_bound(int fd, char *address, size_t room)
{
	struct sockaddr_storage bound = {0};
	socklen_t size = sizeof(bound);

	getsockname(fd, (struct sockaddr *)&bound, &size);
	if (bound.ss_family == AF_INET6 &&
	    IN6_IS_ADDR_UNSPECIFIED(&((struct sockaddr_in6 *)&bound)->sin6_addr))
		snprintf(address, room, "127.0.0.1:%u", haul_address_port(&bound));
	else if (bound.ss_family == AF_INET &&
		 ((struct sockaddr_in *)&bound)->sin_addr.s_addr == htonl(INADDR_ANY))
		snprintf(address, room, "127.0.0.1:%u", haul_address_port(&bound));
	else
		haul_address_print(&bound, address, room);
}

int tcp_listen(struct backend_context *context, const char *where, haul_listener *engine,
	       char *address, size_t room, struct backend_listener **out)
{
	struct backend_listener *listener;
	struct attempt attempt = {.context = context};
	int error, fd;

	error = haul_listen_on(context->engine, where, &context->config->ports, try_listen,
			       &attempt);
	if (error)
		return error;
	fd = attempt.fd;
	listener = calloc(1, sizeof(*listener));
	if (!listener) {
		close(fd);
		return -ENOMEM;
	}
	listener->socket = socket_new(context, SOCKET_LISTENER, fd);
	if (!listener->socket) {
		free(listener);
		return -ENOMEM;
	}
	listener->engine = engine;
	listener->socket->listener = listener;
	listener->socket->state = SOCKET_UP;
	print_bound(fd, address, room);
	TAILQ_INSERT_TAIL(&context->listeners, listener, all);
	*out = listener;
	return 0;
}

void tcp_unlisten(struct backend_listener *listener)
{
	struct backend_context *context = listener->socket->context;
	struct tcp_socket *socket, *next;

	for (socket = TAILQ_FIRST(&context->strangers); socket; socket = next) {
		next = TAILQ_NEXT(socket, all);
		if (socket->listener == listener)
			socket_dead(socket);
	}
	socket_dead(listener->socket);
	TAILQ_REMOVE(&context->listeners, listener, all);
	free(listener);
}

/* ---- Strangers --------------------------------------------------------- */

static void stranger_new(struct backend_context *context, struct backend_listener *listener, int fd)
{
	struct tcp_socket *socket = socket_new(context, SOCKET_CONTROL, fd);

	if (!socket)
		return;
	TAILQ_REMOVE(&context->sockets, socket, all);
	socket->role = SOCKET_STRANGER;
	socket->listener = listener;
	TAILQ_INSERT_TAIL(&context->strangers, socket, all);
	strangers_expire(context, socket->since);
	if (++context->stranger_count > STRANGERS_MAX) {
		haul_log(HAUL_LOG_WARNING,
			 "%d connections without a preamble: the oldest is dropped", STRANGERS_MAX);
		socket_dead(TAILQ_FIRST(&context->strangers));
	}
}

static void watch_listener(struct tcp_socket *socket, bool on)
{
	struct epoll_event event = {.events = on ? EPOLLIN : 0, .data.ptr = socket};

	epoll_ctl(socket->context->epoll, EPOLL_CTL_MOD, socket->fd, &event);
}

/* Without a descriptor the connection stays in the backlog, and would wake us for ever. */
static void pause_accepting(struct backend_listener *listener, int error)
{
	struct backend_context *context = listener->socket->context;

	if (!listener->complained)
		haul_log(HAUL_LOG_ERROR, "peers can't be accepted now: %s%s", haul_strerror(error),
			 error == EMFILE ? " (ulimit -n shows and raises the limit)" : "");
	listener->complained = true;
	listener->paused_until = haul_clock() + ACCEPT_PAUSE;
	if (listener->paused_until < context->next_timer)
		context->next_timer = listener->paused_until;
	watch_listener(listener->socket, false);
}

void listener_timers(struct backend_listener *listener, uint64_t now)
{
	struct backend_context *context = listener->socket->context;

	if (!listener->paused_until)
		return;
	if (now >= listener->paused_until) {
		listener->paused_until = 0;
		watch_listener(listener->socket, true);
	} else if (listener->paused_until < context->next_timer) {
		context->next_timer = listener->paused_until;
	}
}

void listener_accept(struct tcp_socket *socket)
{
	for (int i = 0; i < ACCEPT_BATCH; i++) {
		int fd = haul_descriptor(
			accept4(socket->fd, NULL, NULL, SOCK_CLOEXEC | SOCK_NONBLOCK));

		if (fd < 0) {
			if (errno == EMFILE || errno == ENFILE || errno == ENOMEM ||
			    errno == ENOBUFS)
				pause_accepting(socket->listener, errno);
			return;
		}
		socket->listener->complained = false;
		stranger_new(socket->context, socket->listener, fd);
	}
}

static void peer_address(int fd, char *text, size_t room)
{
	struct sockaddr_storage peer = {0};
	socklen_t size = sizeof(peer);

	snprintf(text, room, "?");
	if (getpeername(fd, (struct sockaddr *)&peer, &size) == 0)
		haul_address_print(&peer, text, room);
}

/* Answer a preamble. It is the first thing on this socket: the buffer has room for it. */
static int answer(struct tcp_socket *socket, const struct preamble *preamble,
		  enum preamble_status status, const struct backend_link *link)
{
	struct preamble reply = {.version = TCP_VERSION,
				 .kind = preamble->kind,
				 .status = status,
				 .stream = preamble->stream};
	uint8_t bytes[PREAMBLE_SIZE];

	if (link) {
		memcpy(reply.session, link->session, SESSION_SIZE);
		reply.taken = link->taken;
	}
	preamble_encode(bytes, &reply);
	return send(socket->fd, bytes, sizeof(bytes), MSG_NOSIGNAL) == sizeof(bytes) ? 0 : -EPIPE;
}

/* A stranger has become a socket of a session. */
static void promote(struct tcp_socket *socket, enum socket_role role)
{
	struct backend_context *context = socket->context;

	TAILQ_REMOVE(&context->strangers, socket, all);
	context->stranger_count--;
	TAILQ_INSERT_TAIL(&context->sockets, socket, all);
	socket->role = role;
	socket->listener = NULL;
	socket->state = SOCKET_UP;
	socket->readable = socket->writable = true;
	socket_prepare(socket);
	socket_ready(socket);
}

static void open_session(struct tcp_socket *stranger, const struct preamble *preamble)
{
	struct backend_context *context = stranger->context;
	haul_listener *engine = stranger->listener->engine;
	struct backend_link *link = link_new(context, false);
	char address[128];

	peer_address(stranger->fd, address, sizeof(address));
	if (link && haul_random(link->session, SESSION_SIZE) == 0)
		link->endpoint = haul_on_accepted(engine, link, address);
	if (!link || !link->endpoint) {
		answer(stranger, preamble, PREAMBLE_REFUSED, NULL);
		if (link)
			link_free(link);
		socket_dead(stranger);
		return;
	}
	link->local = socket_is_local(stranger);
	link->state = LINK_OPEN;
	link->control = stranger;
	stranger->link = link;
	promote(stranger, SOCKET_CONTROL);
	if (answer(stranger, preamble, PREAMBLE_WELCOME, link)) {
		link_socket_broken(stranger, -ECONNRESET);
		return;
	}
	tune_ask(link);
	tcp_flush(link);
}

static void join_session(struct tcp_socket *stranger, const struct preamble *preamble)
{
	struct backend_context *context = stranger->context;
	struct backend_link *link = link_find(context, preamble->session);
	enum preamble_status status = PREAMBLE_WELCOME;

	if (!link)
		status = PREAMBLE_UNKNOWN;
	else if (preamble->kind == PREAMBLE_STREAM &&
		 (link->stream_count >= STREAMS_MAX || link->gone_count >= GONE_MAX))
		status = PREAMBLE_REFUSED;
	if (answer(stranger, preamble, status, link) || status != PREAMBLE_WELCOME) {
		socket_dead(stranger);
		return;
	}
	promote(stranger, preamble->kind == PREAMBLE_CONTROL ? SOCKET_CONTROL
			  : preamble->kind == PREAMBLE_PULSE ? SOCKET_PULSE
							     : SOCKET_STREAM);
	link_adopt(link, stranger, preamble);
}

void stranger_read(struct tcp_socket *socket)
{
	struct preamble preamble;
	char address[128];
	ssize_t got = recv(socket->fd, socket->preamble + socket->preamble_done,
			   PREAMBLE_SIZE - socket->preamble_done, 0);

	if (got < 0 && (errno == EAGAIN || errno == EINTR))
		return;
	if (got <= 0) {
		socket_dead(socket);
		return;
	}
	socket->preamble_done += (size_t)got;
	peer_address(socket->fd, address, sizeof(address));
	if (socket->preamble_done >= 4 && get32(socket->preamble) != TCP_MAGIC) {
		haul_log(HAUL_LOG_INFO, "%s is no tensorhaul peer: dropped", address);
		socket_dead(socket);
		return;
	}
	if (socket->preamble_done < PREAMBLE_SIZE) {
		/* An end that came along with these bytes raises no further event. */
		socket_ready(socket);
		return;
	}
	preamble_decode(socket->preamble, &preamble);
	if (preamble.version != TCP_VERSION) {
		haul_log(HAUL_LOG_WARNING, "%s speaks version %u of the tcp framing, this side %d",
			 address, preamble.version, TCP_VERSION);
		answer(socket, &preamble, PREAMBLE_VERSION, NULL);
		socket_dead(socket);
	} else if (preamble.kind == PREAMBLE_OPEN) {
		open_session(socket, &preamble);
	} else if (preamble.kind >= PREAMBLE_CONTROL && preamble.kind <= PREAMBLE_STREAM) {
		join_session(socket, &preamble);
	} else {
		haul_log(HAUL_LOG_INFO, "%s sent a preamble of unknown kind %u", address,
			 preamble.kind);
		socket_dead(socket);
	}
}

void strangers_expire(struct backend_context *context, uint64_t now)
{
	uint64_t patience = haul_handshake_ms(context->engine) * 1000000;
	struct tcp_socket *socket;

	while ((socket = TAILQ_FIRST(&context->strangers)) && now - socket->since >= patience) {
		haul_log(HAUL_LOG_INFO,
			 "a connection showed no preamble within handshake_ms: dropped");
		socket_dead(socket);
	}
	if (socket && socket->since + patience < context->next_timer)
		context->next_timer = socket->since + patience;
}
