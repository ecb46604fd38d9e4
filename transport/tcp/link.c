/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A link is a session of several sockets. It is lost when the peer is: a socket that
 * breaks while another one lives is replaced. The connecting side opens all of them (connect.c).
 */
#include <errno.h>
#include <linux/sockios.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/ioctl.h>
#include <unistd.h>

#include "tcp.h"

/* A stream that carried nothing for this long is closed, the first one excepted. */
#define STREAM_IDLE (30000 * MS)
/* How long the last messages of a closed link may take, and how often they are looked after. */
#define LEAVE (5000 * MS)
#define LEAVE_CHECK (2 * MS)

void link_timer(struct backend_link *link, uint64_t at)
{
	if (at < link->context->next_timer)
		link->context->next_timer = at;
}

/* ---- Making and ending ------------------------------------------------- */

struct backend_link *link_new(struct backend_context *context, bool connector)
{
	struct backend_link *link = calloc(1, sizeof(*link));

	if (!link)
		return NULL;
	link->inbox = malloc(INBOX_SIZE);
	if (!link->inbox) {
		free(link);
		return NULL;
	}
	link->context = context;
	link->connector = connector;
	TAILQ_INIT(&link->streams);
	TAILQ_INIT(&link->gone);
	haul_chunks_init(&link->chunks);
	tune_init(link);
	TAILQ_INSERT_TAIL(&context->links, link, all);
	return link;
}

/* Every session is looked for rarely (once per socket), so a list will do. */
struct backend_link *link_find(struct backend_context *context, const uint8_t session[SESSION_SIZE])
{
	struct backend_link *link;

	TAILQ_FOREACH (link, &context->links, all) {
		if (!link->connector && link->endpoint &&
		    memcmp(link->session, session, SESSION_SIZE) == 0)
			return link;
	}
	return NULL;
}

/* Everything but the control stream. */
static void drop_bulk(struct backend_link *link)
{
	struct stream *stream;

	while ((stream = TAILQ_FIRST(&link->streams)) || (stream = TAILQ_FIRST(&link->gone)))
		stream_free(stream);
	push_forget(link);
	socket_dead(link->pulse);
	link->pulse = NULL;
}

/* The memory stays until the end of this progress: a callback may be on the stack. */
void link_free(struct backend_link *link)
{
	struct backend_context *context = link->context;

	if (link->error && !link->lost)
		context->errors--;
	if (link->state == LINK_LEAVING)
		context->leaving--;
	link->lost = true;
	link->endpoint = NULL;
	drop_bulk(link);
	socket_dead(link->control);
	link->control = NULL;
	haul_outbox_free(&link->outbox);
	TAILQ_REMOVE(&context->links, link, all);
	TAILQ_INSERT_TAIL(&context->gone, link, all);
}

void tcp_disconnect(struct backend_link *link, bool in_order)
{
	if (!in_order || !link->control || link->control->state != SOCKET_UP || link->error) {
		link_free(link);
		return;
	}
	link->endpoint = NULL;
	link->lost = true;
	link->state = LINK_LEAVING;
	link->context->leaving++;
	link->leave_until = haul_clock() + LEAVE;
	link_timer(link, haul_clock() + LEAVE_CHECK);
	/* Before the other sockets end: the peer would take that for a break. */
	control_write(link);
	drop_bulk(link);
	if (link->control)
		socket_ready(link->control);
}

unsigned tcp_leaving(struct backend_context *context)
{
	return context->leaving;
}

void link_fail(struct backend_link *link, int error, const char *why)
{
	if (link->error || link->lost)
		return;
	link->error = error;
	snprintf(link->why, sizeof(link->why), "%s", why);
	link->context->errors++;
}

void tcp_statistics(struct backend_link *link, struct haul_statistics *statistics)
{
	statistics->chunks_sent += link->counters.chunks_sent;
	statistics->chunks_again += link->chunks.again;
	statistics->streams_replaced += link->counters.streams_replaced;
	statistics->streams +=
		link->tune.target < link->streams_up ? link->tune.target : link->streams_up;
}

/* The accepting side: a socket has shown whose it is. */
void link_adopt(struct backend_link *link, struct tcp_socket *socket,
		const struct preamble *preamble)
{
	socket->link = link;
	switch (socket->role) {
	case SOCKET_CONTROL:
		/* The old one may look alive from here. */
		socket_dead(link->control);
		link->control = socket;
		if (control_rewind(link, preamble->taken))
			link_fail(link, -EPROTO,
				  "the peer's position in the control stream is impossible");
		control_write(link);
		break;
	case SOCKET_PULSE:
		socket_dead(link->pulse);
		link->pulse = socket;
		break;
	default:
		socket->stream = stream_new(link, socket, preamble->stream);
		if (!socket->stream) {
			socket_dead(socket);
			return;
		}
		stream_up(socket->stream);
		break;
	}
}

