/* SPDX-License-Identifier: Apache-2.0 */
/* haul_poll() and haul_event_fd(): how completions are waited for. */
#include "harness.h"

#include <errno.h>
#include <poll.h>
#include <pthread.h>
#include <stdio.h>
#include <sys/epoll.h>
#include <unistd.h>

/* All work through one epoll set and haul_poll(..., 0); a wake-up that is missing hangs. */
static void test_event_fd_in_epoll(void **state)
{
	struct world *world = *state;
	static const size_t sizes[] = {0, 64, 100000, 20 << 20};
	struct block *sources[4], *targets[4];
	struct epoll_event ready[2], event = {.events = EPOLLIN};
	int set = epoll_create1(EPOLL_CLOEXEC);
	struct pair pair;
	unsigned long started;

	pair_open(world, NULL, &pair);
	event.data.ptr = pair.a;
	assert_int_equal(epoll_ctl(set, EPOLL_CTL_ADD, haul_event_fd(pair.a->context), &event), 0);
	event.data.ptr = pair.b;
	assert_int_equal(epoll_ctl(set, EPOLL_CTL_ADD, haul_event_fd(pair.b->context), &event), 0);
	for (unsigned i = 0; i < 4; i++) {
		sources[i] = block_new(world, sizes[i]);
		targets[i] = block_new(world, sizes[i]);
	}
	for (unsigned round = 0; round < rounds(200, 2000); round++) {
		unsigned size = round % 40 == 0 ? 3 : round % 3;

		block_fill(sources[size], round);
		post_send(&pair.up, haul_key("k"), &sources[size]->tensor);
		post_recv(&pair.up, haul_key("k"), &targets[size]->tensor);
		started = pair.a->started + pair.b->started;
		while (pair.a->finished + pair.b->finished < started) {
			int count = epoll_wait(set, ready, 2, PATIENCE_MS);

			if (count < 1)
				fail_msg("no event descriptor is readable");
			for (int i = 0; i < count; i++)
				side_poll(ready[i].data.ptr);
		}
		block_check(targets[size], round);
	}
	close(set);
}

/*
 * With a thread of the library's a call is enough, whatever that thread is just doing: nobody has
 * to poll before the operation goes on. The side that was just told of an end posts the next
 * receive.
 */
static void test_calls_beside_a_progress_thread(void **state)
{
	struct world *world = *state;
	struct block *source = block_new(world, 100), *target = block_new(world, 100);
	struct pollfd list[2];
	struct pair pair;

	pair_open(world, "progress=thread", &pair);
	list[0].fd = haul_event_fd(pair.a->context);
	list[1].fd = haul_event_fd(pair.b->context);
	list[0].events = list[1].events = POLLIN;
	for (unsigned round = 0; round < rounds(2000, 20000); round++) {
		const struct way *way = round % 2 ? &pair.up : &pair.down;
		struct entry *received = post_recv(way, haul_key("k"), &target->tensor);
		struct entry *sent = post_send(way, haul_key("k"), &source->tensor);

		while (!received->done || !sent->done) {
			if (poll(list, 2, 5000) < 1)
				fail_msg("round %u: nothing moves without haul_poll()", round);
			if (list[0].revents)
				side_poll(pair.a);
			if (list[1].revents)
				side_poll(pair.b);
		}
		entry_recycle(received);
		entry_recycle(sent);
	}
}

/* Nothing to do: the descriptor is not readable, or an event loop would spin. */
static void test_event_fd_is_quiet_when_idle(void **state)
{
	struct world *world = *state;
	struct pollfd list[2];
	struct pair pair;

	pair_open(world, NULL, &pair);
	check_alive(&pair);
	world_run_for(world, 200);
	list[0].fd = haul_event_fd(pair.a->context);
	list[1].fd = haul_event_fd(pair.b->context);
	list[0].events = list[1].events = POLLIN;
	for (int i = 0; i < 3; i++) {
		/* A transport may wake up for its own timers, but then it must come to rest. */
		while (poll(list, 2, 300) > 0) {
			assert_true(i < 2);
			assert_int_equal(side_poll(pair.a) + side_poll(pair.b), 0);
			i++;
		}
	}
	assert_int_equal(haul_event_fd(pair.a->context), list[0].fd);
}

