/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The control stream: records in order, kept until the peer has taken them, so that a
 * broken socket can be replaced without losing or repeating one.
 */
#include <errno.h>
#include <stdlib.h>
#include <sys/uio.h>

#include "tcp.h"

/* Reads before others get their turn. */
#define READ_BATCH 8

/* ---- Out --------------------------------------------------------------- */

bool control_has_room(const struct backend_link *link)
{
	return haul_outbox_waiting(&link->outbox) < CONTROL_WINDOW;
}

int control_record(struct backend_link *link, enum record_type type, const void *bytes,
		   size_t length)
{
	uint8_t *out;

	if (haul_outbox_waiting(&link->outbox) > OUTBOX_MAX)
		return -ENOBUFS;
	out = haul_outbox_record(&link->outbox, type, 0, length);
	if (!out)
		return -ENOMEM;
	memcpy(out, bytes, length);
	return 0;
}

int tcp_control(struct backend_link *link, const uint8_t *message, size_t length)
{
	return control_record(link, RECORD_MESSAGE, message, length);
}

int control_small(struct backend_link *link, const struct haul_push *push)
{
	uint64_t begin = link->context->traced ? haul_clock() : 0;
	int error = haul_outbox_small(&link->outbox, RECORD_SMALL, push);

	if (!error && link->context->traced)
		haul_trace_copy(link->endpoint, HAUL_SHARE_OUT, push->slot, push->length, begin);
	return error;
}

/*
 * A peer that leaves while this side still sends resets the connection, and its last words, which
 * it has seen acknowledged, are there to be read. So the end is reported from behind them.
 */
static void write_failed(struct tcp_socket *socket, int error)
{
	if (error != -ECONNRESET && error != -EPIPE) {
		link_socket_broken(socket, error);
		return;
	}
	socket->writable = false;
	socket->readable = socket->ended = true;
	socket_ready(socket);
}

void control_write(struct backend_link *link)
{
	struct tcp_socket *socket = link->control;
	struct haul_outbox *box = &link->outbox;

	if (!socket || socket->state != SOCKET_UP)
		return;
	if (socket->writable)
		socket->full = false;
	while (socket->writable && link->sent < haul_outbox_waiting(box)) {
		ssize_t sent = send(socket->fd, box->bytes + box->start + link->sent,
				    haul_outbox_waiting(box) - link->sent, MSG_NOSIGNAL);

		if (sent < 0) {
			if (errno == EINTR)
				continue;
			if (errno == EAGAIN) {
				socket->writable = false;
				socket->full = true;
			} else {
				write_failed(socket, -errno);
			}
			return;
		}
		link->sent += (size_t)sent;
	}
	if (link->state == LINK_LEAVING && link->sent == haul_outbox_waiting(box))
		shutdown(socket->fd, SHUT_WR);
}

/* The peer has taken everything before this position. */
static int trim(struct backend_link *link, uint64_t taken)
{
	uint64_t count = taken - link->base;

	if (taken < link->base || count > link->sent)
		return -EPROTO;
	link->base = taken;
	link->sent -= count;
	haul_outbox_drop(&link->outbox, count);
	return 0;
}

int control_rewind(struct backend_link *link, uint64_t taken)
{
	int error = trim(link, taken);

	/* What was half read belongs to a record that comes again. */
	link->inbox_start = link->inbox_end = 0;
	link->small_left = 0;
	link->sent = 0;
	return error;
}

/* ---- In ---------------------------------------------------------------- */

/* Let the peer forget what was taken, now and then. */
static void tell_taken(struct backend_link *link)
{
	uint8_t bytes[8];

	if (link->taken - link->taken_told < TAKEN_EVERY || link->lost || !link->endpoint)
		return;
	put64(bytes, link->taken);
	if (control_record(link, RECORD_TAKEN, bytes, sizeof(bytes)) == 0)
		link->taken_told = link->taken;
	control_write(link);
}

static void forged(struct backend_link *link, const char *why)
{
	link_fail(link, -EPROTO, why);
}

