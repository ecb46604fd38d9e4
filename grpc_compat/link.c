/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A link is a session: a control call and streams. It is lost with its control call; a stream that
 * breaks is replaced. The connecting side makes all of them.
 */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "rpc.h"

/* How long the last messages of a closed link may take. */
#define LEAVE (5000 * MS)

void link_timer(struct backend_link *link, uint64_t at)
{
	if (at < link->context->next_timer)
		link->context->next_timer = at;
}

/* ---- Making and ending -------------------------------------------------- */

struct backend_link *link_new(struct backend_context *context, bool connector)
{
	struct backend_link *link = calloc(1, sizeof(*link));

	if (!link)
		return NULL;
	link->context = context;
	link->connector = connector;
	TAILQ_INIT(&link->streams);
	TAILQ_INIT(&link->gone);
	haul_chunks_init(&link->chunks);
	TAILQ_INSERT_TAIL(&context->links, link, all);
	return link;
}

/* Every session is looked for rarely (once per stream), so a list will do. */
struct backend_link *link_find(struct backend_context *context, const char *session)
{
	struct backend_link *link;

	TAILQ_FOREACH (link, &context->links, all) {
		if (!link->connector && link->endpoint && !link->error &&
		    strcmp(link->session, session) == 0)
			return link;
	}
	return NULL;
}

/* Everything but the control call. gRPC refers to no tensor any more when it returns. */
static void drop_bulk(struct backend_link *link)
{
	struct stream *stream;

	while ((stream = TAILQ_FIRST(&link->streams)) || (stream = TAILQ_FIRST(&link->gone)))
		stream_free(stream);
	push_forget(link);
}

/* The memory stays until the end of this progress: a callback may be on the stack. */
static void end_link(struct backend_link *link, bool in_order)
{
	struct backend_context *context = link->context;

	if (link->error && !link->lost)
		context->errors--;
	if (link->state == LINK_LEAVING)
		context->leaving--;
	link->lost = true;
	link->endpoint = NULL;
	drop_bulk(link);
	call_drop(link->control);
	link->control = NULL;
	if (in_order)
		connection_leave(link->connection);
	else
		connection_close(link->connection);
	link->connection = NULL;
	haul_outbox_free(&link->outbox);
	link->closed = true;
	link_hunger(link);
	TAILQ_REMOVE(&context->links, link, all);
	TAILQ_INSERT_TAIL(&context->gone_links, link, all);
}

void link_free(struct backend_link *link)
{
	end_link(link, false);
}

void rpc_disconnect(struct backend_link *link, bool in_order)
{
	if (!in_order || !link->control || link->state != LINK_OPEN || link->error) {
		link_free(link);
		return;
	}
	link->endpoint = NULL;
	link->lost = true;
	drop_bulk(link);
	link->state = LINK_LEAVING;
	link->context->leaving++;
	link->leave_until = haul_clock() + LEAVE;
	link_timer(link, link->leave_until);
	control_write(link);
	control_read(link);
	link_hunger(link);
	if (link->control->over)
		link_timer(link, 0);
}

unsigned rpc_leaving(struct backend_context *context)
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

void rpc_statistics(struct backend_link *link, struct haul_statistics *statistics)
{
	statistics->chunks_sent += link->counters.chunks_sent;
	statistics->chunks_again += link->chunks.again;
	statistics->streams_replaced += link->counters.streams_replaced;
	statistics->streams += link->streams_up;
}

/* ---- Connecting --------------------------------------------------------- */

/* The control call can be made. */
static int make_call(struct backend_link *link)
{
	link->control = call_make(link, NULL, link->connection->channel);
	return link->control ? 0 : -ENOMEM;
}

/* Try the addresses of the peer's name, one after the other. */
static int start_control(struct backend_link *link)
{
	int error = -EHOSTUNREACH;

	for (; link->address < link->address_count; link->address++) {
		error = connection_start(link, NULL, &link->connection);
		if (!error && link->context->tls)
			error = make_call(link);
		if (!error || error == -EMFILE || error == -ENFILE)
			return error;
	}
	link->address = link->address_count - 1;
	return error;
}

int rpc_connect(struct backend_context *context, const char *where, haul_endpoint *engine,
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
	    error == -EINVAL) {
		link_free(link);
		return error;
	}
	haul_address_print(&link->addresses[link->address], address, room);
	if (error) {
		snprintf(why, sizeof(why), "can't reach it: %s", haul_strerror(error));
		link_fail(link, error, why);
	}
	*out = link;
	return 0;
}

