/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What dpdk-bare's parts share: one port with nothing above it, and the frames that its two sides
 * exchange.
 *
 * Each frame has Ethernet, IPv4 and UDP headers (nobody reads them but what is between the two
 * ports) and 32 bytes that say what it is; numbers in host byte order, both sides are on one
 * machine or of one kind.
 */
#ifndef BENCH_DPDK_BARE_H
#define BENCH_DPDK_BARE_H

#include <rte_ether.h>
#include <rte_mbuf.h>
#include <stdbool.h>
#include <stdint.h>

/* DPDK has one of this name, too, which is an int. */
#undef NS_PER_S
#include "bench_common.h"
#include "histogram.h"

#define BARE_HEADERS 42 /* Ethernet, IPv4, UDP */
#define BARE_BURST 64
#define BARE_MEMORY_LEAST (1u << 20)

enum bare_kind {
	BARE_HELLO = 1, /* from the sender, to all, until the receiver answers */
	BARE_HERE,      /* the answer */
	BARE_DATA,      /* number: from 0; offset: of the payload in memory */
	BARE_CREDIT,    /* number: frames that came; offset: one more than the highest number */
	BARE_BEGIN,     /* what is measured begins; answered by BARE_BEGUN */
	BARE_BEGUN,
	BARE_END, /* ... and ends; answered by BARE_ENDED, number: CPU time in ns, offset: frames
		     that came in between */
	BARE_ENDED,
	BARE_PING,
	BARE_PONG,
	BARE_BYE,
	BARE_GONE,
};

struct bare_head {
	uint32_t magic;
	uint32_t kind; /* enum bare_kind */
	uint64_t number, offset;
	uint32_t length; /* of the payload */
	uint32_t frame;  /* HELLO: bytes of the frames that will come */
};

#define BARE_MAGIC 0x65726162
#define BARE_FRONT (BARE_HEADERS + sizeof(struct bare_head))

struct bare_options {
	const char *port, *eal;
	bool hugepages, own_memory; /* own_memory: of DPDK's, where a driver wants that */
	uint32_t frame, window, burst;
	uint64_t memory;
	double seconds, warmup;
};

struct bare {
	struct bare_options options;
	uint16_t id;
	struct rte_mempool *heads, *externals, *frames;
	struct rte_ether_addr mac, peer;
	uint8_t *memory;
	uint8_t front[BARE_FRONT]; /* of a frame to the peer */
	uint64_t heard_at;         /* when the peer was heard last */
};

/* Starts DPDK and the port; ends the program with a message when it can't. */
void bare_open(struct bare *bare, const char *program);
void bare_close(struct bare *bare);
/* The link is up, or the program ends. */
void bare_wait_link(struct bare *bare);
/*
 * The other side has closed its port, or a while has passed. DPDK's memif takes the memory that two
 * processes share away as soon as one of them closes, even while the other one looks into it.
 */
void bare_wait_gone(struct bare *bare);

/* The bytes of the whole frame. */
void bare_set_length(uint8_t *front, uint32_t frame);
/* Where to: fills in bare->front for data. */
void bare_address(struct bare *bare, const struct rte_ether_addr *to);
/* A short frame of one piece, which is sent before this returns. */
void bare_say(struct bare *bare, enum bare_kind kind, uint64_t number, uint64_t offset);
/* NULL when the frame is none of ours. */
struct bare_head *bare_head_of(struct rte_mbuf *frame);
uint64_t bare_cpu_ns(void);
/* Fails when the peer was not heard for 10 s; `bare_ended` is set by SIGTERM and SIGINT. */
void bare_check_peer(const struct bare *bare, uint64_t now);

struct bare_result {
	uint64_t frames, lost; /* frames that arrived; that were sent and did not */
	double seconds;
	double sender_cpu_s, receiver_cpu_s;
	struct histogram times; /* of pings, in ns */
};

/* The sender's side: talks to a receiver. */
void bare_send(struct bare *bare, struct bare_result *result);
void bare_ping(struct bare *bare, struct bare_result *result);
/* The receiver's: until the sender says goodbye. Whether all that came was right. */
bool bare_receive(struct bare *bare);

/* The bytes of memory tell where they are: offset / 8, times an odd number. */
void bare_fill(uint8_t *memory, uint64_t bytes);
bool bare_is_filled(const uint8_t *memory, uint64_t bytes);

#endif
