/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Streams carry chunks. The sender keeps a log of the chunks that it wrote to a stream, until the
 * peer says that it has taken them: when the stream breaks, what was not taken goes over others.
 */
#include <errno.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <stdlib.h>
#include <sys/uio.h>

#include "tcp.h"

/* Bytes that one stream moves before others get their turn. */
#define TURN (1024 * 1024)

/* Below this size a copy costs less than pinning pages (Documentation/networking/msg_zerocopy). */
#define ZEROCOPY_LEAST (10 * 1024)

/* How often the crowd is counted, and how long a link belongs to it after a chunk; ns. */
#define CROWD_EVERY UINT64_C(50000000)
#define CROWD_MEMORY UINT64_C(500000000)

/* What is sent in the place of a tensor that was given up in the middle of a chunk. */
static const uint8_t filler[64 * 1024];

struct stream *stream_new(struct backend_link *link, struct tcp_socket *socket, uint32_t name)
{
	struct stream *stream = calloc(1, sizeof(*stream));

	if (!stream)
		return NULL;
	stream->link = link;
	stream->socket = socket;
	stream->name = name;
	stream->used_at = haul_clock();
	TAILQ_INSERT_TAIL(&link->streams, stream, streams);
	link->stream_count++;
	return stream;
}

/* Its socket is up: it takes part. */
void stream_up(struct stream *stream)
{
	stream->link->streams_up++;
	if (stream->link->tune.bbr)
		stream_use_bbr(stream);
	stream_write(stream);
}

static struct haul_chunk *logged(struct stream *stream, uint64_t number)
{
	return &stream->log[number % CHUNK_LOG];
}

/* One past the last chunk of the log, the one that is being written included. */
static uint64_t log_end(const struct stream *stream)
{
	return stream->log_next + (stream->writing ? 1 : 0);
}

/* Take the socket away; the stream is in link->gone then. */
static void detach(struct stream *stream)
{
	struct backend_link *link = stream->link;

	if (!stream->socket)
		return;
	tune_stream_gone(link);
	if (stream->socket->state == SOCKET_UP)
		link->streams_up--;
	socket_dead(stream->socket);
	stream->socket = NULL;
	link->stream_count--;
	TAILQ_REMOVE(&link->streams, stream, streams);
	TAILQ_INSERT_TAIL(&link->gone, stream, streams);
	link->gone_count++;
}

void stream_free(struct stream *stream)
{
	detach(stream);
	for (; stream->log_first < log_end(stream); stream->log_first++)
		haul_transfer_release(logged(stream, stream->log_first)->transfer);
	TAILQ_REMOVE(&stream->link->gone, stream, streams);
	stream->link->gone_count--;
	free(stream);
}

bool stream_use_bbr(struct stream *stream)
{
	int fd = stream->socket->fd;
	char name[16] = "";
	socklen_t size = sizeof(name) - 1;

	if (getsockopt(fd, IPPROTO_TCP, TCP_CONGESTION, name, &size) == 0 &&
	    strcmp(name, "bbr") == 0)
		return false;
	return setsockopt(fd, IPPROTO_TCP, TCP_CONGESTION, "bbr", 3) == 0;
}

/* How many links share what this side has: those that moved a chunk lately. */
unsigned stream_crowd(struct backend_context *context, uint64_t now)
{
	const struct backend_link *link;

	if (now - context->crowd_counted_at < CROWD_EVERY)
		return context->crowd;
	context->crowd_counted_at = now;
	context->crowd = 0;
	TAILQ_FOREACH (link, &context->links, all)
		context->crowd += now - link->moved_at < CROWD_MEMORY;
	return context->crowd;
}

/* ---- Breaking ---------------------------------------------------------- */

static void forget_when_settled(struct stream *stream)
{
	if (!stream->asked && stream->answered)
		stream_free(stream);
}

static void tell(struct stream *stream, enum record_type type, bool final)
{
	struct backend_link *link = stream->link;
	uint8_t bytes[16];
	size_t length = 8;
	int error;

	put32(bytes, stream->name);
	put16(bytes + 4, final);
	put16(bytes + 6, 0);
	if (type == RECORD_STREAM_TAKEN) {
		link->crowd_told = link->context->crowd;
		put16(bytes + 6,
		      (uint16_t)(link->crowd_told < UINT16_MAX ? link->crowd_told : UINT16_MAX));
		put64(bytes + 8, stream->taken);
		length = 16;
	}
	error = control_record(link, type, bytes, length);
	if (error)
		link_fail(link, error, "no room for a message about a stream");
	else
		control_write(link);
}

