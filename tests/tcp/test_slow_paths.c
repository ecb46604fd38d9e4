/* SPDX-License-Identifier: Apache-2.0 */
/*
 * F19 and F33: paths that cut everything up, are slow, or can't be had again. All connections go
 * through a proxy.
 */
#include <errno.h>
#include <stdio.h>

#include "proxy.h"

#define MIB ((size_t)1 << 20)

struct path {
	struct pair pair;
	struct proxy *proxy;
};

static struct proxy *running; /* of the test: ended by its teardown */

static int setup(void **state)
{
	running = NULL;
	return world_setup(state);
}

/* The proxy's descriptors and its thread go before they are counted. */
static int teardown(void **state)
{
	if (running)
		proxy_stop(running);
	running = NULL;
	return world_teardown(state);
}

static void path_open(struct world *world, struct path *path, const char *options)
{
	struct entry *connect;
	struct side *a = side_open(world, options), *b = side_open(world, options);

	path->proxy = running = proxy_start(side_listen(a));
	connect = post_connect(b, proxy_address(path->proxy));
	wait_result(connect, 0);
	wait_accepted(a, 1);
	path->pair = (struct pair){
		.a = a,
		.b = b,
		.up = {.from = b, .to = a, .out = connect->endpoint, .in = a->accepted[0]},
		.down = {.from = a, .to = b, .out = a->accepted[0], .in = connect->endpoint},
	};
	/* Before the pulse is there, a control stream that breaks is the end. */
	while (!proxy_count(path->proxy, PREAMBLE_PULSE))
		world_run_for(world, 1);
	world_run_for(world, 30);
	check_alive(&path->pair);
}

static void check_nothing_lost(const struct path *path)
{
	assert_int_equal(path->pair.a->lost_count, 0);
	assert_int_equal(path->pair.b->lost_count, 0);
}

/* ---- F19: partial reads and writes ------------------------------------- */

/* Everything is cut into pieces of a few bytes: records, headers and tensors, in both directions.
 */
static void dribbled(struct world *world, const char *options, unsigned most, size_t bytes)
{
	struct block *sources[2], *targets[2];
	struct path path;

	path_open(world, &path, options);
	proxy_dribble(path.proxy, most);
	for (size_t size = bytes % 7; size <= bytes; size += bytes / 5) {
		for (int i = 0; i < 2; i++) {
			const struct way *way = i ? &path.pair.up : &path.pair.down;

			sources[i] = block_new(world, size);
			targets[i] = block_new(world, size);
			block_fill(sources[i], size + (size_t)i);
			post_recv(way, haul_key("dribbled"), &targets[i]->tensor);
			post_send(way, haul_key("dribbled"), &sources[i]->tensor);
		}
		wait_all(world);
		block_check(targets[0], size);
		block_check(targets[1], size + 1);
	}
	check_nothing_lost(&path);
}

static void test_f19_single_bytes(void **state)
{
	dribbled(*state, "small=4KiB", 1, rounds(20000, 200000));
}

static void test_f19_pieces_of_a_few_bytes(void **state)
{
	dribbled(*state, "streams=3,sndbuf=4KiB,rcvbuf=4KiB,chunk=4KiB", 50,
		 rounds(200000, 2000000));
}

static void test_f19_long_small_tensors_in_pieces(void **state)
{
	dribbled(*state, "small=64KiB", 100, rounds(60000, 60000));
}

static void test_f19_pieces_of_odd_sizes(void **state)
{
	dribbled(*state, "streams=2,checksum=crc32c", 5000, rounds(3 << 20, 30 << 20));
}

/* Tiny buffers, and a reader that comes by only now and then. */
static void test_f19_tiny_buffers_and_a_slow_reader(void **state)
{
	struct world *world = *state;
	struct block *source = block_new(world, 3 * MIB), *target = block_new(world, 3 * MIB);
	struct entry *sent, *received;
	struct pair pair;
	uint64_t until = now_ms() + PATIENCE_MS;

	pair_open(world, "progress=caller,sndbuf=4KiB,rcvbuf=4KiB,streams=2", &pair);
	block_fill(source, 1);
	received = post_recv(&pair.up, haul_key("k"), &target->tensor);
	sent = post_send(&pair.up, haul_key("k"), &source->tensor);
	while (!received->done || !sent->done) {
		assert_true(now_ms() < until);
		for (int i = 0; i < 20; i++)
			side_poll(pair.b); /* it finds everything full, again and again */
		side_poll(pair.a);
	}
	check_result(received, 0);
	check_result(sent, 0);
	block_check(target, 1);
}

/* ---- A control stream that breaks -------------------------------------- */

static void cut_the_control_stream(struct path *path, unsigned number)
{
	proxy_cut(path->proxy, PREAMBLE_CONTROL, 0, number % 2);
}

