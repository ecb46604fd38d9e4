/* SPDX-License-Identifier: Apache-2.0 */
/* What the options of a port mean. */
#include <arpa/inet.h>
#include <ctype.h>
#include <errno.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "port_private.h"

/* ---- Addresses --------------------------------------------------------- */

static bool read_address(const char *text, uint32_t *address)
{
	struct in_addr bytes;

	if (inet_pton(AF_INET, text, &bytes) != 1)
		return false;
	*address = ntohl(bytes.s_addr);
	return true;
}

/* Addresses that belong to one host. */
static bool is_unicast(uint32_t address)
{
	return address >> 24 != 0 && address >> 24 != 127 && address < 0xe0000000;
}

static int read_ip(struct port_wish *wish)
{
	static const char valid[] = "valid is the port's own address and its net's prefix, like "
				    "ip=10.0.0.5/24";
	const char *text = wish->config->ip, *slash;
	char address[INET_ADDRSTRLEN], *end;
	unsigned long prefix;
	uint32_t host;

	if (!text)
		return haul_fail(wish->engine, -EINVAL, "ip= is missing; %s", valid);
	slash = strchr(text, '/');
	if (!slash || slash - text >= (long)sizeof(address))
		return haul_fail(wish->engine, -EINVAL, "ip=%.60s has no prefix; %s", text, valid);
	snprintf(address, sizeof(address), "%.*s", (int)(slash - text), text);
	prefix = strtoul(slash + 1, &end, 10);
	if (!read_address(address, &wish->ip) || !isdigit((unsigned char)slash[1]) || *end ||
	    prefix < 1 || prefix > 31)
		return haul_fail(wish->engine, -EINVAL,
				 "ip=%.60s is no IPv4 address with a prefix of 1 to 31; %s", text,
				 valid);
	wish->mask = UINT32_MAX << (32 - prefix);
	host = wish->ip & ~wish->mask;
	if (!is_unicast(wish->ip))
		return haul_fail(wish->engine, -EINVAL, "ip=%s is no address of a host", text);
	/* A net of two has neither (RFC 3021). */
	if (prefix < 31 && (host == 0 || host == ~wish->mask))
		return haul_fail(wish->engine, -EINVAL, "ip=%s is the %s address of its net", text,
				 host ? "broadcast" : "net's own");
	return 0;
}

static int read_gateway(struct port_wish *wish)
{
	const char *text = wish->config->gateway;

	if (!text)
		return 0;
	if (!read_address(text, &wish->gateway) || !is_unicast(wish->gateway))
		return haul_fail(wish->engine, -EINVAL,
				 "gateway=%.60s: expected the router's IPv4 address", text);
	if ((wish->gateway & wish->mask) != (wish->ip & wish->mask))
		return haul_fail(
			wish->engine, -EINVAL,
			"gateway=%s is not on the net of ip=%s: a router has to be reached "
			"without another one",
			text, wish->config->ip);
	if (wish->gateway == wish->ip)
		return haul_fail(wish->engine, -EINVAL, "gateway=%s is the port's own address",
				 text);
	return 0;
}

/* ---- Arguments --------------------------------------------------------- */

bool wish_argument(const struct port_wish *wish, const char *name, char *value, size_t room)
{
	size_t length = strlen(name);

	for (const char *at = wish->given; *at; at += strcspn(at, ","), at += *at == ',') {
		if (strncmp(at, name, length) || at[length] != '=')
			continue;
		at += length + 1;
		snprintf(value, room, "%.*s", (int)strcspn(at, ","), at);
		return true;
	}
	return false;
}

void wish_add(struct port_wish *wish, const char *format, ...)
{
	size_t used = strlen(wish->arguments);
	va_list arguments;

	if (used && used + 1 < sizeof(wish->arguments))
		wish->arguments[used++] = ',';
	va_start(arguments, format);
	vsnprintf(wish->arguments + used, sizeof(wish->arguments) - used, format, arguments);
	va_end(arguments);
}

/* ---- The port ---------------------------------------------------------- */

/* "0000:3b:00.0" or "3b:00.0" */
static bool is_card(const char *text, size_t length)
{
	static const char full[] = "xxxx:xx:xx.x";
	const char *pattern = full + (length == sizeof(full) - 1 ? 0 : 5);

	if (length != strlen(pattern))
		return false;
	for (size_t i = 0; i < length; i++) {
		if (pattern[i] == 'x' ? !isxdigit((unsigned char)text[i]) : pattern[i] != text[i])
			return false;
	}
	return true;
}

