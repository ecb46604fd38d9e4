/* SPDX-License-Identifier: Apache-2.0 */
/* Pushes: small ones go with the control messages, large ones are cut into packets. */
#include <errno.h>
#include <stdlib.h>

#include "dpdk.h"

/* New bytes wait when those that were sent first so many numbers ago are still on their way, and
 * with even more only the oldest ones are sent again: PACKET_BACK_MAX has to be enough. */
#define NUMBERS_TIGHT (PACKET_BACK_MAX / 2)
#define NUMBERS_SHORT (PACKET_BACK_MAX - PACKET_BACK_MAX / 4)
/* How often to look for the oldest of them: a peer that never acknowledges one packet has us look
 * through all of them again and again. */
#define FLOOR_EVERY (1 * MS)

/* ---- Memory ------------------------------------------------------------ */

static bool settled(const struct transfer *transfer)
{
	return !transfer->push && !transfer->returning && transfer->unsettled == 0 &&
	       transfer->holder.count == 0;
}

static void unqueue(struct backend_link *link, struct transfer *transfer)
{
	if (!transfer->waiting)
		return;
	transfer->waiting = false;
	TAILQ_REMOVE(&link->queued, transfer, queued);
}

static void settle(struct backend_link *link, struct transfer *transfer)
{
	if (!settled(transfer))
		return;
	TAILQ_REMOVE(&link->transfers, transfer, all);
	free(transfer);
}

void transfer_reclaimed(struct backend_link *link)
{
	struct transfer *transfer = TAILQ_FIRST(&link->transfers);

	while (transfer) {
		struct transfer *next = TAILQ_NEXT(transfer, all);
		struct haul_push *push = transfer->push;

		if (!transfer->returning || transfer->holder.count) {
			transfer = next;
			continue;
		}
		transfer->returning = false;
		transfer->push = NULL;
		link->returning--;
		link->context->returning--;
		push->backend = NULL;
		settle(link, transfer);
		haul_on_pushed(link->endpoint, push);
		/* The engine may have ended the link. */
		if (!link->endpoint || link->error)
			return;
		/* Or other pushes, and the list is another one. */
		transfer = TAILQ_FIRST(&link->transfers);
	}
}

static bool any_held(const struct backend_link *link)
{
	const struct transfer *transfer;

	TAILQ_FOREACH (transfer, &link->transfers, all) {
		if (transfer->holder.count)
			return true;
	}
	return false;
}

void transfers_forget(struct backend_link *link)
{
	struct transfer *transfer;

	link->forgotten = true;
	link->piece_count = 0;
	TAILQ_FOREACH (transfer, &link->transfers, all) {
		unqueue(link, transfer);
		transfer->push = NULL;
		transfer->returning = false;
		transfer->unsettled = 0;
	}
	link->context->returning -= link->returning;
	link->returning = 0;
	/* The port still reads the caller's memory: it has to stop. Each call does a little. */
	if (any_held(link))
		output_drop(link->context, link->queue);
	while (any_held(link) && port_reclaim(link->context->port, true))
		;
	while ((transfer = TAILQ_FIRST(&link->transfers))) {
		TAILQ_REMOVE(&link->transfers, transfer, all);
		/* A port that never stops writes there when it does after all. */
		if (transfer->holder.count == 0)
			free(transfer);
	}
}

/* ---- Pushes ------------------------------------------------------------ */

static int push_small(struct backend_link *link, struct haul_push *push)
{
	const struct packet_record record = {
		.small = true,
		.message = push->header,
		.message_length = (uint16_t)push->header_length,
		.payload = push->data,
		.payload_length = (uint32_t)push->length,
		.slot = push->slot,
		.offset = push->offset,
	};

	uint64_t begin = link->context->traced ? haul_clock() : 0;
	int error = stream_append(&link->stream, &record);

	push->backend = NULL;
	if (link->context->traced && !error)
		haul_trace_copy(link->endpoint, HAUL_SHARE_OUT, push->slot, push->length, begin);
	return error;
}

static bool is_external(const struct backend_link *link, const struct haul_push *push)
{
	const struct backend_context *context = link->context;

	if (context->config->copy == DPDK_COPY_YES || link->local)
		return false;
	return context->port->external || (context->port->external_registered &&
					   port_is_registered(context->port, push->region));
}

int transfer_push(struct backend_link *link, struct haul_push *push)
{
	const struct packet_record record = {.message = push->header,
					     .message_length = (uint16_t)push->header_length};
	struct transfer *transfer;
	int error;

	if (push->length <= link->context->config->small)
		return push_small(link, push);
	if (push->offset > PACKET_OFFSET_MAX || push->length > PACKET_OFFSET_MAX - push->offset)
		return -EOVERFLOW;
	transfer = calloc(1, sizeof(*transfer));
	if (!transfer)
		return -ENOMEM;
	error = stream_append(&link->stream, &record);
	if (error) {
		free(transfer);
		return error;
	}
	transfer->push = push;
	transfer->external = is_external(link, push);
	transfer->waiting = true;
	push->backend = transfer;
	TAILQ_INSERT_TAIL(&link->transfers, transfer, all);
	TAILQ_INSERT_TAIL(&link->queued, transfer, queued);
	return 0;
}

int transfer_push_end(struct backend_link *link, struct haul_push *push, enum haul_push_end why)
{
	struct transfer *transfer = push->backend;

	if (!transfer)
		return 1;
	share_tell_sent(link, push->slot);
	unqueue(link, transfer);
	if (transfer->holder.count)
		port_reclaim(link->context->port, false);
	if (transfer->holder.count) {
		transfer->returning = true;
		link->returning++;
		link->context->returning++;
		link_ready(link);
		return 0;
	}
	push->backend = NULL;
	transfer->push = NULL;
	settle(link, transfer);
	return 1;
}

