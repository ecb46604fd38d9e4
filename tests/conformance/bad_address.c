/* SPDX-License-Identifier: Apache-2.0 */
/* Addresses that are none, and hosts that aren't there. */
#include "harness.h"

#include <errno.h>
#include <stdio.h>

/* Both calls refuse it, with a detail that names it. */
static void bad_address(struct side *side, const char *address, int expected, const char *word)
{
	const char *words[] = {word, NULL};
	haul_listener *listener = (haul_listener *)&listener;
	int before = descriptors_open();
	int error = haul_listen(side->context, address, side, &listener);

	if (!error)
		fail_msg("haul_listen(%s) works", address);
	check_error(side->context, error, expected, words);
	assert_null(listener);
	assert_null(try_connect(side, address, &error));
	check_error(side->context, error, expected, words);
	assert_int_equal(descriptors_open(), before);
}

static void test_addresses_that_are_none(void **state)
{
	static const char *const none[] = {
		"127.0.0.1",
		"localhost",
		"127.0.0.1:",
		"127.0.0.1:port",
		"127.0.0.1:65536",
		"127.0.0.1:-1",
		"127.0.0.1:99999999999999999999",
		"127.0.0.1:80 ",
		"127.0.0.1: 80",
		"127.0.0.1:80:90",
		"127.0.0.1:0x50",
		"::1:80",
		"::1",
		"[::1]",
		"[::1]80",
		"[::1:80",
		"[]:80",
		"[127.0.0.1:80",
		"[::1]x:80",
	};
	struct side *side = side_open(*state, NULL);

	for (size_t i = 0; i < sizeof(none) / sizeof(none[0]); i++) {
		const char *port = strrchr(none[i], ':');
		const char *detail;

		bad_address(side, none[i], -EINVAL, "expected");
		detail = haul_detail(side->context); /* it names the address, or its port */
		if (!strstr(detail, none[i]) && (!port || !strstr(detail, port + 1)))
			fail_msg("\"%s\" does not name \"%s\"", detail, none[i]);
	}
	bad_address(side, "", -EINVAL, NULL);
	bad_address(side, ":", -EINVAL, NULL);
	bad_address(side, NULL, -EINVAL, "host:port");
}

static void test_address_without_a_port(void **state)
{
	bad_address(side_open(*state, NULL), "10.0.0.1", -EINVAL, "host:port");
}

static void test_name_that_does_not_resolve(void **state)
{
	struct side *side = side_open(*state, NULL);
	char name[400];

	bad_address(side, "no-such-host.invalid:4000", -ENOENT, "no-such-host.invalid");
	memset(name, 'x', sizeof(name));
	strcpy(name + sizeof(name) - 10, ".test:80");
	assert_null(try_connect(side, name, &(int){0}));
}

/* "*" and port 0 are places to listen, not to connect to. */
static void test_connect_to_no_place(void **state)
{
	struct side *side = side_open(*state, NULL);
	const char *address = side_listen(side);
	int error;

	assert_null(try_connect(side, "*:4000", &error));
	check_error(side->context, error, -EINVAL, NULL);
	assert_null(try_connect(
		side, world_text(*state, "%.*s:0", (int)(strrchr(address, ':') - address), address),
		&error));
	check_error(side->context, error, -EINVAL, (const char *const[]){"port", NULL});
}

static void test_port_in_use(void **state)
{
	struct world *world = *state;
	struct side *a = side_open(world, NULL), *b = side_open(world, NULL);
	haul_listener *listener;
	const char *address, *port;
	struct way up, down;
	int error;

	side_listen(a);
	address = haul_listener_address(a->listener);
	port = strrchr(address, ':') + 1;
	error = haul_listen(a->context, address, a, &listener);
	check_error(a->context, error, -EADDRINUSE, (const char *const[]){port, NULL});
	assert_null(listener);
	/* The first one isn't harmed. */
	connect_sides(b, a, &up, &down);
	check_way_alive(&up);
}

static void test_address_of_another_host(void **state)
{
	struct side *side = side_open(*state, NULL);
	haul_listener *listener;
	int error = haul_listen(side->context, "192.0.2.77:0", side, &listener);

	check_error(side->context, error, -EADDRNOTAVAIL,
		    (const char *const[]){"192.0.2.77", NULL});
}

static void test_nobody_listens(void **state)
{
	struct world *world = *state;
	struct side *side = side_open(world, NULL);
	char *address = world_text(world, "%s", side_listen(side));
	struct entry *connect;

	haul_listener_close(side->listener);
	side->listener = NULL;
	for (int i = 0; i < 10; i++) {
		uint64_t started = now_ms();

		connect = post_connect(side, address);
		wait_result(connect, -ECONNREFUSED);
		assert_null(connect->endpoint);
		check_words(connect->detail, (const char *const[]){address, NULL});
		assert_in_range(now_ms() - started, 0, 3000); /* refused, not timed out */
	}
	assert_int_equal(side->lost_count, 0);
}

/* Every address of this host; the listener says one that works from here. */
static void test_listen_on_every_address(void **state)
{
	struct world *world = *state;
	struct side *a = side_open(world, NULL), *b = side_open(world, NULL);
	struct way up, down;

	assert_int_equal(haul_listen(a->context, "*:0", a, &a->listener), 0);
	assert_null(strchr(haul_listener_address(a->listener), '*'));
	connect_sides(b, a, &up, &down);
	check_way_alive(&up);
}

static void test_null_where_a_handle_is_expected(void **state)
{
	struct side *side = side_open(*state, NULL);
	haul_listener *listener;
	haul_endpoint *endpoint;
	struct haul_completion completion;

	assert_int_equal(haul_listen(NULL, "127.0.0.1:0", NULL, &listener), -EINVAL);
	assert_int_equal(haul_listen(side->context, "127.0.0.1:0", NULL, NULL), -EINVAL);
	assert_int_equal(haul_connect(NULL, "127.0.0.1:1", NULL), -EINVAL);
	assert_int_equal(haul_connect_wait(NULL, "127.0.0.1:1", 1, &endpoint), -EINVAL);
	assert_int_equal(haul_connect_wait(side->context, "127.0.0.1:1", 1, NULL), -EINVAL);
	assert_int_equal(haul_accept_wait(NULL, 1, &endpoint), -EINVAL);
	assert_int_equal(haul_poll(NULL, &completion, 1, 0), -EINVAL);
	assert_int_equal(haul_event_fd(NULL), -EINVAL);
	assert_int_equal(haul_cancel(NULL, NULL), -EINVAL);
	haul_disconnect(NULL);
	haul_listener_close(NULL);
}

static const struct CMUnitTest tests[] = {
	WORLD_TEST(test_addresses_that_are_none),
	WORLD_TEST(test_address_without_a_port),
	WORLD_TEST(test_name_that_does_not_resolve),
	WORLD_TEST(test_connect_to_no_place),
	WORLD_TEST(test_port_in_use),
	WORLD_TEST(test_address_of_another_host),
	WORLD_TEST(test_nobody_listens),
	WORLD_TEST(test_listen_on_every_address),
	WORLD_TEST(test_null_where_a_handle_is_expected),
};

const struct test_table bad_address_tests = TABLE_OF(tests);
