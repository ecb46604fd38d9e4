/* SPDX-License-Identifier: Apache-2.0 */
#include "plain_socket.h"

#include <endian.h>
#include <errno.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/time.h>
#include <time.h>

#include "bench_common.h"

static const char plain_magic[8] = "HAULTCP1";

void plain_encode(const struct plain_hello *hello, uint8_t bytes[PLAIN_HELLO_SIZE])
{
	uint32_t size = htole32(hello->ping_size);

	memset(bytes, 0, PLAIN_HELLO_SIZE);
	memcpy(bytes, plain_magic, sizeof(plain_magic));
	bytes[8] = (uint8_t)hello->mode;
	bytes[9] = hello->poll;
	memcpy(bytes + 12, &size, sizeof(size));
	memcpy(bytes + 16, hello->congestion, PLAIN_CONGESTION_MAX);
}

int plain_decode(const uint8_t bytes[PLAIN_HELLO_SIZE], struct plain_hello *hello)
{
	uint32_t size;

	if (memcmp(bytes, plain_magic, sizeof(plain_magic)) != 0)
		return -EPROTO;
	if (bytes[8] < PLAIN_SINK || bytes[8] > PLAIN_PINGS || bytes[9] > 1)
		return -EPROTO;
	memcpy(&size, bytes + 12, sizeof(size));
	hello->mode = (enum plain_mode)bytes[8];
	hello->poll = bytes[9];
	hello->ping_size = le32toh(size);
	memcpy(hello->congestion, bytes + 16, PLAIN_CONGESTION_MAX);
	if (hello->congestion[PLAIN_CONGESTION_MAX - 1] != '\0')
		return -EPROTO;
	if (hello->mode == PLAIN_PINGS &&
	    (hello->ping_size < 1 || hello->ping_size > PLAIN_PING_MAX))
		return -EPROTO;
	return 0;
}

int plain_set_silence(int fd)
{
	struct timeval limit = {.tv_sec = PLAIN_SILENCE_S};

	if (setsockopt(fd, SOL_SOCKET, SO_RCVTIMEO, &limit, sizeof(limit)) ||
	    setsockopt(fd, SOL_SOCKET, SO_SNDTIMEO, &limit, sizeof(limit)))
		return -errno;
	return 0;
}

int plain_set_no_delay(int fd)
{
	int yes = 1;

	return setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &yes, sizeof(yes)) ? -errno : 0;
}

int plain_set_congestion(int fd, const char *name)
{
	if (!name || !*name)
		return 0;
	if (setsockopt(fd, IPPROTO_TCP, TCP_CONGESTION, name, (socklen_t)strlen(name)))
		return -errno;
	return 0;
}

/* A blocking socket whose SO_RCVTIMEO ran out reports EAGAIN. */
static int read_error(bool poll, uint64_t since)
{
	if (errno == EINTR)
		return 0;
	if (errno != EAGAIN)
		return -errno;
	if (poll && bench_now() - since < PLAIN_SILENCE_S * NS_PER_S)
		return 0;
	return -ETIMEDOUT;
}

int plain_read_all(int fd, void *bytes, size_t length, bool poll)
{
	uint64_t since = poll ? bench_now() : 0;
	uint8_t *at = bytes;

	while (length) {
		ssize_t got = recv(fd, at, length, poll ? MSG_DONTWAIT : 0);
		int result = got < 0 ? read_error(poll, since) : 0;

		if (result)
			return result;
		if (got == 0)
			return -ECONNRESET;
		if (got > 0) {
			at += got;
			length -= (size_t)got;
		}
	}
	return 0;
}

int plain_write_all(int fd, const void *bytes, size_t length)
{
	const uint8_t *at = bytes;

	while (length) {
		ssize_t put = send(fd, at, length, MSG_NOSIGNAL);

		if (put < 0 && errno == EINTR)
			continue;
		if (put < 0)
			return errno == EAGAIN ? -ETIMEDOUT : -errno;
		at += put;
		length -= (size_t)put;
	}
	return 0;
}
