/* SPDX-License-Identifier: Apache-2.0 */
/* One socket: making it, its options, its end. */
#include <errno.h>
#include <net/if.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/epoll.h>
#include <unistd.h>

#include "retransmission.h"
#include "tcp.h"

const char *socket_names(enum socket_role role)
{
	static const char *const names[] = {
		[SOCKET_LISTENER] = "listener",      [SOCKET_STRANGER] = "stranger",
		[SOCKET_CONTROL] = "control stream", [SOCKET_PULSE] = "pulse",
		[SOCKET_STREAM] = "stream",          [SOCKET_DEAD] = "closed socket",
	};

	return names[role];
}

/* Watch a descriptor; the socket owns it from here on, also when this fails. */
static int watch(struct tcp_socket *socket)
{
	struct epoll_event event = {.events = EPOLLIN | EPOLLOUT | EPOLLRDHUP | EPOLLET,
				    .data.ptr = socket};

	if (socket->role == SOCKET_LISTENER)
		event.events = EPOLLIN;
	return epoll_ctl(socket->context->epoll, EPOLL_CTL_ADD, socket->fd, &event) ? -errno : 0;
}

struct tcp_socket *socket_new(struct backend_context *context, enum socket_role role, int fd)
{
	struct tcp_socket *socket = calloc(1, sizeof(*socket));

	if (!socket) {
		close(fd);
		return NULL;
	}
	socket->context = context;
	socket->role = role;
	socket->fd = fd;
	socket->since = haul_clock();
	if (watch(socket)) {
		close(fd);
		free(socket);
		return NULL;
	}
	TAILQ_INSERT_TAIL(&context->sockets, socket, all);
	return socket;
}

void socket_ready(struct tcp_socket *socket)
{
	if (socket->ready || socket->role == SOCKET_DEAD)
		return;
	socket->ready = true;
	/* Control messages are looked at first: they are never behind bulk bytes. */
	if (socket->role == SOCKET_CONTROL)
		TAILQ_INSERT_HEAD(&socket->context->ready, socket, ready_entry);
	else
		TAILQ_INSERT_TAIL(&socket->context->ready, socket, ready_entry);
}

void socket_short_read(struct tcp_socket *socket)
{
	if (!socket->ended)
		socket->readable = false;
}

void socket_dead(struct tcp_socket *socket)
{
	struct backend_context *context;

	if (!socket || socket->role == SOCKET_DEAD)
		return;
	context = socket->context;
	if (socket->ready)
		TAILQ_REMOVE(&context->ready, socket, ready_entry);
	socket->ready = false;
	if (socket->role == SOCKET_STRANGER) {
		TAILQ_REMOVE(&context->strangers, socket, all);
		context->stranger_count--;
	} else {
		TAILQ_REMOVE(&context->sockets, socket, all);
	}
	socket->role = SOCKET_DEAD;
	if (context->hot == socket)
		context->hot = NULL;
	/*
	 * A forked child may hold a copy of the descriptor: closing ours would then neither end
	 * the connection nor the events.
	 */
	epoll_ctl(context->epoll, EPOLL_CTL_DEL, socket->fd, NULL);
	shutdown(socket->fd, SHUT_RDWR);
	close(socket->fd);
	socket->fd = -1;
	TAILQ_INSERT_TAIL(&context->dead, socket, all);
}

int socket_error(const struct tcp_socket *socket)
{
	int error = 0;
	socklen_t size = sizeof(error);

	if (getsockopt(socket->fd, SOL_SOCKET, SO_ERROR, &error, &size))
		return -errno;
	return -error;
}

/*
 * With MSG_ZEROCOPY the kernel tells when it has let go of memory. That is not needed, since a
 * send ends when the peer has the bytes, but what it tells has to be taken, or it runs out of room.
 */
bool socket_only_notified(const struct tcp_socket *socket)
{
	char control[256];
	struct msghdr message;

	if (socket->context->config->zerocopy == ZEROCOPY_NO || socket->role != SOCKET_STREAM)
		return false;
	do {
		message =
			(struct msghdr){.msg_control = control, .msg_controllen = sizeof(control)};
	} while (recvmsg(socket->fd, &message, MSG_ERRQUEUE) >= 0);
	return socket_error(socket) == 0;
}

/* ---- Options ----------------------------------------------------------- */

static void set(int fd, int level, int name, int value)
{
	/* Each of these only tunes: a kernel that doesn't know one works all the same. */
	(void)setsockopt(fd, level, name, &value, sizeof(value));
}

/*
 * The kernel's keep-alive: notices a dead host within peer_ms, also when nobody polls. Only the
 * pulse gets the user timeout: where bytes wait because the peer's process is busy and its window
 * is closed, that would end the connection of a peer that lives.
 */
static void set_keepalive(struct tcp_socket *socket)
{
	int ms = (int)haul_peer_ms(socket->context->engine);
	int seconds = ms / 4000 > 0 ? ms / 4000 : 1;

	set(socket->fd, SOL_SOCKET, SO_KEEPALIVE, 1);
	set(socket->fd, IPPROTO_TCP, TCP_KEEPIDLE, seconds);
	set(socket->fd, IPPROTO_TCP, TCP_KEEPINTVL, seconds);
	set(socket->fd, IPPROTO_TCP, TCP_KEEPCNT, 3);
	if (socket->role == SOCKET_PULSE)
		set(socket->fd, IPPROTO_TCP, TCP_USER_TIMEOUT, ms);
}

