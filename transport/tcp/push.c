/* SPDX-License-Identifier: Apache-2.0 */
/* Pushes: small ones go with the control messages, large ones are cut into chunks. */
#include <errno.h>
#include <stdlib.h>

#include "tcp.h"

/* With several streams, no chunk is cut smaller than this for the sake of an even end. */
#define CHUNK_MIN (64u * 1024)

/* What push->backend names while a small push waits for the control stream. */
static char waiting_small;

/* ---- Transfers --------------------------------------------------------- */

void transfer_release(struct transfer *transfer)
{
	if (--transfer->users == 0)
		free(transfer);
}

static void queue(struct backend_link *link, struct transfer *transfer)
{
	transfer->class = 63 - (unsigned)__builtin_clzll(transfer->push->length);
	TAILQ_INSERT_TAIL(&link->transfers, transfer, queued);
	TAILQ_INSERT_TAIL(&link->by_size[transfer->class], transfer, sized);
	link->classes |= UINT64_C(1) << transfer->class;
	transfer->waiting = true;
}

static void unqueue(struct backend_link *link, struct transfer *transfer)
{
	if (!transfer->waiting)
		return;
	transfer->waiting = false;
	TAILQ_REMOVE(&link->transfers, transfer, queued);
	TAILQ_REMOVE(&link->by_size[transfer->class], transfer, sized);
	if (TAILQ_EMPTY(&link->by_size[transfer->class]))
		link->classes &= ~(UINT64_C(1) << transfer->class);
}

/*
 * The oldest tensor and the smallest take turns: a large one never holds up a small one, many
 * small ones never hold up a large one, and tensors of one size end one after the other
 * instead of all at once, so that there is always something left to fill the path with.
 */
static struct transfer *next_transfer(struct backend_link *link)
{
	if (!link->classes)
		return NULL;
	link->smallest_turn = !link->smallest_turn;
	if (link->smallest_turn)
		return TAILQ_FIRST(&link->by_size[__builtin_ctzll(link->classes)]);
	return TAILQ_FIRST(&link->transfers);
}

/* The push is over. Streams that are in the middle of a chunk of it go on with filler. */
static void end_transfer(struct backend_link *link, struct transfer *transfer)
{
	unqueue(link, transfer);
	TAILQ_REMOVE(&link->all_transfers, transfer, all);
	transfer->push = NULL;
	transfer_release(transfer);
}

bool push_pending(const struct backend_link *link)
{
	return link->returned_count > 0 || !TAILQ_EMPTY(&link->transfers);
}

/*
 * Chunks are large at first, which costs least, and smaller towards the end of a tensor,
 * so that all streams end at about the same time (guided self-scheduling, Polychronopoulos and
 * Kuck, 1987).
 */
static uint32_t cut(const struct backend_link *link, uint64_t left)
{
	uint64_t length = link->context->config->chunk;

	if (link->streams_up > 1 && link->tune.target > 1) {
		uint64_t even = left / (2 * link->tune.target);

		if (even < CHUNK_MIN)
			even = CHUNK_MIN;
		if (even < length)
			length = even;
	}
	return (uint32_t)(length < left ? length : left);
}

/* A chunk that came back, unless its push has ended meanwhile. */
static bool next_returned(struct backend_link *link, struct chunk *chunk)
{
	while (link->returned_count) {
		*chunk = link->returned[--link->returned_count];
		if (chunk->transfer->push) {
			link->counters.chunks_again++;
			return true;
		}
		transfer_release(chunk->transfer);
	}
	return false;
}

bool push_next_chunk(struct backend_link *link, struct chunk *chunk)
{
	struct transfer *transfer;

	if (next_returned(link, chunk))
		return true;
	transfer = next_transfer(link);
	if (!transfer)
		return false;
	chunk->transfer = transfer;
	chunk->offset = transfer->next;
	chunk->length = cut(link, transfer->push->length - transfer->next);
	transfer->users++;
	transfer->next += chunk->length;
	if (transfer->next == transfer->push->length) {
		unqueue(link, transfer);
		if (!push_pending(link))
			tune_idle(link);
	}
	return true;
}

void push_return_chunk(struct backend_link *link, const struct chunk *chunk)
{
	if (!chunk->transfer->push) {
		transfer_release(chunk->transfer);
		return;
	}
	if (link->returned_count == link->returned_room) {
		size_t room = link->returned_room ? 2 * link->returned_room : 16;
		struct chunk *grown = realloc(link->returned, room * sizeof(*grown));

		if (!grown) {
			transfer_release(chunk->transfer);
			link_fail(link, -ENOMEM, "no memory for the chunks of a broken stream");
			return;
		}
		link->returned = grown;
		link->returned_room = room;
	}
	link->returned[link->returned_count++] = *chunk;
}

/* ---- Pushes ------------------------------------------------------------ */

static int push_large(struct backend_link *link, struct haul_push *push)
{
	struct transfer *transfer = calloc(1, sizeof(*transfer));
	int error;

	if (!transfer)
		return -ENOMEM;
	error = tcp_control(link, push->header, push->header_length);
	if (error) {
		free(transfer);
		return error;
	}
	transfer->push = push;
	transfer->users = 1;
	push->backend = transfer;
	if (!push_pending(link))
		tune_busy(link);
	queue(link, transfer);
	TAILQ_INSERT_TAIL(&link->all_transfers, transfer, all);
	return 0;
}

int tcp_push(struct backend_link *link, struct haul_push *push)
{
	push->backend = NULL;
	push->next = NULL;
	if (push->length > link->context->config->small)
		return push_large(link, push);
	if (!link->small_first && control_has_room(link))
		return control_small(link, push);
	push->backend = &waiting_small;
	if (link->small_first)
		link->small_last->next = push;
	else
		link->small_first = push;
	link->small_last = push;
	return 0;
}

/* The peer has taken some of the control stream: small pushes that waited for that follow. */
void push_small_waiting(struct backend_link *link)
{
	struct haul_push *push;

	while ((push = link->small_first) && control_has_room(link)) {
		link->small_first = push->next;
		if (control_small(link, push)) {
			link_fail(link, -ENOMEM, "no memory for a small tensor");
			return;
		}
		push->backend = NULL;
	}
	control_write(link);
}

static void end_small(struct backend_link *link, struct haul_push *push)
{
	struct haul_push **at, *last = NULL;

	for (at = &link->small_first; *at != push; at = &(*at)->next)
		last = *at;
	*at = push->next;
	if (link->small_last == push)
		link->small_last = last;
}

int tcp_push_end(struct backend_link *link, struct haul_push *push, enum haul_push_end why)
{
	if (push->backend == &waiting_small) {
		end_small(link, push);
	} else if (push->backend) {
		end_transfer(link, push->backend);
		if (!push_pending(link))
			tune_idle(link);
	}
	/* Otherwise it was small and copied: none of ours any more. */
	push->backend = NULL;
	return 1;
}

void push_forget(struct backend_link *link)
{
	struct transfer *transfer;

	while ((transfer = TAILQ_FIRST(&link->all_transfers)))
		end_transfer(link, transfer);
	while (link->returned_count)
		transfer_release(link->returned[--link->returned_count].transfer);
	free(link->returned);
	link->returned = NULL;
	link->returned_room = 0;
	link->small_first = link->small_last = NULL;
}

void tcp_flush(struct backend_link *link)
{
	struct stream *stream, *next;

	control_write(link);
	if (link->error || !push_pending(link))
		return;
	for (stream = TAILQ_FIRST(&link->streams); stream; stream = next) {
		next = TAILQ_NEXT(stream, streams);
		stream_write(stream);
	}
}
