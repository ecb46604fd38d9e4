/* SPDX-License-Identifier: Apache-2.0 */
/* What the adapter says: completions of what was posted, and arrivals. */
#include <arpa/inet.h>
#include <errno.h>
#include <string.h>

#include "verbs.h"

static struct channel *channel_of(struct backend_link *link, const struct ibv_wc *wc)
{
	unsigned number = (unsigned)(wc->wr_id >> 48);

	if (number == 0)
		return link->control;
	return number <= link->data_count ? link->data[number - 1] : NULL;
}

/* ---- Errors ------------------------------------------------------------ */

static void failed(struct backend_link *link, const struct ibv_wc *wc)
{
	const char *status = ibv_wc_status_str(wc->status);

	switch (wc->status) {
	case IBV_WC_RETRY_EXC_ERR:
		link_fail(link, -ETIMEDOUT, "its host did not answer (%s)", status);
		break;
	case IBV_WC_WR_FLUSH_ERR:
		link_fail(link, -ECONNRESET, "the connection ended (a %s of the %s channel, %s)",
			  wc->wr_id & RECEIVE_BIT ? "receive" : "work request",
			  wc->wr_id >> 48 ? "data" : "control", device_last_event(link->device));
		break;
	case IBV_WC_REM_ACCESS_ERR:
	case IBV_WC_REM_OP_ERR:
	case IBV_WC_REM_INV_REQ_ERR:
	case IBV_WC_RNR_RETRY_EXC_ERR:
		link_fail(link, -ECONNRESET, "the peer's adapter refused a request (%s)", status);
		break;
	case IBV_WC_LOC_PROT_ERR:
		link_fail(link, -EFAULT,
			  "the adapter could not reach memory of this side (%s): was it unmapped "
			  "while an operation used it?",
			  status);
		break;
	default:
		/* siw says many things when TCP's connection is gone. */
		link_fail(link, link->device->iwarp ? -ECONNRESET : -EIO,
			  "the adapter reports an error: %s (%d, vendor's code 0x%x)", status,
			  wc->status, wc->vendor_err);
		break;
	}
}

/* ---- What was posted --------------------------------------------------- */

/* A queue pair writes one after the other: this one began when the one before it had ended. */
static void trace_written(struct channel *channel, const struct posted *posted)
{
	struct haul_share share = {
		.way = HAUL_SHARE_OUT,
		.lane = channel->number + 1,
		.slot = posted->push->push->slot,
		.bytes = posted->bytes,
		.begin = posted->at > channel->written_at ? posted->at : channel->written_at,
		.end = haul_clock(),
	};

	channel->written_at = share.end;
	haul_trace_share(channel->link->endpoint, &share);
}

static void pop(struct channel *channel)
{
	struct posted *posted = &channel->posted[channel->posted_first];
	struct backend_link *link = channel->link;

	channel->posted_first = (channel->posted_first + 1) % SEND_DEPTH;
	channel->posted_count--;
	channel->posted_before++;
	switch (posted->kind) {
	case POSTED_PACKET:
		if (posted->buffer != NO_BUFFER)
			channel->buffers_used &= ~(UINT32_C(1) << posted->buffer);
		break;
	case POSTED_WRITE:
		channel->writing -= posted->bytes;
		if (link->context->traced && link->endpoint)
			trace_written(channel, posted);
		push_written(link, posted->push);
		break;
	case POSTED_READ:
		link->asking = false;
		break;
	case POSTED_BIND:
	case POSTED_INVALIDATE:
		window_done(link, posted->kind, posted->window);
		break;
	}
}

/* Work requests complete in order, those that did not ask for it too. */
static void sent(struct channel *channel, const struct ibv_wc *wc)
{
	uint64_t behind = (wc->wr_id - channel->posted_before) & POSTED_MASK;

	for (uint64_t i = 0; i <= behind && channel->posted_count > 0; i++)
		pop(channel);
}

/* ---- What arrived ------------------------------------------------------ */

