/* SPDX-License-Identifier: Apache-2.0 */
#include <endian.h>
#include <errno.h>
#include <netdb.h>
#include <netinet/in.h>
#include <poll.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <sys/queue.h>
#include <sys/socket.h>
#include <unistd.h>

#include "bench_common.h"
#include "plain_socket.h"

#define CONNECTIONS_MAX 256

struct connection {
	LIST_ENTRY(connection) link;
	struct plain_server *server;
	int fd;
};

struct plain_server {
	pthread_t thread;
	pthread_mutex_t lock; /* of what follows */
	pthread_cond_t left;
	LIST_HEAD(, connection) connections;
	unsigned count;
	int fd;
	int stop; /* an eventfd */
	uint16_t port;
};

/* ---- One connection ---- */

static void run_sink(int fd, uint8_t *buffer)
{
	ssize_t got;

	do {
		got = recv(fd, buffer, PLAIN_CHUNK, 0);
	} while (got > 0 || (got < 0 && errno == EINTR));
}

static void run_source(int fd, const uint8_t *buffer)
{
	while (plain_write_all(fd, buffer, PLAIN_CHUNK) == 0)
		;
}

static void run_pings(int fd, uint8_t *buffer, const struct plain_hello *hello)
{
	while (plain_read_all(fd, buffer, hello->ping_size, hello->poll) == 0)
		if (plain_write_all(fd, buffer, hello->ping_size))
			break;
}

static void serve(int fd, uint8_t *buffer)
{
	uint8_t bytes[PLAIN_HELLO_SIZE];
	struct plain_hello hello;
	uint32_t answer;
	int result;

	if (plain_set_silence(fd) || plain_read_all(fd, bytes, sizeof(bytes), false) ||
	    plain_decode(bytes, &hello))
		return;
	result = plain_set_no_delay(fd);
	if (!result)
		result = plain_set_congestion(fd, hello.congestion);
	answer = htole32((uint32_t)-result);
	if (plain_write_all(fd, &answer, sizeof(answer)) || result)
		return;
	if (hello.mode == PLAIN_SINK)
		run_sink(fd, buffer);
	else if (hello.mode == PLAIN_SOURCE)
		run_source(fd, buffer);
	else
		run_pings(fd, buffer, &hello);
}

static void *connection_thread(void *argument)
{
	struct connection *connection = argument;
	struct plain_server *server = connection->server;
	uint8_t *buffer = malloc(PLAIN_PING_MAX > PLAIN_CHUNK ? PLAIN_PING_MAX : PLAIN_CHUNK);

	if (buffer) {
		memset(buffer, 0x5a, PLAIN_CHUNK);
		serve(connection->fd, buffer);
	}
	free(buffer);
	pthread_mutex_lock(&server->lock);
	LIST_REMOVE(connection, link);
	close(connection->fd);
	server->count--;
	pthread_cond_signal(&server->left);
	pthread_mutex_unlock(&server->lock);
	free(connection);
	return NULL;
}

static void take_connection(struct plain_server *server, int fd)
{
	struct connection *connection = NULL;
	pthread_attr_t attributes;
	pthread_t thread;

	pthread_attr_init(&attributes);
	pthread_attr_setdetachstate(&attributes, PTHREAD_CREATE_DETACHED);
	pthread_mutex_lock(&server->lock);
	if (server->count < CONNECTIONS_MAX)
		connection = malloc(sizeof(*connection));
	if (connection) {
		*connection = (struct connection){.server = server, .fd = fd};
		LIST_INSERT_HEAD(&server->connections, connection, link);
		server->count++;
		if (pthread_create(&thread, &attributes, connection_thread, connection)) {
			LIST_REMOVE(connection, link);
			server->count--;
			free(connection);
			connection = NULL;
		}
	}
	pthread_mutex_unlock(&server->lock);
	if (!connection)
		close(fd);
	pthread_attr_destroy(&attributes);
}

/* ---- The listener ---- */

static void *listener_thread(void *argument)
{
	struct plain_server *server = argument;
	struct pollfd wait[2] = {{.fd = server->fd, .events = POLLIN},
				 {.fd = server->stop, .events = POLLIN}};

	while (!wait[1].revents) {
		int fd;

		if (poll(wait, 2, -1) < 0 && errno != EINTR)
			break;
		if (!(wait[0].revents & POLLIN))
			continue;
		fd = accept4(server->fd, NULL, NULL, SOCK_CLOEXEC);
		if (fd >= 0)
			take_connection(server, fd);
		else if (errno == EMFILE || errno == ENFILE)
			poll(&wait[1], 1, 100); /* the listener stays readable: do not spin */
	}
	return NULL;
}