static int set_congestion(struct tcp_socket *socket, const char *name)
{
	return setsockopt(socket->fd, IPPROTO_TCP, TCP_CONGESTION, name, (socklen_t)strlen(name))
		       ? -errno
		       : 0;
}

/* Whether the peer is this host: its address is our own. */
bool socket_is_local(const struct tcp_socket *socket)
{
	int fd = socket->fd;
	struct sockaddr_storage own = {0}, peer = {0};
	socklen_t own_size = sizeof(own), peer_size = sizeof(peer);

	if (getsockname(fd, (struct sockaddr *)&own, &own_size) ||
	    getpeername(fd, (struct sockaddr *)&peer, &peer_size))
		return false;
	haul_address_set_port(&own, 0);
	haul_address_set_port(&peer, 0);
	return own_size == peer_size && memcmp(&own, &peer, own_size) == 0;
}

/*
 * Within one host no packet is lost and there is no path to share: an algorithm that paces, as bbr
 * does, only slows it down (14.7 instead of 55 Gb/s were measured).
 */
static void set_local_congestion(struct tcp_socket *socket)
{
	if (set_congestion(socket, "cubic"))
		(void)set_congestion(socket, "reno");
}

int socket_prepare(struct tcp_socket *socket)
{
	const struct tcp_config *config = socket->context->config;
	int fd = socket->fd;

	set(fd, IPPROTO_TCP, TCP_NODELAY, 1);
	set_keepalive(socket);
	retransmission_set(fd, config->retransmit_ms);
	if (socket->role != SOCKET_STREAM)
		return 0;
	set(fd, IPPROTO_TCP, TCP_NOTSENT_LOWAT, (int)config->unsent);
	if (config->zerocopy == ZEROCOPY_MSG)
		set(fd, SOL_SOCKET, SO_ZEROCOPY, 1);
	if (config->congestion)
		return set_congestion(socket, config->congestion);
	if (socket_is_local(socket))
		set_local_congestion(socket);
	return 0;
}

/* A socket for `address`, with what has to be set before it listens or connects. */
int socket_open(struct backend_context *context, const struct sockaddr_storage *address)
{
	const struct tcp_config *config = context->config;
	int fd = haul_descriptor(
		socket(address->ss_family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
	int error;

	if (fd < 0) {
		error = -errno;
		if (error == -EMFILE || error == -ENFILE)
			return haul_fail(
				context->engine, error,
				"no descriptor for a socket: the limit of open files is %ld "
				"(ulimit -n shows and raises it)",
				sysconf(_SC_OPEN_MAX));
		return haul_fail(context->engine, error, "no socket: %s", haul_strerror(error));
	}
	if (config->sndbuf != HAUL_OPTION_AUTO)
		set(fd, SOL_SOCKET, SO_SNDBUF, (int)config->sndbuf);
	if (config->rcvbuf != HAUL_OPTION_AUTO)
		set(fd, SOL_SOCKET, SO_RCVBUF, (int)config->rcvbuf);
	if (config->interface && setsockopt(fd, SOL_SOCKET, SO_BINDTODEVICE, config->interface,
					    (socklen_t)strlen(config->interface) + 1)) {
		error = -errno;
		close(fd);
		return haul_fail(context->engine, error, "interface=%s: %s", config->interface,
				 haul_strerror(error));
	}
	return fd;
}

/* The option bind=: an address without a port. */
static int bind_local(struct backend_context *context, int fd, const struct sockaddr_storage *peer)
{
	const char *host = context->config->bind;
	struct haul_addresses local;
	char text[300];
	int error;

	snprintf(text, sizeof(text), strchr(host, ':') && host[0] != '[' ? "[%s]:0" : "%s:0", host);
	error = haul_address_parse(context->engine, text, &local);
	if (error)
		return haul_fail(context->engine, -EINVAL, "bind=%s: expected a numeric address",
				 host);
	error = -EADDRNOTAVAIL;
	for (unsigned i = 0; i < local.count && error; i++) {
		if (local.list[i].ss_family == peer->ss_family)
			error = bind(fd, (struct sockaddr *)&local.list[i],
				     haul_address_size(&local.list[i]))
					? -errno
					: 0;
	}
	free(local.list);
	if (error)
		haul_fail(context->engine, error, "bind=%s: %s", host, haul_strerror(error));
	return error;
}

/* Start to connect. */
int socket_connect(struct backend_context *context, const struct sockaddr_storage *address,
		   int *out)
{
	int fd = socket_open(context, address);
	int error = 0;

	if (fd < 0)
		return fd;
	if (context->config->bind)
		error = bind_local(context, fd, address);
	if (!error && connect(fd, (const struct sockaddr *)address, haul_address_size(address)) &&
	    errno != EINPROGRESS)
		error = -errno;
	if (error) {
		close(fd);
		return error;
	}
	*out = fd;
	return 0;
}
