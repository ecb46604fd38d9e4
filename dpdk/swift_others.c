/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Draining is done as BBR does (IETF draft cardwell-iccrg-bbr-congestion-control, ProbeRTT), but by
 * all flows at the same time, for a flow that does it alone sees the others' queue. They look at
 * the clock of the receiver, which each acknowledgement tells: those that meet at a receiver's link
 * have that in common, and where hosts keep the right time, all others have, too.
 *
 * A crowd is there when the delay was much too long for most of a second, whatever this flow gave
 * up. It need not be all the time: the queue of flows that look at losses rises and falls.
 */
#include "swift_others.h"

#include "packet.h"

#define MS UINT64_C(1000000)

/*
 * How long a queue may stand before it is drained, in round trips and as a power of two of ns: from
 * 0.27 s to 8.6 s, which is no longer than the least round trip is remembered. It happens when the
 * receiver's clock passes a multiple of that. A flow that has begun does it more often, for it may
 * have begun in a queue: after this time or so many round trips, when the others have made room for
 * it, and each time that it is four times as old.
 */
#define DRAIN_EACH 256
#define DRAIN_SHORTEST 28
#define DRAIN_LONGEST 33
#define DRAIN_CROWDED 30 /* at most: to find out what the others are like */
#define DRAIN_FIRST (20 * MS)
#define DRAIN_FIRST_ROUNDS 32
/* One round trip to get what is under way out of the queue, and one to see that it is empty. A
 * small window hears seldom that it is time, and needs longer to be in time with the others. */
#define DRAIN_ROUNDS 2
#define DRAIN_ROUNDS_SMALL 4
#define DRAIN_SMALL 8 /* packets */
/* And so many rounds until the delay is again that of the whole window. */
#define DRAIN_SETTLE 2

/*
 * A delay of so many targets. What a path's length adds to the target does not count for small
 * windows: on a long path it takes a crowd to make them so, or a crowd's queue passes for the path.
 */
#define CROWDED_BEGIN 6
#define CROWDED_END 5
/* For so long altogether; shorter delays count twice. One round trip says no more than a part. */
#define CROWDED_AFTER (1000 * MS)
#define CROWDED_ROUND (CROWDED_AFTER / 4)

/* ---- Draining ---------------------------------------------------------- */

void others_start(struct others *others, uint64_t now, uint16_t clock)
{
	others->started_at = others->drained_at = now;
	others->drained_clock = clock;
}

void others_stop(struct others *others)
{
	others->drain_until = 0;
	others->crowded_for = others->watched_at = 0;
	others->crowded = false;
}

static bool is_drain_due(const struct others *others, const struct congestion_sample *sample)
{
	uint64_t age = sample->now - others->started_at, rtt = sample->rtt_smooth;
	unsigned longest = others->crowded ? DRAIN_CROWDED : DRAIN_LONGEST;
	unsigned period = DRAIN_SHORTEST;
	unsigned shift;

	if (others->settle || age < DRAIN_FIRST || age < DRAIN_FIRST_ROUNDS * rtt)
		return false;
	while (period < longest && UINT64_C(1) << period < DRAIN_EACH * rtt)
		period++;
	shift = period - PACKET_CLOCK_UNIT;
	if (sample->clock >> shift != others->drained_clock >> shift)
		return true;
	return age < UINT64_C(1) << period && age >= 4 * (others->drained_at - others->started_at);
}

void others_drain(struct others *others, const struct congestion_sample *sample, double packets,
		  bool idle)
{
	unsigned rounds = packets < DRAIN_SMALL ? DRAIN_ROUNDS_SMALL : DRAIN_ROUNDS;

	if (others->drain_until && sample->now >= others->drain_until) {
		others->drain_until = 0;
		others->settle = DRAIN_SETTLE;
	} else if (!others->drain_until && !idle && is_drain_due(others, sample)) {
		others->drained_at = sample->now;
		others->drained_clock = sample->clock;
		others->full_rtt = sample->rtt_smooth;
		others->drain_until = sample->now + rounds * sample->rtt_smooth;
	}
}

void others_settle(struct others *others)
{
	if (!others->drain_until)
		others->settle--;
}

/* ---- A crowd ----------------------------------------------------------- */

bool others_watch(struct others *others, uint64_t now, const struct others_delay *seen)
{
	uint64_t passed = others->watched_at ? now - others->watched_at : 0;
	double most = CROWDED_BEGIN * seen->target;
	bool above;

	if (others->crowded)
		most = CROWDED_END * seen->least_target;
	else if (seen->small)
		most = CROWDED_BEGIN * seen->least_target;
	above = seen->delay >= most;
	others->watched_at = now;
	if (passed > CROWDED_ROUND)
		passed = CROWDED_ROUND;
	if (above)
		others->crowded_for += passed;
	else
		others->crowded_for -=
			2 * passed < others->crowded_for ? 2 * passed : others->crowded_for;
	if (others->crowded_for >= CROWDED_AFTER) {
		others->crowded_for = CROWDED_AFTER;
		others->crowded = true;
	}
	if (!others->crowded_for)
		others->crowded = false;
	return others->crowded && above;
}

/* Most of the round trip has to go: the queue of a crowd that was here first passes for the path,
 * and that is seen again each time that this queue is at its lowest. */
void others_sample(struct others *others, uint64_t rtt, double delay, double least_target)
{
	if (!others->drain_until || delay >= least_target || rtt > others->full_rtt / 2)
		return;
	others->crowded_for = 0;
	others->crowded = false;
}
