/* SPDX-License-Identifier: Apache-2.0 */
/*
 * af_packet: an interface of the kernel's, shared with it, through rings of packet sockets.
 *
 * DPDK's driver makes the sockets; they are found among the process's descriptors to set what it
 * leaves out:
 *  - The kernel hands every frame of the interface to the ring, those that it sends itself, too:
 *    a filter keeps those of this port's address, so that other traffic does not push them out.
 *  - When a socket's send buffer is half full, the driver sleeps until the kernel has sent some,
 *    and when it is full, packets are left in the ring until the next ones come. The buffer is made
 *    as large as it may be, and the driver is given no more packets than fit into half of it.
 */
#include <arpa/inet.h>
#include <errno.h>
#include <linux/filter.h>
#include <linux/if_ether.h>
#include <linux/if_packet.h>
#include <linux/sockios.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <unistd.h>

#include "port_private.h"

/* Within a frame of the ring, before the Ethernet header: the kernel's head of it, and the address
 * that a packet came from, to a multiple of 16. */
#define RING_HEAD 80

/* A block of frames is contiguous memory of the kernel's; a whole number of pages. */
#define BLOCK (256u << 10)
#define FRAME_UNIT 1024u

#define RING_LEAST 64u
#define RING_MOST 8192u

/* What the kernel adds to a packet that it sends, for its own accounts. */
#define PACKET_OVERHEAD 1280u

#define SOCKETS_MAX PORT_QUEUES_MAX

struct state {
	int index;                /* of the interface */
	int ask;                  /* interface_claim()'s socket, also to ask for the link */
	int sockets[SOCKETS_MAX]; /* the driver's */
	unsigned count;
	unsigned buffer; /* bytes of packets that a socket may have under way */
	uint64_t missed;
	unsigned each; /* bytes that the longest packet takes of it */
};

static struct state *state_of(const struct port *port)
{
	return port_private(port)->driver_state;
}

/* ---- Before the device is made ------------------------------------------- */

int interface_check(struct port_wish *wish, struct interface *interface)
{
	const char *name = wish->interface;
	char list[300], owner[IFNAMSIZ];

	if (!wish_argument(wish, "iface", wish->interface, sizeof(wish->interface)))
		return haul_fail(wish->engine, -EINVAL,
				 "port={%s,...}: iface= has to name an interface",
				 wish->driver->name);
	if (interface_look(name, interface)) {
		interface_list(list, sizeof(list));
		return haul_fail(wish->engine, -ENODEV,
				 "port=: there is no interface %s here; there are: %s", name, list);
	}
	if (interface->loopback)
		return haul_fail(wish->engine, -EINVAL,
				 "port=: %s is the loopback interface, which has no Ethernet: two "
				 "processes of one host meet over {net_memif,...}",
				 name);
	if (!interface->up)
		return haul_fail(
			wish->engine, -ENETDOWN,
			"port=: the interface %s is down; `ip link set dev %s up` brings it "
			"up",
			name, name);
	if (interface_owns(wish->ip, owner))
		return haul_fail(
			wish->engine, -EADDRINUSE,
			"ip=%s is the kernel's own address on %s, which would answer for "
			"it; give the port an address that nobody has, or take it from the "
			"kernel: `ip addr del %s dev %s`",
			wish->config->ip, owner, wish->config->ip, owner);
	if (wish->mtu > interface->mtu)
		return haul_fail(wish->engine, -EMSGSIZE,
				 "mtu=%u is more than that of %s, %u; `ip link set dev %s mtu %u` "
				 "raises it",
				 wish->mtu, name, interface->mtu, name, wish->mtu);
	return 0;
}

/* Rings are locked in memory. Whether that much may be: asked with memory that is never touched. */
static bool may_lock(uint64_t length)
{
	void *base = mmap(NULL, length, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_LOCKED, -1, 0);

	if (base == MAP_FAILED)
		return false;
	munmap(base, length);
	return true;
}

static int size_ring(struct port_wish *wish, uint32_t frame, uint32_t per_block)
{
	/* One ring for each direction and queue, in half of the memory. */
	uint64_t fit = wish->config->memory / 2 / frame / 2 / wish->queues;
	uint32_t count = (uint32_t)RTE_MIN(fit, (uint64_t)RING_MOST);
	struct rlimit limit = {0};

	while (count >= RING_LEAST && !may_lock(2ull * count * frame * wish->queues))
		count = count * 3 / 4;
	if (count >= RING_LEAST) {
		wish->ring = RTE_MAX(count / per_block, 1u) * per_block;
		return 0;
	}
	getrlimit(RLIMIT_MEMLOCK, &limit);
	return haul_fail(wish->engine, -ENOMEM,
			 "the rings of %s need %llu KiB of memory that is locked; this process may "
			 "lock %llu KiB in all: raise it with `ulimit -l unlimited`, or give it "
			 "CAP_IPC_LOCK",
			 wish->interface, 2ull * RING_LEAST * frame * wish->queues / 1024,
			 (unsigned long long)limit.rlim_cur / 1024);
}

