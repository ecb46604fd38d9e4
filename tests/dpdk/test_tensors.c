/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Tensors through a network that does what it likes to packets, and owners and peers that do what
 * they like: what the conformance suite, on a good network, doesn't see.
 *
 *   test_tensors SPEC NUMBERS TEST...
 *
 * SPEC has %n where a context's own number, 1 to NUMBERS, goes; NUMBERS + 1 and + 2 are for those
 * that come again under the same number. What the network does is the caller's business. Some tests
 * say on the standard output when they wait for it to do something.
 */
#include "harness.h"

#include <errno.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <time.h>

#include "load.h"
#include "peer.h"

#define PEER_MS 3000

static unsigned numbers;

/* ---- Many tensors, of all sizes ---------------------------------------- */

#define KEYS 8
#define OUTSTANDING 48
#define LARGEST ((size_t)4 << 20)
/* What is lost again and again still has to arrive in this time. */
#define LONG_MS 240000

struct lane {
	struct stream *stream;
	struct block *block;
	unsigned number;
};

/* One direction: tensors 0, 1, ..., with the keys in turn, as many under way as there are lanes. */
struct stream {
	const struct way *way;
	uint64_t seed;
	unsigned count, next_sent, next_received, sent, received;
	struct lane out[OUTSTANDING], in[OUTSTANDING];
};

/* Most are small, as in life, and most bytes are in the large ones. */
static size_t size_of(const struct stream *stream, unsigned number)
{
	uint64_t random = (stream->seed + number) * UINT64_C(0x9e3779b97f4a7c15) | 1;
	unsigned kind, within;

	random_next(&random);
	kind = random_below(&random, 100);
	within = random_below(&random, 1024);
	if (kind < 2)
		return 0;
	if (kind < 40)
		return 1 + within % 64;
	if (kind < 70)
		return 1 + (size_t)within * 4;
	if (kind < 90)
		return 1 + (size_t)within * 64;
	if (kind < 99)
		return 1 + (size_t)within * 256;
	return LARGEST - within;
}

static uint64_t content_of(const struct stream *stream, unsigned number)
{
	return stream->seed * 1000003 + number;
}

static struct haul_key key_of(unsigned number)
{
	static const char *const keys[KEYS] = {"k0", "k1", "k2", "k3", "k4", "k5", "k6", "k7"};

	return haul_key(keys[number % KEYS]);
}

static void set_size(struct block *block, size_t bytes)
{
	block->bytes = bytes;
	block->shape[0] = (int64_t)bytes;
}

static void send_next(struct lane *lane);
static void receive_next(struct lane *lane);

static void sent_one(struct entry *entry)
{
	struct lane *lane = entry->user;

	check_result(entry, 0);
	lane->stream->sent++;
	entry_recycle(entry);
	send_next(lane);
}

/* Receives of one key end in their order, each with the tensor of its place in the row. */
static void received_one(struct entry *entry)
{
	struct lane *lane = entry->user;
	size_t bytes = size_of(lane->stream, lane->number);

	check_result(entry, 0);
	assert_int_equal(entry->tensor.bytes, bytes);
	set_size(lane->block, bytes);
	if (!block_holds(lane->block, content_of(lane->stream, lane->number)))
		fail_msg("tensor %u of %zu bytes is not what was sent", lane->number, bytes);
	lane->stream->received++;
	entry_recycle(entry);
	receive_next(lane);
}

static void send_next(struct lane *lane)
{
	struct extra extra = {.hook = sent_one, .user = lane};
	struct stream *stream = lane->stream;

	if (stream->next_sent == stream->count)
		return;
	lane->number = stream->next_sent++;
	set_size(lane->block, size_of(stream, lane->number));
	block_fill(lane->block, content_of(stream, lane->number));
	post_with(stream->way, HAUL_SENT, key_of(lane->number), &lane->block->tensor, &extra);
}