static void on_small(struct backend_link *link, const uint8_t *body, size_t header, size_t length)
{
	uint64_t slot = get64(body), offset = get64(body + 8);

	haul_on_control(link->endpoint, body + SMALL_SIZE, header);
	if (link->endpoint && !link->error &&
	    !haul_put(link->endpoint, slot, offset, body + SMALL_SIZE + header,
		      length - SMALL_SIZE - header))
		forged(link, "the peer sent bytes for a slot that it may not write");
}

/* The session's own words. */
static int on_session_record(struct backend_link *link, enum record_type type, const uint8_t *body,
			     size_t length)
{
	switch (type) {
	case RECORD_TAKEN:
		if (length != 8)
			return -EPROTO;
		/* One that comes again over a new socket says less than that one's preamble did. */
		if (get64(body) >= link->base && trim(link, get64(body)))
			return -EPROTO;
		push_small_waiting(link);
		return 0;
	case RECORD_STREAMS:
		if (length != 4)
			return -EPROTO;
		link->wanted_by_peer = get32(body) < STREAMS_MAX ? get32(body) : STREAMS_MAX;
		connect_streams(link, haul_clock());
		return 0;
	case RECORD_STREAM_TAKEN:
		if (length != 16)
			return -EPROTO;
		link->crowd_at_peer = get16(body + 6);
		return stream_taken(link, get32(body), get16(body + 4) != 0, get64(body + 8));
	case RECORD_STREAM_GONE:
		return length == 8 ? stream_gone_at_peer(link, get32(body)) : -EPROTO;
	default:
		return -EPROTO;
	}
}

/*
 * A SMALL that the inbox can't hold whole: the engine hears of it, and the rest is read
 * straight to its place.
 */
static void begin_long_small(struct backend_link *link, size_t header, size_t length)
{
	const uint8_t *body = link->inbox + link->inbox_start + RECORD_SIZE;
	uint64_t begin = link->context->traced ? haul_clock() : 0;
	size_t here = link->inbox_end - link->inbox_start - RECORD_SIZE - SMALL_SIZE - header;
	uint8_t *address;

	link->small_slot = get64(body);
	link->small_offset = get64(body + 8);
	link->small_length = link->small_left = length - SMALL_SIZE - header;
	link->small_header = header;
	switch (haul_place(link->endpoint, link->small_slot, link->small_offset, link->small_length,
			   &address)) {
	case HAUL_PLACE_HERE:
		memcpy(address, body + SMALL_SIZE + header, here);
		if (link->context->traced)
			haul_trace_copy(link->endpoint, HAUL_SHARE_IN, link->small_slot, here,
					begin);
		break;
	case HAUL_PLACE_DISCARD:
		break;
	case HAUL_PLACE_FORGED:
		forged(link, "the peer sent bytes for a slot that it may not write");
		return;
	}
	link->small_offset += here;
	link->small_left -= here;
	memcpy(link->small_message, body + SMALL_SIZE, header);
	link->inbox_start = link->inbox_end = 0;
}

static void end_long_small(struct backend_link *link)
{
	link->taken += RECORD_SIZE + SMALL_SIZE + link->small_header + link->small_length;
	haul_on_control(link->endpoint, link->small_message, link->small_header);
	if (link->endpoint && !link->error)
		haul_on_arrived(link->endpoint, link->small_slot, link->small_length);
}

/*
 * One whole record at the inbox's start, or the begin of a long one. False: more bytes are needed,
 * or the link ended.
 */
