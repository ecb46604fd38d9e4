/* SPDX-License-Identifier: Apache-2.0 */
/*
 * How far a peer's clock is ahead of ours, from questions and answers. Of some round trips the
 * shortest one counts: the answer was written somewhere inside of it, so that its middle is wrong
 * by at most half of it.
 */
#ifndef TENSORHAUL_CLOCK_OFFSET_H
#define TENSORHAUL_CLOCK_OFFSET_H

#include <stdbool.h>
#include <stdint.h>

/* Questions in a row. */
#define CLOCK_QUESTIONS 8

struct clock_estimate {
	uint64_t at;          /* our clock, in the middle of the round trip */
	int64_t offset;       /* the peer's clock minus ours */
	uint64_t uncertainty; /* the offset is at most so much larger or smaller */
};

struct clock_offset {
	bool wanted;    /* this side traces, and the peer answers */
	unsigned left;  /* questions of this row that were not answered */
	uint64_t asked; /* when the one that is under way was */
	struct clock_estimate best;
};

/* Begin a row of questions. */
void clock_offset_begin(struct clock_offset *clock);

/* The next question leaves now. */
void clock_offset_ask(struct clock_offset *clock, uint64_t now);

/*
 * An answer came: to the question of `asked`, written when the peer's clock was `answered`. False:
 * no such question was asked. When clock->left is 0 then, clock->best is the row's estimate.
 */
bool clock_offset_answer(struct clock_offset *clock, uint64_t asked, uint64_t answered,
			 uint64_t now);

#endif
