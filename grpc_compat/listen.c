/* SPDX-License-Identifier: Apache-2.0 */
/* Listening, and strangers: connections that have not shown what they are. */
#include <errno.h>
#include <netinet/in.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <unistd.h>

#include <grpc/grpc_security.h>
#include <grpc/support/alloc.h>

#include "rpc.h"

/* How many connections are accepted before others get their turn. */
#define ACCEPT_BATCH 64

/* ns until a listener is looked at again that had no descriptor left. */
#define ACCEPT_PAUSE (100 * MS)

/* ---- Listening ---------------------------------------------------------- */

static int bind_socket(struct backend_context *context, const struct sockaddr_storage *address)
{
	int one = 1, zero = 0, error;
	int fd = socket_open(context, address);

	if (fd < 0)
		return fd;
	setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &one, sizeof(one));
	if (address->ss_family == AF_INET6)
		setsockopt(fd, IPPROTO_IPV6, IPV6_V6ONLY, &zero, sizeof(zero));
	if (bind(fd, (const struct sockaddr *)address, haul_address_size(address)) ||
	    listen(fd, (int)context->config->backlog)) {
		error = -errno;
		close(fd);
		return error;
	}
	return fd;
}

static bool is_any(const struct sockaddr_storage *address)
{
	if (address->ss_family == AF_INET6)
		return IN6_IS_ADDR_UNSPECIFIED(&((const struct sockaddr_in6 *)address)->sin6_addr);
	return ((const struct sockaddr_in *)address)->sin_addr.s_addr == htonl(INADDR_ANY);
}

/* What a peer on this host connects to. */
static void print_bound(const struct sockaddr_storage *bound, char *address, size_t room)
{
	if (is_any(bound))
		snprintf(address, room, "127.0.0.1:%u", haul_address_port(bound));
	else
		haul_address_print(bound, address, room);
}

/* With TLS gRPC listens itself. Whether it can, and why not, is found out before. */
static int listen_with_tls(struct backend_listener *listener, int fd,
			   const struct sockaddr_storage *bound)
{
	struct backend_context *context = listener->context;
	grpc_server_credentials *credentials;
	char text[128];
	int error, port;

	close(fd);
	haul_address_print(bound, text, sizeof(text));
	error = server_open(context, listener, &listener->server);
	if (error)
		return error;
	credentials = tls_server(context);
	port = credentials ? grpc_server_add_http2_port(listener->server->server, text, credentials)
			   : 0;
	if (credentials)
		grpc_server_credentials_release(credentials);
	server_start(listener->server);
	if (port)
		return 0;
	listener->server->listener = NULL;
	server_stop(listener->server, true);
	return -EADDRINUSE;
}

static int listen_without_tls(struct backend_listener *listener, int fd)
{
	struct epoll_event event = {.events = EPOLLIN,
				    .data.ptr = (void *)((uintptr_t)listener | 1)};
	struct backend_context *context = listener->context;
	struct rpc_server *server;
	int error = 0;

	if (TAILQ_EMPTY(&context->servers)) {
		error = server_open(context, NULL, &server);
		if (error)
			return error;
		server_start(server);
	}
	listener->fd = fd;
	return epoll_ctl(context->epoll, EPOLL_CTL_ADD, fd, &event) ? -errno : 0;
}

/* One address of haul_listen_on(). */
static int try_listen(void *user, const struct sockaddr_storage *address)
{
	struct backend_listener *listener = user;
	struct sockaddr_storage bound = {0};
	socklen_t size = sizeof(bound);
	int fd = bind_socket(listener->context, address), error;

	if (fd < 0)
		return fd;
	getsockname(fd, (struct sockaddr *)&bound, &size);
	listener->bound = bound;
	if (listener->context->tls)
		return listen_with_tls(listener, fd, &bound);
	error = listen_without_tls(listener, fd);
	if (error) {
		close(fd);
		listener->fd = -1;
	}
	return error;
}

int rpc_listen(struct backend_context *context, const char *where, haul_listener *engine,
	       char *address, size_t room, struct backend_listener **out)
{
	struct backend_listener *listener;
	int error;

	if (context->tls && !(context->cert && context->key))
		return haul_fail(context->engine, -EINVAL,
				 "to listen with TLS this side needs tls_cert= and tls_key=");
	listener = calloc(1, sizeof(*listener));
	if (!listener)
		return -ENOMEM;
	listener->context = context;
	listener->engine = engine;
	listener->fd = -1;
	error = haul_listen_on(context->engine, where, &context->config->ports, try_listen,
			       listener);
	if (error) {
		free(listener);
		return error;
	}
	print_bound(&listener->bound, address, room);
	TAILQ_INSERT_TAIL(&context->listeners, listener, all);
	*out = listener;
	return 0;
}

