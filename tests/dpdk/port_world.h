/* SPDX-License-Identifier: Apache-2.0 */
/* What tests of ports have in common: ports with short options, packets of known content, and a
 * network namespace with a pair of interfaces. */
#ifndef TENSORHAUL_PORT_WORLD_H
#define TENSORHAUL_PORT_WORLD_H

#include "../unit/unit.h"

#include "options.h"
#include "port.h"
#include "tensorhaul/haul.h"

extern struct haul_context *world_context; /* whose haul_detail() has the errors */
extern char world_socket[64];              /* a path for memif that is free */
extern bool world_has_interfaces;          /* "va" and "vb", MTU 9000, up, in a namespace */

/* Before anything makes a thread. */
void world_start(void);
void world_end(void);

/* The defaults of the option table, with these. */
struct dpdk_config world_config(const char *port, const char *ip);

/* Opens; `extra` is appended to memif's arguments. `end` is 1 or 2: the address 10.9.0.END. */
struct port *world_memif(const char *role, const char *extra, unsigned end, uint64_t mtu);
struct port *world_port(const char *name, unsigned end, uint64_t mtu);

/* Whether the link comes to that state within so many milliseconds. */
bool world_wait_link(struct port *port, bool up, unsigned ms);

/*
 * Packet `number` has a length and bytes that follow from its number. With `holder` they are sent
 * from where they are.
 */
struct rte_mbuf *world_packet(struct port *from, struct port *to, uint32_t number,
			      struct port_holder *holder);

/* Takes packets that have arrived and compares them; *next is the number that has to come. */
unsigned world_take(struct port *port, uint32_t *next);

/* Sends packets from..from + count - 1, and takes them all. */
void world_exchange(struct port *from, struct port *to, uint32_t first, uint32_t count,
		    struct port_holder *holder);

/* Of this process. */
unsigned world_descriptors(void);
unsigned world_threads(void);
unsigned long world_resident_kib(void);

/* A command of the shell, which has to succeed. */
void world_run(const char *format, ...) __attribute__((format(printf, 1, 2)));

#endif