/* ---- Breaking ---------------------------------------------------------- */

/* TCP has made the connection: its other end lives, even when the program there is busy. */
static bool reached(const struct tcp_socket *socket)
{
	return socket && (socket->state == SOCKET_ASKING || socket->state == SOCKET_UP);
}

static bool alive(const struct backend_link *link)
{
	return reached(link->control) || reached(link->pulse) || link->streams_up > 0;
}

void link_socket_broken(struct tcp_socket *socket, int error)
{
	struct backend_link *link = socket->link;
	enum socket_role role = socket->role;
	uint64_t now = haul_clock();
	char why[128];

	if (link->state == LINK_LEAVING) {
		link_free(link);
		return;
	}
	haul_log(HAUL_LOG_DEBUG, "a %s broke: %s", socket_names(role), haul_strerror(error));
	link->counters.streams_replaced++;
	if (role == SOCKET_STREAM) {
		stream_break(socket->stream);
	} else {
		socket_dead(socket);
		if (role == SOCKET_CONTROL)
			link->control = NULL;
		else
			link->pulse = NULL;
	}
	if (role == SOCKET_PULSE && error == -ETIMEDOUT) {
		snprintf(why, sizeof(why), "its host did not answer for %llu ms (peer_ms)",
			 (unsigned long long)haul_peer_ms(link->context->engine));
		link_fail(link, -ETIMEDOUT, why);
	} else if (!alive(link)) {
		snprintf(why, sizeof(why), "the connection ended: %s", haul_strerror(error));
		link_fail(link, error == -ETIMEDOUT ? error : -ECONNRESET, why);
	}
	link->retry_at = now;
	link_timer(link, now);
}

/* ---- Timers ------------------------------------------------------------ */

/* TCP sends into the void on one path while others work: its chunks had better go elsewhere. */
static bool stalled(const struct stream *stream, uint64_t limit_ms)
{
	struct tcp_info info;
	socklen_t size = sizeof(info);

	if (!stream->socket || stream->socket->state != SOCKET_UP ||
	    getsockopt(stream->socket->fd, IPPROTO_TCP, TCP_INFO, &info, &size))
		return false;
	/* A closed window is the peer's right: it has not polled for a while. */
	return info.tcpi_unacked > 0 && info.tcpi_probes == 0 &&
	       info.tcpi_last_ack_recv > limit_ms && info.tcpi_retransmits > 0;
}

static void check_streams(struct backend_link *link, uint64_t now)
{
	uint64_t limit = haul_peer_ms(link->context->engine) / 2;
	struct stream *stream, *next;

	if (now - link->checked_at < limit * MS / 2)
		return;
	link->checked_at = now;
	for (stream = TAILQ_FIRST(&link->streams); stream; stream = next) {
		next = TAILQ_NEXT(stream, streams);
		if (stalled(stream, limit)) {
			link_socket_broken(stream->socket, -ETIMEDOUT);
			continue;
		}
		if (link->connector && stream != TAILQ_FIRST(&link->streams) &&
		    link->stream_count > tune_wanted(link) && stream->socket->state == SOCKET_UP &&
		    !stream->writing && now - stream->used_at > STREAM_IDLE)
			stream_break(stream);
	}
}

/* The peer's kernel has everything: what the peer still says is of no interest. */
static bool has_left(const struct backend_link *link)
{
	int unacknowledged = 0;

	return link->sent == haul_outbox_waiting(&link->outbox) &&
	       ioctl(link->control->fd, SIOCOUTQ, &unacknowledged) == 0 && unacknowledged == 0;
}

void link_timers(struct backend_link *link, uint64_t now)
{
	uint64_t check = haul_peer_ms(link->context->engine) * MS / 4;

	if (link->state == LINK_LEAVING) {
		if (now >= link->leave_until || has_left(link))
			link_free(link);
		else
			link_timer(link, now + LEAVE_CHECK);
		return;
	}
	if (link->error || !link->endpoint || link->state == LINK_CONNECTING)
		return;
	if (link->connector) {
		connect_missing(link, &link->control, SOCKET_CONTROL, now);
		connect_missing(link, &link->pulse, SOCKET_PULSE, now);
	}
	if (link->error)
		return;
	connect_streams(link, now);
	if (link->stream_retry_at > now)
		link_timer(link, link->stream_retry_at);
	check_streams(link, now);
	tune_run(link, now);
	link_timer(link, tune_next(link));
	if (link->stream_count)
		link_timer(link, now + check);
}