/* The next address, or the end. */
static void connect_failed(struct backend_link *link, int error, const char *why)
{
	call_drop(link->control);
	link->control = NULL;
	connection_close(link->connection);
	link->connection = NULL;
	if (++link->address < link->address_count && start_control(link) == 0)
		return;
	link->address = link->address_count - 1;
	link_fail(link, error, why);
}

void link_connected(struct connection *connection, int error)
{
	struct backend_link *link = connection->link;

	if (!error)
		error = make_call(link);
	if (error)
		connect_failed(link, error, haul_strerror(error));
}

void link_begun(struct backend_link *link, bool ok)
{
	char version[16], why[160];

	if (link->state != LINK_CONNECTING || !ok)
		return; /* the status says why */
	if (!call_metadata(&link->control->first, METADATA_VERSION, version, sizeof(version))) {
		if (link->control->first.count)
			link_fail(link, -EPROTO,
				  "no tensorhaul listens there: it is another gRPC "
				  "server");
		return;
	}
	if (strcmp(version, RPC_VERSION)) {
		snprintf(why, sizeof(why),
			 "the peer speaks version %s of the grpc framing, this side " RPC_VERSION,
			 version);
		link_fail(link, -EPROTO, why);
		return;
	}
	if (!call_metadata(&link->control->first, METADATA_SESSION, link->session,
			   sizeof(link->session)) ||
	    strlen(link->session) != SESSION_DIGITS) {
		link_fail(link, -EPROTO, "the peer gave the session no name");
		return;
	}
	link->state = LINK_OPEN;
	link_timer(link, haul_clock());
	/* gRPC takes no call any more once a listener with TLS was closed. */
	if (link->context->tls)
		link_want_streams(link);
	haul_on_connected(link->endpoint);
	if (link->endpoint && !link->error) {
		control_write(link);
		control_read(link);
	}
}

/* ---- Streams ------------------------------------------------------------ */

void link_open_streams(struct backend_link *link)
{
	uint64_t now = haul_clock();

	if (!link->connector || link->state != LINK_OPEN || !link->endpoint || link->error)
		return;
	while (link->stream_count < link->wanted && link->gone_count < GONE_MAX &&
	       now >= link->stream_retry_at) {
		struct stream *stream = stream_new(link, link->next_stream++);

		if (!stream || connection_start(link, stream, &stream->connection)) {
			if (stream)
				stream_free(stream);
			link->stream_retry_at = now + 200 * MS;
			link_timer(link, link->stream_retry_at);
			return;
		}
		if (link->context->tls)
			stream_connected(stream->connection, 0);
	}
}

void link_want_streams(struct backend_link *link)
{
	unsigned channels = (unsigned)link->context->config->channels;
	uint8_t bytes[4];

	if (link->connector) {
		if (channels > link->wanted)
			link->wanted = channels;
		link_open_streams(link);
	} else if (!link->asked) {
		link->asked = true;
		put32(bytes, channels);
		if (control_record(link, RECORD_STREAMS, bytes, sizeof(bytes)))
			link_fail(link, -ENOMEM, "no memory for a message");
	}
}

void link_hunger(struct backend_link *link)
{
	struct backend_context *context = link->context;
	bool now = control_waits(link) || link->small_waiting.first ||
		   haul_chunks_pending(&link->chunks) ||
		   (link->state == LINK_LEAVING && !link->closed);
	unsigned before = context->hungry;

	if (now == link->hungry)
		return;
	link->hungry = now;
	context->hungry += now ? 1 : -1;
	if (!before != !context->hungry)
		mailbox_hungry(context, context->hungry > 0);
}

void rpc_flush(struct backend_link *link)
{
	struct stream *stream, *next;

	/* Room that nobody was woken for. */
	mailbox_look_for_room(link->context);
	control_write(link);
	/* Or that came since: the owner may be away for long now. */
	if (control_waits(link))
		mailbox_look_for_room(link->context);
	for (stream = TAILQ_FIRST(&link->streams);
	     stream && !link->error && haul_chunks_pending(&link->chunks); stream = next) {
		next = TAILQ_NEXT(stream, streams);
		stream_write(stream);
	}
	link_hunger(link);
}

/* ---- Ending ------------------------------------------------------------- */

