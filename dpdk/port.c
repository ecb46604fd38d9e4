/* SPDX-License-Identifier: Apache-2.0 */
/* Opening and closing a port. */
#include "port.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include <rte_bus_vdev.h>
#include <rte_dev.h>
#include <rte_errno.h>

#include "packet.h"
#include "port_private.h"

#define LINK_PATIENCE_MS 50
#define WATCH_NS UINT64_C(100000000)

/* Descriptors of a queue, where the driver does not say what it wants. */
#define DESCRIPTORS 1024

/* Packets that the backend may have at hand, beside those in rings. */
#define AT_HAND (4 * PORT_BURST)

/* ---- Errors ----------------------------------------------------------------- */

/* What DPDK did not do, with its own words. */
static int failed(const struct port_wish *wish, int error, const char *what,
		  const struct eal_words *words)
{
	/* Many drivers have one number for all that goes wrong. */
	if (!error || error == -1)
		error = -EIO;
	return haul_fail(wish->engine, error, "port=%s: %s: %s", wish->config->port, what,
			 words->text[0] ? words->text : haul_strerror(error));
}

/* ---- The device --------------------------------------------------------------- */

static int make_device(struct port_private *self, struct port_wish *wish)
{
	struct eal_words words;
	int error;

	if (rte_eth_dev_count_total() >= RTE_MAX_ETHPORTS)
		return haul_fail(wish->engine, -EMFILE,
				 "this process has %d ports, and DPDK has room for no more",
				 RTE_MAX_ETHPORTS);
	eal_hear(&words);
	error = rte_eal_hotplug_add(wish->bus, wish->name, wish->arguments);
	eal_heard();
	self->made = !error;
	if (!error)
		error = rte_eth_dev_get_port_by_name(wish->name, &self->port.id);
	if (error)
		error = failed(wish, error < 0 ? error : -EIO, "DPDK's driver did not take it",
			       &words);
	return error;
}

static void remove_device(struct port_private *self)
{
	/* A card's driver stays with the card; a virtual device goes with its driver. */
	if (!strcmp(self->bus, "pci"))
		rte_eth_dev_close(self->port.id);
	rte_eal_hotplug_remove(self->bus, self->name);
	self->made = false;
}

/* ---- What the driver can do ------------------------------------------------------ */

static void choose_offloads(struct port_private *self, const struct port_wish *wish,
			    const struct rte_eth_dev_info *info, struct rte_eth_conf *conf)
{
	const uint64_t sums = RTE_ETH_TX_OFFLOAD_IPV4_CKSUM | RTE_ETH_TX_OFFLOAD_UDP_CKSUM;
	const uint64_t checks = RTE_ETH_RX_OFFLOAD_IPV4_CKSUM | RTE_ETH_RX_OFFLOAD_UDP_CKSUM;
	const struct driver *driver = wish->driver;
	struct port *port = &self->port;
	bool pieces = info->tx_offload_capa & RTE_ETH_TX_OFFLOAD_MULTI_SEGS;

	if (pieces && wish->config->copy == DPDK_COPY_AUTO) {
		port->external = driver->external;
		port->external_registered = driver->registered;
	}
	if (port->external || port->external_registered)
		conf->txmode.offloads |= RTE_ETH_TX_OFFLOAD_MULTI_SEGS;
	/* Where packets pass no wire, a sum of the "card" costs this processor as much. */
	if (driver->wire && (info->tx_offload_capa & sums) == sums) {
		conf->txmode.offloads |= sums;
		port->sums_ip = port->sums_udp = true;
		self->offloads =
			RTE_MBUF_F_TX_IPV4 | RTE_MBUF_F_TX_IP_CKSUM | RTE_MBUF_F_TX_UDP_CKSUM;
	}
	if (driver->wire && (info->rx_offload_capa & checks) == checks) {
		conf->rxmode.offloads |= checks;
		port->checks_udp = true;
	}
}

