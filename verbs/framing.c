/* SPDX-License-Identifier: Apache-2.0 */
#include "framing.h"

#include <errno.h>
#include <string.h>

#include "bytes.h"

/* ---- Greetings --------------------------------------------------------- */

void verbs_encode_greeting(uint8_t bytes[VERBS_GREETING], const struct greeting *greeting)
{
	memset(bytes, 0, VERBS_GREETING);
	put32(bytes, VERBS_MAGIC);
	bytes[4] = VERBS_VERSION;
	bytes[5] = (uint8_t)greeting->kind;
	bytes[6] = (uint8_t)greeting->number;
	bytes[7] = (uint8_t)greeting->flags;
	memcpy(bytes + 8, greeting->session, VERBS_SESSION);
	put16(bytes + 24, greeting->ring);
	put16(bytes + 26, greeting->small);
	put32(bytes + 28, greeting->packet);
	put64(bytes + 32, greeting->mailbox);
	put32(bytes + 40, greeting->mailbox_key);
	put32(bytes + 44, greeting->mtu);
}

int verbs_decode_greeting(const uint8_t *bytes, size_t length, struct greeting *greeting)
{
	memset(greeting, 0, sizeof(*greeting));
	if (!bytes || length < 8 || get32(bytes) != VERBS_MAGIC)
		return -EPROTO;
	greeting->version = bytes[4];
	if (greeting->version != VERBS_VERSION)
		return -EPROTONOSUPPORT;
	if (length < VERBS_GREETING)
		return -EPROTO;
	greeting->kind = bytes[5];
	greeting->number = bytes[6];
	greeting->flags = bytes[7];
	memcpy(greeting->session, bytes + 8, VERBS_SESSION);
	greeting->ring = get16(bytes + 24);
	greeting->small = get16(bytes + 26);
	greeting->packet = get32(bytes + 28);
	greeting->mailbox = get64(bytes + 32);
	greeting->mailbox_key = get32(bytes + 40);
	greeting->mtu = get32(bytes + 44);
	if ((greeting->kind != VERBS_CONTROL && greeting->kind != VERBS_DATA) ||
	    greeting->ring < VERBS_RING_LEAST || greeting->ring > VERBS_RING_MOST ||
	    greeting->packet < VERBS_PACKET_LEAST || greeting->packet > VERBS_PACKET_MOST ||
	    greeting->mtu > VERBS_MTU_MOST)
		return -EPROTO;
	return 0;
}

void verbs_encode_refusal(uint8_t bytes[VERBS_REFUSAL], enum verbs_reason reason)
{
	memset(bytes, 0, VERBS_REFUSAL);
	put32(bytes, VERBS_MAGIC);
	bytes[4] = VERBS_VERSION;
	bytes[5] = (uint8_t)reason;
}

unsigned verbs_decode_refusal(const uint8_t *bytes, size_t length)
{
	return bytes && length >= VERBS_REFUSAL && get32(bytes) == VERBS_MAGIC ? bytes[5] : 0;
}

/* ---- Records and words ------------------------------------------------- */

enum { RECORD_MESSAGE = 1, RECORD_SMALL = 2 };

size_t verbs_encode_message(uint8_t *bytes, size_t length)
{
	put16(bytes, RECORD_MESSAGE);
	put16(bytes + 2, (unsigned)length);
	put32(bytes + 4, 0);
	return VERBS_MESSAGE;
}

size_t verbs_encode_small(uint8_t *bytes, size_t length, uint32_t payload, uint64_t slot,
			  uint64_t offset)
{
	put16(bytes, RECORD_SMALL);
	put16(bytes + 2, (unsigned)length);
	put32(bytes + 4, payload);
	put64(bytes + 8, slot);
	put64(bytes + 16, offset);
	return VERBS_SMALL;
}

size_t verbs_decode_record(const uint8_t *bytes, size_t length, struct record *record)
{
	unsigned kind;

	memset(record, 0, sizeof(*record));
	if (length < VERBS_MESSAGE)
		return 0;
	kind = get16(bytes);
	record->length = get16(bytes + 2);
	if (kind == RECORD_MESSAGE) {
		record->message = bytes + VERBS_MESSAGE;
		if (record->length > length - VERBS_MESSAGE)
			return 0;
		return VERBS_MESSAGE + record->length;
	}
	if (kind != RECORD_SMALL || length < VERBS_SMALL)
		return 0;
	record->small = true;
	record->payload = get32(bytes + 4);
	record->slot = get64(bytes + 8);
	record->offset = get64(bytes + 16);
	record->message = bytes + VERBS_SMALL;
	length -= VERBS_SMALL;
	if (record->length > length || record->payload > length - record->length)
		return 0;
	record->bytes = record->message + record->length;
	return VERBS_SMALL + record->length + record->payload;
}

void verbs_encode_word(uint8_t bytes[VERBS_WORD], const struct word *word)
{
	put32(bytes, word->taken);
	put32(bytes + 4, word->tag);
	put64(bytes + 8, word->length);
}

void verbs_decode_word(const uint8_t bytes[VERBS_WORD], struct word *word)
{
	word->taken = get32(bytes);
	word->tag = get32(bytes + 4);
	word->length = get64(bytes + 8);
}

/* ---- Places ------------------------------------------------------------ */

#define WRITE_ONLY (UINT64_C(1) << 63)

size_t place_encode(uint8_t *bytes, const struct place *place)
{
	put64(bytes, place->address);
	put64(bytes + 8, place->first | (place->write_only ? WRITE_ONLY : 0));
	put64(bytes + 16, place->each);
	for (unsigned i = 0; i < place->keys; i++)
		put32(bytes + 24 + 4 * i, place->key[i]);
	return 24 + 4 * (size_t)place->keys;
}

int place_decode(const uint8_t *bytes, size_t length, struct place *place)
{
	memset(place, 0, sizeof(*place));
	if (length < 28 || length % 4 || length > 24 + 4 * PLACE_KEYS)
		return -EPROTO;
	place->address = get64(bytes);
	place->first = get64(bytes + 8);
	place->write_only = place->first & WRITE_ONLY;
	place->first &= ~WRITE_ONLY;
	place->each = get64(bytes + 16);
	place->keys = (unsigned)(length - 24) / 4;
	for (unsigned i = 0; i < place->keys; i++)
		place->key[i] = get32(bytes + 24 + 4 * i);
	if (place->first == 0 || (place->keys > 1 && place->each == 0))
		return -EPROTO;
	return 0;
}

uint64_t place_piece(const struct place *place, uint64_t offset, uint64_t most, uint64_t *address,
		     uint32_t *key)
{
	uint64_t left, number = 0;

	if (offset < place->first) {
		left = place->first - offset;
	} else if (place->keys == 1) {
		return 0;
	} else {
		number = 1 + (offset - place->first) / place->each;
		if (number >= place->keys)
			return 0;
		left = place->each - (offset - place->first) % place->each;
	}
	*address = place->address + offset;
	*key = place->key[number];
	return left < most ? left : most;
}
