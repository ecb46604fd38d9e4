/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What was sent, what arrived, and what must be sent again: loss detection and round-trip times in
 * the manner of RFC 9002 (QUIC), and what a receiver remembers for its acknowledgements.
 * Plain arithmetic: no clock, no DPDK. Times are ns.
 */
#ifndef TENSORHAUL_DPDK_RECOVERY_H
#define TENSORHAUL_DPDK_RECOVERY_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "congestion.h"
#include "packet.h"

/* ---- Round-trip times (RFC 9002, section 5) ---------------------------- */

struct rtt {
	uint64_t latest, smooth, variation, least;
	uint64_t least_next, least_at; /* for `least` to forget: a path can change */
	bool known;
};

/* One sample; `least` is the same packet's for the least, see recovery.c. */
void rtt_add(struct rtt *rtt, uint64_t sample, uint64_t least, uint64_t now);
/* The longer one of the latest and the smoothed; a guess when nothing is known. */
uint64_t rtt_or_default(const struct rtt *rtt);
/* How long to wait for an answer before asking again, after so many times that there was none. */
uint64_t rtt_probe(const struct rtt *rtt, uint64_t ack_delay, unsigned timeouts);

/* ---- The sender's side ------------------------------------------------- */

enum sent_state {
	SENT_NOTHING = 0,
	SENT_UNDER_WAY,
	SENT_ARRIVED,
	SENT_LOST, /* told to be lost; it may still arrive, which teaches patience */
};

/* One packet. */
struct sent {
	uint64_t number;
	uint64_t at;
	void *owner;     /* whose bytes it carries; the connection's business */
	uint64_t offset; /* of its first byte within the owner */
	uint64_t first;  /* the number under which its bytes were sent first; the connection's
			    business */
	uint32_t length; /* of its bytes */
	uint16_t size;   /* of the whole packet, for congestion control */
	uint8_t state;
	uint8_t kind; /* the connection's business */
	bool limited; /* nothing more was there to send */
};

struct recovery;

/* Called from within recovery_on_ack(), recovery_on_timer() and recovery_lose_all(), once for each
 * packet: it arrived, or it is taken for lost. `sent` is valid during the call. A packet that was
 * taken for lost and did arrive is told by `late`, as long as the ring remembers it; its owner may
 * be gone by then. What one acknowledgement tells comes in the order in which it was sent. None of
 * them may call into the recovery. */
struct recovery_ops {
	void (*arrived)(void *user, const struct sent *sent);
	void (*lost)(void *user, const struct sent *sent);
	void (*late)(void *user, const struct sent *sent);
};

/* The span of numbers from the oldest that is under way to the newest never gets longer. A power of
 * two. */
#define RECOVERY_SPAN 32768

struct recovery {
	const struct recovery_ops *ops;
	void *user;
	struct sent *ring;   /* of `room` entries, by number; grows, and shrinks when idle */
	uint64_t *open;      /* a bit for each entry that is under way or lost */
	uint32_t room;       /* a power of two, at least 64; or 0 */
	uint64_t next;       /* the next number to send; the first is 1 */
	uint64_t oldest;     /* no packet below is under way */
	uint64_t largest;    /* the largest that arrived */
	uint64_t in_flight;  /* bytes */
	uint32_t packets;    /* under way */
	uint64_t last_sent;  /* when a packet was sent last */
	uint64_t probed_at;  /* when the last probe timeout was */
	uint64_t busy_at;    /* when a good part of the ring was in use */
	uint64_t calm_at;    /* since when no packet was late, and no patience was taken back */
	uint64_t loss_at;    /* when the oldest will be taken for lost; 0: no such time */
	unsigned timeouts;   /* probe timeouts since something was acknowledged */
	unsigned reordering; /* packets that may overtake: 3 at first, more when that was wrong */
	unsigned patience;   /* the same in time: eighths of a round trip, 9 at first */
	uint64_t round_end;  /* the number that ends this round trip */
	uint64_t ack_delay;  /* the longest that the peer delays an acknowledgement */
	uint32_t marks;      /* that the peer told of */
	uint16_t clock;      /* the peer's, as told with the largest that arrived */
	struct rtt rtt;
	uint64_t packets_sent, packets_lost, packets_late; /* statistics */
};

