/* SPDX-License-Identifier: Apache-2.0 */
#include "side.h"

#include <errno.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>

#include "session.h"

#define NOTES_POSTED 8
#define SHOW_MS 10000  /* how long an accepted connection may stay without a session */
#define UNSHOWN_MAX 64 /* such connections; the oldest makes room for the next */
#define NOTE_MS 30000  /* how long a note may stay with a peer that doesn't take it */
#define POLL_MAX 64

TAILQ_HEAD(link_list, side_link);

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER; /* guards what stands here */
static struct link_list links = TAILQ_HEAD_INITIALIZER(links);
static struct link_list strangers = TAILQ_HEAD_INITIALIZER(strangers); /* accepted, not shown */
static unsigned stranger_count;
static haul_context *context;
static struct layer_id process;
static haul_listener *listener;
static char listen_address[WIRE_ADDRESS_ROOM];

haul_context *side_context(void)
{
	return context;
}

const struct layer_id *side_process(void)
{
	return &process;
}

void side_transport(char *name)
{
	memset(name, 0, WIRE_NAME_ROOM);
	snprintf(name, WIRE_NAME_ROOM, "%.*s", (int)strcspn(haul_spec(context), ","),
		 haul_spec(context));
}

/* ---- Connections --------------------------------------------------------- */

void side_link_get(struct side_link *link)
{
	atomic_fetch_add(&link->references, 1);
}

void side_link_put(struct side_link *link)
{
	if (atomic_fetch_sub(&link->references, 1) > 1)
		return;
	pthread_rwlock_destroy(&link->endpoint_lock);
	free(link);
}

/* The lock is held. */
static void take_out(struct side_link *link)
{
	bool stranger = link->accepted && !link->shown;

	TAILQ_REMOVE(stranger ? &strangers : &links, link, entry);
	stranger_count -= stranger;
}

/* With one reference, for the list that it is in. The lock is held. */
static struct side_link *link_new(haul_endpoint *endpoint, bool accepted)
{
	struct side_link *link = calloc(1, sizeof(*link));

	if (!link)
		return NULL;
	pthread_rwlock_init(&link->endpoint_lock, NULL);
	link->endpoint = endpoint;
	snprintf(link->address, sizeof(link->address), "%s", haul_endpoint_address(endpoint));
	link->accepted = accepted;
	atomic_init(&link->references, 1);
	TAILQ_INSERT_TAIL(accepted ? &strangers : &links, link, entry);
	stranger_count += accepted;
	return link;
}

static void disconnect(struct side_link *link)
{
	pthread_rwlock_wrlock(&link->endpoint_lock);
	haul_disconnect(link->endpoint);
	link->endpoint = NULL;
	pthread_rwlock_unlock(&link->endpoint_lock);
}

int side_send(struct side_link *link, struct haul_key key, const DLTensor *tensor,
	      haul_region *region, const struct haul_op *op)
{
	int error = -ENOTCONN;

	pthread_rwlock_rdlock(&link->endpoint_lock);
	if (link->endpoint)
		error = haul_send(link->endpoint, key, tensor, region, op);
	pthread_rwlock_unlock(&link->endpoint_lock);
	return error;
}

int side_recv(struct side_link *link, struct haul_key key, DLTensor *tensor, haul_region *region,
	      const struct haul_op *op)
{
	int error = -ENOTCONN;

	pthread_rwlock_rdlock(&link->endpoint_lock);
	if (link->endpoint)
		error = haul_recv(link->endpoint, key, tensor, region, op);
	pthread_rwlock_unlock(&link->endpoint_lock);
	return error;
}

/* Nothing new is started on it; its operations end with -ECANCELED, if not otherwise before. */
static void link_lost(struct side_link *link, const char *why)
{
	bool first;

	pthread_mutex_lock(&lock);
	first = !atomic_exchange(&link->lost, true);
	if (first)
		take_out(link);
	pthread_mutex_unlock(&lock);
	if (!first)
		return;
	layer_log(LAYER_LOG_INFO, "side connection with %s ended: %s", link->address, why);
	sessions_link_lost(link);
	disconnect(link);
	side_link_put(link);
}

