/* SPDX-License-Identifier: Apache-2.0 */
/* What this host has for DPDK, in words. Nothing of DPDK is started for it. */
#include <arpa/inet.h>
#include <dirent.h>
#include <errno.h>
#include <net/if.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <unistd.h>

#include <rte_version.h>

#include "port_private.h"

/* ---- Memory and rights ------------------------------------------------------ */

static void describe_hugepages(struct haul_text *text)
{
	struct eal_hugepages pages;
	unsigned long long kib;

	eal_hugepages(&pages);
	kib = pages.size / 1024;
	if (pages.reserved)
		haul_text_add(text, "hugepages: %llu of %llu KiB, %llu free\n",
			      (unsigned long long)pages.reserved, kib,
			      (unsigned long long)pages.free);
	else
		haul_text_add(text,
			      "hugepages: none; cards and net_virtio_user want some: `echo 512 > "
			      "/sys/kernel/mm/hugepages/hugepages-%llukB/nr_hugepages`\n",
			      kib);
}

static bool may_send_raw(void)
{
	int fd = socket(AF_PACKET, SOCK_RAW | SOCK_CLOEXEC, 0);

	if (fd < 0)
		return false;
	close(fd);
	return true;
}

static void describe_rights(struct haul_text *text)
{
	struct rlimit limit = {0};

	haul_text_add(text, "this process %s use interfaces (CAP_NET_RAW)",
		      may_send_raw() ? "may" : "may not");
	getrlimit(RLIMIT_MEMLOCK, &limit);
	if (limit.rlim_cur == RLIM_INFINITY)
		haul_text_add(text, ", and lock any memory\n");
	else
		haul_text_add(text, ", and lock %llu KiB of memory without CAP_IPC_LOCK\n",
			      (unsigned long long)limit.rlim_cur / 1024);
}

/* ---- Ports -------------------------------------------------------------------- */

static void describe_interfaces(struct haul_text *text)
{
	struct if_nameindex *list = if_nameindex();
	struct interface interface;

	for (struct if_nameindex *at = list; at && at->if_index; at++) {
		if (interface_look(at->if_name, &interface) || interface.loopback)
			continue;
		haul_text_add(text, "interface %s: %s, MTU %u", at->if_name,
			      !interface.up       ? "down"
			      : interface.running ? "up"
						  : "up, no link",
			      interface.mtu);
		if (interface.rate)
			haul_text_add(text, ", %llu Mb/s",
				      (unsigned long long)interface.rate * 8 / 1000000);
		haul_text_add(text, "\n");
	}
	if (list)
		if_freenameindex(list);
}

/* The last part of what a link leads to. */
static bool read_link(const char *path, char *name, size_t room)
{
	char link[256];
	ssize_t length = readlink(path, link, sizeof(link) - 1);
	const char *last;

	if (length < 0)
		return false;
	link[length] = 0;
	last = strrchr(link, '/');
	snprintf(name, room, "%s", last ? last + 1 : link);
	return true;
}

/* PCI's class of network adapters is 2. */
static bool is_network(const char *device)
{
	char path[300];
	unsigned class = 0;
	FILE *file;

	snprintf(path, sizeof(path), "/sys/bus/pci/devices/%s/class", device);
	file = fopen(path, "re");
	if (!file)
		return false;
	if (fscanf(file, "%x", &class) != 1)
		class = 0;
	fclose(file);
	return class >> 16 == 2;
}

static void describe_cards(struct haul_text *text)
{
	DIR *folder = opendir("/sys/bus/pci/devices");
	struct dirent *entry;
	char path[300], driver[256];

	while (folder && (entry = readdir(folder))) {
		if (entry->d_name[0] == '.' || !is_network(entry->d_name))
			continue;
		snprintf(path, sizeof(path), "/sys/bus/pci/devices/%s/driver", entry->d_name);
		if (!read_link(path, driver, sizeof(driver)))
			snprintf(driver, sizeof(driver), "none");
		haul_text_add(text, "card %s: driver %s%s\n", entry->d_name, driver,
			      driver_is_for_cards(driver) ? "" : ", not DPDK's");
	}
	if (folder)
		closedir(folder);
}

/* ---- For haul-info --------------------------------------------------------------- */

int port_probe(char *reason, size_t room)
{
	struct haul_text text = {.at = reason, .room = room};
	struct eal_hugepages pages;

	/* memif needs nothing but memory: there is no host that can't run it. */
	eal_hugepages(&pages);
	haul_text_add(&text, "%s, %s hugepages, interfaces %s be used", rte_version(),
		      pages.reserved ? "with" : "without", may_send_raw() ? "may" : "may not");
	return 0;
}

int port_describe(const char *where, char *text, size_t room)
{
	struct haul_text out = {.at = text, .room = room};

	text[0] = 0;
	haul_text_add(&out, "%s\n", rte_version());
	describe_hugepages(&out);
	describe_rights(&out);
	describe_interfaces(&out);
	describe_cards(&out);
	for (size_t i = 0; drivers[i]; i++)
		haul_text_add(&out, "driver %s: %s\n", drivers[i]->name, drivers[i]->summary);
	if (where)
		haul_text_add(&out, "to %s: the options port=, ip= and gateway= say how\n", where);
	return 0;
}
