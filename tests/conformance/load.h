/* SPDX-License-Identifier: Apache-2.0 */
/*
 * An endpoint under load: `depth` sends and `depth` receives are always outstanding, each on
 * a key of its own, and each is started again when it succeeds. What arrives is compared
 * with what the other end, which does the same with the keys swapped, must have sent.
 */
#ifndef CONFORMANCE_LOAD_H
#define CONFORMANCE_LOAD_H

#include "harness.h"

struct load {
	struct side *side;
	haul_endpoint *endpoint;
	bool stopping; /* start no more */
	unsigned depth, running;
	size_t bytes;
	unsigned long sent, received, failed, wrong;
	int errors[4]; /* the first failures */
	struct load_lane *lanes;
};

/* `first`: one end says true, the other false. */
struct load *load_start(struct side *side, haul_endpoint *endpoint, bool first, size_t bytes,
			unsigned depth);

#endif
