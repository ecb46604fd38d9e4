/* SPDX-License-Identifier: Apache-2.0 */
#include "clock_offset.h"

void clock_offset_begin(struct clock_offset *clock)
{
	clock->left = CLOCK_QUESTIONS;
	clock->best.uncertainty = UINT64_MAX;
}

void clock_offset_ask(struct clock_offset *clock, uint64_t now)
{
	clock->asked = now;
}

bool clock_offset_answer(struct clock_offset *clock, uint64_t asked, uint64_t answered,
			 uint64_t now)
{
	uint64_t half = (now - asked) / 2 + (now - asked) % 2;

	if (!clock->left || asked != clock->asked)
		return false;
	clock->left--;
	if (half >= clock->best.uncertainty)
		return true;
	/* The peer's clock may say anything: the difference wraps around and doesn't overflow. */
	clock->best = (struct clock_estimate){
		.at = asked + half,
		.offset = (int64_t)(answered - (asked + half)),
		.uncertainty = half,
	};
	return true;
}