static bool parse(struct backend_link *link)
{
	const uint8_t *head = link->inbox + link->inbox_start;
	size_t here = link->inbox_end - link->inbox_start;
	size_t length, header;
	enum record_type type;

	if (here < RECORD_SIZE)
		return false;
	length = get32(head);
	type = head[4];
	header = get16(head + 6);
	if (length > (type == RECORD_SMALL ? SMALL_SIZE + HAUL_CONTROL_MAX + SMALL_MAX
					   : HAUL_CONTROL_MAX) ||
	    (type == RECORD_SMALL && (header > HAUL_CONTROL_MAX || length < SMALL_SIZE + header))) {
		forged(link, "a record of the control stream has an impossible length");
		return false;
	}
	if (here < RECORD_SIZE + length) {
		if (RECORD_SIZE + length > INBOX_SIZE && here >= RECORD_SIZE + SMALL_SIZE + header)
			begin_long_small(link, header, length);
		return false;
	}
	link->inbox_start += RECORD_SIZE + length;
	link->taken += RECORD_SIZE + length;
	if (type == RECORD_MESSAGE)
		haul_on_control(link->endpoint, head + RECORD_SIZE, length);
	else if (type == RECORD_SMALL)
		on_small(link, head + RECORD_SIZE, header, length);
	else if (on_session_record(link, type, head + RECORD_SIZE, length))
		forged(link, "a record of the control stream makes no sense");
	return link->endpoint && !link->error;
}

/* Read once: into the inbox, and for a long small tensor straight to its place first. */
static ssize_t read_once(struct backend_link *link, size_t *asked)
{
	struct iovec pieces[2];
	int count = 0;
	uint8_t *address = NULL;

	if (link->small_left) {
		size_t left = link->small_left;

		if (haul_place(link->endpoint, link->small_slot, link->small_offset, left,
			       &address) != HAUL_PLACE_HERE) {
			address = link->context->scrap;
			left = left < SCRAP_SIZE ? left : SCRAP_SIZE;
		}
		pieces[count++] = (struct iovec){address, left};
	}
	if (link->inbox_start > 0) {
		memmove(link->inbox, link->inbox + link->inbox_start,
			link->inbox_end - link->inbox_start);
		link->inbox_end -= link->inbox_start;
		link->inbox_start = 0;
	}
	if (!link->small_left || pieces[0].iov_len == link->small_left)
		pieces[count++] =
			(struct iovec){link->inbox + link->inbox_end, INBOX_SIZE - link->inbox_end};
	*asked = pieces[0].iov_len + (count > 1 ? pieces[1].iov_len : 0);
	if (count == 1)
		return recv(link->control->fd, pieces[0].iov_base, pieces[0].iov_len, 0);
	return readv(link->control->fd, pieces, count);
}

/* While the last messages leave, whatever the peer still says is forgotten. */
static void read_leaving(struct backend_link *link)
{
	ssize_t got = 0;

	for (int i = 0; i < READ_BATCH; i++) {
		got = recv(link->control->fd, link->context->scrap, SCRAP_SIZE, 0);
		if (got <= 0)
			break;
	}
	if (got > 0)
		socket_ready(link->control);
	else if (got == 0 || (errno != EAGAIN && errno != EINTR))
		link_free(link);
}

void control_read(struct backend_link *link)
{
	struct tcp_socket *socket = link->control;

	if (link->state == LINK_LEAVING) {
		read_leaving(link);
		return;
	}
	for (int i = 0; i < READ_BATCH && socket->readable; i++) {
		size_t asked, direct;
		ssize_t got = read_once(link, &asked);

		if (got < 0 && errno == EINTR)
			continue;
		if (got < 0 && errno == EAGAIN) {
			socket->readable = false;
			link->context->in_vain = i == 0;
			break;
		}
		if (got <= 0) {
			link_socket_broken(socket, got == 0 ? -ECONNRESET : -errno);
			return;
		}
		if ((size_t)got < asked)
			socket_short_read(socket);
		if (!link->context->watched)
			link->context->hot = socket;
		direct = (uint64_t)got < link->small_left ? (uint64_t)got : link->small_left;
		if (direct) {
			link->small_left -= direct;
			link->small_offset += direct;
			if (link->small_left == 0)
				end_long_small(link);
		}
		link->inbox_end += (size_t)got - direct;
		if (!link->endpoint || link->error)
			return;
		while (parse(link))
			;
		if (!link->endpoint || link->error || link->control != socket)
			return;
		tell_taken(link);
		if (link->control != socket)
			return;
	}
	if (socket->readable)
		socket_ready(socket);
}
