/* SPDX-License-Identifier: Apache-2.0 */
/* Numeric addresses, as the engine passes them, to socket addresses and back; listening on them. */
#include <arpa/inet.h>
#include <errno.h>
#include <net/if.h>
#include <netdb.h>
#include <netinet/in.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "../backend.h"

#define ADDRESSES_MAX 16

/* Every address: IPv6 that takes IPv4 too, or IPv4 alone where IPv6 is switched off. */
static int any_address(unsigned port, struct haul_addresses *out)
{
	struct sockaddr_in6 *six;
	struct sockaddr_in *four;

	out->list = calloc(2, sizeof(*out->list));
	if (!out->list)
		return -ENOMEM;
	six = (struct sockaddr_in6 *)&out->list[0];
	six->sin6_family = AF_INET6;
	six->sin6_addr = in6addr_any;
	six->sin6_port = htons((uint16_t)port);
	four = (struct sockaddr_in *)&out->list[1];
	four->sin_family = AF_INET;
	four->sin_port = six->sin6_port;
	out->count = 2;
	return 0;
}

/* One "1.2.3.4:5" or "[::1]:5"; `text` is changed. */
static int parse(char *text, struct sockaddr_storage *out)
{
	struct addrinfo hints = {.ai_socktype = SOCK_STREAM,
				 .ai_flags = AI_NUMERICSERV | AI_NUMERICHOST};
	struct addrinfo *found = NULL;
	char *colon = strrchr(text, ':');

	if (!colon)
		return -EINVAL;
	*colon = 0;
	if (text[0] == '[' && colon[-1] == ']') {
		colon[-1] = 0;
		text++;
	}
	if (getaddrinfo(text, colon + 1, &hints, &found))
		return -EINVAL;
	memcpy(out, found->ai_addr, found->ai_addrlen);
	freeaddrinfo(found);
	return 0;
}

int haul_address_parse(haul_context *engine, const char *where, struct haul_addresses *out)
{
	char text[1024], *next, *one;

	memset(out, 0, sizeof(*out));
	if (strncmp(where, "*:", 2) == 0)
		return any_address((unsigned)atoi(where + 2), out);
	snprintf(text, sizeof(text), "%s", where);
	out->list = calloc(ADDRESSES_MAX, sizeof(*out->list));
	if (!out->list)
		return -ENOMEM;
	for (one = strtok_r(text, ",", &next); one && out->count < ADDRESSES_MAX;
	     one = strtok_r(NULL, ",", &next)) {
		if (parse(one, &out->list[out->count++])) {
			free(out->list);
			return haul_fail(engine, -EINVAL, "\"%s\" is no numeric address", where);
		}
	}
	return 0;
}

void haul_address_print(const struct sockaddr_storage *address, char *text, size_t room)
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

socklen_t haul_address_size(const struct sockaddr_storage *address)
{
	return address->ss_family == AF_INET6 ? sizeof(struct sockaddr_in6)
					      : sizeof(struct sockaddr_in);
}

void haul_address_set_port(struct sockaddr_storage *address, unsigned port)
{
	if (address->ss_family == AF_INET6)
		((struct sockaddr_in6 *)address)->sin6_port = htons((uint16_t)port);
	else
		((struct sockaddr_in *)address)->sin_port = htons((uint16_t)port);
}

unsigned haul_address_port(const struct sockaddr_storage *address)
{
	if (address->ss_family == AF_INET6)
		return ntohs(((const struct sockaddr_in6 *)address)->sin6_port);
	return ntohs(((const struct sockaddr_in *)address)->sin_port);
}

/* ---- Listening --------------------------------------------------------- */

typedef int try_function(void *user, const struct sockaddr_storage *address);

/* The first free port of the range, from a random start so that many can do this at once. */
static int try_ports(haul_context *context, const struct haul_option_range *ports,
		     struct sockaddr_storage *address, try_function *try, void *user)
{
	unsigned count = (unsigned)(ports->high - ports->low + 1);
	unsigned start = 0;
	int error = -EADDRINUSE;

	(void)haul_random(&start, sizeof(start));
	for (unsigned i = 0; i < count && error == -EADDRINUSE; i++) {
		haul_address_set_port(address, (unsigned)ports->low + (start % count + i) % count);
		error = try(user, address);
	}
	if (error == -EADDRINUSE)
		return haul_fail(context, error, "every port of ports=%u-%u is in use",
				 (unsigned)ports->low, (unsigned)ports->high);
	return error;
}

static int explain_listen(haul_context *context, const char *where,
			  const struct haul_option_range *ports, int error)
{
	if (error == -EADDRINUSE && !ports->low)
		return haul_fail(context, error,
				 "address %s is in use: choose another port, or 0 for a free one",
				 where);
	/* These have their detail already. */
	if (error == -EMFILE || error == -ENFILE || error == -EADDRINUSE || error == -ENODEV)
		return error;
	if (error == -EACCES)
		return haul_fail(context, error,
				 "can't listen on %s: ports below "
				 "net.ipv4.ip_unprivileged_port_start (1024) are for root",
				 where);
	return haul_fail(context, error, "can't listen on %s: %s", where, haul_strerror(error));
}

int haul_listen_on(haul_context *context, const char *where, const struct haul_option_range *ports,
		   try_function *try, void *user)
{
	struct haul_addresses addresses;
	int error = haul_address_parse(context, where, &addresses);

	if (error)
		return error;
	error = -EADDRNOTAVAIL;
	for (unsigned i = 0; i < addresses.count; i++) {
		struct sockaddr_storage *address = &addresses.list[i];

		if (haul_address_port(address) == 0 && ports->low)
			error = try_ports(context, ports, address, try, user);
		else
			error = try(user, address);
		/* IPv6 may be switched off; an IPv4 address may follow. */
		if (error != -EAFNOSUPPORT && error != -EADDRNOTAVAIL)
			break;
	}
	free(addresses.list);
	return error ? explain_listen(context, where, ports, error) : 0;
}
