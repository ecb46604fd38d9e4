/* SPDX-License-Identifier: Apache-2.0 */
/* Contexts of the memory transport: what progress does, and the backend itself. */
#include "memory.h"

#include <errno.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <time.h>
#include <unistd.h>

static int context_probe(char *reason, size_t room)
{
	snprintf(reason, room, "runs everywhere, within one process");
	return 0;
}

static _Noreturn void broken(const char *what)
{
	fprintf(stderr, "memory: %s\n", what);
	abort();
}

/* ---- The keeper -------------------------------------------------------- */

static void *keep(void *argument)
{
	const struct timespec rest = {.tv_nsec = 20000};
	struct backend_context *context = argument;

	while (!__atomic_load_n(&context->keeper_ends, __ATOMIC_ACQUIRE)) {
		haul_drive(context->engine);
		nanosleep(&rest, NULL);
	}
	return NULL;
}

static void keeper_stop(struct backend_context *context)
{
	if (!context->config->keeper)
		return;
	__atomic_store_n(&context->keeper_ends, true, __ATOMIC_RELEASE);
	pthread_join(context->keeper, NULL);
}

/* ---- Opening and closing ----------------------------------------------- */

static int context_open(haul_context *engine, const void *config, struct backend_context **out)
{
	struct backend_context *context = calloc(1, sizeof(*context));

	if (!context)
		return -ENOMEM;
	context->engine = engine;
	context->config = config;
	context->random = context->config->seed;
	context->next_due = UINT64_MAX;
	TAILQ_INIT(&context->inbox);
	TAILQ_INIT(&context->pieces);
	TAILQ_INIT(&context->links);
	context->wake = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
	if (context->wake < 0) {
		free(context);
		return haul_fail(engine, -EMFILE,
				 "no descriptor for the context (ulimit -n shows and raises the "
				 "limit)");
	}
	if (context->config->keeper && pthread_create(&context->keeper, NULL, keep, context)) {
		close(context->wake);
		free(context);
		return haul_fail(engine, -EAGAIN, "no thread for the keeper");
	}
	house_lock();
	TAILQ_INSERT_TAIL(&house.contexts, context, all);
	house.counts.contexts++;
	house_unlock();
	*out = context;
	return 0;
}

static void drop_all(struct message_list *list)
{
	struct message *message;

	while ((message = TAILQ_FIRST(list))) {
		TAILQ_REMOVE(list, message, queued);
		message_free(message);
	}
}

static void free_dead(struct backend_context *context)
{
	struct backend_link *link, *next;

	for (link = TAILQ_FIRST(&context->links); link; link = next) {
		next = TAILQ_NEXT(link, all);
		if (link->dead)
			link_free(link);
	}
}

/* Those who wanted in and were not looked at any more. */
static void refuse_all(struct backend_context *context)
{
	struct message *message, *answer;

	TAILQ_FOREACH (message, &context->inbox, queued) {
		answer = message->kind == MESSAGE_CONNECT ? message_new(MESSAGE_REFUSED, 0) : NULL;
		if (!answer)
			continue;
		answer->to = message->from;
		house_post(answer);
	}
}

static void context_close(struct backend_context *context)
{
	struct backend_link *link;

	keeper_stop(context);
	/* The house knows no link of ours any more, and forgets us here: nothing new comes in. */
	house_lock();
	TAILQ_REMOVE(&house.contexts, context, all);
	house.counts.contexts--;
	house_unlock();
	while ((link = TAILQ_FIRST(&context->links)))
		link_free(link);
	refuse_all(context);
	drop_all(&context->inbox);
	drop_all(&context->pieces);
	close(context->wake);
	free(context);
}

static void context_close_in_child(struct backend_context *context)
{
	close(context->wake);
}

/* ---- What arrives ------------------------------------------------------ */

/* With the house's lock held. */
static struct backend_listener *listener_find(struct backend_context *context, uint64_t name)
{
	struct backend_listener *listener;

	TAILQ_FOREACH (listener, &house.listeners, all) {
		if (listener->name == name && listener->context == context)
			return listener;
	}
	return NULL;
}

