/* SPDX-License-Identifier: Apache-2.0 */
/* Host names become numbers here, before the context's lock is taken: this may block for long. */
#include "resolve.h"

#include <errno.h>
#include <netdb.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>

#include "log.h"

#define EXPECTED "expected host:port, [IPv6]:port or *:port"

/* Cut "host:port" into its halves. An IPv6 address stands in brackets. */
static int cut(const char *text, char host[256], char port[8], char *why, size_t room)
{
	const char *colon = strrchr(text, ':');
	size_t length;

	if (text[0] == '[') {
		const char *bracket = strchr(text, ']');

		if (!bracket || bracket[1] != ':')
			return explain(why, room, -EINVAL, "address \"%s\": " EXPECTED, text);
		colon = bracket + 1;
		length = (size_t)(bracket - text - 1);
		text++;
	} else {
		if (!colon)
			return explain(why, room, -EINVAL, "address \"%s\" has no port: " EXPECTED,
				       text);
		length = (size_t)(colon - text);
		if (memchr(text, ':', length))
			return explain(why, room, -EINVAL,
				       "address \"%s\": an IPv6 address needs brackets: " EXPECTED,
				       text);
	}
	if (length == 0 || length >= 256)
		return explain(why, room, -EINVAL, "address \"%s\" has no host: " EXPECTED, text);
	memcpy(host, text, length);
	host[length] = 0;
	if (strlen(colon + 1) < 1 || strlen(colon + 1) > 5 ||
	    strspn(colon + 1, "0123456789") != strlen(colon + 1) || atol(colon + 1) > 65535)
		return explain(why, room, -EINVAL, "port \"%s\": expected a number from 0 to 65535",
			       colon + 1);
	strcpy(port, colon + 1);
	return 0;
}

/* Append one address as numbers; what has no room any more is left out. */
static void append(const struct addrinfo *one, char *out, size_t size)
{
	char host[128], port[8], text[160];

	if ((one->ai_family != AF_INET && one->ai_family != AF_INET6) ||
	    getnameinfo(one->ai_addr, one->ai_addrlen, host, sizeof(host), port, sizeof(port),
			NI_NUMERICHOST | NI_NUMERICSERV))
		return;
	snprintf(text, sizeof(text), one->ai_family == AF_INET6 ? "%s[%s]:%s" : "%s%s:%s",
		 out[0] ? "," : "", host, port);
	if (strlen(out) + strlen(text) < size)
		strcat(out, text);
}

int resolve(const char *text, bool passive, char *out, size_t size, char *why, size_t room)
{
	struct addrinfo hints = {.ai_socktype = SOCK_STREAM,
				 .ai_flags = AI_NUMERICSERV | (passive ? AI_PASSIVE : 0)};
	struct addrinfo *found = NULL, *one;
	char host[256], port[8];
	int error;

	out[0] = 0;
	if (!text)
		return explain(why, room, -EINVAL, "the address is NULL: " EXPECTED);
	error = cut(text, host, port, why, room);
	if (error)
		return error;
	if (strcmp(host, "*") == 0) {
		if (!passive)
			return explain(why, room, -EINVAL,
				       "address \"%s\": * is only for listening; name a host",
				       text);
		snprintf(out, size, "*:%s", port);
		return 0;
	}
	if (!passive && atoi(port) == 0)
		return explain(why, room, -EINVAL, "address \"%s\": nobody listens on port 0",
			       text);
	error = getaddrinfo(host, port, &hints, &found);
	if (error)
		return explain(why, room, error == EAI_MEMORY ? -ENOMEM : -ENOENT,
			       "host \"%s\" does not resolve: %s", host, gai_strerror(error));
	for (one = found; one; one = one->ai_next)
		append(one, out, size);
	freeaddrinfo(found);
	if (!out[0])
		return explain(why, room, -ENOENT, "host \"%s\" has no IPv4 or IPv6 address", host);
	return 0;
}
