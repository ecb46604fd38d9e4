/* SPDX-License-Identifier: Apache-2.0 */
/* What drives a context: progress, waiting, handing out completions, the event descriptor. */
#include <errno.h>
#include <limits.h>
#include <signal.h>
#include <stdlib.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <sys/timerfd.h>
#include <unistd.h>

#include "checksum.h"
#include "engine.h"

#define NS_PER_MS UINT64_C(1000000)

/* ---- Progress ---------------------------------------------------------- */

void engine_flush(haul_context *context)
{
	haul_endpoint *endpoint;

	while ((endpoint = TAILQ_FIRST(&context->dirty))) {
		TAILQ_REMOVE(&context->dirty, endpoint, dirty_entry);
		endpoint->dirty = false;
		if (endpoint->link)
			context->backend->link->flush(endpoint->link);
	}
}

static int run_deadlines(haul_context *context)
{
	struct deadline *first = deadlines_first(&context->deadlines);
	uint64_t now;
	int done = 0;

	if (!first)
		return 0;
	now = haul_now(context);
	while (first && first->at <= now) {
		struct timer *timer = container_of(first, struct timer, deadline);

		deadlines_clear(&context->deadlines, first);
		if (timer->kind == TIMER_OPERATION)
			operation_cancel(container_of(timer, struct operation, timer), -ETIMEDOUT);
		else
			handshake_expired(container_of(timer, haul_endpoint, timer));
		done++;
		first = deadlines_first(&context->deadlines);
	}
	return done;
}

/* One slice of one checksum; those that wait take turns. */
static int run_digests(haul_context *context)
{
	struct operation *operation = TAILQ_FIRST(&context->digests);
	uint64_t left, slice;

	if (!operation)
		return 0;
	left = operation->tensor.bytes - operation->digested;
	slice = left < DIGEST_SLICE ? left : DIGEST_SLICE;
	operation->crc =
		checksum_update(operation->crc, operation->data + operation->digested, slice);
	operation->digested += slice;
	TAILQ_REMOVE(&context->digests, operation, queued);
	if (slice < left) {
		TAILQ_INSERT_TAIL(&context->digests, operation, queued);
	} else if (operation->kind == OPERATION_SEND) {
		send_digested(operation);
	} else {
		recv_digested(operation);
	}
	return 1;
}

/* Endpoints that were found broken outside of a callback, and those that nobody knows any more. */
static int run_doomed(haul_context *context)
{
	haul_endpoint *endpoint, *next;

	if (!context->doomed && !context->released)
		return 0;
	for (endpoint = TAILQ_FIRST(&context->endpoints); endpoint; endpoint = next) {
		next = TAILQ_NEXT(endpoint, all);
		if (endpoint->doomed)
			endpoint_lost(endpoint, endpoint->doomed, endpoint->doomed_why);
		if (endpoint->released) {
			context->released--;
			endpoint_free(endpoint);
		}
	}
	return 1;
}

int engine_progress(haul_context *context)
{
	int done;

	context->now = 0;
	done = context->backend->context->progress(context->state);
	done += run_deadlines(context);
	done += run_digests(context);
	done += run_doomed(context);
	return done;
}

/* ---- Waiting ----------------------------------------------------------- */

/* When progress has to run next, at the latest, even without an event; 0: at once. */
uint64_t poll_next_timer(haul_context *context)
{
	struct deadline *first = deadlines_first(&context->deadlines);
	uint64_t at = context->backend->context->next_timer(context->state);

	if (!TAILQ_EMPTY(&context->digests) || context->doomed || context->released)
		return 0;
	return first && first->at < at ? first->at : at;
}

/* Rounded up: a wait that ends too early would spin. */
static int timeout_ms(uint64_t until, uint64_t now)
{
	uint64_t ms;

	if (until <= now)
		return 0;
	ms = (until - now + NS_PER_MS - 1) / NS_PER_MS;
	return ms > INT_MAX ? INT_MAX : (int)ms;
}

