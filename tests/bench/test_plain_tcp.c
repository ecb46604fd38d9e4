/* SPDX-License-Identifier: Apache-2.0 */
#include <stdarg.h>
#include <stddef.h>
#include <setjmp.h>
#include <stdint.h>
#include <cmocka.h>

#include <arpa/inet.h>
#include <errno.h>
#include <netinet/in.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "bench_common.h"
#include "plain_socket.h"
#include "plain_tcp.h"

static struct plain_server *server;
static struct plain_result result;
static char why[256];

static int open_server(void **state)
{
	(void)state;
	return plain_server_open("127.0.0.1", 0, &server, why, sizeof(why));
}

static int close_server(void **state)
{
	(void)state;
	plain_server_close(server);
	return 0;
}

static struct plain_request request_for(enum plain_mode mode)
{
	uint64_t now = bench_now();

	return (struct plain_request){.host = "127.0.0.1",
				      .port = plain_server_port(server),
				      .congestion = "cubic",
				      .mode = mode,
				      .ping_size = 64,
				      .begin = now + NS_PER_S / 50,
				      .end = now + NS_PER_S / 5};
}

static void bytes_move_in_each_direction(void **state)
{
	(void)state;
	for (int mode = PLAIN_SINK; mode <= PLAIN_SOURCE; mode++) {
		/* The whole window may have passed before a loaded machine is connected. */
		for (int tries = 0; tries == 0 || (result.bytes == 0 && tries < 10); tries++) {
			struct plain_request request = request_for((enum plain_mode)mode);

			assert_int_equal(plain_measure(&request, &result, why, sizeof(why)), 0);
		}
		assert_true(result.bytes > 0);
		assert_true(result.all_bytes >= result.bytes);
		/* The window's begin may have passed before a loaded machine is connected. */
		assert_true(result.seconds > 0 && result.seconds < 60);
	}
}

static void pings_come_back(void **state)
{
	(void)state;
	for (int poll = 0; poll <= 1; poll++) {
		struct plain_request request = request_for(PLAIN_PINGS);

		request.begin = 0;
		request.poll = poll;
		request.enough = 100;
		request.end = UINT64_MAX;
		assert_int_equal(plain_measure(&request, &result, why, sizeof(why)), 0);
		assert_int_equal(result.times.count, 100);
		assert_true(result.times.least > 0);
	}
}

static void an_unknown_congestion_algorithm_is_named(void **state)
{
	struct plain_request request = request_for(PLAIN_SINK);

	(void)state;
	request.congestion = "no-such-thing";
	assert_true(plain_measure(&request, &result, why, sizeof(why)) < 0);
	assert_non_null(strstr(why, "no-such-thing"));
}

static void nobody_there_is_an_error(void **state)
{
	struct plain_request request = request_for(PLAIN_SINK);

	(void)state;
	request.port = 1;
	assert_int_equal(plain_measure(&request, &result, why, sizeof(why)), -ECONNREFUSED);
	request.host = "no-such-host.invalid";
	assert_int_equal(plain_measure(&request, &result, why, sizeof(why)), -ENOENT);
}

static int connect_raw(void)
{
	struct sockaddr_in address = {.sin_family = AF_INET,
				      .sin_port = htons(plain_server_port(server)),
				      .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
	int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);

	assert_int_equal(connect(fd, (struct sockaddr *)&address, sizeof(address)), 0);
	return fd;
}

static void strangers_are_cut_and_others_served(void **state)
{
	char garbage[PLAIN_HELLO_SIZE], byte;
	int stranger = connect_raw(), silent = connect_raw();

	(void)state;
	memset(garbage, 'x', sizeof(garbage));
	assert_int_equal(send(stranger, garbage, sizeof(garbage), MSG_NOSIGNAL), sizeof(garbage));
	assert_true(recv(stranger, &byte, 1, 0) <= 0);
	pings_come_back(NULL);
	close(stranger);
	close(silent);
}

static void hellos_are_checked(void **state)
{
	const struct plain_hello good = {.mode = PLAIN_PINGS, .ping_size = 64, .congestion = "bbr"};
	uint8_t bytes[PLAIN_HELLO_SIZE];
	struct plain_hello hello;
	static const struct {
		size_t offset;
		uint8_t value;
	} bad[] = {{0, 'h'}, {8, 0}, {8, 4}, {9, 2}, {12, 0}, {15, 1}, {31, 'x'}};

	(void)state;
	plain_encode(&good, bytes);
	assert_int_equal(plain_decode(bytes, &hello), 0);
	assert_int_equal(hello.ping_size, 64);
	assert_string_equal(hello.congestion, "bbr");
	for (size_t i = 0; i < ARRAY_LENGTH(bad); i++) {
		plain_encode(&good, bytes);
		bytes[bad[i].offset] = bad[i].value;
		assert_int_equal(plain_decode(bytes, &hello), -EPROTO);
	}
}

static void a_port_in_use_is_named(void **state)
{
	struct plain_server *second;

	(void)state;
	assert_int_equal(plain_server_open("127.0.0.1", plain_server_port(server), &second, why,
					   sizeof(why)),
			 -EADDRINUSE);
	assert_non_null(strstr(why, "127.0.0.1"));
	assert_int_equal(plain_server_open("no-such-host.invalid", 0, &second, why, sizeof(why)),
			 -ENOENT);
}

static void close_cuts_what_is_served(void **state)
{
	struct plain_server *own;
	int fd;
	char byte;

	(void)state;
	assert_int_equal(plain_server_open("*", 0, &own, why, sizeof(why)), 0);
	struct sockaddr_in address = {.sin_family = AF_INET,
				      .sin_port = htons(plain_server_port(own)),
				      .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
	fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
	assert_int_equal(connect(fd, (struct sockaddr *)&address, sizeof(address)), 0);
	plain_server_close(own);
	assert_true(recv(fd, &byte, 1, 0) <= 0);
	close(fd);
}

#define with_server(function) cmocka_unit_test_setup_teardown(function, open_server, close_server)

int main(void)
{
	const struct CMUnitTest tests[] = {
		with_server(bytes_move_in_each_direction),
		with_server(pings_come_back),
		with_server(an_unknown_congestion_algorithm_is_named),
		with_server(nobody_there_is_an_error),
		with_server(strangers_are_cut_and_others_served),
		with_server(hellos_are_checked),
		with_server(a_port_in_use_is_named),
		cmocka_unit_test(close_cuts_what_is_served),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