void stream_break(struct stream *stream)
{
	detach(stream);
	stream->asked = true;
	tell(stream, RECORD_STREAM_GONE, false);
}

static struct stream *find(struct backend_link *link, uint32_t name)
{
	struct stream *stream;

	TAILQ_FOREACH (stream, &link->streams, streams) {
		if (stream->name == name)
			return stream;
	}
	TAILQ_FOREACH (stream, &link->gone, streams) {
		if (stream->name == name)
			return stream;
	}
	return NULL;
}

int stream_taken(struct backend_link *link, uint32_t name, bool final, uint64_t chunks)
{
	struct stream *stream = find(link, name);
	bool was_full;

	if (!stream)
		return 0;
	if (chunks < stream->log_first || chunks > stream->log_next || (final && !stream->asked))
		return -EPROTO;
	was_full = stream->log_next - stream->log_first == CHUNK_LOG;
	for (; stream->log_first < chunks; stream->log_first++)
		haul_transfer_release(logged(stream, stream->log_first)->transfer);
	if (!final) {
		if (was_full && stream->socket)
			stream_write(stream);
		return 0;
	}
	for (; stream->log_first < log_end(stream); stream->log_first++)
		push_return_chunk(link, logged(stream, stream->log_first));
	stream->writing = false;
	stream->log_next = stream->log_first;
	stream->asked = false;
	/* It may never have arrived at the peer, who then says no STREAM_GONE. */
	if (stream->taken == 0)
		stream->answered = true;
	forget_when_settled(stream);
	tcp_flush(link);
	return 0;
}

int stream_gone_at_peer(struct backend_link *link, uint32_t name)
{
	struct stream *stream = find(link, name);

	if (!stream) {
		/* It was opened by the peer and never got here. */
		struct stream never = {.link = link, .name = name};

		tell(&never, RECORD_STREAM_TAKEN, true);
		return 0;
	}
	if (stream->answered)
		return -EPROTO;
	if (stream->socket) {
		link->counters.streams_replaced++;
		stream_break(stream);
		link_timer(link, haul_clock());
	}
	tell(stream, RECORD_STREAM_TAKEN, true);
	stream->answered = true;
	forget_when_settled(stream);
	return 0;
}

/* ---- The trace --------------------------------------------------------- */

/* Lane 0 is the control stream. */
static unsigned lane_of(const struct stream *stream)
{
	return stream->name + 1;
}

/* 0 without a trace, and then nobody uses it. */
static uint64_t trace_clock(const struct stream *stream)
{
	return stream->link->context->traced ? haul_clock() : 0;
}

/* A chunk was written, unless its push has ended meanwhile. */
static void trace_out(const struct stream *stream, const struct haul_chunk *chunk)
{
	const struct haul_push *push = chunk->transfer->push;
	struct haul_share share = {
		.way = HAUL_SHARE_OUT,
		.lane = lane_of(stream),
		.bytes = chunk->length,
		.begin = stream->begun_out,
		.end = haul_clock(),
		.kernel = stream->kernel_out,
	};

	if (!push)
		return;
	share.slot = push->slot;
	haul_trace_share(stream->link->endpoint, &share);
}

static void trace_in(const struct stream *stream)
{
	struct haul_share share = {
		.way = HAUL_SHARE_IN,
		.lane = lane_of(stream),
		.slot = stream->slot,
		.bytes = stream->length,
		.begin = stream->begun_in,
		.end = haul_clock(),
		.kernel = stream->kernel_in,
	};

	haul_trace_share(stream->link->endpoint, &share);
}

/* ---- Out --------------------------------------------------------------- */

/* Begin the next chunk; false when there is none, or when the peer is too far behind. */
static bool begin_chunk(struct stream *stream)
{
	struct haul_chunk *chunk = logged(stream, stream->log_next);

	if (stream->log_next - stream->log_first == CHUNK_LOG ||
	    !push_next_chunk(stream->link, chunk))
		return false;
	put64(stream->header_out, chunk->transfer->push->slot);
	put64(stream->header_out + 8, chunk->transfer->push->offset + chunk->offset);
	put32(stream->header_out + 16, chunk->length);
	put32(stream->header_out + 20, CHUNK_MAGIC);
	stream->writing = true;
	stream->written = 0;
	stream->link->counters.chunks_sent++;
	stream->link->moved_at = haul_clock();
	stream->begun_out = stream->link->moved_at;
	stream->kernel_out = 0;
	return true;
}

