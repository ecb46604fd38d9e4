/* SPDX-License-Identifier: Apache-2.0 */
/* One peer: what its channels have in common, how it lives and how it goes. */
#include <errno.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "verbs.h"

/* The peer's host is asked so often whether it is there, within peer_ms. */
#define ASK_WITHIN 4

/* How long the goodbye of a peer may come behind the end of its data channels. */
#define LAST_WORD_MS 1000

/* How often the send queues are looked at while there is something in them. */
#define WATCH_EVERY (4 * MS)

/* ---- Making ------------------------------------------------------------ */

struct backend_link *link_new(struct backend_context *context)
{
	struct backend_link *link = calloc(1, sizeof(*link));

	if (!link)
		return NULL;
	link->context = context;
	TAILQ_INIT(&link->all_pushes);
	TAILQ_INIT(&link->pushes);
	TAILQ_INIT(&link->all_windows);
	TAILQ_INIT(&link->windows);
	TAILQ_INIT(&link->window_work);
	TAILQ_INSERT_TAIL(&context->links, link, all);
	link->control = channel_new(link, true, 0);
	if (!link->control) {
		link_free(link);
		return NULL;
	}
	return link;
}

/* Every channel's work requests and receives have room in the one completion queue. */
int link_use_device(struct backend_link *link, struct rdma_cm_id *id)
{
	struct backend_context *context = link->context;
	char limit[LOCK_LIMIT_ROOM];
	int size;

	if (link->device)
		return link->device->verbs == id->verbs
			       ? 0
			       : verbs_fail(context, -EXDEV,
					    "the peer's connections come over two devices");
	link->device = device_use(context, id);
	if (!link->device)
		return context->error;
	link->data_room =
		context->config->qps == HAUL_OPTION_AUTO || link->device->windows ? 2 : QPS_MAX;
	size = (int)((SEND_DEPTH + RING + VERBS_SPARE) * (1 + link->data_room));
	link->cq = ibv_create_cq(id->verbs, size, link, link->device->events, 0);
	if (!link->cq)
		return verbs_fail(context, -errno,
				  "device %s gives no completion queue of %d entries: %s (it has "
				  "%d queues of up to %d entries); %s",
				  ibv_get_device_name(id->verbs->device), size,
				  haul_strerror(errno), link->device->limits.max_cq,
				  link->device->limits.max_cqe, verbs_lock_limit(limit));
	return 0;
}

/* Without its queue pairs: they are gone. */
void link_leave_device(struct backend_link *link)
{
	if (link->armed)
		link->context->armed--;
	link->armed = false;
	link->stashed = 0;
	if (link->cq)
		ibv_destroy_cq(link->cq);
	link->cq = NULL;
	link->device = NULL;
}

/* ---- Greetings --------------------------------------------------------- */

void channel_offer(struct channel *channel, uint8_t bytes[VERBS_GREETING],
		   struct rdma_conn_param *parameters)
{
	const struct backend_link *link = channel->link;
	struct greeting greeting = {
		.kind = channel->control ? VERBS_CONTROL : VERBS_DATA,
		.number = channel->number,
		.flags = (link->device->immediates ? VERBS_IMMEDIATES : 0) |
			 (link->device->windows ? VERBS_WINDOWS : 0),
		.ring = RING,
		.small = (unsigned)link->context->config->small,
		.packet = PACKET,
		.mailbox = (uintptr_t)link->context->mailbox,
		.mailbox_key = link->device->mailbox->rkey,
		.mtu = link->context->config->mtu,
	};

	memcpy(greeting.session, link->session, VERBS_SESSION);
	verbs_encode_greeting(bytes, &greeting);
	parameters->private_data = bytes;
	parameters->private_data_len = VERBS_GREETING;
	if (!channel->attached)
		parameters->qp_num = channel->qp->qp_num;
	channel->state = CHANNEL_CONNECTING;
}

/* What is left of a packet beside the longest message. */
static uint32_t small_limit(uint32_t wish, uint32_t packet)
{
	uint32_t room = packet - VERBS_HEAD - VERBS_SMALL - HAUL_CONTROL_MAX;

	return wish < room ? wish : room;
}

void link_take_greeting(struct backend_link *link, const struct greeting *greeting)
{
	link->peer_ring = greeting->ring;
	link->peer_packet = greeting->packet;
	link->peer_mailbox = greeting->mailbox;
	link->peer_mailbox_key = greeting->mailbox_key;
	link->small_out = small_limit((uint32_t)link->context->config->small,
				      greeting->packet < PACKET ? greeting->packet : PACKET);
	link->small_in =
		small_limit(greeting->small, greeting->packet < PACKET ? greeting->packet : PACKET);
	link->immediates = link->device->immediates && (greeting->flags & VERBS_IMMEDIATES) != 0;
	/* Both ends of a queue pair have to cut messages into packets of one size. */
	link->mtu = link->context->config->mtu;
	if (greeting->mtu && (!link->mtu || greeting->mtu < link->mtu))
		link->mtu = greeting->mtu;
	link->split = link->device->windows || (greeting->flags & VERBS_WINDOWS);
}

