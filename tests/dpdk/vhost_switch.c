/* SPDX-License-Identifier: Apache-2.0 */
/*
 * vhost-switch - a switch between virtual machines' network cards (vhost-user), for programs that
 * drive such a card without a machine around it (virtio_user).
 *
 *   vhost-switch FOLDER COUNT
 *
 * Cards connect to FOLDER/1.sock, FOLDER/2.sock, ... in any order, whenever they like. It prints
 * "ready" when they may come, and ends when its standard input does, or by SIGTERM. It forwards by
 * the addresses that it has learned, and to all when it knows none. The switch needs no hugepages;
 * its cards do.
 */
#include <fcntl.h>
#include <rte_eal.h>
#include <rte_ethdev.h>
#include <rte_mbuf.h>
#include <sched.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#define PORTS_MAX 31 /* Debian's DPDK knows 32 */
#define BURST 32
#define FRAMES 8191
#define FRAME_ROOM (9728 + RTE_PKTMBUF_HEADROOM)
#define ADDRESSES 1024 /* a power of two */
#define IDLE_ROUNDS 2000
#define NAP_NS 50000

static struct {
	unsigned count;
	uint16_t ports[PORTS_MAX];
	struct rte_mempool *frames;
	struct {
		struct rte_ether_addr mac;
		unsigned port; /* from 1; 0: free */
	} addresses[ADDRESSES];
} me;

static volatile sig_atomic_t ended;

static void on_signal(int number)
{
	(void)number;
	ended = 1;
}

/* ---- Start ------------------------------------------------------------- */

/* One lcore that may run on every processor: DPDK would bind it to the first. */
static void start_eal(const char *folder)
{
	char *words[12 + PORTS_MAX] = {"vhost-switch",
				       "--no-pci",
				       "--no-telemetry",
				       "--no-shconf",
				       "--no-huge",
				       "-m",
				       "160",
				       "--lcores=0",
				       "--iova-mode=va",
				       "--log-level=*:error"};
	int count = 10;
	cpu_set_t processors;

	sched_getaffinity(0, sizeof(processors), &processors);
	if (asprintf(&words[count++], "--file-prefix=vhost-switch-%d", (int)getpid()) < 0)
		exit(1);
	for (unsigned i = 1; i <= me.count; i++) {
		if (asprintf(&words[count++], "--vdev=net_vhost%u,iface=%s/%u.sock,queues=1", i,
			     folder, i) < 0)
			exit(1);
	}
	if (rte_eal_init(count, words) < 0)
		exit(1);
	sched_setaffinity(0, sizeof(processors), &processors);
}

static void start_port(unsigned index, uint16_t id)
{
	struct rte_eth_conf conf = {
		.txmode = {.offloads = RTE_ETH_TX_OFFLOAD_MULTI_SEGS},
	};

	me.ports[index] = id;
	if (rte_eth_dev_configure(id, 1, 1, &conf) ||
	    rte_eth_rx_queue_setup(id, 0, 1024, SOCKET_ID_ANY, NULL, me.frames) ||
	    rte_eth_tx_queue_setup(id, 0, 1024, SOCKET_ID_ANY, NULL) || rte_eth_dev_start(id)) {
		fprintf(stderr, "vhost-switch: port %u can't start\n", index + 1);
		exit(1);
	}
}

static void start(const char *folder)
{
	unsigned index = 0;
	uint16_t id;

	start_eal(folder);
	me.frames = rte_pktmbuf_pool_create("frames", FRAMES, 256, 0, FRAME_ROOM, SOCKET_ID_ANY);
	if (!me.frames || rte_eth_dev_count_avail() != me.count) {
		fprintf(stderr, "vhost-switch: no memory, or not all ports\n");
		exit(1);
	}
	RTE_ETH_FOREACH_DEV(id)
	start_port(index++, id);
}

/* ---- The switch -------------------------------------------------------- */

