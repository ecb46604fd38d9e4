/* SPDX-License-Identifier: Apache-2.0 */
/* Pushes: small ones go with the control messages, large ones are cut into chunks. */
#include <errno.h>
#include <stdlib.h>

#include "tcp.h"

/* ---- Chunks ------------------------------------------------------------ */

bool push_next_chunk(struct backend_link *link, struct haul_chunk *chunk)
{
	/* An even end matters among the streams that are used at all. */
	unsigned streams =
		link->streams_up < link->tune.target ? link->streams_up : link->tune.target;
	bool pending = haul_chunks_pending(&link->chunks);
	bool found = haul_chunks_next(&link->chunks, link->context->config->chunk, streams, chunk);

	if (pending && !haul_chunks_pending(&link->chunks))
		tune_idle(link);
	return found;
}

void push_return_chunk(struct backend_link *link, const struct haul_chunk *chunk)
{
	if (haul_chunks_return(&link->chunks, chunk))
		link_fail(link, -ENOMEM, "no memory for the chunks of a broken stream");
}

/* ---- Pushes ------------------------------------------------------------ */

static int push_large(struct backend_link *link, struct haul_push *push)
{
	struct haul_transfer *transfer = calloc(1, sizeof(*transfer));
	int error;

	if (!transfer)
		return -ENOMEM;
	error = tcp_control(link, push->header, push->header_length);
	if (error) {
		free(transfer);
		return error;
	}
	push->backend = transfer;
	if (!haul_chunks_pending(&link->chunks))
		tune_busy(link);
	haul_chunks_add(&link->chunks, transfer, push);
	return 0;
}

int tcp_push(struct backend_link *link, struct haul_push *push)
{
	push->backend = NULL;
	if (push->length > link->context->config->small)
		return push_large(link, push);
	if (!link->small_waiting.first && control_has_room(link))
		return control_small(link, push);
	haul_small_pushes_add(&link->small_waiting, push);
	return 0;
}

/* The peer has taken some of the control stream: small pushes that waited for that follow. */
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

int tcp_push_end(struct backend_link *link, struct haul_push *push, enum haul_push_end why)
{
	if (haul_small_push_waits(push)) {
		haul_small_pushes_remove(&link->small_waiting, push);
	} else if (push->backend) {
		/* Streams that are in the middle of a chunk of it go on with filler. */
		haul_chunks_end(&link->chunks, push->backend);
		push->backend = NULL;
		if (!haul_chunks_pending(&link->chunks))
			tune_idle(link);
	}
	/* Otherwise it was small and copied: none of ours any more. */
	return 1;
}

void push_forget(struct backend_link *link)
{
	struct haul_transfer *transfer;

	while ((transfer = TAILQ_FIRST(&link->chunks.transfers)))
		haul_chunks_end(&link->chunks, transfer);
	haul_chunks_free(&link->chunks);
	link->small_waiting.first = link->small_waiting.last = NULL;
}

void tcp_flush(struct backend_link *link)
{
	struct stream *stream, *next;

	control_write(link);
	if (link->error || !haul_chunks_pending(&link->chunks))
		return;
	for (stream = TAILQ_FIRST(&link->streams); stream; stream = next) {
		next = TAILQ_NEXT(stream, streams);
		stream_write(stream);
	}
}
