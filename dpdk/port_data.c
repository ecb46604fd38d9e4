/* SPDX-License-Identifier: Apache-2.0 */
/* Moving packets. */
#include <string.h>

#include <rte_ip.h>
#include <rte_udp.h>

#include "port_private.h"

/* More than any ring has places. */
#define NUDGES 8192

/* Neither is the device started again meanwhile, nor does the driver take its memory away. */
static inline void start_moving(struct port_private *self)
{
	rte_spinlock_lock(self->guard);
}

/* rte_spinlock_unlock() is a locked exchange, which waits until all that was written has left. */
static inline void stop_moving(struct port_private *self)
{
	__atomic_store_n(&self->guard->locked, 0, __ATOMIC_RELEASE);
}

/* ---- Arriving ------------------------------------------------------------------ */

/* A packet that came in pieces is longer than any that was agreed upon. */
static unsigned drop_pieces(struct rte_mbuf **packets, unsigned count)
{
	unsigned kept = 0;

	for (unsigned i = 0; i < count; i++) {
		if (likely(packets[i]->nb_segs == 1))
			packets[kept++] = packets[i];
		else
			rte_pktmbuf_free(packets[i]);
	}
	return kept;
}

unsigned port_receive(struct port *port, unsigned queue, struct rte_mbuf **packets, unsigned most)
{
	struct port_private *self = port_private(port);
	unsigned count;

	start_moving(self);
	count = self->started ? rte_eth_rx_burst(port->id, (uint16_t)queue, packets, (uint16_t)most)
			      : 0;
	stop_moving(self);
	return drop_pieces(packets, count);
}

unsigned port_events(const struct port *port, struct pollfd *events)
{
	const struct driver *driver = port_private(port)->driver;

	return driver->events ? driver->events(port, events) : 0;
}

struct frame_checked port_checked(const struct port *port, const struct rte_mbuf *packet)
{
	uint64_t flags = packet->ol_flags;

	if (!port->checks_udp)
		return (struct frame_checked){0};
	return (struct frame_checked){
		.ip = (flags & RTE_MBUF_F_RX_IP_CKSUM_MASK) == RTE_MBUF_F_RX_IP_CKSUM_GOOD,
		.udp = (flags & RTE_MBUF_F_RX_L4_CKSUM_MASK) == RTE_MBUF_F_RX_L4_CKSUM_GOOD,
	};
}

/* ---- Leaving --------------------------------------------------------------------- */

struct rte_mbuf *port_packet(struct port *port)
{
	return rte_pktmbuf_alloc(port_private(port)->leaving);
}

static void let_go(void *data, void *user)
{
	struct port_holder *holder = user;

	holder->count--;
}

bool port_attach(struct port *port, struct rte_mbuf *packet, const void *data, uint32_t length,
		 struct port_holder *holder)
{
	struct rte_mbuf *piece = rte_pktmbuf_alloc(port_private(port)->pieces);
	struct rte_mbuf_ext_shared_info *shared;

	if (unlikely(!piece))
		return false;
	/* In the piece's own head, so that nothing has to be allocated for it. */
	shared = rte_mbuf_to_priv(piece);
	shared->free_cb = let_go;
	shared->fcb_opaque = holder;
	rte_mbuf_ext_refcnt_set(shared, 1);
	rte_pktmbuf_attach_extbuf(piece, (void *)(uintptr_t)data, (rte_iova_t)(uintptr_t)data,
				  (uint16_t)length, shared);
	piece->data_len = (uint16_t)length;
	piece->pkt_len = length;
	holder->count++;
	packet->next = piece;
	packet->nb_segs = 2;
	packet->pkt_len += length;
	return true;
}

void port_offload(struct port *port, struct rte_mbuf *packet, unsigned headers)
{
	struct rte_ipv4_hdr *ip = rte_pktmbuf_mtod_offset(packet, struct rte_ipv4_hdr *, headers);
	struct rte_udp_hdr *udp = (struct rte_udp_hdr *)(ip + 1);

	packet->ol_flags |= port_private(port)->offloads;
	packet->l2_len = headers;
	packet->l3_len = FRAME_IPV4;
	ip->hdr_checksum = 0;
	/* The card goes on from the sum of the pseudo header. */
	udp->dgram_cksum = rte_ipv4_phdr_cksum(ip, packet->ol_flags);
}

unsigned port_send(struct port *port, unsigned queue, struct rte_mbuf **packets, unsigned count)
{
	struct port_private *self = port_private(port);
	unsigned sent;

	if (self->driver->may_send)
		count = self->driver->may_send(port, queue, count);
	if (!count)
		return 0;
	start_moving(self);
	sent = self->started ? rte_eth_tx_burst(port->id, (uint16_t)queue, packets, (uint16_t)count)
			     : 0;
	stop_moving(self);
	return sent;
}

/* ---- What was sent ------------------------------------------------------------------ */

static bool clean_up(struct port *port)
{
	bool some = false;

	for (uint16_t i = 0; i < port->queues; i++)
		some |= rte_eth_tx_done_cleanup(port->id, i, 0) > 0;
	return some;
}

/*
 * Drivers look at what the card has done when more is to be sent: give them something that nobody
 * takes, a frame from and to this port of a type for experiments (IEEE 802, 0x88b5).
 */
static void nudge(struct port *port, uint16_t queue)
{
	struct rte_mbuf *packet = port_packet(port);
	uint8_t *bytes;

	if (!packet)
		return;
	packet->data_len = FRAME_LEAST;
	packet->pkt_len = FRAME_LEAST;
	bytes = rte_pktmbuf_mtod(packet, uint8_t *);
	memset(bytes, 0, FRAME_LEAST);
	memcpy(bytes, port->mac, FRAME_MAC);
	memcpy(bytes + FRAME_MAC, port->mac, FRAME_MAC);
	bytes[12] = 0x88;
	bytes[13] = 0xb5;
	if (!port_send(port, queue, &packet, 1))
		rte_pktmbuf_free(packet);
}

bool port_reclaim(struct port *port, bool force)
{
	struct port_private *self = port_private(port);

	if (!port->keeps || !self->started)
		return false;
	if (clean_up(port)) {
		self->nudges = 0;
		return true;
	}
	if (!force)
		return false;
	if (self->nudges++ < NUDGES) {
		for (uint16_t i = 0; i < port->queues; i++)
			nudge(port, i);
		return true;
	}
	/* A card that is stopped lets go of everything. */
	self->nudges = 0;
	return port_restart(port) == 0;
}
