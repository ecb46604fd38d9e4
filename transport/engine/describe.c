/* SPDX-License-Identifier: Apache-2.0 */
/* What this host has for a transport, for people to read. */
#include <errno.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include "backends.h"
#include "engine.h"
#include "resolve.h"

void haul_text_add(struct haul_text *text, const char *format, ...)
{
	va_list arguments;
	int length;

	if (text->used >= text->room)
		return;
	va_start(arguments, format);
	length = vsnprintf(text->at + text->used, text->room - text->used, format, arguments);
	va_end(arguments);
	text->used += length > 0 ? (size_t)length : 0;
}

/* Any port: only the way to the host is asked for. */
static void add_port(const char *peer, char *text, size_t room)
{
	const char *bracket = strrchr(peer, ']'), *colon = strrchr(peer, ':');
	bool numeric6 = !bracket && colon && strchr(peer, ':') != colon;

	if (numeric6)
		snprintf(text, room, "[%s]:1", peer);
	else if (colon && colon > (bracket ? bracket : peer))
		snprintf(text, room, "%s", peer);
	else
		snprintf(text, room, "%s:1", peer);
}

int haul_transport_describe(const char *name, const char *peer, char *text, size_t room)
{
	const struct haul_backend *backend;
	char where[RESOLVED_MAX], address[300];
	int error;

	if (!text || room == 0)
		return -EINVAL;
	text[0] = 0;
	backend = backends_find(name, &error, text, room);
	if (!backend)
		return error;
	if (!backend->context->describe)
		return 0;
	if (!peer)
		return backend->context->describe(NULL, text, room);
	add_port(peer, address, sizeof(address));
	error = resolve(address, false, where, sizeof(where), text, room);
	return error ? error : backend->context->describe(where, text, room);
}
