/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What is in the tensors: noise that differs from buffer to buffer, and with verification a
 * stamp in every 64 bytes that differs from tensor to tensor, so that bytes of an earlier
 * tensor that stayed in place are found out.
 */
#ifndef BENCH_CONTENT_H
#define BENCH_CONTENT_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* The tensor that goes with each verified one. */
struct companion {
	uint64_t sequence;
	uint64_t hash;
};

void content_fill(void *bytes, size_t length, uint64_t seed);
/* Make the content that of tensor `sequence` and describe it. */
void content_stamp(void *bytes, size_t length, uint64_t seed, uint64_t sequence,
		   struct companion *companion);
bool content_is(const void *bytes, size_t length, uint64_t sequence,
		const struct companion *companion);

#endif
