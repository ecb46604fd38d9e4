/* SPDX-License-Identifier: Apache-2.0 */
/*
 * memif: packets through memory that two processes share, agreed upon over a UNIX socket.
 *
 * DPDK's driver handles that socket in EAL's interrupt thread, and leaves things open that a
 * process which lives long can't live with. They are mended here, from outside:
 *
 *  - When the peer ends, that thread unmaps the shared memory, whether or not another thread copies
 *    a packet out of it. It takes the lock `cc_lock` on its way there, after it has cleared the
 *    flag that the packet functions look at first: packets move with that lock held.
 *  - A client gives up when nobody listens, or when its server ends. It is started again and again.
 *  - The handle of each queue for packets that leave is forgotten: 24 KiB of DPDK's own memory.
 *  - What is wrong with servers' sockets is told in driver_memif.h.
 *
 * The driver's structs are repeated here as they are in DPDK 22.11, and compared with what is known
 * of them before they are trusted.
 */
/* Handles of interrupts are among what DPDK may still change. */
#define ALLOW_EXPERIMENTAL_API

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/queue.h>
#include <sys/stat.h>
#include <unistd.h>

#include <rte_hash.h>
#include <rte_interrupts.h>
#include <rte_malloc.h>

#include "driver_memif.h"
#include "port_private.h"

/* ---- The driver's own structs, drivers/net/memif in DPDK 22.11 ---------- */

#define SECRET_ROOM 24
#define RING_MOST 14
#define RING_BYTES (UINT64_C(5) << 20)

enum {
	FLAG_CONNECTED = 2,
	FLAG_DISABLED = 8,
	FLAG_ABSTRACT = 16,
};

/* struct pmd_internals, its head. */
struct memif {
	uint32_t id;
	int role; /* 0: server */
	uint32_t flags;
	char *path;
	char secret[SECRET_ROOM];
	void *control; /* NULL: not connected, and not about to be */
	rte_spinlock_t cc_lock;
	char remote_name[RTE_DEV_NAME_MAX_LEN], remote_interface[RTE_DEV_NAME_MAX_LEN];
	struct {
		uint8_t log2_ring, to_server, to_client;
		uint16_t buffer;
	} wanted;
};

/* struct rte_eth_dev_data and struct rte_eth_dev of lib/ethdev, their heads. */
struct device_data {
	char name[RTE_ETH_NAME_MAX_LEN];
	void **arriving;
	struct memif_queue **leaving;
	uint16_t arriving_count, leaving_count;
	uint8_t sriov[6];
	struct memif *memif;
};

struct device {
	void *functions[6];
	struct device_data *data;
};

/* struct memif_queue, its head. */
struct memif_queue {
	void *pool, *memif;
	int type;
	uint16_t region, port;
	uint32_t offset;
	uint16_t last_head, last_tail;
	void *buffers;
	uint64_t packets, bytes;
	struct rte_intr_handle *handle;
};

/* struct memif_socket_dev_list_elt, its head. */
struct memif_member {
	TAILQ_ENTRY(memif_member) next;
	struct device *device;
};

/* struct memif_socket */
struct memif_socket {
	void *handle;
	char path[MEMIF_PATH];
	TAILQ_HEAD(, memif_member) members;
	uint8_t listens;
};

#define SOCKETS "memif-sh" /* DPDK's table of them, by path */

/* ---- What is kept for a port -------------------------------------------- */

struct state {
	struct memif *memif;
	struct device *device;
	struct memif_socket *socket; /* the driver's, of this path */
	struct memif_server server;  /* of a server */
	char path[MEMIF_PATH];       /* where clients and servers meet */
	bool serves;
};

static struct state *state_of(const struct port *port)
{
	return port_private(port)->driver_state;
}

static unsigned read_unsigned(const struct port_wish *wish, const char *name, unsigned other)
{
	char text[16];

	return wish_argument(wish, name, text, sizeof(text)) ? (unsigned)atoi(text) : other;
}

