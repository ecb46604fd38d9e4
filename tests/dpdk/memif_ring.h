/* SPDX-License-Identifier: Apache-2.0 */
/* The memory that memif's sides share, byte by byte. */
#ifndef TESTS_DPDK_MEMIF_RING_H
#define TESTS_DPDK_MEMIF_RING_H

#include "memif_server.h"

#define MEMIF_COOKIE 0x3E31F20
#define MEMIF_LOG2_RING 14
#define MEMIF_MASKED 1 /* ring: don't wake the side that takes */
#define MEMIF_NEXT 1   /* descriptor: the frame goes on in the next one */

struct memif_descriptor {
	uint16_t flags, region;
	uint32_t length, offset, metadata;
} __attribute__((packed));

struct memif_ring {
	uint32_t cookie;
	volatile uint16_t flags;
	volatile uint16_t head;
	uint8_t pad[56];
	volatile uint16_t tail;
	uint8_t pad_tail[62];
	struct memif_descriptor descriptors[];
};

_Static_assert(sizeof(struct memif_ring) == 128, "head and tail have a cache line each");

/* The client's memory there, or NULL when it has none. */
void *memif_memory(const struct memif_port *port, unsigned region, uint64_t offset, uint64_t size);

#endif