static void accept_link(struct backend_context *context, const struct message *message)
{
	struct backend_listener *listener;
	struct backend_link *link = NULL;
	struct message *answer;
	char address[64];

	house_lock();
	listener = listener_find(context, message->listener);
	house_unlock();
	answer = message_new(listener ? MESSAGE_WELCOME : MESSAGE_REFUSED, 0);
	if (!answer)
		return;
	answer->to = message->from;
	if (listener)
		link = link_new(context, NULL);
	if (!link) {
		house_post(answer);
		return;
	}
	link->peer = message->from;
	answer->from = link->name;
	house_post(answer); /* before the engine's first message */
	snprintf(address, sizeof(address), "127.0.0.1:%u", (unsigned)(message->from % 60000 + 1));
	link->endpoint = haul_on_accepted(listener->engine, link, address);
	if (!link->endpoint && !link->dead)
		memory_link_ops.disconnect(link, false);
}

static void deliver(struct backend_link *link, const struct message *message)
{
	switch (message->kind) {
	case MESSAGE_WELCOME:
		link->peer = message->from;
		haul_on_connected(link->endpoint);
		break;
	case MESSAGE_REFUSED:
		link_fail(link, -ECONNREFUSED, "nobody listens there");
		break;
	case MESSAGE_CONTROL:
		if (message->push && message->total)
			data_header_came(link, message->push);
		haul_on_control(link->endpoint, message->bytes, message->length);
		break;
	case MESSAGE_CREDIT:
		link->in_flight -= message->length;
		break;
	default:
		link_fail(link, -(int)message->length,
			  message->length ? "the other end is gone" : "the other end was closed");
		break;
	}
}

/* What is due leaves the inbox; the rest tells when to come again. */
static void take_due(struct backend_context *context, struct message_list *due)
{
	struct message *message;
	uint64_t now = haul_clock();

	context->next_due = UINT64_MAX;
	house_lock();
	while ((message = TAILQ_FIRST(&context->inbox))) {
		if (message->due > now) {
			context->next_due = message->due;
			break;
		}
		TAILQ_REMOVE(&context->inbox, message, queued);
		TAILQ_INSERT_TAIL(due, message, queued);
	}
	house_unlock();
}

static uint64_t random_next(struct backend_context *context)
{
	uint64_t word = context->random += UINT64_C(0x9e3779b97f4a7c15);

	word = (word ^ (word >> 30)) * UINT64_C(0xbf58476d1ce4e5b9);
	return word ^ (word >> 31);
}

/* A new piece goes behind all others, or, when they are shuffled, anywhere near the end. */
static void keep_piece(struct backend_context *context, struct message *piece)
{
	struct message *behind = TAILQ_LAST(&context->pieces, message_list);

	if (context->config->shuffle) {
		for (uint64_t back = random_next(context) % 8; behind && back > 0; back--)
			behind = TAILQ_PREV(behind, message_list, queued);
	}
	if (behind)
		TAILQ_INSERT_AFTER(&context->pieces, behind, piece, queued);
	else
		TAILQ_INSERT_HEAD(&context->pieces, piece, queued);
}

static int deliver_pieces(struct backend_context *context)
{
	struct message *piece, *next;
	int done = 0;
	bool held;

	house_lock();
	held = house.held;
	house_unlock();
	for (piece = TAILQ_FIRST(&context->pieces); piece && !held; piece = next) {
		struct backend_link *link = link_find(context, piece->to);

		next = TAILQ_NEXT(piece, queued);
		/* Without shuffling a piece stays behind the messages before it, as on one wire. */
		TAILQ_REMOVE(&context->pieces, piece, queued);
		if (!link || !link->endpoint || link->lost || link->error) {
			message_free(piece);
			done++;
		} else if (data_deliver(link, piece)) {
			done++;
		} else if (next) {
			TAILQ_INSERT_BEFORE(next, piece, queued);
		} else {
			TAILQ_INSERT_TAIL(&context->pieces, piece, queued);
		}
	}
	return done;
}

static int deliver_due(struct backend_context *context)
{
	struct message_list due = TAILQ_HEAD_INITIALIZER(due);
	struct message *message;
	int done = 0;

	take_due(context, &due);
	while ((message = TAILQ_FIRST(&due))) {
		struct backend_link *link;

		TAILQ_REMOVE(&due, message, queued);
		done++;
		if (message->kind == MESSAGE_PIECE) {
			keep_piece(context, message);
			if (!context->config->shuffle)
				deliver_pieces(context);
			continue;
		}
		link = link_find(context, message->to);
		if (message->kind == MESSAGE_CONNECT)
			accept_link(context, message);
		else if (link && link->endpoint && !link->lost && !link->error)
			deliver(link, message);
		message_free(message);
	}
	return done + deliver_pieces(context);
}

/* ---- Progress ---------------------------------------------------------- */

