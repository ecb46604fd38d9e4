/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What the files of a port share: port.c opens and closes it, port_wish.c reads the options,
 * port_pool.c has its memory, port_data.c moves packets, driver*.c know the drivers, interface.c
 * the kernel's network interfaces.
 */
#ifndef TENSORHAUL_DPDK_PORT_PRIVATE_H
#define TENSORHAUL_DPDK_PORT_PRIVATE_H

#include <net/if.h>

#include <rte_ethdev.h>
#include <rte_mbuf.h>
#include <rte_mempool.h>
#include <rte_spinlock.h>

#include "eal.h"
#include "options.h"
#include "port.h"

#define PORT_MTU_AUTO 9000
#define PORT_MTU_MOST 9700

/* Arguments of a driver, with what is added to those of the user. */
#define PORT_ARGUMENTS 1024

struct driver;

/* ---- What the options ask for (port_wish.c) ---------------------------- */

struct port_wish {
	const struct dpdk_config *config;
	struct haul_context *engine;
	const struct driver *driver;
	const char *bus;                /* "vdev" or "pci" */
	uint32_t number;                /* for the driver */
	char name[64];                  /* DPDK's name of the device */
	char given[PORT_ARGUMENTS];     /* the arguments, as the user gave them */
	char arguments[PORT_ARGUMENTS]; /* ... completed */
	char interface[IFNAMSIZ];       /* "": none */
	uint32_t ip, mask, gateway;
	unsigned queues;
	uint32_t mtu;
	uint32_t room; /* of a packet: the longest frame, or more when the driver asks for it */
	uint32_t ring; /* packets of one queue that the driver holds */
};

int wish_read(struct haul_context *engine, const struct dpdk_config *config,
	      struct port_wish *wish);

/* The longest frame, with a VLAN tag, without the check sequence. */
static inline uint32_t wish_frame(const struct port_wish *wish)
{
	return wish->mtu + FRAME_ETHERNET + FRAME_TAG;
}

/* The value of an argument "name=value" among those of the user; false: it is not there. */
bool wish_argument(const struct port_wish *wish, const char *name, char *value, size_t room);
/* Append ",name=value" to wish->arguments. */
__attribute__((format(printf, 2, 3))) void wish_add(struct port_wish *wish, const char *format,
						    ...);

/* ---- Drivers (driver*.c) ----------------------------------------------- */

/* Where a port's packets may lie. */
enum driver_memory {
	DRIVER_ANY, /* anywhere */
	DRIVER_EAL, /* DPDK's own memory, which the driver shows to somebody */
};

struct driver {
	const char *name;    /* as in port=; NULL: a card */
	const char *summary; /* for haul-info */
	enum driver_memory memory;
	bool external;   /* sends from any memory, and with more than one piece */
	bool registered; /* sends from memory that was registered for it */
	bool keeps;      /* lets go of sent packets late */
	bool eager;      /* ... but earlier when it is asked to */
	bool wire;       /* packets may pass a wire */
	bool crosses;    /* takes packets of those that arrive to send, in any thread */
	bool speed;      /* the speed that it tells is one */
	bool resizes;    /* takes the MTU that it is told */

	/* Check what is asked for, and complete mtu, ring, room and arguments. 0 or a negative
	 * errno that haul_fail() was told. */
	int (*prepare)(struct port_wish *wish);
	/* The device is there, and not started; the same result. */
	int (*opened)(struct port *port, struct port_wish *wish);
	/* Start it (again); 0, a negative errno, or 1: not yet, watch() tries again. NULL:
	 * rte_eth_dev_start(). */
	int (*start)(struct port *port);
	/* Stop it; no thread of DPDK's uses it any more. NULL: rte_eth_dev_stop(). */
	void (*stop)(struct port *port);
	/* It is gone, or `port` was never opened. */
	void (*closed)(struct port *port);
	/* Whether the link is up; may mend it. NULL: as DPDK says. */
	bool (*watch)(struct port *port);
	/* How many of `count` packets may be given to the driver now. NULL: all. */
	unsigned (*may_send)(struct port *port, unsigned queue, unsigned count);
	/* As port_events(). NULL: the driver has no such descriptors. */
	unsigned (*events)(const struct port *port, struct pollfd *events);
	/* Packets that were lost before DPDK saw them. NULL: as DPDK says. */
	uint64_t (*missed)(const struct port *port);
	/* Whether a descriptor is the port's, in a forked child. */
	bool (*owns)(const struct port *port, int fd);
};

extern const struct driver *const drivers[]; /* NULL-terminated */
extern const struct driver driver_card;      /* of PCI */
const struct driver *driver_find(const char *name);
/* Whether a kernel driver leaves its card to DPDK, or shares it. */
bool driver_is_for_cards(const char *driver);

extern const struct driver driver_memif;
extern const struct driver driver_af_packet;
extern const struct driver driver_af_xdp;

/* ---- The kernel's interfaces (interface.c) ------------------------------ */

struct interface {
	int index;
	uint32_t mtu;
	bool up, running;
	bool loopback;
	uint64_t rate; /* bytes per second; 0: not known, or made up */
};

/* 0, or -ENODEV when there is none. */
int interface_look(const char *name, struct interface *interface);
/* Names of those that could carry a port, separated by commas. */
void interface_list(char *text, size_t room);
/* Read iface= of the arguments, and check that it can carry a port as it is asked for. */
int interface_check(struct port_wish *wish, struct interface *interface);
/* Whether an IPv4 address is the kernel's own; `name` (IFNAMSIZ) takes the interface's. */
bool interface_owns(uint32_t address, char *name);
/*
 * A socket that says to all processes of the network namespace that this one has the address on the
 * interface: the kernel would give each of them the packets. Or a negative errno, -EADDRINUSE.
 */
int interface_claim(const char *name, uint32_t ip);
/* Whether it is up and has a link: asked through `fd`, a socket of its network namespace. */
bool interface_runs(int fd, const char *name);
/* For a forked child: call `look` with each of its descriptors. */
void each_descriptor(void (*look)(void *user, int fd), void *user);

/* ---- Memory (port_pool.c) ---------------------------------------------- */

/* `count` packets with `room` bytes each (0: only heads, for pieces of other memory), and `extra`
 * bytes beside each head. NULL: no memory. */
struct rte_mempool *pool_make(const struct port_wish *wish, const char *what, unsigned count,
			      uint32_t room, uint16_t extra);
void pool_free(struct rte_mempool *pool);
/* Bytes that such a packet takes. */
size_t pool_element(uint32_t room, uint16_t extra);

/* ---- The port ---------------------------------------------------------- */

struct port_private {
	struct port port;
	const struct driver *driver;
	struct haul_context *engine;
	char name[64], interface[IFNAMSIZ];
	const char *bus;
	bool made, configured, started;
	struct rte_mempool *arriving, *leaving, *pieces;
	uint64_t offloads; /* flags of packets for port_offload() */
	uint64_t watched_at;
	unsigned nudges;       /* of port_reclaim(), in a row */
	rte_spinlock_t *guard; /* held while packets move; the driver's own when it has one */
	rte_spinlock_t moving; /* the guard of others; `started` changes with the guard held */
	void *driver_state;
};

static inline struct port_private *port_private(const struct port *port)
{
	return port->self;
}

/* Stop and start the device, between other threads' packets. 0 or a negative errno. */
int port_restart(struct port *port);

#endif
