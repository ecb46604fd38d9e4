/* SPDX-License-Identifier: Apache-2.0 */
/* Pushes: RDMA writes from the tensor straight into the peer's slot. */
#include <arpa/inet.h>
#include <errno.h>
#include <stdlib.h>

#include "verbs.h"

/* ---- Beginning and end ------------------------------------------------- */

static struct outgoing *outgoing_new(struct backend_link *link, struct haul_push *push)
{
	struct region *region = push->region;
	struct outgoing *outgoing = calloc(1, sizeof(*outgoing));

	if (!outgoing)
		return NULL;
	outgoing->push = push;
	outgoing->registration = region_on(link->context, region, link->device);
	outgoing->before = (uint64_t)(push->data - region->base);
	if (!outgoing->registration) {
		free(outgoing);
		return NULL;
	}
	return outgoing;
}

static void outgoing_free(struct backend_link *link, struct outgoing *outgoing)
{
	TAILQ_REMOVE(&link->all_pushes, outgoing, all);
	if (outgoing->waiting)
		TAILQ_REMOVE(&link->pushes, outgoing, queued);
	outgoing->push->backend = NULL;
	free(outgoing);
}

int verbs_push(struct backend_link *link, struct haul_push *push)
{
	struct outgoing *outgoing;
	struct place place = {0};
	bool placed;
	int error;

	if (push->length == 0)
		return verbs_control(link, push->header, push->header_length);
	placed = place_decode(push->descriptor, push->descriptor_length, &place) == 0;
	if (push->length <= link->small_out && !place.write_only)
		return control_small(link, push);
	outgoing = outgoing_new(link, push);
	if (!outgoing)
		return -ENOMEM;
	outgoing->place = place;
	error = verbs_control(link, push->header, push->header_length);
	if (error) {
		free(outgoing);
		return error;
	}
	if (!placed)
		link_fail(link, -EPROTO, "the peer's slot does not say where it is");
	push->backend = outgoing;
	outgoing->waiting = true;
	TAILQ_INSERT_TAIL(&link->all_pushes, outgoing, all);
	TAILQ_INSERT_TAIL(&link->pushes, outgoing, queued);
	return 0;
}

int verbs_push_end(struct backend_link *link, struct haul_push *push, enum haul_push_end why)
{
	struct outgoing *outgoing = push->backend;

	(void)why; /* either way: no more writes, and those that were posted are waited for */
	if (!outgoing)
		return 1;
	if (outgoing->waiting)
		TAILQ_REMOVE(&link->pushes, outgoing, queued);
	outgoing->waiting = false;
	if (outgoing->under_way == 0 || link->error) {
		outgoing_free(link, outgoing);
		return 1;
	}
	outgoing->ending = true;
	return 0;
}

void push_written(struct backend_link *link, struct outgoing *outgoing)
{
	struct haul_push *push = outgoing->push;

	outgoing->under_way--;
	if (!outgoing->ending || outgoing->under_way)
		return;
	outgoing_free(link, outgoing);
	haul_on_pushed(link->endpoint, push);
}

void pushes_forget(struct backend_link *link)
{
	while (!TAILQ_EMPTY(&link->all_pushes))
		outgoing_free(link, TAILQ_FIRST(&link->all_pushes));
}

/* ---- Writing ----------------------------------------------------------- */

/* The next piece lies under one key on either side. */
struct piece {
	uint64_t length;
	struct ibv_sge from;
	uint64_t to;
	uint32_t key;
};

static bool next_piece(const struct backend_link *link, const struct outgoing *outgoing,
		       struct piece *piece)
{
	const struct haul_push *push = outgoing->push;
	const struct registration *registration = outgoing->registration;
	uint64_t at = outgoing->before + outgoing->posted;
	uint64_t most = push->length - outgoing->posted;
	uint64_t left = registration->each - at % registration->each;

