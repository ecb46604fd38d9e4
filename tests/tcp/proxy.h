/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Something in the middle: a thread that forwards the connections of a peer to a listener, and
 * breaks, slows down or cuts up those that a test chooses. It tells control stream, pulse and
 * streams apart by their preambles.
 */
#ifndef TCP_PROXY_H
#define TCP_PROXY_H

#include "harness.h"
#include "tcp/framing.h"

struct proxy;

/* `address` is the listener's. */
struct proxy *proxy_start(const char *address);
void proxy_stop(struct proxy *proxy);
/* Where to connect instead. */
const char *proxy_address(const struct proxy *proxy);

/* How many connections of a kind are open now; OPEN and CONTROL are both control streams. */
unsigned proxy_count(struct proxy *proxy, enum preamble_kind kind);

/* Break the number'th open connection of a kind, with a reset or in order; false: there is none. */
bool proxy_cut(struct proxy *proxy, enum preamble_kind kind, unsigned number, bool reset);
/* Take no more connections: they are reset. */
void proxy_refuse(struct proxy *proxy, bool refuse);
/* Forward at most so many bytes a second of the number'th stream. */
bool proxy_throttle(struct proxy *proxy, enum preamble_kind kind, unsigned number, uint64_t rate);
/* Forward 1 to `most` bytes at a time; 0: as they come. */
void proxy_dribble(struct proxy *proxy, unsigned most);

#endif