static int check_right(struct port_wish *wish)
{
	int fd = socket(AF_PACKET, SOCK_RAW | SOCK_CLOEXEC, 0), error;

	if (fd >= 0) {
		close(fd);
		return 0;
	}
	error = -errno;
	if (error == -EPERM || error == -EACCES)
		return haul_fail(wish->engine, -EPERM,
				 "port=%s needs the right to send and receive raw packets, "
				 "CAP_NET_RAW: run as root, or `setcap cap_net_raw+ep PROGRAM`",
				 wish->interface);
	return haul_fail(wish->engine, error, "port=%s: no packet socket: %s", wish->interface,
			 haul_strerror(error));
}

static int af_packet_prepare(struct port_wish *wish)
{
	struct interface interface;
	uint32_t frame, per_block;
	char text[16];
	int error = interface_check(wish, &interface);

	if (!error)
		error = check_right(wish);
	if (error)
		return error;
	if (!wish->mtu)
		wish->mtu = RTE_MIN(interface.mtu, (uint32_t)PORT_MTU_MOST);
	frame = RTE_ALIGN_MUL_CEIL(RING_HEAD + RTE_MAX(wish_frame(wish), interface.mtu + 18),
				   FRAME_UNIT);
	/* Four frames are whole pages. The driver wants no gaps between blocks. */
	per_block = BLOCK / frame / 4 * 4;
	if (!per_block)
		per_block = 4;
	wish->room = frame;
	error = size_ring(wish, frame, per_block);
	if (error)
		return error;
	if (!wish_argument(wish, "framesz", text, sizeof(text)))
		wish_add(wish, "framesz=%u,blocksz=%u,framecnt=%u", frame, frame * per_block,
			 wish->ring);
	if (!wish_argument(wish, "qpairs", text, sizeof(text)))
		wish_add(wish, "qpairs=%u", wish->queues);
	/* Through the interface's queues, as others' packets: they may be shaped. */
	if (!wish_argument(wish, "qdisc_bypass", text, sizeof(text)))
		wish_add(wish, "qdisc_bypass=0");
	return 0;
}

/* ---- The driver's sockets -------------------------------------------------- */

static bool is_packet_socket(int fd, int index)
{
	struct sockaddr_ll address = {0};
	socklen_t length = sizeof(address);
	int type = 0;
	socklen_t size = sizeof(type);

	if (getsockopt(fd, SOL_SOCKET, SO_TYPE, &type, &size) || type != SOCK_RAW ||
	    getsockname(fd, (struct sockaddr *)&address, &length))
		return false;
	return address.sll_family == AF_PACKET && address.sll_ifindex == index;
}

/* Sockets of a driver of DPDK's are members of a group that spreads packets. */
static bool is_drivers(int fd, int index)
{
	int group = 0;
	socklen_t size = sizeof(group);

	return is_packet_socket(fd, index) &&
	       getsockopt(fd, SOL_PACKET, PACKET_FANOUT, &group, &size) == 0 && group != 0;
}

static void collect(void *user, int fd)
{
	struct state *state = user;

	if (state->count < SOCKETS_MAX && is_drivers(fd, state->index))
		state->sockets[state->count++] = fd;
}

/* ARP, and IPv4 to this address, with or without a tag, that others sent. */
static int set_filter(int fd, uint32_t ip)
{
	struct sock_filter program[] = {
		BPF_STMT(BPF_LD | BPF_W | BPF_ABS, (uint32_t)(SKF_AD_OFF + SKF_AD_PKTTYPE)),
		BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, PACKET_OUTGOING, 6, 0),
		BPF_STMT(BPF_LD | BPF_H | BPF_ABS, 12),
		BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, ETH_P_ARP, 3, 0),
		BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, ETH_P_IP, 0, 3),
		BPF_STMT(BPF_LD | BPF_W | BPF_ABS, 30),
		BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, ip, 0, 1),
		BPF_STMT(BPF_RET | BPF_K, UINT32_MAX),
		BPF_STMT(BPF_RET | BPF_K, 0),
	};
	struct sock_fprog filter = {.len = RTE_DIM(program), .filter = program};
	int one = 1;

	/* The kernel knows it since 4.20, and the filter does the same later. */
	setsockopt(fd, SOL_PACKET, PACKET_IGNORE_OUTGOING, &one, sizeof(one));
	return setsockopt(fd, SOL_SOCKET, SO_ATTACH_FILTER, &filter, sizeof(filter)) ? -errno : 0;
}