/* Completions that weren't fetched yet keep it readable: it is level-triggered. */
static void test_event_fd_is_level_triggered(void **state)
{
	struct world *world = *state;
	struct block *block = block_new(world, 10);
	struct haul_completion completion;
	struct haul_op op = HAUL_OP_INIT;
	struct pollfd list = {.events = POLLIN};
	struct pair pair;

	pair_open(world, NULL, &pair);
	world_run_for(world, 10);
	list.fd = haul_event_fd(pair.a->context);
	for (int i = 0; i < 3; i++) {
		op.cookie = &list;
		assert_int_equal(haul_send(pair.down.out, haul_key("k"), &block->tensor, NULL, &op),
				 0);
	}
	assert_int_equal(haul_cancel(pair.a->context, &list), 3);
	for (int i = 0; i < 3; i++) {
		assert_int_equal(poll(&list, 1, PATIENCE_MS), 1);
		while (haul_poll(pair.a->context, &completion, 1, 0) == 0)
			assert_int_equal(poll(&list, 1, PATIENCE_MS), 1);
		assert_int_equal(completion.result, -ECANCELED);
	}
}

/* An operation that another thread or nobody's poll started must not be forgotten. */
static void test_event_fd_after_a_call_without_poll(void **state)
{
	struct world *world = *state;
	struct block *source = block_new(world, 3 << 20), *target = block_new(world, 3 << 20);
	struct pollfd list[2];
	struct entry *received;
	struct pair pair;
	uint64_t until = now_ms() + PATIENCE_MS;

	pair_open(world, NULL, &pair);
	world_run_for(world, 20);
	received = post_recv(&pair.up, haul_key("k"), &target->tensor);
	post_send(&pair.up, haul_key("k"), &source->tensor);
	list[0].fd = haul_event_fd(pair.a->context);
	list[1].fd = haul_event_fd(pair.b->context);
	list[0].events = list[1].events = POLLIN;
	while (!received->done) {
		assert_true(now_ms() < until);
		if (poll(list, 2, PATIENCE_MS) < 1)
			fail_msg("an operation was started, and nothing is readable");
		if (list[0].revents)
			side_poll(pair.a);
		if (list[1].revents)
			side_poll(pair.b);
	}
	wait_all(world);
}

static void test_poll_times(void **state)
{
	struct world *world = *state;
	struct haul_completion completion;
	struct pair pair;
	uint64_t started;

	pair_open(world, NULL, &pair);
	world_run_for(world, 50);
	started = now_ms();
	assert_int_equal(haul_poll(pair.a->context, &completion, 1, 80), 0);
	assert_in_range(now_ms() - started, 79, 80 + 1500);
	started = now_us();
	for (int i = 0; i < 100; i++)
		assert_int_equal(haul_poll(pair.a->context, &completion, 1, 0), 0);
	assert_in_range(now_us() - started, 0, 500000);
	/* max 0 doesn't wait, whatever the time says */
	started = now_ms();
	assert_int_equal(haul_poll(pair.a->context, NULL, 0, 5000), 0);
	assert_int_equal(haul_poll(pair.a->context, NULL, 0, -1), 0);
	assert_in_range(now_ms() - started, 0, 1500);
	assert_int_equal(haul_poll(pair.a->context, &completion, -1, 0), -EINVAL);
	assert_int_equal(haul_poll(pair.a->context, NULL, 1, 0), -EINVAL);
}

