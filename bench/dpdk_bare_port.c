/* SPDX-License-Identifier: Apache-2.0 */
/* dpdk-bare's port: DPDK's start, memory, and short frames. */
#include "dpdk_bare.h"

#include <errno.h>
#include <limits.h>
#include <rte_eal.h>
#include <rte_errno.h>
#include <rte_ethdev.h>
#include <rte_malloc.h>
#include <sched.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <time.h>
#include <unistd.h>

#define POOL_FRAMES 4095
#define POOL_CACHE 256
#define DESCRIPTORS 1024
#define EAL_WORDS 40
#define LINK_SECONDS 20
#define PEER_SECONDS 10
#define GONE_MS 300

static _Noreturn void give_up(const char *what, int error)
{
	bench_complain("%s: %s", what, rte_strerror(error < 0 ? -error : error));
	exit(EXIT_FAILED);
}

/* ---- Start ------------------------------------------------------------- */

/* One lcore that runs wherever this process may: DPDK would bind it to the first processor. */
static char *lcores_text(const cpu_set_t *processors)
{
	static char text[4096];
	size_t used = (size_t)snprintf(text, sizeof(text), "--lcores=0@(");
	bool first = true;

	for (int i = 0; i < CPU_SETSIZE && used < sizeof(text) - 16; i++) {
		if (!CPU_ISSET(i, processors))
			continue;
		used += (size_t)snprintf(text + used, sizeof(text) - used, "%s%d", first ? "" : ",",
					 i);
		first = false;
	}
	snprintf(text + used, sizeof(text) - used, ")");
	return text;
}

static void start_eal(const struct bare_options *options, const char *program)
{
	char *words[EAL_WORDS] = {(char *)program, "--no-pci", "--no-telemetry", "--iova-mode=va",
				  "--no-shconf"};
	int count = 5;
	char prefix[64], memory[32], *vdev, *more, *state = NULL;
	cpu_set_t processors;

	sched_getaffinity(0, sizeof(processors), &processors);
	snprintf(prefix, sizeof(prefix), "--file-prefix=bare-%d", (int)getpid());
	snprintf(memory, sizeof(memory), "%u",
		 256 + (options->own_memory ? (unsigned)(options->memory >> 20) + 32 : 0));
	words[count++] = prefix;
	words[count++] = lcores_text(&processors);
	if (options->hugepages) {
		words[count++] = "--in-memory";
		words[count++] = "--single-file-segments";
	} else {
		words[count++] = "--no-huge";
		words[count++] = "-m";
		words[count++] = memory;
	}
	if (asprintf(&vdev, "--vdev=%s", options->port) < 0)
		give_up("memory", ENOMEM);
	words[count++] = vdev;
	more = strdup(options->eal ? options->eal : "");
	for (char *word = strtok_r(more, " ", &state); word && count < EAL_WORDS - 1;
	     word = strtok_r(NULL, " ", &state))
		words[count++] = word;
	if (rte_eal_init(count, words) < 0)
		give_up("rte_eal_init", rte_errno);
	sched_setaffinity(0, sizeof(processors), &processors);
}

static struct rte_mempool *make_pool(const char *name, uint16_t room)
{
	struct rte_mempool *pool =
		rte_pktmbuf_pool_create(name, POOL_FRAMES, POOL_CACHE, 0, room, SOCKET_ID_ANY);

	if (!pool)
		give_up(name, rte_errno);
	return pool;
}

static void start_port(struct bare *bare)
{
	struct rte_eth_conf conf = {0};
	struct rte_eth_dev_info info;
	uint16_t receive = DESCRIPTORS, send = DESCRIPTORS;
	int error;

	if (rte_eth_dev_count_avail() != 1)
		give_up(bare->options.port, ENODEV);
	bare->id = rte_eth_find_next(0);
	rte_eth_dev_info_get(bare->id, &info);
	conf.txmode.offloads = info.tx_offload_capa & RTE_ETH_TX_OFFLOAD_MULTI_SEGS;
	error = rte_eth_dev_configure(bare->id, 1, 1, &conf);
	if (error)
		give_up("rte_eth_dev_configure", error);
	rte_eth_dev_adjust_nb_rx_tx_desc(bare->id, &receive, &send);
	error = rte_eth_rx_queue_setup(bare->id, 0, receive, SOCKET_ID_ANY, NULL, bare->frames);
	if (!error)
		error = rte_eth_tx_queue_setup(bare->id, 0, send, SOCKET_ID_ANY, NULL);
	if (!error)
		error = rte_eth_dev_start(bare->id);
	if (error)
		give_up("rte_eth_dev_start", error);
	rte_eth_macaddr_get(bare->id, &bare->mac);
}

static uint8_t *make_memory(const struct bare_options *options)
{
	void *memory;

	if (options->own_memory) {
		memory = rte_malloc("memory", options->memory, 4096);
	} else {
		memory = mmap(NULL, options->memory, PROT_READ | PROT_WRITE,
			      MAP_PRIVATE | MAP_ANONYMOUS | MAP_POPULATE, -1, 0);
		memory = memory == MAP_FAILED ? NULL : memory;
	}
	if (!memory)
		give_up("--memory", ENOMEM);
	return memory;
}

static volatile sig_atomic_t ended;

static void on_signal(int number)
{
	ended = 1;
}

void bare_open(struct bare *bare, const char *program)
{
	struct sigaction action = {.sa_handler = on_signal};

	start_eal(&bare->options, program);
	bare->heads = make_pool("heads", RTE_PKTMBUF_HEADROOM + BARE_FRONT);
	bare->externals = make_pool("externals", 0);
	bare->frames = make_pool("frames", (uint16_t)(RTE_PKTMBUF_HEADROOM + 9216));
	bare->memory = make_memory(&bare->options);
	start_port(bare);
	sigaction(SIGTERM, &action, NULL);
	sigaction(SIGINT, &action, NULL);
	/* Of virtio_user, when the other side is gone. */
	signal(SIGPIPE, SIG_IGN);
	bare->heard_at = bench_now();
}

