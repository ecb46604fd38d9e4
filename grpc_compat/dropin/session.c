/* SPDX-License-Identifier: Apache-2.0 */
#include "session.h"

#include <openssl/crypto.h>
#include <stdlib.h>
#include <time.h>

#include "call.h"

#define BUCKETS 256
/*
 * Sessions that were asked for, and nobody has come for yet. The oldest makes room: who means it
 * comes within a round trip, so that those who only ask keep nobody out.
 */
#define UNSHOWN_MAX 4096
#define SHOWN_MAX 16384 /* of one connection: channels of a client's process */
#define UNSHOWN_NS (UINT64_C(30) * 1000000000)

TAILQ_HEAD(session_list, session);

pthread_mutex_t session_lock = PTHREAD_MUTEX_INITIALIZER;
static pthread_cond_t good = PTHREAD_COND_INITIALIZER;
static struct session_list table[BUCKETS];
static struct session_list unshown = TAILQ_HEAD_INITIALIZER(unshown); /* oldest first */
static unsigned unshown_count;
static pthread_once_t once = PTHREAD_ONCE_INIT;

static void make_table(void)
{
	for (unsigned i = 0; i < BUCKETS; i++)
		TAILQ_INIT(&table[i]);
}

/* An id is random: any of its bytes will do. */
static struct session_list *bucket_of(const struct layer_id *id)
{
	return &table[id->bytes[0] % BUCKETS];
}

void session_get(struct session *session)
{
	atomic_fetch_add(&session->references, 1);
}

void session_put(struct session *session)
{
	struct wire_note note = {.kind = WIRE_NOTE_CLOSE, .session = session->id};

	if (atomic_fetch_sub(&session->references, 1) > 1)
		return;
	if (session->link) {
		/* Only now: the server must know it for as long as a call of it may be on its way.
		 */
		if (!session->server && !atomic_load(&session->link->lost))
			side_note(session->link, &note);
		side_link_put(session->link);
	}
	free(session);
}

/* In the table it is where the lists say: not shown, or found by its id. The lock is held. */
static bool is_unshown(const struct session *session)
{
	return session->server && !session->link;
}

static void take_out(struct session *session)
{
	if (atomic_exchange(&session->closed, true))
		return;
	if (is_unshown(session)) {
		TAILQ_REMOVE(&unshown, session, entry);
		unshown_count--;
	} else {
		TAILQ_REMOVE(bucket_of(&session->id), session, entry);
		session->link->sessions -= session->server;
	}
}

static void forget_old(uint64_t now)
{
	struct session *session;

	while ((session = TAILQ_FIRST(&unshown)) &&
	       (session->expires < now || unshown_count >= UNSHOWN_MAX)) {
		take_out(session);
		session_put(session);
	}
}

struct session *session_new(const struct layer_id *id, bool server,
			    const struct session_terms *terms, struct side_link *link)
{
	struct session *session = calloc(1, sizeof(*session));

	if (!session)
		return NULL;
	pthread_once(&once, make_table);
	session->id = *id;
	session->server = server;
	session->terms = *terms;
	session->link = link;
	session->expires = haul_clock() + UNSHOWN_NS;
	atomic_init(&session->references, 2);
	TAILQ_INIT(&session->calls);
	pthread_mutex_lock(&session_lock);
	if (!server) {
		TAILQ_INSERT_TAIL(bucket_of(id), session, entry);
	} else {
		forget_old(haul_clock());
		TAILQ_INSERT_TAIL(&unshown, session, entry);
		unshown_count++;
	}
	pthread_mutex_unlock(&session_lock);
	return session;
}

static struct session *find(const struct layer_id *id, bool server)
{
	struct session *session;

	pthread_once(&once, make_table);
	TAILQ_FOREACH (session, bucket_of(id), entry) {
		if (session->server == server && layer_id_equal(&session->id, id))
			return session;
	}
	return NULL;
}

struct session *session_find(const struct layer_id *id, bool server)
{
	struct session *session;

	pthread_mutex_lock(&session_lock);
	session = find(id, server);
	if (session)
		session_get(session);
	pthread_mutex_unlock(&session_lock);
	return session;
}

bool session_alive(struct session *session)
{
	return !atomic_load_explicit(&session->closed, memory_order_relaxed) &&
	       !atomic_load_explicit(&session->link->lost, memory_order_relaxed);
}