/* A server's path has to be free; what a dead one left behind is taken away. */
static int clear_path(struct port_wish *wish, const char *path, bool abstract)
{
	int own = memif_find_door(path, abstract, read_unsigned(wish, "id", 0)), listens;
	struct stat about;

	if (own == 2)
		return haul_fail(wish->engine, -EADDRINUSE,
				 "port=: another context of this process listens on memif's socket "
				 "%s with the same id=; give each an id of its own",
				 path);
	if (own)
		return 0;
	listens = memif_is_served(path, abstract);
	if (listens == 1)
		return haul_fail(wish->engine, -EADDRINUSE,
				 "port=: another process listens on memif's socket %s; give this "
				 "port another socket=, or role=client to meet that process",
				 path);
	if (abstract || lstat(path, &about))
		return 0;
	if (!S_ISSOCK(about.st_mode))
		return haul_fail(wish->engine, -EEXIST,
				 "port=: memif's socket=%s exists and is no socket", path);
	if (listens < 0)
		return haul_fail(wish->engine, listens,
				 "port=: memif's socket=%s can't be used: %s", path,
				 haul_strerror(listens));
	if (unlink(path))
		return haul_fail(
			wish->engine, -errno,
			"port=: a dead process left memif's socket %s behind, and it can't "
			"be removed (%s): `rm %s` does it for who may",
			path, haul_strerror(-errno), path);
	return 0;
}

static uint32_t next_number; /* of servers; with EAL's lock held */

/* ---- Before the device is made ------------------------------------------ */

/*
 * A ring is gone through from end to end: one that does not fit into the processor's caches is
 * slower than the memory is. 512 packets of 9000 bytes were carried 1.6 times as fast as 1024,
 * and 3.5 times as fast as 2048. Nothing is lost when it is full, the sender waits. All rings fit
 * into half of the memory.
 */
static unsigned ring_log2(const struct port_wish *wish, unsigned buffer)
{
	uint64_t most = RTE_MIN(wish->config->memory / 4 / wish->queues, RING_BYTES);
	unsigned log2 = 6;

	while (log2 < 10 && (uint64_t)buffer << (log2 + 1) <= most)
		log2++;
	return log2;
}

static int check_buffer(struct port_wish *wish, unsigned buffer)
{
	if (wish->mtu && buffer < wish_frame(wish))
		return haul_fail(
			wish->engine, -EINVAL,
			"port=: memif's bsize=%u is less than a frame of mtu=%u, %u bytes; "
			"leave bsize out, and it will be right",
			buffer, wish->mtu, wish_frame(wish));
	if (buffer < 576 + FRAME_ETHERNET + FRAME_TAG || buffer > UINT16_MAX)
		return haul_fail(wish->engine, -EINVAL,
				 "port=: memif's bsize=%u; valid is a frame's size, up to 65535",
				 buffer);
	if (!wish->mtu && buffer - FRAME_ETHERNET - FRAME_TAG < PORT_MTU_AUTO)
		wish->mtu = buffer - FRAME_ETHERNET - FRAME_TAG;
	return 0;
}

/* The driver takes none of them when there is one that it does not know. */
static int check_names(struct port_wish *wish)
{
	static const char names[] = " id role bsize rsize socket socket-abstract mac zero-copy "
				    "secret ";
	char name[32] = " ";

	for (const char *at = wish->given; *at; at += strcspn(at, ","), at += *at == ',') {
		size_t length = strcspn(at, "=,");
		bool known = at[length] == '=' && length + 3 <= sizeof(name);

		if (known) {
			memcpy(name + 1, at, length);
			memcpy(name + 1 + length, " ", 2);
		}
		if (!known || !strstr(names, name))
			return haul_fail(wish->engine, -EINVAL,
					 "port=: memif knows no argument \"%.*s\"; valid are%s, "
					 "each with =VALUE",
					 (int)strcspn(at, ","), at, names);
	}
	return 0;
}

static int check_words(struct port_wish *wish, char *path, bool *server, bool *abstract)
{
	char text[16] = "";
	int error = check_names(wish);

	if (error)
		return error;
	if (wish_argument(wish, "zero-copy", text, sizeof(text)) && strcmp(text, "no"))
		return haul_fail(wish->engine, -EINVAL,
				 "port=: memif's zero-copy=%s would send addresses of memory that "
				 "the peer does not have; valid is no",
				 text);
	if (!wish_argument(wish, "role", text, sizeof(text)) ||
	    (strcmp(text, "server") && strcmp(text, "client")))
		return haul_fail(wish->engine, -EINVAL,
				 "port=: memif needs role=server for one process and role=client "
				 "for the other");
	*server = !strcmp(text, "server");
	if (!wish_argument(wish, "socket", path, MEMIF_PATH) || strlen(path) >= MEMIF_PATH - 1)
		return haul_fail(
			wish->engine, -EINVAL,
			"port=: memif needs socket=, a path of at most %zu bytes that both "
			"processes name",
			MEMIF_PATH - 2);
	*abstract =
		!wish_argument(wish, "socket-abstract", text, sizeof(text)) || strcmp(text, "no");
	return 0;
}

