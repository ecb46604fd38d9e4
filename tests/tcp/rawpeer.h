/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A peer written by hand, over bare sockets, from what tcp/framing.h and wire.h say: it can do
 * everything wrong that a peer can. It connects to a side of the library whose contexts run
 * by themselves (progress=thread), so that the test may block here.
 */
#ifndef TCP_RAWPEER_H
#define TCP_RAWPEER_H

#include "harness.h"
#include "tcp/framing.h"
#include "wire.h"

/* How long a raw peer waits for anything, in ms. */
#define RAW_PATIENCE_MS 10000

struct raw_peer {
	int control, pulse, stream; /* -1: none */
	uint8_t session[SESSION_SIZE];
	haul_endpoint *endpoint; /* the library's half */
};

/* A connected socket that waits RAW_PATIENCE_MS at most in each call. */
int raw_connect(const char *address);
/* False when the other side has closed. */
bool raw_send(int fd, const void *bytes, size_t length);
/* Read so many bytes; false at the end of the connection. Fails the test when nothing comes. */
bool raw_recv(int fd, void *bytes, size_t length);
/* Read whatever comes until the other side closes; false when it doesn't within `ms`. */
bool raw_closed_within(int fd, unsigned ms);

/* Send a preamble and read the answer. */
struct preamble raw_greet(int fd, enum preamble_kind kind, const struct raw_peer *peer,
			  uint32_t stream);

/*
 * Connect, say HELLO with these features, and open the pulse and one stream; the side's endpoint
 * is accepted after this.
 */
void raw_open(struct raw_peer *peer, struct side *side, uint64_t features);
/* The control stream alone, without HELLO. */
void raw_open_session(struct raw_peer *peer, const char *address);
void raw_close(struct raw_peer *peer);

/* One record of the control stream. */
bool raw_record(struct raw_peer *peer, enum record_type type, size_t header, const void *body,
		size_t length);
bool raw_message(struct raw_peer *peer, const uint8_t *message, size_t length);
/* SMALL: a PUSH message and the bytes. */
bool raw_small(struct raw_peer *peer, uint64_t slot, uint64_t offset, const uint8_t *message,
	       size_t length, const void *bytes, size_t count);
/* One chunk on the stream. */
bool raw_chunk(struct raw_peer *peer, uint64_t slot, uint64_t offset, const void *bytes,
	       uint32_t length);

/*
 * Read records until one of the engine's messages is there, and copy it (HAUL_CONTROL_MAX). Bytes
 * of a SMALL go to `bytes`, with room for 64 KiB, NULL: nowhere. Returns the type; 0 at the end.
 */
enum wire_type raw_next(struct raw_peer *peer, uint8_t *message, uint8_t *bytes);
/* The same, but skips other types. */
void raw_expect(struct raw_peer *peer, enum wire_type type, uint8_t *message, uint8_t *bytes);

/* Messages; they return the length. `out` has room for HAUL_CONTROL_MAX. */
size_t raw_hello(uint8_t *out, unsigned version, uint64_t features, uint32_t slots);
size_t raw_ready(uint8_t *out, unsigned flags, uint64_t slot, uint64_t room, const char *key);
size_t raw_push(uint8_t *out, enum wire_type type, uint64_t slot,
		uint64_t bytes); /* rank 1, uint8 */
size_t raw_slot(uint8_t *out, enum wire_type type, uint64_t slot);

#endif
