/* SPDX-License-Identifier: Apache-2.0 */
/* EAL's handlers take a handle, which DPDK counts among what it may still change. */
#define ALLOW_EXPERIMENTAL_API

#include "driver_memif.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/queue.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <unistd.h>

#include <rte_alarm.h>
#include <rte_interrupts.h>

#include "backend.h"

/* A message of memif, and where a client's INIT has the number of the server that it wants. */
#define MESSAGE 128
#define TYPE_INIT 3
#define INIT_ID 4

#define BACKLOG 64
#define GREETING_MS 500

/* ---- Descriptors that EAL's thread watches ---------------------------------- */

struct watch {
	struct rte_intr_handle *handle;
	void (*ready)(void *user);
	void *user;
	int fd;
};

/* Later: events that were found together with the one that is looked at may be this one's. */
static void close_later(void *user)
{
	close((int)(intptr_t)user);
}

static void watch_freed(struct rte_intr_handle *unused, void *user)
{
}

static int watch_start(struct watch *watch, int fd, void (*ready)(void *user), void *user)
{
	int error = -ENOMEM;

	*watch = (struct watch){.ready = ready, .user = user, .fd = fd};
	watch->handle = rte_intr_instance_alloc(RTE_INTR_INSTANCE_F_PRIVATE);
	if (watch->handle && rte_intr_fd_set(watch->handle, fd) == 0 &&
	    rte_intr_type_set(watch->handle, RTE_INTR_HANDLE_EXT) == 0)
		error = rte_intr_callback_register(watch->handle, ready, user);
	if (error < 0) {
		rte_intr_instance_free(watch->handle);
		watch->handle = NULL;
		return error;
	}
	return 0;
}

/* Also from within its own handler. Closes the descriptor. */
static void watch_stop(struct watch *watch)
{
	if (!watch->handle)
		return;
	if (rte_intr_callback_unregister(watch->handle, watch->ready, watch->user) == -EAGAIN)
		rte_intr_callback_unregister_pending(watch->handle, watch->ready, watch->user,
						     watch_freed);
	rte_intr_instance_free(watch->handle);
	watch->handle = NULL;
	/* A forked child may have a copy: the other end has to see the end nevertheless. */
	shutdown(watch->fd, SHUT_RDWR);
	if (rte_eal_alarm_set(1, close_later, (void *)(intptr_t)watch->fd))
		close(watch->fd);
}

/* ---- Doors and guests --------------------------------------------------------- */

/* A client, and the connection to the driver that stands for it. */
struct guest {
	TAILQ_ENTRY(guest) all;
	struct memif_door *door;
	struct watch client, driver;
	bool greeted; /* the driver has said its first word, and may be left */
	bool gone;    /* the client has left before that */
};

struct memif_door {
	TAILQ_ENTRY(memif_door) all;
	struct memif_server *servers;
	TAILQ_HEAD(, guest) guests;
	struct watch listener;
	char path[MEMIF_PATH];
	bool abstract;
};

static TAILQ_HEAD(, memif_door) doors = TAILQ_HEAD_INITIALIZER(doors);
/* Guests that only wait for the driver's first word. */
static TAILQ_HEAD(, guest) leaving = TAILQ_HEAD_INITIALIZER(leaving);

/* Of the driver's listener: the name that it was made with, and a handle to its file, which has no
 * name any more. */
static char inner_path[MEMIF_PATH];
static int inner = -1;

static socklen_t make_address(struct sockaddr_un *address, const char *path, bool abstract)
{
	memset(address, 0, sizeof(*address));
	address->sun_family = AF_UNIX;
	snprintf(address->sun_path + abstract, sizeof(address->sun_path) - abstract, "%s", path);
	/* As DPDK's driver does it, and other clients do. */
	return abstract ? (socklen_t)(sizeof(*address) - sizeof(address->sun_path) + 1 +
				      strlen(path))
			: (socklen_t)sizeof(*address);
}

static void guest_free(struct guest *guest)
{
	watch_stop(&guest->client);
	watch_stop(&guest->driver);
	if (guest->gone)
		TAILQ_REMOVE(&leaving, guest, all);
	else
		TAILQ_REMOVE(&guest->door->guests, guest, all);
	free(guest);
}

static void guest_end(struct guest *guest)
{
	if (guest->greeted) {
		guest_free(guest);
		return;
	}
	watch_stop(&guest->client);
	TAILQ_REMOVE(&guest->door->guests, guest, all);
	TAILQ_INSERT_TAIL(&leaving, guest, all);
	guest->gone = true;
}

/* ---- Passing messages on -------------------------------------------------------- */

struct message {
	uint8_t bytes[MESSAGE];
	int fd; /* that came with it, or -1 */
};

union control {
	struct cmsghdr head;
	char bytes[CMSG_SPACE(sizeof(int))];
};

