/* SPDX-License-Identifier: Apache-2.0 */
/* Round-trip times: RFC 9002, section 5, and a least that can rise again. */
#include "recovery.h"

#define US UINT64_C(1000)
#define MS UINT64_C(1000000)

/*
 * The least counts for one to two of these. Long enough that a queue which never empties can't pass
 * for the path's own length: the default controller empties it at least twice in that time. Short
 * enough that a connection whose path got longer crawls for seconds, not for minutes.
 */
#define LEAST_WINDOW (10000 * MS)

/* Before the first sample. Data centres answer in microseconds, but the peer may have to be
 * scheduled first; RFC 9002's third of a second would be an eternity after one lost packet. */
#define UNKNOWN (20 * MS)

/* Less than this can't be told from the time that a host takes to look. */
#define VARIATION_LEAST (1 * MS)
#define PROBE_MOST (1000 * MS)

static uint64_t difference(uint64_t one, uint64_t other)
{
	return one > other ? one - other : other - one;
}

static void add_least(struct rtt *rtt, uint64_t sample, uint64_t now)
{
	if (!rtt->known) {
		rtt->least = rtt->least_next = sample;
		rtt->least_at = now;
	}
	if (now - rtt->least_at >= LEAST_WINDOW) {
		rtt->least = rtt->least_next;
		rtt->least_next = sample;
		rtt->least_at = now;
	}
	if (sample < rtt->least_next)
		rtt->least_next = sample;
	if (sample < rtt->least)
		rtt->least = sample;
}

void rtt_add(struct rtt *rtt, uint64_t sample, uint64_t least, uint64_t now)
{
	add_least(rtt, least, now);
	rtt->latest = sample;
	if (rtt->known) {
		rtt->variation = (3 * rtt->variation + difference(rtt->smooth, sample)) / 4;
		rtt->smooth = (7 * rtt->smooth + sample) / 8;
	} else {
		rtt->variation = sample / 2;
		rtt->smooth = sample;
		rtt->known = true;
	}
}

uint64_t rtt_or_default(const struct rtt *rtt)
{
	if (!rtt->known)
		return UNKNOWN;
	return rtt->latest > rtt->smooth ? rtt->latest : rtt->smooth;
}

uint64_t rtt_probe(const struct rtt *rtt, uint64_t ack_delay, unsigned timeouts)
{
	uint64_t variation = 4 * rtt->variation;
	uint64_t once, most;

	if (variation < VARIATION_LEAST)
		variation = VARIATION_LEAST;
	once = rtt->known ? rtt->smooth + variation + ack_delay : UNKNOWN + ack_delay;
	most = once > PROBE_MOST ? once : PROBE_MOST;
	/* With a base of 1 ms or more, the tenth doubling is past the most anyway. */
	if (timeouts > 10 || once << timeouts > most)
		return most;
	return once << timeouts;
}
