/* SPDX-License-Identifier: Apache-2.0 */
/* Connections of memif clients: messages over a socket, and memory that comes with them. */
#include "memif_server.h"

#include <errno.h>
#include <poll.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

#include "memif_ring.h"

/* ---- Messages ---------------------------------------------------------- */

#define VERSION 0x0200
#define MODE_ETHERNET 0
#define RING_TO_SERVER 1

enum message_type {
	MESSAGE_ACK = 1,
	MESSAGE_HELLO,
	MESSAGE_INIT,
	MESSAGE_ADD_REGION,
	MESSAGE_ADD_RING,
	MESSAGE_CONNECT,
	MESSAGE_CONNECTED,
	MESSAGE_DISCONNECT,
};

struct message_hello {
	uint8_t name[32];
	uint16_t least_version, most_version;
	uint16_t last_region, last_to_client, last_to_server;
	uint8_t most_log2_ring;
} __attribute__((packed));

struct message_init {
	uint16_t version;
	uint32_t id;
	uint8_t mode;
	uint8_t secret[24];
	uint8_t name[32];
} __attribute__((packed));

struct message_region {
	uint16_t index;
	uint64_t size;
} __attribute__((packed));

struct message_ring {
	uint16_t flags, index, region;
	uint32_t offset;
	uint8_t log2_size;
	uint16_t private_size;
} __attribute__((packed));

struct message_disconnect {
	uint32_t code;
	uint8_t text[96];
} __attribute__((packed));

struct message {
	uint16_t type;
	union {
		struct message_hello hello;
		struct message_init init;
		struct message_region region;
		struct message_ring ring;
		uint8_t name[32];
		struct message_disconnect disconnect;
		uint8_t room[126];
	} __attribute__((packed));
} __attribute__((packed));

_Static_assert(sizeof(struct message) == 128, "messages have one size");

/* ---- The server -------------------------------------------------------- */

/* A client's socket; it has no port before INIT. */
struct client {
	struct memif_server *server;
	struct client *next;
	int socket;
	struct memif_port *port;
};

struct memif_server {
	char path[108];
	int listener, events;
	unsigned count;
	struct memif_port *ports; /* count + 1, by id; the first is not used */
	struct client *clients;
	const struct memif_server_ops *ops;
};

static int watch(struct memif_server *server, int descriptor, void *user)
{
	struct epoll_event event = {.events = EPOLLIN, .data = {.ptr = user}};

	return epoll_ctl(server->events, EPOLL_CTL_ADD, descriptor, &event) ? -errno : 0;
}

static int listen_at(const char *path)
{
	struct sockaddr_un address = {.sun_family = AF_UNIX};
	int listener;

	if (strlen(path) >= sizeof(address.sun_path))
		return -ENAMETOOLONG;
	strcpy(address.sun_path, path);
	listener = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
	if (listener < 0)
		return -errno;
	/* Clients may be other users. */
	if (bind(listener, (struct sockaddr *)&address, sizeof(address)) || chmod(path, 0666) ||
	    listen(listener, 64)) {
		int error = -errno;

		close(listener);
		return error;
	}
	return listener;
}

int memif_server_open(const char *path, unsigned count, const struct memif_server_ops *ops,
		      struct memif_server **opened)
{
	struct memif_server *server = calloc(1, sizeof(*server));
	int error = -ENOMEM;

	if (!server)
		return error;
	server->ops = ops;
	server->count = count;
	server->events = server->listener = -1;
	server->ports = calloc(count + 1, sizeof(*server->ports));
	if (!server->ports)
		goto fail;
	for (unsigned id = 0; id <= count; id++) {
		server->ports[id].server = server;
		server->ports[id].id = id;
		server->ports[id].socket = -1;
	}
	server->events = epoll_create1(EPOLL_CLOEXEC);
	server->listener = error = listen_at(path);
	if (error < 0)
		goto fail;
	strcpy(server->path, path);
	error = watch(server, server->listener, NULL);
	if (error)
		goto fail;
	*opened = server;
	return 0;
fail:
	memif_server_close(server);
	return error;
}

struct memif_port *memif_server_port(struct memif_server *server, unsigned id)
{
	return id >= 1 && id <= server->count ? &server->ports[id] : NULL;
}

int memif_server_fd(const struct memif_server *server)
{
	return server->events;
}

/* ---- Memory ------------------------------------------------------------ */

/* Closing it doesn't end its being waited on: the client has it, too. */
static void queue_forget(struct memif_port *port, struct memif_queue *queue)
{
	if (queue->event > 0) {
		epoll_ctl(port->server->events, EPOLL_CTL_DEL, queue->event, NULL);
		close(queue->event);
	}
	memset(queue, 0, sizeof(*queue));
}

static void port_forget(struct memif_port *port)
{
	if (port->up) {
		port->up = false;
		port->server->ops->down(port);
	}
	for (unsigned i = 0; i < MEMIF_QUEUES; i++) {
		queue_forget(port, &port->to_server[i]);
		queue_forget(port, &port->to_client[i]);
	}
	for (unsigned i = 0; i < port->region_count; i++)
		munmap(port->regions[i].base, port->regions[i].size);
	port->region_count = port->to_server_count = port->to_client_count = 0;
	port->socket = -1;
}