static void test_waiting_burns_no_cpu(void **state)
{
	struct world *world = *state;
	struct haul_completion completion;
	struct block *block = block_new(world, 10);
	struct pair pair;
	uint64_t before, least = UINT64_MAX;

	pair_open(world, NULL, &pair);
	check_alive(&pair);
	post_recv(&pair.up, haul_key("later"), &block->tensor);
	post_send(&pair.down, haul_key("later"), &block->tensor);
	world_run_for(world, 50);
	/* Who spins does it each time; on a busy machine a wake-up now and then is dear. */
	for (int i = 0; i < 4 && least > 100000; i++) {
		before = cpu_us();
		assert_int_equal(haul_poll(pair.a->context, &completion, 1, 500), 0);
		before = cpu_us() - before;
		least = before < least ? before : least;
	}
	if (!sanitized())
		assert_in_range(least, 0, 100000);
}

/* With max 0 bytes are moved, but completions stay for the next call. */
static void test_poll_with_max_0_moves_bytes(void **state)
{
	struct world *world = *state;
	struct block *source = block_new(world, 5 << 20), *target = block_new(world, 5 << 20);
	struct haul_completion completion;
	struct entry *sent;
	struct pair pair;
	uint64_t until = now_ms() + PATIENCE_MS;

	pair_open(world, NULL, &pair);
	block_fill(source, 1);
	post_recv(&pair.up, haul_key("k"), &target->tensor);
	sent = post_send(&pair.up, haul_key("k"), &source->tensor);
	while (!sent->done) { /* it ends when all is in place at a, which never fetches */
		assert_true(now_ms() < until);
		assert_int_equal(haul_poll(pair.a->context, NULL, 0, 0), 0);
		side_poll(pair.b);
	}
	block_check(target, 1);
	assert_int_equal(haul_poll(pair.a->context, &completion, 1, 0), 1);
	assert_int_equal(completion.event, HAUL_RECEIVED);
	((struct entry *)completion.cookie)->done = true;
	pair.a->finished++;
}

/* Completions are handed out in portions of any size, each once. */
static void test_poll_in_portions(void **state)
{
	enum { COUNT = 100 };
	struct world *world = *state;
	struct block *block = block_new(world, 8);
	struct haul_completion portion[7];
	struct haul_op op = HAUL_OP_INIT;
	bool seen[COUNT] = {false};
	struct pair pair;
	int ended = 0;

	pair_open(world, NULL, &pair);
	for (int i = 0; i < COUNT; i++) {
		op.cookie = &seen[i];
		assert_int_equal(haul_send(pair.up.out, haul_key("k"), &block->tensor, NULL, &op),
				 0);
		assert_int_equal(haul_cancel(pair.b->context, op.cookie), 1);
	}
	while (ended < COUNT) {
		int count = haul_poll(pair.b->context, portion, 1 + ended % 7, PATIENCE_MS);

		assert_in_range(count, 1, 1 + ended % 7);
		for (int i = 0; i < count; i++) {
			bool *mine = portion[i].cookie;

			assert_true(mine >= seen && mine < seen + COUNT);
			assert_false(*mine);
			*mine = true;
		}
		ended += count;
	}
	assert_int_equal(haul_poll(pair.b->context, portion, 7, 20), 0);
}

struct sleeper {
	haul_context *context;
	struct haul_completion completion;
	int count;
	uint64_t returned;
};

static void *sleep_in_poll(void *user)
{
	struct sleeper *sleeper = user;

	sleeper->count = haul_poll(sleeper->context, &sleeper->completion, 1, PATIENCE_MS);
	sleeper->returned = now_ms();
	return NULL;
}

