/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What each test of hostile peers plays in: a side with a good peer, and raw peers one after the
 * other, for each of which a receive is posted whose memory lies between two guards.
 */
#ifndef VERBS_SCENE_H
#define VERBS_SCENE_H

#include "rawpeer.h"

/* A sanitizer in an emulated machine takes its time. */
#define HANDSHAKE_MS (sanitized() ? 8000 : 1500)

struct scene {
	struct world *world;
	struct pair pair; /* of good peers */
	struct side *side;
	struct guarded guarded; /* what is received into */
	haul_region *region;
	uint64_t slot;
	struct place place;
	struct entry *received;
	struct raw_verbs peer;
	unsigned lost;
};

/* Options start with a comma; the receives have so many bytes. */
void scene_open(struct world *world, struct scene *scene, const char *options, size_t bytes);
/* A new raw peer, with one receive posted that it knows of. */
void scene_next(struct scene *scene);
/* The lie was found: the endpoint is lost, its receive has ended, all else is as it was. */
void scene_caught(struct scene *scene, int error, const char *lie);
/* The raw peer does what its receive waits for. */
void scene_receive(struct scene *scene, uint64_t seed);

#endif
