/* SPDX-License-Identifier: Apache-2.0 */
/*
 * CUBIC, RFC 9438, with the slow start of HyStart++, RFC 9406: what TCP does, to compare with.
 * Windows are bytes, times in the formulas are seconds.
 */
#include "congestion.h"

#include "arithmetic.h"

#define US UINT64_C(1000)
#define MS UINT64_C(1000000)

#define WINDOW_LEAST 2 /* packets */
#define WINDOW_START 10

#define C 0.4 /* packets per cubic second */
#define BETA 0.7

/* RFC 9406, section 4.2. Its bounds of 4 and 16 ms are for the Internet; here paths are short. */
#define RISE_LEAST (100 * US)
#define RISE_MOST (16 * MS)
#define RISE_PART 8
#define SAMPLES_ENOUGH 8
#define CAREFUL_DIVISOR 4
#define CAREFUL_ROUNDS 5

struct cubic {
	uint64_t packet, most;
	double window, threshold;
	/* The curve. */
	double window_most;     /* W_max, in bytes */
	double window_estimate; /* W_est: what Reno would have */
	double window_epoch;    /* at the begin */
	double plateau_after;   /* K */
	uint64_t epoch;         /* begin of the curve; 0: at the next acknowledgement */
	/* Slow start. */
	uint64_t rtt_round, rtt_before; /* the shortest of this round and of the one before */
	uint64_t rtt_careful;
	unsigned samples;
	unsigned careful;    /* rounds of HyStart++'s careful slow start, which are left */
	unsigned recovering; /* rounds in which losses belong to the last reduction */
};

_Static_assert(sizeof(struct cubic) <= CONGESTION_STATE, "the state has to fit");

static void set_window(struct cubic *cubic, double window)
{
	window = least_of(window, (double)cubic->most);
	cubic->window = most_of(window, WINDOW_LEAST * (double)cubic->packet);
}

static void cubic_start(void *state, const struct congestion_config *config, uint64_t now)
{
	struct cubic *cubic = state;

	*cubic = (struct cubic){
		.packet = config->packet,
		.most = config->most,
		.threshold = 1e18,
		.rtt_round = UINT64_MAX,
		.rtt_before = UINT64_MAX,
	};
	set_window(cubic, WINDOW_START * (double)cubic->packet);
}

/* ---- Less -------------------------------------------------------------- */

static void reduce(struct cubic *cubic)
{
	/* Fast convergence: who loses ground leaves some more to newcomers. */
	if (cubic->window < cubic->window_most)
		cubic->window_most = cubic->window * (1 + BETA) / 2;
	else
		cubic->window_most = cubic->window;
	set_window(cubic, cubic->window * BETA);
	cubic->threshold = cubic->window;
	cubic->epoch = 0;
	/* This round, and the next, whose packets left before this was known. */
	cubic->recovering = 2;
}

/* ---- Slow start -------------------------------------------------------- */

static bool has_risen(const struct cubic *cubic)
{
	uint64_t rise = cubic->rtt_before / RISE_PART;

	if (cubic->samples < SAMPLES_ENOUGH || cubic->rtt_before == UINT64_MAX)
		return false;
	if (rise < RISE_LEAST)
		rise = RISE_LEAST;
	if (rise > RISE_MOST)
		rise = RISE_MOST;
	return cubic->rtt_round >= cubic->rtt_before + rise;
}

static void slow_start(struct cubic *cubic, const struct congestion_sample *sample)
{
	double step = (double)sample->acked;

	if (cubic->careful) {
		step /= CAREFUL_DIVISOR;
		if (cubic->samples >= SAMPLES_ENOUGH && cubic->rtt_round < cubic->rtt_careful)
			cubic->careful = 0; /* it was no queue */
	} else if (has_risen(cubic)) {
		cubic->careful = CAREFUL_ROUNDS;
		cubic->rtt_careful = cubic->rtt_round;
	}
	set_window(cubic, cubic->window + step);
	if (cubic->careful && sample->round && --cubic->careful == 0)
		cubic->threshold = cubic->window;
}

/* ---- The curve --------------------------------------------------------- */

static void begin_curve(struct cubic *cubic, uint64_t now)
{
	cubic->epoch = now;
	cubic->window_epoch = cubic->window_estimate = cubic->window;
	if (cubic->window_most < cubic->window)
		cubic->window_most = cubic->window;
	cubic->plateau_after =
		cube_root((cubic->window_most - cubic->window) / (double)cubic->packet / C);
}

