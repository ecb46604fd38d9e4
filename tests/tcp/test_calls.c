/* SPDX-License-Identifier: Apache-2.0 */
/*
 * F35: a 64 byte ping-pong, its system calls and its stalls. The functions that the library
 * calls are found here first, and counted on their way to the kernel.
 */
#include <errno.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <unistd.h>

#include "harness.h"

enum { BYTES = 64 };

static atomic_ulong writes, reads, waits;

/* ---- What is counted --------------------------------------------------- */

#define COUNTED __attribute__((visibility("default")))

COUNTED ssize_t send(int fd, const void *bytes, size_t length, int flags)
{
	atomic_fetch_add(&writes, 1);
	return syscall(SYS_sendto, fd, bytes, length, flags, NULL, 0);
}

COUNTED ssize_t sendmsg(int fd, const struct msghdr *message, int flags)
{
	atomic_fetch_add(&writes, 1);
	return syscall(SYS_sendmsg, fd, message, flags);
}

COUNTED ssize_t writev(int fd, const struct iovec *pieces, int count)
{
	atomic_fetch_add(&writes, 1);
	return syscall(SYS_writev, fd, pieces, count);
}

COUNTED ssize_t recv(int fd, void *bytes, size_t length, int flags)
{
	atomic_fetch_add(&reads, 1);
	return syscall(SYS_recvfrom, fd, bytes, length, flags, NULL, NULL);
}

COUNTED ssize_t recvmsg(int fd, struct msghdr *message, int flags)
{
	atomic_fetch_add(&reads, 1);
	return syscall(SYS_recvmsg, fd, message, flags);
}

COUNTED ssize_t readv(int fd, const struct iovec *pieces, int count)
{
	atomic_fetch_add(&reads, 1);
	return syscall(SYS_readv, fd, pieces, count);
}

COUNTED int epoll_wait(int fd, struct epoll_event *events, int most, int timeout)
{
	atomic_fetch_add(&waits, 1);
	return (int)syscall(SYS_epoll_wait, fd, events, most, timeout);
}

/* ---- The ping-pong ----------------------------------------------------- */

struct player {
	pthread_t thread;
	haul_context *context;
	haul_endpoint *endpoint;
	bool serves;
	unsigned rounds;
	uint8_t out[BYTES], in[BYTES];
	uint32_t *took_us; /* of each round; the one that serves */
	int error;
};

/* Wait until the receive has ended; the send that was answered has then ended too. */
static int await_ball(struct player *player)
{
	struct haul_completion batch[8];

	for (;;) {
		int count = haul_poll(player->context, batch, 8, 10000);

		if (count <= 0)
			return count ? count : -ETIMEDOUT;
		for (int i = 0; i < count; i++) {
			if (batch[i].result)
				return batch[i].result;
		}
		for (int i = 0; i < count; i++) {
			if (batch[i].event == HAUL_RECEIVED)
				return 0;
		}
	}
}

static int expect_ball(struct player *player)
{
	static const int64_t shape[] = {BYTES};
	DLTensor tensor = haul_tensor(player->in, type_u8, 1, shape);

	return haul_recv(player->endpoint, haul_key("ball"), &tensor, NULL, NULL);
}

static int hit(struct player *player)
{
	static const int64_t shape[] = {BYTES};
	DLTensor tensor = haul_tensor(player->out, type_u8, 1, shape);

	return haul_send(player->endpoint, haul_key("ball"), &tensor, NULL, NULL);
}

static void *play(void *user)
{
	struct player *player = user;

	for (unsigned i = 0; i < player->rounds && !player->error; i++) {
		uint64_t started = now_us();

		/* The receive was posted a round ago: the ball never waits for its READY. */
		if (player->serves)
			player->error = hit(player);
		if (!player->error)
			player->error = await_ball(player);
		if (!player->error && i + 1 < player->rounds)
			player->error = expect_ball(player);
		if (!player->error && !player->serves)
			player->error = hit(player);
		if (player->took_us)
			player->took_us[i] = (uint32_t)(now_us() - started);
	}
	return NULL;
}

