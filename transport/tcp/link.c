/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A link is a session of several sockets. It is lost when the peer is: a socket that
 * breaks while another one lives is replaced. The connecting side opens all of them.
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

#define MS UINT64_C(1000000)

/* Between two tries to replace a socket. */
#define RETRY (50 * MS)
#define TRIES_LEAST 5
/* After a stream could not be added. */
#define STREAM_RETRY (1000 * MS)
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
	TAILQ_INIT(&link->transfers);
	TAILQ_INIT(&link->all_transfers);
	for (int i = 0; i < SIZE_CLASSES; i++)
		TAILQ_INIT(&link->by_size[i]);
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
	control_free(link);
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
	drop_bulk(link);
	link->state = LINK_LEAVING;
	link->context->leaving++;
	link->leave_until = haul_clock() + LEAVE;
	link_timer(link, haul_clock() + LEAVE_CHECK);
	control_write(link);
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
	statistics->chunks_again += link->counters.chunks_again;
	statistics->streams_replaced += link->counters.streams_replaced;
	statistics->streams +=
		link->tune.target < link->streams_up ? link->tune.target : link->streams_up;
}

/* ---- Connecting -------------------------------------------------------- */

static int start_socket(struct backend_link *link, enum socket_role role, struct tcp_socket **out)
{
	int fd, error;

	error = socket_connect(link->context, &link->addresses[link->address], &fd);
	if (error)
		return error;
	*out = socket_new(link->context, role, fd);
	if (!*out)
		return -ENOMEM;
	(*out)->link = link;
	return 0;
}

static void print_peer(const struct backend_link *link, char *text, size_t room)
{
	haul_address_print(&link->addresses[link->address], text, room);
}

/* Try the addresses of the peer's name, one after the other. */
static int start_control(struct backend_link *link)
{
	int error = -EHOSTUNREACH;

	for (; link->address < link->address_count; link->address++) {
		error = start_socket(link, SOCKET_CONTROL, &link->control);
		if (!error || error == -EMFILE || error == -ENFILE)
			return error;
		socket_dead(link->control);
		link->control = NULL;
	}
	link->address = link->address_count - 1;
	return error;
}

int tcp_connect(struct backend_context *context, const char *where, haul_endpoint *engine,
		char *address, size_t room, struct backend_link **out)
{
	struct backend_link *link;
	struct haul_addresses addresses;
	char why[160];
	int error;

	error = haul_address_parse(context->engine, where, &addresses);
	if (error)
		return error;
	link = link_new(context, true);
	if (!link) {
		free(addresses.list);
		return -ENOMEM;
	}
	link->addresses = addresses.list;
	link->address_count = addresses.count;
	link->endpoint = engine;
	error = start_control(link);
	if (error == -EMFILE || error == -ENFILE || error == -ENOMEM || error == -ENODEV ||
	    error == -EADDRNOTAVAIL || error == -EINVAL) {
		link_free(link);
		return error;
	}
	print_peer(link, address, room);
	if (error) {
		snprintf(why, sizeof(why), "can't reach it: %s", haul_strerror(error));
		link_fail(link, error, why);
	}
	*out = link;
	return 0;
}

/*
 * The control stream or the pulse could not be replaced. Several tries have to fail: a program that
 * was away for a while has not tried meanwhile.
 */
static void replacement_failed(struct backend_link *link, uint64_t now)
{
	if (link->tries_failed++ == 0)
		link->failing_since = now;
	if (link->tries_failed >= TRIES_LEAST &&
	    now - link->failing_since >= haul_peer_ms(link->context->engine) * MS) {
		link_fail(link, -ETIMEDOUT,
			  "a broken connection could not be replaced within peer_ms");
		return;
	}
	link->retry_at = now + RETRY;
	link_timer(link, link->retry_at);
}

