/* SPDX-License-Identifier: Apache-2.0 */
#include <endian.h>
#include <errno.h>
/* Not netinet/tcp.h: its struct tcp_info ends before the count of acknowledged bytes. */
#include <linux/tcp.h>
#include <netdb.h>
#include <netinet/in.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "bench_common.h"
#include "plain_socket.h"

/* ---- The connection ---- */

/* What to do about a refused congestion algorithm. */
static const char *congestion_hint(int result)
{
	if (result == -EPERM)
		return "; without root, --ceiling-congestion takes what haul-info lists as "
		       "\"for every user\"";
	if (result == -ENOENT)
		return "; --ceiling-congestion takes what haul-info lists as \"available\"";
	return "";
}

static int connect_one(const struct addrinfo *address, const char *congestion)
{
	int result = 0, fd = socket(address->ai_family, SOCK_STREAM | SOCK_CLOEXEC, 0);

	if (fd < 0)
		return -errno;
	result = plain_set_silence(fd);
	if (!result)
		result = plain_set_no_delay(fd);
	if (!result)
		result = plain_set_congestion(fd, congestion);
	if (!result && connect(fd, address->ai_addr, address->ai_addrlen))
		result = errno == EINPROGRESS ? -ETIMEDOUT : -errno;
	if (!result)
		return fd;
	close(fd);
	return result;
}

static int connect_to(const struct plain_request *request, char *why, size_t room)
{
	struct addrinfo hints = {.ai_socktype = SOCK_STREAM, .ai_flags = AI_NUMERICSERV};
	struct addrinfo *found = NULL;
	char service[8];
	int result;

	snprintf(service, sizeof(service), "%u", request->port);
	result = getaddrinfo(request->host, service, &hints, &found);
	if (result) {
		snprintf(why, room, "%s: %s", request->host, gai_strerror(result));
		return -ENOENT;
	}
	for (const struct addrinfo *at = found; at; at = at->ai_next) {
		result = connect_one(at, request->congestion);
		if (result >= 0)
			break;
	}
	freeaddrinfo(found);
	if (result < 0)
		snprintf(why, room, "a plain TCP connection to %s port %u (congestion %s): %s%s",
			 request->host, request->port, request->congestion, strerror(-result),
			 congestion_hint(result));
	return result;
}

static int say_hello(int fd, const struct plain_request *request, char *why, size_t room)
{
	struct plain_hello hello = {
		.mode = request->mode, .poll = request->poll, .ping_size = request->ping_size};
	uint8_t bytes[PLAIN_HELLO_SIZE];
	uint32_t answer;
	int result;

	snprintf(hello.congestion, sizeof(hello.congestion), "%s", request->congestion);
	plain_encode(&hello, bytes);
	result = plain_write_all(fd, bytes, sizeof(bytes));
	if (!result)
		result = plain_read_all(fd, &answer, sizeof(answer), false);
	if (result) {
		snprintf(why, room, "the plain TCP side of the server does not answer: %s",
			 strerror(-result));
	} else if (answer) {
		result = -(int)le32toh(answer);
		snprintf(why, room, "the server can't use the congestion algorithm %s: %s%s",
			 request->congestion, strerror(-result), congestion_hint(result));
	}
	return result;
}

/* ---- Measuring ---- */

/* The state of the connection at one moment. */
struct reading {
	uint64_t time;
	double bytes;
	struct tcp_info info;
};

static bool acknowledged(int fd, struct reading *reading)
{
	struct tcp_info *info = &reading->info;
	socklen_t length = sizeof(*info);

	memset(info, 0, sizeof(*info));
	if (getsockopt(fd, IPPROTO_TCP, TCP_INFO, info, &length) ||
	    length < offsetof(struct tcp_info, tcpi_bytes_acked) + sizeof(info->tcpi_bytes_acked))
		return false;
	reading->bytes = (double)info->tcpi_bytes_acked;
	reading->time = bench_now();
	return true;
}

static void show(const struct plain_request *request, double bytes)
{
	if (request->live)
		atomic_store_explicit(&request->live->bytes, (uint64_t)bytes, memory_order_relaxed);
}

static void describe_path(const struct reading *first, const struct reading *last,
			  struct plain_path *path)
{
	const struct tcp_info *from = &first->info, *to = &last->info;

	path->round_trip_us = to->tcpi_rtt;
	path->least_round_trip_us = to->tcpi_min_rtt;
	path->sent = (double)(to->tcpi_bytes_sent - from->tcpi_bytes_sent);
	path->again = (double)(to->tcpi_bytes_retrans - from->tcpi_bytes_retrans);
	path->busy = (double)(to->tcpi_busy_time - from->tcpi_busy_time) * 1e-6;
	path->window_limited = (double)(to->tcpi_rwnd_limited - from->tcpi_rwnd_limited) * 1e-6;
	path->buffer_limited = (double)(to->tcpi_sndbuf_limited - from->tcpi_sndbuf_limited) * 1e-6;
	path->mtu = to->tcpi_pmtu;
}