/* ---- What to send ------------------------------------------------------ */

static struct piece *piece_at(const struct backend_link *link, uint32_t place)
{
	return &link->pieces[(link->piece_first + place) & (link->piece_room - 1)];
}

/* Its push has ended: these bytes are not needed any more. */
static bool is_over(const struct transfer *transfer)
{
	return !transfer->push || transfer->returning;
}

static void drop_first_piece(struct backend_link *link)
{
	link->piece_first++;
	link->piece_count--;
}

/* Forget pieces of pushes that have ended. */
static void clean_pieces(struct backend_link *link)
{
	while (link->piece_count && is_over(piece_at(link, 0)->transfer)) {
		struct transfer *transfer = piece_at(link, 0)->transfer;

		drop_first_piece(link);
		transfer->unsettled--;
		settle(link, transfer);
	}
}

bool transfer_pending(const struct backend_link *link)
{
	return link->piece_count > 0 || !TAILQ_EMPTY(&link->queued);
}

/* The smallest first number of all bytes on their way. Costs as much as there are packets under
 * way: only asked for when numbers get short. */
static uint64_t find_floor(const struct backend_link *link)
{
	const struct recovery *recovery = &link->recovery;
	uint64_t floor = recovery->next;

	for (uint64_t number = recovery->oldest; number < recovery->next; number++) {
		const struct sent *sent = &recovery->ring[number & (recovery->room - 1)];

		if (sent->number == number && sent->state == SENT_UNDER_WAY &&
		    sent->kind == SENT_DATA && sent->first < floor)
			floor = sent->first;
	}
	for (uint32_t i = 0; i < link->piece_count; i++) {
		if (piece_at(link, i)->first < floor)
			floor = piece_at(link, i)->first;
	}
	return floor;
}

/* How many numbers ago the oldest bytes on their way were sent first. */
static uint64_t numbers_back(struct backend_link *link)
{
	uint64_t now = link->context->now;

	if (link->recovery.next - link->first_floor > NUMBERS_TIGHT &&
	    now - link->floor_at >= FLOOR_EVERY) {
		link->first_floor = find_floor(link);
		link->floor_at = now;
	}
	return link->recovery.next - link->first_floor;
}

/* The oldest piece goes to the front. */
static void oldest_first(struct backend_link *link)
{
	uint32_t oldest = 0;
	struct piece swapped;

	for (uint32_t i = 1; i < link->piece_count; i++) {
		if (piece_at(link, i)->first < piece_at(link, oldest)->first)
			oldest = i;
	}
	swapped = *piece_at(link, 0);
	*piece_at(link, 0) = *piece_at(link, oldest);
	*piece_at(link, oldest) = swapped;
}

static bool next_lost(struct backend_link *link, uint64_t back, struct piece *piece)
{
	clean_pieces(link);
	if (!link->piece_count)
		return false;
	if (back > NUMBERS_SHORT) {
		oldest_first(link);
		if (piece_at(link, 0)->first > link->first_floor)
			return false;
		clean_pieces(link);
		if (!link->piece_count)
			return false;
	}
	*piece = *piece_at(link, 0);
	drop_first_piece(link);
	link->pieces_again++;
	return true;
}

bool transfer_next(struct backend_link *link, uint32_t room, struct piece *piece)
{
	uint64_t back = numbers_back(link), left;
	struct transfer *transfer;

	if (next_lost(link, back, piece))
		return true;
	transfer = TAILQ_FIRST(&link->queued);
	if (!transfer || back > NUMBERS_TIGHT)
		return false;
	left = transfer->push->length - transfer->next;
	piece->transfer = transfer;
	piece->offset = transfer->next;
	piece->length = left < room ? (uint32_t)left : room;
	piece->first = 0;
	transfer->next += piece->length;
	transfer->unsettled++;
	if (transfer->next == transfer->push->length) {
		unqueue(link, transfer);
	} else if (++link->turn >= TURN && TAILQ_NEXT(transfer, queued)) {
		TAILQ_REMOVE(&link->queued, transfer, queued);
		TAILQ_INSERT_TAIL(&link->queued, transfer, queued);
		link->turn = 0;
	}
	return true;
}

/* ---- What became of it ------------------------------------------------- */

static bool pieces_grow(struct backend_link *link)
{
	uint32_t room = link->piece_room ? 2 * link->piece_room : 64;
	struct piece *grown = malloc(room * sizeof(*grown));

	if (!grown)
		return false;
	for (uint32_t i = 0; i < link->piece_count; i++)
		grown[i] = *piece_at(link, i);
	free(link->pieces);
	link->pieces = grown;
	link->piece_room = room;
	link->piece_first = 0;
	return true;
}

static void send_again(struct backend_link *link, const struct piece *piece)
{
	if (link->piece_count == link->piece_room && !pieces_grow(link)) {
		link_fail(link, -ENOMEM, "no memory for what has to be sent again");
		return;
	}
	*piece_at(link, link->piece_count++) = *piece;
	link_ready(link);
}

void transfer_arrived(struct backend_link *link, const struct sent *sent)
{
	struct transfer *transfer = sent->owner;

	transfer->unsettled--;
	settle(link, transfer);
}

void transfer_lost(struct backend_link *link, const struct sent *sent)
{
	struct piece piece = {.transfer = sent->owner,
			      .offset = sent->offset,
			      .first = sent->first,
			      .length = sent->length};

	if (is_over(piece.transfer)) {
		piece.transfer->unsettled--;
		settle(link, piece.transfer);
		return;
	}
	send_again(link, &piece);
}