/* One thread sleeps in haul_poll(); another one's calls must get it going. */
static void test_calls_wake_a_thread_in_poll(void **state)
{
	struct world *world = *state;
	struct block *source = block_new(world, 1 << 20), *target = block_new(world, 1 << 20);
	struct sleeper sleeper = {0};
	struct entry *received;
	struct pair pair;
	pthread_t thread;

	pair_open(world, NULL, &pair);
	received = post_recv(&pair.up, haul_key("k"), &target->tensor);
	world_run_for(world, 20);
	sleeper.context = pair.b->context;
	pair.b->asleep = true; /* the thread alone drives it */
	assert_int_equal(pthread_create(&thread, NULL, sleep_in_poll, &sleeper), 0);
	world_run_for(world, 50); /* it sleeps now, or soon will: both have to work */
	block_fill(source, 1);
	assert_int_equal(haul_send(pair.up.out, haul_key("k"), &source->tensor, NULL, NULL), 0);
	wait_result(received, 0);
	pthread_join(thread, NULL);
	assert_int_equal(sleeper.count, 1);
	assert_int_equal(sleeper.completion.event, HAUL_SENT);
	assert_int_equal(sleeper.completion.result, 0);
	block_check(target, 1);
}

static void test_cancel_wakes_a_thread_in_poll(void **state)
{
	struct world *world = *state;
	struct block *block = block_new(world, 100);
	struct haul_op op = HAUL_OP_INIT;
	struct sleeper sleeper = {0};
	struct pair pair;
	pthread_t thread;
	uint64_t cancelled;

	pair_open(world, NULL, &pair);
	op.cookie = &sleeper;
	assert_int_equal(haul_send(pair.down.out, haul_key("k"), &block->tensor, NULL, &op), 0);
	sleeper.context = pair.a->context;
	pair.a->asleep = true;
	assert_int_equal(pthread_create(&thread, NULL, sleep_in_poll, &sleeper), 0);
	world_run_for(world, 50);
	cancelled = now_ms();
	assert_int_equal(haul_cancel(pair.a->context, &sleeper), 1);
	pthread_join(thread, NULL);
	assert_int_equal(sleeper.count, 1);
	assert_int_equal(sleeper.completion.result, -ECANCELED);
	assert_in_range(sleeper.returned + 1 - cancelled, 0, 2000);
}

/* What is queued must leave although nobody polls again: a stall is an order of magnitude slower.
 */
static void small_tensors(struct world *world, const char *options)
{
	struct block *source = block_new(world, 64), *target = block_new(world, 64);
	unsigned count = rounds(500, 5000);
	uint64_t started, took;
	struct pair pair;

	pair_open(world, options, &pair);
	started = now_us();
	for (unsigned i = 0; i < count; i++) {
		struct entry *received = post_recv(&pair.up, haul_key("k"), &target->tensor);
		struct entry *sent = post_send(&pair.up, haul_key("k"), &source->tensor);

		wait_result(received, 0);
		wait_result(sent, 0);
	}
	took = (now_us() - started) / count;
	print_message("%llu us a tensor\n", (unsigned long long)took);
	assert_in_range(took, 0, sanitized() ? 30000 : 10000);
}

static void test_small_tensors_do_not_stall_by_caller(void **state)
{
	small_tensors(*state, "progress=caller");
}

static void test_small_tensors_do_not_stall_by_thread(void **state)
{
	small_tensors(*state, "progress=thread");
}

static const struct CMUnitTest tests[] = {
	WORLD_TEST(test_event_fd_in_epoll),
	WORLD_TEST(test_calls_beside_a_progress_thread),
	WORLD_TEST(test_event_fd_is_quiet_when_idle),
	WORLD_TEST(test_event_fd_is_level_triggered),
	WORLD_TEST(test_event_fd_after_a_call_without_poll),
	WORLD_TEST(test_poll_times),
	WORLD_TEST(test_waiting_burns_no_cpu),
	WORLD_TEST(test_poll_with_max_0_moves_bytes),
	WORLD_TEST(test_poll_in_portions),
	WORLD_TEST(test_calls_wake_a_thread_in_poll),
	WORLD_TEST(test_cancel_wakes_a_thread_in_poll),
	WORLD_TEST(test_small_tensors_do_not_stall_by_caller),
	WORLD_TEST(test_small_tensors_do_not_stall_by_thread),
};

const struct test_table poll_tests = TABLE_OF(tests);