static void receive_next(struct lane *lane)
{
	struct extra extra = {.hook = received_one, .user = lane};
	struct stream *stream = lane->stream;

	if (stream->next_received == stream->count)
		return;
	lane->number = stream->next_received++;
	set_size(lane->block, LARGEST);
	memset(lane->block->data, 0xee, size_of(stream, lane->number));
	post_with(stream->way, HAUL_RECEIVED, key_of(lane->number), &lane->block->tensor, &extra);
}

static struct stream *stream_start(struct world *world, const struct way *way, uint64_t seed,
				   unsigned count)
{
	struct stream *stream = world_memory(world, sizeof(*stream));

	stream->way = way;
	stream->seed = seed;
	stream->count = count;
	for (unsigned i = 0; i < OUTSTANDING; i++) {
		stream->out[i].stream = stream->in[i].stream = stream;
		stream->out[i].block = block_new(world, LARGEST);
		stream->in[i].block = block_new(world, LARGEST);
	}
	for (unsigned i = 0; i < OUTSTANDING; i++) {
		receive_next(&stream->in[i]);
		send_next(&stream->out[i]);
	}
	return stream;
}

static bool stream_done(const struct stream *stream)
{
	return stream->sent == stream->count && stream->received == stream->count;
}

static void streams_finish(struct world *world, struct stream *const streams[2])
{
	uint64_t until = now_ms() + LONG_MS;

	while (!stream_done(streams[0]) || !stream_done(streams[1]))
		world_step(world, until, "10,000 tensors to arrive");
}

/* Both ways at once, half of them each. */
static void test_10000_tensors_of_mixed_sizes(void **state)
{
	struct world *world = *state;
	uint64_t seed = random_seed(), started = now_ms();
	struct stream *streams[2];
	struct pair pair;

	pair_open(world, "peer_ms=60000,connect_ms=60000", &pair);
	streams[0] = stream_start(world, &pair.up, seed, rounds(5000, 50000));
	streams[1] = stream_start(world, &pair.down, seed ^ 0x5555, rounds(5000, 50000));
	streams_finish(world, streams);
	print_message("all arrived after %llu ms\n", (unsigned long long)(now_ms() - started));
	assert_int_equal(pair.a->lost_count + pair.b->lost_count, 0);
	check_alive(&pair);
}

/* ---- A network that is gone for a while -------------------------------- */

/* The caller cuts the network when told so, for 5 s. */
static void test_cut_and_mended(void **state)
{
	struct world *world = *state;
	uint64_t until = now_ms() + LONG_MS, moved_at, longest = 0;
	unsigned moved = 0, wanted = 0;
	struct pair pair;
	struct load *loads[2];

	pair_open(world, "peer_ms=30000", &pair);
	loads[0] = load_start(pair.b, pair.up.out, true, 300000, 8);
	loads[1] = load_start(pair.a, pair.down.out, false, 300000, 8);
	while (loads[0]->received + loads[1]->received < 20)
		world_step(world, until, "the load to start");
	puts("cut now");
	fflush(stdout);
	moved_at = now_ms();
	/* It stood still for 4 s at least, and went on. */
	while (!wanted || loads[0]->received < wanted || loads[1]->received < wanted) {
		unsigned now = (unsigned)(loads[0]->received + loads[1]->received);

		world_step(world, until, "the load to go on");
		if (now == moved)
			continue;
		longest = now_ms() - moved_at > longest ? now_ms() - moved_at : longest;
		moved_at = now_ms();
		moved = now;
		if (longest > 4000 && !wanted)
			wanted = now + 50;
	}
	print_message("nothing came for %llu ms\n", (unsigned long long)longest);
	for (int i = 0; i < 2; i++) {
		assert_int_equal(loads[i]->failed, 0);
		assert_int_equal(loads[i]->wrong, 0);
	}
	assert_int_equal(pair.a->lost_count + pair.b->lost_count, 0);
}

