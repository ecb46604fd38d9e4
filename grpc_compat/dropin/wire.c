/* SPDX-License-Identifier: Apache-2.0 */
#include "wire.h"

#include <endian.h>
#include <string.h>

/*
 * The first byte of a descriptor is 7: no message of protocol buffers starts with it (field 0, of
 * a type that isn't there), so a server that should get one by mistake refuses it.
 */
static const uint8_t descriptor_magic[8] = {7, 't', 'h', 'a', 'u', 'l', 'D', WIRE_VERSION};
static const uint8_t question_magic[8] = {7, 't', 'h', 'a', 'u', 'l', 'Q', WIRE_VERSION};
static const uint8_t answer_magic[8] = {7, 't', 'h', 'a', 'u', 'l', 'A', WIRE_VERSION};

/* ---- A place in a buffer that moves on ---------------------------------- */

static uint8_t *put(uint8_t *next, const void *bytes, size_t length)
{
	memcpy(next, bytes, length);
	return next + length;
}

static uint8_t *put_number(uint8_t *next, uint64_t number)
{
	number = htole64(number);
	return put(next, &number, sizeof(number));
}

static void get(const uint8_t **next, void *bytes, size_t length)
{
	memcpy(bytes, *next, length);
	*next += length;
}

static uint64_t get_number(const uint8_t **next)
{
	uint64_t number;

	get(next, &number, sizeof(number));
	return le64toh(number);
}

static bool get_magic(const uint8_t **next, const uint8_t *magic)
{
	bool same = !memcmp(*next, magic, 8);

	*next += 8;
	return same;
}

/* ---- Question and answer ------------------------------------------------- */

void wire_put_question(const struct wire_question *question, uint8_t *bytes)
{
	bytes = put(bytes, question_magic, 8);
	bytes = put_number(bytes, 0); /* for later versions */
	bytes = put(bytes, question->process.bytes, LAYER_ID_BYTES);
	bytes = put_number(bytes, question->receive_limit);
	bytes = put(bytes, question->transport, WIRE_NAME_ROOM);
}

bool wire_get_question(const uint8_t *bytes, size_t length, struct wire_question *question)
{
	if (length != WIRE_QUESTION_BYTES || !get_magic(&bytes, question_magic))
		return false;
	get_number(&bytes);
	get(&bytes, question->process.bytes, LAYER_ID_BYTES);
	question->receive_limit = get_number(&bytes);
	get(&bytes, question->transport, WIRE_NAME_ROOM);
	return !question->transport[WIRE_NAME_ROOM - 1];
}

void wire_put_answer(const struct wire_answer *answer, uint8_t *bytes)
{
	bytes = put(bytes, answer_magic, 8);
	bytes = put_number(bytes, 0);
	bytes = put(bytes, answer->process.bytes, LAYER_ID_BYTES);
	bytes = put(bytes, answer->session.bytes, LAYER_ID_BYTES);
	bytes = put(bytes, answer->secret.bytes, LAYER_ID_BYTES);
	bytes = put_number(bytes, answer->receive_limit);
	bytes = put(bytes, answer->address, WIRE_ADDRESS_ROOM);
}

bool wire_get_answer(const uint8_t *bytes, size_t length, struct wire_answer *answer)
{
	if (length != WIRE_ANSWER_BYTES || !get_magic(&bytes, answer_magic))
		return false;
	get_number(&bytes);
	get(&bytes, answer->process.bytes, LAYER_ID_BYTES);
	get(&bytes, answer->session.bytes, LAYER_ID_BYTES);
	get(&bytes, answer->secret.bytes, LAYER_ID_BYTES);
	answer->receive_limit = get_number(&bytes);
	get(&bytes, answer->address, WIRE_ADDRESS_ROOM);
	return !answer->address[WIRE_ADDRESS_ROOM - 1];
}

/* ---- Marks and notes ----------------------------------------------------- */

void wire_put_mark(const struct wire_mark *mark, uint8_t *bytes)
{
	bytes = put(bytes, mark->session.bytes, LAYER_ID_BYTES);
	bytes = put_number(bytes, mark->call);
}

bool wire_get_mark(const uint8_t *bytes, size_t length, struct wire_mark *mark)
{
	if (length != WIRE_MARK_BYTES)
		return false;
	get(&bytes, mark->session.bytes, LAYER_ID_BYTES);
	mark->call = get_number(&bytes);
	return true;
}

void wire_put_note(const struct wire_note *note, uint8_t *bytes)
{
	bytes = put_number(bytes, note->kind);
	bytes = put(bytes, note->session.bytes, LAYER_ID_BYTES);
	bytes = put(bytes, note->secret.bytes, LAYER_ID_BYTES);
	bytes = put_number(bytes, note->call);
}

bool wire_get_note(const uint8_t *bytes, size_t length, struct wire_note *note)
{
	uint64_t kind;

	if (length != WIRE_NOTE_BYTES)
		return false;
	kind = get_number(&bytes);
	get(&bytes, note->session.bytes, LAYER_ID_BYTES);
	get(&bytes, note->secret.bytes, LAYER_ID_BYTES);
	note->call = get_number(&bytes);
	note->kind = (enum wire_note_kind)kind;
	return kind >= WIRE_NOTE_SHOW && kind <= WIRE_NOTE_CLOSE;
}

/* ---- Descriptors --------------------------------------------------------- */

size_t wire_put_descriptor(const struct wire_descriptor *descriptor, uint8_t *bytes)
{
	bytes = put(bytes, descriptor_magic, 8);
	bytes = put_number(bytes, descriptor->pieces);
	bytes = put(bytes, descriptor->mark.session.bytes, LAYER_ID_BYTES);
	bytes = put_number(bytes, descriptor->mark.call);
	bytes = put_number(bytes, descriptor->number);
	bytes = put_number(bytes, descriptor->bytes);
	for (unsigned i = 0; i < descriptor->pieces; i++)
		bytes = put_number(bytes, descriptor->piece[i]);
	return WIRE_DESCRIPTOR_HEAD + 8 * (size_t)descriptor->pieces;
}

bool wire_is_descriptor(const uint8_t *bytes, size_t length, const struct layer_id *session)
{
	return length >= WIRE_DESCRIPTOR_HEAD && get_magic(&bytes, descriptor_magic) &&
	       !memcmp(bytes + 8, session->bytes, LAYER_ID_BYTES);
}

bool wire_get_descriptor(const uint8_t *bytes, size_t length, struct wire_descriptor *descriptor)
{
	uint64_t pieces, sum = 0;

	if (length < WIRE_DESCRIPTOR_HEAD || !get_magic(&bytes, descriptor_magic))
		return false;
	pieces = get_number(&bytes);
	get(&bytes, descriptor->mark.session.bytes, LAYER_ID_BYTES);
	descriptor->mark.call = get_number(&bytes);
	descriptor->number = get_number(&bytes);
	descriptor->bytes = get_number(&bytes);
	if (!pieces || pieces > WIRE_PIECES_MAX || length != WIRE_DESCRIPTOR_HEAD + 8 * pieces ||
	    descriptor->number > UINT64_MAX - pieces)
		return false;
	descriptor->pieces = (unsigned)pieces;
	for (unsigned i = 0; i < descriptor->pieces; i++) {
		descriptor->piece[i] = get_number(&bytes);
		if (!descriptor->piece[i] ||
		    __builtin_add_overflow(sum, descriptor->piece[i], &sum))
			return false;
	}
	return sum == descriptor->bytes;
}
