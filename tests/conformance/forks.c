/* SPDX-License-Identifier: Apache-2.0 */
/* F40: a forked child's calls fail with a clear error, and the parent goes on. */
#include "harness.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/wait.h>
#include <unistd.h>

#define CHILD_EXPECT(condition)                                                                    \
	do {                                                                                       \
		if (!(condition)) {                                                                \
			fprintf(stderr, "forked child: %s does not hold\n", #condition);           \
			_exit(1);                                                                  \
		}                                                                                  \
	} while (0)

static void child_calls(const struct pair *pair, haul_region *region, struct block *block)
{
	haul_context *context = pair->a->context;
	haul_endpoint *endpoint = pair->up.in;
	struct haul_completion completion;
	struct haul_statistics statistics = {.size = sizeof(statistics)};
	struct haul_tensor_info info;
	haul_listener *listener;
	haul_region *other;
	DLTensor *tensor = &block->tensor;

	CHILD_EXPECT(haul_poll(context, &completion, 1, 0) == -ECHILD);
	CHILD_EXPECT(haul_poll(context, &completion, 1, -1) == -ECHILD);
	CHILD_EXPECT(strstr(haul_detail(context), "fork"));
	CHILD_EXPECT(haul_send(endpoint, haul_key("k"), tensor, NULL, NULL) == -ECHILD);
	CHILD_EXPECT(haul_recv(endpoint, haul_key("k"), tensor, NULL, NULL) == -ECHILD);
	CHILD_EXPECT(haul_query(endpoint, haul_key("k"), NULL) == -ECHILD);
	CHILD_EXPECT(haul_cancel(context, block) == -ECHILD);
	CHILD_EXPECT(haul_event_fd(context) == -ECHILD);
	CHILD_EXPECT(haul_listen(context, "127.0.0.1:0", NULL, &listener) == -ECHILD);
	CHILD_EXPECT(haul_connect(context, "127.0.0.1:1", NULL) == -ECHILD);
	CHILD_EXPECT(haul_region_register(context, block->data, 8, HAUL_USE_SEND, &other) ==
		     -ECHILD);
	CHILD_EXPECT(haul_region_allocate(context, 8, HAUL_USE_SEND, &other) == -ECHILD);
	CHILD_EXPECT(haul_region_release(region) == -ECHILD);
	CHILD_EXPECT(haul_endpoint_statistics(endpoint, &statistics) == -ECHILD);
	CHILD_EXPECT(haul_context_statistics(context, &statistics) == -ECHILD);
	CHILD_EXPECT(haul_send_wait(endpoint, haul_key("k"), tensor, NULL, -1) == -ECHILD);
	CHILD_EXPECT(haul_recv_wait(endpoint, haul_key("k"), tensor, NULL, -1, &info) == -ECHILD);
	CHILD_EXPECT(haul_query_wait(endpoint, haul_key("k"), -1, &info) == -ECHILD);
	CHILD_EXPECT(haul_connect_wait(context, "127.0.0.1:1", -1, &endpoint) == -ECHILD);
	CHILD_EXPECT(haul_accept_wait(pair->a->listener, -1, &endpoint) == -ECHILD);
	CHILD_EXPECT(strlen(haul_detail(context)) > 20);
}

/* A context of the child's own works beside the copies of the parent's, or is refused with a word.
 */
static void child_opens(void)
{
	haul_context *own;
	haul_listener *listener;
	unsigned number; /* the table is the child's own now: it is never given back */
	char *spec = spec_numbered(settings.transport, &number);
	char where[128];
	int error;

	snprintf(where, sizeof(where), "%s:0", settings.listen_host);
	error = haul_open(spec, &own);
	free(spec);
	if (error == -ECHILD) {
		CHILD_EXPECT(strlen(haul_detail(NULL)) > 20);
		return;
	}
	CHILD_EXPECT(error == 0);
	CHILD_EXPECT(haul_listen(own, where, NULL, &listener) == 0);
	haul_close(own);
}

static void child_main(const struct pair *pair, haul_region *region, struct block *block)
{
	alarm(60);
	child_calls(pair, region, block);
	child_opens();
	/* These have no result; they must do no harm. */
	haul_disconnect(pair->up.in);
	haul_listener_close(pair->a->listener);
	child_calls(pair, region, block);
	haul_close(pair->a->context);
	haul_close(pair->b->context);
	child_opens();
	_exit(0);
}

static void wait_for_child(struct world *world, pid_t child)
{
	uint64_t until = now_ms() + 60000;
	int status;
	pid_t gone;

	while ((gone = waitpid(child, &status, WNOHANG)) == 0) {
		assert_true(now_ms() < until);
		world_run_for(world, 2);
	}
	assert_int_equal(gone, child);
	if (!WIFEXITED(status) || WEXITSTATUS(status))
		fail_msg("the forked child ended with status %#x", status);
}

static void forked(struct world *world, const char *options)
{
	struct block *source = block_new(world, 12 << 20), *target = block_new(world, 12 << 20);
	struct block *child_block = block_new(world, 100);
	haul_region *region;
	struct pair pair;
	pid_t child;

	pair_open(world, options, &pair);
	assert_int_equal(
		haul_region_register(pair.a->context, source->data, 100, HAUL_USE_SEND, &region),
		0);
	check_alive(&pair); /* "after the first transfer" */
	for (int i = 0; i < 3; i++) {
		block_fill(source, (uint64_t)i);
		post_recv(&pair.up, haul_key("k"), &target->tensor);
		post_send(&pair.up, haul_key("k"), &source->tensor);
		for (int step = 0; step < 3 * i; step++) {
			side_poll(pair.a);
			side_poll(pair.b);
		}
		fflush(stdout);
		child = fork(); /* in mid-transfer */
		assert_true(child >= 0);
		if (!child)
			child_main(&pair, region, child_block);
		wait_all(world);
		wait_for_child(world, child);
		block_check(target, (uint64_t)i);
		check_alive(&pair);
	}
	assert_int_equal(pair.a->lost_count + pair.b->lost_count, 0);
	assert_int_equal(haul_region_release(region), 0);
}

static void test_f40_fork_by_caller(void **state)
{
	forked(*state, "progress=caller");
}

static void test_f40_fork_by_thread(void **state)
{
	if (thread_sanitized())
		skip_because("the thread sanitizer can't fork a program of several threads");
	forked(*state, "progress=thread");
}

/* The parent goes while the child holds copies: the peer must see the end all the same. */
static void test_f40_parent_closes_while_a_child_lives(void **state)
{
	struct world *world = *state;
	struct pair pair;
	int blocked[2];
	pid_t child;
	char byte;

	pair_open(world, NULL, &pair);
	check_alive(&pair);
	assert_int_equal(pipe(blocked), 0);
	child = fork();
	if (!child) {
		close(blocked[1]);
		_exit(read(blocked[0], &byte, 1) == 0 ? 0 : 1);
	}
	close(blocked[0]);
	side_close(pair.b);
	wait_lost(pair.a, 1);
	assert_int_equal(pair.a->lost[0].result, 0);
	close(blocked[1]);
	wait_for_child(world, child);
}

static const struct CMUnitTest tests[] = {
	WORLD_TEST(test_f40_fork_by_caller),
	WORLD_TEST(test_f40_fork_by_thread),
	WORLD_TEST(test_f40_parent_closes_while_a_child_lives),
};

const struct test_table fork_tests = TABLE_OF(tests);