static struct side_link *find_endpoint(const struct link_list *list, const haul_endpoint *endpoint)
{
	struct side_link *link;

	TAILQ_FOREACH (link, list, entry) {
		if (link->endpoint == endpoint)
			break;
	}
	return link;
}

static void endpoint_lost(haul_endpoint *endpoint, int result)
{
	struct side_link *link;

	pthread_mutex_lock(&lock);
	link = find_endpoint(&links, endpoint);
	if (!link)
		link = find_endpoint(&strangers, endpoint);
	if (link)
		side_link_get(link);
	pthread_mutex_unlock(&lock);
	if (!link)
		return;
	link_lost(link, result ? haul_strerror(result) : "the peer closed it");
	side_link_put(link);
}

/* ---- Notes --------------------------------------------------------------- */

/* A note on its way, in or out; holds a reference on its connection. */
struct note_operation {
	struct side_operation operation;
	struct side_link *link;
	uint8_t bytes[WIRE_NOTE_BYTES];
};

static struct note_operation *note_new(struct side_link *link)
{
	struct note_operation *note = calloc(1, sizeof(*note));

	if (note) {
		note->link = link;
		side_link_get(link);
	}
	return note;
}

static void note_free(struct note_operation *note)
{
	side_link_put(note->link);
	free(note);
}

static void note_sent(struct side_operation *operation, const struct haul_completion *completion)
{
	struct note_operation *note = (struct note_operation *)operation;

	/* Or else they would pile up with a peer that reads none. */
	if (completion->result == -ETIMEDOUT)
		link_lost(note->link, "it takes no notes");
	note_free(note);
}

void side_note(struct side_link *link, const struct wire_note *note)
{
	struct note_operation *sent = note_new(link);
	struct haul_op op = HAUL_OP_INIT;
	const int64_t length = WIRE_NOTE_BYTES;
	DLTensor tensor;

	if (!sent)
		return;
	sent->operation.done = note_sent;
	wire_put_note(note, sent->bytes);
	tensor = side_tensor(sent->bytes, &length);
	op.cookie = sent;
	op.timeout_ms = NOTE_MS;
	if (side_send(link, haul_key(WIRE_NOTE_KEY), &tensor, NULL, &op))
		note_free(sent);
}

static int note_post(struct note_operation *note)
{
	struct haul_op op = HAUL_OP_INIT;
	const int64_t length = WIRE_NOTE_BYTES;
	DLTensor tensor = side_tensor(note->bytes, &length);

	op.cookie = note;
	op.timeout_ms = note->link->accepted && !note->link->shown ? SHOW_MS : 0;
	return side_recv(note->link, haul_key(WIRE_NOTE_KEY), &tensor, NULL, &op);
}

static void note_received(struct side_operation *operation,
			  const struct haul_completion *completion);

static int notes_post(struct side_link *link, unsigned count)
{
	for (unsigned i = 0; i < count; i++) {
		struct note_operation *note = note_new(link);
		int error;

		if (!note)
			return -ENOMEM;
		note->operation.done = note_received;
		error = note_post(note);
		if (error) {
			note_free(note);
			return error;
		}
	}
	return 0;
}

/* It is no stranger any more. False when it was dropped meanwhile. */
static bool accept_link(struct side_link *link)
{
	bool alive;

	pthread_mutex_lock(&lock);
	alive = !atomic_load(&link->lost);
	if (alive) {
		take_out(link);
		link->shown = true;
		TAILQ_INSERT_TAIL(&links, link, entry);
	}
	pthread_mutex_unlock(&lock);
	return alive;
}

