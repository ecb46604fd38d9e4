/* SPDX-License-Identifier: Apache-2.0 */
/* Bitmaps by packet number: rings of 64-bit words, whose size is a power of two. */
#ifndef TENSORHAUL_DPDK_BITS_H
#define TENSORHAUL_DPDK_BITS_H

#include <stdint.h>

/* The last number that shares a word with `number`, but no more than `last`. */
static inline uint64_t bits_end(uint64_t number, uint64_t last)
{
	uint64_t end = number | 63;

	return end < last ? end : last;
}

/* The bits of first..last, which are in one word. */
static inline uint64_t bits_mask(uint64_t first, uint64_t last)
{
	return (~UINT64_C(0) << (first & 63)) & (~UINT64_C(0) >> (63 - (last & 63)));
}

/* The word that holds `number`, of a bitmap of `room` bits. */
static inline uint64_t *bits_word(uint64_t *bits, uint32_t room, uint64_t number)
{
	return &bits[(number & (room - 1)) / 64];
}

#endif