/* 1: there is one; 0: not now; negative: there will be none. */
static int take_message(int fd, struct message *message)
{
	union control control;
	struct iovec part = {.iov_base = message->bytes, .iov_len = MESSAGE};
	struct msghdr head = {.msg_iov = &part,
			      .msg_iovlen = 1,
			      .msg_control = &control,
			      /* Room for one descriptor, and for no second one. */
			      .msg_controllen = CMSG_LEN(sizeof(int))};
	ssize_t size = recvmsg(fd, &head, MSG_DONTWAIT | MSG_CMSG_CLOEXEC);

	message->fd = -1;
	if (size < 0 && (errno == EAGAIN || errno == EINTR))
		return 0;
	for (struct cmsghdr *at = size < 0 ? NULL : CMSG_FIRSTHDR(&head); at;
	     at = CMSG_NXTHDR(&head, at)) {
		if (at->cmsg_level == SOL_SOCKET && at->cmsg_type == SCM_RIGHTS)
			memcpy(&message->fd, CMSG_DATA(at), sizeof(int));
	}
	return size == MESSAGE && !(head.msg_flags & MSG_CTRUNC) ? 1 : -EPROTO;
}

static bool pass_message(int fd, const struct message *message)
{
	union control control = {.bytes = {0}};
	struct iovec part = {.iov_base = (void *)message->bytes, .iov_len = MESSAGE};
	struct msghdr head = {.msg_iov = &part, .msg_iovlen = 1};

	if (message->fd >= 0) {
		head.msg_control = &control;
		head.msg_controllen = CMSG_SPACE(sizeof(int));
		control.head.cmsg_level = SOL_SOCKET;
		control.head.cmsg_type = SCM_RIGHTS;
		control.head.cmsg_len = CMSG_LEN(sizeof(int));
		memcpy(CMSG_DATA(&control.head), &message->fd, sizeof(int));
	}
	return sendmsg(fd, &head, MSG_DONTWAIT | MSG_NOSIGNAL) == MESSAGE;
}

/* The driver knows servers of several sockets by numbers of its own. */
static void translate(const struct memif_door *door, struct message *message)
{
	uint32_t id, inner_id = UINT32_MAX; /* the driver says that there is none */
	uint16_t type;

	memcpy(&type, message->bytes, sizeof(type));
	if (type != TYPE_INIT)
		return;
	memcpy(&id, message->bytes + INIT_ID, sizeof(id));
	for (struct memif_server *server = door->servers; server; server = server->next) {
		if (server->id == id)
			inner_id = server->inner;
	}
	memcpy(message->bytes + INIT_ID, &inner_id, sizeof(inner_id));
}

static void client_ready(void *user)
{
	struct guest *guest = user;
	struct message message;
	int result = take_message(guest->client.fd, &message);
	bool good = result == 1;

	if (good) {
		translate(guest->door, &message);
		good = pass_message(guest->driver.fd, &message);
	}
	if (message.fd >= 0)
		close(message.fd);
	if (result && !good)
		guest_end(guest);
}

static void driver_ready(void *user)
{
	struct guest *guest = user;
	struct message message;
	int result = take_message(guest->driver.fd, &message);
	bool good = result == 1 && !guest->gone;

	if (!result)
		return;
	guest->greeted = true;
	if (good)
		good = pass_message(guest->client.fd, &message);
	if (message.fd >= 0)
		close(message.fd);
	if (!good)
		guest_free(guest);
}

static int connect_inner(void)
{
	int fd = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
	struct sockaddr_un address;
	char path[40];

	snprintf(path, sizeof(path), "/proc/self/fd/%d", inner);
	make_address(&address, path, false);
	fd = haul_descriptor(fd);
	if (fd >= 0 && connect(fd, (struct sockaddr *)&address, sizeof(address))) {
		close(fd);
		return -1;
	}
	return fd;
}

static void door_ready(void *user)
{
	struct memif_door *door = user;
	int client = accept4(door->listener.fd, NULL, NULL, SOCK_NONBLOCK | SOCK_CLOEXEC);
	struct guest *guest = client >= 0 ? calloc(1, sizeof(*guest)) : NULL;
	int driver = guest ? connect_inner() : -1;

	client = haul_descriptor(client);
	if (driver < 0 || watch_start(&guest->client, client, client_ready, guest)) {
		free(guest);
		if (driver >= 0)
			close(driver);
		if (client >= 0)
			close(client);
		return;
	}
	guest->door = door;
	TAILQ_INSERT_TAIL(&door->guests, guest, all);
	/* Without it nothing would be heard of the driver: leave the connection to its end. */
	if (watch_start(&guest->driver, driver, driver_ready, guest)) {
		guest->greeted = true;
		guest_free(guest);
	}
}

/* ---- Opening and closing --------------------------------------------------------- */

