/* SPDX-License-Identifier: Apache-2.0 */
/* The token bucket: bytes come in at a rate, and a packet may leave while there are any. */
#include "congestion.h"

#define SECOND UINT64_C(1000000000)
#define US UINT64_C(1000)
/*
 * A sender that is polled, and has other things to do, must not lose what it was due meanwhile:
 * what comes in between two looks is kept whatever the bucket holds, up to so much time.
 */
#define LOOK_MOST (500 * US)

void pacer_start(struct pacer *pacer, uint64_t burst, uint64_t now)
{
	*pacer = (struct pacer){
		.burst = burst,
		.tokens = (int64_t)burst,
		.at = now,
	};
}

/* What the bucket holds when the last look was so long ago. */
static int64_t room_of(const struct pacer *pacer, uint64_t gap)
{
	uint64_t bytes = pacer->rate / US * (gap < LOOK_MOST ? gap : LOOK_MOST) / (1000 * US);

	return (int64_t)(bytes > pacer->burst ? bytes : pacer->burst);
}

static void fill(struct pacer *pacer, uint64_t now)
{
	uint64_t elapsed = now - pacer->at;
	int64_t most = room_of(pacer, elapsed);
	uint64_t missing = (uint64_t)(most - pacer->tokens);
	uint64_t product;

	pacer->at = now;
	if (pacer->tokens >= most)
		return;
	if (elapsed >= missing * SECOND / pacer->rate) {
		pacer->tokens = most;
		return;
	}
	/* Whole bytes; what is left over counts the next time, which may be after one ns. */
	product = elapsed * pacer->rate + pacer->fraction;
	pacer->tokens += (int64_t)(product / SECOND);
	pacer->fraction = product % SECOND;
}

void pacer_set_rate(struct pacer *pacer, uint64_t rate, uint64_t now)
{
	if (now < pacer->at)
		now = pacer->at;
	if (pacer->rate)
		fill(pacer, now);
	else
		pacer->at = now;
	/* What may leave now is a time rather than bytes: no burst when the pace gets slower. */
	if (rate < pacer->rate && pacer->tokens > 0)
		pacer->tokens =
			(int64_t)((double)pacer->tokens * (double)rate / (double)pacer->rate);
	pacer->rate = rate;
}

int64_t pacer_room(struct pacer *pacer, uint64_t now)
{
	if (!pacer->rate)
		return INT64_MAX;
	fill(pacer, now > pacer->at ? now : pacer->at);
	return pacer->tokens;
}

void pacer_sent(struct pacer *pacer, uint64_t bytes)
{
	if (pacer->rate)
		pacer->tokens -= (int64_t)bytes;
}

uint64_t pacer_next(const struct pacer *pacer)
{
	uint64_t missing;

	if (!pacer->rate || pacer->tokens > 0)
		return pacer->at;
	missing = (uint64_t)(1 - pacer->tokens);
	return pacer->at + (missing * SECOND + pacer->rate - 1) / pacer->rate;
}
