/* SPDX-License-Identifier: Apache-2.0 */
/* haul-bench-server: one event loop, and a struct peer for each endpoint, independent of the
 * others. */
#ifndef BENCH_SERVER_H
#define BENCH_SERVER_H

#include <stdbool.h>
#include <stdint.h>
#include <sys/queue.h>
#include <tensorhaul/haul.h>

#include "flow.h"
#include "plain_tcp.h"
#include "protocol.h"

struct peer;

struct server {
	haul_context *context;
	haul_listener *listener;
	struct plain_server *ceiling; /* may be NULL */
	uint64_t memory_limit, memory_used;
	bool verbose;
	LIST_HEAD(, peer) peers;
	TAILQ_HEAD(, peer) attention; /* finishing or dropped */
	unsigned peer_count;
	unsigned polling; /* peers whose round asks for waiting without sleep */
	uint64_t peers_served;
	uint64_t rounds;
	uint64_t tensors, verified, mismatches;
};

/* A client's endpoint was accepted; the peer owns it from here on, also when this fails. */
void peer_accepted(struct server *server, haul_endpoint *endpoint);
/* HAUL_LOST came for an endpoint whose user pointer is the peer. */
void peer_lost(struct peer *peer, int result, const char *detail);
/* Disconnect; server_attend() releases the peer when its last operation has completed. */
void peer_drop(struct peer *peer);
/* To be called after each batch of completions. */
void server_attend(struct server *server);
void server_drop_all(struct server *server);

#endif
