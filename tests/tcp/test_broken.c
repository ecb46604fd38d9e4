/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Sockets that break while tensors move: every tensor arrives right and exactly once all the same,
 * and an endpoint is lost only when all of its sockets are.
 */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>

#include "load.h"
#include "relay.h"

/* Two endpoints through one relay: many small tensors, and a few large ones. */
struct scene {
	struct world *world;
	struct side *a, *b; /* a listens */
	struct relay *relay;
	struct way up[2], down[2];
	struct load *load[4];
	uint64_t random;
};

enum { SMALL_BYTES = 1500, LARGE_BYTES = 700001 };

/* As connect_sides(), but through the relay. */
static void connect_through(struct scene *scene, struct way *up, struct way *down)
{
	unsigned before = scene->a->accepted_count;
	struct entry *connected = post_connect(scene->b, relay_address(scene->relay));

	wait_result(connected, 0);
	wait_accepted(scene->a, before + 1);
	*up = (struct way){scene->b, scene->a, connected->endpoint, scene->a->accepted[before]};
	*down = (struct way){scene->a, scene->b, up->in, up->out};
}

static bool relay_is_whole(void *user)
{
	struct scene *scene = user;

	return relay_count(scene->relay, RELAY_CONTROL) == 2 &&
	       relay_count(scene->relay, RELAY_PULSE) == 2 &&
	       relay_count(scene->relay, RELAY_STREAM) >= 4;
}

static void scene_open(struct world *world, struct scene *scene, const char *options)
{
	memset(scene, 0, sizeof(*scene));
	scene->world = world;
	scene->random = random_seed();
	scene->a = side_open(world, options);
	scene->b = side_open(world, options);
	side_listen(scene->a);
	scene->relay = relay_start(haul_listener_address(scene->a->listener));
	for (int i = 0; i < 2; i++)
		connect_through(scene, &scene->up[i], &scene->down[i]);
	wait_until(world, relay_is_whole, scene, "all sockets of the endpoints");
}

static void scene_load(struct scene *scene)
{
	for (int i = 0; i < 2; i++) {
		size_t bytes = i ? LARGE_BYTES : SMALL_BYTES;
		unsigned depth = i ? 3 : 8;

		scene->load[2 * i] = load_start(scene->a, scene->down[i].out, true, bytes, depth);
		scene->load[2 * i + 1] =
			load_start(scene->b, scene->up[i].out, false, bytes, depth);
	}
}

static void check_load(const struct scene *scene)
{
	for (int i = 0; i < 4; i++) {
		const struct load *load = scene->load[i];

		if (load->failed)
			fail_msg("%lu operations failed, the first with %s", load->failed,
				 haul_strerror(load->errors[0]));
		if (load->wrong)
			fail_msg("%lu tensors are not what was sent", load->wrong);
	}
	for (unsigned i = 0; i < scene->b->lost_count; i++)
		fail_msg("an endpoint was lost: %s", haul_strerror(scene->b->lost[i].result));
	assert_int_equal(scene->a->lost_count, 0);
}

/* Each of the loads has moved some more tensors. */
static void go_on(struct scene *scene, unsigned long more)
{
	uint64_t until = now_ms() + PATIENCE_MS;

	for (int i = 0; i < 4; i++) {
		const struct load *load = scene->load[i];
		unsigned long sent = load->sent + more, received = load->received + more;

		while (load->sent < sent || load->received < received) {
			check_load(scene);
			world_step(scene->world, until, "tensors to go on");
		}
	}
	check_load(scene);
}

static uint64_t replaced(struct side *side)
{
	struct haul_statistics statistics = {.size = sizeof(statistics)};

	assert_int_equal(haul_context_statistics(side->context, &statistics), 0);
	return statistics.streams_replaced;
}

/* Let the loads end; what was started has ended well, at both ends equally often. */
static void scene_end(struct scene *scene)
{
	for (int i = 0; i < 4; i++)
		scene->load[i]->stopping = true;
	/* What one end has not started any more leaves the other one waiting: not an error. */
	go_on(scene, 0);
	for (int i = 0; i < 2; i++) {
		haul_disconnect(scene->up[i].out);
		haul_disconnect(scene->down[i].out);
	}
	relay_free(scene->relay);
}

