/* SPDX-License-Identifier: Apache-2.0 */
#include "swift_noise.h"

#include "arithmetic.h"

#define MS UINT64_C(1000000)

#define SPAN (16 * MS)
#define MOST (3 * MS)
#define MEAN_OF 8

void noise_begin(struct noise *noise, uint64_t now)
{
	noise->since = now;
	noise->least = UINT64_MAX;
	noise->most = 0;
}

void noise_count(struct noise *noise, uint64_t now, uint64_t delay)
{
	if (delay < noise->least)
		noise->least = delay;
	if (delay > noise->most)
		noise->most = delay;
	if (now - noise->since < SPAN)
		return;
	noise->mean +=
		(least_of((double)(noise->most - noise->least), MOST) - noise->mean) / MEAN_OF;
	noise_begin(noise, now);
}