static double curve(const struct cubic *cubic, uint64_t now)
{
	double time = (double)(now - cubic->epoch) / 1e9 - cubic->plateau_after;

	return C * time * time * time * (double)cubic->packet + cubic->window_most;
}

static void avoid_congestion(struct cubic *cubic, const struct congestion_sample *sample)
{
	double part = (double)sample->acked / cubic->window;
	double alpha = 3 * (1 - BETA) / (1 + BETA);
	double target;

	if (!cubic->epoch)
		begin_curve(cubic, sample->now);
	if (cubic->window_estimate >= cubic->window_most)
		alpha = 1;
	cubic->window_estimate += alpha * part * (double)cubic->packet;
	/* What the curve says for one round trip from now, but no more than half as much again. */
	target = curve(cubic, sample->now + sample->rtt_smooth);
	target = most_of(cubic->window, least_of(target, 1.5 * cubic->window));
	if (curve(cubic, sample->now) < cubic->window_estimate)
		set_window(cubic, most_of(cubic->window, cubic->window_estimate));
	else
		set_window(cubic, cubic->window + (target - cubic->window) * part);
}

/* ---- What is told ------------------------------------------------------ */

static void count_rtt(struct cubic *cubic, const struct congestion_sample *sample)
{
	if (!sample->rtt)
		return;
	cubic->samples++;
	if (sample->rtt < cubic->rtt_round)
		cubic->rtt_round = sample->rtt;
}

static void end_round(struct cubic *cubic)
{
	if (cubic->recovering)
		cubic->recovering--;
	cubic->rtt_before = cubic->rtt_round;
	cubic->rtt_round = UINT64_MAX;
	cubic->samples = 0;
}

static bool is_limited(const struct cubic *cubic, const struct congestion_sample *sample)
{
	return sample->limited || (double)sample->in_flight < cubic->window / 2;
}

static void cubic_on_ack(void *state, const struct congestion_sample *sample)
{
	struct cubic *cubic = state;

	count_rtt(cubic, sample);
	if ((sample->lost || sample->marks) && !cubic->recovering)
		reduce(cubic);
	else if (is_limited(cubic, sample) || !sample->acked)
		cubic->epoch = 0; /* time without use of the window does not raise it */
	else if (cubic->window < cubic->threshold)
		slow_start(cubic, sample);
	else if (!cubic->recovering)
		avoid_congestion(cubic, sample);
	if (sample->round)
		end_round(cubic);
}

/* The first may be about the tail of what was sent only; the second is RFC 9438's timeout. */
static void cubic_on_timeout(void *state, unsigned count, uint64_t now)
{
	struct cubic *cubic = state;

	if (count < 2)
		return;
	if (count == 2)
		reduce(cubic);
	cubic->careful = 0;
	set_window(cubic, 0);
}

/* RFC 9438, section 5.8, and RFC 2861: what was learned gets old. */
static void cubic_on_idle(void *state, uint64_t idle)
{
	struct cubic *cubic = state;
	double start = least_of(WINDOW_START * (double)cubic->packet, cubic->window);
	unsigned halvings = idle / (1000 * MS) < 32 ? (unsigned)(idle / (1000 * MS)) : 32;

	cubic->epoch = 0;
	if (!halvings)
		return;
	cubic->threshold =
		most_of(cubic->window * 3 / 4, least_of(cubic->threshold, cubic->window));
	set_window(cubic, most_of(start, cubic->window / (double)(UINT64_C(1) << halvings)));
}

static uint64_t cubic_window(const void *state)
{
	const struct cubic *cubic = state;

	return (uint64_t)cubic->window;
}

/* As Linux does: twice the window in a round trip in slow start, else 1.2 times. */
static uint64_t cubic_rate(const void *state, uint64_t rtt_smooth)
{
	const struct cubic *cubic = state;
	double gain = cubic->window < cubic->threshold ? 2 : 1.2;

	if (!rtt_smooth)
		return 0;
	return (uint64_t)(gain * cubic->window * 1e9 / (double)rtt_smooth) + 1;
}

const struct congestion_ops congestion_cubic = {
	.name = "cubic",
	.summary = "by loss, as TCP (RFC 9438, slow start of RFC 9406)",
	.start = cubic_start,
	.on_ack = cubic_on_ack,
	.on_timeout = cubic_on_timeout,
	.on_idle = cubic_on_idle,
	.window = cubic_window,
	.rate = cubic_rate,
};
