/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Others than tensorhaul on either end of a connection: gRPC servers, plain sockets that say
 * something else or nothing, and how many sockets an endpoint has.
 */
#include <arpa/inet.h>
#include <errno.h>
#include <netinet/in.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/socket.h>
#include <unistd.h>

#include "rawcall.h"
#include "tests/tcp/rawpeer.h"

/* ---- Servers that are something else ------------------------------------ */

static void test_another_grpc_server(void **state)
{
	static const struct {
		const char *version;
		grpc_status_code status;
		int error;
	} cases[] = {
		{NULL, GRPC_STATUS_UNIMPLEMENTED, -EPROTO},
		{NULL, GRPC_STATUS_UNAUTHENTICATED, -EPROTO},
		{NULL, GRPC_STATUS_OK, -EPROTO},
		{NULL, GRPC_STATUS_RESOURCE_EXHAUSTED, -ECONNREFUSED},
		{NULL, GRPC_STATUS_UNAVAILABLE, -ECONNRESET},
		{"2", GRPC_STATUS_OK, -EPROTO},
		{"1", GRPC_STATUS_OK, -EPROTO}, /* and no name for the session */
	};
	struct side *side = side_open(*state, "progress=thread,connect_ms=10000");

	for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
		struct raw_server server = {.version = cases[i].version, .status = cases[i].status};
		struct entry *connect;

		raw_server_open(&server);
		connect = post_connect(side, server.address);
		raw_server_answer(&server);
		wait_result(connect, cases[i].error);
		assert_true(connect->detail[0]);
		raw_server_close(&server);
	}
}

/* What a plain socket answers to the first bytes; NULL: it closes at once, "": nothing. */
static const struct {
	const char *says;
	int error, other; /* one or the other */
} plain[] = {
	{NULL, -ECONNRESET, -EPROTO},
	{"HTTP/1.1 400 Bad Request\r\nConnection: close\r\n\r\n", -EPROTO, -ECONNRESET},
	{"SSH-2.0-OpenSSH_9.2p1 Debian-2\r\n", -EPROTO, -ECONNRESET},
	{"\x15\x03\x01 a TLS alert, more or less", -EPROTO, -ECONNRESET},
	{"", -ETIMEDOUT, -ETIMEDOUT},
};

static int plain_listen(char *address, size_t room)
{
	struct sockaddr_in own = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
	socklen_t size = sizeof(own);
	int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);

	assert_true(fd >= 0);
	assert_int_equal(bind(fd, (struct sockaddr *)&own, size), 0);
	assert_int_equal(listen(fd, 8), 0);
	assert_int_equal(getsockname(fd, (struct sockaddr *)&own, &size), 0);
	snprintf(address, room, "127.0.0.1:%u", ntohs(own.sin_port));
	return fd;
}

static void test_a_plain_server(void **state)
{
	struct side *side = side_open(*state, "progress=thread,connect_ms=700");

	for (size_t i = 0; i < sizeof(plain) / sizeof(plain[0]); i++) {
		char address[64];
		int listener = plain_listen(address, sizeof(address));
		struct entry *connect = post_connect(side, address);
		int fd = accept4(listener, NULL, NULL, SOCK_CLOEXEC);

		assert_true(fd >= 0);
		if (plain[i].says)
			send(fd, plain[i].says, strlen(plain[i].says), MSG_NOSIGNAL);
		else
			close(fd);
		wait_done(connect);
		if (connect->result != plain[i].error && connect->result != plain[i].other)
			fail_msg("\"%s\" ended with %d: %s",
				 plain[i].says ? plain[i].says : "(closed)", connect->result,
				 connect->detail);
		assert_true(connect->detail[0]);
		if (plain[i].says)
			close(fd);
		close(listener);
	}
}

/* ---- Clients that are something else ------------------------------------ */

/* Garbage ends at once, silence after handshake_ms, and neither holds up a good peer. */
static void knock(const struct pair *pair)
{
	static const char *const words[] = {
		"GET / HTTP/1.0\r\n\r\n",
		"\x16\x03\x01\x02 a TLS client's hello, more or less",
		"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n and no more",
		"",
	};
	int fds[4];

	for (int i = 0; i < 4; i++) {
		fds[i] = raw_connect(haul_listener_address(pair->a->listener));
		raw_send(fds[i], words[i], strlen(words[i]));
	}
	check_alive(pair);
	for (int i = 0; i < 4; i++) {
		assert_true(raw_closed_within(fds[i], 5000));
		close(fds[i]);
	}
	check_alive(pair);
}