void bare_close(struct bare *bare)
{
	char folder[PATH_MAX];

	rte_eth_dev_stop(bare->id);
	rte_eth_dev_close(bare->id);
	if (bare->options.own_memory)
		rte_free(bare->memory);
	else
		munmap(bare->memory, bare->options.memory);
	snprintf(folder, sizeof(folder), "%s", rte_eal_get_runtime_dir());
	rte_eal_cleanup();
	rmdir(folder); /* which DPDK leaves behind, empty */
}

void bare_wait_link(struct bare *bare)
{
	struct timespec pause = {.tv_nsec = 1000000};
	uint64_t until = bench_now() + LINK_SECONDS * NS_PER_S;
	struct rte_eth_link link = {0};

	while (!ended && bench_now() < until) {
		if (!rte_eth_link_get_nowait(bare->id, &link) && link.link_status)
			break;
		nanosleep(&pause, NULL);
	}
	if (!link.link_status)
		give_up("the port's link stays down", ETIMEDOUT);
	bare->heard_at = bench_now();
}

void bare_wait_gone(struct bare *bare)
{
	struct timespec pause = {.tv_nsec = 1000000};
	struct rte_eth_link link = {.link_status = 1};

	for (int i = 0; i < GONE_MS && !ended && link.link_status; i++) {
		nanosleep(&pause, NULL);
		rte_eth_link_get_nowait(bare->id, &link);
	}
}

/* ---- Frames ------------------------------------------------------------ */

/* A bridge looks at IPv4's lengths and checksum, and drops what is wrong. */
void bare_set_length(uint8_t *front, uint32_t frame)
{
	uint16_t ip_length = (uint16_t)(frame - 14), udp_length = (uint16_t)(ip_length - 20);
	uint32_t sum = 0;

	front[16] = (uint8_t)(ip_length >> 8);
	front[17] = (uint8_t)ip_length;
	front[38] = (uint8_t)(udp_length >> 8);
	front[39] = (uint8_t)udp_length;
	front[24] = front[25] = 0;
	for (unsigned i = 14; i < 34; i += 2)
		sum += (uint32_t)front[i] << 8 | front[i + 1];
	sum = (sum & 0xffff) + (sum >> 16);
	sum = ~((sum & 0xffff) + (sum >> 16));
	front[24] = (uint8_t)(sum >> 8);
	front[25] = (uint8_t)sum;
}

void bare_address(struct bare *bare, const struct rte_ether_addr *to)
{
	/* IPv4 from 198.18.255.1 to 198.18.255.2, not fragmented, UDP without a checksum. */
	static const uint8_t rest[BARE_HEADERS - 12] = {
		0x08, 0x00, 0x45, 0x00, 0,  0,   0, 0,    0x40, 0x00, 64,   17, 0, 0, 198,
		18,   255,  1,    198,  18, 255, 2, 0x1c, 0xf4, 0x1c, 0xf4, 0,  0, 0, 0};

	bare->peer = *to;
	memcpy(bare->front, to, 6);
	memcpy(bare->front + 6, &bare->mac, 6);
	memcpy(bare->front + 12, rest, sizeof(rest));
	bare_set_length(bare->front, bare->options.frame);
}

void bare_say(struct bare *bare, enum bare_kind kind, uint64_t number, uint64_t offset)
{
	struct rte_mbuf *frame = rte_pktmbuf_alloc(bare->frames);
	struct bare_head head = {.magic = BARE_MAGIC,
				 .kind = kind,
				 .number = number,
				 .offset = offset,
				 .frame = bare->options.frame};
	uint8_t *bytes;

	if (!frame)
		return;
	bytes = (uint8_t *)rte_pktmbuf_append(frame, BARE_FRONT);
	memcpy(bytes, bare->front, BARE_HEADERS);
	bare_set_length(bytes, BARE_FRONT);
	memcpy(bytes + BARE_HEADERS, &head, sizeof(head));
	if (rte_eth_tx_burst(bare->id, 0, &frame, 1) != 1)
		rte_pktmbuf_free(frame);
}

struct bare_head *bare_head_of(struct rte_mbuf *frame)
{
	struct bare_head *head = rte_pktmbuf_mtod_offset(frame, struct bare_head *, BARE_HEADERS);

	return frame->data_len >= BARE_FRONT && head->magic == BARE_MAGIC ? head : NULL;
}

uint64_t bare_cpu_ns(void)
{
	struct timespec used;

	clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &used);
	return (uint64_t)used.tv_sec * NS_PER_S + (uint64_t)used.tv_nsec;
}

void bare_check_peer(const struct bare *bare, uint64_t now)
{
	if (ended)
		exit(EXIT_FAILED);
	if (now > bare->heard_at + PEER_SECONDS * NS_PER_S)
		give_up("the other side does not answer", ETIMEDOUT);
}

/* ---- Memory ------------------------------------------------------------ */

#define PATTERN UINT64_C(0x9e3779b97f4a7c15)

void bare_fill(uint8_t *memory, uint64_t bytes)
{
	for (uint64_t i = 0; i < bytes / 8; i++)
		((uint64_t *)memory)[i] = i * PATTERN;
}

bool bare_is_filled(const uint8_t *memory, uint64_t bytes)
{
	for (uint64_t i = 0; i < bytes / 8; i++) {
		uint64_t word = ((const uint64_t *)memory)[i];

		/* What was lost each time is still 0. */
		if (word && word != i * PATTERN)
			return false;
	}
	return true;
}