static void play_both(struct player players[2], unsigned count)
{
	for (int i = 0; i < 2; i++) {
		players[i].rounds = count;
		assert_int_equal(expect_ball(&players[i]), 0);
		haul_poll(players[i].context, NULL, 0, 0);
	}
	for (int i = 0; i < 2; i++)
		assert_int_equal(pthread_create(&players[i].thread, NULL, play, &players[i]), 0);
	for (int i = 0; i < 2; i++)
		pthread_join(players[i].thread, NULL);
	for (int i = 0; i < 2; i++)
		assert_int_equal(players[i].error, 0);
}

static int compare(const void *a, const void *b)
{
	uint32_t left = *(const uint32_t *)a, right = *(const uint32_t *)b;

	return left < right ? -1 : left > right;
}

/* Two tensors a round: calls of both ends together, for one tensor. */
static double per_tensor(unsigned long calls, unsigned count)
{
	return (double)calls / (2.0 * count);
}

static void ping_pong(struct world *world, const char *options, double most_waits)
{
	enum { WARM = 200 };
	unsigned count = rounds(3000, 50000);
	struct player players[2] = {{.serves = true}, {.serves = false}};
	unsigned long written, read, waited;
	struct pair pair;

	pair_open(world, options, &pair);
	players[0].context = pair.b->context;
	players[0].endpoint = pair.up.out;
	players[1].context = pair.a->context;
	players[1].endpoint = pair.up.in;
	play_both(players, WARM);
	players[0].took_us = world_memory(world, count * sizeof(uint32_t));
	written = atomic_load(&writes);
	read = atomic_load(&reads);
	waited = atomic_load(&waits);
	play_both(players, count);
	written = atomic_load(&writes) - written;
	read = atomic_load(&reads) - read;
	waited = atomic_load(&waits) - waited;
	qsort(players[0].took_us, count, sizeof(uint32_t), compare);
	print_message(
		"one tensor: %.3f writes, %.3f reads, %.3f waits; a round: p50 %u us, p99 %u us\n",
		per_tensor(written, count), per_tensor(read, count), per_tensor(waited, count),
		players[0].took_us[count / 2], players[0].took_us[count / 100 * 99]);
	if (sanitized())
		return;
	/* PLACED, READY and the answer share one write. */
	assert_true(per_tensor(written, count) <= 1.05);
	assert_true(per_tensor(read, count) <= 2.1);
	assert_true(per_tensor(waited, count) <= most_waits);
	/* Delayed acknowledgements would cost 40 ms, again and again. */
	assert_in_range(players[0].took_us[count / 2], 0, 5000);
	assert_in_range(players[0].took_us[count / 100 * 99], 0, 35000);
}

static void test_f35_ping_pong_sleeping(void **state)
{
	ping_pong(*state, "progress=caller", 2.1);
}

/* Spinning is meant to cost calls, but no writes. */
static void test_f35_ping_pong_spinning(void **state)
{
	ping_pong(*state, "progress=caller,spin_us=50", 1e9);
}

/* Many small tensors that are posted together share their writes, too. */
static void test_f35_batches_share_writes(void **state)
{
	enum { BATCH = 64 };
	struct world *world = *state;
	struct block *source = block_new(world, BYTES), *target = block_new(world, BYTES);
	unsigned count = rounds(100, 1000);
	unsigned long before;
	struct pair pair;
	double each;

	pair_open(world, "progress=caller", &pair);
	check_alive(&pair);
	before = atomic_load(&writes);
	for (unsigned i = 0; i < count; i++) {
		for (unsigned j = 0; j < BATCH; j++)
			post_recv(&pair.up, haul_key("k"), &target->tensor);
		for (unsigned j = 0; j < BATCH; j++)
			post_send(&pair.up, haul_key("k"), &source->tensor);
		wait_all(world);
	}
	each = (double)(atomic_load(&writes) - before) / (count * BATCH);
	print_message("%.3f writes a tensor\n", each);
	assert_true(each <= 0.5);
}

static const struct CMUnitTest tests[] = {
	WORLD_TEST(test_f35_ping_pong_sleeping),
	WORLD_TEST(test_f35_ping_pong_spinning),
	WORLD_TEST(test_f35_batches_share_writes),
};

int main(int count, char **arguments)
{
	return suite_main("tcp", tests, sizeof(tests) / sizeof(tests[0]), count, arguments);
}
