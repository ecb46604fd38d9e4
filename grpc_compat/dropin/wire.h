/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What two layers say to each other, byte by byte. Numbers are little-endian.
 *
 *   question    client to server, the request of METHOD: once for each channel
 *   answer      server to client, its response
 *   mark        on the initial metadata of each call that follows, under MARK_KEY: the session and
 *               the number of the call within it
 *   descriptor  in place of a message whose bytes go aside
 *   note        over the side path itself, under NOTE_KEY
 */
#ifndef TENSORHAUL_DROPIN_WIRE_H
#define TENSORHAUL_DROPIN_WIRE_H

#include "layer.h"

#define WIRE_VERSION 1
#define WIRE_METHOD "/tensorhaul.SidePath/Open"
#define WIRE_MARK_KEY "tensorhaul-bin"
#define WIRE_NOTE_KEY "note"

#define WIRE_NAME_ROOM 16     /* a transport's name, with zeros behind it */
#define WIRE_ADDRESS_ROOM 256 /* "host:port", with zeros behind it */
#define WIRE_QUESTION_BYTES (8 + 8 + LAYER_ID_BYTES + 8 + WIRE_NAME_ROOM)
#define WIRE_ANSWER_BYTES (8 + 8 + 3 * LAYER_ID_BYTES + 8 + WIRE_ADDRESS_ROOM)
#define WIRE_MARK_BYTES (LAYER_ID_BYTES + 8)
#define WIRE_NOTE_BYTES (8 + 2 * LAYER_ID_BYTES + 8)

struct wire_question {
	struct layer_id process; /* the client's */
	uint64_t receive_limit;  /* the longest message that the channel takes */
	char transport[WIRE_NAME_ROOM];
};

struct wire_answer {
	struct layer_id process; /* the server's: channels to it share one side connection */
	struct layer_id session;
	struct layer_id secret; /* shown on the side connection */
	uint64_t receive_limit;
	char address[WIRE_ADDRESS_ROOM]; /* ":port" is a port at the server's address */
};

struct wire_mark {
	struct layer_id session;
	uint64_t call;
};

/*
 * A message goes aside in pieces, each a tensor of its own whose key is its number: the sender's
 * slices leave from where they are. Numbers are never used twice on one side connection.
 */
#define WIRE_PIECES_MAX 128
#define WIRE_DESCRIPTOR_HEAD (8 + 8 + LAYER_ID_BYTES + 8 + 8 + 8)
#define WIRE_DESCRIPTOR_MAX (WIRE_DESCRIPTOR_HEAD + 8 * WIRE_PIECES_MAX)

struct wire_descriptor {
	struct wire_mark mark; /* of the call that it belongs to */
	uint64_t number;       /* of the first piece */
	uint64_t bytes;        /* of all of them */
	unsigned pieces;
	uint64_t piece[WIRE_PIECES_MAX]; /* bytes, each at least 1 */
};

enum wire_note_kind {
	WIRE_NOTE_SHOW = 1,  /* client: this connection is that session's; shows the secret */
	WIRE_NOTE_GOOD = 2,  /* server: it is */
	WIRE_NOTE_OVER = 3,  /* call `call` has ended: nothing more of it is sent, or read */
	WIRE_NOTE_CLOSE = 4, /* client: the channel is gone */
};

struct wire_note {
	enum wire_note_kind kind;
	struct layer_id session;
	struct layer_id secret;
	uint64_t call;
};

/* Each fills a buffer of the size that its name has; a descriptor's length is returned. */
void wire_put_question(const struct wire_question *question, uint8_t *bytes);
void wire_put_answer(const struct wire_answer *answer, uint8_t *bytes);
void wire_put_mark(const struct wire_mark *mark, uint8_t *bytes);
size_t wire_put_descriptor(const struct wire_descriptor *descriptor, uint8_t *bytes);
void wire_put_note(const struct wire_note *note, uint8_t *bytes);

/* False when the bytes are something else, or don't hold together. */
bool wire_get_question(const uint8_t *bytes, size_t length, struct wire_question *question);
bool wire_get_answer(const uint8_t *bytes, size_t length, struct wire_answer *answer);
bool wire_get_mark(const uint8_t *bytes, size_t length, struct wire_mark *mark);
bool wire_get_note(const uint8_t *bytes, size_t length, struct wire_note *note);

/* Whether these first bytes are a descriptor's of that session, right or wrong. */
bool wire_is_descriptor(const uint8_t *bytes, size_t length, const struct layer_id *session);
bool wire_get_descriptor(const uint8_t *bytes, size_t length, struct wire_descriptor *descriptor);

#endif
