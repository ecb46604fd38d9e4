/* SPDX-License-Identifier: Apache-2.0 */
/* Contexts: opening, closing, the lock, details of failures. */
#include <errno.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

#include "backends.h"
#include "engine.h"
#include "spec.h"

/* Counted up in each forked child, so that a context knows without a system call whose it is. */
static unsigned fork_generation;
static pthread_once_t fork_once = PTHREAD_ONCE_INIT;

static void count_fork(void)
{
	__atomic_add_fetch(&fork_generation, 1, __ATOMIC_RELAXED);
}

static void watch_forks(void)
{
	pthread_atfork(NULL, NULL, count_fork);
}

bool context_forked(const haul_context *context)
{
	return context->fork_generation != __atomic_load_n(&fork_generation, __ATOMIC_RELAXED);
}

int context_enter(haul_context *context)
{
	if (context_forked(context))
		return -ECHILD;
	pthread_mutex_lock(&context->lock);
	context->now = 0;
	return 0;
}

void context_leave(haul_context *context)
{
	/*
	 * Whoever drives the context looks after everything before it sleeps. While it sleeps, the
	 * others do: messages leave here, and it is woken for what only it can do.
	 */
	if (context->sleeping) {
		engine_flush(context);
		if (!TAILQ_EMPTY(&context->completions) || !TAILQ_EMPTY(&context->events) ||
		    poll_next_timer(context) < context->sleeping_until)
			context->backend->context->wake(context->state);
	}
	if (context->waiters &&
	    (!TAILQ_EMPTY(&context->completions) || !TAILQ_EMPTY(&context->events)))
		pthread_cond_broadcast(&context->changed);
	if (context->outside >= 0)
		poll_signal(context);
	pthread_mutex_unlock(&context->lock);
}

static int vfail(haul_context *context, int error, const char *format, va_list arguments)
{
	vsnprintf(context->detail, sizeof(context->detail), format, arguments);
	return error;
}

int context_fail(haul_context *context, int error, const char *format, ...)
{
	va_list arguments;

	va_start(arguments, format);
	vfail(context, error, format, arguments);
	va_end(arguments);
	return error;
}

int haul_fail(haul_context *context, int error, const char *format, ...)
{
	va_list arguments;

	va_start(arguments, format);
	vfail(context, error, format, arguments);
	va_end(arguments);
	return error;
}

const char *haul_detail(haul_context *context)
{
	char *buffer = detail_buffer();

	if (!context)
		return detail_of_last_open();
	if (context_enter(context)) {
		snprintf(buffer, DETAIL_MAX,
			 "the context was opened by the parent process: a forked child must open "
			 "its own with haul_open()");
		return buffer;
	}
	memcpy(buffer, context->detail, DETAIL_MAX);
	context_leave(context);
	return buffer;
}

const char *haul_spec(const haul_context *context)
{
	return context->spec;
}

uint64_t haul_now(haul_context *context)
{
	if (!context->now)
		context->now = haul_clock();
	return context->now;
}

uint64_t haul_peer_ms(const haul_context *context)
{
	return context->config.peer_ms;
}

uint64_t haul_handshake_ms(const haul_context *context)
{
	return context->config.handshake_ms;
}

/* Fill both configs from the text; the defaults are in place already. */
static int parse_options(haul_context *context, const char *text, char *why, size_t room)
{
	const struct haul_option *tables[] = {engine_options, context->backend->options, NULL};
	struct spec spec;
	int error;

	error = spec_parse(text, &spec, why, room);
	if (error)
		return error;
	error = options_apply(engine_options, &spec, &context->config, why, room);
	if (!error)
		error = options_apply(context->backend->options, &spec, context->backend_config,
				      why, room);
	if (!error)
		error = options_all_taken(&spec, tables, why, room);
	spec_free(&spec);
	return error;
}

