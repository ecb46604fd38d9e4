/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What each test of hostile peers plays in: a side with a good peer, and raw peers one after the
 * other, for each of which a receive is posted whose memory lies between two guards.
 */
#ifndef TESTS_DPDK_SCENE_H
#define TESTS_DPDK_SCENE_H

#include "rawpeer.h"

struct scene {
	struct world *world;
	struct pair pair; /* of good peers */
	struct side *side;
	struct raw_side where;  /* it is */
	struct guarded guarded; /* what is received into */
	uint64_t slot;
	struct entry *received;
	struct raw_dpdk *peer;
	unsigned lost;
};

/* Options start with a comma; the receives have so many bytes. */
struct scene *scene_open(struct world *world, const char *options, size_t bytes);
/* A new raw peer, with one receive posted that it knows of. */
void scene_next(struct scene *scene);
/* The lie was found: the endpoint is lost, its receive has ended, all else is as it was. */
void scene_caught(struct scene *scene, int error, const char *lie);
/* The raw peer does what its receive waits for, and the next one is posted. */
void scene_receive(struct scene *scene, uint64_t seed);
/* The bytes have come, right. */
void scene_received(struct scene *scene, uint64_t seed);
/* The raw peer goes in order. */
void scene_end(struct scene *scene);

/* main() of a program of such tests. */
int scene_main(const struct CMUnitTest *tests, size_t count, int arguments, char **argument);

#endif
