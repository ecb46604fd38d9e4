/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A relay between two contexts: it listens, connects on to the real listener, and passes bytes both
 * ways. It knows from the preamble what each connection is for, and can cut, half close or stall
 * it, at an exact byte. It runs in a thread of its own.
 */
#ifndef TCP_RELAY_H
#define TCP_RELAY_H

#include "harness.h"
#include "tcp/framing.h"

/* What a connection is for; or'ed. */
#define RELAY_CONTROL 1u
#define RELAY_PULSE 2u
#define RELAY_STREAM 4u
#define RELAY_ALL 7u

enum relay_cut {
	RELAY_CLOSE, /* both halves end in order */
	RELAY_RESET, /* both halves are reset */
	RELAY_HALF,  /* the end is passed on to the listening side; the other way goes on */
};

struct relay;

/* Start a relay to `target`; it ends with relay_free(), before its world. */
struct relay *relay_start(const char *target);
void relay_free(struct relay *relay);
/* The address to connect to instead of the target's. */
const char *relay_address(const struct relay *relay);

/*
 * Cut the oldest connections of these kinds, `most` at most, each after `after` more bytes (both
 * ways together); those that have carried nothing yet only when it is 0. Returns how many will be.
 */
unsigned relay_cut(struct relay *relay, unsigned kinds, unsigned most, enum relay_cut how,
		   uint64_t after);
/* Pass nothing more over the oldest of these kinds that have carried something, or go on. */
unsigned relay_stall(struct relay *relay, unsigned kinds, unsigned most, bool stalled);

/* Refuse every new connection from now on. */
void relay_listen_no_more(struct relay *relay);

/* Connections that were cut so far, and those of a kind that are whole and have greeted each other.
 */
unsigned relay_cuts(struct relay *relay);
unsigned relay_count(struct relay *relay, unsigned kinds);

#endif