/* Sleep in the backend, without the lock. */
static void sleep_until(haul_context *context, uint64_t until)
{
	uint64_t timer = poll_next_timer(context);
	int ms = -1;

	if (timer < until)
		until = timer;
	if (until != UINT64_MAX)
		ms = timeout_ms(until, haul_clock());
	if (ms == 0)
		return;
	context->sleeping = true;
	context->sleeping_until = until;
	pthread_mutex_unlock(&context->lock);
	context->backend->context->wait(context->state, ms);
	pthread_mutex_lock(&context->lock);
	context->now = 0;
	context->sleeping = false;
}

/* Wait for the thread that drives the context, or for its place. */
static void wait_for_driver(haul_context *context, uint64_t until)
{
	context->waiters++;
	if (until == UINT64_MAX) {
		pthread_cond_wait(&context->changed, &context->lock);
	} else {
		struct timespec at = {(time_t)(until / 1000000000u), (long)(until % 1000000000u)};

		pthread_cond_timedwait(&context->changed, &context->lock, &at);
	}
	context->waiters--;
	context->now = 0;
}

/* spin_us: whether this thread should look again instead of sleeping. */
static bool spinning(haul_context *context, uint64_t *spin_until, int done)
{
	uint64_t now;

	if (!context->config.spin_us)
		return false;
	now = haul_clock();
	if (done || !*spin_until)
		*spin_until = now + context->config.spin_us * 1000;
	return now < *spin_until;
}

int engine_wait(haul_context *context, bool (*ready)(haul_context *, void *), void *user,
		uint64_t until)
{
	uint64_t spin_until = 0;
	bool over = false;
	int done = 0;

	while (!ready(context, user) && !over) {
		if (context->driving) {
			if (haul_clock() >= until)
				return -ETIMEDOUT;
			wait_for_driver(context, until);
			continue;
		}
		context->driving = true;
		/*
		 * What is queued leaves now. Not so when there is something to hand out: the
		 * caller's answer then shares a write with it.
		 */
		engine_flush(context);
		/* Sleep first: that ends at once when something is there already. */
		if (until && !spinning(context, &spin_until, done))
			sleep_until(context, until);
		done = engine_progress(context);
		over = until == 0 || (until != UINT64_MAX && haul_clock() >= until);
		context->driving = false;
		if (context->waiters)
			pthread_cond_broadcast(&context->changed);
	}
	if (ready(context, user))
		return 0;
	engine_flush(context);
	return -ETIMEDOUT;
}

static uint64_t deadline_of(int timeout)
{
	if (timeout < 0)
		return UINT64_MAX;
	return timeout == 0 ? 0 : haul_clock() + (uint64_t)timeout * NS_PER_MS;
}

/* ---- Handing out ------------------------------------------------------- */

static bool anything(haul_context *context, void *user)
{
	return !TAILQ_EMPTY(&context->completions) || !TAILQ_EMPTY(&context->events);
}

/* The details that this thread's last haul_poll() handed out: they live until its next one. */
struct details {
	char **texts;
	size_t count, room;
};

static pthread_key_t details_key;
static pthread_once_t details_once = PTHREAD_ONCE_INIT;

static void clear_details(struct details *details)
{
	while (details->count)
		free(details->texts[--details->count]);
}

static void free_details(void *value)
{
	struct details *details = value;

	clear_details(details);
	free(details->texts);
	free(details);
}

static void make_details_key(void)
{
	pthread_key_create(&details_key, free_details);
}

/* Any thread has ever had some: a key is there to look for them. Atomic. */
static bool details_any;

static void free_handed_out(void)
{
	struct details *details;

	if (!__atomic_load_n(&details_any, __ATOMIC_ACQUIRE))
		return;
	details = pthread_getspecific(details_key);
	if (details)
		clear_details(details);
}

/* Keep a detail until this thread's next haul_poll(); NULL when it is lost for want of memory. */
static const char *hand_out(char *text)
{
	struct details *details;

	if (!text)
		return NULL;
	pthread_once(&details_once, make_details_key);
	__atomic_store_n(&details_any, true, __ATOMIC_RELEASE);
	details = pthread_getspecific(details_key);
	if (!details) {
		details = calloc(1, sizeof(*details));
		if (!details || pthread_setspecific(details_key, details)) {
			free(details);
			free(text);
			return NULL;
		}
	}
	if (details->count == details->room) {
		size_t room = details->room ? 2 * details->room : 16;
		char **grown = realloc(details->texts, room * sizeof(*grown));

		if (!grown) {
			free(text);
			return NULL;
		}
		details->texts = grown;
		details->room = room;
	}
	details->texts[details->count++] = text;
	return text;
}

