/* SPDX-License-Identifier: Apache-2.0 */
/* F34: several threads. Worker threads only count; the test's own thread asserts. */
#include "harness.h"

#include <errno.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>

enum { THREADS = 6 };

/* What the workers share. */
struct crowd {
	struct pair pair;
	atomic_uint wrong;    /* anything that should not be */
	atomic_uint lines[8]; /* where, for the first few */
	unsigned each;        /* rounds of each worker */
	size_t bytes;
};

struct worker {
	struct crowd *crowd;
	pthread_t thread;
	unsigned number;
	struct block *source, *target;
};

/* A cookie: how often it came back, and with what. */
struct ticket {
	atomic_uint completions;
	atomic_int result;
};

static void note(struct crowd *crowd, unsigned line)
{
	unsigned before = atomic_fetch_add(&crowd->wrong, 1);

	if (before < 8)
		atomic_store(&crowd->lines[before], line);
}

#define EXPECT(crowd, condition)                                                                   \
	do {                                                                                       \
		if (!(condition))                                                                  \
			note(crowd, __LINE__);                                                     \
	} while (0)

/* Whoever polls gets completions of everyone. */
static void poll_for_all(struct crowd *crowd, haul_context *context, int timeout_ms)
{
	struct haul_completion batch[8];
	int count = haul_poll(context, batch, 8, timeout_ms);

	EXPECT(crowd, count >= 0);
	for (int i = 0; i < count; i++) {
		struct ticket *ticket = batch[i].cookie;

		EXPECT(crowd, ticket != NULL);
		if (!ticket)
			continue;
		atomic_store(&ticket->result, batch[i].result);
		atomic_fetch_add(&ticket->completions, 1);
	}
}

static void *work(void *user)
{
	struct worker *worker = user;
	struct crowd *crowd = worker->crowd;
	struct ticket tickets[2] = {0};
	struct haul_op op = HAUL_OP_INIT;
	uint64_t until = now_ms() + PATIENCE_MS * 2;
	char key[24];

	snprintf(key, sizeof(key), "thread %u", worker->number);
	for (unsigned round = 0; round < crowd->each; round++) {
		bool odd = (round + worker->number) % 2;
		const struct way *way = odd ? &crowd->pair.up : &crowd->pair.down;

		atomic_store(&tickets[0].completions, 0);
		atomic_store(&tickets[1].completions, 0);
		block_fill(worker->source, worker->number * 100000 + round);
		op.cookie = &tickets[0];
		EXPECT(crowd,
		       !haul_recv(way->in, haul_key(key), &worker->target->tensor, NULL, &op));
		op.cookie = &tickets[1];
		EXPECT(crowd,
		       !haul_send(way->out, haul_key(key), &worker->source->tensor, NULL, &op));
		while ((!atomic_load(&tickets[0].completions) ||
			!atomic_load(&tickets[1].completions)) &&
		       now_ms() < until) {
			poll_for_all(crowd, crowd->pair.a->context, round % 3 ? 0 : 1);
			poll_for_all(crowd, crowd->pair.b->context, round % 3 ? 1 : 0);
		}
		EXPECT(crowd, atomic_load(&tickets[0].completions) == 1);
		EXPECT(crowd, atomic_load(&tickets[1].completions) == 1);
		EXPECT(crowd, atomic_load(&tickets[0].result) == 0);
		EXPECT(crowd, atomic_load(&tickets[1].result) == 0);
		EXPECT(crowd, block_holds(worker->target, worker->number * 100000 + round));
		if (atomic_load(&crowd->wrong))
			break;
	}
	return NULL;
}

static void run_workers(struct world *world, struct crowd *crowd, void *(*function)(void *))
{
	struct worker *workers = world_memory(world, THREADS * sizeof(*workers));

	for (unsigned i = 0; i < THREADS; i++) {
		workers[i].crowd = crowd;
		workers[i].number = i;
		workers[i].source = block_new(world, crowd->bytes);
		workers[i].target = block_new(world, crowd->bytes);
		assert_int_equal(pthread_create(&workers[i].thread, NULL, function, &workers[i]),
				 0);
	}
	for (unsigned i = 0; i < THREADS; i++)
		pthread_join(workers[i].thread, NULL);
	if (atomic_load(&crowd->wrong))
		fail_msg("%u things went wrong, first in line %u of threads.c",
			 atomic_load(&crowd->wrong), atomic_load(&crowd->lines[0]));
}

static void crowded(struct world *world, const char *options, size_t bytes, unsigned each)
{
	struct crowd *crowd = world_memory(world, sizeof(*crowd));

	pair_open(world, options, &crowd->pair);
	crowd->bytes = bytes;
	crowd->each = each;
	run_workers(world, crowd, work);
	check_alive(&crowd->pair);
}

