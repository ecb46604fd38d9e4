/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A session: one channel of a client and the server behind it, that have agreed on the side path.
 * The client has it from its channel; the server finds it by the mark on each call.
 */
#ifndef TENSORHAUL_DROPIN_SESSION_H
#define TENSORHAUL_DROPIN_SESSION_H

#include "side.h"

#define SESSION_EARLY_OVER 64
#define SESSION_METHODS 256

struct call;

/* What the two sides have agreed on. */
struct session_terms {
	struct layer_id secret;
	uint64_t peer_limit; /* the longest message that the peer's program takes */
	uint64_t own_limit;  /* and ours */
	uint64_t send_limit; /* the longest that our program may send */
};

/* What the calls of a method were answered with, see batch.c. */
struct answers {
	atomic_uint small;  /* in a row */
	atomic_uint missed; /* large ones that came to calls without a mark */
};

struct session {
	struct layer_id id;
	struct session_terms terms;
	bool server;            /* this process is the server */
	struct side_link *link; /* server: NULL until the client has shown the secret on it */
	uint64_t expires;       /* server, not shown: when it is forgotten, by haul_clock() */
	bool good;              /* client: the server has seen the secret */
	atomic_bool closed;     /* nothing new goes aside */
	atomic_uint references;
	_Atomic uint64_t next_call;
	/* Client: by a hash of the method. Two that share a place are taken for one. */
	struct answers answers[SESSION_METHODS];
	TAILQ_HEAD(, call) calls; /* that are alive; under session_lock, like what follows */
	/* Server: calls that were over before they came, since notes are faster; the last few. */
	uint64_t early_over[SESSION_EARLY_OVER]; /* numbers, and 1 */
	unsigned early_count;
	TAILQ_ENTRY(session) entry;
};

extern pthread_mutex_t session_lock; /* taken before a call's own lock */

/*
 * A new one, in the table, with a reference for the caller. A client brings its link, whose
 * reference is taken over; a server has none yet. NULL: no memory.
 */
struct session *session_new(const struct layer_id *id, bool server,
			    const struct session_terms *terms, struct side_link *link);
void session_get(struct session *session);
void session_put(struct session *session);

/* The session of that id in this role, with a reference; a server's once it was shown. */
struct session *session_find(const struct layer_id *id, bool server);

/* Whether messages may go aside. */
bool session_alive(struct session *session);

/* Take it out of the table: it is not found any more. */
void session_close(struct session *session);

/* Client: show the session on its connection and wait for the answer. False when none came. */
bool session_show(struct session *session, uint64_t patience_ms);

/* What notes ask for; false when they make no sense, or ask for what is gone. */
bool session_shown(struct side_link *link, const struct layer_id *id,
		   const struct layer_id *secret);
bool session_good(struct side_link *link, const struct layer_id *id);
void session_closed(struct side_link *link, const struct layer_id *id);
void session_call_over(struct side_link *link, const struct layer_id *id, uint64_t number);

void sessions_link_lost(struct side_link *link);

#endif