/* Small tensors travel with the control stream: each arrives once, in order, whatever breaks. */
static void test_control_stream_breaks_under_small_tensors(void **state)
{
	enum { COUNT = 2000 };
	struct world *world = *state;
	uint64_t *from = world_memory(world, COUNT * sizeof(*from));
	uint64_t *into = world_memory(world, COUNT * sizeof(*into));
	struct path path;

	path_open(world, &path, NULL);
	for (unsigned i = 0; i < COUNT; i++) {
		const struct way *way = i % 2 ? &path.pair.up : &path.pair.down;
		DLTensor tensor = haul_tensor(&from[i], (DLDataType){kDLUInt, 64, 1}, 0, NULL);

		from[i] = i + 1;
		post_send(way, haul_key("k"), &tensor);
		tensor.data = &into[i];
		post_recv(way, haul_key("k"), &tensor);
		if (i % 10 == 0) {
			side_poll(path.pair.a);
			side_poll(path.pair.b);
		}
		if (i % 100 == 50)
			cut_the_control_stream(&path, i / 100);
	}
	wait_all(world);
	for (unsigned i = 0; i < COUNT; i++)
		assert_int_equal(into[i], i + 1);
	check_nothing_lost(&path);
}

/* Cancels and refusals whose messages are sent again must not be done twice. */
static void test_control_stream_breaks_under_cancels(void **state)
{
	struct world *world = *state;
	struct block *source = block_new(world, 2 * MIB), *target = block_new(world, 2 * MIB);
	struct path path;

	path_open(world, &path, "streams=2");
	for (unsigned i = 0; i < rounds(40, 400); i++) {
		struct entry *received = post_recv(&path.pair.up, haul_key("k"), &target->tensor);
		struct entry *sent = post_send(&path.pair.up, haul_key("k"), &source->tensor);

		for (unsigned step = 0; step < i % 12; step++) {
			side_poll(path.pair.a);
			side_poll(path.pair.b);
		}
		cut_the_control_stream(&path, i);
		haul_cancel(path.pair.a->context, received);
		wait_done(received);
		if (received->result) {
			check_result(received, -ECANCELED);
			wait_result(post_recv(&path.pair.up, haul_key("k"), &target->tensor), 0);
		}
		wait_result(sent, 0);
	}
	check_nothing_lost(&path);
}

/* The control stream breaks and can't be had again: both sides end it within peer_ms. */
static void test_control_stream_cannot_be_replaced(void **state)
{
	struct world *world = *state;
	struct block *block = block_new(world, 100);
	struct entry *received, *sent;
	struct path path;
	uint64_t started;

	path_open(world, &path, "peer_ms=1000");
	check_alive(&path.pair);
	received = post_recv(&path.pair.up, haul_key("never"), &block->tensor);
	sent = post_send(&path.pair.up, haul_key("other"), &block->tensor);
	proxy_refuse(path.proxy, true);
	started = now_ms();
	proxy_cut(path.proxy, PREAMBLE_CONTROL, 0, true);
	wait_lost(path.pair.a, 1);
	wait_lost(path.pair.b, 1);
	assert_in_range(now_ms() - started, 0, 1000 + 3000);
	assert_true(received->done && sent->done);
	assert_true(received->result == -ECONNRESET || received->result == -ETIMEDOUT);
	assert_true(sent->result == -ECONNRESET || sent->result == -ETIMEDOUT);
}

/* ---- F33: one slow socket ---------------------------------------------- */

static void test_f33_one_throttled_stream_of_four(void **state)
{
	enum { RATE = 1 << 20 }; /* a quarter of the tensor would take 16 s */
	struct world *world = *state;
	struct block *source = block_new(world, 64 * MIB), *target = block_new(world, 64 * MIB);
	struct entry *received;
	struct path path;
	uint64_t started, took;

	if (sanitized())
		skip_because("a sanitizer is slower than the slow socket");
	path_open(world, &path, "streams=4");
	block_fill(source, 1);
	check_alive(&path.pair);
	while (proxy_count(path.proxy, PREAMBLE_STREAM) < 4)
		world_run_for(world, 1);
	assert_true(proxy_throttle(path.proxy, PREAMBLE_STREAM, 1, RATE));
	started = now_ms();
	received = post_recv(&path.pair.up, haul_key("k"), &target->tensor);
	post_send(&path.pair.up, haul_key("k"), &source->tensor);
	wait_all(world);
	took = now_ms() - started;
	check_result(received, 0);
	block_check(target, 1);
	print_message("64 MiB with one of four streams at 1 MiB/s: %llu ms\n",
		      (unsigned long long)took);
	assert_in_range(took, 0, 8000);
	check_nothing_lost(&path);
}

#define PATH_TEST(function)                                                                        \
	{                                                                                          \
#function, function, setup, teardown, NULL                                         \
	}

static const struct CMUnitTest tests[] = {
	PATH_TEST(test_f19_single_bytes),
	PATH_TEST(test_f19_pieces_of_a_few_bytes),
	PATH_TEST(test_f19_long_small_tensors_in_pieces),
	PATH_TEST(test_f19_pieces_of_odd_sizes),
	PATH_TEST(test_f19_tiny_buffers_and_a_slow_reader),
	PATH_TEST(test_control_stream_breaks_under_small_tensors),
	PATH_TEST(test_control_stream_breaks_under_cancels),
	PATH_TEST(test_control_stream_cannot_be_replaced),
	PATH_TEST(test_f33_one_throttled_stream_of_four),
};

int main(int count, char **arguments)
{
	return suite_main("tcp", tests, sizeof(tests) / sizeof(tests[0]), count, arguments);
}
