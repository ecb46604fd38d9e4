/* SPDX-License-Identifier: Apache-2.0 */
/*
 * socket-loops - how should a program drive its TCP sockets?
 *
 * Moves bytes over N sockets for S seconds, in the ways that the tcp backend could use, and
 * prints the goodput and the CPU seconds per GB (1e9 bytes) of each side; or measures the round
 * trip of 64 bytes. No tensors, no protocol: what is measured here is the ground that the tcp
 * backend stands on.
 *
 *   socket-loops --sending=splice --piece=256             both sides here, over loopback
 *   socket-loops --listen                                 prints its port, receives
 *   socket-loops --connect=HOST:PORT --sending=splice     sends
 *
 * With --listen and --connect both sides must be given the same --streams, --seconds and --ping.
 *
 * meson builds it where liburing is installed. This file has the options, the sockets and the
 * report; socket_drivers.c moves the bytes.
 */
#ifndef _GNU_SOURCE
#define _GNU_SOURCE
#endif
#include "socket_loops.h"

#include <err.h>
#include <netdb.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <popt.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

enum { HUGE_PAGE = 2048 * KIB };

static const char *const driver_names[] = {"blocking", "epoll", "uring", "uring-defer", NULL};
static const char *const sending_names[] = {"send", "zerocopy", "zerocopy-fixed", "splice", NULL};

struct settings set = {
	.streams = 1,
	.seconds = 3,
	.piece = 256,
	.buffer = 100 * KIB,
	.pipe = 1024,
	.driver_name = "epoll",
	.sending_name = "send",
};

static struct poptOption option_table[] = {
	{"listen", 'l', POPT_ARG_NONE, &set.listen, 0, "receive; prints its port", NULL},
	{"connect", 'c', POPT_ARG_STRING, &set.connect, 0, "send to there", "HOST:PORT"},
	{"streams", 'n', POPT_ARG_INT, &set.streams, 0, "sockets (1)", "N"},
	{"seconds", 's', POPT_ARG_INT, &set.seconds, 0, "how long (3)", "N"},
	{"driver", 'd', POPT_ARG_STRING, &set.driver_name, 0,
	 "blocking, epoll, uring or uring-defer (epoll)", "NAME"},
	{"sending", 'w', POPT_ARG_STRING, &set.sending_name, 0,
	 "send, zerocopy, zerocopy-fixed (uring) or splice (send)", "NAME"},
	{"piece", 'p', POPT_ARG_INT, &set.piece, 0, "bytes asked of one call (256)", "KIB"},
	{"buffer", 'b', POPT_ARG_INT, &set.buffer, 0, "memory cycled through (102400)", "KIB"},
	{"huge", 0, POPT_ARG_NONE, &set.huge, 0, "ask for huge pages", NULL},
	{"pipe", 0, POPT_ARG_INT, &set.pipe, 0, "splice: pipe size (1024)", "KIB"},
	{"wait-all", 0, POPT_ARG_NONE, &set.wait_all, 0, "uring: MSG_WAITALL receives", NULL},
	{"sndbuf", 0, POPT_ARG_INT, &set.send_buffer, 0, "SO_SNDBUF (autotuned)", "KIB"},
	{"rcvbuf", 0, POPT_ARG_INT, &set.recv_buffer, 0, "SO_RCVBUF (autotuned)", "KIB"},
	{"rcvlowat", 0, POPT_ARG_INT, &set.recv_low, 0, "SO_RCVLOWAT (off)", "KIB"},
	{"notsent", 0, POPT_ARG_INT, &set.notsent_low, 0, "TCP_NOTSENT_LOWAT (off)", "KIB"},
	{"congestion", 'C', POPT_ARG_STRING, &set.congestion, 0, "TCP_CONGESTION", "NAME"},
	{"ping", 0, POPT_ARG_NONE, &set.ping, 0, "round trips of 64 bytes", NULL},
	{"spin", 0, POPT_ARG_INT, &set.spin, 0, "ping: poll so long before a wait (0)", "US"},
	{"check", 0, POPT_ARG_NONE, &set.check, 0, "compare what arrived (1 stream)", NULL},
	POPT_AUTOHELP POPT_TABLEEND};

static int find_name(const char *option, const char *name, const char *const *names)
{
	for (int i = 0; names[i]; i++)
		if (!strcmp(names[i], name))
			return i;
	errx(2, "--%s=%s: not known, see --help", option, name);
}