/* Connections are spread by addresses and ports. */
static void choose_queues(const struct port_wish *wish, const struct rte_eth_dev_info *info,
			  struct rte_eth_conf *conf)
{
	uint64_t can = info->flow_type_rss_offloads;

	if (wish->queues == 1)
		return;
	if (can & RTE_ETH_RSS_NONFRAG_IPV4_UDP)
		can = RTE_ETH_RSS_NONFRAG_IPV4_UDP;
	else
		can &= RTE_ETH_RSS_IPV4;
	if (!can)
		return;
	conf->rxmode.mq_mode = RTE_ETH_MQ_RX_RSS;
	conf->rx_adv_conf.rss_conf.rss_hf = can;
}

static int choose_mtu(const struct port_wish *wish, const struct rte_eth_dev_info *info,
		      struct rte_eth_conf *conf)
{
	if (!wish->driver->resizes)
		return 0;
	if (info->max_mtu && wish->mtu > info->max_mtu)
		return haul_fail(wish->engine, -EMSGSIZE,
				 "mtu=%u: the port %s takes packets of %u to %u bytes", wish->mtu,
				 wish->config->port, info->min_mtu, info->max_mtu);
	conf->rxmode.mtu = wish->mtu;
	return 0;
}

static int configure(struct port_private *self, struct port_wish *wish)
{
	struct port *port = &self->port;
	struct rte_eth_conf conf = {0};
	struct rte_ether_addr mac;
	struct rte_eth_dev_info info;
	struct eal_words words;
	int error = rte_eth_dev_info_get(port->id, &info);

	if (!error && (wish->queues > info.max_rx_queues || wish->queues > info.max_tx_queues))
		return haul_fail(wish->engine, -EINVAL, "queues=%u: the port %s has at most %u",
				 wish->queues, wish->config->port,
				 RTE_MIN(info.max_rx_queues, info.max_tx_queues));
	if (!error)
		error = choose_mtu(wish, &info, &conf);
	if (error)
		return error;
	choose_offloads(self, wish, &info, &conf);
	choose_queues(wish, &info, &conf);
	eal_hear(&words);
	error = rte_eth_dev_configure(port->id, (uint16_t)wish->queues, (uint16_t)wish->queues,
				      &conf);
	eal_heard();
	if (error)
		return failed(wish, error, "the driver was not configured", &words);
	if (rte_eth_macaddr_get(port->id, &mac))
		return failed(wish, -EIO, "the driver tells no address", &words);
	memcpy(port->mac, mac.addr_bytes, FRAME_MAC);
	return 0;
}

/* ---- Memory and queues ------------------------------------------------------------- */

static int make_pools(struct port_private *self, const struct port_wish *wish, unsigned held)
{
	bool pieces = self->port.external || self->port.external_registered;
	size_t piece = pieces ? pool_element(0, sizeof(struct rte_mbuf_ext_shared_info)) : 0;
	size_t packet = pool_element(wish->room, 0);
	/* Drivers that have rings of packets of their own were given the other half. */
	uint64_t memory = wish->config->memory / (wish->driver->memory == DRIVER_ANY ? 2 : 1);
	uint64_t half = memory / (2 * packet + piece);
	unsigned count = (unsigned)RTE_MIN(half, UINT64_C(1) << 22);

	if (count < held + AT_HAND)
		return haul_fail(
			wish->engine, -ENOMEM,
			"memory=%llu is too little for packets of mtu=%u and the rings of "
			"%s; it takes memory=%lluMiB and more",
			(unsigned long long)wish->config->memory, wish->mtu, wish->config->port,
			(unsigned long long)((held + AT_HAND) * (2 * packet + piece) *
						     (wish->config->memory / memory) / (1 << 20) +
					     1));
	self->arriving = pool_make(wish, "in", count, wish->room, 0);
	self->leaving = pool_make(wish, "out", count, wish->room, 0);
	if (pieces)
		self->pieces =
			pool_make(wish, "piece", count, 0, sizeof(struct rte_mbuf_ext_shared_info));
	if (self->arriving && self->leaving && (self->pieces || !pieces))
		return 0;
	if (wish->driver->memory == DRIVER_ANY)
		return haul_fail(wish->engine, -ENOMEM, "no memory for packets: memory=%llu bytes",
				 (unsigned long long)wish->config->memory);
	return haul_fail(
		wish->engine, -ENOMEM,
		"no memory for packets: memory=%llu bytes are asked for, and DPDK has less. "
		"Hugepages help (`echo 512 > /proc/sys/vm/nr_hugepages` as root); without "
		"them the first port of a process decides, and this one has to be it",
		(unsigned long long)wish->config->memory);
}

