/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Large pushes of one link, cut into chunks for backends that send them over several streams.
 * Shared by tcp and grpc.
 *
 * Order. The oldest tensor and the smallest take turns: a large one never holds up a small one,
 * many small ones never hold up a large one, and tensors of one size end one after the other
 * instead of all at once, so that there is always something left to fill the path with.
 *
 * Size. Chunks are large at first, which costs least, and smaller towards the end of a tensor,
 * so that all streams end at about the same time (guided self-scheduling, Polychronopoulos and
 * Kuck, 1987).
 *
 * Threads: all under the context's lock, but for haul_transfer_use() and haul_transfer_release(),
 * which any thread may call.
 */
#ifndef TENSORHAUL_STREAMS_CHUNKS_H
#define TENSORHAUL_STREAMS_CHUNKS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/queue.h>

#include "backend.h"

/* A push's size in bytes, by its highest bit. */
#define HAUL_SIZE_CLASSES 64

/*
 * A push that is cut into chunks. A backend's own struct begins with it, comes from calloc(), and
 * is freed with its last user.
 */
struct haul_transfer {
	TAILQ_ENTRY(haul_transfer) waiting_entry; /* in chunks->waiting */
	TAILQ_ENTRY(haul_transfer) size_entry;    /* ... and in chunks->by_size */
	TAILQ_ENTRY(haul_transfer) entry;         /* in chunks->transfers */
	struct haul_push *push; /* NULL: ended; its chunks are not needed any more */
	uint64_t next;          /* the first byte that was never given out */
	unsigned users;         /* whoever names it: chunks, and the push itself */
	unsigned class;         /* of its size: the index into chunks->by_size */
	bool waiting;           /* has bytes to give out */
};

struct haul_chunk {
	struct haul_transfer *transfer; /* a user of it */
	uint64_t offset;                /* of the first byte within the push */
	uint32_t length;                /* at least 1 */
};

TAILQ_HEAD(haul_transfers, haul_transfer);

struct haul_chunks {
	struct haul_transfers transfers; /* all, until haul_chunks_end() */
	struct haul_transfers waiting;   /* with bytes to give out, oldest first */
	/* The same by size, within a class oldest first. */
	struct haul_transfers by_size[HAUL_SIZE_CLASSES];
	uint64_t classes;            /* which of these are not empty, a bit each */
	bool smallest_turn;          /* the next chunk is the smallest tensor's */
	struct haul_chunk *returned; /* chunks of broken streams, to be sent first */
	size_t returned_count, returned_room;
	uint64_t again; /* how many of these were given out */
};

void haul_chunks_init(struct haul_chunks *chunks);

/* Nothing is given out of it any more. The caller has ended all transfers. */
void haul_chunks_free(struct haul_chunks *chunks);

/* The transfer of a push of at least one byte; the push is its first user. */
void haul_chunks_add(struct haul_chunks *chunks, struct haul_transfer *transfer,
		     struct haul_push *push);

/* No further chunk of it, though chunks that are under way may still be returned. */
void haul_chunks_withdraw(struct haul_chunks *chunks, struct haul_transfer *transfer);

/* The push is over, and its use of the transfer. What comes back of it is forgotten. */
void haul_chunks_end(struct haul_chunks *chunks, struct haul_transfer *transfer);

/* Whether haul_chunks_next() has one. */
bool haul_chunks_pending(const struct haul_chunks *chunks);

/*
 * The next chunk for any of `streams` streams, at most `longest` bytes long. False: none. The
 * chunk is a user of its transfer until haul_transfer_release() or haul_chunks_return().
 */
bool haul_chunks_next(struct haul_chunks *chunks, uint64_t longest, unsigned streams,
		      struct haul_chunk *chunk);

/* It did not arrive. 0 or -ENOMEM: it is lost, and the link with it. */
int haul_chunks_return(struct haul_chunks *chunks, const struct haul_chunk *chunk);

void haul_transfer_use(struct haul_transfer *transfer);
void haul_transfer_release(struct haul_transfer *transfer);

#endif