/* Takes the descriptor. NULL or what is wrong. */
static const char *add_region(struct memif_port *port, const struct message_region *message,
			      int memory)
{
	struct stat status;
	void *base;

	if (port->up || port->region_count == 2 || message->index != port->region_count ||
	    fstat(memory, &status) || (uint64_t)status.st_size < message->size) {
		close(memory);
		return "Wrong region";
	}
	base = mmap(NULL, message->size, PROT_READ | PROT_WRITE, MAP_SHARED, memory, 0);
	close(memory);
	if (base == MAP_FAILED)
		return "Region can't be mapped";
	port->regions[port->region_count].base = base;
	port->regions[port->region_count++].size = message->size;
	return NULL;
}

static const char *add_ring(struct memif_port *port, const struct message_ring *message, int event)
{
	bool to_server = message->flags & RING_TO_SERVER;
	unsigned *count = to_server ? &port->to_server_count : &port->to_client_count;
	struct memif_queue *queue = to_server ? port->to_server : port->to_client;

	if (port->up || *count == MEMIF_QUEUES || message->index != *count ||
	    message->log2_size > MEMIF_LOG2_RING) {
		close(event);
		return "Wrong ring";
	}
	queue += (*count)++;
	queue->event = event;
	queue->region = message->region;
	queue->offset = message->offset;
	queue->size = (uint16_t)(1u << message->log2_size);
	if (to_server && watch(port->server, event, port))
		return "Ring can't be watched";
	return NULL;
}

static bool queues_start(struct memif_port *port, struct memif_queue *queues, unsigned count,
			 uint16_t flags)
{
	for (unsigned i = 0; i < count; i++) {
		struct memif_queue *queue = &queues[i];
		size_t size =
			sizeof(struct memif_ring) + queue->size * sizeof(struct memif_descriptor);

		queue->ring = memif_memory(port, queue->region, queue->offset, size);
		if (!queue->ring || queue->offset % 64 || queue->ring->cookie != MEMIF_COOKIE) {
			queue->ring = NULL;
			return false;
		}
		queue->at = 0;
		queue->ring->head = queue->ring->tail = 0;
		/* The side that takes says whether it wants to be woken. */
		if (flags)
			queue->ring->flags = flags;
	}
	return count > 0;
}

static const char *port_start(struct memif_port *port)
{
	if (port->up || !queues_start(port, port->to_server, port->to_server_count, MEMIF_MASKED) ||
	    !queues_start(port, port->to_client, port->to_client_count, 0))
		return "Wrong rings";
	port->up = true;
	port->server->ops->up(port);
	return NULL;
}

/* ---- Conversation ------------------------------------------------------ */

static int message_send(int to, const struct message *message)
{
	ssize_t sent = send(to, message, sizeof(*message), MSG_NOSIGNAL | MSG_DONTWAIT);

	return sent == sizeof(*message) ? 0 : -EPIPE;
}

static int say(int to, uint16_t type)
{
	struct message message = {.type = type};

	return message_send(to, &message);
}

static int say_hello(int to)
{
	struct message message = {
		.type = MESSAGE_HELLO,
		.hello = {.name = "wire",
			  .least_version = VERSION,
			  .most_version = VERSION,
			  .last_region = 1,
			  .last_to_client = MEMIF_QUEUES - 1,
			  .last_to_server = MEMIF_QUEUES - 1,
			  .most_log2_ring = MEMIF_LOG2_RING},
	};

	return message_send(to, &message);
}

static void say_why(int to, const char *why)
{
	struct message message = {.type = MESSAGE_DISCONNECT};

	memcpy(message.disconnect.text, why, strlen(why) + 1);
	message_send(to, &message);
}

static void client_end(struct client *client)
{
	struct client **place = &client->server->clients;

	while (*place != client)
		place = &(*place)->next;
	*place = client->next;
	if (client->port)
		port_forget(client->port);
	close(client->socket);
	free(client);
}

static struct client *client_of(struct memif_server *server, const struct memif_port *port)
{
	struct client *client = server->clients;

	while (client && client->port != port)
		client = client->next;
	return client;
}

/* Who has a port is gone, when we just did not look yet. */
static void end_if_gone(struct client *client)
{
	struct pollfd look = {.fd = client->socket, .events = POLLIN | POLLRDHUP};

	if (poll(&look, 1, 0) > 0 && look.revents & (POLLHUP | POLLRDHUP | POLLERR))
		client_end(client);
}

static const char *client_init(struct client *client, const struct message_init *init)
{
	struct memif_port *port = memif_server_port(client->server, init->id);

	if (init->version != VERSION || init->mode != MODE_ETHERNET || client->port)
		return "Wrong version or mode";
	if (!port)
		return "ID not found";
	if (port->socket >= 0)
		end_if_gone(client_of(client->server, port));
	if (port->socket >= 0)
		return "Already connected";
	client->port = port;
	port->socket = client->socket;
	return NULL;
}