/*
 * A window of ours is gone, which nobody asked for; rxe panics when we invalidate it as well. It
 * says so with the kernel's number of the flag, which means something else to programs.
 */
static bool has_invalidated(const struct backend_link *link, const struct ibv_wc *wc)
{
	unsigned flag = link->device->rxe ? IBV_WC_IP_CSUM_OK : IBV_WC_WITH_INV;

	return wc->wc_flags & flag;
}

static void received(struct channel *channel, const struct ibv_wc *wc)
{
	struct backend_link *link = channel->link;
	unsigned number = (unsigned)(wc->wr_id & POSTED_MASK);
	const uint8_t *bytes = channel_buffer(channel, number);

	if (has_invalidated(link, wc)) {
		link_fail(link, -EPROTO, "the peer had the adapter forget a key");
		return;
	}
	if (wc->opcode == IBV_WC_RECV_RDMA_WITH_IMM) {
		channel->taken++;
		slot_written(link, ntohl(wc->imm_data), wc->byte_len);
	} else if (channel->control) {
		control_packet(link, bytes, wc->byte_len);
	} else {
		push_word(channel, bytes, wc->byte_len);
	}
	if (!link->error && link->state != LINK_GONE)
		channel_post_receive(channel, number);
}

static void take(struct backend_link *link, const struct ibv_wc *wc)
{
	struct channel *channel = channel_of(link, wc);

	/* A queue pair that is no more may have left something behind. */
	if (!channel || !channel->qp)
		return;
	if (wc->status != IBV_WC_SUCCESS) {
		if (channel->control || !link_awaits_last_word(channel))
			failed(link, wc);
		return;
	}
	if (!(wc->wr_id & RECEIVE_BIT)) {
		sent(channel, wc);
		return;
	}
	/* The peer may be faster than rdma_cm's word that it is there; it speaks when all are up.
	 */
	if (channel->state < CHANNEL_UP)
		link_opened(link, channel);
	for (unsigned i = 0;
	     i < link->data_count && link->state == LINK_CONNECTING && !link->connector; i++) {
		if (link->data[i] && link->data[i]->qp)
			link_opened(link, link->data[i]);
	}
	if (link->state == LINK_CONNECTING)
		link_fail(link, -EPROTO, "the peer spoke before its turn");
	if (!link->error)
		received(channel, wc);
}

/*
 * The accepting side speaks as soon as it knows that all channels are up. With iWARP, where nobody
 * confirms that, its words may be faster than what tells this side so: they wait in the queue.
 */
static bool is_listening(const struct backend_link *link)
{
	return link->cq && (link->state != LINK_CONNECTING || !link->connector);
}

int link_poll(struct backend_link *link)
{
	struct ibv_wc found[COMPLETIONS];
	int count = link->stashed, done = 0;

	if (!is_listening(link))
		return 0;
	if (count > 0) {
		memcpy(found, link->stash, (size_t)count * sizeof(*found));
		link->stashed = 0;
	} else {
		count = ibv_poll_cq(link->cq, COMPLETIONS, found);
	}
	if (count < 0) {
		link_fail(link, -EIO, "the completion queue is broken: %s", haul_strerror(count));
		return 1;
	}
	for (int i = 0; i < count && !link->error && link->state != LINK_GONE; i++, done++)
		take(link, &found[i]);
	if (done && !link->error && link->state != LINK_GONE) {
		link->heard_at = haul_clock();
		link_pump(link);
	}
	return done;
}

bool link_arm(struct backend_link *link)
{
	if (link->stashed)
		return true;
	if (link->armed || !is_listening(link) || link->error)
		return false;
	if (ibv_req_notify_cq(link->cq, 0))
		return false;
	/* What came before the queue was armed raises no event. */
	link->stashed = ibv_poll_cq(link->cq, COMPLETIONS, link->stash);
	if (link->stashed > 0)
		return true;
	link->stashed = 0;
	link->armed = true;
	link->context->armed++;
	return false;
}
