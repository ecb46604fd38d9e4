/* SPDX-License-Identifier: Apache-2.0 */
/*
 * No control: a rate that somebody chose, whatever happens. For a network of one's own, and to
 * compare the others with.
 */
#include "congestion.h"

#define MS UINT64_C(1000000)
/* Hosts may be as late as this without making the rate smaller. */
#define SLACK (10 * MS)
#define WINDOW_LEAST 64 /* packets */

struct fixed {
	uint64_t rate, rtt;
	uint64_t least, most;
};

_Static_assert(sizeof(struct fixed) <= CONGESTION_STATE, "the state has to fit");

static void fixed_start(void *state, const struct congestion_config *config, uint64_t now)
{
	struct fixed *fixed = state;

	*fixed = (struct fixed){
		.rate = config->rate ? config->rate : config->link_rate,
		.least = (uint64_t)WINDOW_LEAST * config->packet,
		.most = config->most > config->packet ? config->most : config->packet,
	};
}

static void fixed_on_ack(void *state, const struct congestion_sample *sample)
{
	struct fixed *fixed = state;

	if (sample->rtt_smooth)
		fixed->rtt = sample->rtt_smooth;
}

static void fixed_on_timeout(void *state, unsigned count, uint64_t now)
{
}

static void fixed_on_idle(void *state, uint64_t idle)
{
}

/* What leaves in two round trips: an acknowledgement that was lost must not stop it. */
static uint64_t fixed_window(const void *state)
{
	const struct fixed *fixed = state;
	uint64_t us = (2 * fixed->rtt + SLACK) / 1000;
	uint64_t window = fixed->rate / 1000 * us / 1000;

	if (!fixed->rate)
		return fixed->most;
	if (window < fixed->least)
		window = fixed->least;
	return window < fixed->most ? window : fixed->most;
}

static uint64_t fixed_rate(const void *state, uint64_t rtt_smooth)
{
	const struct fixed *fixed = state;

	return fixed->rate;
}

const struct congestion_ops congestion_fixed = {
	.name = "fixed",
	.summary = "the rate of rate=, or the link's, whatever happens",
	.start = fixed_start,
	.on_ack = fixed_on_ack,
	.on_timeout = fixed_on_timeout,
	.on_idle = fixed_on_idle,
	.window = fixed_window,
	.rate = fixed_rate,
};