/* True when the note was one that its sender may send. */
static bool note_taken(struct side_link *link, const struct wire_note *note)
{
	if (note->kind == WIRE_NOTE_OVER) {
		session_call_over(link, &note->session, note->call);
		return !link->accepted || link->shown;
	}
	if (!link->accepted)
		return note->kind == WIRE_NOTE_GOOD && session_good(link, &note->session);
	switch (note->kind) {
	case WIRE_NOTE_SHOW:
		/* Others' sessions live on it: one that is too late, or not ours, harms only
		 * itself. */
		if (!session_shown(link, &note->session, &note->secret))
			return link->shown;
		return link->shown || (accept_link(link) && !notes_post(link, NOTES_POSTED - 1));
	case WIRE_NOTE_CLOSE:
		session_closed(link, &note->session);
		return link->shown;
	case WIRE_NOTE_OVER:
	case WIRE_NOTE_GOOD:
		break;
	}
	return false;
}

static void note_received(struct side_operation *operation,
			  const struct haul_completion *completion)
{
	struct note_operation *received = (struct note_operation *)operation;
	struct wire_note note;

	if (completion->result) {
		link_lost(received->link, haul_strerror(completion->result));
	} else if (!wire_get_note(received->bytes, completion->tensor.bytes, &note) ||
		   !note_taken(received->link, &note)) {
		layer_log(LAYER_LOG_WARNING, "side connection with %s dropped: no session of ours",
			  received->link->address);
		link_lost(received->link, "it is not ours");
	} else if (!note_post(received)) {
		return;
	}
	note_free(received);
}

/* ---- The thread ---------------------------------------------------------- */

static void accepted(haul_endpoint *endpoint)
{
	struct side_link *link, *oldest = NULL;

	pthread_mutex_lock(&lock);
	if (stranger_count >= UNSHOWN_MAX) {
		oldest = TAILQ_FIRST(&strangers);
		side_link_get(oldest);
	}
	link = link_new(endpoint, true);
	pthread_mutex_unlock(&lock);
	if (oldest) {
		link_lost(oldest, "too many connections show no session");
		side_link_put(oldest);
	}
	if (!link) {
		haul_disconnect(endpoint);
		return;
	}
	layer_log(LAYER_LOG_DEBUG, "side connection from %s", link->address);
	if (notes_post(link, 1))
		link_lost(link, "it ended at once");
}

static void dispatch(const struct haul_completion *completion)
{
	struct side_operation *operation = completion->cookie;

	if (completion->event == HAUL_ACCEPTED)
		accepted(completion->endpoint);
	else if (completion->event == HAUL_LOST)
		endpoint_lost(completion->endpoint, completion->result);
	else
		operation->done(operation, completion);
}

static void *run(void *unused)
{
	struct haul_completion completions[POLL_MAX];
	int count;

	while ((count = haul_poll(context, completions, POLL_MAX, -1)) >= 0) {
		for (int i = 0; i < count; i++)
			dispatch(&completions[i]);
	}
	layer_fail("the side path stopped: %s", haul_strerror(count));
	return NULL;
}

static int start_thread(void)
{
	pthread_t thread;
	sigset_t all, old;
	int error;

	sigfillset(&all);
	pthread_sigmask(SIG_SETMASK, &all, &old);
	error = -pthread_create(&thread, NULL, run, NULL);
	pthread_sigmask(SIG_SETMASK, &old, NULL);
	if (!error) {
		pthread_setname_np(thread, "tensorhaul-grpc");
		pthread_detach(thread);
	}
	return error;
}

int side_open(char *why, size_t room)
{
	int error = 0;

	pthread_mutex_lock(&lock);
	if (!context) {
		error = haul_random(&process, sizeof(process));
		if (!error)
			error = haul_open(layer_settings()->spec, &context);
		if (error) {
			snprintf(why, room, "%s", haul_detail(NULL));
		} else {
			error = start_thread();
			if (error) {
				snprintf(why, room, "no thread: %s", haul_strerror(error));
				haul_close(context);
				context = NULL;
			}
		}
	}
	pthread_mutex_unlock(&lock);
	return error;
}