/* Find the backend that a spec names. */
static int find_backend(const char *text, const struct haul_backend **backend, char *why,
			size_t room)
{
	struct spec spec;
	int error;

	error = spec_parse(text, &spec, why, room);
	if (error)
		return error;
	*backend = backends_find(spec.transport, &error, why, room);
	spec_free(&spec);
	return *backend ? 0 : error;
}

static int load_key(haul_context *context, char *why, size_t room)
{
	if (!context->config.auth)
		return 0;
	context->key = calloc(1, sizeof(*context->key));
	if (!context->key)
		return -ENOMEM;
	return auth_load(context->config.auth, context->key, why, room);
}

static int write_spec(haul_context *context)
{
	char text[8192];

	snprintf(text, sizeof(text), "%s", context->backend->name);
	options_print(context->backend->options, context->backend_config, text + strlen(text),
		      sizeof(text) - strlen(text));
	options_print(engine_options, &context->config, text + strlen(text),
		      sizeof(text) - strlen(text));
	context->spec = strdup(text);
	return context->spec ? 0 : -ENOMEM;
}

static int open_trace(haul_context *context, char *why, size_t room)
{
	const struct engine_config *config = &context->config;

	if (!config->trace)
		return 0;
	return trace_open(config->trace, config->trace_buffer, context->spec, context->incarnation,
			  &context->trace, why, room);
}

static int init_lock(haul_context *context)
{
	pthread_condattr_t attributes;
	int error;

	error = pthread_condattr_init(&attributes);
	if (error)
		return -error;
	pthread_condattr_setclock(&attributes, CLOCK_MONOTONIC);
	error = pthread_cond_init(&context->changed, &attributes);
	pthread_condattr_destroy(&attributes);
	if (error)
		return -error;
	return -pthread_mutex_init(&context->lock, NULL);
}

static haul_context *context_new(const struct haul_backend *backend)
{
	haul_context *context = calloc(1, sizeof(*context));

	if (!context)
		return NULL;
	context->backend = backend;
	context->backend_config = calloc(1, backend->config_size ? backend->config_size : 1);
	if (!context->backend_config || init_lock(context)) {
		free(context->backend_config);
		free(context);
		return NULL;
	}
	context->fork_generation = __atomic_load_n(&fork_generation, __ATOMIC_RELAXED);
	context->outside = context->signal = context->clock = -1;
	TAILQ_INIT(&context->endpoints);
	TAILQ_INIT(&context->dirty);
	TAILQ_INIT(&context->events);
	TAILQ_INIT(&context->listeners);
	TAILQ_INIT(&context->regions);
	TAILQ_INIT(&context->connects);
	TAILQ_INIT(&context->digests);
	TAILQ_INIT(&context->completions);
	TAILQ_INIT(&context->spare);
	options_default(engine_options, &context->config);
	options_default(backend->options, context->backend_config);
	return context;
}

/* Everything but what needs the backend; works for a context that is only half made. */
static void context_free(haul_context *context)
{
	struct operation *operation;

	while ((operation = TAILQ_FIRST(&context->spare))) {
		TAILQ_REMOVE(&context->spare, operation, queued);
		free(operation);
	}
	trace_close(context->trace);
	deadlines_free(&context->deadlines);
	if (context->outside >= 0)
		close(context->outside);
	if (context->signal >= 0)
		close(context->signal);
	if (context->clock >= 0)
		close(context->clock);
	if (context->key) {
		auth_forget(context->key);
		free(context->key);
	}
	options_free(engine_options, &context->config);
	options_free(context->backend->options, context->backend_config);
	free(context->backend_config);
	free(context->spec);
	pthread_cond_destroy(&context->changed);
	pthread_mutex_destroy(&context->lock);
	free(context);
}

