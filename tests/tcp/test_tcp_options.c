/* SPDX-License-Identifier: Apache-2.0 */
/* The options of tcp: values that are none, and what the good ones do. */
#include <arpa/inet.h>
#include <errno.h>
#include <netinet/in.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/socket.h>
#include <unistd.h>

#include "harness.h"

static void refused(struct world *world, const char *options, int expected, const char *first,
		    const char *second)
{
	const char *words[] = {first, second, NULL};
	int before = descriptors_open(), error;

	if (side_try_open(world, options, &error))
		fail_msg("tcp,%s is taken", options);
	check_error(NULL, error, expected, words);
	assert_int_equal(descriptors_open(), before);
}

static void test_values_out_of_range(void **state)
{
	struct world *world = *state;

	refused(world, "streams=0", -EINVAL, "streams", "64");
	refused(world, "streams=65", -EINVAL, "65", "64");
	refused(world, "streams=many", -EINVAL, "many", "auto");
	refused(world, "chunk=1", -EINVAL, "chunk", "4");
	refused(world, "chunk=1GB", -EINVAL, "1GB", "chunk");
	refused(world, "chunk=auto", -EINVAL, "auto", "chunk");
	refused(world, "sndbuf=0", -EINVAL, "sndbuf", "auto");
	refused(world, "rcvbuf=-1", -EINVAL, "rcvbuf", "-1");
	refused(world, "zerocopy=maybe", -EINVAL, "maybe", "msg");
	refused(world, "ports=9000", -EINVAL, "9000", "LOW-HIGH");
	refused(world, "ports=9001-9000", -EINVAL, "9001-9000", NULL);
	refused(world, "ports=0-9000", -EINVAL, "0-9000", NULL);
	refused(world, "ports=1-65536", -EINVAL, "65536", NULL);
	refused(world, "backlog=0", -EINVAL, "backlog", NULL);
}

static void test_congestion_that_is_not_there(void **state)
{
	refused(*state, "congestion=carrierpigeon", -EINVAL, "carrierpigeon",
		"tcp_allowed_congestion_control");
}

/* An address, an interface: checked when they are used at the latest, and named. */
static void connect_refused(struct world *world, const char *options, const char *word)
{
	struct side *a = side_open(world, NULL), *b;
	const char *address = side_listen(a);
	struct entry *connect;
	int error;

	b = side_try_open(world, options, &error);
	if (!b) {
		check_error(NULL, error, error, (const char *const[]){word, NULL});
		return;
	}
	connect = try_connect(b, address, &error);
	if (!connect) {
		check_error(b->context, error, error, (const char *const[]){word, NULL});
		return;
	}
	wait_done(connect);
	assert_true(connect->result < 0);
	check_words(connect->detail, (const char *const[]){word, NULL});
}

static void test_bind_to_no_address_of_this_host(void **state)
{
	connect_refused(*state, "bind=192.0.2.1", "192.0.2.1");
}

static void test_bind_to_nonsense(void **state)
{
	connect_refused(*state, "bind=nonsense.invalid", "nonsense.invalid");
}

static void test_interface_that_is_not_there(void **state)
{
	connect_refused(*state, "interface=nosuchdevice0", "nosuchdevice0");
}

static void check_pair(struct world *world, const char *options)
{
	struct block *source = block_new(world, 5 << 20), *target = block_new(world, 5 << 20);
	struct pair pair;

	pair_open(world, options, &pair);
	block_fill(source, 1);
	post_recv(&pair.up, haul_key("k"), &target->tensor);
	post_send(&pair.up, haul_key("k"), &source->tensor);
	wait_all(world);
	block_check(target, 1);
	check_alive(&pair);
	side_close(pair.a);
	side_close(pair.b);
}

static void test_options_that_work(void **state)
{
	static const char *const options[] = {
		"streams=1",
		"streams=64",
		"chunk=4KiB,streams=3",
		"chunk=64MiB",
		"small=0",
		"small=64KiB",
		"unsent=4KiB",
		"unsent=64MiB",
		"sndbuf=4KiB",
		"rcvbuf=4KiB",
		"sndbuf=4MiB,rcvbuf=4MiB",
		"zerocopy=msg",
		"congestion=reno",
		"bind=127.0.0.1",
		"bind=127.0.0.2",
		"backlog=1",
		"ports=1024-65535",
	};

	for (size_t i = 0; i < sizeof(options) / sizeof(options[0]); i++) {
		print_message("%s\n", options[i]);
		check_pair(*state, options[i]);
	}
}