struct channel *link_outbound(const struct backend_link *link)
{
	return link->data[link->connector ? 0 : 1];
}

struct channel *link_inbound(const struct backend_link *link)
{
	return link->data[link->connector ? 1 : 0];
}

/* ---- Being up ---------------------------------------------------------- */

void link_opened(struct backend_link *link, struct channel *channel)
{
	int error = 0;

	if (channel->state == CHANNEL_UP)
		return;
	channel->state = CHANNEL_UP;
	haul_log(HAUL_LOG_DEBUG, "a %s channel is up", channel->control ? "control" : "data");
	link->heard_at = haul_clock();
	link_timer(link, link->heard_at);
	if (!channel->control)
		link->data_up++;
	if (channel->control && link->connector)
		error = connect_data(link);
	if (error) {
		link_fail(link, error, "no data channel: %s", link->context->why);
		return;
	}
	/* The connecting side is ready first, so that nobody speaks to one who isn't. */
	if (link->state == LINK_CONNECTING && link->control->state == CHANNEL_UP &&
	    link->data_up >= (link->split ? 2u : 1u)) {
		link->state = LINK_OPEN;
		if (link->connector)
			haul_on_connected(link->endpoint);
		else
			accept_announce(link);
	}
	if (!link->error && link->state == LINK_OPEN)
		link_pump(link);
}

void link_pump(struct backend_link *link)
{
	/* Not all channels are there before it is open. */
	if (link->state == LINK_CONNECTING || link->control->state != CHANNEL_UP || link->error)
		return;
	windows_pump(link);
	if (link->blocked)
		control_flush(link);
	if (!link->error)
		push_pump(link);
	if (!link->error)
		control_tell_taken(link);
	for (unsigned i = 0; i < link->data_count && !link->error && !link->split; i++) {
		if (link->data[i])
			push_tell_taken(link->data[i]);
	}
}

void link_gone(struct backend_link *link)
{
	link->state = LINK_GONE;
	link->context->gone = true;
}

/* ---- Time -------------------------------------------------------------- */

void link_timer(struct backend_link *link, uint64_t at)
{
	if (at < link->context->next_timer)
		link->context->next_timer = at;
}

/* The peer's adapter answers this without its program. */
static void ask(struct backend_link *link, uint64_t now)
{
	struct device *device = link->device;
	struct ibv_sge into = {(uintptr_t)device->sink->addr, 8, device->sink->lkey};
	struct ibv_send_wr work = {
		.sg_list = &into,
		.num_sge = 1,
		.opcode = IBV_WR_RDMA_READ,
		.wr.rdma = {.remote_addr = link->peer_mailbox, .rkey = link->peer_mailbox_key},
	};
	struct posted what = {.kind = POSTED_READ};

	if (channel_room(link->control) == 0 || channel_post(link->control, &work, &what, true))
		return;
	link->asking = true;
	link->asked_at = now;
}

void link_watch(struct backend_link *link)
{
	if (link->watch_at)
		return;
	link->watch_at = haul_clock() + WATCH_EVERY;
	link_timer(link, link->watch_at);
}

/* True when the channel has work that is not done. */
static bool watch_channel(struct channel *channel)
{
	if (!channel || channel->posted_count <= channel->unsignalled)
		return false;
	if (channel->posted_seen == channel->posted_before)
		channel_ring(channel);
	channel->posted_seen = channel->posted_before;
	return true;
}

static void watch(struct backend_link *link, uint64_t now)
{
	bool busy;

	if (!link->watch_at)
		return;
	if (now >= link->watch_at) {
		busy = watch_channel(link->control);
		for (unsigned i = 0; i < link->data_count; i++)
			busy = watch_channel(link->data[i]) || busy;
		link->watch_at = busy ? now + WATCH_EVERY : 0;
	}
	if (link->watch_at)
		link_timer(link, link->watch_at);
}

void link_timers(struct backend_link *link, uint64_t now)
{
	uint64_t patience = haul_peer_ms(link->context->engine) * MS, at;

	if (link->error || link->state == LINK_GONE)
		return;
	watch(link, now);
	if (link->give_up_at) {
		if (now < link->give_up_at)
			link_timer(link, link->give_up_at);
		else if (link->state == LINK_LEAVING)
			link_gone(link);
		else
			link_fail(link, -ETIMEDOUT, "the connection was not established in time");
	}
	if (link->last_word_at) {
		if (now < link->last_word_at)
			link_timer(link, link->last_word_at);
		else
			link_fail(link, -ECONNRESET, "the peer has ended a part of the connection");
	}
	if (link->control->state != CHANNEL_UP || link->state != LINK_OPEN)
		return;
	if (link->asking) {
		at = link->asked_at + patience;
		if (now >= at)
			link_fail(link, -ETIMEDOUT, "its host did not answer for %llu ms (peer_ms)",
				  (unsigned long long)(patience / MS));
	} else {
		at = link->heard_at + patience / ASK_WITHIN;
		if (now >= at) {
			ask(link, now);
			at = now + patience / ASK_WITHIN;
		}
	}
	link_timer(link, at);
}