static int listen_at(const char *path, bool abstract)
{
	struct sockaddr_un address;
	socklen_t length = make_address(&address, path, abstract);
	int fd = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_NONBLOCK | SOCK_CLOEXEC, 0), error;

	fd = haul_descriptor(fd);
	if (fd < 0)
		return -errno;
	if (bind(fd, (struct sockaddr *)&address, length) == 0 && listen(fd, BACKLOG) == 0)
		return fd;
	error = -errno;
	close(fd);
	return error;
}

static struct memif_door *find_door(const char *path, bool abstract)
{
	struct memif_door *door;

	TAILQ_FOREACH (door, &doors, all) {
		if (!strcmp(door->path, path) && door->abstract == abstract)
			return door;
	}
	return NULL;
}

static struct memif_door *new_door(const char *path, bool abstract, int *error)
{
	struct memif_door *door = calloc(1, sizeof(*door));
	int fd = door ? listen_at(path, abstract) : -ENOMEM;

	*error = fd;
	if (fd < 0) {
		free(door);
		return NULL;
	}
	snprintf(door->path, sizeof(door->path), "%s", path);
	door->abstract = abstract;
	TAILQ_INIT(&door->guests);
	*error = watch_start(&door->listener, fd, door_ready, door);
	if (*error) {
		close(fd);
		free(door);
		return NULL;
	}
	TAILQ_INSERT_TAIL(&doors, door, all);
	return door;
}

int memif_find_door(const char *path, bool abstract, uint32_t id)
{
	struct memif_door *door = find_door(path, abstract);

	for (struct memif_server *server = door ? door->servers : NULL; server;
	     server = server->next) {
		if (server->id == id)
			return 2;
	}
	return door != NULL;
}

int memif_open_door(struct memif_server *server, const char *path, bool abstract)
{
	struct memif_door *door = find_door(path, abstract);
	int error = 0;

	if (!door)
		door = new_door(path, abstract, &error);
	if (!door)
		return error;
	server->door = door;
	server->next = door->servers;
	door->servers = server;
	return 0;
}

void memif_close_door(struct memif_server *server)
{
	struct memif_door *door = server->door;
	struct memif_server **at;
	struct guest *guest;

	if (!door)
		return;
	for (at = &door->servers; *at != server; at = &(*at)->next)
		;
	*at = server->next;
	server->door = NULL;
	if (door->servers)
		return;
	while ((guest = TAILQ_FIRST(&door->guests)))
		guest_end(guest);
	watch_stop(&door->listener);
	if (!door->abstract)
		unlink(door->path);
	TAILQ_REMOVE(&doors, door, all);
	free(door);
}

/* ---- The driver's listener --------------------------------------------------------- */

const char *memif_inner_path(void)
{
	static const char *const folders[] = {"/tmp", "/dev/shm", "/run"};
	uint64_t number;

	for (size_t i = 0; !inner_path[0] && i < sizeof(folders) / sizeof(folders[0]); i++) {
		if (access(folders[i], R_OK | W_OK | X_OK) == 0 &&
		    haul_random(&number, sizeof(number)) == 0)
			snprintf(inner_path, sizeof(inner_path), "%s/haul-memif-%d-%llx",
				 folders[i], (int)getpid(), (unsigned long long)number);
	}
	return inner_path[0] ? inner_path : NULL;
}

int memif_hide_inner(void)
{
	if (inner >= 0)
		return 0;
	inner = haul_descriptor(open(inner_path, O_PATH | O_CLOEXEC));
	if (inner < 0)
		return -errno;
	return unlink(inner_path) ? -errno : 0;
}

/* ---- Others' sockets ----------------------------------------------------------------- */

int memif_is_served(const char *path, bool abstract)
{
	struct sockaddr_un address;
	socklen_t length = make_address(&address, path, abstract);
	int fd = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_NONBLOCK | SOCK_CLOEXEC, 0), result = 1;
	struct pollfd greeting = {.fd = fd, .events = POLLIN};

	if (fd < 0)
		return -errno;
	if (connect(fd, (struct sockaddr *)&address, length) == 0)
		poll(&greeting, 1, GREETING_MS); /* see above what becomes of hasty clients */
	else if (errno != EAGAIN)
		result = errno == ECONNREFUSED || errno == ENOENT ? 0 : -errno;
	close(fd);
	return result;
}

static bool has_path(const struct sockaddr_un *address, socklen_t length, const char *path)
{
	return length > offsetof(struct sockaddr_un, sun_path) && address->sun_family == AF_UNIX &&
	       !strncmp(address->sun_path + !address->sun_path[0], path, MEMIF_PATH - 1);
}

bool memif_is_socket(int fd, const char *path)
{
	struct sockaddr_un address = {0};
	socklen_t length = sizeof(address);

	if (getsockname(fd, (struct sockaddr *)&address, &length) == 0 &&
	    has_path(&address, length, path))
		return true;
	length = sizeof(address);
	memset(&address, 0, sizeof(address));
	return getpeername(fd, (struct sockaddr *)&address, &length) == 0 &&
	       has_path(&address, length, path);
}
