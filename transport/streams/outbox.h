/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Bytes that wait to leave, in order, and the records that the control messages of tcp and grpc
 * are made of:
 *
 *    0 u32 length of what follows the 8 bytes   4 u8 type   5 u8 reserved   6 u16 header length
 *
 * All zero is an empty one.
 */
#ifndef TENSORHAUL_STREAMS_OUTBOX_H
#define TENSORHAUL_STREAMS_OUTBOX_H

#include <stddef.h>
#include <stdint.h>

#include "backend.h"

#define RECORD_SIZE 8
#define SMALL_SIZE 16 /* slot and offset of a small tensor's record */

struct haul_outbox {
	uint8_t *bytes;
	size_t start, end, room; /* what waits is [start, end) */
};

static inline size_t haul_outbox_waiting(const struct haul_outbox *box)
{
	return box->end - box->start;
}

/* Room for `length` more bytes in one piece, valid until the next call; NULL without memory. */
uint8_t *haul_outbox_append(struct haul_outbox *box, size_t length);

/* The head of a record; its `length` bytes follow at the returned address. NULL without memory. */
uint8_t *haul_outbox_record(struct haul_outbox *box, unsigned type, size_t header, size_t length);

/* A record with a small tensor: u64 slot, u64 offset, the push's header, its bytes. 0 or -ENOMEM.
 */
int haul_outbox_small(struct haul_outbox *box, unsigned type, const struct haul_push *push);

/* The first `count` of the bytes that wait have left. An empty outbox that was large gives back. */
void haul_outbox_drop(struct haul_outbox *box, size_t count);

void haul_outbox_free(struct haul_outbox *box);

#endif