/* The caller cuts the network when told so, and does not mend it. */
static void test_cut_for_good(void **state)
{
	struct world *world = *state;
	uint64_t cut_at;
	struct pair pair;
	struct load *loads[2];

	pair_open(world, "peer_ms=2000", &pair);
	loads[0] = load_start(pair.b, pair.up.out, true, 300000, 8);
	loads[1] = load_start(pair.a, pair.down.out, false, 300000, 8);
	while (loads[0]->received + loads[1]->received < 20)
		world_step(world, now_ms() + PATIENCE_MS, "the load to start");
	puts("cut now");
	fflush(stdout);
	cut_at = now_ms();
	wait_lost(pair.a, 1);
	wait_lost(pair.b, 1);
	print_message("both sides knew after %llu ms\n", (unsigned long long)(now_ms() - cut_at));
	assert_in_range(now_ms() - cut_at, 1500, 6000);
	for (int i = 0; i < 2; i++) {
		assert_int_equal(loads[i]->running, 0);
		assert_int_equal(loads[i]->wrong, 0);
	}
}

/* ---- Owners that compute ----------------------------------------------- */

static void *compute(void *user)
{
	atomic_bool *stop = user;
	volatile double value = 1;

	while (!atomic_load(stop))
		value = value * 1.0000001 + 1;
	return NULL;
}

/* Nobody calls haul_poll() for five times peer_ms, and the processors have other work. */
static void test_owners_compute(void **state)
{
	struct world *world = *state;
	struct timespec pause = {.tv_sec = 5 * PEER_MS / 1000};
	atomic_bool stop = false;
	pthread_t thread;
	struct pair pair;

	pair_open(world, "progress=caller,peer_ms=3000", &pair);
	check_alive(&pair);
	assert_int_equal(pthread_create(&thread, NULL, compute, &stop), 0);
	nanosleep(&pause, NULL);
	atomic_store(&stop, true);
	pthread_join(thread, NULL);
	check_alive(&pair);
	assert_int_equal(pair.a->lost_count + pair.b->lost_count, 0);
}

/* One side computes with work outstanding; the other one, which polls, waits for it. */
static void test_one_owner_computes(void **state)
{
	struct world *world = *state;
	struct block *source = block_new(world, 8 << 20), *target = block_new(world, 8 << 20);
	struct entry *sent, *received;
	struct pair pair;

	pair_open(world, "progress=caller,peer_ms=3000", &pair);
	check_alive(&pair);
	block_fill(source, 5);
	sent = post_send(&pair.up, haul_key("k"), &source->tensor);
	pair.a->asleep = true;
	world_run_for(world, 3 * PEER_MS);
	assert_false(sent->done);
	assert_int_equal(pair.b->lost_count, 0);
	pair.a->asleep = false;
	received = post_recv(&pair.up, haul_key("k"), &target->tensor);
	wait_result(received, 0);
	wait_result(sent, 0);
	block_check(target, 5);
	assert_int_equal(pair.a->lost_count + pair.b->lost_count, 0);
}

/* ---- Peers that stop, die and come again ------------------------------- */

static bool load_moved(void *user)
{
	struct load *load = user;

	return load->sent + load->received >= 4;
}

static struct load *load_to(struct peer *peer, struct side *side)
{
	struct way up, down;
	struct load *load;

	peer_connect(peer, side, NULL, &up, &down);
	load = load_start(side, up.out, true, 100000, 8);
	peer_ask(peer, "load 100000 8");
	wait_until(side->world, load_moved, load, "the load to start");
	return load;
}

/* All of its threads stand still for 5 s. It lives: nobody misses it so soon. */
static void test_stopped_5_s(void **state)
{
	struct world *world = *state;
	struct side *side = side_open(world, NULL);
	struct peer *peer = peer_start(world, NULL);
	struct load *load = load_to(peer, side);
	uint64_t until;
	unsigned long sum;

	peer_stop(peer);
	world_run_for(world, 5000);
	sum = load->sent + load->received;
	peer_continue(peer);
	until = now_ms() + PATIENCE_MS;
	while (load->sent + load->received < sum + 100)
		world_step(world, until, "the load to go on");
	assert_int_equal(load->failed, 0);
	assert_int_equal(load->wrong, 0);
	assert_int_equal(side->lost_count, 0);
}

