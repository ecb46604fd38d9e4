/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The sockets of memif's servers. DPDK's driver must not meet strangers:
 *
 *  - A client that goes away between connect() and the driver's greeting leaves a closed descriptor
 *    among those that EAL's thread waits for, and EAL ends the process.
 *  - A server that is closed leaves its listener open, with a handler that uses freed memory.
 *
 * So the driver has one listener in each process, at a place that nobody else can reach, and keeps
 * it. The doors where clients knock are ours; what a client and the driver say to each other is
 * passed on, message by message. Packets go through memory and pass by all this.
 *
 * All of it runs in EAL's thread (eal_run()) and with EAL's lock held, where the driver's own
 * handlers run.
 */
#ifndef TENSORHAUL_DPDK_DRIVER_MEMIF_H
#define TENSORHAUL_DPDK_DRIVER_MEMIF_H

#include <stdbool.h>
#include <stdint.h>
#include <sys/un.h>

#define MEMIF_PATH sizeof(((struct sockaddr_un *)0)->sun_path)

/* A server that is wanted at a socket: clients name it by `id`, the driver by `inner`. */
struct memif_server {
	struct memif_server *next;
	struct memif_door *door; /* NULL: not open */
	uint32_t id, inner;
};

/* Where the driver listens; the same at all times. NULL: there is no place for it. */
const char *memif_inner_path(void);
/* The driver has made its listener (the first time): nobody else finds it from now on. */
int memif_hide_inner(void);

/* Whether this process listens there: 1 yes, 2 also with a server of this id, 0 no. In any thread,
 * with EAL's lock held. */
int memif_find_door(const char *path, bool abstract, uint32_t id);

/* 0 or a negative errno. */
int memif_open_door(struct memif_server *server, const char *path, bool abstract);
void memif_close_door(struct memif_server *server);

/* Whether somebody listens at a path: 1 yes, 0 no, or a negative errno. */
int memif_is_served(const char *path, bool abstract);

/* Whether a descriptor is a socket of that path, or connected to one. */
bool memif_is_socket(int fd, const char *path);

#endif
