/* SPDX-License-Identifier: Apache-2.0 */
#include "layer.h"

#include <errno.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "../../transport/engine/log.h"
#include "../../transport/engine/spec.h"
#include "core.h"

#define VARIABLE "TENSORHAUL_GRPC"
#define LAST_MS 100
#define EXIT_STRICT 78 /* EX_CONFIG of sysexits.h */

struct layer_counters layer_counters;

static struct layer_settings settings = {.log = LAYER_LOG_WARNING};
static atomic_bool on, used;
static bool asked; /* the variable was set: the counters are told at the end */
static pthread_once_t once = PTHREAD_ONCE_INIT;

const struct layer_settings *layer_settings(void)
{
	return &settings;
}

bool layer_id_equal(const struct layer_id *one, const struct layer_id *other)
{
	return !memcmp(one->bytes, other->bytes, LAYER_ID_BYTES);
}

/* One write, so that lines of several processes don't mix. */
static void say(const char *format, va_list arguments)
{
	char line[1024] = "tensorhaul-grpc: ";
	size_t start = strlen(line);
	ssize_t written;

	vsnprintf(line + start, sizeof(line) - start - 1, format, arguments);
	replace_control_characters(line);
	strcat(line, "\n");
	written = write(STDERR_FILENO, line, strlen(line));
	(void)written;
}

void layer_log(enum layer_log level, const char *format, ...)
{
	int error = errno;
	va_list arguments;

	if (level > settings.log)
		return;
	va_start(arguments, format);
	say(format, arguments);
	va_end(arguments);
	errno = error;
}

void layer_fail(const char *format, ...)
{
	char why[768];
	va_list arguments;

	va_start(arguments, format);
	vsnprintf(why, sizeof(why), format, arguments);
	va_end(arguments);
	atomic_store(&on, false);
	if (settings.strict) {
		layer_log(LAYER_LOG_NONE, "%s; strict=yes ends the program", why);
		_exit(EXIT_STRICT);
	}
	layer_log(LAYER_LOG_WARNING, "%s; the program runs as plain gRPC", why);
}

/* The transport's part of the spec, which haul_open() checks. */
static char *transport_spec(const struct spec *spec)
{
	char *text = NULL;
	size_t length;
	FILE *stream = open_memstream(&text, &length);

	if (!stream)
		return NULL;
	fputs(spec->transport, stream);
	for (size_t i = 0; i < spec->count; i++) {
		const struct spec_option *option = &spec->options[i];

		if (!option->taken)
			fprintf(stream, ",%s={%s}", option->name, option->value);
	}
	return fclose(stream) ? NULL : text;
}

/* A client never listens, but a word that is wrong should be told to it, too. */
static bool is_address(const char *text)
{
	const char *port = strrchr(text, ':');
	size_t digits = port ? strspn(port + 1, "0123456789") : 0;

	return digits && digits <= 5 && port > text && !port[1 + digits] &&
	       strtoul(port + 1, NULL, 10) <= UINT16_MAX;
}

static int read_settings(const char *text, char *why, size_t room)
{
	struct spec spec;
	int error = spec_parse(text, &spec, why, room);

	if (error)
		return error;
	error = options_apply(layer_options, &spec, &settings, why, room);
	if (!error && !is_address(settings.listen))
		error = explain(why, room, -EINVAL,
				"listen=%s: expected HOST:PORT, [IPV6]:PORT or *:PORT",
				settings.listen);
	if (!error && !strcmp(spec.transport, "grpc"))
		error = explain(why, room, -EINVAL,
				"the transport grpc would carry itself; valid are the others");
	if (!error) {
		settings.spec = transport_spec(&spec);
		if (!settings.spec)
			error = explain(why, room, -ENOMEM, "no memory for the spec");
	}
	spec_free(&spec);
	return error;
}

/* The threads that carry the bytes are the parent's. */
static void leave_child(void)
{
	atomic_store(&on, false);
	atomic_store(&used, false);
	asked = false;
}

static void start(void)
{
	const char *text = getenv(VARIABLE);
	char why[512];

	if (!text || !*text)
		return;
	asked = true;
	options_default(layer_options, &settings);
	if (read_settings(text, why, sizeof(why))) {
		layer_fail(VARIABLE ": %s", why);
		return;
	}
	if (!core_fits()) {
		layer_fail("this libgrpc calls itself %s, and the layer is for 29 (gRPC 1.51)",
			   core()->grpc_version_string());
		return;
	}
	if (pthread_atfork(NULL, NULL, leave_child)) {
		layer_fail("no memory for a fork handler");
		return;
	}
	core()->grpc_init(); /* never given back: the layer's threads live as long as the process */
	atomic_store(&used, true);
	atomic_store(&on, true);
}

bool layer_on(void)
{
	pthread_once(&once, start);
	return atomic_load_explicit(&on, memory_order_relaxed);
}

bool layer_used(void)
{
	return atomic_load_explicit(&used, memory_order_relaxed);
}

static uint64_t count_of(const _Atomic uint64_t *counter)
{
	return atomic_load_explicit(counter, memory_order_relaxed);
}

/* What has ended just now may still be put away by the side path's thread. */
static void wait_for_the_last(void)
{
	const struct timespec pause = {0, 1000000};

	for (int i = 0; i < LAST_MS && count_of(&layer_counters.calls); i++)
		nanosleep(&pause, NULL);
}

__attribute__((destructor)) static void tell_counters(void)
{
	if (!asked || settings.log < LAYER_LOG_INFO)
		return;
	wait_for_the_last();
	layer_log(LAYER_LOG_INFO,
		  "aside: sent %llu messages, %llu bytes (%llu copied); received %llu messages, "
		  "%llu bytes; "
		  "large but inline: %llu messages; calls failed by the side path: %llu; "
		  "left over: %llu calls, %llu messages, %llu buffers",
		  (unsigned long long)count_of(&layer_counters.sent_aside),
		  (unsigned long long)count_of(&layer_counters.sent_aside_bytes),
		  (unsigned long long)count_of(&layer_counters.copied_bytes),
		  (unsigned long long)count_of(&layer_counters.received_aside),
		  (unsigned long long)count_of(&layer_counters.received_aside_bytes),
		  (unsigned long long)count_of(&layer_counters.sent_inline),
		  (unsigned long long)count_of(&layer_counters.failed),
		  (unsigned long long)count_of(&layer_counters.calls),
		  (unsigned long long)count_of(&layer_counters.transfers),
		  (unsigned long long)count_of(&layer_counters.buffers));
}