static int setup_queues(struct port_private *self, struct port_wish *wish)
{
	uint16_t in = DESCRIPTORS, out = DESCRIPTORS;
	struct port *port = &self->port;
	struct rte_eth_dev_info info;
	struct eal_words words;
	int error;

	eal_hear(&words);
	error = rte_eth_dev_info_get(port->id, &info);
	error = error ?: rte_eth_dev_adjust_nb_rx_tx_desc(port->id, &in, &out);
	eal_heard();
	if (error)
		return failed(wish, error, "the driver's rings have no size", &words);
	if (wish->driver->eager)
		info.default_txconf.tx_free_thresh = out - 4;
	/* A driver that holds none of our packets said how many of its own it does. */
	error = make_pools(self, wish, wish->ring ? 0 : 2u * in * wish->queues);
	if (error)
		return error;
	port->ring = (wish->ring ? wish->ring : in) * wish->queues;
	eal_hear(&words);
	for (uint16_t i = 0; !error && i < wish->queues; i++) {
		error = rte_eth_rx_queue_setup(port->id, i, in, (unsigned)SOCKET_ID_ANY, NULL,
					       self->arriving);
		if (!error)
			error = rte_eth_tx_queue_setup(port->id, i, out, (unsigned)SOCKET_ID_ANY,
						       &info.default_txconf);
	}
	eal_heard();
	return error ? failed(wish, error, "the driver's queues were not made", &words) : 0;
}

/* ---- Starting and stopping ------------------------------------------------------------ */

/* No packets move meanwhile, nor while the device is stopped. */
static void set_started(struct port_private *self, bool started)
{
	rte_spinlock_lock(self->guard);
	self->started = started;
	rte_spinlock_unlock(self->guard);
}

static int start(struct port *port)
{
	struct port_private *self = port_private(port);
	int error = self->driver->start ? self->driver->start(port) : rte_eth_dev_start(port->id);

	set_started(self, !error);
	return error < 0 ? error : 0;
}

static void stop(struct port *port)
{
	struct port_private *self = port_private(port);

	if (!self->started)
		return;
	set_started(self, false);
	rte_eth_dev_stop(port->id);
}

int port_restart(struct port *port)
{
	struct eal_pipes pipes;
	int error;

	eal_pipes_ignore(&pipes);
	stop(port);
	error = start(port);
	eal_pipes_restore(&pipes);
	return error;
}

static bool ask_link(struct port *port)
{
	struct port_private *self = port_private(port);
	struct rte_eth_link link = {0};

	if (self->driver->watch)
		return self->driver->watch(port);
	if (rte_eth_link_get_nowait(port->id, &link))
		return false;
	if (self->driver->speed && link.link_speed != RTE_ETH_SPEED_NUM_UNKNOWN)
		port->rate = (uint64_t)link.link_speed * 1000000 / 8;
	return link.link_status == RTE_ETH_LINK_UP;
}

static void fill_in(struct port_private *self, const struct port_wish *wish)
{
	struct port *port = &self->port;

	self->driver = wish->driver;
	self->engine = wish->engine;
	self->bus = wish->bus;
	rte_spinlock_init(&self->moving);
	self->guard = &self->moving;
	memcpy(self->name, wish->name, sizeof(self->name));
	memcpy(self->interface, wish->interface, sizeof(self->interface));
	port->self = self;
	port->queues = (uint16_t)wish->queues;
	port->ip = wish->ip;
	port->mask = wish->mask;
	port->gateway = wish->gateway;
	port->tag = (uint16_t)wish->config->vlan;
	port->payload =
		(uint16_t)RTE_MIN(wish->mtu - FRAME_IP_HEADERS, (uint32_t)PACKET_PAYLOAD_MOST);
	port->keeps = wish->driver->keeps;
	port->wire = wish->driver->wire;
}

