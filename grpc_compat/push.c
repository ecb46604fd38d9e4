/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Pushes: small ones go with the control messages, large ones are cut into chunks. gRPC gets slices
 * that point into the tensor, and says when it has let go of each. Until then a push that has ended
 * is not given back; where that takes too long, the connection that keeps a slice is cut.
 */
#include <errno.h>
#include <stdlib.h>

#include "rpc.h"

/* How long a push that was given up waits for its slices before it cuts connections. */
#define PATIENCE (50 * MS)

/* ---- Slices ------------------------------------------------------------- */

/* In any thread: gRPC has let go of a slice. */
static void slice_released(void *user)
{
	struct transfer *transfer = user;
	struct mailbox *mail = &transfer->context->mail;

	pthread_mutex_lock(&mail->lock);
	transfer->held--;
	if (transfer->held == 0) {
		mail->released_any |= transfer->awaited;
		mailbox_changed(mail);
	}
	pthread_mutex_unlock(&mail->lock);
	haul_transfer_release(&transfer->base);
}

grpc_slice push_slice(const struct haul_chunk *chunk, bool copied)
{
	struct transfer *transfer = (struct transfer *)chunk->transfer;
	struct mailbox *mail = &transfer->context->mail;
	const uint8_t *bytes = transfer->base.push->data + chunk->offset;

	if (copied)
		return grpc_slice_from_copied_buffer((const char *)bytes, chunk->length);
	haul_transfer_use(&transfer->base);
	pthread_mutex_lock(&mail->lock);
	transfer->held++;
	pthread_mutex_unlock(&mail->lock);
	return grpc_slice_new_with_user_data((void *)bytes, chunk->length, slice_released,
					     transfer);
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
	struct haul_transfer *base, *next;

	for (base = TAILQ_FIRST(&link->chunks.transfers); base && link->endpoint; base = next) {
		struct transfer *transfer = (struct transfer *)base;
		struct haul_push *push = transfer->leaving;
		bool held;

		next = TAILQ_NEXT(base, entry);
		pthread_mutex_lock(&mail->lock);
		held = transfer->held > 0;
		pthread_mutex_unlock(&mail->lock);
		if (!push || held)
			continue;
		haul_chunks_end(&link->chunks, base);
		haul_on_pushed(link->endpoint, push);
		/* The engine may have ended others. */
		next = link->endpoint ? TAILQ_FIRST(&link->chunks.transfers) : NULL;
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
static void cut_streams(struct backend_link *link, const struct haul_transfer *transfer)
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
	struct haul_transfer *base;

	TAILQ_FOREACH (base, &link->chunks.transfers, entry) {
		struct transfer *transfer = (struct transfer *)base;

		if (!transfer->leaving || transfer->break_at == UINT64_MAX)
			continue;
		if (now < transfer->break_at) {
			link_timer(link, transfer->break_at);
			continue;
		}
		transfer->break_at = UINT64_MAX;
		cut_streams(link, base);
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
	push->backend = transfer;
	haul_chunks_add(&link->chunks, &transfer->base, push);
	link_want_streams(link);
	return 0;
}

int rpc_push(struct backend_link *link, struct haul_push *push)
{
	push->backend = NULL;
	if (push->length > link->context->config->small)
		return push_large(link, push);
	if (!link->small_waiting.first && control_has_room(link))
		return control_small(link, push);
	haul_small_pushes_add(&link->small_waiting, push);
	return 0;
}

void push_small_waiting(struct backend_link *link)
{
	struct haul_push *push;

	while ((push = link->small_waiting.first) && control_has_room(link)) {
		haul_small_pushes_remove(&link->small_waiting, push);
		if (control_small(link, push)) {
			link_fail(link, -ENOMEM, "no memory for a small tensor");
			return;
		}
	}
	control_write(link);
}

static int end_large(struct backend_link *link, struct transfer *transfer, enum haul_push_end why)
{
	struct haul_push *push = transfer->base.push;

	haul_chunks_withdraw(&link->chunks, &transfer->base);
	if (!await_slices(transfer)) {
		haul_chunks_end(&link->chunks, &transfer->base);
		return 1;
	}
	transfer->base.push = NULL;
	transfer->leaving = push;
	transfer->break_at = why == HAUL_PUSH_PLACED ? UINT64_MAX : haul_clock() + PATIENCE;
	link_timer(link, transfer->break_at);
	return 0;
}

int rpc_push_end(struct backend_link *link, struct haul_push *push, enum haul_push_end why)
{
	struct transfer *transfer = push->backend;

	if (haul_small_push_waits(push)) {
		haul_small_pushes_remove(&link->small_waiting, push);
		return 1;
	}
	push->backend = NULL;
	/* One without was small and copied: none of ours any more. */
	return transfer ? end_large(link, transfer, why) : 1;
}

/* ---- The end of a link -------------------------------------------------- */

void push_forget(struct backend_link *link)
{
	struct haul_transfer *transfer;

	while ((transfer = TAILQ_FIRST(&link->chunks.transfers))) {
		mailbox_wait(link->context, &((struct transfer *)transfer)->held);
		haul_chunks_end(&link->chunks, transfer);
	}
	haul_chunks_free(&link->chunks);
	link->small_waiting.first = link->small_waiting.last = NULL;
}