static void check_dead(const struct side *side, unsigned number)
{
	int result = side->lost[number].result;

	if (result != -ECONNRESET && result != -ETIMEDOUT)
		fail_msg("a dead peer was lost with %d (%s)", result, haul_strerror(result));
}

static void test_killed_is_noticed(void **state)
{
	struct world *world = *state;
	struct side *side = side_open(world, "peer_ms=2000");
	struct peer *peer = peer_start(world, "peer_ms=2000"), *other = peer_start(world, NULL);
	struct load *load = load_to(peer, side), *lives = load_to(other, side);
	uint64_t killed;

	peer_kill(peer);
	killed = now_ms();
	wait_lost(side, 1);
	print_message("noticed after %llu ms\n", (unsigned long long)(now_ms() - killed));
	assert_true(now_ms() - killed < 4000);
	check_dead(side, 0);
	assert_int_equal(load->running, 0);
	assert_int_equal(lives->failed, 0);
	assert_int_equal(side->lost_count, 1);
}

/* A peer whose number, and with it whose address, is always the same. */
static struct peer *peer_start_as(struct world *world, unsigned number)
{
	const char *spec = settings.peer_transport;
	unsigned before = settings.numbers;
	char *fixed = world_memory(world, strlen(spec) * 2 + 1), *to = fixed;
	struct peer *peer;

	for (const char *from = spec; *from;) {
		if (strncmp(from, "%n", 2)) {
			*to++ = *from++;
			continue;
		}
		to += sprintf(to, "%u", number);
		from += 2;
	}
	settings.peer_transport = fixed;
	settings.numbers = 0;
	peer = peer_start(world, "peer_ms=2000");
	settings.peer_transport = spec;
	settings.numbers = before;
	return peer;
}

/*
 * Killed under load, and at once started again with the same address, it connects: it is somebody
 * else. The old endpoint is lost, once, and the new one works.
 */
static void test_restarted_with_the_same_address(void **state)
{
	struct world *world = *state;
	struct side *side = side_open(world, "peer_ms=2000");
	const char *address = side_listen(side);

	for (unsigned i = 0; i < 5; i++) {
		struct peer *peer = peer_start_as(world, numbers + 1);
		struct load *load;

		peer_ask(peer, "connect %s", address);
		wait_accepted(side, i + 1);
		load = load_start(side, side->accepted[i], true, 100000, 8);
		peer_ask(peer, "load 100000 8");
		wait_until(world, load_moved, load, "the load to start");
		peer_kill(peer);
		/* Its successor comes before or after it is missed. */
		if (i % 2)
			wait_lost(side, i + 1);
	}
	wait_lost(side, 5);
	for (unsigned i = 0; i < 5; i++)
		check_dead(side, i);
}

int main(int count, char **words)
{
	static const struct CMUnitTest tests[] = {
		WORLD_TEST(test_10000_tensors_of_mixed_sizes),
		WORLD_TEST(test_cut_and_mended),
		WORLD_TEST(test_cut_for_good),
		WORLD_TEST(test_owners_compute),
		WORLD_TEST(test_one_owner_computes),
		WORLD_TEST(test_stopped_5_s),
		WORLD_TEST(test_killed_is_noticed),
		WORLD_TEST(test_restarted_with_the_same_address),
	};

	/* As the harness starts peers. */
	if (count > 2 && !strcmp(words[1], "--peer")) {
		settings.transport = settings.peer_transport = strchr(words[2], '=') + 1;
		settings.listen_host = "*";
		return peer_main();
	}
	if (count < 3) {
		fprintf(stderr, "usage: %s SPEC NUMBERS [TEST...]\n", words[0]);
		return 2;
	}
	settings.listen_host = "*";
	settings.numbers = numbers = (unsigned)atoi(words[2]);
	return suite_main(words[1], tests, sizeof(tests) / sizeof(tests[0]), count - 2, words + 2);
}
