/* SPDX-License-Identifier: Apache-2.0 */
/* The connecting side's half of a link: the first socket, all others, and new ones for broken ones.
 */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>

#include "tcp.h"

/* Between two tries to replace a socket. */
#define RETRY (50 * MS)
#define TRIES_LEAST 5
/* After a stream could not be added. */
#define STREAM_RETRY (1000 * MS)

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

	/* Any listener of this transport answers. */
	if (error == -ECONNRESET && link->state == LINK_CONNECTING)
		snprintf(why, sizeof(why),
			 "the peer closed the connection before it answered: most likely another "
			 "transport listens there, as grpc with TLS");
	else
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
	connect_streams(link, now);
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

void connect_event(struct tcp_socket *socket)
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

/* ---- Further sockets ---------------------------------------------------- */

/*
 * The control stream or the pulse is away. TCP connects without the help of the peer's process: a
 * connection that stays unanswered says that there is no way to the peer's host any more. One that
 * TCP has made but the process has not answered only says that the process is busy.
 */
void connect_missing(struct backend_link *link, struct tcp_socket **missing, enum socket_role role,
		     uint64_t now)
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

void connect_streams(struct backend_link *link, uint64_t now)
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