static int open_device(struct port_private *self, struct port_wish *wish)
{
	struct eal_words words;
	int error = make_device(self, wish);

	if (!error)
		error = configure(self, wish);
	if (!error && wish->driver->opened)
		error = wish->driver->opened(&self->port, wish);
	if (!error)
		error = setup_queues(self, wish);
	if (error)
		return error;
	eal_hear(&words);
	error = start(&self->port);
	eal_heard();
	if (error)
		return failed(wish, error, "the driver did not start", &words);
	self->port.link_up = ask_link(&self->port);
	return 0;
}

/* Of a port that may be half open, with EAL's lock held. */
static void close_now(struct port_private *self)
{
	struct port *port = &self->port;

	if (self->made) {
		if (self->driver->stop)
			self->driver->stop(port);
		else
			stop(port);
		remove_device(self);
	}
	if (self->driver->closed)
		self->driver->closed(port);
	pool_free(self->arriving);
	pool_free(self->leaving);
	pool_free(self->pieces);
	free(self);
}

static int open_now(struct haul_context *engine, const struct dpdk_config *config,
		    struct port **port)
{
	struct port_private *self;
	struct port_wish wish;
	int error = wish_read(engine, config, &wish);

	if (error)
		return error;
	self = calloc(1, sizeof(*self));
	if (!self)
		return haul_fail(engine, -ENOMEM, "no memory for the port");
	fill_in(self, &wish);
	error = eal_start(engine, config, wish.driver->memory == DRIVER_EAL ? config->memory : 0);
	if (!error)
		error = open_device(self, &wish);
	if (error)
		close_now(self);
	else
		*port = &self->port;
	return error;
}

/* Drivers finish what they have begun in a thread of DPDK's. When the other end is there, what
 * follows finds the link up. */
static void await_link(struct port *port)
{
	const struct timespec pause = {.tv_nsec = LINK_PATIENCE_MS * 1000 * 1000 / 100};

	for (unsigned i = 0; i < 100 && !ask_link(port); i++)
		nanosleep(&pause, NULL);
	port->link_up = ask_link(port);
}

int port_open(struct haul_context *engine, const struct dpdk_config *config, struct port **port)
{
	int error;

	eal_lock();
	error = open_now(engine, config, port);
	eal_unlock();
	if (!error)
		await_link(*port);
	return error;
}

void port_close(struct port *port)
{
	eal_lock();
	close_now(port_private(port));
	eal_unlock();
}

static void close_if_owned(void *user, int fd)
{
	struct port *port = user;

	if (port_private(port)->driver->owns(port, fd))
		close(fd);
}

void port_close_in_child(struct port *port)
{
	if (port_private(port)->driver->owns)
		each_descriptor(close_if_owned, port);
}

bool port_watch(struct port *port, uint64_t now)
{
	struct port_private *self = port_private(port);
	bool up;

	if (now - self->watched_at < WATCH_NS)
		return false;
	self->watched_at = now;
	up = ask_link(port);
	if (up == port->link_up)
		return false;
	port->link_up = up;
	return true;
}

void port_counts(const struct port *port, struct port_counts *counts)
{
	struct rte_eth_stats stats;

	*counts = (struct port_counts){0};
	if (rte_eth_stats_get(port->id, &stats))
		return;
	counts->received = stats.ipackets;
	counts->sent = stats.opackets;
	counts->missed = stats.imissed + stats.rx_nombuf;
	if (port_private(port)->driver->missed)
		counts->missed += port_private(port)->driver->missed(port);
	counts->errors = stats.ierrors + stats.oerrors;
}