static void parse_options(int argc, const char **argv)
{
	poptContext context = poptGetContext(NULL, argc, argv, option_table, 0);
	int result = poptGetNextOpt(context);

	if (result < -1)
		errx(2, "%s: %s", poptBadOption(context, 0), poptStrerror(result));
	if (poptPeekArg(context))
		errx(2, "%s: not an option", poptPeekArg(context));
	poptFreeContext(context);
	set.driver = find_name("driver", set.driver_name, driver_names);
	set.sending = find_name("sending", set.sending_name, sending_names);
	if (set.streams < 1 || set.streams > MAX_STREAMS)
		errx(2, "--streams=%d: from 1 to %d", set.streams, MAX_STREAMS);
	if (set.seconds < 1 || set.piece < 1 || set.buffer < set.piece)
		errx(2, "--seconds and --piece begin at 1, --buffer at one piece");
	if (set.sending == SPLICE && with_uring())
		errx(2, "--sending=splice goes with --driver=epoll or blocking");
	if (set.sending == ZEROCOPY_FIXED && !with_uring())
		errx(2, "--sending=zerocopy-fixed goes with --driver=uring or uring-defer");
}

/* ---- sockets ---- */

static void set_option(int socket, int level, int name, int value, const char *what)
{
	if (setsockopt(socket, level, name, &value, sizeof(value)))
		err(1, "%s=%d", what, value);
}

static void set_kib(int socket, int level, int name, int kib, const char *what)
{
	if (kib)
		set_option(socket, level, name, kib * KIB, what);
}

/* Buffer sizes and the congestion algorithm must be known before the connection is made; an
 * accepted socket inherits them from its listener. */
static void tune(int socket)
{
	set_kib(socket, SOL_SOCKET, SO_SNDBUF, set.send_buffer, "SO_SNDBUF");
	set_kib(socket, SOL_SOCKET, SO_RCVBUF, set.recv_buffer, "SO_RCVBUF");
	set_kib(socket, IPPROTO_TCP, TCP_NOTSENT_LOWAT, set.notsent_low, "TCP_NOTSENT_LOWAT");
	set_option(socket, IPPROTO_TCP, TCP_NODELAY, 1, "TCP_NODELAY");
	if (set.sending == ZEROCOPY && !with_uring())
		set_option(socket, SOL_SOCKET, SO_ZEROCOPY, 1, "SO_ZEROCOPY");
	if (set.congestion &&
	    setsockopt(socket, IPPROTO_TCP, TCP_CONGESTION, set.congestion, strlen(set.congestion)))
		err(1, "TCP_CONGESTION=%s", set.congestion);
}

static int open_listener(int *port)
{
	struct sockaddr_in6 address = {.sin6_family = AF_INET6};
	socklen_t size = sizeof(address);
	int listener = socket(AF_INET6, SOCK_STREAM | SOCK_CLOEXEC, 0);

	if (listener < 0)
		err(1, "socket");
	set_option(listener, IPPROTO_IPV6, IPV6_V6ONLY, 0, "IPV6_V6ONLY");
	tune(listener);
	if (bind(listener, (struct sockaddr *)&address, size) || listen(listener, MAX_STREAMS) ||
	    getsockname(listener, (struct sockaddr *)&address, &size))
		err(1, "listen");
	*port = ntohs(address.sin6_port);
	return listener;
}

static int open_connection(const struct addrinfo *to)
{
	int connection = socket(to->ai_family, SOCK_STREAM | SOCK_CLOEXEC, 0);

	if (connection < 0)
		err(1, "socket");
	tune(connection);
	if (connect(connection, to->ai_addr, to->ai_addrlen))
		err(1, "connect");
	return connection;
}

static void connect_all(struct side *side, const char *address)
{
	struct addrinfo hints = {.ai_socktype = SOCK_STREAM}, *found;
	const char *colon = strrchr(address, ':');
	char host[256];
	int result;

	if (!colon || (size_t)(colon - address) >= sizeof(host))
		errx(2, "--connect=%s: expected HOST:PORT", address);
	memcpy(host, address, colon - address);
	host[colon - address] = 0;
	result = getaddrinfo(host, colon + 1, &hints, &found);
	if (result)
		errx(1, "--connect=%s: %s", address, gai_strerror(result));
	for (int i = 0; i < set.streams; i++)
		side->streams[i].socket = open_connection(found);
	freeaddrinfo(found);
}