/* A socket that is not up could not be made. */
static void connect_failed(struct tcp_socket *socket, int error)
{
	struct backend_link *link = socket->link;
	enum socket_role role = socket->role;
	uint64_t now = haul_clock();
	char why[128];

	snprintf(why, sizeof(why), "%s", haul_strerror(error));
	if (role == SOCKET_STREAM) {
		stream_free(socket->stream);
		link->stream_retry_at = now + STREAM_RETRY;
		link_timer(link, link->stream_retry_at);
		return;
	}
	socket_dead(socket);
	if (role == SOCKET_CONTROL)
		link->control = NULL;
	else
		link->pulse = NULL;
	if (link->state == LINK_CONNECTING) {
		link->address++;
		if (link->address < link->address_count && start_control(link) == 0)
			return;
		link->address = link->address_count - 1;
		link_fail(link, error, why);
	} else if (error == -ECONNREFUSED) {
		link_fail(link, -ECONNRESET, "a connection broke, and the peer listens no more");
	} else {
		replacement_failed(link, now);
	}
}

static void ask(struct tcp_socket *socket)
{
	struct backend_link *link = socket->link;
	struct preamble preamble = {.version = TCP_VERSION};
	int error = socket_error(socket);

	if (error) {
		connect_failed(socket, error);
		return;
	}
	memcpy(preamble.session, link->session, SESSION_SIZE);
	switch (socket->role) {
	case SOCKET_CONTROL:
		preamble.kind = link->state == LINK_CONNECTING ? PREAMBLE_OPEN : PREAMBLE_CONTROL;
		preamble.taken = link->taken;
		break;
	case SOCKET_PULSE:
		preamble.kind = PREAMBLE_PULSE;
		break;
	default:
		preamble.kind = PREAMBLE_STREAM;
		preamble.stream = socket->stream->name;
		break;
	}
	preamble_encode(socket->preamble, &preamble);
	/* The first bytes of a socket always have room. */
	if (send(socket->fd, socket->preamble, PREAMBLE_SIZE, MSG_NOSIGNAL) != PREAMBLE_SIZE) {
		connect_failed(socket, -ECONNRESET);
		return;
	}
	socket->state = SOCKET_ASKING;
	socket->preamble_done = 0;
}

static void up(struct tcp_socket *socket)
{
	socket->state = SOCKET_UP;
	socket->readable = socket->writable = true;
	socket_ready(socket);
	if (socket->role != SOCKET_STREAM)
		socket->link->tries_failed = 0;
	if (socket_prepare(socket))
		link_fail(socket->link, -EINVAL, "congestion= was refused by the kernel");
}

/* The answer to OPEN: the session has a name now, and gets its other sockets. */
static void opened(struct backend_link *link, const struct preamble *answer)
{
	uint64_t now = haul_clock();

	memcpy(link->session, answer->session, SESSION_SIZE);
	link->state = LINK_OPEN;
	link->local = socket_is_local(link->control);
	if (start_socket(link, SOCKET_PULSE, &link->pulse)) {
		socket_dead(link->pulse);
		link->pulse = NULL;
		link->retry_at = now + RETRY;
		link_timer(link, link->retry_at);
	}
	link_open_streams(link, now);
	haul_on_connected(link->endpoint);
	if (link->endpoint)
		control_write(link);
}

static void answered(struct tcp_socket *socket)
{
	struct backend_link *link = socket->link;
	struct preamble answer;
	char why[128];

	if (preamble_decode(socket->preamble, &answer)) {
		link_fail(link, -EPROTO,
			  "no tensorhaul listens there: the answer is something else");
		return;
	}
	if (answer.version != TCP_VERSION || answer.status == PREAMBLE_VERSION) {
		snprintf(why, sizeof(why),
			 "the peer speaks version %u of the tcp framing, this side %d",
			 answer.version, TCP_VERSION);
		link_fail(link, -EPROTO, why);
		return;
	}
	if (answer.status != PREAMBLE_WELCOME) {
		if (socket->role == SOCKET_STREAM)
			connect_failed(socket, -ECONNREFUSED);
		else if (answer.status == PREAMBLE_REFUSED)
			link_fail(link, -ECONNREFUSED,
				  "the peer has no room for one more endpoint");
		else
			link_fail(link, -ECONNRESET,
				  "the peer doesn't know this session: it is "
				  "another process now, or has closed the endpoint");
		return;
	}
	up(socket);
	if (socket->role == SOCKET_STREAM) {
		stream_up(socket->stream);
	} else if (socket->role == SOCKET_CONTROL && link->state == LINK_CONNECTING) {
		opened(link, &answer);
	} else if (socket->role == SOCKET_CONTROL) {
		if (control_rewind(link, answer.taken))
			link_fail(link, -EPROTO,
				  "the peer's position in the control stream is impossible");
		else
			control_write(link);
	}
}