int side_listen(char *address, char *why, size_t room)
{
	const char *wish = layer_settings()->listen;
	int error = 0;

	pthread_mutex_lock(&lock);
	if (!listener) {
		error = haul_listen(context, wish, NULL, &listener);
		if (error)
			snprintf(why, room, "%s", haul_detail(context));
	}
	if (!error) {
		const char *bound = haul_listener_address(listener);

		snprintf(listen_address, sizeof(listen_address), "%s",
			 *wish == '*' ? strrchr(bound, ':') : bound);
		memset(address, 0, WIRE_ADDRESS_ROOM);
		memcpy(address, listen_address, strlen(listen_address));
	}
	pthread_mutex_unlock(&lock);
	return error;
}

/* ---- Connecting ---------------------------------------------------------- */

/* On the stack of the thread that waits. */
struct connecting {
	struct side_operation operation;
	struct layer_id process; /* the server's */
	const char *target;
	pthread_cond_t done;
	bool ended;
	int result;
	haul_endpoint *endpoint;
	TAILQ_ENTRY(connecting) entry;
};

static TAILQ_HEAD(, connecting) connects = TAILQ_HEAD_INITIALIZER(connects);
static pthread_cond_t connect_ended = PTHREAD_COND_INITIALIZER;

static bool is_connecting(const struct layer_id *server, const char *target)
{
	struct connecting *connecting;

	TAILQ_FOREACH (connecting, &connects, entry) {
		if (layer_id_equal(&connecting->process, server) &&
		    !strcmp(connecting->target, target))
			return true;
	}
	return false;
}

static void connected(struct side_operation *operation, const struct haul_completion *completion)
{
	struct connecting *connecting = (struct connecting *)operation;

	pthread_mutex_lock(&lock);
	connecting->ended = true;
	connecting->result = completion->result;
	connecting->endpoint = completion->endpoint;
	pthread_cond_signal(&connecting->done);
	pthread_mutex_unlock(&lock);
}

/* The lock is held, and given up while the transport connects (its option connect_ms bounds that).
 */
static int make_link(const struct layer_id *server, const char *address, struct side_link **link)
{
	struct connecting connecting = {
		.operation.done = connected, .process = *server, .target = address};
	int error;

	pthread_cond_init(&connecting.done, NULL);
	TAILQ_INSERT_TAIL(&connects, &connecting, entry);
	pthread_mutex_unlock(&lock);
	error = haul_connect(context, address, &connecting);
	pthread_mutex_lock(&lock);
	while (!error && !connecting.ended)
		pthread_cond_wait(&connecting.done, &lock);
	pthread_cond_destroy(&connecting.done);
	TAILQ_REMOVE(&connects, &connecting, entry);
	pthread_cond_broadcast(&connect_ended);
	if (!error)
		error = connecting.result;
	if (error)
		return error;
	*link = link_new(connecting.endpoint, false);
	if (!*link) {
		haul_disconnect(connecting.endpoint);
		return -ENOMEM;
	}
	(*link)->process = *server;
	snprintf((*link)->target, sizeof((*link)->target), "%s", address);
	return 0;
}

static struct side_link *find_link(const struct layer_id *server, const char *target)
{
	struct side_link *link;

	TAILQ_FOREACH (link, &links, entry) {
		if (!link->accepted && layer_id_equal(&link->process, server) &&
		    !strcmp(link->target, target))
			return link;
	}
	return NULL;
}

int side_connect(const struct layer_id *server, const char *address, struct side_link **out)
{
	struct side_link *link;
	bool fresh = false;
	int error = 0;

	pthread_mutex_lock(&lock);
	while (!(link = find_link(server, address)) && is_connecting(server, address))
		pthread_cond_wait(&connect_ended, &lock);
	if (!link) {
		error = make_link(server, address, &link);
		fresh = !error;
	}
	if (!error)
		side_link_get(link);
	pthread_mutex_unlock(&lock);
	if (error)
		return error;
	if (fresh) {
		error = notes_post(link, NOTES_POSTED);
		if (error) {
			link_lost(link, haul_strerror(error));
			side_link_put(link);
			return error;
		}
	}
	*out = link;
	return 0;
}
