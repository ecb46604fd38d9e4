/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Losses that have nothing to do with each other vary by the square root of what is expected
 * (Poisson). On a path that loses nothing one is too much already.
 */
#include "swift_loss.h"

#include "arithmetic.h"

/* So many packets count; of 0.1 % loss that gives 4 +- 2. */
#define PACKETS 4096
/*
 * So many square roots above the mean happen by chance about once in 1,000 round trips, where one
 * loss and more is expected in each. Where it is less than one in 20, a single loss is too much.
 */
#define SIGMAS 4

void own_loss_count(struct own_loss *own, double all, double lost)
{
	own->all += all;
	own->lost += lost;
	if (own->all > PACKETS) {
		own->all /= 2;
		own->lost /= 2;
	}
}

bool own_loss_exceeded(const struct own_loss *own, double all, double lost)
{
	double mean = own->all > 0 ? own->lost / own->all * all : 0;

	return lost > mean + SIGMAS * square_root(mean);
}