/* What is left of the chunk, as pieces for sendmsg(). Returns their sum. */
static size_t gather(struct stream *stream, struct iovec pieces[2], size_t *count)
{
	const struct haul_chunk *chunk = logged(stream, stream->log_next);
	const struct haul_push *push = chunk->transfer->push;
	const struct backend_link *link = stream->link;
	uint64_t done = stream->written < CHUNK_SIZE ? 0 : stream->written - CHUNK_SIZE;
	size_t left = chunk->length - done;
	size_t sum = 0;

	*count = 0;
	if (stream->written < CHUNK_SIZE) {
		pieces[0] = (struct iovec){stream->header_out + stream->written,
					   CHUNK_SIZE - stream->written};
		sum = pieces[0].iov_len;
		*count = 1;
	}
	/* With MSG_ZEROCOPY the header goes by itself: its memory is used again at once. */
	if (*count && link->context->config->zerocopy == ZEROCOPY_MSG)
		return sum;
	if (push) {
		pieces[*count] = (struct iovec){(void *)(push->data + chunk->offset + done), left};
	} else {
		/* Given up: the peer discards it, but expects that many bytes. */
		if (left > sizeof(filler))
			left = sizeof(filler);
		pieces[*count] = (struct iovec){(void *)filler, left};
	}
	sum += left;
	*count += 1;
	return sum;
}

static bool in_use(const struct stream *stream)
{
	const struct stream *other;
	unsigned number = 0;

	TAILQ_FOREACH (other, &stream->link->streams, streams) {
		if (other == stream)
			return number < stream->link->tune.target;
		if (other->socket->state == SOCKET_UP)
			number++;
	}
	return false;
}

static int how_to_send(const struct stream *stream, size_t asked)
{
	if (stream->link->context->config->zerocopy == ZEROCOPY_NO)
		return 0;
	if (stream->written < CHUNK_SIZE)
		return MSG_MORE;
	return asked >= ZEROCOPY_LEAST ? MSG_ZEROCOPY : 0;
}

/* Write once. False: the socket is full, or broken. */
static bool write_once(struct stream *stream, size_t *moved)
{
	struct tcp_socket *socket = stream->socket;
	const struct haul_chunk *chunk = logged(stream, stream->log_next);
	struct iovec pieces[2];
	struct msghdr message = {.msg_iov = pieces};
	size_t asked = gather(stream, pieces, &message.msg_iovlen);
	uint64_t begin = trace_clock(stream);
	ssize_t sent = sendmsg(socket->fd, &message, MSG_NOSIGNAL | how_to_send(stream, asked));

	/* ENOBUFS: too many notifications of MSG_ZEROCOPY wait. Then it is copied. */
	if (sent < 0 && errno == ENOBUFS)
		sent = sendmsg(socket->fd, &message, MSG_NOSIGNAL);
	if (sent < 0) {
		if (errno == EINTR)
			return true;
		if (errno == EAGAIN)
			socket->writable = false;
		else
			link_socket_broken(socket, -errno);
		return false;
	}
	stream->kernel_out += trace_clock(stream) - begin;
	stream->written += (uint64_t)sent;
	*moved += (size_t)sent;
	if (stream->written == CHUNK_SIZE + (uint64_t)chunk->length) {
		stream->writing = false;
		stream->log_next++;
		if (stream->link->context->traced)
			trace_out(stream, chunk);
	}
	if ((size_t)sent < asked) {
		socket->writable = false;
		return false;
	}
	return true;
}

void stream_write(struct stream *stream)
{
	struct tcp_socket *socket = stream->socket;
	size_t moved = 0;

	if (!socket || socket->state != SOCKET_UP || !socket->writable)
		return;
	if (!stream->writing && (!haul_chunks_pending(&stream->link->chunks) || !in_use(stream)))
		return;
	while (moved < TURN) {
		if (!stream->writing && !begin_chunk(stream))
			return;
		if (!write_once(stream, &moved))
			break;
	}
	if (moved)
		stream->used_at = haul_clock();
	if (socket->role == SOCKET_STREAM && socket->writable)
		socket_ready(socket);
}

/* ---- In ---------------------------------------------------------------- */

