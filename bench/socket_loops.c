/*
 * socket_loops - how should a program drive its TCP sockets?
 *
 * Moves bytes over N sockets for S seconds, in the ways that the tcp backend could use, and
 * prints the goodput and the CPU seconds per GB (1e9 bytes) of each side; or measures the round
 * trip of 64 bytes. No tensors, no protocol: what is measured here is the ground that the tcp
 * backend stands on.
 *
 *   socket_loops --sending=splice --piece=256             both sides here, over loopback
 *   socket_loops --listen                                 prints its port, receives
 *   socket_loops --connect=HOST:PORT --sending=splice     sends
 *
 * With --listen and --connect both sides must be given the same --streams, --seconds and --ping.
 *
 *   cc -O2 -Wall -Wextra -o socket_loops socket_loops.c -lpopt -luring
 */
#define _GNU_SOURCE
#include <err.h>
#include <errno.h>
#include <fcntl.h>
#include <liburing.h>
#include <linux/errqueue.h>
#include <netdb.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <popt.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/uio.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

enum { KIB = 1024, HUGE_PAGE = 2048 * KIB, MAX_STREAMS = 256, PING_BYTES = 64 };
enum { MAX_PINGS = 1 << 20 };

enum driver { BLOCKING, EPOLL, URING, URING_DEFER };
static const char *const driver_names[] = {"blocking", "epoll", "uring", "uring-defer", NULL};

enum sending { SEND, ZEROCOPY, ZEROCOPY_FIXED, SPLICE };
static const char *const sending_names[] = {"send", "zerocopy", "zerocopy-fixed", "splice", NULL};