static void test_f34_threads_on_one_context_by_caller(void **state)
{
	crowded(*state, "progress=caller", 500, rounds(500, 10000));
}

static void test_f34_threads_on_one_context_by_thread(void **state)
{
	crowded(*state, "progress=thread", 500, rounds(500, 10000));
}

static void test_f34_threads_with_large_tensors(void **state)
{
	crowded(*state, "progress=caller", 1 << 20, rounds(20, 400));
}

static void test_f34_threads_with_checksums(void **state)
{
	crowded(*state, "progress=thread,checksum=crc32c", 300000, rounds(50, 1000));
}

/* ---- Blocking helpers -------------------------------------------------- */

/* One thread sends, the other one receives, by the helpers only. */
static void *receive_by_helper(void *user)
{
	struct worker *worker = user;
	struct crowd *crowd = worker->crowd;
	struct haul_tensor_info info;
	char key[24];

	snprintf(key, sizeof(key), "helper %u", worker->number / 2);
	for (unsigned round = 0; round < crowd->each; round++) {
		EXPECT(crowd,
		       haul_query_wait(crowd->pair.up.in, haul_key(key), PATIENCE_MS, &info) == 0);
		EXPECT(crowd, info.bytes == crowd->bytes);
		EXPECT(crowd,
		       haul_recv_wait(crowd->pair.up.in, haul_key(key), &worker->target->tensor,
				      NULL, PATIENCE_MS, &info) == 0);
		EXPECT(crowd, info.bytes == crowd->bytes);
		EXPECT(crowd, block_holds(worker->target, round));
	}
	return NULL;
}

static void *send_by_helper(void *user)
{
	struct worker *worker = user;
	struct crowd *crowd = worker->crowd;
	char key[24];

	if (worker->number % 2)
		return receive_by_helper(user);
	snprintf(key, sizeof(key), "helper %u", worker->number / 2);
	for (unsigned round = 0; round < crowd->each; round++) {
		block_fill(worker->source, round);
		EXPECT(crowd, haul_send_wait(crowd->pair.up.out, haul_key(key),
					     &worker->source->tensor, NULL, PATIENCE_MS) == 0);
	}
	return NULL;
}

static void helpers(struct world *world, const char *options)
{
	struct crowd *crowd = world_memory(world, sizeof(*crowd));

	pair_open(world, options, &crowd->pair);
	crowd->bytes = 10000;
	crowd->each = rounds(100, 2000);
	run_workers(world, crowd, send_by_helper);
}

static void test_f34_helpers_in_several_threads_by_caller(void **state)
{
	helpers(*state, "progress=caller");
}

static void test_f34_helpers_in_several_threads_by_thread(void **state)
{
	helpers(*state, "progress=thread");
}

struct meeting {
	haul_context *context;
	const char *address;
	haul_endpoint *endpoint;
	int result;
};

static void *connect_by_helper(void *user)
{
	struct meeting *meeting = user;

	meeting->result = haul_connect_wait(meeting->context, meeting->address, PATIENCE_MS,
					    &meeting->endpoint);
	return NULL;
}

/* connect_wait and accept_wait, and their deadlines and errors. */
static void test_helpers_connect_and_accept(void **state)
{
	struct world *world = *state;
	struct side *a = side_open(world, "progress=thread");
	struct side *b = side_open(world, "progress=thread");
	struct meeting meeting = {.context = b->context, .address = side_listen(a)};
	struct block *block = block_new(world, 100);
	struct haul_tensor_info info;
	haul_endpoint *accepted = (haul_endpoint *)&meeting;
	pthread_t thread;
	uint64_t started = now_ms();

	assert_int_equal(haul_accept_wait(a->listener, 50, &accepted), -ETIMEDOUT);
	assert_null(accepted);
	assert_in_range(now_ms() - started, 49, 2000);
	assert_int_equal(pthread_create(&thread, NULL, connect_by_helper, &meeting), 0);
	assert_int_equal(haul_accept_wait(a->listener, PATIENCE_MS, &accepted), 0);
	pthread_join(thread, NULL);
	assert_int_equal(meeting.result, 0);
	assert_non_null(meeting.endpoint);
	assert_non_null(accepted);
	assert_int_equal(haul_recv_wait(accepted, haul_key("k"), &block->tensor, NULL, 30, &info),
			 -ETIMEDOUT);
	assert_int_equal(haul_send_wait(accepted, haul_key("k"), &block->tensor, NULL, 30),
			 -ETIMEDOUT);
	assert_int_equal(haul_query_wait(accepted, haul_key("k"), 30, &info), -ETIMEDOUT);
	check_error(a->context, -ETIMEDOUT, -ETIMEDOUT, NULL);
	assert_int_equal(
		haul_send_wait(accepted, (struct haul_key){"", 0}, &block->tensor, NULL, 30),
		-EINVAL);
	haul_disconnect(accepted);
	haul_disconnect(meeting.endpoint);
}