void link_event(struct tcp_socket *socket)
{
	ssize_t got;

	if (socket->state == SOCKET_CONNECTING) {
		if (!socket->writable)
			return;
		ask(socket);
		/* What the peer has said already raised its event with this one. */
		if (socket->role == SOCKET_DEAD || socket->state != SOCKET_ASKING)
			return;
	}
	got = recv(socket->fd, socket->preamble + socket->preamble_done,
		   PREAMBLE_SIZE - socket->preamble_done, 0);
	if (got < 0 && (errno == EAGAIN || errno == EINTR))
		return;
	if (got <= 0) {
		connect_failed(socket, got == 0 ? -ECONNRESET : -errno);
		return;
	}
	socket->preamble_done += (size_t)got;
	/* An end that came along with these bytes raises no further event. */
	if (socket->preamble_done < PREAMBLE_SIZE)
		socket_ready(socket);
	if (socket->preamble_done >= 4 && get32(socket->preamble) != TCP_MAGIC)
		link_fail(socket->link, -EPROTO,
			  "no tensorhaul listens there: the answer is something else");
	else if (socket->preamble_done == PREAMBLE_SIZE)
		answered(socket);
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

/*
 * The control stream or the pulse is away. TCP connects without the help of the peer's process: a
 * connection that stays unanswered says that there is no way to the peer's host any more. One that
 * TCP has made but the process has not answered only says that the process is busy.
 */
static void replace_missing(struct backend_link *link, struct tcp_socket **missing,
			    enum socket_role role, uint64_t now)
{
	uint64_t patience = haul_peer_ms(link->context->engine) * MS;

	if (*missing) {
		if ((*missing)->state != SOCKET_CONNECTING)
			return;
		if (now - (*missing)->since >= patience)
			link_fail(link, -ETIMEDOUT,
				  "a broken connection could not be replaced within peer_ms");
		else
			link_timer(link, (*missing)->since + patience);
		return;
	}
	if (now < link->retry_at) {
		link_timer(link, link->retry_at);
		return;
	}
	if (start_socket(link, role, missing)) {
		socket_dead(*missing);
		*missing = NULL;
		replacement_failed(link, now);
		return;
	}
	link->retry_at = now + RETRY;
	link_timer(link, link->retry_at);
}

void link_open_streams(struct backend_link *link, uint64_t now)
{
	if (!link->connector || link->state != LINK_OPEN || !link->endpoint || link->error)
		return;
	while (link->stream_count < tune_wanted(link) && link->gone_count < GONE_MAX &&
	       now >= link->stream_retry_at) {
		struct tcp_socket *socket = NULL;

		if (start_socket(link, SOCKET_STREAM, &socket) ||
		    !(socket->stream = stream_new(link, socket, link->next_stream))) {
			socket_dead(socket);
			link->stream_retry_at = now + STREAM_RETRY;
			link_timer(link, link->stream_retry_at);
			return;
		}
		link->next_stream++;
	}
}

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

	return link->outbox.sent == link->outbox.end &&
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
		replace_missing(link, &link->control, SOCKET_CONTROL, now);
		replace_missing(link, &link->pulse, SOCKET_PULSE, now);
	}
	if (link->error)
		return;
	link_open_streams(link, now);
	if (link->stream_retry_at > now)
		link_timer(link, link->stream_retry_at);
	check_streams(link, now);
	tune_run(link, now);
	link_timer(link, tune_next(link));
	if (link->stream_count)
		link_timer(link, now + check);
}
