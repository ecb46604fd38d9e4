/* SPDX-License-Identifier: Apache-2.0 */
/*
 * af_xdp: an interface of the kernel's, all of whose traffic goes to the port.
 *
 * DPDK's driver leaves this open, which is mended here:
 *  - libxdp and libbpf, which it uses, write to standard error: they are told to be silent.
 *  - A port that is closed leaves descriptors of its program and maps behind. Those that came with
 *    it are remembered by the kernel's numbers for what they are, and closed.
 */
#include <dlfcn.h>
#include <errno.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "port_private.h"

/* A packet with all that is before it has to fit into a page of 4096 bytes: the pool's head, the
 * packet's, DPDK's headroom, and the kernel's. */
#define XDP_HEADROOM 256
#define XDP_ROOM (4096 - 64 - sizeof(struct rte_mbuf) - RTE_PKTMBUF_HEADROOM)
#define XDP_MTU_MOST (XDP_ROOM - XDP_HEADROOM - FRAME_ETHERNET - FRAME_TAG)

static int af_xdp_prepare(struct port_wish *wish)
{
	struct interface interface;
	char text[16];
	int error = interface_check(wish, &interface);

	if (error)
		return error;
	if (wish->mtu > XDP_MTU_MOST || interface.mtu > XDP_MTU_MOST)
		return haul_fail(
			wish->engine, -EMSGSIZE,
			"port=: af_xdp carries packets of up to %u bytes, %s has mtu %u: `ip "
			"link set dev %s mtu %u`, or use af_packet:%s",
			(unsigned)XDP_MTU_MOST, wish->interface, RTE_MAX(wish->mtu, interface.mtu),
			wish->interface, (unsigned)XDP_MTU_MOST, wish->interface);
	if (!wish->mtu)
		wish->mtu = interface.mtu;
	wish->room = XDP_ROOM;
	if (!wish_argument(wish, "queue_count", text, sizeof(text)) && wish->queues > 1)
		wish_add(wish, "queue_count=%u", wish->queues);
	/* The kernel's busy polling would need more rights, and a socket option each time. */
	if (!wish_argument(wish, "busy_budget", text, sizeof(text)))
		wish_add(wish, "busy_budget=0");
	return 0;
}

/* ---- Silence ------------------------------------------------------------------- */

static int say_nothing(int level, const char *format, va_list arguments)
{
	return 0;
}

/* The library is there when DPDK's driver is. */
static void silence(const char *library, const char *function)
{
	void *handle = dlopen(library, RTLD_NOW | RTLD_NOLOAD);
	void *(*set)(int (*)(int, const char *, va_list));

	if (!handle)
		return;
	*(void **)&set = dlsym(handle, function);
	if (set)
		set(say_nothing);
	dlclose(handle);
}

/* ---- Descriptors that the driver forgets ------------------------------------------ */

#define OBJECTS_MAX 64

/* A program, map or link of the kernel's BPF. */
struct object {
	int fd;
	unsigned long id;
};

struct objects {
	struct object list[OBJECTS_MAX];
	unsigned count;
};

struct state {
	struct objects before, own;
};

/* The kernel's number; 0: it is no such object. */
static unsigned long object_id(int fd)
{
	char path[64], line[128];
	unsigned long id = 0;
	FILE *file;

	snprintf(path, sizeof(path), "/proc/self/fdinfo/%d", fd);
	file = fopen(path, "re");
	while (file && !id && fgets(line, sizeof(line), file)) {
		if (sscanf(line, "prog_id: %lu", &id) != 1 && sscanf(line, "map_id: %lu", &id) != 1)
			sscanf(line, "link_id: %lu", &id);
	}
	if (file)
		fclose(file);
	return id;
}

static void collect(void *user, int fd)
{
	struct objects *objects = user;
	unsigned long id = objects->count < OBJECTS_MAX ? object_id(fd) : 0;

	if (id)
		objects->list[objects->count++] = (struct object){.fd = fd, .id = id};
}

static bool contains(const struct objects *objects, const struct object *object)
{
	for (unsigned i = 0; i < objects->count; i++) {
		if (objects->list[i].fd == object->fd && objects->list[i].id == object->id)
			return true;
	}
	return false;
}

/* Before the queues are made, which brings them. */
static int af_xdp_opened(struct port *port, struct port_wish *wish)
{
	struct state *state = calloc(1, sizeof(*state));

	silence("libxdp.so.1", "libxdp_set_print");
	silence("libbpf.so.1", "libbpf_set_print");
	port_private(port)->driver_state = state;
	if (!state)
		return haul_fail(wish->engine, -ENOMEM, "no memory for the port");
	each_descriptor(collect, &state->before);
	return 0;
}

static int af_xdp_start(struct port *port)
{
	struct state *state = port_private(port)->driver_state;
	struct objects now = {0};

	if (!state->own.count) {
		each_descriptor(collect, &now);
		for (unsigned i = 0; i < now.count; i++) {
			if (!contains(&state->before, &now.list[i]))
				state->own.list[state->own.count++] = now.list[i];
		}
	}
	return rte_eth_dev_start(port->id);
}

static void af_xdp_closed(struct port *port)
{
	struct state *state = port_private(port)->driver_state;

	for (unsigned i = 0; state && i < state->own.count; i++) {
		if (object_id(state->own.list[i].fd) == state->own.list[i].id)
			close(state->own.list[i].fd);
	}
	free(state);
	port_private(port)->driver_state = NULL;
}

/* What it sends it copies into packets of its queue for those that arrive. */
const struct driver driver_af_xdp = {
	.name = "net_af_xdp",
	.summary = "an interface, all of its traffic",
	.memory = DRIVER_ANY,
	.wire = true,
	.crosses = true,
	.prepare = af_xdp_prepare,
	.opened = af_xdp_opened,
	.start = af_xdp_start,
	.closed = af_xdp_closed,
};
