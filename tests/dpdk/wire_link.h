/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What happens to frames on their way to one port of the wire: it loses, doubles, mixes up, cuts
 * short and damages them, holds them back for a while, and is as slow as it is told to be.
 *
 * Times are ns, chances in percent for each frame, independent of each other.
 */
#ifndef TESTS_DPDK_WIRE_LINK_H
#define TESTS_DPDK_WIRE_LINK_H

#include "memif_server.h"

enum corruption {
	CORRUPT_BITS,  /* 1 to 3 bits within 15 neighbours: any checksum tells */
	CORRUPT_BYTES, /* 1 to 8 bytes anywhere: one of 65536 gets past a sum of 16 bits */
};

struct faults {
	double loss, duplicate, reorder, truncate, corrupt;
	uint64_t reorder_by;   /* frames that may overtake one, at most */
	uint64_t corrupt_kind; /* enum corruption */
	uint64_t corrupt_from; /* the first byte that may be damaged */
	uint64_t delay_us;
	uint64_t rate;  /* Mb/s, counted as Ethernet does; 0: no limit */
	uint64_t queue; /* bytes that wait for a link with a rate, and no more */
	uint64_t ecn;   /* bytes that wait from which on frames are marked; 0: never */
	uint64_t cut;
};

struct counts {
	uint64_t frames, bytes; /* came from clients */
	uint64_t sent;          /* given to clients */
	uint64_t lost, duplicated, reordered, truncated, corrupted, marked;
	uint64_t cut_off, queue_full; /* dropped by the wire */
	uint64_t client_full;         /* dropped: the client did not take what was sent before */
	uint64_t flooded, bad;        /* sent to all; nothing that can be a frame */
};

struct held;

struct link {
	struct memif_port *port;
	struct held *first, **last; /* in the order of their due times */
	struct held *overtaken;     /* wait for others to pass */
	uint64_t free_at;           /* when all that has entered will have left */
};

struct wire {
	struct faults faults;
	struct counts counts;
	uint64_t random;
	uint64_t held_bytes; /* on all links */
};

void link_start(struct link *link, struct memif_port *port);
/* Forget what is under way. */
void link_clear(struct wire *wire, struct link *link);
/* A frame enters the link. `hash` is of its addresses and ports. */
void link_enter(struct wire *wire, struct link *link, const struct view *frame, uint32_t hash,
		uint64_t now);
/* Let out what is due. Gives when something will be next; UINT64_MAX: never. */
uint64_t link_run(struct wire *wire, struct link *link, uint64_t now);

/* Copy a frame's first bytes, at most `room`; gives how many. */
size_t view_copy(const struct view *view, uint8_t *to, size_t room);

#endif
