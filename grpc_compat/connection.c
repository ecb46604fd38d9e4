/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Connections. Without TLS the sockets are made here and handed to gRPC, so that they are those of
 * this backend: the kernel's keep-alive tells a dead peer from one that is only stopped, and a
 * connection can be cut from either side, after which gRPC refers to no tensor any more. With TLS
 * gRPC only takes connections that it made itself.
 */
#include <errno.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <unistd.h>

#include <grpc/grpc_posix.h>
#include <grpc/grpc_security.h>
#include <grpc/support/alloc.h>

#include "rpc.h"

/* How long a channel that nobody wants may go on with connecting. */
#define SETTLE_MS 1000

/* ---- Sockets ------------------------------------------------------------ */

static void set(int fd, int level, int name, int value)
{
	/* Each of these only tunes: a kernel that doesn't know one works all the same. */
	(void)setsockopt(fd, level, name, &value, sizeof(value));
}

/* The kernel's keep-alive: notices a dead host within peer_ms, also when nobody polls. */
static void socket_prepare(const struct backend_context *context, int fd)
{
	int seconds = (int)haul_peer_ms(context->engine) / 4000;

	set(fd, IPPROTO_TCP, TCP_NODELAY, 1);
	set(fd, SOL_SOCKET, SO_KEEPALIVE, 1);
	set(fd, IPPROTO_TCP, TCP_KEEPIDLE, seconds > 0 ? seconds : 1);
	set(fd, IPPROTO_TCP, TCP_KEEPINTVL, seconds > 0 ? seconds : 1);
	set(fd, IPPROTO_TCP, TCP_KEEPCNT, 3);
}