static int listen_on(const struct addrinfo *address)
{
	int yes = 1, no = 0, result;
	int fd = socket(address->ai_family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);

	if (fd < 0)
		return -errno;
	setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &yes, sizeof(yes));
	/* "*" is IPv4 too; fails harmlessly on an IPv4 socket. */
	setsockopt(fd, IPPROTO_IPV6, IPV6_V6ONLY, &no, sizeof(no));
	if (bind(fd, address->ai_addr, address->ai_addrlen) == 0 && listen(fd, 128) == 0)
		return fd;
	result = -errno;
	close(fd);
	return result;
}

static int resolve_and_listen(const char *host, uint16_t port, char *why, size_t room)
{
	bool any = strcmp(host, "*") == 0;
	struct addrinfo hints = {.ai_socktype = SOCK_STREAM,
				 .ai_flags = AI_PASSIVE | AI_NUMERICSERV,
				 .ai_family = any ? AF_INET6 : AF_UNSPEC};
	struct addrinfo *found = NULL;
	char service[8];
	int result;

	snprintf(service, sizeof(service), "%u", port);
	result = getaddrinfo(any ? NULL : host, service, &hints, &found);
	if (result) {
		snprintf(why, room, "%s: %s", host, gai_strerror(result));
		return -ENOENT;
	}
	result = listen_on(found);
	freeaddrinfo(found);
	if (any && result < 0) { /* a host without IPv6 */
		struct sockaddr_in address = {.sin_family = AF_INET, .sin_port = htons(port)};
		struct addrinfo four = {.ai_family = AF_INET,
					.ai_addr = (struct sockaddr *)&address,
					.ai_addrlen = sizeof(address)};

		result = listen_on(&four);
	}
	if (result < 0)
		snprintf(why, room, "%s port %u: %s", host, port, strerror(-result));
	return result;
}

static uint16_t port_of(int fd)
{
	union {
		struct sockaddr any;
		struct sockaddr_in in;
		struct sockaddr_in6 in6;
	} address = {0};
	socklen_t length = sizeof(address);

	getsockname(fd, &address.any, &length);
	return ntohs(address.any.sa_family == AF_INET6 ? address.in6.sin6_port
						       : address.in.sin_port);
}

/* The threads of the plain side take no signals: the caller's event loop has to notice them. */
static int start_listener(struct plain_server *server)
{
	sigset_t all, before;
	int result;

	sigfillset(&all);
	pthread_sigmask(SIG_SETMASK, &all, &before);
	result = pthread_create(&server->thread, NULL, listener_thread, server);
	pthread_sigmask(SIG_SETMASK, &before, NULL);
	return -result;
}

int plain_server_open(const char *host, uint16_t port, struct plain_server **opened, char *why,
		      size_t room)
{
	struct plain_server *server = calloc(1, sizeof(*server));
	int result;

	if (!server) {
		snprintf(why, room, "no memory");
		return -ENOMEM;
	}
	pthread_mutex_init(&server->lock, NULL);
	pthread_cond_init(&server->left, NULL);
	LIST_INIT(&server->connections);
	server->stop = -1;
	server->fd = result = resolve_and_listen(host, port, why, room);
	if (result < 0)
		goto fail;
	server->port = port_of(server->fd);
	server->stop = eventfd(0, EFD_CLOEXEC);
	result = server->stop < 0 ? -errno : start_listener(server);
	if (result) {
		snprintf(why, room, "%s", strerror(-result));
		goto fail;
	}
	*opened = server;
	return 0;
fail:
	if (server->fd >= 0)
		close(server->fd);
	if (server->stop >= 0)
		close(server->stop);
	pthread_cond_destroy(&server->left);
	pthread_mutex_destroy(&server->lock);
	free(server);
	return result;
}

uint16_t plain_server_port(const struct plain_server *server)
{
	return server->port;
}

void plain_server_close(struct plain_server *server)
{
	struct connection *connection;

	if (!server)
		return;
	eventfd_write(server->stop, 1);
	pthread_join(server->thread, NULL);
	pthread_mutex_lock(&server->lock);
	LIST_FOREACH (connection, &server->connections, link)
		shutdown(connection->fd, SHUT_RDWR);
	while (server->count)
		pthread_cond_wait(&server->left, &server->lock);
	pthread_mutex_unlock(&server->lock);
	close(server->fd);
	close(server->stop);
	pthread_cond_destroy(&server->left);
	pthread_mutex_destroy(&server->lock);
	free(server);
}
