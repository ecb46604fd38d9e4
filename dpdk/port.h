/* SPDX-License-Identifier: Apache-2.0 */
/*
 * One DPDK port: opened from the option port=, with memory for packets, and with what its driver
 * can and can't do settled. The rest of the backend knows no driver.
 *
 * A port belongs to one context. Everything but port_receive() runs with the context's lock held;
 * port_receive() runs in the thread that drives the context. Memory for packets has no lock of its
 * own: packets that arrived are freed by the thread that receives, or while nobody does.
 */
#ifndef TENSORHAUL_DPDK_PORT_H
#define TENSORHAUL_DPDK_PORT_H

#include <poll.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include <rte_mbuf.h>

#include "frame.h"

#define PORT_QUEUES_MAX 16
/* How many packets port_receive() and port_send() take at most at a time. */
#define PORT_BURST 64

struct haul_context;
struct dpdk_config;

struct port {
	uint16_t id; /* DPDK's */
	uint16_t queues;
	uint8_t mac[FRAME_MAC];
	uint32_t ip, mask, gateway; /* gateway 0: none */
	uint16_t tag;               /* VLAN id, 0: none */
	uint16_t payload;           /* the longest UDP payload */
	uint32_t ring;            /* packets that wait at the port when nobody looks: all queues */
	uint64_t rate;            /* of the link, bytes per second; 0: not known */
	bool link_up;             /* see port_watch() */
	bool external;            /* takes packets of more than one piece out of any memory */
	bool external_registered; /* the same, but only out of memory of port_register() */
	bool keeps;               /* the driver lets go of sent packets late: see port_reclaim() */
	bool wire;                /* packets pass something that can corrupt them */
	bool sums_ip, sums_udp;   /* the card computes checksums of packets that leave */
	bool checks_udp;          /* and checks those of packets that come */
	struct port_private *self;
};

/*
 * Open the port that the options name. With an error, haul_fail() was told what is missing and
 * which command mends it, and nothing is left open. EAL is started by the first one of a process
 * and stays.
 */
int port_open(struct haul_context *engine, const struct dpdk_config *config, struct port **port);
void port_close(struct port *port);
/* In a forked child: close descriptors, touch nothing else. */
void port_close_in_child(struct port *port);

/* Up to `most` (PORT_BURST at most) packets of a queue. The caller frees them. */
unsigned port_receive(struct port *port, unsigned queue, struct rte_mbuf **packets, unsigned most);
/* Whether the driver says that what came has a right UDP checksum (or none). */
struct frame_checked port_checked(const struct port *port, const struct rte_mbuf *packet);

/*
 * Descriptors for poll() that are readable while packets wait: their number, PORT_QUEUES_MAX at
 * most; 0: only a look tells. Ask anew for each poll().
 */
unsigned port_events(const struct port *port, struct pollfd *events);

/* A packet of one piece, empty, with room for the longest frame; NULL: there is none now. */
struct rte_mbuf *port_packet(struct port *port);

/* Whose memory a packet's second piece is. `count` of such pieces are with the driver. */
struct port_holder {
	uint32_t count;
};

/*
 * Let `length` bytes at `data` follow the bytes of the packet, without copying: only where the port
 * says `external` (or `external_registered`, and `data` is within a registered piece of memory).
 * holder->count goes up now, and down when the driver let go of them. False: no memory for it now.
 */
bool port_attach(struct port *port, struct rte_mbuf *packet, const void *data, uint32_t length,
		 struct port_holder *holder);

/*
 * Send packets; gives how many the driver took, the others stay the caller's. With `sums_udp` the
 * caller has prepared them with port_offload().
 */
unsigned port_send(struct port *port, unsigned queue, struct rte_mbuf **packets, unsigned count);
/* Ask the card for the checksums of a packet: IPv4 and UDP headers are at `headers` bytes. */
void port_offload(struct port *port, struct rte_mbuf *packet, unsigned headers);

/* Make the driver let go of what it has sent: true when something may have changed. With `force`,
 * whatever it takes (small frames; in the end the port is stopped and started). */
bool port_reclaim(struct port *port, bool force);

/* Ask for the link's state, at most each 100 ms: true when it has changed. */
bool port_watch(struct port *port, uint64_t now);

/* Memory for the caller's regions. */
int port_register(struct port *port, void *base, size_t length, void **region);
void port_unregister(struct port *port, void *region);
bool port_is_registered(const struct port *port, const void *region);
/* NULL: the engine's own memory is as good. */
void *port_memory(struct port *port, size_t length);
void port_memory_free(struct port *port, void *base);

/* Frames and bytes, for statistics and logs. */
struct port_counts {
	uint64_t received, sent, missed, errors;
};
void port_counts(const struct port *port, struct port_counts *counts);

/* For haul_context_ops. */
int port_probe(char *reason, size_t room);
int port_describe(const char *where, char *text, size_t room);

#endif