static void size_buffer(struct state *state, int fd, unsigned wanted)
{
	int size = (int)wanted, got = 0;
	socklen_t length = sizeof(got);

	/* The second is for who may not exceed the host's limit. */
	if (setsockopt(fd, SOL_SOCKET, SO_SNDBUFFORCE, &size, sizeof(size)))
		setsockopt(fd, SOL_SOCKET, SO_SNDBUF, &size, sizeof(size));
	getsockopt(fd, SOL_SOCKET, SO_SNDBUF, &got, &length);
	state->buffer = RTE_MIN(state->buffer, (unsigned)got / 2);
}

static int af_packet_opened(struct port *port, struct port_wish *wish)
{
	struct state *state = calloc(1, sizeof(*state));
	struct interface interface;
	int error = 0;

	port_private(port)->driver_state = state;
	if (!state)
		return haul_fail(wish->engine, -ENOMEM, "no memory for the port");
	state->ask = interface_claim(wish->interface, wish->ip);
	if (state->ask == -EADDRINUSE)
		return haul_fail(
			wish->engine, -EADDRINUSE,
			"ip=%s: another context or process has this address on the interface %s; "
			"each needs one of its own",
			wish->config->ip, wish->interface);
	if (state->ask < 0)
		return haul_fail(wish->engine, state->ask, "port=: no socket for %s: %s",
				 wish->interface, haul_strerror(state->ask));
	if (interface_look(wish->interface, &interface))
		return haul_fail(wish->engine, -ENODEV, "port=: the interface %s is gone",
				 wish->interface);
	port->rate = interface.rate;
	state->index = interface.index;
	state->buffer = UINT32_MAX;
	state->each = wish->room + PACKET_OVERHEAD;
	each_descriptor(collect, state);
	if (state->count != wish->queues)
		return haul_fail(
			wish->engine, -EBUSY,
			"port=: another context of this process uses the interface %s, and "
			"the kernel would give each of the two a part of the packets only",
			wish->interface);
	for (unsigned i = 0; !error && i < state->count; i++) {
		error = set_filter(state->sockets[i], wish->ip);
		size_buffer(state, state->sockets[i], 2 * wish->ring * state->each);
	}
	if (error)
		return haul_fail(wish->engine, error, "port=: no filter for %s: %s",
				 wish->interface, haul_strerror(error));
	return 0;
}

static void af_packet_closed(struct port *port)
{
	struct state *state = state_of(port);

	if (state && state->ask >= 0)
		close(state->ask);
	free(state);
	port_private(port)->driver_state = NULL;
}

static bool af_packet_watch(struct port *port)
{
	return interface_runs(state_of(port)->ask, port_private(port)->interface);
}

static unsigned af_packet_may_send(struct port *port, unsigned queue, unsigned count)
{
	struct state *state = state_of(port);
	unsigned most = 0;

	/* Which socket is which queue's is not known: the fullest one counts. */
	for (unsigned i = 0; i < state->count; i++) {
		int used = 0;

		if (ioctl(state->sockets[i], SIOCOUTQ, &used) == 0 && (unsigned)used > most)
			most = (unsigned)used;
	}
	if (most >= state->buffer)
		return 0;
	return RTE_MIN(count, (state->buffer - most) / state->each);
}

static unsigned af_packet_events(const struct port *port, struct pollfd *events)
{
	const struct state *state = state_of(port);

	for (unsigned i = 0; i < state->count; i++) {
		int error;
		socklen_t length = sizeof(error);

		events[i] = (struct pollfd){.fd = state->sockets[i], .events = POLLIN};
		/* An interface that went down is an error until somebody has asked for it. */
		getsockopt(state->sockets[i], SOL_SOCKET, SO_ERROR, &error, &length);
	}
	return state->count;
}

/* Packets for which the ring had no room; the kernel forgets what it has told. */
static uint64_t af_packet_missed(const struct port *port)
{
	struct state *state = state_of(port);

	for (unsigned i = 0; i < state->count; i++) {
		struct tpacket_stats stats = {0};
		socklen_t length = sizeof(stats);

		if (getsockopt(state->sockets[i], SOL_PACKET, PACKET_STATISTICS, &stats, &length) ==
		    0)
			state->missed += stats.tp_drops;
	}
	return state->missed;
}

static bool af_packet_owns(const struct port *port, int fd)
{
	const struct state *state = state_of(port);

	return state && (fd == state->ask || is_drivers(fd, state->index));
}

const struct driver driver_af_packet = {
	.name = "net_af_packet",
	.summary = "an interface that is shared with the kernel",
	.memory = DRIVER_ANY,
	.external = true,
	.wire = true,
	.prepare = af_packet_prepare,
	.opened = af_packet_opened,
	.closed = af_packet_closed,
	.watch = af_packet_watch,
	.may_send = af_packet_may_send,
	.events = af_packet_events,
	.missed = af_packet_missed,
	.owns = af_packet_owns,
};