static struct {
	int listen, streams, seconds, ping, spin, check, huge, wait_all;
	int piece, buffer, pipe, send_buffer, recv_buffer, recv_low, notsent_low; /* KiB */
	char *connect, *congestion, *driver_name, *sending_name;
	enum driver driver;
	enum sending sending;
} set = {
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

struct stream {
	int socket;
	int pipe[2];
	size_t in_pipe;    /* bytes that the pipe holds and the socket has not taken */
	unsigned char *at; /* the rest of the piece in hand */
	size_t left;
};

/* One end of the transfer. Pieces of the buffer go to whichever stream is ready, as the tcp
 * backend deals its chunks. */
struct side {
	bool sends;
	unsigned char *buffer;
	size_t length, next;
	size_t recv_flags;
	int open; /* streams that still have something to do */
	int epoll;
	struct io_uring ring;
	struct stream streams[MAX_STREAMS];
	uint64_t bytes, bytes_in_time, calls, copied;
	double begin, end;
};

static double now(void)
{
	struct timespec t;

	clock_gettime(CLOCK_MONOTONIC, &t);
	return t.tv_sec + t.tv_nsec * 1e-9;
}

static int find_name(const char *option, const char *name, const char *const *names)
{
	for (int i = 0; names[i]; i++)
		if (!strcmp(names[i], name))
			return i;
	errx(2, "--%s=%s: not known, see --help", option, name);
}

static bool with_uring(void)
{
	return set.driver >= URING;
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

/* ---- pieces of the buffer ---- */

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

static void take_piece(struct side *side, struct stream *stream)
{
	size_t piece = (size_t)set.piece * KIB;

	if (stream->left)
		return;
	if (side->next == side->length)
		side->next = 0;
	if (piece > side->length - side->next)
		piece = side->length - side->next;
	stream->at = side->buffer + side->next;
	stream->left = piece;
	side->next += piece;
}

static void count(struct side *side, size_t bytes)
{
	double time = now();

	if (!side->begin) {
		side->begin = time;
		side->end = time + set.seconds;
	}
	side->calls++;
	side->bytes += bytes;
	if (time < side->end)
		side->bytes_in_time += bytes;
}

static bool time_is_up(const struct side *side)
{
	return side->sends && side->begin && now() >= side->end;
}

static void advance(struct side *side, struct stream *stream, size_t bytes)
{
	stream->at += bytes;
	stream->left -= bytes;
	count(side, bytes);
}

/* ---- one readiness, one call: what epoll and blocking sockets use ---- */

static void open_pipe(struct stream *stream)
{
	if (pipe2(stream->pipe, O_CLOEXEC | O_NONBLOCK))
		err(1, "pipe");
	if (fcntl(stream->pipe[1], F_SETPIPE_SZ, set.pipe * KIB) < 0)
		err(1, "F_SETPIPE_SZ=%d KiB", set.pipe);
}

/* The pipe borrows the pages, the socket takes them over: no byte is copied on this side. They
 * may change again only after the peer has received them. */
static ssize_t send_spliced(struct side *side, struct stream *stream)
{
	unsigned int flags = set.driver == BLOCKING ? 0 : SPLICE_F_NONBLOCK;
	ssize_t result;

	if (!stream->in_pipe) {
		struct iovec piece;

		take_piece(side, stream);
		piece = (struct iovec){stream->at, stream->left};
		result = vmsplice(stream->pipe[1], &piece, 1, SPLICE_F_NONBLOCK);
		if (result <= 0)
			err(1, "vmsplice");
		stream->in_pipe = result;
		stream->at += result;
		stream->left -= result;
	}
	result = splice(stream->pipe[0], NULL, stream->socket, NULL, stream->in_pipe, flags);
	if (result > 0) {
		stream->in_pipe -= result;
		count(side, result);
	}
	return result;
}

/* Returns the bytes moved, 0 at the end of the stream, or -1 with errno. */
static ssize_t move(struct side *side, struct stream *stream)
{
	ssize_t result;

	if (side->sends && set.sending == SPLICE)
		return send_spliced(side, stream);
	take_piece(side, stream);
	if (!side->sends)
		result = recv(stream->socket, stream->at, stream->left, 0);
	else
		result = send(stream->socket, stream->at, stream->left,
			      set.sending == ZEROCOPY ? MSG_ZEROCOPY : 0);
	if (result > 0)
		advance(side, stream, result);
	return result;
}

/* MSG_ZEROCOPY tells on the error queue which sends are done, and whether it copied after all. */
static void drain_notices(struct side *side, struct stream *stream)
{
	union {
		struct cmsghdr aligned;
		char room[256];
	} control;
	struct msghdr message = {.msg_control = &control, .msg_controllen = sizeof(control)};

	while (recvmsg(stream->socket, &message, MSG_ERRQUEUE | MSG_DONTWAIT) >= 0) {
		const struct cmsghdr *header = CMSG_FIRSTHDR(&message);

		if (header) {
			const struct sock_extended_err *notice = (const void *)CMSG_DATA(header);

			if (notice->ee_code & SO_EE_CODE_ZEROCOPY_COPIED)
				side->copied += notice->ee_data - notice->ee_info + 1;
		}
		message.msg_controllen = sizeof(control);
	}
}

static void move_or_close(struct side *side, struct stream *stream)
{
	ssize_t result = move(side, stream);

	/* Out of memory for zerocopy notices: they are read at the next wakeup. */
	if (result < 0 && errno != EAGAIN && errno != ENOBUFS)
		err(1, side->sends ? "send" : "recv");
	if (result == 0) {
		side->open--;
		epoll_ctl(side->epoll, EPOLL_CTL_DEL, stream->socket, NULL);
	}
}

static void drive_blocking(struct side *side)
{
	while (side->open && !time_is_up(side))
		for (int i = 0; i < set.streams; i++) {
			move_or_close(side, &side->streams[i]);
			if (side->sends && set.sending == ZEROCOPY)
				drain_notices(side, &side->streams[i]);
		}
}

static void drive_epoll(struct side *side)
{
	struct epoll_event events[64];

	while (side->open && !time_is_up(side)) {
		int ready = epoll_wait(side->epoll, events, 64, -1);

		for (int i = 0; i < ready; i++) {
			if (events[i].events & EPOLLERR)
				drain_notices(side, events[i].data.ptr);
			move_or_close(side, events[i].data.ptr);
		}
	}
}

/* ---- io_uring: one operation in flight for each stream ---- */

static struct io_uring_sqe *next_entry(struct side *side)
{
	struct io_uring_sqe *entry = io_uring_get_sqe(&side->ring);

	if (!entry)
		errx(1, "io_uring: the submission queue is full");
	return entry;
}

static void queue_piece(struct side *side, struct stream *stream)
{
	struct io_uring_sqe *entry = next_entry(side);
	int fd = stream->socket;

	take_piece(side, stream);
	if (!side->sends)
		io_uring_prep_recv(entry, fd, stream->at, stream->left, side->recv_flags);
	else if (set.sending == SEND)
		io_uring_prep_send(entry, fd, stream->at, stream->left, MSG_WAITALL);
	else if (set.sending == ZEROCOPY)
		io_uring_prep_send_zc(entry, fd, stream->at, stream->left, MSG_WAITALL, 0);
	else
		io_uring_prep_send_zc_fixed(entry, fd, stream->at, stream->left, MSG_WAITALL, 0, 0);
	io_uring_sqe_set_data(entry, stream);
}

static void handle_completion(struct side *side, const struct io_uring_cqe *completion)
{
	struct stream *stream = io_uring_cqe_get_data(completion);

	if (completion->flags & IORING_CQE_F_NOTIF)
		return;
	if (completion->res < 0)
		errx(1, "io_uring: %s", strerror(-completion->res));
	if (completion->res == 0) {
		side->open--;
		return;
	}
	advance(side, stream, completion->res);
	queue_piece(side, stream);
}

static void drive_uring(struct side *side)
{
	struct iovec memory = {side->buffer, side->length};

	if (side->sends && set.sending == ZEROCOPY_FIXED) {
		int result = io_uring_register_buffers(&side->ring, &memory, 1);

		if (result)
			errx(1, "io_uring_register_buffers: %s", strerror(-result));
	}
	side->recv_flags = set.wait_all ? MSG_WAITALL : 0;
	for (int i = 0; i < set.streams; i++)
		queue_piece(side, &side->streams[i]);
	while (side->open && !time_is_up(side)) {
		struct io_uring_cqe *completion;
		unsigned int head, seen = 0;

		io_uring_submit_and_wait(&side->ring, 1);
		io_uring_for_each_cqe(&side->ring, head, completion)
		{
			handle_completion(side, completion);
			seen++;
		}
		io_uring_cq_advance(&side->ring, seen);
	}
}

/* ---- 64 bytes there and back ---- */

/* Waits for the stream to be readable, after polling for --spin microseconds. */
static ssize_t receive_ready(struct side *side, struct stream *stream, void *at, size_t left)
{
	double limit = set.spin ? now() + set.spin * 1e-6 : 0;
	struct epoll_event event;
	ssize_t result;

	if (set.driver == BLOCKING)
		return recv(stream->socket, at, left, 0);
	while (set.spin && now() < limit) {
		result = recv(stream->socket, at, left, 0);
		if (result >= 0 || errno != EAGAIN)
			return result;
	}
	epoll_wait(side->epoll, &event, 1, -1);
	return recv(stream->socket, at, left, 0);
}

/* The send that was queued before goes to the kernel in the same call. */
static ssize_t receive_uring(struct side *side, struct stream *stream, void *at, size_t left)
{
	double limit = set.spin ? now() + set.spin * 1e-6 : 0;
	struct io_uring_cqe *completion = NULL;
	ssize_t result;

	io_uring_prep_recv(next_entry(side), stream->socket, at, left, 0);
	if (!set.spin) {
		io_uring_submit_and_wait(&side->ring, 1);
	} else {
		io_uring_submit(&side->ring);
		while (!io_uring_cq_ready(&side->ring) && now() < limit)
			io_uring_get_events(&side->ring);
	}
	if (io_uring_wait_cqe(&side->ring, &completion))
		errx(1, "io_uring_wait_cqe");
	result = completion->res;
	io_uring_cqe_seen(&side->ring, completion);
	errno = result < 0 ? -result : 0;
	return result;
}

static bool receive_message(struct side *side, struct stream *stream, unsigned char *message)
{
	size_t done = 0;

	while (done < PING_BYTES) {
		ssize_t result =
			with_uring()
				? receive_uring(side, stream, message + done, PING_BYTES - done)
				: receive_ready(side, stream, message + done, PING_BYTES - done);

		if (result == 0)
			return false;
		if (result < 0 && errno != EAGAIN)
			err(1, "recv");
		done += result > 0 ? result : 0;
	}
	return true;
}

static void send_message(struct side *side, struct stream *stream, const unsigned char *message)
{
	struct io_uring_sqe *entry;

	if (!with_uring()) {
		if (send(stream->socket, message, PING_BYTES, 0) != PING_BYTES)
			err(1, "send");
		return;
	}
	entry = next_entry(side);
	io_uring_prep_send(entry, stream->socket, message, PING_BYTES, 0);
	entry->flags |= IOSQE_CQE_SKIP_SUCCESS;
}

static int compare_floats(const void *left, const void *right)
{
	float a = *(const float *)left, b = *(const float *)right;

	return (a > b) - (a < b);
}

static void ping(struct side *side)
{
	float *times = malloc(MAX_PINGS * sizeof(*times));
	double end = now() + set.seconds, before = now();
	unsigned char message[PING_BYTES] = {1}, answer[PING_BYTES];
	size_t pings = 0;

	if (!times)
		err(1, "malloc");
	while (before < end && pings < MAX_PINGS) {
		double after;

		send_message(side, side->streams, message);
		if (!receive_message(side, side->streams, answer))
			errx(1, "the peer went away");
		after = now();
		times[pings++] = (after - before) * 1e6;
		before = after;
	}
	qsort(times, pings, sizeof(*times), compare_floats);
	printf("ping  p50 %.2f us  p99 %.2f us  (%zu round trips)\n", times[pings / 2],
	       times[pings * 99 / 100], pings);
	free(times);
}

static void echo(struct side *side)
{
	unsigned char message[PING_BYTES];

	while (receive_message(side, side->streams, message))
		send_message(side, side->streams, message);
}

/* ---- a run ---- */

static void open_ring(struct side *side)
{
	unsigned int flags = set.driver == URING_DEFER
				     ? IORING_SETUP_SINGLE_ISSUER | IORING_SETUP_DEFER_TASKRUN
				     : IORING_SETUP_COOP_TASKRUN;
	int result = io_uring_queue_init(4 * MAX_STREAMS, &side->ring, flags);

	if (result)
		errx(1, "io_uring_queue_init: %s", strerror(-result));
}

static void prepare_driver(struct side *side)
{
	uint32_t events = side->sends && !set.ping ? EPOLLOUT : EPOLLIN;

	if (with_uring())
		open_ring(side);
	side->epoll = epoll_create1(EPOLL_CLOEXEC);
	for (int i = 0; i < set.streams; i++) {
		struct stream *stream = &side->streams[i];
		struct epoll_event event = {.events = events, .data.ptr = stream};

		if (epoll_ctl(side->epoll, EPOLL_CTL_ADD, stream->socket, &event))
			err(1, "epoll_ctl");
		if (set.driver == EPOLL && fcntl(stream->socket, F_SETFL, O_NONBLOCK))
			err(1, "O_NONBLOCK");
		if (side->sends && set.sending == SPLICE)
			open_pipe(stream);
	}
	side->open = set.streams;
}

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
	else if (with_uring())
		drive_uring(side);
	else if (set.driver == EPOLL)
		drive_epoll(side);
	else
		drive_blocking(side);
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