/* What a server's device gets: the driver knows it by a number, at a listener of its own. */
static int inner_arguments(struct port_wish *wish)
{
	static const char *const names[] = {"mac", "secret"};
	const char *path = memif_inner_path();
	char value[64];

	if (!path)
		return haul_fail(wish->engine, -ENOENT,
				 "port=: memif's driver needs a place for a socket, and none of "
				 "/tmp, /dev/shm and /run can be written");
	wish->number = next_number++;
	wish->arguments[0] = 0;
	wish_add(wish, "role=server,id=%u,socket=%s,socket-abstract=no", wish->number, path);
	for (size_t i = 0; i < RTE_DIM(names); i++) {
		if (wish_argument(wish, names[i], value, sizeof(value)))
			wish_add(wish, "%s=%s", names[i], value);
	}
	return 0;
}

static int memif_prepare(struct port_wish *wish)
{
	unsigned buffer = read_unsigned(wish, "bsize", 0), log2 = read_unsigned(wish, "rsize", 0);
	bool serves, abstract;
	char path[MEMIF_PATH];
	int error = check_words(wish, path, &serves, &abstract);

	if (!error && buffer)
		error = check_buffer(wish, buffer);
	if (!error && log2 > RING_MOST)
		error = haul_fail(wish->engine, -EINVAL,
				  "port=: memif's rsize=%u; valid are 1 to %d, the logarithm of "
				  "the packets that a ring has room for",
				  log2, RING_MOST);
	if (!error && serves)
		error = clear_path(wish, path, abstract);
	if (!error && serves)
		error = inner_arguments(wish);
	if (error)
		return error;
	if (!wish->mtu)
		wish->mtu = PORT_MTU_AUTO;
	if (!buffer)
		buffer = RTE_ALIGN_CEIL(wish_frame(wish), RTE_CACHE_LINE_SIZE);
	if (!log2)
		log2 = ring_log2(wish, buffer);
	/* Of arguments that are given twice, the driver takes the last one. */
	wish_add(wish, "bsize=%u,rsize=%u", buffer, log2);
	wish->ring = 1u << log2;
	wish->room = buffer;
	return 0;
}

/* ---- A device ------------------------------------------------------------- */

static struct memif_member *find_member(const struct memif_socket *socket, const char *name)
{
	struct memif_member *member;

	TAILQ_FOREACH (member, &socket->members, next) {
		if (!strncmp(member->device->data->name, name, RTE_ETH_NAME_MAX_LEN))
			return member;
	}
	return NULL;
}

/* The driver's structs of a port, when they look as they are known. */
static bool find_structs(const struct port_wish *wish, struct state *state)
{
	const char *place = state->serves ? memif_inner_path() : state->path;
	unsigned id = state->serves ? wish->number : read_unsigned(wish, "id", 0);
	struct rte_hash *table = rte_hash_find_existing(SOCKETS);
	struct memif_member *member;
	struct memif_socket *socket;
	char key[MEMIF_PATH] = "";
	struct memif *memif;

	snprintf(key, sizeof(key), "%s", place);
	if (!table || rte_hash_lookup_data(table, key, (void **)&socket) < 0)
		return false;
	member = find_member(socket, wish->name);
	if (!member)
		return false;
	memif = member->device->data->memif;
	if (memif->id != id || memif->role != !state->serves || memif->path != socket->path ||
	    1u << memif->wanted.log2_ring != wish->ring || memif->wanted.buffer != wish->room ||
	    memif->control || !(memif->flags & FLAG_DISABLED) || memif->cc_lock.locked)
		return false;
	state->memif = memif;
	state->device = member->device;
	state->socket = socket;
	return true;
}

struct opening {
	struct state *state;
	bool abstract;
	int error;
};

static void open_door(void *user)
{
	struct opening *opening = user;
	struct state *state = opening->state;

	opening->error = memif_hide_inner();
	if (!opening->error)
		opening->error = memif_open_door(&state->server, state->path, opening->abstract);
}