/* Whether both ends have one address: that of this host. */
static bool is_same_host(int fd)
{
	struct sockaddr_storage ours, theirs;
	socklen_t room = sizeof(ours), length = sizeof(theirs);
	const struct sockaddr_in *in = (struct sockaddr_in *)&ours, *peer = (void *)&theirs;
	const struct sockaddr_in6 *in6 = (struct sockaddr_in6 *)&ours, *peer6 = (void *)&theirs;

	if (getsockname(fd, (struct sockaddr *)&ours, &room) ||
	    getpeername(fd, (struct sockaddr *)&theirs, &length))
		return false;
	if (ours.ss_family == AF_INET)
		return in->sin_addr.s_addr == peer->sin_addr.s_addr;
	return !memcmp(&in6->sin6_addr, &peer6->sin6_addr, sizeof(in6->sin6_addr));
}

/* What waits in the socket's buffer when the window begins and ends does not count. */
static int measure_sending(int fd, const struct plain_request *request, uint8_t *buffer,
			   struct plain_result *result)
{
	struct reading first = {0}, last = {0};
	uint64_t now;

	do {
		int failed = plain_write_all(fd, buffer, PLAIN_CHUNK);

		if (failed)
			return failed;
		result->all_bytes += PLAIN_CHUNK;
		show(request, result->all_bytes);
		now = bench_now();
		if (!first.time && now >= request->begin && !acknowledged(fd, &first))
			return -EOPNOTSUPP;
	} while (now < request->end);
	if (!acknowledged(fd, &last))
		return -EOPNOTSUPP;
	result->bytes = last.bytes - first.bytes;
	result->seconds = (double)(last.time - first.time) / NS_PER_S;
	describe_path(&first, &last, &result->path);
	result->path.same_host = is_same_host(fd);
	/* The server closes when it has read everything. */
	shutdown(fd, SHUT_WR);
	plain_read_all(fd, buffer, 1, false);
	return 0;
}

static int measure_receiving(int fd, const struct plain_request *request, uint8_t *buffer,
			     struct plain_result *result)
{
	struct reading first = {0};
	uint64_t now = bench_now();

	do {
		ssize_t got = recv(fd, buffer, PLAIN_CHUNK, 0);

		if (got < 0 && errno == EINTR)
			continue;
		if (got <= 0)
			return got == 0 ? -ECONNRESET : errno == EAGAIN ? -ETIMEDOUT : -errno;
		result->all_bytes += (double)got;
		show(request, result->all_bytes);
		now = bench_now();
		if (!first.time && now >= request->begin)
			first = (struct reading){.time = now, .bytes = result->all_bytes};
	} while (now < request->end);
	result->bytes = result->all_bytes - first.bytes;
	result->seconds = (double)(now - first.time) / NS_PER_S;
	return 0;
}

static int measure_pings(int fd, const struct plain_request *request, uint8_t *buffer,
			 struct plain_result *result)
{
	uint64_t start, now = bench_now();

	while (now < request->end && (!request->enough || result->times.count < request->enough)) {
		int failed;

		start = now;
		failed = plain_write_all(fd, buffer, request->ping_size);
		if (!failed)
			failed = plain_read_all(fd, buffer, request->ping_size, request->poll);
		if (failed)
			return failed;
		now = bench_now();
		if (start >= request->begin && now <= request->end)
			histogram_add(&result->times, now - start);
		result->all_bytes += request->ping_size;
		show(request, result->all_bytes);
	}
	return 0;
}

static int measure(int fd, const struct plain_request *request, struct plain_result *result)
{
	uint8_t *buffer = malloc(PLAIN_PING_MAX > PLAIN_CHUNK ? PLAIN_PING_MAX : PLAIN_CHUNK);
	int failed;

	if (!buffer)
		return -ENOMEM;
	memset(buffer, 0x5a, PLAIN_PING_MAX > PLAIN_CHUNK ? PLAIN_PING_MAX : PLAIN_CHUNK);
	if (request->mode == PLAIN_SINK)
		failed = measure_sending(fd, request, buffer, result);
	else if (request->mode == PLAIN_SOURCE)
		failed = measure_receiving(fd, request, buffer, result);
	else
		failed = measure_pings(fd, request, buffer, result);
	free(buffer);
	return failed;
}

int plain_measure(const struct plain_request *request, struct plain_result *result, char *why,
		  size_t room)
{
	int fd = connect_to(request, why, room);
	int failed;

	memset(result, 0, sizeof(*result));
	histogram_reset(&result->times);
	if (fd < 0)
		return fd;
	failed = say_hello(fd, request, why, room);
	if (!failed) {
		failed = measure(fd, request, result);
		if (failed)
			snprintf(why, room, "the plain TCP connection failed: %s",
				 strerror(-failed));
	}
	close(fd);
	return failed;
}
