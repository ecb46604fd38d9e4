/* SPDX-License-Identifier: Apache-2.0 */
/* Whether the layer works in this process, how it was set, what it counts and says. */
#ifndef TENSORHAUL_DROPIN_LAYER_H
#define TENSORHAUL_DROPIN_LAYER_H

#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "options.h"

/*
 * Whether large messages may go aside: TENSORHAUL_GRPC is set, right and for this libgrpc. The
 * first call reads it; what is wrong is told in one line, or with strict=yes ends the process.
 */
bool layer_on(void);

/*
 * Whether it ever did: what it began has to be brought to an end after it was turned off. False in
 * a forked child, where the locks may be held by threads that are not there.
 */
bool layer_used(void);

/* From now on the program is a plain gRPC program. `why` is one line; strict=yes ends the process.
 */
void layer_fail(const char *format, ...) __attribute__((format(printf, 1, 2)));

const struct layer_settings *layer_settings(void);

void layer_log(enum layer_log level, const char *format, ...) __attribute__((format(printf, 2, 3)));

/* Bytes and messages, by the way that they took; why some did not go aside. */
struct layer_counters {
	_Atomic uint64_t sent_aside, sent_aside_bytes;
	_Atomic uint64_t copied_bytes; /* of these, gathered from many slices first */
	_Atomic uint64_t received_aside, received_aside_bytes;
	_Atomic uint64_t sent_inline; /* of threshold and above, on calls that could have */
	_Atomic uint64_t failed;      /* calls that a broken side path ended */
	/* What there is now, so that nothing may be left in the end. */
	_Atomic uint64_t calls, transfers;
	_Atomic uint64_t buffers; /* of the pool, that are not free */
};

extern struct layer_counters layer_counters;

static inline void layer_count(_Atomic uint64_t *counter, uint64_t number)
{
	atomic_fetch_add_explicit(counter, number, memory_order_relaxed);
}

/* An unguessable name, of a process, a session or a secret. */
#define LAYER_ID_BYTES 16
struct layer_id {
	uint8_t bytes[LAYER_ID_BYTES];
};

bool layer_id_equal(const struct layer_id *one, const struct layer_id *other);

#endif