/* Completions of other operations are kept for the next haul_poll() while a helper waits. */
static void test_helpers_keep_other_completions(void **state)
{
	struct world *world = *state;
	struct block *block = block_new(world, 100);
	struct entry *entries[3];
	struct pair pair;

	pair_open(world, NULL, &pair);
	for (int i = 0; i < 3; i++) {
		struct extra extra = {.timeout_ms = 20};

		entries[i] =
			post_with(&pair.down, HAUL_SENT, haul_key("k"), &block->tensor, &extra);
	}
	assert_int_equal(
		haul_send_wait(pair.down.out, haul_key("other"), &block->tensor, NULL, 100),
		-ETIMEDOUT);
	assert_int_equal(side_poll(pair.a), 3);
	for (int i = 0; i < 3; i++)
		check_result(entries[i], -ETIMEDOUT);
}

/* ---- Everything at once ------------------------------------------------ */

/* Connects, exchanges one tensor with itself and disconnects, while others do. */
static void *come_and_go(void *user)
{
	struct worker *worker = user;
	struct crowd *crowd = worker->crowd;
	const char *address = haul_listener_address(crowd->pair.a->listener);
	haul_endpoint *endpoint;

	for (unsigned round = 0; round < crowd->each; round++) {
		haul_region *region = NULL;

		EXPECT(crowd, haul_connect_wait(crowd->pair.b->context, address, PATIENCE_MS,
						&endpoint) == 0);
		EXPECT(crowd, !haul_region_register(crowd->pair.b->context, worker->source->data,
						    crowd->bytes, HAUL_USE_SEND, &region));
		EXPECT(crowd, haul_send_wait(endpoint, haul_key("nobody"), &worker->source->tensor,
					     region, 1) == -ETIMEDOUT);
		EXPECT(crowd, haul_region_release(region) == 0);
		haul_disconnect(endpoint);
	}
	return NULL;
}

static void test_f34_connecting_in_several_threads(void **state)
{
	struct world *world = *state;
	struct crowd *crowd = world_memory(world, sizeof(*crowd));

	pair_open(world, "progress=thread", &crowd->pair);
	crowd->bytes = 1000;
	crowd->each = rounds(15, 60);
	run_workers(world, crowd, come_and_go);
	world_run_for(world, 50);
	for (unsigned i = 1; i < crowd->pair.a->accepted_count; i++)
		haul_disconnect(crowd->pair.a->accepted[i]);
	check_alive(&crowd->pair);
}

static void *own_contexts(void *user)
{
	struct world *world = world_new(user);
	struct pair pair;

	pair_open(world, NULL, &pair);
	for (int i = 0; i < 50; i++)
		check_alive(&pair);
	side_close(pair.a);
	side_close(pair.b);
	return world;
}

/* Contexts share nothing: each thread has a world of its own. (A failed assert ends the program.)
 */
static void test_f34_contexts_in_several_threads(void **state)
{
	pthread_t threads[4];
	void *worlds[4];

	(void)state;
	for (int i = 0; i < 4; i++)
		assert_int_equal(pthread_create(&threads[i], NULL, own_contexts, NULL), 0);
	for (int i = 0; i < 4; i++)
		pthread_join(threads[i], &worlds[i]);
	for (int i = 0; i < 4; i++) {
		struct world *world = worlds[i];

		world->descriptors = descriptors_open();
		world->threads = threads_running();
		assert_int_equal(world_free(world), 0);
	}
}

static const struct CMUnitTest tests[] = {
	WORLD_TEST(test_f34_threads_on_one_context_by_caller),
	WORLD_TEST(test_f34_threads_on_one_context_by_thread),
	WORLD_TEST(test_f34_threads_with_large_tensors),
	WORLD_TEST(test_f34_threads_with_checksums),
	WORLD_TEST(test_f34_helpers_in_several_threads_by_caller),
	WORLD_TEST(test_f34_helpers_in_several_threads_by_thread),
	WORLD_TEST(test_helpers_connect_and_accept),
	WORLD_TEST(test_helpers_keep_other_completions),
	WORLD_TEST(test_f34_connecting_in_several_threads),
	WORLD_TEST(test_f34_contexts_in_several_threads),
};

const struct test_table thread_tests = TABLE_OF(tests);
