/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Peers: other processes that can be killed, stopped and continued. A peer is this program
 * again, run as `conformance --peer`; it never shares a context over fork(). It reads commands,
 * one a line, and answers each with one line:
 *
 *   listen [HOST:PORT]                ok ADDRESS
 *   connect ADDRESS                   ok | error NUMBER DETAIL
 *   load BYTES DEPTH                  ok; from now on under load on each endpoint, see load.h
 *   send KEY BYTES COUNT MS           ok; posts COUNT sends, pattern seeds 0, 1, ...
 *   recv KEY BYTES COUNT MS           ok; posts COUNT receives
 *   wait                              ok SUCCEEDED FAILED; when all operations have ended
 *   count                             ok SUCCEEDED FAILED OPEN ACCEPTED LOST
 *   drop NUMBER                       ok; disconnects the endpoint of this number
 *   exit                              ok; closes the context first
 *
 * Endpoints count from 0 in the order in which they came; send and recv use the last one.
 */
#ifndef CONFORMANCE_PEER_H
#define CONFORMANCE_PEER_H

#include "harness.h"

struct peer {
	struct peer *next;
	struct world *world;
	pid_t pid;
	unsigned number;       /* of its spec; 0: none */
	int commands, answers; /* -1: closed */
	char line[1024];
	size_t used;
	char answer[1024];
};

/* Start a peer with `options` on top of the peer transport. */
struct peer *peer_start(struct world *world, const char *options);
/* The same with a limit on its open files; 0 is none. */
/* The next peer that is started has the address of this one, which has ended. */
void peer_succeed(const struct peer *peer);
struct peer *peer_start_limited(struct world *world, const char *options, unsigned descriptors);
/* Say one command and run the world until the answer is there. Gives what follows "ok ". */
const char *peer_ask(struct peer *peer, const char *format, ...)
	__attribute__((format(printf, 2, 3)));
/* The same, but gives the whole answer, "error ..." too. */
const char *peer_try(struct peer *peer, const char *format, ...)
	__attribute__((format(printf, 2, 3)));
/* Say a command and don't wait. */
void peer_say(struct peer *peer, const char *format, ...) __attribute__((format(printf, 2, 3)));
/* Read an answer when there is one: NULL if not. */
const char *peer_answer(struct peer *peer);

/* Run the world until the peer has accepted so many endpoints. */
void peer_wait_accepted(struct peer *peer, unsigned count);

/* kill -9, and reap. */
void peer_kill(struct peer *peer);
/* SIGSTOP, and wait until it is stopped. */
void peer_stop(struct peer *peer);
void peer_continue(struct peer *peer);
/* Ask it to exit; fails the test when it doesn't with status 0. */
void peer_exit(struct peer *peer);
/* End all that are left. */
void peers_end(struct world *world);

/* The peer listens, and `side` connects to it. */
void peer_connect(struct peer *peer, struct side *side, const char *address, struct way *up,
		  struct way *down);

/* The other side: what `conformance --peer` runs. */
int peer_main(void);

#endif