void recovery_start(struct recovery *recovery, const struct recovery_ops *ops, void *user,
		    uint64_t ack_delay);
void recovery_stop(struct recovery *recovery);

/* A round trip that was measured otherwise: that of opening the connection. The first packets need
 * not fill the link to find out. */
void recovery_rtt(struct recovery *recovery, uint64_t rtt, uint64_t now);

/* Whether one more packet may be numbered: false when the span is used up or there is no memory,
 * and for ever when all numbers are used up. */
bool recovery_room(struct recovery *recovery);

/* A packet leaves at sent->at: keeps it as number `recovery->next` and counts it; `number` and
 * `state` are filled in. Only after recovery_room() said so. */
void recovery_sent(struct recovery *recovery, const struct sent *sent);

/*
 * An acknowledgement. Fills in `sample` for the congestion controller. -EPROTO when it names a
 * number that was never sent, else 0. `heard` is false when this side did not look for packets
 * for a while before `now`: then the time says nothing about the path.
 */
int recovery_on_ack(struct recovery *recovery, const struct packet_ack *ack, uint64_t now,
		    bool heard, struct congestion_sample *sample);

/* When recovery_on_timer() has to be called; UINT64_MAX: never. */
uint64_t recovery_deadline(const struct recovery *recovery);

enum recovery_timer {
	RECOVERY_NOTHING, /* it was not due */
	RECOVERY_LOSS,    /* packets were taken for lost; `sample` is filled in */
	RECOVERY_PROBE,   /* send one or two packets at once, whatever the window says; there is
			     room to number them, for which the oldest may have been lost:
			     `sample` is filled in, too */
};

/* To be called when the deadline is over, and all that has come in so far was looked at: an
 * acknowledgement may lie there. */
enum recovery_timer recovery_on_timer(struct recovery *recovery, uint64_t now,
				      struct congestion_sample *sample);

/* Take everything that is under way for lost (the port was down, say). */
void recovery_lose_all(struct recovery *recovery);

/* ---- The receiver's side ----------------------------------------------- */

/* A packet may come RECOVERY_SPAN numbers late, and name another one PACKET_BACK_MAX below. */
#define RECEIVED_SPAN 65536

/* So many acknowledgements tell of each packet at least, so that some may get lost. */
#define RECEIVED_TELL 8

struct received {
	uint64_t *bits;   /* RECEIVED_SPAN of them at most, by number; grows */
	uint32_t room;    /* bits there are: a power of two, at least 64; or 0 */
	uint64_t largest; /* 0: none yet */
	uint64_t largest_at;
	uint32_t pending; /* arrived since the last acknowledgement */
	uint32_t marks;   /* with "congestion experienced" */
	bool gap;         /* something is missing below `largest` that was not yet told */
	uint64_t lowest;  /* of those that arrived since the last acknowledgement */
	uint64_t told[RECEIVED_TELL]; /* the same of the last ones, to say it more than once */
	uint32_t acks;
};

void received_start(struct received *received);
void received_stop(struct received *received);

enum received_packet {
	RECEIVED_NEW,
	RECEIVED_AGAIN,     /* seen before, or too old to know */
	RECEIVED_NO_MEMORY, /* as if it had been lost */
};

/* A packet with this number (1 and up) arrived. `now` 0: nobody knows when, since this side was
 * away before; the acknowledgement then tells so, and the sender takes no round trip from it. */
enum received_packet received_add(struct received *received, uint64_t number, uint64_t now);

/* Whether this number arrived; also true when that was too long ago to know. */
bool received_has(const struct received *received, uint64_t number);

/* Whether a larger number arrived. */
static inline bool received_late(const struct received *received, uint64_t number)
{
	return number < received->largest;
}

/* What to say; the caller adds `window`. False: nothing has arrived so far. Clears `pending`. */
bool received_ack(struct received *received, uint64_t now, struct packet_ack *ack);

#endif