void session_close(struct session *session)
{
	bool was_open;

	pthread_mutex_lock(&session_lock);
	was_open = !atomic_load(&session->closed);
	take_out(session);
	pthread_mutex_unlock(&session_lock);
	if (was_open)
		session_put(session);
}

bool session_show(struct session *session, uint64_t patience_ms)
{
	struct wire_note note = {
		.kind = WIRE_NOTE_SHOW, .session = session->id, .secret = session->terms.secret};
	struct timespec until;
	int error = 0;
	bool is_good;

	clock_gettime(CLOCK_REALTIME, &until);
	until.tv_sec += (time_t)(patience_ms / 1000);
	side_note(session->link, &note);
	pthread_mutex_lock(&session_lock);
	while (!session->good && session_alive(session) && !error)
		error = pthread_cond_timedwait(&good, &session_lock, &until);
	is_good = session->good && session_alive(session);
	pthread_mutex_unlock(&session_lock);
	return is_good;
}

/* ---- Notes --------------------------------------------------------------- */

bool session_shown(struct side_link *link, const struct layer_id *id, const struct layer_id *secret)
{
	struct wire_note note = {.kind = WIRE_NOTE_GOOD, .session = *id};
	struct session *session;

	pthread_mutex_lock(&session_lock);
	TAILQ_FOREACH (session, &unshown, entry) {
		if (layer_id_equal(&session->id, id) &&
		    !CRYPTO_memcmp(&session->terms.secret, secret, sizeof(*secret)))
			break;
	}
	if (link->sessions >= SHOWN_MAX)
		session = NULL;
	if (session) {
		link->sessions++;
		TAILQ_REMOVE(&unshown, session, entry);
		unshown_count--;
		side_link_get(link);
		session->link = link;
		TAILQ_INSERT_TAIL(bucket_of(id), session, entry);
	}
	pthread_mutex_unlock(&session_lock);
	if (session)
		side_note(link, &note);
	return session;
}

bool session_good(struct side_link *link, const struct layer_id *id)
{
	struct session *session;

	pthread_mutex_lock(&session_lock);
	session = find(id, false);
	if (session && session->link == link)
		session->good = true;
	pthread_cond_broadcast(&good);
	pthread_mutex_unlock(&session_lock);
	return true;
}

/* The session of that id on that connection, with a reference. */
static struct session *find_on(struct side_link *link, const struct layer_id *id)
{
	struct session *session = session_find(id, link->accepted);

	if (session && session->link != link) {
		session_put(session);
		return NULL;
	}
	return session;
}

void session_closed(struct side_link *link, const struct layer_id *id)
{
	struct session *session = find_on(link, id);

	if (!session)
		return;
	session_close(session);
	session_put(session);
}

void session_call_over(struct side_link *link, const struct layer_id *id, uint64_t number)
{
	struct session *session = find_on(link, id);
	struct call *call;

	if (!session)
		return;
	pthread_mutex_lock(&session_lock);
	TAILQ_FOREACH (call, &session->calls, entry) {
		if (call->number == number)
			break;
	}
	if (call)
		call_get(call);
	else if (session->server)
		session->early_over[session->early_count++ % SESSION_EARLY_OVER] = number + 1;
	pthread_mutex_unlock(&session_lock);
	if (call) {
		call_over(call);
		call_put(call);
	}
	session_put(session);
}

void sessions_link_lost(struct side_link *link)
{
	struct session_list gone = TAILQ_HEAD_INITIALIZER(gone);
	struct session *session, *next;

	pthread_once(&once, make_table);
	pthread_mutex_lock(&session_lock);
	for (unsigned i = 0; i < BUCKETS; i++) {
		for (session = TAILQ_FIRST(&table[i]); session; session = next) {
			next = TAILQ_NEXT(session, entry);
			if (session->link != link)
				continue;
			take_out(session);
			TAILQ_INSERT_TAIL(&gone, session, entry);
		}
	}
	pthread_cond_broadcast(&good);
	pthread_mutex_unlock(&session_lock);
	while ((session = TAILQ_FIRST(&gone))) {
		TAILQ_REMOVE(&gone, session, entry);
		session_put(session);
	}
}
