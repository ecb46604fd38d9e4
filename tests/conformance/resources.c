/* SPDX-License-Identifier: Apache-2.0 */
/* F29: descriptors. Each test's teardown compares how many are open, too. */
#include "harness.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <sys/resource.h>
#include <unistd.h>

#include "load.h"
#include "peer.h"

static struct rlimit limit_before;

/* Let the process open `more` descriptors than it has now. */
static void limit_descriptors(unsigned more)
{
	struct rlimit limit;
	int next = 0;

	/* The limit is on the number of a descriptor, and there may be gaps below the highest. */
	for (unsigned found = 0; found <= more; next++)
		found += fcntl(next, F_GETFD) < 0;
	getrlimit(RLIMIT_NOFILE, &limit_before);
	limit = limit_before;
	limit.rlim_cur = (rlim_t)next - 1;
	assert_int_equal(setrlimit(RLIMIT_NOFILE, &limit), 0);
}

static void unlimit_descriptors(void)
{
	setrlimit(RLIMIT_NOFILE, &limit_before);
}

static int teardown_limited(void **state)
{
	unlimit_descriptors();
	return world_teardown(state);
}

static int setup_limited(void **state)
{
	getrlimit(RLIMIT_NOFILE, &limit_before);
	return world_setup(state);
}

/* From none to enough: either it opens, or it says why and leaves nothing behind. */
static void test_f29_open_with_few_descriptors(void **state)
{
	struct world *world = *state;
	bool failed = false;

	for (unsigned more = 0; more < 24; more++) {
		int before = descriptors_open(), error = 0;
		struct side *side;

		limit_descriptors(more);
		side = side_try_open(world, NULL, &error);
		unlimit_descriptors();
		if (side) {
			side_close(side);
		} else {
			failed = true;
			check_error(NULL, error, -EMFILE, (const char *const[]){"ulimit -n", NULL});
		}
		assert_int_equal(descriptors_open(), before);
	}
	assert_true(failed);
}

static void test_f29_listen_with_few_descriptors(void **state)
{
	struct world *world = *state;
	struct side *side = side_open(world, NULL);
	char *where = world_text(world, "%s:0", settings.listen_host);
	bool listened = false;

	for (unsigned more = 0; more < 8; more++) {
		int before = descriptors_open(), error;
		haul_listener *listener = NULL;

		limit_descriptors(more);
		error = haul_listen(side->context, where, side, &listener);
		unlimit_descriptors();
		if (error) {
			check_error(side->context, error, -EMFILE,
				    (const char *const[]){"ulimit -n", NULL});
			assert_null(listener);
			assert_int_equal(descriptors_open(), before);
		}
		listened |= !error;
		haul_listener_close(listener);
	}
	assert_true(listened);
}

static void test_f29_event_fd_with_few_descriptors(void **state)
{
	struct world *world = *state;
	struct side *side = side_open(world, NULL);
	int result = -1;

	side->asleep = true;
	for (unsigned more = 0; more < 8 && result < 0; more++) {
		int before = descriptors_open();

		limit_descriptors(more);
		result = haul_event_fd(side->context);
		unlimit_descriptors();
		if (result < 0) {
			check_error(side->context, result, -EMFILE,
				    (const char *const[]){"ulimit -n", NULL});
			assert_int_equal(descriptors_open(), before);
		}
	}
	assert_true(result >= 0);
}

/* Where an endpoint takes no descriptor, it can't fail for want of one. */
static void skip_without_descriptors(int before, int endpoints)
{
	if (descriptors_open() - before < endpoints)
		skip_because("this transport's endpoints take no descriptors");
}

/* Connect until it fails for want of descriptors, in the call or in the completion. */
static void use_up_descriptors(struct side *side, const char *address)
{
	static const char *const words[] = {"ulimit -n", NULL};

	for (int i = 0; i < 64; i++) {
		int error;
		struct entry *connect = try_connect(side, address, &error);

		if (!connect) {
			check_error(side->context, error, -EMFILE, words);
			return;
		}
		wait_done(connect);
		if (connect->result) {
			check_result(connect, -EMFILE);
			check_words(connect->detail, words);
			return;
		}
	}
	fail_msg("64 connections with 20 descriptors");
}

/* The endpoints that there are go on, and when there are descriptors again, so does all. */
static void test_f29_connect_until_there_are_none(void **state)
{
	struct world *world = *state;
	const char *address;
	struct way up, down;
	unsigned long sum;
	struct peer *peer;
	struct side *side;
	struct load *load;
	int descriptors;

	skip_without_peers();
	side = side_open(world, "connect_ms=3000");
	peer = peer_start(world, NULL);
	address = connect_address(world, peer_ask(peer, "listen"));
	peer_connect(peer, side, address, &up, &down);
	peer_wait_accepted(peer, 1);
	/* The first one may have opened what all of them share. */
	descriptors = descriptors_open();
	wait_result(post_connect(side, address), 0);
	skip_without_descriptors(descriptors, 1);
	load = load_start(side, up.out, true, 20000, 2);
	peer_ask(peer, "load 20000 2");
	world_run_for(world, 20);
	limit_descriptors(20);
	use_up_descriptors(side, address);
	sum = load->sent + load->received;
	for (uint64_t until = now_ms() + PATIENCE_MS; load->sent + load->received < sum + 20;)
		world_step(world, until, "the load to go on");
	unlimit_descriptors();
	wait_result(post_connect(side, address), 0);
	assert_int_equal(load->failed, 0);
	assert_int_equal(load->wrong, 0);
}

