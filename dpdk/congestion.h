/* SPDX-License-Identifier: Apache-2.0 */
/*
 * How much may be under way: the congestion controllers, one file each behind one const struct.
 * They are plain arithmetic over what they are told: no clock, no memory of their own, no DPDK.
 * Times are ns, sizes are bytes of packets (UDP payload and all headers below it), rates are
 * bytes per second.
 */
#ifndef TENSORHAUL_DPDK_CONGESTION_H
#define TENSORHAUL_DPDK_CONGESTION_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* Room for the state of any controller. */
#define CONGESTION_STATE 384

struct congestion_config {
	uint32_t packet;    /* the longest packet */
	uint64_t most;      /* never more than this under way */
	uint64_t rate;      /* congestion=fixed: the rate; 0: the link's */
	uint64_t link_rate; /* of the port; 0: not known */
	uint64_t target;    /* delay by queues that is aimed at, in ns; 0: the controller's own */
};

/* What one acknowledgement told. */
struct congestion_sample {
	uint64_t now;
	uint64_t rtt;       /* of the largest newly acknowledged packet, without the receiver's own
			       delay; 0: this one tells none */
	uint64_t rtt_least; /* of the connection (of its last minutes) */
	uint64_t rtt_smooth;
	uint64_t acked;     /* newly acknowledged */
	uint64_t lost;      /* newly found to be lost */
	uint64_t late;      /* of acked: was told to be lost before */
	uint64_t in_flight; /* before this acknowledgement */
	uint16_t clock;     /* the receiver's: struct packet_ack */
	uint32_t marks;     /* packets newly told to have met congestion (ECN) */
	bool round;         /* a packet that was sent since the last `round` was acknowledged: once
			       in each round trip */
	bool limited;       /* the sender had nothing more to send, the window was not used up */
};

struct congestion_ops {
	const char *name;    /* as the option congestion= takes it */
	const char *summary; /* one line, with the paper or RFC */
	void (*start)(void *state, const struct congestion_config *config, uint64_t now);
	void (*on_ack)(void *state, const struct congestion_sample *sample);
	/* Nothing was acknowledged for `count` probe timeouts in a row. */
	void (*on_timeout)(void *state, unsigned count, uint64_t now);
	/* The peer did not hear from us for a while, or we had nothing to say: what is known of the
	 * path is old. */
	void (*on_idle)(void *state, uint64_t idle);
	uint64_t (*window)(const void *state);                    /* bytes, at least one packet */
	uint64_t (*rate)(const void *state, uint64_t rtt_smooth); /* for pacing; 0: don't pace */
};

extern const struct congestion_ops congestion_swift; /* the default */
extern const struct congestion_ops congestion_cubic;
extern const struct congestion_ops congestion_fixed;

/* In the order of the option's choices. */
extern const struct congestion_ops *const congestion_all[];

/*
 * Pacing: a token bucket that holds a few packets, so that bursts of the sender (which is polled)
 * don't become queues of the network.
 */
struct pacer {
	uint64_t rate;     /* bytes per second; 0: no pacing */
	uint64_t burst;    /* bytes that may leave at once */
	int64_t tokens;    /* bytes that may leave now */
	uint64_t fraction; /* of one more byte, in parts of 1e9 */
	uint64_t at;       /* when somebody asked last, and tokens was right */
};

/* No pacing at first. */
void pacer_start(struct pacer *pacer, uint64_t burst, uint64_t now);
void pacer_set_rate(struct pacer *pacer, uint64_t rate, uint64_t now);
/* Bytes that may leave now: a packet may leave when this is above 0. Ask in each round of polling,
 * also while something else keeps packets back: after a pause more may leave at once. */
int64_t pacer_room(struct pacer *pacer, uint64_t now);
void pacer_sent(struct pacer *pacer, uint64_t bytes);
/* When a packet may leave next: `now` or earlier when it may at once. */
uint64_t pacer_next(const struct pacer *pacer);

#endif
