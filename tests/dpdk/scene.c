/* SPDX-License-Identifier: Apache-2.0 */
#include "scene.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>

struct scene *scene_open(struct world *world, const char *options, size_t bytes)
{
	struct scene *scene = world_memory(world, sizeof(*scene));

	scene->world = world;
	scene->peer = world_memory(world, sizeof(*scene->peer));
	pair_open(world, world_text(world, "progress=thread,peer_ms=5000%s", options),
		  &scene->pair);
	scene->side = scene->pair.a;
	scene->where = raw_find(haul_listener_address(scene->side->listener));
	guarded_new(world, &scene->guarded, bytes);
	return scene;
}

static void post(struct scene *scene)
{
	uint8_t message[HAUL_CONTROL_MAX];
	struct way way = {.to = scene->side, .in = scene->peer->endpoint};

	scene->received = post_recv(&way, haul_key("k"), &scene->guarded.target.tensor);
	raw_dpdk_expect(scene->peer, WIRE_READY, message);
	memcpy(&scene->slot, message + 8, 8);
}

void scene_next(struct scene *scene)
{
	hub_forget();
	raw_start(scene->peer, &scene->where);
	raw_dpdk_open(scene->peer, scene->side);
	post(scene);
}

void scene_caught(struct scene *scene, int error, const char *lie)
{
	uint64_t until = now_ms() + PATIENCE_MS;

	while (scene->side->lost_count <= scene->lost && now_ms() < until) {
		raw_serve(scene->peer, 0);
		world_step(scene->world, until, lie);
	}
	wait_caught(scene->side, scene->lost++, scene->peer->endpoint, error, lie);
	wait_done(scene->received);
	check_result(scene->received, -ECONNRESET);
	haul_disconnect(scene->peer->endpoint);
	guarded_check(&scene->guarded);
	check_alive(&scene->pair);
}

void scene_received(struct scene *scene, uint64_t seed)
{
	uint8_t message[HAUL_CONTROL_MAX];

	raw_dpdk_expect(scene->peer, WIRE_PLACED, message);
	wait_result(scene->received, 0);
	block_check(&scene->guarded.target, seed);
	memset(scene->guarded.target.data, 0, scene->guarded.target.bytes);
	guarded_check(&scene->guarded);
	post(scene);
}

void scene_receive(struct scene *scene, uint64_t seed)
{
	uint8_t *bytes = malloc(scene->guarded.target.bytes);

	assert_non_null(bytes);
	pattern_fill(bytes, scene->guarded.target.bytes, seed, 0);
	raw_tensor(scene->peer, scene->slot, bytes, scene->guarded.target.bytes);
	free(bytes);
	scene_received(scene, seed);
}

void scene_end(struct scene *scene)
{
	uint8_t bytes[PACKET_CLOSE];

	raw_udp(scene->peer, bytes,
		packet_write_close(bytes, scene->peer->side_name, PACKET_REASON_NONE));
	wait_lost(scene->side, ++scene->lost);
	assert_int_equal(scene->side->lost[scene->lost - 1].result, 0);
	wait_done(scene->received);
	haul_disconnect(scene->peer->endpoint);
	guarded_check(&scene->guarded);
	check_alive(&scene->pair);
}

int scene_main(const struct CMUnitTest *tests, size_t count, int arguments, char **argument)
{
	const char *path = hub_start();
	char spec[256];
	int status;

	if (!path)
		return 1;
	snprintf(spec, sizeof(spec),
		 "dpdk,port={net_memif,role=client,id=%%n,socket=%s,socket-abstract=no,bsize=9216},"
		 "ip=10.77.0.%%n/16,hugepages=no",
		 path);
	settings.listen_host = "*";
	settings.numbers = HUB_PORTS;
	status = suite_main(spec, tests, count, arguments, argument);
	hub_stop();
	return status;
}