static uint64_t cpu_ticks_of(pid_t pid)
{
	unsigned long long user = 0, system = 0;
	char path[64];
	FILE *file;

	snprintf(path, sizeof(path), "/proc/%d/stat", (int)pid);
	file = fopen(path, "re");
	if (!file)
		return 0;
	if (fscanf(file, "%*d (%*[^)]) %*c %*d %*d %*d %*d %*d %*u %*u %*u %*u %*u %llu %llu",
		   &user, &system) != 2)
		user = system = 0;
	fclose(file);
	return user + system;
}

/*
 * The accepting process is the one without descriptors: those it has go on, those it can't take
 * fail in time, it doesn't spin meanwhile, and it accepts again once some were given back.
 */
static void test_f29_acceptor_without_descriptors(void **state)
{
	enum { COUNT = 40 };
	struct world *world = *state;
	struct entry *connects[COUNT], *again;
	struct block *block;
	struct peer *peer;
	struct side *side;
	const char *address;
	unsigned made = 0, accepted;
	int descriptors;
	uint64_t ticks;
	struct way up = {0};

	skip_without_peers();
	if (sanitized())
		skip_because("a sanitizer needs descriptors of its own");
	side = side_open(world, "connect_ms=1500");
	peer = peer_start_limited(world, "handshake_ms=1000", 32);
	address = connect_address(world, peer_ask(peer, "listen"));
	descriptors = descriptors_open();
	for (int i = 0; i < COUNT; i++)
		connects[i] = post_connect(side, address);
	wait_all(world);
	skip_without_descriptors(descriptors, COUNT / 2);
	for (int i = 0; i < COUNT; i++)
		made += connects[i]->result == 0;
	print_message("%u of %d connections were made\n", made, COUNT);
	assert_in_range(made, 1, COUNT - 1);
	accepted = made;
	peer_wait_accepted(peer, accepted);
	ticks = cpu_ticks_of(peer->pid);
	world_run_for(world, 600);
	ticks = cpu_ticks_of(peer->pid) - ticks;
	if (ticks > (uint64_t)sysconf(_SC_CLK_TCK) * 3 / 10)
		fail_msg("the acceptor burns %llu ticks in 600 ms", (unsigned long long)ticks);
	block = block_new(world, 1000);
	for (int i = 0; i < COUNT; i++) {
		if (connects[i]->result)
			continue;
		haul_disconnect(connects[i]->endpoint);
		if (--made == 0)
			break;
	}
	/* Its endpoints of old are lost, but they keep nothing that a new one needs. */
	world_run_for(world, 100);
	again = post_connect(side, address);
	wait_result(again, 0);
	up.from = up.to = side;
	up.out = again->endpoint;
	peer_wait_accepted(peer, accepted + 1);
	peer_ask(peer, "recv k 1000 1 0");
	block_fill(block, 0);
	wait_result(post_send(&up, haul_key("k"), &block->tensor), 0);
}

/* Made, used, closed, in every state: the count is the same as before. */
static void test_f29_descriptors_before_and_after(void **state)
{
	struct world *world = *state;
	int before = descriptors_open(), threads = threads_running() + (thread_sanitized() ? 1 : 0);

	for (unsigned i = 0; i < rounds(12, 100); i++) {
		struct block *source = block_new(world, 2 << 20),
			     *target = block_new(world, 2 << 20);
		struct pair pair;

		pair_open(
			world,
			world_text(world, "linger_ms=20,progress=%s", i % 2 ? "thread" : "caller"),
			&pair);
		post_recv(&pair.up, haul_key("k"), &target->tensor);
		post_send(&pair.up, haul_key("k"), &source->tensor);
		for (unsigned step = 0; step < i; step++) {
			side_poll(pair.a);
			side_poll(pair.b);
		}
		post_connect(pair.b,
			     connect_address(world, haul_listener_address(pair.a->listener)));
		side_close(i % 3 ? pair.a : pair.b);
		side_close(i % 3 ? pair.b : pair.a);
		assert_int_equal(descriptors_open(), before);
	}
	assert_int_equal(threads_over(threads), 0);
}

#define LIMITED_TEST(function)                                                                     \
	{                                                                                          \
#function, function, setup_limited, teardown_limited, NULL                         \
	}

static const struct CMUnitTest tests[] = {
	LIMITED_TEST(test_f29_open_with_few_descriptors),
	LIMITED_TEST(test_f29_listen_with_few_descriptors),
	LIMITED_TEST(test_f29_event_fd_with_few_descriptors),
	LIMITED_TEST(test_f29_connect_until_there_are_none),
	WORLD_TEST(test_f29_acceptor_without_descriptors),
	WORLD_TEST(test_f29_descriptors_before_and_after),
};

const struct test_table resource_tests = TABLE_OF(tests);