static bool cuts_done(struct scene *scene, unsigned count)
{
	return relay_cuts(scene->relay) >= count;
}

/* Cut once, and wait until it was cut, and all is whole again. */
static void cut(struct scene *scene, unsigned kinds, unsigned most, enum relay_cut how,
		uint64_t after)
{
	unsigned before = relay_cuts(scene->relay);
	unsigned count = relay_cut(scene->relay, kinds, most, how, after);
	uint64_t until = now_ms() + PATIENCE_MS;

	assert_true(count > 0);
	while (!cuts_done(scene, before + count) || !relay_is_whole(scene)) {
		check_load(scene);
		/* The relay wakes nobody: look again soon. */
		world_run_for(scene->world, 1);
		if (now_ms() >= until)
			fail_msg("%u of %u connections were cut, and %u, %u, %u are there",
				 relay_cuts(scene->relay) - before, count,
				 relay_count(scene->relay, RELAY_CONTROL),
				 relay_count(scene->relay, RELAY_PULSE),
				 relay_count(scene->relay, RELAY_STREAM));
	}
}

/* One kind of socket is cut again and again, at any byte, in each of three ways. */
static void cut_one_kind(struct world *world, unsigned kinds, uint64_t most_bytes, unsigned count)
{
	struct scene scene;

	scene_open(world, &scene, "streams=2");
	scene_load(&scene);
	go_on(&scene, 3);
	for (unsigned i = 0; i < count; i++) {
		uint64_t after = most_bytes ? random_next(&scene.random) % most_bytes : 0;

		cut(&scene, kinds, 2, i % 3, after);
		go_on(&scene, 1);
	}
	/* Each of the cut sockets was counted by the side that replaced it. */
	assert_true(replaced(scene.b) >= relay_cuts(scene.relay));
	scene_end(&scene);
}

static void test_control_is_cut_in_mid_record(void **state)
{
	cut_one_kind(*state, RELAY_CONTROL, 40000, rounds(60, 600));
}

static void test_pulse_is_cut(void **state)
{
	cut_one_kind(*state, RELAY_PULSE, 0, rounds(10, 100));
}

static void test_stream_is_cut_in_mid_chunk(void **state)
{
	cut_one_kind(*state, RELAY_STREAM, 3000000, rounds(30, 300));
}

/* Control and pulse are both away, and only streams tell that the peer lives; and the like. */
static void test_several_are_cut_at_once(void **state)
{
	static const unsigned kinds[] = {
		RELAY_CONTROL | RELAY_PULSE,
		RELAY_CONTROL | RELAY_STREAM,
		RELAY_PULSE | RELAY_STREAM,
	};
	struct scene scene;

	scene_open(*state, &scene, "streams=2");
	scene_load(&scene);
	for (unsigned i = 0; i < rounds(18, 180); i++) {
		go_on(&scene, 1);
		cut(&scene, kinds[i % 3], 100, i / 3 % 3, 0);
	}
	scene_end(&scene);
}

/* 50 times whatever comes. */
static void test_50_cuts(void **state)
{
	struct scene scene;

	scene_open(*state, &scene, "streams=2");
	scene_load(&scene);
	for (unsigned i = 0; i < 50; i++) {
		unsigned kind = 1u << random_below(&scene.random, 3);
		uint64_t after = kind == RELAY_PULSE ? 0 : random_below(&scene.random, 20000);

		go_on(&scene, 1);
		cut(&scene, kind, 1, random_below(&scene.random, 3), after);
	}
	go_on(&scene, 5);
	assert_true(relay_cuts(scene.relay) >= 50);
	assert_true(replaced(scene.b) >= 50);
	assert_true(replaced(scene.a) > 0);
	scene_end(&scene);
}

