/* SPDX-License-Identifier: Apache-2.0 */
/* "host:port" to socket addresses and back. */
#include <arpa/inet.h>
#include <errno.h>
#include <net/if.h>
#include <netdb.h>
#include <netinet/in.h>
#include <stdio.h>
#include <stdlib.h>

#include "tcp.h"

#define EXPECTED "expected host:port, [IPv6]:port or *:port"

/* Cut "host:port" into its halves. An IPv6 address stands in brackets. */
static int cut(haul_context *engine, const char *text, char host[256], char port[8])
{
	const char *colon = strrchr(text, ':');
	size_t length;

	if (text[0] == '[') {
		const char *bracket = strchr(text, ']');

		if (!bracket || bracket[1] != ':')
			return haul_fail(engine, -EINVAL, "address \"%s\": " EXPECTED, text);
		colon = bracket + 1;
		length = (size_t)(bracket - text - 1);
		text++;
	} else {
		if (!colon)
			return haul_fail(engine, -EINVAL, "address \"%s\" has no port: " EXPECTED,
					 text);
		length = (size_t)(colon - text);
		if (memchr(text, ':', length))
			return haul_fail(engine, -EINVAL,
					 "address \"%s\": an IPv6 address needs brackets: " EXPECTED,
					 text);
	}
	if (length == 0 || length >= 256)
		return haul_fail(engine, -EINVAL, "address \"%s\" has no host: " EXPECTED, text);
	memcpy(host, text, length);
	host[length] = 0;
	if (strlen(colon + 1) < 1 || strlen(colon + 1) > 5 ||
	    strspn(colon + 1, "0123456789") != strlen(colon + 1) || atol(colon + 1) > 65535)
		return haul_fail(engine, -EINVAL, "port \"%s\": expected a number from 0 to 65535",
				 colon + 1);
	strcpy(port, colon + 1);
	return 0;
}

/* Every address: IPv6 that takes IPv4 too, or IPv4 alone where IPv6 is switched off. */
static int any_address(const char *port, struct addresses *out)
{
	struct sockaddr_in6 *six;
	struct sockaddr_in *four;

	out->list = calloc(2, sizeof(*out->list));
	if (!out->list)
		return -ENOMEM;
	six = (struct sockaddr_in6 *)&out->list[0];
	six->sin6_family = AF_INET6;
	six->sin6_addr = in6addr_any;
	six->sin6_port = htons((uint16_t)atoi(port));
	four = (struct sockaddr_in *)&out->list[1];
	four->sin_family = AF_INET;
	four->sin_port = six->sin6_port;
	out->count = 2;
	return 0;
}

int address_resolve(haul_context *engine, const char *text, bool passive, struct addresses *out)
{
	struct addrinfo hints = {.ai_socktype = SOCK_STREAM,
				 .ai_flags = AI_NUMERICSERV | (passive ? AI_PASSIVE : 0)};
	struct addrinfo *found = NULL, *one;
	char host[256], port[8];
	int error;

	memset(out, 0, sizeof(*out));
	error = cut(engine, text, host, port);
	if (error)
		return error;
	if (strcmp(host, "*") == 0) {
		if (!passive)
			return haul_fail(engine, -EINVAL,
					 "address \"%s\": * is only for listening; name a host", text);
		return any_address(port, out);
	}
	if (!passive && atoi(port) == 0)
		return haul_fail(engine, -EINVAL, "address \"%s\": nobody listens on port 0", text);
	error = getaddrinfo(host, port, &hints, &found);
	if (error)
		return haul_fail(engine, error == EAI_MEMORY ? -ENOMEM : -ENOENT,
				 "host \"%s\" does not resolve: %s", host, gai_strerror(error));
	for (one = found; one; one = one->ai_next)
		out->count++;
	out->list = calloc(out->count, sizeof(*out->list));
	if (!out->list) {
		freeaddrinfo(found);
		return -ENOMEM;
	}
	out->count = 0;
	for (one = found; one; one = one->ai_next)
		memcpy(&out->list[out->count++], one->ai_addr, one->ai_addrlen);
	freeaddrinfo(found);
	return 0;
}

void address_print(const struct sockaddr_storage *address, char *text, size_t room)
{
	char host[INET6_ADDRSTRLEN + IF_NAMESIZE + 2] = "?";

	if (address->ss_family == AF_INET6) {
		const struct sockaddr_in6 *six = (const struct sockaddr_in6 *)address;
		char name[IF_NAMESIZE];

		if (IN6_IS_ADDR_V4MAPPED(&six->sin6_addr)) {
			inet_ntop(AF_INET, &six->sin6_addr.s6_addr[12], host, sizeof(host));
			snprintf(text, room, "%s:%u", host, ntohs(six->sin6_port));
			return;
		}
		inet_ntop(AF_INET6, &six->sin6_addr, host, sizeof(host));
		if (six->sin6_scope_id && if_indextoname(six->sin6_scope_id, name)) {
			strcat(host, "%");
			strcat(host, name);
		}
		snprintf(text, room, "[%s]:%u", host, ntohs(six->sin6_port));
	} else {
		const struct sockaddr_in *four = (const struct sockaddr_in *)address;

		inet_ntop(AF_INET, &four->sin_addr, host, sizeof(host));
		snprintf(text, room, "%s:%u", host, ntohs(four->sin_port));
	}
}

socklen_t address_size(const struct sockaddr_storage *address)
{
	return address->ss_family == AF_INET6 ? sizeof(struct sockaddr_in6)
					      : sizeof(struct sockaddr_in);
}

void address_set_port(struct sockaddr_storage *address, unsigned port)
{
	if (address->ss_family == AF_INET6)
		((struct sockaddr_in6 *)address)->sin6_port = htons((uint16_t)port);
	else
		((struct sockaddr_in *)address)->sin_port = htons((uint16_t)port);
}

unsigned address_port(const struct sockaddr_storage *address)
{
	if (address->ss_family == AF_INET6)
		return ntohs(((const struct sockaddr_in6 *)address)->sin6_port);
	return ntohs(((const struct sockaddr_in *)address)->sin_port);
}