/* A whole header has arrived. */
static bool begin_reading(struct stream *stream)
{
	struct backend_link *link = stream->link;
	uint8_t *address;

	stream->slot = get64(stream->header_in);
	stream->offset = get64(stream->header_in + 8);
	stream->length = stream->left = get32(stream->header_in + 16);
	stream->begun_in = trace_clock(stream);
	stream->kernel_in = 0;
	if (get32(stream->header_in + 20) != CHUNK_MAGIC || stream->length == 0 ||
	    haul_place(link->endpoint, stream->slot, stream->offset, stream->length, &address) ==
		    HAUL_PLACE_FORGED) {
		link_fail(link, -EPROTO, "the peer sent a chunk that no slot of its own can take");
		return false;
	}
	return true;
}

static void end_reading(struct stream *stream)
{
	struct backend_link *link = stream->link;
	uint64_t now = haul_clock();
	unsigned crowd;
	bool tell_now;

	stream->header_done = 0;
	stream->taken++;
	link->moved_at = now;
	crowd = stream_crowd(link->context, now);
	/* A crowd that has come, grown or gone is worth a message of its own. */
	tell_now = crowd >= 2 * link->crowd_told || 2 * crowd <= link->crowd_told;
	if (link->context->traced)
		trace_in(stream);
	haul_on_arrived(link->endpoint, stream->slot, stream->length);
	if ((tell_now || stream->taken - stream->taken_told >= STREAM_TAKEN_EVERY) &&
	    link->endpoint && !link->error) {
		stream->taken_told = stream->taken;
		tell(stream, RECORD_STREAM_TAKEN, false);
	}
}

/* The rest of the chunk goes to its place, and the next header comes along in the same call. */
static ssize_t read_once(struct stream *stream, size_t *asked)
{
	struct backend_link *link = stream->link;
	struct iovec pieces[2];
	uint8_t *address;
	size_t left = stream->left;

	if (stream->header_done < CHUNK_SIZE) {
		*asked = CHUNK_SIZE - stream->header_done;
		return recv(stream->socket->fd, stream->header_in + stream->header_done, *asked, 0);
	}
	switch (haul_place(link->endpoint, stream->slot, stream->offset, left, &address)) {
	case HAUL_PLACE_HERE:
		break;
	case HAUL_PLACE_DISCARD:
		address = link->context->scrap;
		left = left < SCRAP_SIZE ? left : SCRAP_SIZE;
		break;
	default:
		link_fail(link, -EPROTO, "the peer sent bytes for a slot that it may not write");
		errno = EAGAIN;
		return -1;
	}
	if (left < stream->left) {
		*asked = left;
		return recv(stream->socket->fd, address, left, 0);
	}
	pieces[0] = (struct iovec){address, left};
	pieces[1] = (struct iovec){stream->header_in, CHUNK_SIZE};
	*asked = left + CHUNK_SIZE;
	return readv(stream->socket->fd, pieces, 2);
}

/* Account for `got` bytes. False: the link has ended meanwhile. */
static bool take(struct stream *stream, size_t got)
{
	struct backend_link *link = stream->link;
	size_t bytes;

	if (stream->header_done < CHUNK_SIZE) {
		stream->header_done += got;
		return stream->header_done < CHUNK_SIZE || begin_reading(stream);
	}
	bytes = got < stream->left ? got : stream->left;
	stream->left -= (uint32_t)bytes;
	stream->offset += bytes;
	if (stream->left > 0)
		return true;
	end_reading(stream);
	if (!link->endpoint || link->error || !stream->socket)
		return false;
	stream->header_done = got - bytes;
	return stream->header_done < CHUNK_SIZE || begin_reading(stream);
}

void stream_read(struct stream *stream)
{
	struct tcp_socket *socket = stream->socket;
	struct backend_link *link = stream->link;
	size_t moved = 0;

	while (socket->readable && moved < TURN && !link->error) {
		size_t asked;
		uint64_t begin = trace_clock(stream);
		ssize_t got = read_once(stream, &asked);

		if (got < 0 && errno == EINTR)
			continue;
		if (got < 0 && errno == EAGAIN) {
			socket->readable = false;
			break;
		}
		if (got <= 0) {
			link_socket_broken(socket, got == 0 ? -ECONNRESET : -errno);
			return;
		}
		if ((size_t)got < asked)
			socket_short_read(socket);
		moved += (size_t)got;
		stream->kernel_in += trace_clock(stream) - begin;
		if (!take(stream, (size_t)got))
			return;
	}
	if (moved)
		stream->used_at = haul_clock();
	if (socket->readable)
		socket_ready(socket);
}