void rpc_unlisten(struct backend_listener *listener)
{
	struct backend_context *context = listener->context;
	struct connection *connection;

	/* Those that came over it can still join a session, but not begin one. */
	TAILQ_FOREACH (connection, &context->strangers, all) {
		if (connection->listener == listener)
			connection->listener = NULL;
	}
	TAILQ_FOREACH (connection, &context->connections, all) {
		if (connection->listener == listener)
			connection->listener = NULL;
	}
	if (listener->server) {
		listener->server->listener = NULL;
		server_stop(listener->server, false);
	}
	if (listener->fd >= 0) {
		epoll_ctl(context->epoll, EPOLL_CTL_DEL, listener->fd, NULL);
		shutdown(listener->fd, SHUT_RDWR);
		close(listener->fd);
	}
	TAILQ_REMOVE(&context->listeners, listener, all);
	context->event_count = 0; /* one may be this listener's; the others come again */
	free(listener);
}

/* ---- Accepting ---------------------------------------------------------- */

static void watch_listener(struct backend_listener *listener, bool on)
{
	struct epoll_event event = {.events = on ? EPOLLIN : 0,
				    .data.ptr = (void *)((uintptr_t)listener | 1)};

	epoll_ctl(listener->context->epoll, EPOLL_CTL_MOD, listener->fd, &event);
}

/* Without a descriptor the connection stays in the backlog, and would wake us for ever. */
static void pause_accepting(struct backend_listener *listener, int error)
{
	struct backend_context *context = listener->context;

	if (!listener->complained)
		haul_log(HAUL_LOG_ERROR, "peers can't be accepted now: %s%s", haul_strerror(error),
			 error == EMFILE ? " (ulimit -n shows and raises the limit)" : "");
	listener->complained = true;
	listener->paused_until = haul_clock() + ACCEPT_PAUSE;
	if (listener->paused_until < context->next_timer)
		context->next_timer = listener->paused_until;
	watch_listener(listener, false);
}

void listener_timers(struct backend_listener *listener, uint64_t now)
{
	struct backend_context *context = listener->context;

	if (!listener->paused_until)
		return;
	if (now >= listener->paused_until) {
		listener->paused_until = 0;
		watch_listener(listener, true);
	} else if (listener->paused_until < context->next_timer) {
		context->next_timer = listener->paused_until;
	}
}

void listener_accept(struct backend_listener *listener)
{
	struct backend_context *context = listener->context;

	for (int i = 0; i < ACCEPT_BATCH; i++) {
		int fd = haul_descriptor(
			accept4(listener->fd, NULL, NULL, SOCK_CLOEXEC | SOCK_NONBLOCK));
		int error = fd < 0 ? -errno : connection_accepted(listener, fd);

		if (error == -EMFILE || error == -ENFILE || error == -ENOMEM || error == -ENOBUFS)
			pause_accepting(listener, -error);
		if (error)
			return;
		listener->complained = false;
		strangers_expire(context, haul_clock());
		if (context->stranger_count > STRANGERS_MAX) {
			haul_log(HAUL_LOG_WARNING,
				 "%d connections without a call: the oldest is dropped",
				 STRANGERS_MAX);
			connection_close(TAILQ_FIRST(&context->strangers));
		}
	}
}

void strangers_expire(struct backend_context *context, uint64_t now)
{
	uint64_t patience = haul_handshake_ms(context->engine) * MS;
	struct connection *connection;

	while ((connection = TAILQ_FIRST(&context->strangers)) &&
	       now - connection->since >= patience) {
		if (connection->listener)
			haul_log(HAUL_LOG_INFO,
				 "a connection made no call within handshake_ms: dropped");
		connection_close(connection);
	}
	if (connection && connection->since + patience < context->next_timer)
		context->next_timer = connection->since + patience;
}

/* ---- Calls -------------------------------------------------------------- */

static void peer_address(const struct connection *connection, grpc_call *call, char *text,
			 size_t room)
{
	struct sockaddr_storage peer = {0};
	socklen_t size = sizeof(peer);
	char *name;

	snprintf(text, room, "?");
	if (connection) {
		if (getpeername(connection->fd, (struct sockaddr *)&peer, &size) == 0)
			haul_address_print(&peer, text, room);
		return;
	}
	/* "ipv4:10.0.0.2:7000", "ipv6:%5Bfe80::1%5D:7000" */
	name = grpc_call_get_peer(call);
	if (name && strchr(name, ':')) {
		struct haul_text out = {.at = text, .room = room};
		unsigned letter;

		for (const char *at = strchr(name, ':') + 1; *at; at++) {
			if (*at == '%' && sscanf(at + 1, "%2x", &letter) == 1 && at[1] && at[2])
				at += 2;
			else
				letter = (unsigned char)*at;
			haul_text_add(&out, "%c", (int)letter);
		}
	}
	gpr_free(name);
}

