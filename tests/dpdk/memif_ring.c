/* SPDX-License-Identifier: Apache-2.0 */
/* Frames out of and into a memif client's rings. */
#include "memif_ring.h"

#include <string.h>
#include <unistd.h>

void *memif_memory(const struct memif_port *port, unsigned region, uint64_t offset, uint64_t size)
{
	const struct memif_region *of;

	if (region >= port->region_count)
		return NULL;
	of = &port->regions[region];
	return offset <= of->size && size <= of->size - offset ? of->base + offset : NULL;
}

/* ---- To the server ----------------------------------------------------- */

/* Take one frame's descriptors; false when they name no memory, and the frame is passed over. */
static bool frame_take(const struct memif_port *port, struct memif_queue *queue, uint16_t head,
		       struct view *frame)
{
	bool good = true, more = true;

	frame->count = 0;
	frame->length = 0;
	while (more && queue->at != head) {
		struct memif_descriptor taken =
			queue->ring->descriptors[queue->at++ & (queue->size - 1)];
		const uint8_t *bytes = memif_memory(port, taken.region, taken.offset, taken.length);

		more = taken.flags & MEMIF_NEXT;
		if (!bytes || frame->count == MEMIF_PIECES) {
			good = false;
			continue;
		}
		frame->pieces[frame->count].bytes = bytes;
		frame->pieces[frame->count++].length = taken.length;
		frame->length += taken.length;
	}
	return good && !more;
}

bool memif_receive(struct memif_port *port, unsigned number, struct view *frame)
{
	struct memif_queue *queue = &port->to_server[number];
	uint16_t head = __atomic_load_n(&queue->ring->head, __ATOMIC_ACQUIRE);

	/* A client that lies about its head has nothing to say. */
	while (queue->at != head && (uint16_t)(head - queue->at) <= queue->size) {
		if (frame_take(port, queue, head, frame))
			return true;
	}
	return false;
}

void memif_release(struct memif_port *port, unsigned number)
{
	struct memif_queue *queue = &port->to_server[number];

	__atomic_store_n(&queue->ring->tail, queue->at, __ATOMIC_RELEASE);
}

/* ---- To the client ----------------------------------------------------- */

struct source {
	const struct view *frame;
	unsigned piece;
	size_t used; /* of that piece */
};

static size_t copy_from(struct source *source, uint8_t *to, size_t room)
{
	size_t copied = 0;

	while (copied < room && source->piece < source->frame->count) {
		size_t left = source->frame->pieces[source->piece].length - source->used;
		size_t now = left < room - copied ? left : room - copied;

		memcpy(to + copied, source->frame->pieces[source->piece].bytes + source->used, now);
		copied += now;
		source->used += now;
		if (now == left) {
			source->piece++;
			source->used = 0;
		}
	}
	return copied;
}

struct target {
	uint8_t *bytes;
	size_t room;
};

/* The client's next buffers that hold `length` bytes; 0 when it offers too few. */
static unsigned targets_find(const struct memif_port *port, const struct memif_queue *queue,
			     size_t length, struct target *targets)
{
	uint16_t slot = queue->ring->tail;
	uint16_t last = __atomic_load_n(&queue->ring->head, __ATOMIC_ACQUIRE);
	size_t room = 0;
	unsigned count = 0;

	if ((uint16_t)(last - slot) > queue->size)
		return 0;
	while (room < length || !count) {
		struct memif_descriptor offered =
			queue->ring->descriptors[slot & (queue->size - 1)];
		struct target *target = &targets[count];

		if (slot++ == last || count++ == MEMIF_PIECES)
			return 0;
		target->room = offered.length;
		target->bytes = memif_memory(port, offered.region, offered.offset, offered.length);
		if (!target->bytes || !target->room)
			return 0;
		room += target->room;
	}
	return count;
}

enum memif_result memif_send(struct memif_port *port, const struct view *frame, uint32_t hash)
{
	struct memif_queue *queue;
	struct target targets[MEMIF_PIECES];
	struct source source = {.frame = frame};
	uint16_t slot;
	unsigned count;

	if (!port->up)
		return MEMIF_DOWN;
	queue = &port->to_client[hash % port->to_client_count];
	count = targets_find(port, queue, frame->length, targets);
	/* The client sets both to 0 when it hears that it is connected: only it knows the tail. */
	slot = queue->ring->tail;
	for (unsigned i = 0; i < count; i++, slot++) {
		struct memif_descriptor *descriptor =
			&queue->ring->descriptors[slot & (queue->size - 1)];

		descriptor->length =
			(uint32_t)copy_from(&source, targets[i].bytes, targets[i].room);
		descriptor->flags = i + 1 < count ? MEMIF_NEXT : 0;
	}
	if (!count)
		return MEMIF_FULL;
	__atomic_store_n(&queue->ring->tail, slot, __ATOMIC_RELEASE);
	queue->produced = true;
	return MEMIF_SENT;
}

void memif_flush(struct memif_port *port)
{
	uint64_t once = 1;

	for (unsigned i = 0; port->up && i < port->to_client_count; i++) {
		struct memif_queue *queue = &port->to_client[i];

		if (!queue->produced)
			continue;
		queue->produced = false;
		__atomic_thread_fence(__ATOMIC_SEQ_CST);
		if (!(queue->ring->flags & MEMIF_MASKED) &&
		    write(queue->event, &once, sizeof(once)) < 0)
			continue;
	}
}