static int memif_opened(struct port *port, struct port_wish *wish)
{
	struct state *state = calloc(1, sizeof(*state));
	struct opening opening = {.state = state};
	int error;

	if (!state)
		return haul_fail(wish->engine, -ENOMEM, "no memory for the port");
	error = check_words(wish, state->path, &state->serves, &opening.abstract);
	if (error || !find_structs(wish, state)) {
		free(state);
		return haul_fail(wish->engine, -ENOTSUP,
				 "port=: this DPDK's memif differs from that of DPDK 22.11, which "
				 "the transport was built for");
	}
	port_private(port)->driver_state = state;
	port_private(port)->guard = &state->memif->cc_lock;
	if (!state->serves)
		return 0;
	state->server.id = read_unsigned(wish, "id", 0);
	state->server.inner = wish->number;
	error = eal_run(open_door, &opening);
	if (!error)
		error = opening.error;
	return error ? haul_fail(wish->engine, error, "port=: memif can't listen on %s: %s",
				 state->path, haul_strerror(error))
		     : 0;
}

/* A client whose server is not there is started again by memif_watch(). */
static int memif_start(struct port *port)
{
	int error = rte_eth_dev_start(port->id);

	return error && !state_of(port)->serves ? 1 : error;
}

/*
 * The driver would take a socket's listener for closed with its last device, and free it under its
 * handler: it stays, without devices.
 */
static void leave_socket(struct port *port, struct state *state)
{
	struct memif_socket *socket = state->socket;
	struct memif_member *member = find_member(socket, port_private(port)->name);

	if (!member || !socket->listens)
		return;
	TAILQ_REMOVE(&socket->members, member, next);
	rte_free(member);
	state->memif->path = NULL; /* the driver has nothing left to do */
}

static void free_handles(const struct port *port, const struct device_data *data)
{
	for (unsigned i = 0; data->leaving && i < data->leaving_count; i++) {
		struct memif_queue *queue = data->leaving[i];

		if (!queue || queue->port != port->id || rte_intr_fd_get(queue->handle) != -1)
			continue;
		rte_intr_instance_free(queue->handle);
		queue->handle = NULL;
	}
}

/* In EAL's thread: no handler of the driver's is at work. */
static void stop_now(void *user)
{
	struct port *port = user;
	struct state *state = state_of(port);

	state->memif->flags |= FLAG_DISABLED;
	memif_close_door(&state->server);
	leave_socket(port, state);
	rte_eth_dev_stop(port->id);
	free_handles(port, state->device->data);
}

static void nothing(void *user)
{
}

static void memif_stop(struct port *port)
{
	if (!state_of(port))
		return;
	eal_run(stop_now, port);
	/* Sockets are closed a little later, and before this. */
	eal_run(nothing, NULL);
}

static void memif_closed(struct port *port)
{
	free(port_private(port)->driver_state);
	port_private(port)->driver_state = NULL;
}

static void connect_again(void *user)
{
	struct port *port = user;

	if (state_of(port)->memif->control)
		return;
	eal_hush(true); /* the first try has said it */
	port_restart(port);
	eal_hush(false);
}

static bool memif_watch(struct port *port)
{
	struct state *state = state_of(port);
	struct memif *memif = state->memif;

	/* EAL's thread changes both; connect_again() looks once more. */
	if (!(__atomic_load_n(&memif->flags, __ATOMIC_RELAXED) & FLAG_CONNECTED) &&
	    !__atomic_load_n(&memif->control, __ATOMIC_RELAXED) && !state->serves)
		eal_run(connect_again, port);
	return __atomic_load_n(&memif->flags, __ATOMIC_RELAXED) & FLAG_CONNECTED;
}

static bool memif_owns(const struct port *port, int fd)
{
	const struct state *state = state_of(port);

	return memif_is_socket(fd, state->path) ||
	       (state->serves && memif_is_socket(fd, memif_inner_path()));
}

const struct driver driver_memif = {
	.name = "net_memif",
	.summary = "memory shared with another process of this host",
	.memory = DRIVER_ANY,
	.external = true,
	.prepare = memif_prepare,
	.opened = memif_opened,
	.start = memif_start,
	.stop = memif_stop,
	.closed = memif_closed,
	.watch = memif_watch,
	.owns = memif_owns,
};