static const char ONE_CALL[] = "each call needs a connection of its own";

/* A new session. */
static void open_session(struct rpc_call *call, haul_listener *engine,
			 struct connection *connection)
{
	struct backend_link *link = link_new(call->context, false);
	uint8_t random[SESSION_DIGITS / 2];
	char address[128];

	peer_address(connection, call->call, address, sizeof(address));
	if (link && engine && haul_random(random, sizeof(random)) == 0) {
		for (size_t i = 0; i < sizeof(random); i++)
			snprintf(link->session + 2 * i, 3, "%02x", random[i]);
		link->endpoint = haul_on_accepted(engine, link, address);
	}
	if (!link || !link->endpoint) {
		call_refuse(call, GRPC_STATUS_RESOURCE_EXHAUSTED,
			    "there is no room for one more endpoint");
		if (link)
			link_free(link);
		return;
	}
	link->state = LINK_OPEN;
	link->connection = connection;
	link->control = call;
	connection_adopt(connection, link, NULL);
	call_answer(call, link, NULL);
	control_write(link);
	link_timer(link, haul_clock());
}

static void join_session(struct rpc_call *call, const grpc_metadata_array *words,
			 struct connection *connection)
{
	char session[SESSION_DIGITS + 1] = "", number[16] = "";
	struct backend_link *link = NULL;
	struct stream *stream;

	if (call_metadata(words, METADATA_SESSION, session, sizeof(session)))
		link = link_find(call->context, session);
	if (!link) {
		call_refuse(call, GRPC_STATUS_NOT_FOUND, "there is no such session");
		return;
	}
	if (connection && !connection->stranger && connection != link->connection) {
		call_refuse(call, GRPC_STATUS_FAILED_PRECONDITION, ONE_CALL);
		return;
	}
	if (!call_metadata(words, METADATA_STREAM, number, sizeof(number)) ||
	    strspn(number, "0123456789") != strlen(number) || !*number || strlen(number) > 9) {
		call_refuse(call, GRPC_STATUS_INVALID_ARGUMENT, "a stream needs a number");
		return;
	}
	stream = link->stream_count < STREAMS_MAX && link->gone_count < GONE_MAX
			 ? stream_new(link, (uint32_t)strtoul(number, NULL, 10))
			 : NULL;
	if (!stream) {
		call_refuse(call, GRPC_STATUS_RESOURCE_EXHAUSTED, "too many streams");
		return;
	}
	stream->call = call;
	stream->shared = connection && connection == link->connection;
	if (!stream->shared) {
		stream->connection = connection;
		connection_adopt(connection, link, stream);
	}
	call_answer(call, link, stream);
	stream_begun(stream, true);
}

void listener_called(struct rpc_server *server, struct request *request)
{
	struct backend_context *context = server->context;
	bool control = grpc_slice_str_cmp(request->details.method, METHOD_CONTROL) == 0;
	bool stream = grpc_slice_str_cmp(request->details.method, METHOD_STREAM) == 0;
	struct connection *connection = NULL;
	haul_listener *engine = server->listener ? server->listener->engine : NULL;
	struct rpc_call *call = call_take(context, request);
	char version[16] = "none";

	if (!call)
		return;
	if (!context->tls) {
		connection = connection_find(context, call->call);
		if (connection && connection->listener)
			engine = connection->listener->engine;
	}
	call_metadata(&request->metadata, METADATA_VERSION, version, sizeof(version));
	if (!control && !stream) {
		haul_log(HAUL_LOG_INFO, "a stranger's call was refused: no method of tensorhaul's");
		call_refuse(call, GRPC_STATUS_UNIMPLEMENTED, "this server moves tensors only");
	} else if (strcmp(version, RPC_VERSION)) {
		haul_log(HAUL_LOG_WARNING, "a peer speaks version %s of the grpc framing, not %s",
			 version, RPC_VERSION);
		call_refuse(call, GRPC_STATUS_FAILED_PRECONDITION,
			    "this side speaks version " RPC_VERSION " of the grpc framing");
	} else if (!context->tls && (!connection || (control && !connection->stranger))) {
		call_refuse(call, GRPC_STATUS_FAILED_PRECONDITION, ONE_CALL);
	} else if (control) {
		open_session(call, engine, connection);
	} else {
		join_session(call, &request->metadata, connection);
	}
}