/* gRPC tells what its socket or OpenSSL said, and not what to do. NULL: nothing is known. */
static const char *connecting_advice(const struct backend_link *link, const char *text)
{
	/* It depends on what was under way when the peer closed. */
	static const char *const closings[] = {"Socket closed", "Transport closed", "reset by peer",
					       "Broken pipe"};
	const struct rpc_config *config = link->context->config;
	bool closed = false;

	for (size_t i = 0; i < sizeof(closings) / sizeof(closings[0]); i++)
		closed = closed || strstr(text, closings[i]);
	if (closed && !link->context->tls)
		return "the peer closed the connection before it answered: most likely it wants "
		       "TLS (tls_ca=), or it is no gRPC server";
	if (closed && !config->tls_cert)
		return "the peer closed the connection in the TLS handshake: most likely it wants "
		       "a certificate of this side (tls_cert=, tls_key=), or it is no gRPC server";
	if (closed)
		return "the peer closed the connection in the TLS handshake: most likely its "
		       "tls_ca= did not sign this side's tls_cert=, or it is no gRPC server";
	if (strstr(text, "wrong version number"))
		return "the peer does not speak TLS: leave out tls_ca= and tls_cert= here, or give "
		       "it tls_cert= and tls_key=";
	if (strstr(text, "certificate verify failed"))
		return config->tls_ca
			       ? "the peer's certificate is not signed by tls_ca=, or has expired"
			       : "the peer's certificate is not known here: tls_ca= names who has "
				 "signed it";
	if (strstr(text, "Peer name") || strstr(text, "ostname"))
		return "the peer's certificate is not for this address: tls_name= says for which "
		       "name it is";
	return NULL;
}

static void connecting_ended(struct backend_link *link, grpc_status_code status, const char *text)
{
	const char *advice = connecting_advice(link, text);
	char why[WHY_MAX];

	switch (status) {
	case GRPC_STATUS_UNIMPLEMENTED:
		snprintf(why, sizeof(why),
			 "no tensorhaul listens there: it is another gRPC server (%s)", text);
		link_fail(link, -EPROTO, why);
		break;
	case GRPC_STATUS_RESOURCE_EXHAUSTED:
		snprintf(why, sizeof(why), "the peer says: %s", text);
		link_fail(link, -ECONNREFUSED, why);
		break;
	case GRPC_STATUS_UNAVAILABLE:
		snprintf(why, sizeof(why), advice ? "%s (gRPC: %s)" : "%s%s", advice ? advice : "",
			 text);
		connect_failed(link,
			       strstr(text, "refused")     ? -ECONNREFUSED
			       : strstr(text, "imed out")  ? -ETIMEDOUT
			       : strstr(text, "handshake") ? -EPROTO
			       : strstr(text, "http")      ? -EPROTO
							   : -ECONNRESET,
			       why);
		break;
	default:
		snprintf(why, sizeof(why), "no tensorhaul of this version listens there: %s", text);
		link_fail(link, -EPROTO, why);
		break;
	}
}

void link_ended(struct backend_link *link)
{
	char text[200] = "", why[240];
	grpc_status_code status =
		link->control->client ? link->control->status : GRPC_STATUS_UNAVAILABLE;

	call_why(link->control, text, sizeof(text));
	if (link->state == LINK_LEAVING) {
		if (link->closed)
			end_link(link, true);
		else
			link_free(link);
	} else if (link->state == LINK_CONNECTING) {
		connecting_ended(link, status, text);
	} else {
		snprintf(why, sizeof(why), "the connection ended%s%s", text[0] ? ": " : "", text);
		link_fail(link, strstr(text, "imed out") ? -ETIMEDOUT : -ECONNRESET, why);
	}
}

/* ---- Timers ------------------------------------------------------------- */

/* Whether the peer's host has stopped to answer. */
static void check_sockets(struct backend_link *link, uint64_t now)
{
	uint64_t peer_ms = haul_peer_ms(link->context->engine);
	struct stream *stream, *next;
	char why[128];

	if (now < link->check_at) {
		link_timer(link, link->check_at);
		return;
	}
	link->check_at = now + peer_ms * MS / 4;
	link_timer(link, link->check_at);
	if (link->connection && connection_silent(link->connection, peer_ms)) {
		snprintf(why, sizeof(why), "its host did not answer for %llu ms (peer_ms)",
			 (unsigned long long)peer_ms);
		link_fail(link, -ETIMEDOUT, why);
		return;
	}
	for (stream = TAILQ_FIRST(&link->streams); stream; stream = next) {
		next = TAILQ_NEXT(stream, streams);
		if (stream->connection && connection_silent(stream->connection, peer_ms / 2))
			stream_break(stream);
	}
}

void link_timers(struct backend_link *link, uint64_t now)
{
	if (link->state == LINK_LEAVING) {
		if (now >= link->leave_until || link->control->over)
			link_free(link);
		else
			link_timer(link, link->leave_until);
		return;
	}
	if (link->error || !link->endpoint || link->state == LINK_CONNECTING)
		return;
	push_timers(link, now);
	link_open_streams(link);
	if (link->stream_retry_at > now)
		link_timer(link, link->stream_retry_at);
	check_sockets(link, now);
}