/* NULL, or what is wrong. Takes the descriptor that came along, which may be -1. */
static const char *client_said(struct client *client, const struct message *message, int descriptor)
{
	const char *wrong = "Unexpected message";
	bool brings = message->type == MESSAGE_ADD_REGION || message->type == MESSAGE_ADD_RING;

	if (descriptor >= 0 && (!brings || !client->port)) {
		close(descriptor);
		return wrong;
	}
	if (brings && descriptor < 0)
		return "Missing descriptor";
	if (message->type == MESSAGE_INIT)
		wrong = client_init(client, &message->init);
	else if (!client->port)
		return wrong;
	else if (message->type == MESSAGE_ADD_REGION)
		wrong = add_region(client->port, &message->region, descriptor);
	else if (message->type == MESSAGE_ADD_RING)
		wrong = add_ring(client->port, &message->ring, descriptor);
	else if (message->type == MESSAGE_CONNECT)
		wrong = port_start(client->port);
	if (wrong)
		return wrong;
	if (say(client->socket, message->type == MESSAGE_CONNECT ? MESSAGE_CONNECTED : MESSAGE_ACK))
		return "";
	return NULL;
}

/* -1: nothing came along. */
static int descriptor_of(struct msghdr *header)
{
	int descriptor = -1;

	for (struct cmsghdr *part = CMSG_FIRSTHDR(header); part; part = CMSG_NXTHDR(header, part)) {
		if (part->cmsg_level == SOL_SOCKET && part->cmsg_type == SCM_RIGHTS)
			memcpy(&descriptor, CMSG_DATA(part), sizeof(descriptor));
	}
	return descriptor;
}

static void client_serve(struct client *client)
{
	char control[CMSG_SPACE(sizeof(int))] __attribute__((aligned(8)));
	struct message message;
	struct iovec part = {&message, sizeof(message)};
	struct msghdr header = {
		.msg_iov = &part,
		.msg_iovlen = 1,
		.msg_control = control,
		.msg_controllen = sizeof(control),
	};
	ssize_t got = recvmsg(client->socket, &header, MSG_DONTWAIT | MSG_CMSG_CLOEXEC);
	int descriptor;
	const char *wrong;

	if (got < 0 && (errno == EAGAIN || errno == EINTR))
		return;
	descriptor = got >= 0 ? descriptor_of(&header) : -1;
	if (got != sizeof(message) || message.type == MESSAGE_DISCONNECT) {
		if (descriptor >= 0)
			close(descriptor);
		client_end(client);
		return;
	}
	wrong = client_said(client, &message, descriptor);
	if (wrong) {
		say_why(client->socket, wrong);
		client_end(client);
	}
}

static void client_accept(struct memif_server *server)
{
	int accepted = accept4(server->listener, NULL, NULL, SOCK_CLOEXEC | SOCK_NONBLOCK);
	struct client *client;

	if (accepted < 0)
		return;
	client = calloc(1, sizeof(*client));
	if (!client) {
		close(accepted);
		return;
	}
	client->server = server;
	client->socket = accepted;
	client->next = server->clients;
	server->clients = client;
	if (watch(server, accepted, client) || say_hello(accepted))
		client_end(client);
}

/* Events of rings only wake us. */
static bool is_port(const struct memif_server *server, const void *user)
{
	const struct memif_port *port = user;

	return port >= server->ports && port <= server->ports + server->count;
}

static void ring_calm(struct memif_port *port)
{
	uint64_t times;

	for (unsigned i = 0; i < port->to_server_count; i++) {
		if (read(port->to_server[i].event, &times, sizeof(times)) < 0)
			continue;
	}
}

void memif_server_serve(struct memif_server *server)
{
	struct epoll_event event;

	/* One at a time: what one event leads to may end who another one is about. */
	while (epoll_wait(server->events, &event, 1, 0) == 1) {
		if (!event.data.ptr)
			client_accept(server);
		else if (is_port(server, event.data.ptr))
			ring_calm(event.data.ptr);
		else
			client_serve(event.data.ptr);
	}
}

void memif_server_watch(struct memif_server *server, bool wake)
{
	for (unsigned id = 1; id <= server->count; id++) {
		struct memif_port *port = &server->ports[id];

		for (unsigned i = 0; port->up && i < port->to_server_count; i++)
			port->to_server[i].ring->flags = wake ? 0 : MEMIF_MASKED;
	}
	/* What a client sent before it saw this must be seen by who looks after this. */
	__atomic_thread_fence(__ATOMIC_SEQ_CST);
}

void memif_server_close(struct memif_server *server)
{
	while (server->clients) {
		say_why(server->clients->socket, "The wire ends");
		client_end(server->clients);
	}
	if (server->listener >= 0) {
		close(server->listener);
		unlink(server->path);
	}
	if (server->events >= 0)
		close(server->events);
	free(server->ports);
	free(server);
}