static unsigned address_place(const struct rte_ether_addr *mac)
{
	unsigned hash = 0;

	for (unsigned i = 0; i < sizeof(mac->addr_bytes); i++)
		hash = hash * 31 + mac->addr_bytes[i];
	while (me.addresses[hash % ADDRESSES].port &&
	       !rte_is_same_ether_addr(&me.addresses[hash % ADDRESSES].mac, mac))
		hash++;
	return hash % ADDRESSES;
}

static void address_learn(const struct rte_ether_addr *mac, unsigned port)
{
	static unsigned used;
	unsigned place = address_place(mac);

	if (!me.addresses[place].port && ++used > ADDRESSES / 2) {
		memset(me.addresses, 0, sizeof(me.addresses));
		used = 1;
		place = address_place(mac);
	}
	me.addresses[place].mac = *mac;
	me.addresses[place].port = port;
}

/* Takes the frame. */
static void send_to(unsigned port, struct rte_mbuf *frame)
{
	if (rte_eth_tx_burst(me.ports[port - 1], 0, &frame, 1) != 1)
		rte_pktmbuf_free(frame);
}

/* Each gets a copy: the driver writes into what it sends. */
static void flood(unsigned from, struct rte_mbuf *frame)
{
	for (unsigned to = 1; to <= me.count; to++) {
		struct rte_mbuf *copy;

		if (to == from)
			continue;
		copy = rte_pktmbuf_copy(frame, me.frames, 0, UINT32_MAX);
		if (copy)
			send_to(to, copy);
	}
	rte_pktmbuf_free(frame);
}

static void forward(unsigned from, struct rte_mbuf *frame)
{
	const struct rte_ether_hdr *head = rte_pktmbuf_mtod(frame, struct rte_ether_hdr *);
	unsigned to;

	if (frame->data_len < sizeof(*head)) {
		rte_pktmbuf_free(frame);
		return;
	}
	if (rte_is_unicast_ether_addr(&head->src_addr))
		address_learn(&head->src_addr, from);
	to = me.addresses[address_place(&head->dst_addr)].port;
	if (to == from)
		rte_pktmbuf_free(frame);
	else if (to)
		send_to(to, frame);
	else
		flood(from, frame);
}

static unsigned look_around(void)
{
	struct rte_mbuf *frames[BURST];
	unsigned taken = 0;

	for (unsigned port = 1; port <= me.count; port++) {
		unsigned count = rte_eth_rx_burst(me.ports[port - 1], 0, frames, BURST);

		for (unsigned i = 0; i < count; i++)
			forward(port, frames[i]);
		taken += count;
	}
	return taken;
}

static void run(void)
{
	struct timespec nap = {.tv_nsec = NAP_NS};
	unsigned idle = 0;
	char byte;

	while (!ended) {
		idle = look_around() ? 0 : idle + 1;
		if (idle < IDLE_ROUNDS)
			continue;
		if (read(STDIN_FILENO, &byte, 1) == 0)
			ended = 1;
		nanosleep(&nap, NULL);
	}
}

static void stop(void)
{
	char folder[4096];

	for (unsigned i = 0; i < me.count; i++) {
		rte_eth_dev_stop(me.ports[i]);
		rte_eth_dev_close(me.ports[i]);
	}
	snprintf(folder, sizeof(folder), "%s", rte_eal_get_runtime_dir());
	rte_eal_cleanup();
	rmdir(folder); /* which DPDK leaves behind, empty */
}

int main(int count, char **arguments)
{
	struct sigaction action = {.sa_handler = on_signal};

	me.count = count == 3 ? (unsigned)atoi(arguments[2]) : 0;
	if (me.count < 1 || me.count > PORTS_MAX) {
		fprintf(stderr, "usage: vhost-switch FOLDER COUNT (up to %d)\n", PORTS_MAX);
		return 2;
	}
	sigaction(SIGTERM, &action, NULL);
	sigaction(SIGINT, &action, NULL);
	signal(SIGPIPE, SIG_IGN);
	fcntl(STDIN_FILENO, F_SETFL, fcntl(STDIN_FILENO, F_GETFL) | O_NONBLOCK);
	start(arguments[1]);
	puts("ready");
	fflush(stdout);
	run();
	stop();
	return 0;
}