static int look_after(struct backend_context *context)
{
	struct backend_link *link;
	int done = 0;

	TAILQ_FOREACH (link, &context->links, all) {
		struct haul_push *push;

		while (!link->dead && (push = link->ending)) {
			link->ending = push->next;
			haul_on_pushed(link->endpoint, push);
			done++;
		}
		if (!link->dead)
			link_pump(link);
		if (!link->dead && link->error && !link->lost) {
			link->lost = true;
			haul_on_lost(link->endpoint, link->error, link->why);
			done++;
		}
	}
	return done;
}

static int context_progress(struct backend_context *context)
{
	uint64_t value;
	ssize_t ignored;
	int done;

	if (__atomic_load_n(&context->waits, __ATOMIC_ACQUIRE))
		broken("progress while a thread is in wait");
	ignored = read(context->wake, &value, sizeof(value));
	(void)ignored;
	context->again = false;
	done = deliver_due(context);
	done += look_after(context);
	free_dead(context);
	return done;
}

static void context_wait(struct backend_context *context, int timeout_ms)
{
	struct pollfd list = {.fd = context->wake, .events = POLLIN};

	if (__atomic_exchange_n(&context->waits, true, __ATOMIC_ACQ_REL))
		broken("two threads in wait");
	poll(&list, 1, timeout_ms);
	__atomic_store_n(&context->waits, false, __ATOMIC_RELEASE);
}

static void context_wake(struct backend_context *context)
{
	uint64_t one = 1;
	ssize_t ignored = write(context->wake, &one, sizeof(one));

	(void)ignored;
}

static int context_event_fd(struct backend_context *context)
{
	return context->wake;
}

static uint64_t context_next_timer(struct backend_context *context)
{
	uint64_t leaving =
		haul_clock() < context->leaving_until ? context->leaving_until : UINT64_MAX;

	if (context->again)
		return 0;
	return leaving < context->next_due ? leaving : context->next_due;
}

/* ---- The backend ------------------------------------------------------- */

#define AT(field) offsetof(struct memory_config, field)

static const struct haul_option memory_options[] = {
	{{"piece", "64KiB", "1..1GiB", "tensors are cut into pieces of this size"},
	 HAUL_OPTION_BYTES,
	 AT(piece),
	 .low = 1,
	 .high = 1 << 30},
	{{"window", "1MiB", "1..1GiB", "bytes that may be under way on a link"},
	 HAUL_OPTION_BYTES,
	 AT(window),
	 .low = 1,
	 .high = 1 << 30},
	{{"delay_us", "0", "0..1000000", "how long everything is under way"},
	 HAUL_OPTION_NUMBER,
	 AT(delay_us),
	 .high = 1000000},
	{{"descriptor", "0", "0..64", "bytes that describe a slot"},
	 HAUL_OPTION_NUMBER,
	 AT(descriptor),
	 .high = HAUL_DESCRIPTOR_MAX},
	{{"seed", "1", "0..18446744073709551614", "of what is random"},
	 HAUL_OPTION_NUMBER,
	 AT(seed),
	 .high = UINT64_MAX - 1},
	{{"shuffle", "no", "yes or no", "pieces arrive in any order"},
	 HAUL_OPTION_SWITCH,
	 AT(shuffle)},
	{{"sticky", "no", "yes or no", "slots can't be taken back at once"},
	 HAUL_OPTION_SWITCH,
	 AT(sticky)},
	{{"slow_end", "no", "yes or no", "pushes are let go of a little later"},
	 HAUL_OPTION_SWITCH,
	 AT(slow_end)},
	{{"keeper", "no", "yes or no",
	  "a thread of the backend's drives too, and links leave slowly"},
	 HAUL_OPTION_SWITCH,
	 AT(keeper)},
	{{NULL}},
};

static const struct haul_context_ops context_ops = {
	.probe = context_probe,
	.open = context_open,
	.close = context_close,
	.close_in_child = context_close_in_child,
	.progress = context_progress,
	.wait = context_wait,
	.wake = context_wake,
	.event_fd = context_event_fd,
	.next_timer = context_next_timer,
};

extern const struct haul_backend haul_backend_memory;

__attribute__((visibility("default"))) const struct haul_backend haul_backend_memory = {
	.version = HAUL_BACKEND_VERSION,
	.name = "memory",
	.summary = "queues within one process, for tests",
	.options = memory_options,
	.config_size = sizeof(struct memory_config),
	.context = &context_ops,
	.link = &memory_link_ops,
	.data = &memory_data_ops,
};
