/* SPDX-License-Identifier: Apache-2.0 */
#include "scene.h"

#include <errno.h>

void scene_open(struct world *world, struct scene *scene, const char *options, size_t bytes)
{
	memset(scene, 0, sizeof(*scene));
	scene->world = world;
	pair_open(world,
		  world_text(world, "progress=thread,handshake_ms=%d%s", HANDSHAKE_MS, options),
		  &scene->pair);
	scene->side = scene->pair.a;
	guarded_new(world, &scene->guarded, bytes);
	assert_int_equal(haul_region_register(scene->side->context, scene->guarded.memory->data,
					      scene->guarded.memory->bytes, HAUL_USE_RECV,
					      &scene->region),
			 0);
}

/* A new bad peer, with one receive posted that it knows of. */
void scene_next(struct scene *scene)
{
	struct extra extra = {.region = scene->region};
	uint8_t message[HAUL_CONTROL_MAX];
	struct way way = {.to = scene->side};

	raw_verbs_open(&scene->peer, scene->side);
	way.in = scene->peer.endpoint;
	scene->received = post_with(&way, HAUL_RECEIVED, haul_key("k"),
				    &scene->guarded.target.tensor, &extra);
	raw_verbs_expect(&scene->peer, WIRE_READY, message);
	memcpy(&scene->slot, message + 8, 8);
	assert_int_equal(place_decode(message + 24, message[3], &scene->place), 0);
	assert_int_equal(scene->place.address, (uintptr_t)scene->guarded.target.data);
}

/* The lie was found: the endpoint is lost, its receive has ended, all else is as it was. */
void scene_caught(struct scene *scene, int error, const char *lie)
{
	wait_caught(scene->side, scene->lost++, scene->peer.endpoint, error, lie);
	wait_done(scene->received);
	check_result(scene->received, -ECONNRESET);
	haul_disconnect(scene->peer.endpoint);
	raw_verbs_close(&scene->peer);
	guarded_check(&scene->guarded);
	check_alive(&scene->pair);
}

/* The peer does what its receive waits for. */
void scene_receive(struct scene *scene, uint64_t seed)
{
	uint8_t message[HAUL_CONTROL_MAX];
	uint32_t tag = slot_tag(scene->slot);
	size_t bytes = scene->guarded.target.bytes, length;

	pattern_fill(scene->peer.data.buffers + RAW_SOURCE, bytes, seed, 0);
	length = raw_push(message, WIRE_PUSH, scene->slot, bytes);
	/* The bytes first, then the word that they came. */
	assert_true(raw_channel_write(&scene->peer.data, scene->place.address, scene->place.key[0],
				      bytes, &tag));
	assert_true(raw_verbs_message(&scene->peer, message, length));
	raw_verbs_expect(&scene->peer, WIRE_PLACED, message);
	wait_result(scene->received, 0);
	block_check(&scene->guarded.target, seed);
	guarded_check(&scene->guarded);
}