static void take_operation(haul_context *context, struct haul_completion *completion)
{
	static const enum haul_event events[] = {
		[OPERATION_CONNECT] = HAUL_CONNECTED,
		[OPERATION_SEND] = HAUL_SENT,
		[OPERATION_RECV] = HAUL_RECEIVED,
		[OPERATION_QUERY] = HAUL_QUERIED,
	};
	struct operation *operation = TAILQ_FIRST(&context->completions);

	TAILQ_REMOVE(&context->completions, operation, queued);
	completion->event = events[operation->kind];
	completion->result = operation->result;
	completion->cookie = operation->cookie;
	completion->endpoint = operation->endpoint;
	if (operation->kind == OPERATION_CONNECT && operation->result == 0)
		operation->endpoint->handed_in = context->round;
	completion->tensor = operation->tensor;
	completion->detail = hand_out(operation->detail);
	operation->detail = NULL;
	operation_free(operation);
}

static void take_event(haul_context *context, struct haul_completion *completion)
{
	haul_endpoint *endpoint = TAILQ_FIRST(&context->events);

	TAILQ_REMOVE(&context->events, endpoint, event_entry);
	completion->event = endpoint->event;
	completion->result = endpoint->event_result;
	completion->endpoint = endpoint;
	completion->detail = hand_out(endpoint->event_detail);
	endpoint->event_detail = NULL;
	endpoint->event = 0;
	if (completion->event == HAUL_ACCEPTED) {
		completion->cookie = endpoint->accept_cookie;
		endpoint->handed_in = context->round;
		endpoint_announce(endpoint);
	} else {
		completion->cookie = endpoint->user;
	}
}

/* A caller that gets an endpoint sets its user pointer, which the completion of its loss bears. */
static bool is_too_early(const haul_context *context, const haul_endpoint *endpoint)
{
	return endpoint->event == HAUL_LOST && endpoint->handed_in == context->round;
}

int haul_poll(haul_context *context, struct haul_completion *completions, int max, int timeout)
{
	int count = 0;
	int error;

	if (!context || max < 0 || (max > 0 && !completions))
		return -EINVAL;
	error = context_enter(context);
	if (error)
		return error;
	free_handed_out();
	context->round++;
	if (max == 0) {
		engine_flush(context);
		if (!context->driving) {
			context->driving = true;
			engine_progress(context);
			context->driving = false;
			engine_flush(context);
		}
	} else {
		engine_wait(context, anything, NULL, deadline_of(timeout));
	}
	/* The ends of operations come before the loss of their endpoint. */
	while (count < max && anything(context, NULL)) {
		memset(&completions[count], 0, sizeof(*completions));
		if (!TAILQ_EMPTY(&context->completions))
			take_operation(context, &completions[count++]);
		else if (is_too_early(context, TAILQ_FIRST(&context->events)))
			break;
		else
			take_event(context, &completions[count++]);
	}
	context_leave(context);
	return count;
}

/* ---- A backend's own thread -------------------------------------------- */

int haul_drive(haul_context *context)
{
	int done = -EBUSY;

	/* Whoever has the lock is about to drive, or will be gone the next time. */
	if (pthread_mutex_trylock(&context->lock))
		return -EBUSY;
	context->now = 0;
	if (!context->driving) {
		context->driving = true;
		engine_flush(context);
		done = engine_progress(context);
		engine_flush(context);
		context->driving = false;
		if (context->waiters)
			pthread_cond_broadcast(&context->changed);
		if (context->outside >= 0)
			poll_signal(context);
	}
	pthread_mutex_unlock(&context->lock);
	return done;
}

/* ---- The progress thread ----------------------------------------------- */

static void *run_thread(void *argument)
{
	haul_context *context = argument;
	uint64_t spin_until = 0;
	int done = 0;

	pthread_mutex_lock(&context->lock);
	context->driving = true;
	while (!context->closing) {
		/* What others queued while they had the lock leaves before the sleep. */
		engine_flush(context);
		if (!spinning(context, &spin_until, done))
			sleep_until(context, UINT64_MAX);
		done = engine_progress(context);
		engine_flush(context);
		context->round++;
		if (anything(context, NULL) && context->waiters)
			pthread_cond_broadcast(&context->changed);
		if (context->outside >= 0)
			poll_signal(context);
		/* Let the others in. */
		pthread_mutex_unlock(&context->lock);
		pthread_mutex_lock(&context->lock);
		context->now = 0;
	}
	context->driving = false;
	pthread_mutex_unlock(&context->lock);
	return NULL;
}

