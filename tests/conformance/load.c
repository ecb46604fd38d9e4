/* SPDX-License-Identifier: Apache-2.0 */
#include "load.h"

#include <errno.h>
#include <stdio.h>

/* One key of one direction. */
struct load_lane {
	struct load *load;
	enum haul_event event;
	char key[24];
	uint64_t seed;  /* of the lane; the same at both ends */
	uint64_t round; /* how many tensors went through it */
	struct block *block;
};

static void lane_done(struct entry *entry);

static void lane_start(struct load_lane *lane)
{
	struct load *load = lane->load;
	struct extra extra = {.hook = lane_done, .user = lane};
	int error;

	if (lane->event == HAUL_SENT)
		block_fill(lane->block, lane->seed + lane->round);
	if (try_post(load->side, load->endpoint, lane->event, haul_key(lane->key),
		     &lane->block->tensor, &extra, &error)) {
		load->running++;
		return;
	}
	if (error != -ENOTCONN) /* the peer may be lost before HAUL_LOST was polled */
		fail_msg("load: %s: %s", haul_strerror(error), haul_detail(load->side->context));
}

static void lane_done(struct entry *entry)
{
	struct load_lane *lane = entry->user;
	struct load *load = lane->load;
	int result = entry->result;

	load->running--;
	entry_recycle(entry);
	if (result) {
		if (load->failed < sizeof(load->errors) / sizeof(load->errors[0]))
			load->errors[load->failed] = result;
		load->failed++;
		return;
	}
	if (lane->event == HAUL_SENT)
		load->sent++;
	else
		load->received++;
	if (lane->event == HAUL_RECEIVED && !block_holds(lane->block, lane->seed + lane->round))
		load->wrong++;
	lane->round++;
	if (!load->stopping)
		lane_start(lane);
}

struct load *load_start(struct side *side, haul_endpoint *endpoint, bool first, size_t bytes,
			unsigned depth)
{
	struct load *load = world_memory(side->world, sizeof(*load));

	load->side = side;
	load->endpoint = endpoint;
	load->depth = depth;
	load->bytes = bytes;
	load->lanes = world_memory(side->world, 2 * depth * sizeof(*load->lanes));
	for (unsigned i = 0; i < 2 * depth; i++) {
		struct load_lane *lane = &load->lanes[i];
		bool sends = i % 2 == 0;

		lane->load = load;
		lane->event = sends ? HAUL_SENT : HAUL_RECEIVED;
		snprintf(lane->key, sizeof(lane->key), "load-%c-%u", sends == first ? 'f' : 's',
			 i / 2);
		lane->seed = (sends == first ? 1000 : 2000) + (uint64_t)(i / 2) * 1000000;
		lane->block = block_new(side->world, bytes);
		lane_start(lane);
	}
	return load;
}