int haul_open(const char *text, haul_context **out)
{
	char why[DETAIL_MAX] = "";
	const struct haul_backend *backend = NULL;
	const char *source = "";
	haul_context *context;
	int error;

	if (!out)
		return detail_of_open(-EINVAL, "haul_open: the context pointer is NULL");
	*out = NULL;
	if (!text) {
		text = getenv("HAUL_TRANSPORT");
		source = "the environment's HAUL_TRANSPORT: ";
	}
	if (!text || !*text) {
		text = "auto";
		source = "";
	}
	pthread_once(&fork_once, watch_forks);

	error = find_backend(text, &backend, why, sizeof(why));
	if (error)
		return detail_of_open(error, "%s%s", source, why);
	context = context_new(backend);
	if (!context)
		return detail_of_open(-ENOMEM, "no memory for a context");
	error = parse_options(context, text, why, sizeof(why));
	if (!error)
		error = load_key(context, why, sizeof(why));
	if (!error)
		error = write_spec(context);
	if (!error)
		error = haul_random(&context->incarnation, sizeof(context->incarnation));
	if (!error)
		error = open_trace(context, why, sizeof(why));
	/* A backend may start a thread that drives the context, once it is there. */
	pthread_mutex_lock(&context->lock);
	if (!error) {
		error = backend->context->open(context, context->backend_config, &context->state);
		memcpy(why, context->detail, sizeof(why));
	}
	if (!error) {
		error = poll_start(context);
		if (error)
			backend->context->close(context->state);
	}
	pthread_mutex_unlock(&context->lock);
	if (error) {
		context_free(context);
		return detail_of_open(error, "%s%s: %s", source, text,
				      why[0] ? why : haul_strerror(error));
	}
	context->detail[0] = 0;
	*out = context;
	return 0;
}

/* In a forked child: the descriptors are copies, and nothing may be said on them. */
static void close_in_child(haul_context *context)
{
	/*
	 * The lock may have been held by another thread of the parent when it forked, and the
	 * state be half changed: only descriptors are given back, and the key is wiped.
	 */
	if (context->backend->context->close_in_child)
		context->backend->context->close_in_child(context->state);
	trace_close_in_child(context->trace);
	if (context->outside >= 0)
		close(context->outside);
	if (context->signal >= 0)
		close(context->signal);
	if (context->clock >= 0)
		close(context->clock);
	if (context->key)
		auth_forget(context->key);
}

/* Let the last messages of closed links leave. */
static void linger(haul_context *context)
{
	const struct haul_backend *backend = context->backend;
	uint64_t until = haul_clock() + context->config.linger_ms * UINT64_C(1000000);

	while (backend->link->leaving(context->state) > 0) {
		uint64_t now = haul_clock(), timer;

		if (now >= until)
			break;
		if (backend->context->progress(context->state) > 0)
			continue;
		timer = backend->context->next_timer(context->state);
		if (timer > until)
			timer = until;
		pthread_mutex_unlock(&context->lock);
		backend->context->wait(context->state,
				       timer > now ? (int)((timer - now) / 1000000) + 1 : 0);
		pthread_mutex_lock(&context->lock);
	}
}

void haul_close(haul_context *context)
{
	struct operation *operation;
	haul_endpoint *endpoint;
	haul_region *region;

	if (!context)
		return;
	if (context_forked(context)) {
		close_in_child(context);
		return;
	}
	poll_stop(context);
	pthread_mutex_lock(&context->lock);
	/* For good: a thread of the backend's finds it taken while the last messages leave. */
	context->driving = true;
	while (!TAILQ_EMPTY(&context->listeners)) {
		haul_listener *listener = TAILQ_FIRST(&context->listeners);

		TAILQ_REMOVE(&context->listeners, listener, all);
		context->backend->link->unlisten(listener->backend);
		free(listener);
	}
	while ((endpoint = TAILQ_FIRST(&context->endpoints)))
		endpoint_close(endpoint);
	linger(context);
	while ((operation = TAILQ_FIRST(&context->completions))) {
		TAILQ_REMOVE(&context->completions, operation, queued);
		operation_free(operation);
	}
	while ((region = TAILQ_FIRST(&context->regions)))
		region_free(region);
	context->backend->context->close(context->state);
	pthread_mutex_unlock(&context->lock);
	context_free(context);
}