int poll_start(haul_context *context)
{
	sigset_t all, before;
	int error;

	if (context->config.progress != PROGRESS_THREAD)
		return 0;
	/* From the start: no caller may take the place before the thread runs. */
	context->driving = true;
	/* The program's signal handlers run on its own threads. */
	sigfillset(&all);
	pthread_sigmask(SIG_SETMASK, &all, &before);
	error = pthread_create(&context->thread, NULL, run_thread, context);
	pthread_sigmask(SIG_SETMASK, &before, NULL);
	if (error)
		return context_fail(context, -error, "can't start the progress thread: %s",
				    haul_strerror(error));
	context->threaded = true;
	return 0;
}

void poll_stop(haul_context *context)
{
	if (!context->threaded)
		return;
	pthread_mutex_lock(&context->lock);
	context->closing = true;
	pthread_mutex_unlock(&context->lock);
	context->backend->context->wake(context->state);
	pthread_join(context->thread, NULL);
	context->threaded = false;
}

/* ---- The event descriptor ---------------------------------------------- */

static void set_clock(haul_context *context, uint64_t at)
{
	struct itimerspec when = {{0}};

	/* 0 would switch the timer off; at once is meant. */
	if (at == 0)
		at = 1;
	when.it_value = (struct timespec){(time_t)(at / 1000000000u), (long)(at % 1000000000u)};
	if (at == context->clock_at)
		return;
	context->clock_at = at;
	if (at == UINT64_MAX)
		when.it_value = (struct timespec){0, 0};
	timerfd_settime(context->clock, TFD_TIMER_ABSTIME, &when, NULL);
}

void poll_signal(haul_context *context)
{
	bool wanted = anything(context, NULL);
	uint64_t value = 1;
	ssize_t ignored;

	if (!context->threaded) {
		wanted = wanted || !TAILQ_EMPTY(&context->dirty);
		set_clock(context, poll_next_timer(context));
	}
	if (wanted == context->signalled)
		return;
	if (wanted)
		ignored = write(context->signal, &value, sizeof(value));
	else
		ignored = read(context->signal, &value, sizeof(value));
	(void)ignored;
	context->signalled = wanted;
}

static int outside_add(int outside, int fd)
{
	struct epoll_event event = {.events = EPOLLIN};

	return epoll_ctl(outside, EPOLL_CTL_ADD, fd, &event) ? -errno : 0;
}

static int outside_open(haul_context *context)
{
	int error = 0;

	context->signal = haul_descriptor(eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK));
	context->clock =
		haul_descriptor(timerfd_create(CLOCK_MONOTONIC, TFD_CLOEXEC | TFD_NONBLOCK));
	context->outside = haul_descriptor(epoll_create1(EPOLL_CLOEXEC));
	if (context->signal < 0 || context->clock < 0 || context->outside < 0)
		error = -errno;
	if (!error)
		error = outside_add(context->outside, context->signal);
	if (!error && !context->threaded) {
		error = outside_add(context->outside, context->clock);
		if (!error)
			error = outside_add(context->outside,
					    context->backend->context->event_fd(context->state));
	}
	if (!error) {
		context->clock_at = UINT64_MAX;
		return 0;
	}
	if (context->signal >= 0)
		close(context->signal);
	if (context->clock >= 0)
		close(context->clock);
	if (context->outside >= 0)
		close(context->outside);
	context->signal = context->clock = context->outside = -1;
	return context_fail(
		context, error,
		"no descriptor for the event fd: %s (ulimit -n shows and raises the limit)",
		haul_strerror(error));
}

int haul_event_fd(haul_context *context)
{
	int result;

	if (!context)
		return -EINVAL;
	result = context_enter(context);
	if (result)
		return result;
	if (context->outside < 0)
		result = outside_open(context);
	if (!result)
		result = context->outside;
	context_leave(context);
	return result;
}
