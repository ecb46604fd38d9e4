/* SPDX-License-Identifier: Apache-2.0 */
/* The drivers of socket-loops: ways to move bytes over sockets that are connected. */
#ifndef _GNU_SOURCE
#define _GNU_SOURCE
#endif
#include "socket_loops.h"

#include <err.h>
#include <errno.h>
#include <fcntl.h>
#include <linux/errqueue.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <sys/uio.h>
#include <time.h>
#include <unistd.h>

enum { PING_BYTES = 64, MAX_PINGS = 1 << 20 };

static double now(void)
{
	struct timespec t;

	clock_gettime(CLOCK_MONOTONIC, &t);
	return t.tv_sec + t.tv_nsec * 1e-9;
}

/* ---- pieces of the buffer ---- */

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

void drain_notices(struct side *side, struct stream *stream)
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

void ping(struct side *side)
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

void echo(struct side *side)
{
	unsigned char message[PING_BYTES];

	while (receive_message(side, side->streams, message))
		send_message(side, side->streams, message);
}

/* ---- any of them ---- */

static void open_ring(struct side *side)
{
	unsigned int flags = set.driver == URING_DEFER
				     ? IORING_SETUP_SINGLE_ISSUER | IORING_SETUP_DEFER_TASKRUN
				     : IORING_SETUP_COOP_TASKRUN;
	int result = io_uring_queue_init(4 * MAX_STREAMS, &side->ring, flags);

	if (result)
		errx(1, "io_uring_queue_init: %s", strerror(-result));
}

void prepare_driver(struct side *side)
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

void drive(struct side *side)
{
	if (with_uring())
		drive_uring(side);
	else if (set.driver == EPOLL)
		drive_epoll(side);
	else
		drive_blocking(side);
}