static void test_plain_clients(void **state)
{
	struct world *world = *state;
	struct pair pair;
	int before;

	pair_open(world, "progress=thread,handshake_ms=500", &pair);
	knock(&pair);
	/* gRPC opens some descriptors late, but not with each stranger. */
	world_run_for(world, 100);
	before = descriptors_open();
	for (int i = 0; i < 5; i++)
		knock(&pair);
	for (uint64_t until = now_ms() + 5000; descriptors_open() > before && now_ms() < until;)
		world_run_for(world, 5);
	assert_in_range(descriptors_open(), 0, before);
}

/* ---- Sockets ------------------------------------------------------------ */

/* The established TCP connections to this port, as ss counts them. */
static unsigned count_sockets(const char *port)
{
	char command[128];
	unsigned count = 0;
	FILE *ss;

	snprintf(command, sizeof(command), "ss -Htn state established '( dport = :%s )'", port);
	if (system("ss -V >/dev/null 2>&1"))
		skip_because("ss is missing: it is in the package iproute2");
	ss = popen(command, "re");
	assert_non_null(ss);
	for (int letter; (letter = fgetc(ss)) != EOF;)
		count += letter == '\n';
	assert_int_equal(pclose(ss), 0);
	return count;
}

/* One for the control messages, and one for each channel, once a large tensor wants them. */
static void test_channels_are_sockets(void **state)
{
	static const unsigned channels[] = {1, 2, 4, 16};

	for (size_t i = 0; i < sizeof(channels) / sizeof(channels[0]); i++) {
		struct world *world = world_new(NULL);
		struct haul_statistics statistics = {.size = sizeof(statistics)};
		struct block *source = block_new(world, 32 << 20);
		struct block *target = block_new(world, 32 << 20);
		struct pair pair;
		const char *port;

		pair_open(world,
			  world_text(world, "progress=thread,threads=2,channels=%u", channels[i]),
			  &pair);
		port = strrchr(haul_listener_address(pair.a->listener), ':') + 1;
		assert_int_equal(count_sockets(port), 1);
		for (int turn = 0; turn < 4; turn++) {
			const struct way *way = turn % 2 ? &pair.down : &pair.up;

			block_fill(source, (uint64_t)turn);
			post_recv(way, haul_key("large"), &target->tensor);
			post_send(way, haul_key("large"), &source->tensor);
			wait_all(world);
			block_check(target, (uint64_t)turn);
		}
		haul_endpoint_statistics(pair.up.out, &statistics);
		assert_int_equal(statistics.streams, channels[i]);
		assert_int_equal(count_sockets(port), 1 + channels[i]);
		assert_int_equal(world_free(world), 0);
	}
}

/* Streams are opened late, when nobody may listen any more: then one goes over the control call's
 * connection. */
static void test_listener_closed_before_the_first_large_tensor(void **state)
{
	struct world *world = *state;
	struct block *source = block_new(world, 24 << 20), *target = block_new(world, 24 << 20);
	struct pair pair;
	const char *port;

	pair_open(world, "progress=thread,channels=3", &pair);
	port = world_text(world, "%s", strrchr(haul_listener_address(pair.a->listener), ':') + 1);
	haul_listener_close(pair.a->listener);
	pair.a->listener = NULL;
	for (int turn = 0; turn < 4; turn++) {
		const struct way *way = turn % 2 ? &pair.up : &pair.down;

		block_fill(source, (uint64_t)turn);
		post_recv(way, haul_key("large"), &target->tensor);
		post_send(way, haul_key("large"), &source->tensor);
		wait_all(world);
		block_check(target, (uint64_t)turn);
	}
	assert_int_equal(count_sockets(port), 1);
}

static const struct CMUnitTest tests[] = {
	WORLD_TEST(test_another_grpc_server),
	WORLD_TEST(test_a_plain_server),
	WORLD_TEST(test_plain_clients),
	WORLD_TEST(test_channels_are_sockets),
	WORLD_TEST(test_listener_closed_before_the_first_large_tensor),
};

int main(int count, char **arguments)
{
	return suite_main("grpc", tests, sizeof(tests) / sizeof(tests[0]), count, arguments);
}
