/* SPDX-License-Identifier: Apache-2.0 */
/*
 * An adapter that goes: its cable, and itself. Changes the host: run it in a machine of its own.
 *
 *   test_verbs_device SPEC LISTEN_HOST NETWORK_DEVICE RDMA_DEVICE [TEST...]
 */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>

#include "load.h"

#define PEER_MS 2000

static const char *network_device, *rdma_device;

static void command(const char *format, const char *what)
{
	char text[200];

	snprintf(text, sizeof(text), format, what);
	assert_int_equal(system(text), 0);
}

/* The peer is silent, or the adapter says by itself that it can't send (-EIO). */
static void check_lost(const struct lost *lost)
{
	if (lost->result != -EIO && lost->result != -ETIMEDOUT && lost->result != -ECONNRESET &&
	    lost->result != -ENETRESET)
		fail_msg("an endpoint was lost with %d (%s)", lost->result,
			 haul_strerror(lost->result));
}

/* Both sides, idle and busy, notice within a time that is set by peer_ms. */
static void test_cable_pulled(void **state)
{
	struct world *world = *state;
	struct way idle_up, idle_down;
	struct pair pair;
	struct load *load;
	uint64_t pulled;

	pair_open(world, world_text(world, "peer_ms=%d", PEER_MS), &pair);
	connect_sides(pair.b, pair.a, &idle_up, &idle_down);
	load = load_start(pair.b, pair.up.out, false, 1 << 20, 2);
	load_start(pair.a, pair.down.out, true, 1 << 20, 2);
	world_run_for(world, 300);
	assert_true(load->sent > 0);
	pulled = now_ms();
	command("ip link set %s down", network_device);
	wait_lost(pair.a, 2);
	wait_lost(pair.b, 2);
	for (unsigned i = 0; i < 2; i++) {
		check_lost(&pair.a->lost[i]);
		check_lost(&pair.b->lost[i]);
	}
	print_message("both sides knew after %llu ms\n", (unsigned long long)(now_ms() - pulled));
	assert_true(now_ms() - pulled < 4 * PEER_MS);
	assert_int_equal(load->running, 0);
	assert_int_equal(load->wrong, 0);
	command("ip link set %s up", network_device);
}

/* The kernel takes the device away while it is in use. */
static void test_device_removed(void **state)
{
	struct world *world = *state;
	struct pair pair;

	pair_open(world, NULL, &pair);
	check_alive(&pair);
	/* It ends when the last context is closed. */
	command("rdma link delete %s &", rdma_device);
	wait_lost(pair.b, 1);
	assert_true(pair.b->lost[0].result == -ENODEV || pair.b->lost[0].result == -ECONNRESET);
	wait_lost(pair.a, 1);
}

int main(int count, char **words)
{
	static const struct CMUnitTest tests[] = {
		WORLD_TEST(test_cable_pulled),
		WORLD_TEST(test_device_removed),
	};

	if (count < 5) {
		fprintf(stderr, "usage: %s SPEC LISTEN_HOST NETWORK_DEVICE RDMA_DEVICE [TEST...]\n",
			words[0]);
		return 2;
	}
	settings.listen_host = words[2];
	network_device = words[3];
	rdma_device = words[4];
	return suite_main(words[1], tests, sizeof(tests) / sizeof(tests[0]), count - 4, words + 4);
}
