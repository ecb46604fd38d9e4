/* SPDX-License-Identifier: Apache-2.0 */
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "streams/outbox.h"
#include "bytes.h"

#define FIRST_ROOM ((size_t)1024)

/* What has grown beyond this is given back when it is empty. */
#define KEEP ((size_t)32 * 1024)

uint8_t *haul_outbox_append(struct haul_outbox *box, size_t length)
{
	size_t waiting = haul_outbox_waiting(box);
	uint8_t *bytes;

	if (box->room - box->end < length && box->start > 0 && box->start >= waiting) {
		memcpy(box->bytes, box->bytes + box->start, waiting);
		box->end = waiting;
		box->start = 0;
	}
	if (box->room - box->end < length) {
		size_t room = box->room ? box->room : FIRST_ROOM;

		while (room - box->end < length)
			room *= 2;
		bytes = realloc(box->bytes, room);
		if (!bytes)
			return NULL;
		box->bytes = bytes;
		box->room = room;
	}
	bytes = box->bytes + box->end;
	box->end += length;
	return bytes;
}

uint8_t *haul_outbox_record(struct haul_outbox *box, unsigned type, size_t header, size_t length)
{
	uint8_t *out = haul_outbox_append(box, RECORD_SIZE + length);

	if (!out)
		return NULL;
	put32(out, (uint32_t)length);
	out[4] = (uint8_t)type;
	out[5] = 0;
	put16(out + 6, (uint16_t)header);
	return out + RECORD_SIZE;
}

int haul_outbox_small(struct haul_outbox *box, unsigned type, const struct haul_push *push)
{
	uint8_t *out = haul_outbox_record(box, type, push->header_length,
					  SMALL_SIZE + push->header_length + push->length);

	if (!out)
		return -ENOMEM;
	put64(out, push->slot);
	put64(out + 8, push->offset);
	memcpy(out + SMALL_SIZE, push->header, push->header_length);
	if (push->length)
		memcpy(out + SMALL_SIZE + push->header_length, push->data, push->length);
	return 0;
}

void haul_outbox_drop(struct haul_outbox *box, size_t count)
{
	box->start += count;
	if (box->start < box->end)
		return;
	box->start = box->end = 0;
	if (box->room > KEEP)
		haul_outbox_free(box);
}

void haul_outbox_free(struct haul_outbox *box)
{
	free(box->bytes);
	memset(box, 0, sizeof(*box));
}