/* ---- Ends -------------------------------------------------------------- */

/* A queue pair can't be destroyed while windows are bound to it (rxe waits for them for ever). */
static void break_data(struct backend_link *link)
{
	for (unsigned i = 0; i < link->data_count; i++) {
		if (link->data[i])
			channel_stop(link->data[i]);
	}
	windows_free(link);
	for (unsigned i = 0; i < link->data_count; i++) {
		if (link->data[i])
			channel_break(link->data[i]);
	}
}

static void break_all(struct backend_link *link)
{
	break_data(link);
	channel_break(link->control);
}

/*
 * Nothing of the caller's is touched any more when this returns: its operations may be ended. The
 * next progress reports it.
 */
void link_fail(struct backend_link *link, int error, const char *format, ...)
{
	va_list arguments;

	if (link->error || link->state == LINK_GONE)
		return;
	va_start(arguments, format);
	vsnprintf(link->why, sizeof(link->why), format, arguments);
	va_end(arguments);
	link->error = error ? error : -EIO;
	haul_log(HAUL_LOG_DEBUG, "a connection failed: %s", link->why);
	link->error_counted = true;
	link->context->errors++;
	break_all(link);
}

/* What belongs to the caller, and to the data channels. */
static void let_go(struct backend_link *link)
{
	pushes_forget(link);
	break_data(link);
	slots_free(link);
}

/* It is told, or will never be. */
void link_forget_error(struct backend_link *link)
{
	if (link->error_counted)
		link->context->errors--;
	link->error_counted = false;
}

void link_free(struct backend_link *link)
{
	link_forget_error(link);
	if (link->counted)
		link->context->strangers--;
	let_go(link);
	for (unsigned i = 0; i < link->data_count; i++)
		channel_free(link->data[i]);
	channel_free(link->control);
	link_leave_device(link);
	control_free(link);
	free(link->addresses);
	TAILQ_REMOVE(&link->context->links, link, all);
	free(link);
}

/*
 * Whoever disconnects in order destroys its data channels first, so that no byte lands any more,
 * and says goodbye over the control channel. The news of their end may be faster than the goodbye,
 * which may have been lost and be on its way again.
 */
static bool await_last_word(struct channel *channel)
{
	struct backend_link *link = channel->link;

	if (link->state != LINK_OPEN || link->error)
		return false;
	if (!channel->control)
		channel_stop(channel);
	if (!link->last_word_at) {
		link->last_word_at = haul_clock() + LAST_WORD_MS * MS;
		link_timer(link, link->last_word_at);
	}
	return true;
}

/* iWARP's queue pairs end with their connections, so work on them may fail then. */
bool link_awaits_last_word(struct channel *channel)
{
	return channel->link->device->iwarp && await_last_word(channel);
}

void link_disconnected(struct channel *channel)
{
	struct backend_link *link = channel->link;

	if (!channel->control && await_last_word(channel))
		return;
	/* What the peer said before it went is there already. */
	while (link->endpoint && !link->error && link_poll(link) > 0)
		;
	if (link->state == LINK_LEAVING)
		link_gone(link);
	else
		link_fail(link, -ECONNRESET, "the peer's program has ended the connection");
}

static bool all_left(const struct backend_link *link)
{
	return link->out_start == link->out_end && link->control->posted_count == 0;
}

/* In order: the control channel stays until the last packet is acknowledged. */
void verbs_disconnect(struct backend_link *link, bool in_order)
{
	struct backend_context *context = link->context;

	link_forget_error(link);
	link->endpoint = NULL;
	let_go(link);
	if (in_order && link->control->state == CHANNEL_UP && !link->error) {
		/* Nobody will use the windows that READY waits for. */
		link->binds_done = link->binds_wanted;
		control_flush(link);
		link->state = LINK_LEAVING;
		link->give_up_at = haul_clock() + haul_peer_ms(context->engine) * MS;
		link_timer(link, link->give_up_at);
		return;
	}
	break_all(link);
	link_gone(link);
}

void link_leave(struct backend_link *link)
{
	struct channel *control = link->control;

	/* Is reported like any other, though nobody listens. */
	if (link->error)
		return;
	if (control->state == CHANNEL_UP && !all_left(link)) {
		/* Nobody asked to be told when the last ones are there: a read behind them does. */
		if (link->out_start == link->out_end && control->unsignalled && !link->asking)
			ask(link, haul_clock());
		return;
	}
	link_gone(link);
}

unsigned verbs_leaving(struct backend_context *context)
{
	struct backend_link *link;
	unsigned count = 0;

	TAILQ_FOREACH (link, &context->links, all)
		count += link->state == LINK_LEAVING;
	return count;
}

void verbs_statistics(struct backend_link *link, struct haul_statistics *statistics)
{
	statistics->streams += link->data_up + (link->control->state == CHANNEL_UP);
	statistics->chunks_sent += link->pieces_sent;
}