static void accept_all(struct side *side, int listener)
{
	for (int i = 0; i < set.streams; i++) {
		int accepted = accept4(listener, NULL, NULL, SOCK_CLOEXEC);

		if (accepted < 0)
			err(1, "accept");
		set_kib(accepted, SOL_SOCKET, SO_RCVLOWAT, set.recv_low, "SO_RCVLOWAT");
		side->streams[i].socket = accepted;
	}
	close(listener);
}

/* ---- the buffer ---- */

static void prepare_buffer(struct side *side)
{
	side->length = (size_t)set.buffer * KIB;
	side->buffer = aligned_alloc(HUGE_PAGE, (side->length + HUGE_PAGE - 1) & -HUGE_PAGE);
	if (!side->buffer)
		err(1, "buffer");
	if (set.huge && madvise(side->buffer, side->length, MADV_HUGEPAGE))
		err(1, "MADV_HUGEPAGE");
	memset(side->buffer, 1, side->length);
	for (uint64_t i = 0; side->sends && i < side->length / 8; i++)
		((uint64_t *)side->buffer)[i] = i;
}

/* Only one stream keeps the order, and only whole rounds leave no old bytes. */
static void check_buffer(const struct side *side)
{
	if (set.streams != 1 || side->bytes < side->length)
		errx(1, "--check needs one stream and a full round of the buffer");
	for (uint64_t i = 0; i < side->length / 8; i++)
		if (((const uint64_t *)side->buffer)[i] != i)
			errx(1, "wrong byte near offset %llu", (unsigned long long)i * 8);
}

/* ---- a run ---- */

/* The sender leaves last, so that the work of sending is charged to it and not lost. */
static void wait_for_end(struct side *side)
{
	for (int i = 0; i < set.streams; i++)
		shutdown(side->streams[i].socket, SHUT_WR);
	for (int i = 0; i < set.streams; i++) {
		struct pollfd wait = {.fd = side->streams[i].socket, .events = POLLIN};

		while (!(wait.revents & (POLLIN | POLLHUP)))
			if (poll(&wait, 1, -1) < 0 || wait.revents & POLLERR)
				drain_notices(side, &side->streams[i]);
	}
}

static double seconds(struct timeval time)
{
	return time.tv_sec + time.tv_usec * 1e-6;
}

static void report(const struct side *side, const struct rusage *before)
{
	double gigabytes = side->bytes * 1e-9;
	struct rusage after;

	getrusage(RUSAGE_SELF, &after);
	printf("%s  %6.3f Gb/s  user %.4f  system %.4f s/GB  %4.0f KiB/call  %llu copied\n",
	       side->sends ? "send" : "recv", side->bytes_in_time * 8e-9 / set.seconds,
	       (seconds(after.ru_utime) - seconds(before->ru_utime)) / gigabytes,
	       (seconds(after.ru_stime) - seconds(before->ru_stime)) / gigabytes,
	       side->bytes / 1024.0 / side->calls, (unsigned long long)side->copied);
}

static void run(struct side *side)
{
	struct rusage before;

	prepare_driver(side);
	getrusage(RUSAGE_SELF, &before);
	if (set.ping && side->sends)
		ping(side);
	else if (set.ping)
		echo(side);
	else
		drive(side);
	if (side->sends)
		wait_for_end(side);
	else
		for (int i = 0; i < set.streams; i++)
			close(side->streams[i].socket);
	if (!set.ping)
		report(side, &before);
	if (set.check && !side->sends)
		check_buffer(side);
}

static void run_sender(const char *address)
{
	static struct side side = {.sends = true};

	prepare_buffer(&side);
	connect_all(&side, address);
	run(&side);
}

static void run_receiver(int listener)
{
	static struct side side;

	prepare_buffer(&side);
	accept_all(&side, listener);
	run(&side);
}

static int run_both(void)
{
	char address[64];
	int port, status = 0, listener = open_listener(&port);
	pid_t child = fork();

	if (child < 0)
		err(1, "fork");
	if (child == 0) {
		close(listener);
		snprintf(address, sizeof(address), "127.0.0.1:%d", port);
		run_sender(address);
		return 0;
	}
	run_receiver(listener);
	if (waitpid(child, &status, 0) < 0)
		err(1, "waitpid");
	return status != 0;
}

int main(int argc, const char **argv)
{
	int port, listener;

	setvbuf(stdout, NULL, _IOLBF, 0);
	parse_options(argc, argv);
	if (set.connect) {
		run_sender(set.connect);
		return 0;
	}
	if (!set.listen)
		return run_both();
	listener = open_listener(&port);
	printf("port %d\n", port);
	run_receiver(listener);
	return 0;
}
