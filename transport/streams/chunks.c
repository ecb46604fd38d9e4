/* SPDX-License-Identifier: Apache-2.0 */
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "streams/chunks.h"

/* With several streams, no chunk is cut smaller than this for the sake of an even end. */
#define CHUNK_MIN (UINT64_C(64) * 1024)

#define RETURNED_ROOM 16

void haul_chunks_init(struct haul_chunks *chunks)
{
	memset(chunks, 0, sizeof(*chunks));
	TAILQ_INIT(&chunks->transfers);
	TAILQ_INIT(&chunks->waiting);
	for (int i = 0; i < HAUL_SIZE_CLASSES; i++)
		TAILQ_INIT(&chunks->by_size[i]);
}

void haul_chunks_free(struct haul_chunks *chunks)
{
	while (chunks->returned_count)
		haul_transfer_release(chunks->returned[--chunks->returned_count].transfer);
	free(chunks->returned);
	chunks->returned = NULL;
	chunks->returned_room = 0;
}

/* ---- Transfers --------------------------------------------------------- */

void haul_transfer_use(struct haul_transfer *transfer)
{
	__atomic_add_fetch(&transfer->users, 1, __ATOMIC_RELAXED);
}

void haul_transfer_release(struct haul_transfer *transfer)
{
	if (__atomic_sub_fetch(&transfer->users, 1, __ATOMIC_ACQ_REL) == 0)
		free(transfer);
}

void haul_chunks_add(struct haul_chunks *chunks, struct haul_transfer *transfer,
		     struct haul_push *push)
{
	transfer->push = push;
	transfer->users = 1;
	transfer->class = 63 - (unsigned)__builtin_clzll(push->length);
	transfer->waiting = true;
	TAILQ_INSERT_TAIL(&chunks->transfers, transfer, entry);
	TAILQ_INSERT_TAIL(&chunks->waiting, transfer, waiting_entry);
	TAILQ_INSERT_TAIL(&chunks->by_size[transfer->class], transfer, size_entry);
	chunks->classes |= UINT64_C(1) << transfer->class;
}

void haul_chunks_withdraw(struct haul_chunks *chunks, struct haul_transfer *transfer)
{
	if (!transfer->waiting)
		return;
	transfer->waiting = false;
	TAILQ_REMOVE(&chunks->waiting, transfer, waiting_entry);
	TAILQ_REMOVE(&chunks->by_size[transfer->class], transfer, size_entry);
	if (TAILQ_EMPTY(&chunks->by_size[transfer->class]))
		chunks->classes &= ~(UINT64_C(1) << transfer->class);
}

void haul_chunks_end(struct haul_chunks *chunks, struct haul_transfer *transfer)
{
	haul_chunks_withdraw(chunks, transfer);
	TAILQ_REMOVE(&chunks->transfers, transfer, entry);
	transfer->push = NULL;
	haul_transfer_release(transfer);
}

/* ---- Chunks ------------------------------------------------------------ */

bool haul_chunks_pending(const struct haul_chunks *chunks)
{
	return chunks->returned_count > 0 || chunks->classes;
}

static struct haul_transfer *next_transfer(struct haul_chunks *chunks)
{
	if (!chunks->classes)
		return NULL;
	chunks->smallest_turn = !chunks->smallest_turn;
	if (chunks->smallest_turn)
		return TAILQ_FIRST(&chunks->by_size[__builtin_ctzll(chunks->classes)]);
	return TAILQ_FIRST(&chunks->waiting);
}

static uint32_t cut(uint64_t left, uint64_t longest, unsigned streams)
{
	uint64_t length = longest;

	if (streams > 1) {
		uint64_t even = left / (2 * (uint64_t)streams);

		if (even < CHUNK_MIN)
			even = CHUNK_MIN;
		if (even < length)
			length = even;
	}
	return (uint32_t)(length < left ? length : left);
}

/* A chunk that came back, unless its push has ended meanwhile. */
static bool next_returned(struct haul_chunks *chunks, struct haul_chunk *chunk)
{
	while (chunks->returned_count) {
		*chunk = chunks->returned[--chunks->returned_count];
		if (chunk->transfer->push) {
			chunks->again++;
			return true;
		}
		haul_transfer_release(chunk->transfer);
	}
	return false;
}

bool haul_chunks_next(struct haul_chunks *chunks, uint64_t longest, unsigned streams,
		      struct haul_chunk *chunk)
{
	struct haul_transfer *transfer;

	if (next_returned(chunks, chunk))
		return true;
	transfer = next_transfer(chunks);
	if (!transfer)
		return false;
	chunk->transfer = transfer;
	chunk->offset = transfer->next;
	chunk->length = cut(transfer->push->length - transfer->next, longest, streams);
	haul_transfer_use(transfer);
	transfer->next += chunk->length;
	if (transfer->next == transfer->push->length)
		haul_chunks_withdraw(chunks, transfer);
	return true;
}

int haul_chunks_return(struct haul_chunks *chunks, const struct haul_chunk *chunk)
{
	if (!chunk->transfer->push) {
		haul_transfer_release(chunk->transfer);
		return 0;
	}
	if (chunks->returned_count == chunks->returned_room) {
		size_t room = chunks->returned_room ? 2 * chunks->returned_room : RETURNED_ROOM;
		struct haul_chunk *grown = reallocarray(chunks->returned, room, sizeof(*grown));

		if (!grown) {
			haul_transfer_release(chunk->transfer);
			return -ENOMEM;
		}
		chunks->returned = grown;
		chunks->returned_room = room;
	}
	chunks->returned[chunks->returned_count++] = *chunk;
	return 0;
}