int socket_open(struct backend_context *context, const struct sockaddr_storage *address)
{
	const char *interface = context->config->interface;
	int fd = haul_descriptor(
		socket(address->ss_family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
	int error;

	if (fd < 0)
		return no_descriptor(context->engine, -errno);
	if (interface && setsockopt(fd, SOL_SOCKET, SO_BINDTODEVICE, interface,
				    (socklen_t)strlen(interface) + 1)) {
		error = -errno;
		close(fd);
		return haul_fail(context->engine, error, "interface=%s: %s", interface,
				 haul_strerror(error));
	}
	return fd;
}

static int socket_error(int fd)
{
	int error = 0;
	socklen_t size = sizeof(error);

	if (getsockopt(fd, SOL_SOCKET, SO_ERROR, &error, &size))
		return -errno;
	return -error;
}

/*
 * TCP has sent something that was not answered for so long. The keep-alive does not look at
 * connections in that state. A closed window is the peer's right, and is answered for.
 */
bool connection_silent(const struct connection *connection, uint64_t ms)
{
	struct tcp_info info;
	socklen_t size = sizeof(info);

	if (connection->fd < 0 || connection->state != CONNECTION_UP ||
	    getsockopt(connection->fd, IPPROTO_TCP, TCP_INFO, &info, &size))
		return false;
	return (info.tcpi_unacked > 0 || info.tcpi_probes > 0) && info.tcpi_last_ack_recv > ms &&
	       (info.tcpi_retransmits > 0 || info.tcpi_probes > 0);
}

/* ---- Channels ----------------------------------------------------------- */

/* As gRPC takes them; one piece of memory. */
struct arguments {
	grpc_channel_args all;
	grpc_arg room[16];
};

static void add_number(struct arguments *arguments, const char *name, uint64_t value)
{
	arguments->room[arguments->all.num_args++] = (grpc_arg){
		.type = GRPC_ARG_INTEGER, .key = (char *)name, .value.integer = (int)value};
}

static void add_limits(struct arguments *arguments)
{
	add_number(arguments, GRPC_ARG_MAX_RECEIVE_MESSAGE_LENGTH, CHUNK_MAX + CHUNK_SIZE);
	add_number(arguments, GRPC_ARG_MAX_SEND_MESSAGE_LENGTH, CHUNK_MAX + CHUNK_SIZE);
	add_number(arguments, GRPC_ARG_MAX_CONCURRENT_STREAMS, 4);
	add_number(arguments, GRPC_ARG_USE_LOCAL_SUBCHANNEL_POOL, 1);
	add_number(arguments, GRPC_ARG_ENABLE_RETRIES, 0);
	add_number(arguments, GRPC_ARG_ENABLE_PER_MESSAGE_DECOMPRESSION, 0);
	add_number(arguments, GRPC_ARG_ALLOW_REUSEPORT, 0);
}

/* For sockets of gRPC's own: a ping after half of peer_ms, answered within the other half. */
static void add_pings(struct arguments *arguments, const haul_context *engine)
{
	add_number(arguments, GRPC_ARG_KEEPALIVE_TIME_MS, haul_peer_ms(engine) / 2);
	add_number(arguments, GRPC_ARG_KEEPALIVE_TIMEOUT_MS, haul_peer_ms(engine) / 2);
	add_number(arguments, GRPC_ARG_KEEPALIVE_PERMIT_WITHOUT_CALLS, 1);
	add_number(arguments, GRPC_ARG_HTTP2_MAX_PINGS_WITHOUT_DATA, 0);
	add_number(arguments, GRPC_ARG_HTTP2_MIN_RECV_PING_INTERVAL_WITHOUT_DATA_MS, 1);
	add_number(arguments, GRPC_ARG_SERVER_HANDSHAKE_TIMEOUT_MS, haul_handshake_ms(engine));
}

grpc_channel_args *channel_arguments(struct backend_context *context)
{
	struct arguments *arguments = calloc(1, sizeof(*arguments));

	if (!arguments)
		return NULL;
	arguments->all.args = arguments->room;
	add_limits(arguments);
	if (context->tls)
		add_pings(arguments, context->engine);
	if (context->config->tls_name)
		arguments->room[arguments->all.num_args++] =
			(grpc_arg){.type = GRPC_ARG_STRING,
				   .key = (char *)GRPC_SSL_TARGET_NAME_OVERRIDE_ARG,
				   .value.string = context->config->tls_name};
	return &arguments->all;
}

/* ---- Making ------------------------------------------------------------- */

static struct connection *connection_new(struct backend_context *context)
{
	struct connection *connection = calloc(1, sizeof(*connection));

	if (!connection)
		return NULL;
	connection->context = context;
	connection->fd = connection->number = -1;
	connection->since = haul_clock();
	TAILQ_INSERT_TAIL(&context->connections, connection, all);
	return connection;
}

/* An address as gRPC writes it. */
static void print_target(const struct sockaddr_storage *address, char *text, size_t room)
{
	struct haul_text out = {.at = text, .room = room};
	char plain[128];

	haul_address_print(address, plain, sizeof(plain));
	haul_text_add(&out, "%s:", plain[0] == '[' ? "ipv6" : "ipv4");
	for (const char *at = plain; *at; at++) {
		if (*at == '[' || *at == ']' || *at == '%')
			haul_text_add(&out, "%%%02X", (unsigned)*at);
		else
			haul_text_add(&out, "%c", *at);
	}
}

static int open_channel(struct connection *connection, const struct sockaddr_storage *address)
{
	struct backend_context *context = connection->context;
	grpc_channel_args *arguments = channel_arguments(context);
	grpc_channel_credentials *credentials =
		context->tls ? tls_channel(context) : grpc_insecure_credentials_create();
	char target[200];

	if (arguments && credentials && context->tls) {
		print_target(address, target, sizeof(target));
		connection->channel = grpc_channel_create(target, credentials, arguments);
	} else if (arguments && credentials) {
		connection->channel = grpc_channel_create_from_fd("tensorhaul", connection->number,
								  credentials, arguments);
	}
	if (credentials)
		grpc_channel_credentials_release(credentials);
	free(arguments);
	return connection->channel ? 0 : -ENOMEM;
}

/* A socket, and the copy that gRPC gets. */
static int open_socket(struct connection *connection, const struct sockaddr_storage *address)
{
	struct epoll_event event = {.events = EPOLLOUT, .data.ptr = connection};
	struct backend_context *context = connection->context;

	connection->fd = socket_open(context, address);
	if (connection->fd < 0)
		return connection->fd;
	connection->number = haul_descriptor(fcntl(connection->fd, F_DUPFD_CLOEXEC, 0));
	if (connection->number < 0)
		return no_descriptor(context->engine, -errno);
	if (connect(connection->fd, (const struct sockaddr *)address, haul_address_size(address)) &&
	    errno != EINPROGRESS)
		return -errno;
	return epoll_ctl(context->epoll, EPOLL_CTL_ADD, connection->fd, &event) ? -errno : 0;
}

int connection_start(struct backend_link *link, struct stream *stream, struct connection **out)
{
	struct connection *connection = connection_new(link->context);
	const struct sockaddr_storage *address = &link->addresses[link->address];
	int error;

	if (!connection)
		return -ENOMEM;
	connection->link = link;
	connection->stream = stream;
	if (link->context->tls) {
		connection->state = CONNECTION_UP;
		error = open_channel(connection, address);
	} else {
		error = open_socket(connection, address);
	}
	if (error) {
		connection_close(connection);
		return error;
	}
	*out = connection;
	return 0;
}

void connection_event(struct connection *connection)
{
	int error;

	if (connection->stranger)
		connection_close(connection);
	if (connection->state != CONNECTION_CONNECTING)
		return;
	error = socket_error(connection->fd);
	epoll_ctl(connection->context->epoll, EPOLL_CTL_DEL, connection->fd, NULL);
	if (!error) {
		socket_prepare(connection->context, connection->fd);
		error = open_channel(connection, NULL);
		if (!error)
			connection->state = CONNECTION_UP;
	}
	if (connection->stream)
		stream_connected(connection, error);
	else
		link_connected(connection, error);
}

/* Watched for its end, and for handshake_ms. */
static void make_stranger(struct connection *connection)
{
	struct epoll_event event = {.events = EPOLLRDHUP, .data.ptr = connection};
	struct backend_context *context = connection->context;

	TAILQ_REMOVE(&context->connections, connection, all);
	TAILQ_INSERT_TAIL(&context->strangers, connection, all);
	connection->stranger = true;
	connection->since = haul_clock();
	context->stranger_count++;
	epoll_ctl(context->epoll, EPOLL_CTL_ADD, connection->fd, &event);
}

int connection_accepted(struct backend_listener *listener, int fd)
{
	struct backend_context *context = listener->context;
	struct connection *connection = connection_new(context);
	grpc_server_credentials *credentials;

	if (!connection) {
		close(fd);
		return -ENOMEM;
	}
	connection->fd = fd;
	connection->number = haul_descriptor(fcntl(fd, F_DUPFD_CLOEXEC, 0));
	if (connection->number < 0) {
		int error = -errno;

		connection_close(connection);
		return error;
	}
	connection->listener = listener;
	connection->state = CONNECTION_UP;
	make_stranger(connection);
	socket_prepare(context, fd);
	credentials = grpc_insecure_server_credentials_create();
	grpc_server_add_channel_from_fd(TAILQ_FIRST(&context->servers)->server, connection->number,
					credentials);
	grpc_server_credentials_release(credentials);
	return 0;
}

/* ---- Ending ------------------------------------------------------------- */

static void connection_dead(struct connection *connection)
{
	if (connection->channel)
		grpc_channel_destroy(connection->channel);
	connection->channel = NULL;
	connection->state = CONNECTION_DEAD;
	TAILQ_INSERT_TAIL(&connection->context->dead, connection, all);
}

void connection_settled(struct connection *connection)
{
	TAILQ_REMOVE(&connection->context->settling, connection, all);
	connection_dead(connection);
}

/*
 * gRPC 1.51 never frees a connection whose channel was destroyed between the end of the handshake
 * and the peer's first settings (mended by gRPC's pull request 32071). So a channel lives for as
 * long as it connects, up to SETTLE_MS: a peer that has not answered by then most likely won't.
 */
static void connection_settle(struct connection *connection)
{
	struct backend_context *context = connection->context;

	connection->state = CONNECTION_SETTLING;
	connection->settled = (struct event){.owner = connection, .kind = EVENT_SETTLED};
	TAILQ_INSERT_TAIL(&context->settling, connection, all);
	grpc_channel_watch_connectivity_state(
		connection->channel, GRPC_CHANNEL_CONNECTING,
		gpr_time_add(gpr_now(GPR_CLOCK_MONOTONIC),
			     gpr_time_from_millis(SETTLE_MS, GPR_TIMESPAN)),
		context->queue, &connection->settled);
}

void connection_close(struct connection *connection)
{
	struct backend_context *context = connection ? connection->context : NULL;

	if (!connection || connection->state == CONNECTION_SETTLING ||
	    connection->state == CONNECTION_DEAD)
		return;
	if (connection->stranger)
		context->stranger_count--;
	TAILQ_REMOVE(connection->stranger ? &context->strangers : &context->connections, connection,
		     all);
	connection->stranger = false;
	/* gRPC closes its own descriptor when it sees the end. */
	if (connection->fd >= 0) {
		epoll_ctl(context->epoll, EPOLL_CTL_DEL, connection->fd, NULL);
		shutdown(connection->fd, SHUT_RDWR);
		if (connection->state == CONNECTION_CONNECTING && connection->number >= 0)
			close(connection->number); /* it never was gRPC's */
		close(connection->fd);
	}
	connection->fd = -1;
	if (connection->channel && context->tls &&
	    grpc_channel_check_connectivity_state(connection->channel, 0) ==
		    GRPC_CHANNEL_CONNECTING)
		connection_settle(connection);
	else
		connection_dead(connection);
}

void connection_leave(struct connection *connection)
{
	if (!connection || connection->channel || connection->fd < 0) {
		connection_close(connection);
		return;
	}
	connection->link = NULL;
	connection->stream = NULL;
	connection->listener = NULL;
	make_stranger(connection);
}

/* ---- Whose call --------------------------------------------------------- */

struct connection *connection_find(struct backend_context *context, grpc_call *call)
{
	struct connection *connection;
	char *peer = grpc_call_get_peer(call);
	int number = -1;

	/* What gRPC calls a connection that it was given. */
	if (peer && sscanf(peer, "fd:%d", &number) != 1)
		number = -1;
	gpr_free(peer);
	TAILQ_FOREACH (connection, &context->strangers, all) {
		if (number >= 0 && connection->number == number)
			return connection;
	}
	TAILQ_FOREACH (connection, &context->connections, all) {
		if (number >= 0 && connection->number == number && !connection->channel)
			return connection;
	}
	return NULL;
}

void connection_adopt(struct connection *connection, struct backend_link *link,
		      struct stream *stream)
{
	struct backend_context *context = link->context;

	if (!connection)
		return;
	epoll_ctl(context->epoll, EPOLL_CTL_DEL, connection->fd, NULL);
	TAILQ_REMOVE(&context->strangers, connection, all);
	context->stranger_count--;
	connection->stranger = false;
	connection->link = link;
	connection->stream = stream;
	TAILQ_INSERT_TAIL(&context->connections, connection, all);
}

/* ---- A forked child ----------------------------------------------------- */

void connection_close_in_child(const struct connection *connection)
{
	uint64_t ours = 0, its = 0;
	socklen_t size = sizeof(ours), its_size = sizeof(its);

	if (connection->fd < 0)
		return;
	/* gRPC may have closed its own, and another file may have the number. */
	if (getsockopt(connection->fd, SOL_SOCKET, SO_COOKIE, &ours, &size) == 0 &&
	    getsockopt(connection->number, SOL_SOCKET, SO_COOKIE, &its, &its_size) == 0 &&
	    ours == its)
		close(connection->number);
	close(connection->fd);
}