static void test_interface_lo(void **state)
{
	if (geteuid() != 0)
		skip_because("SO_BINDTODEVICE may need root");
	check_pair(*state, "interface=lo");
}

/* The local end of what is connected is where bind= says. */
static void test_bind_is_obeyed(void **state)
{
	struct world *world = *state;
	struct pair pair;

	pair_open(world, "bind=127.0.0.9", &pair);
	assert_int_equal(strncmp(haul_endpoint_address(pair.up.in), "127.0.0.9:", 10), 0);
}

/* ---- F25: a range of ports --------------------------------------------- */

static int hold_a_port(unsigned *port)
{
	struct sockaddr_in address = {.sin_family = AF_INET};
	socklen_t size = sizeof(address);
	int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);

	address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
	assert_int_equal(bind(fd, (struct sockaddr *)&address, sizeof(address)), 0);
	getsockname(fd, (struct sockaddr *)&address, &size);
	*port = ntohs(address.sin_port);
	return fd;
}

/* The only port of the range is in use, and then it is free. */
static void test_f25_range_of_one_port(void **state)
{
	struct world *world = *state;
	struct way up, down;
	struct side *a, *b;
	haul_listener *listener;
	char *range;
	unsigned port;
	int fd = hold_a_port(&port), error;

	assert_int_equal(listen(fd, 1), 0);
	range = world_text(world, "ports=%u-%u", port, port);
	a = side_open(world, range);
	error = haul_listen(a->context, "127.0.0.1:0", a, &listener);
	check_error(a->context, error, -EADDRINUSE, (const char *const[]){range, NULL});
	close(fd);
	side_listen(a);
	assert_int_equal(atoi(strrchr(haul_listener_address(a->listener), ':') + 1), port);
	error = haul_listen(a->context, "127.0.0.1:0", a, &listener);
	check_error(a->context, error, -EADDRINUSE, (const char *const[]){range, NULL});
	b = side_open(world, NULL);
	connect_sides(b, a, &up, &down);
	check_way_alive(&up);
}

/* Listeners of one context and of several take the range's ports, each once. */
static void test_f25_listeners_share_a_range(void **state)
{
	enum { COUNT = 8 };
	struct world *world = *state;
	struct side *sides[2];
	haul_listener *listeners[COUNT];
	unsigned low;
	int fd = hold_a_port(&low);
	char *range;

	close(fd);
	if (low > 65535 - 4 * COUNT)
		low -= 4 * COUNT;
	/* Wider than needed: others may use ports of it meanwhile. */
	range = world_text(world, "ports=%u-%u", low, low + 4 * COUNT - 1);
	for (int i = 0; i < 2; i++)
		sides[i] = side_open(world, range);
	for (int i = 0; i < COUNT; i++) {
		unsigned port;

		assert_int_equal(haul_listen(sides[i % 2]->context, "127.0.0.1:0", sides[i % 2],
					     &listeners[i]),
				 0);
		port = (unsigned)atoi(strrchr(haul_listener_address(listeners[i]), ':') + 1);
		assert_in_range(port, low, low + 4 * COUNT - 1);
		for (int j = 0; j < i; j++)
			assert_string_not_equal(haul_listener_address(listeners[i]),
						haul_listener_address(listeners[j]));
	}
	/* A port that is named is taken, whatever the range says. */
	side_listen(sides[0]);
}

static const struct CMUnitTest tests[] = {
	WORLD_TEST(test_values_out_of_range),
	WORLD_TEST(test_congestion_that_is_not_there),
	WORLD_TEST(test_bind_to_no_address_of_this_host),
	WORLD_TEST(test_bind_to_nonsense),
	WORLD_TEST(test_interface_that_is_not_there),
	WORLD_TEST(test_options_that_work),
	WORLD_TEST(test_interface_lo),
	WORLD_TEST(test_bind_is_obeyed),
	WORLD_TEST(test_f25_range_of_one_port),
	WORLD_TEST(test_f25_listeners_share_a_range),
};

int main(int count, char **arguments)
{
	return suite_main("tcp", tests, sizeof(tests) / sizeof(tests[0]), count, arguments);
}
