/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The backend's threads, and what they leave for the owner. A thread is in gRPC's completion queue
 * all the time: there gRPC reads and writes the sockets, also while the owner computes.
 */
#include <errno.h>
#include <signal.h>
#include <stdlib.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include "rpc.h"

int mailbox_open(struct backend_context *context)
{
	struct mailbox *mail = &context->mail;

	pthread_mutex_init(&mail->lock, NULL);
	pthread_cond_init(&mail->changed, NULL);
	STAILQ_INIT(&mail->events);
	mail->fd = haul_descriptor(eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK));
	return mail->fd < 0 ? -errno : 0;
}

void mailbox_close(struct backend_context *context)
{
	struct mailbox *mail = &context->mail;

	if (mail->fd >= 0)
		close(mail->fd);
	pthread_cond_destroy(&mail->changed);
	pthread_mutex_destroy(&mail->lock);
}

/* ---- Waking the owner --------------------------------------------------- */

void mailbox_wake(struct mailbox *mail)
{
	uint64_t value = 1;
	ssize_t ignored = write(mail->fd, &value, sizeof(value));

	(void)ignored;
}

/* Whether the owner has to look. With the mailbox's lock. */
static bool pressing(const struct mailbox *mail)
{
	return mail->urgent || mail->released_any || (mail->hungry && !STAILQ_EMPTY(&mail->events));
}

/* With the mailbox's lock. */
static void signal_owner(struct mailbox *mail)
{
	if (!mail->armed || !pressing(mail))
		return;
	mail->armed = false;
	mailbox_wake(mail);
}

void mailbox_changed(struct mailbox *mail)
{
	mail->changes++;
	pthread_cond_broadcast(&mail->changed);
	signal_owner(mail);
}

void mailbox_hungry(struct backend_context *context, bool hungry)
{
	struct mailbox *mail = &context->mail;

	pthread_mutex_lock(&mail->lock);
	mail->hungry = hungry;
	signal_owner(mail);
	pthread_mutex_unlock(&mail->lock);
}

bool mailbox_arm(struct backend_context *context)
{
	struct mailbox *mail = &context->mail;

	pthread_mutex_lock(&mail->lock);
	mail->armed = !pressing(mail);
	pthread_mutex_unlock(&mail->lock);
	return mail->armed;
}

/* ---- The threads -------------------------------------------------------- */

static bool is_of_call(const struct event *event)
{
	return event->kind != EVENT_CALLED && event->kind != EVENT_STOPPED &&
	       event->kind != EVENT_SETTLED;
}

/* Of a call that nobody wants any more. With the mailbox's lock. */
static bool is_dropped(const struct event *event)
{
	return is_of_call(event) && ((const struct rpc_call *)event->owner)->dropped;
}

static void deliver(struct backend_context *context, struct event *event, bool ok)
{
	struct mailbox *mail = &context->mail;
	grpc_slice_buffer after;
	bool again = false;

	grpc_slice_buffer_init(&after);
	pthread_mutex_lock(&mail->lock);
	if (event->kind == EVENT_SENT && ok && call_sent(event->owner, &after)) {
		/* The event is the next message's now: the owner does not see it before. */
		pthread_mutex_unlock(&mail->lock);
		ok = call_send_after(event->owner, &after);
		grpc_slice_buffer_destroy(&after);
		if (ok)
			return;
		pthread_mutex_lock(&mail->lock);
	}
	if (event->kind == EVENT_GOT)
		again = call_got(event->owner, ok);
	else
		event->ok = ok;
	if (!event->queued) {
		event->queued = true;
		STAILQ_INSERT_TAIL(&mail->events, event, next);
	}
	if (is_dropped(event))
		mailbox_changed(mail);
	if (event->kind != EVENT_SENT || !ok || is_dropped(event))
		mail->urgent = true;
	signal_owner(mail);
	pthread_mutex_unlock(&mail->lock);
	if (again)
		call_read(event->owner);
}

static void *serve(void *argument)
{
	struct backend_context *context = argument;

	for (;;) {
		grpc_event event = grpc_completion_queue_next(
			context->queue, gpr_inf_future(GPR_CLOCK_REALTIME), NULL);

		if (event.type == GRPC_QUEUE_SHUTDOWN)
			return NULL;
		if (event.type == GRPC_OP_COMPLETE)
			deliver(context, event.tag, event.success);
	}
}

int mailbox_start(struct backend_context *context)
{
	unsigned wanted = (unsigned)context->config->threads;
	sigset_t all, before;
	int error = 0;

	context->threads = calloc(wanted, sizeof(*context->threads));
	if (!context->threads)
		return -ENOMEM;
	/* The program's signal handlers run on its own threads. */
	sigfillset(&all);
	pthread_sigmask(SIG_SETMASK, &all, &before);
	while (!error && context->thread_count < wanted) {
		error = pthread_create(&context->threads[context->thread_count], NULL, serve,
				       context);
		context->thread_count += !error;
	}
	pthread_sigmask(SIG_SETMASK, &before, NULL);
	if (error)
		return haul_fail(context->engine, -error, "can't start %u threads (threads): %s",
				 wanted, haul_strerror(error));
	return 0;
}

void mailbox_stop(struct backend_context *context)
{
	while (context->thread_count)
		pthread_join(context->threads[--context->thread_count], NULL);
	free(context->threads);
	context->threads = NULL;
}

/* ---- The owner ---------------------------------------------------------- */

static bool is_any(const struct event *event)
{
	(void)event;
	return true;
}

static bool is_room(const struct event *event)
{
	return event->kind == EVENT_SENT && event->ok;
}

static struct event *take(struct mailbox *mail, bool (*wanted)(const struct event *event))
{
	struct event *event;

	pthread_mutex_lock(&mail->lock);
	STAILQ_FOREACH (event, &mail->events, next) {
		if (wanted(event))
			break;
	}
	if (event) {
		STAILQ_REMOVE(&mail->events, event, event, next);
		event->queued = false;
	} else if (wanted == is_any) {
		mail->urgent = false;
	}
	pthread_mutex_unlock(&mail->lock);
	return event;
}

int mailbox_look(struct backend_context *context)
{
	struct event *event;
	int done = 0;

	/* What comes meanwhile waits for the next time. */
	while (done < 256 && (event = take(&context->mail, is_any))) {
		if (is_of_call(event))
			call_event(event);
		else if (event->kind == EVENT_SETTLED)
			connection_settled(event->owner);
		else
			server_event(event);
		done++;
	}
	return done;
}

void mailbox_look_for_room(struct backend_context *context)
{
	struct event *event;

	while ((event = take(&context->mail, is_room)))
		call_event(event);
}

/* A call keeps the slices of a message that it could not send until it is freed. */
static void free_dropped(struct backend_context *context)
{
	struct rpc_call *call, *next;
	struct event *event;

	while ((event = take(&context->mail, is_dropped)))
		call_event(event);
	for (call = TAILQ_FIRST(&context->dropped); call; call = next) {
		next = TAILQ_NEXT(call, all);
		call_reap(call);
	}
}

void mailbox_wait(struct backend_context *context, const unsigned *held)
{
	struct mailbox *mail = &context->mail;

	pthread_mutex_lock(&mail->lock);
	while (*held) {
		uint64_t seen = mail->changes;

		pthread_mutex_unlock(&mail->lock);
		free_dropped(context);
		pthread_mutex_lock(&mail->lock);
		while (*held && mail->changes == seen)
			pthread_cond_wait(&mail->changed, &mail->lock);
	}
	pthread_mutex_unlock(&mail->lock);
}
