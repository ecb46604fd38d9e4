/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Bytes, and the end that follows them, are there before the context looks: the kernel tells of
 * both in one event, and of nothing afterwards. Contexts are driven by hand here, so that this is
 * sure.
 */
#include <arpa/inet.h>
#include <errno.h>
#include <netinet/in.h>
#include <poll.h>
#include <stdio.h>
#include <sys/socket.h>
#include <unistd.h>

#include "rawpeer.h"

/* Far more than it takes, and far less than connect_ms and handshake_ms. */
#define SOON_MS 5000
#define OPTIONS "connect_ms=60000,handshake_ms=60000"

static int listen_raw(char address[32])
{
	struct sockaddr_in own = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
	socklen_t size = sizeof(own);
	int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);

	assert_true(fd >= 0);
	assert_int_equal(bind(fd, (struct sockaddr *)&own, size), 0);
	assert_int_equal(listen(fd, 8), 0);
	assert_int_equal(getsockname(fd, (struct sockaddr *)&own, &size), 0);
	snprintf(address, 32, "127.0.0.1:%u", ntohs(own.sin_port));
	return fd;
}

static void expect_soon(struct entry *connected, int result)
{
	uint64_t until = now_ms() + SOON_MS;

	while (!connected->done)
		world_step(connected->side->world, until, "haul_connect() to end");
	check_result(connected, result);
	assert_true(connected->detail[0]);
}

/* A server that speaks first, as those of SSH, SMTP and FTP do. */
static void test_server_speaks_first(void **state)
{
	static const char text[] = "SSH-2.0-OpenSSH_9.2p1 Debian-2+deb12u3\r\n";
	struct side *side = side_open(*state, OPTIONS);
	char address[32];
	int listener = listen_raw(address);
	struct entry *connected = post_connect(side, address);
	int fd = accept4(listener, NULL, NULL, SOCK_CLOEXEC);

	assert_true(fd >= 0);
	raw_send(fd, text, sizeof(text) - 1);
	expect_soon(connected, -EPROTO);
	close(fd);
	close(listener);
}

/* It says a part of an answer, and is gone. */
static void test_server_ends_in_its_answer(void **state)
{
	struct preamble answer = {.version = TCP_VERSION, .kind = PREAMBLE_OPEN};
	struct side *side = side_open(*state, OPTIONS);
	uint8_t bytes[PREAMBLE_SIZE];
	uint64_t until = now_ms() + SOON_MS;
	char address[32];
	int listener = listen_raw(address);
	struct entry *connected = post_connect(side, address);
	int fd = accept4(listener, NULL, NULL, SOCK_CLOEXEC);

	assert_true(fd >= 0);
	while (recv(fd, bytes, sizeof(bytes), MSG_DONTWAIT) < 0) {
		assert_true(now_ms() < until);
		side_poll(side);
	}
	preamble_encode(bytes, &answer);
	raw_send(fd, bytes, 20);
	close(fd);
	expect_soon(connected, -ECONNRESET);
	close(listener);
}

/* A stranger says a part of a preamble and is gone: he does not stay until handshake_ms is over. */
static void test_stranger_ends_in_his_preamble(void **state)
{
	struct preamble preamble = {.version = TCP_VERSION, .kind = PREAMBLE_OPEN};
	struct side *side = side_open(*state, OPTIONS);
	uint8_t bytes[PREAMBLE_SIZE];
	uint64_t until = now_ms() + SOON_MS;
	struct pollfd end = {.events = POLLIN};

	side_listen(side);
	preamble_encode(bytes, &preamble);
	end.fd = raw_connect(haul_listener_address(side->listener));
	raw_send(end.fd, bytes, 7);
	shutdown(end.fd, SHUT_WR);
	while (poll(&end, 1, 1) == 0) {
		if (now_ms() >= until)
			fail_msg("the stranger's connection is still open");
		side_poll(side);
	}
	close(end.fd);
}

static const struct CMUnitTest tests[] = {
	WORLD_TEST(test_server_speaks_first),
	WORLD_TEST(test_server_ends_in_its_answer),
	WORLD_TEST(test_stranger_ends_in_his_preamble),
};

int main(int count, char **arguments)
{
	return suite_main("tcp", tests, sizeof(tests) / sizeof(tests[0]), count, arguments);
}