/* Nothing passes over one stream for a while; then it breaks, and its chunks go over the other. */
static void test_stalled_stream_is_cut(void **state)
{
	struct scene scene;

	scene_open(*state, &scene, "streams=2");
	scene_load(&scene);
	for (unsigned i = 0; i < 5; i++) {
		go_on(&scene, 2);
		assert_true(relay_stall(scene.relay, RELAY_STREAM, 2, true) > 0);
		world_run_for(scene.world, 30);
		check_load(&scene);
		cut(&scene, RELAY_STREAM, 2, i % 2, 1);
	}
	scene_end(&scene);
}

/* The control stream stands still: tensors wait, nobody is lost, and then all goes on. */
static void test_stalled_control_goes_on(void **state)
{
	struct scene scene;

	scene_open(*state, &scene, "streams=2,peer_ms=1000");
	scene_load(&scene);
	go_on(&scene, 2);
	assert_int_equal(relay_stall(scene.relay, RELAY_CONTROL, 2, true), 2);
	world_run_for(scene.world, 1500); /* longer than peer_ms */
	assert_int_equal(relay_stall(scene.relay, RELAY_CONTROL, 2, false), 2);
	go_on(&scene, 5);
	scene_end(&scene);
}

/* ---- All of them ------------------------------------------------------- */

/* Every socket is cut at once: then the peer is lost, at both ends, and each operation ends once.
 */
static void lose_all(struct world *world, enum relay_cut how)
{
	struct scene scene;

	scene_open(world, &scene, "streams=2");
	scene_load(&scene);
	go_on(&scene, 2);
	assert_true(relay_cut(scene.relay, RELAY_ALL, 1000, how, 0) >= 8);
	wait_lost(scene.a, 2);
	wait_lost(scene.b, 2);
	for (int i = 0; i < 2; i++) {
		assert_int_equal(scene.a->lost[i].result, -ECONNRESET);
		assert_int_equal(scene.b->lost[i].result, -ECONNRESET);
	}
	for (int i = 0; i < 4; i++) {
		assert_int_equal(scene.load[i]->running, 0);
		assert_int_equal(scene.load[i]->wrong, 0);
		assert_int_equal(scene.load[i]->errors[0], -ECONNRESET);
	}
	assert_int_equal(scene.a->started, scene.a->finished);
	assert_int_equal(scene.b->started, scene.b->finished);
	relay_free(scene.relay);
}

static void test_all_closed_at_once(void **state)
{
	lose_all(*state, RELAY_CLOSE);
}

static void test_all_reset_at_once(void **state)
{
	lose_all(*state, RELAY_RESET);
}

/* The control stream breaks, and there is no way to make another: -ECONNRESET, since the port
 * refuses. */
static void test_control_cannot_be_replaced(void **state)
{
	struct scene scene;

	scene_open(*state, &scene, "streams=2");
	relay_listen_no_more(scene.relay);
	assert_int_equal(relay_cut(scene.relay, RELAY_CONTROL, 2, RELAY_CLOSE, 0), 2);
	wait_lost(scene.b, 2);
	wait_lost(scene.a, 2);
	assert_int_equal(scene.b->lost[0].result, -ECONNRESET);
	assert_int_equal(scene.b->lost[1].result, -ECONNRESET);
	relay_free(scene.relay);
}

static const struct CMUnitTest tests[] = {
	WORLD_TEST(test_control_is_cut_in_mid_record),
	WORLD_TEST(test_pulse_is_cut),
	WORLD_TEST(test_stream_is_cut_in_mid_chunk),
	WORLD_TEST(test_several_are_cut_at_once),
	WORLD_TEST(test_50_cuts),
	WORLD_TEST(test_stalled_stream_is_cut),
	WORLD_TEST(test_stalled_control_goes_on),
	WORLD_TEST(test_all_closed_at_once),
	WORLD_TEST(test_all_reset_at_once),
	WORLD_TEST(test_control_cannot_be_replaced),
};

int main(int count, char **arguments)
{
	return suite_main("tcp", tests, sizeof(tests) / sizeof(tests[0]), count, arguments);
}