	if (most > link->context->config->piece)
		most = link->context->config->piece;
	if (most > link->device->message_max)
		most = link->device->message_max;
	if (most > left)
		most = left;
	piece->length = place_piece(&outgoing->place, push->offset + outgoing->posted, most,
				    &piece->to, &piece->key);
	piece->from = (struct ibv_sge){(uintptr_t)(push->data + outgoing->posted),
				       (uint32_t)piece->length,
				       registration->mrs[at / registration->each]->lkey};
	return piece->length > 0;
}

/* The data channel that has the least to do and may take a piece more; NULL: none. */
static struct channel *free_channel(struct backend_link *link)
{
	struct channel *best = NULL;

	for (unsigned i = 0; i < link->data_count; i++) {
		struct channel *channel = link->data[i];

		if (!channel || channel->state != CHANNEL_UP ||
		    (link->split && channel != link_outbound(link)) || channel_room(channel) < 2 ||
		    !channel_can_send(channel) || !channel_credits(channel) ||
		    (channel->writing && channel->writing >= WRITE_WINDOW))
			continue;
		if (!best || channel->writing < best->writing)
			best = channel;
	}
	return best;
}

static int write_piece(struct channel *channel, struct outgoing *outgoing, struct piece *piece)
{
	const struct backend_link *link = channel->link;
	uint32_t tag = slot_tag(outgoing->push->slot);
	struct posted what = {
		.kind = POSTED_WRITE, .bytes = (uint32_t)piece->length, .push = outgoing};
	struct ibv_send_wr work = {
		.sg_list = &piece->from,
		.num_sge = 1,
		.opcode = link->immediates ? IBV_WR_RDMA_WRITE_WITH_IMM : IBV_WR_RDMA_WRITE,
		.imm_data = htonl(tag),
		.wr.rdma = {.remote_addr = piece->to, .rkey = piece->key},
	};
	uint8_t bytes[VERBS_WORD];
	int error;

	if (link->context->traced)
		what.at = haul_clock();
	error = channel_post(channel, &work, &what, true);
	if (error)
		return error;
	channel->writing += piece->length;
	channel->sent++;
	outgoing->under_way++;
	outgoing->posted += piece->length;
	if (link->immediates)
		return 0;
	/* Behind the write, so that it finds the bytes in place. */
	verbs_encode_word(bytes, &(struct word){channel->taken, tag, piece->length});
	channel->taken_told = channel->taken;
	return channel_send(channel, bytes, VERBS_WORD);
}

/* Tensors take turns, piece by piece. */
void push_pump(struct backend_link *link)
{
	struct outgoing *outgoing;
	struct channel *channel;
	struct piece piece;

	while (!link->error && (outgoing = TAILQ_FIRST(&link->pushes)) &&
	       (channel = free_channel(link))) {
		if (!next_piece(link, outgoing, &piece)) {
			link_fail(link, -EPROTO, "the peer's slot is smaller than it said");
			return;
		}
		TAILQ_REMOVE(&link->pushes, outgoing, queued);
		outgoing->waiting = false;
		if (write_piece(channel, outgoing, &piece))
			return;
		link->pieces_sent++;
		if (outgoing->posted < outgoing->push->length) {
			outgoing->waiting = true;
			TAILQ_INSERT_TAIL(&link->pushes, outgoing, queued);
		}
	}
}

/* ---- Words ------------------------------------------------------------- */

void push_tell_taken(struct channel *channel)
{
	uint8_t bytes[VERBS_WORD];

	if (channel->taken - channel->taken_told < RING / 4 || !channel_can_send(channel))
		return;
	verbs_encode_word(bytes, &(struct word){.taken = channel->taken});
	if (channel_send(channel, bytes, VERBS_WORD) == 0)
		channel->taken_told = channel->taken;
}

void push_word(struct channel *channel, const uint8_t *bytes, size_t length)
{
	struct backend_link *link = channel->link;
	struct word word;

	if (length != VERBS_WORD) {
		link_fail(link, -EPROTO, "the peer sent a word that is none");
		return;
	}
	verbs_decode_word(bytes, &word);
	if (!channel_taken(channel, word.taken)) {
		link_fail(link, -EPROTO, "the peer has taken more than was sent");
		return;
	}
	if (word.length == 0)
		return;
	channel->taken++;
	slot_written(link, word.tag, word.length);
}
