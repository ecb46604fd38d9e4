/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Pushes: small ones go with the control messages, large ones are cut into chunks. gRPC gets slices
 * that point into the tensor, and says when it has let go of each. Until then a push that has ended
 * is not given back; where that takes too long, the connection that keeps a slice is cut.
 */
#include <errno.h>
#include <stdlib.h>

#include "rpc.h"

/* With several streams, no chunk is cut smaller than this for the sake of an even end. */
#define CHUNK_MIN ((uint64_t)64 * 1024)

/* How long a push that was given up waits for its slices before it cuts connections. */
#define PATIENCE (50 * MS)

/* What push->backend names while a small push waits for the control call. */
static char waiting_small;

/* ---- Transfers ---------------------------------------------------------- */

void transfer_release(struct transfer *transfer)
{
	struct mailbox *mail = &transfer->context->mail;
	bool unused;

	pthread_mutex_lock(&mail->lock);
	unused = --transfer->users == 0;
	pthread_mutex_unlock(&mail->lock);
	if (unused)
		free(transfer);
}

static void use(struct transfer *transfer)
{
	struct mailbox *mail = &transfer->context->mail;

	pthread_mutex_lock(&mail->lock);
	transfer->users++;
	pthread_mutex_unlock(&mail->lock);
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

/* The oldest tensor and the smallest take turns, as with tcp. */
static struct transfer *next_transfer(struct backend_link *link)
{
	if (!link->classes)
		return NULL;
	link->smallest_turn = !link->smallest_turn;
	if (link->smallest_turn)
		return TAILQ_FIRST(&link->by_size[__builtin_ctzll(link->classes)]);
	return TAILQ_FIRST(&link->transfers);
}

/* Nobody waits for it any more. */
static void end_transfer(struct backend_link *link, struct transfer *transfer)
{
	unqueue(link, transfer);
	TAILQ_REMOVE(&link->all_transfers, transfer, all);
	transfer->link = NULL;
	transfer->push = transfer->leaving = NULL;
	transfer_release(transfer);
}

bool push_pending(const struct backend_link *link)
{
	return link->returned_count > 0 || link->classes;
}

/* Smaller chunks towards the end of a tensor, so that all streams end at about the same time. */
static uint32_t cut(const struct backend_link *link, uint64_t left)
{
	uint64_t length = link->context->config->chunk;

	if (link->streams_up > 1) {
		uint64_t even = left / (2 * (uint64_t)link->streams_up);

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
	use(transfer);
	transfer->next += chunk->length;
	if (transfer->next == transfer->push->length)
		unqueue(link, transfer);
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

/* ---- Slices ------------------------------------------------------------- */

/* In any thread: gRPC has let go of a slice. */
static void slice_released(void *user)
{
	struct transfer *transfer = user;
	struct mailbox *mail = &transfer->context->mail;
	bool unused;

	pthread_mutex_lock(&mail->lock);
	transfer->held--;
	unused = --transfer->users == 0;
	if (transfer->held == 0) {
		mail->released_any |= transfer->awaited;
		mailbox_changed(mail);
	}
	pthread_mutex_unlock(&mail->lock);
	if (unused)
		free(transfer);
}

grpc_slice push_slice(const struct chunk *chunk, bool copied)
{
	struct transfer *transfer = chunk->transfer;
	struct mailbox *mail = &transfer->context->mail;

	if (copied)
		return grpc_slice_from_copied_buffer(
			(const char *)transfer->push->data + chunk->offset, chunk->length);
	pthread_mutex_lock(&mail->lock);
	transfer->held++;
	transfer->users++;
	pthread_mutex_unlock(&mail->lock);
	return grpc_slice_new_with_user_data((void *)(transfer->push->data + chunk->offset),
					     chunk->length, slice_released, transfer);
}

/* Whether gRPC has slices; if so, its letting go is told. */
static bool await_slices(struct transfer *transfer)
{
	struct mailbox *mail = &transfer->context->mail;

	pthread_mutex_lock(&mail->lock);
	transfer->awaited = transfer->held > 0;
	pthread_mutex_unlock(&mail->lock);
	return transfer->awaited;
}

/* Give back what has been let go of. */
static void report_released(struct backend_link *link)
{
	struct mailbox *mail = &link->context->mail;
	struct transfer *transfer, *next;

	for (transfer = TAILQ_FIRST(&link->all_transfers); transfer && link->endpoint;
	     transfer = next) {
		struct haul_push *push = transfer->leaving;
		bool held;

		next = TAILQ_NEXT(transfer, all);
		pthread_mutex_lock(&mail->lock);
		held = transfer->held > 0;
		pthread_mutex_unlock(&mail->lock);
		if (!push || held)
			continue;
		end_transfer(link, transfer);
		haul_on_pushed(link->endpoint, push);
		/* The engine may have ended others. */
		next = link->endpoint ? TAILQ_FIRST(&link->all_transfers) : NULL;
	}
}

int push_released(struct backend_context *context)
{
	struct mailbox *mail = &context->mail;
	struct backend_link *link, *next;
	bool any;

	pthread_mutex_lock(&mail->lock);
	any = mail->released_any;
	mail->released_any = false;
	pthread_mutex_unlock(&mail->lock);
	if (!any)
		return 0;
	for (link = TAILQ_FIRST(&context->links); link; link = next) {
		next = TAILQ_NEXT(link, all);
		if (link->endpoint)
			report_released(link);
	}
	return 1;
}

/* A slice of a push that was given up is in a stream that does not move: cut that one. */
static void cut_streams(struct backend_link *link, const struct transfer *transfer)
{
	struct stream *stream, *next;

	for (stream = TAILQ_FIRST(&link->streams); stream; stream = next) {
		next = TAILQ_NEXT(stream, streams);
		if (stream_holds(stream, transfer))
			stream_break(stream);
	}
}

void push_timers(struct backend_link *link, uint64_t now)
{
	struct transfer *transfer;

	TAILQ_FOREACH (transfer, &link->all_transfers, all) {
		if (!transfer->leaving || transfer->break_at == UINT64_MAX)
			continue;
		if (now < transfer->break_at) {
			link_timer(link, transfer->break_at);
			continue;
		}
		transfer->break_at = UINT64_MAX;
		cut_streams(link, transfer);
	}
}

/* ---- Pushes ------------------------------------------------------------- */

static int push_large(struct backend_link *link, struct haul_push *push)
{
	struct transfer *transfer = calloc(1, sizeof(*transfer));
	int error;

	if (!transfer)
		return -ENOMEM;
	error = rpc_control(link, push->header, push->header_length);
	if (error) {
		free(transfer);
		return error;
	}
	transfer->context = link->context;
	transfer->link = link;
	transfer->push = push;
	transfer->users = 1;
	push->backend = transfer;
	queue(link, transfer);
	TAILQ_INSERT_TAIL(&link->all_transfers, transfer, all);
	link_want_streams(link);
	return 0;
}

int rpc_push(struct backend_link *link, struct haul_push *push)
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

static int end_large(struct backend_link *link, struct transfer *transfer, enum haul_push_end why)
{
	struct haul_push *push = transfer->push;

	unqueue(link, transfer);
	if (!await_slices(transfer)) {
		end_transfer(link, transfer);
		return 1;
	}
	transfer->push = NULL;
	transfer->leaving = push;
	transfer->break_at = why == HAUL_PUSH_PLACED ? UINT64_MAX : haul_clock() + PATIENCE;
	link_timer(link, transfer->break_at);
	return 0;
}

int rpc_push_end(struct backend_link *link, struct haul_push *push, enum haul_push_end why)
{
	int over = 1;

	if (push->backend == &waiting_small)
		end_small(link, push);
	else if (push->backend)
		over = end_large(link, push->backend, why);
	/* Otherwise it was small and copied: none of ours any more. */
	push->backend = NULL;
	return over;
}

/* ---- The end of a link -------------------------------------------------- */

void push_forget(struct backend_link *link)
{
	struct transfer *transfer;

	while ((transfer = TAILQ_FIRST(&link->all_transfers))) {
		mailbox_wait(link->context, &transfer->held);
		end_transfer(link, transfer);
	}
	while (link->returned_count)
		transfer_release(link->returned[--link->returned_count].transfer);
	free(link->returned);
	link->returned = NULL;
	link->returned_room = 0;
	link->small_first = link->small_last = NULL;
}