static void list_drivers(char *text, size_t room)
{
	size_t used = 0;

	for (size_t i = 0; drivers[i] && used < room; i++)
		used += (size_t)snprintf(text + used, room - used, "%s%s", i ? ", " : "",
					 drivers[i]->name);
}

static int no_driver(struct port_wish *wish, const char *name)
{
	char list[256];

	list_drivers(list, sizeof(list));
	return haul_fail(wish->engine, -EINVAL,
			 "port={%.60s,...}: there is no such driver; valid are a card's PCI "
			 "address, an interface's name, af_xdp:INTERFACE, and {DRIVER,ARGUMENTS} "
			 "with one of the drivers %s",
			 name, list);
}

/* Names of devices have to differ within the process: the user's says only which driver. */
static int use_driver(struct port_wish *wish, const char *text, size_t length)
{
	static atomic_uint next;
	char name[48];

	while (length && isdigit((unsigned char)text[length - 1]))
		length--;
	snprintf(name, sizeof(name), "%.*s", (int)length, text);
	wish->driver = driver_find(name);
	if (!wish->driver)
		return no_driver(wish, name);
	wish->bus = "vdev";
	snprintf(wish->name, sizeof(wish->name), "%s_haul%u", name, atomic_fetch_add(&next, 1));
	return 0;
}

static int use_interface(struct port_wish *wish, const struct driver *driver, const char *name)
{
	char list[300];

	interface_list(list, sizeof(list));
	if (!*name || strlen(name) >= IFNAMSIZ)
		return haul_fail(wish->engine, -EINVAL,
				 "port=%.60s is no interface's name; this host has: %s",
				 wish->config->port, list);
	snprintf(wish->given, sizeof(wish->given), "iface=%s", name);
	return use_driver(wish, driver->name, strlen(driver->name));
}

static int read_port(struct port_wish *wish)
{
	const char *text = wish->config->port;
	size_t first = text ? strcspn(text, ",") : 0;

	if (!text)
		return haul_fail(wish->engine, -EINVAL,
				 "port= is missing; valid are a card's PCI address, an interface's "
				 "name, af_xdp:INTERFACE, and {DRIVER,ARGUMENTS} of DPDK");
	if (strlen(text) >= PORT_ARGUMENTS / 2)
		return haul_fail(wish->engine, -E2BIG, "port= is longer than %d bytes",
				 PORT_ARGUMENTS / 2);
	if (is_card(text, first)) {
		wish->driver = &driver_card;
		wish->bus = "pci";
		snprintf(wish->name, sizeof(wish->name), "%s%.*s", first < 12 ? "0000:" : "",
			 (int)first, text);
		snprintf(wish->given, sizeof(wish->given), "%s", text + first + !!text[first]);
		return 0;
	}
	if (!strncmp(text, "af_packet:", 10))
		return use_interface(wish, &driver_af_packet, text + 10);
	if (!strncmp(text, "af_xdp:", 7))
		return use_interface(wish, &driver_af_xdp, text + 7);
	if (!text[first] && strncmp(text, "net_", 4))
		return use_interface(wish, &driver_af_packet, text);
	snprintf(wish->given, sizeof(wish->given), "%s", text + first + !!text[first]);
	return use_driver(wish, text, first);
}

int wish_read(struct haul_context *engine, const struct dpdk_config *config, struct port_wish *wish)
{
	int error;

	*wish = (struct port_wish){
		.engine = engine, .config = config, .queues = (unsigned)config->queues};
	error = read_port(wish);
	if (!error)
		error = read_ip(wish);
	if (!error)
		error = read_gateway(wish);
	if (error)
		return error;
	wish->mtu = config->mtu == HAUL_OPTION_AUTO ? 0 : (uint32_t)config->mtu;
	snprintf(wish->arguments, sizeof(wish->arguments), "%s", wish->given);
	if (wish->driver->prepare)
		error = wish->driver->prepare(wish);
	if (!error && !wish->mtu)
		wish->mtu = PORT_MTU_AUTO;
	if (!wish->room)
		wish->room = wish_frame(wish);
	return error;
}
