/* SPDX-License-Identifier: Apache-2.0 */
/* The kernel's network interfaces, for drivers that sit on one. */
#include <arpa/inet.h>
#include <dirent.h>
#include <errno.h>
#include <ifaddrs.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include "port_private.h"

static void name_request(struct ifreq *request, const char *name)
{
	memset(request, 0, sizeof(*request));
	snprintf(request->ifr_name, sizeof(request->ifr_name), "%s", name);
}

/* Interfaces without a device behind them tell speeds that are made up. */
static uint64_t read_rate(const char *name)
{
	char path[100];
	long megabits = 0;
	FILE *file;

	snprintf(path, sizeof(path), "/sys/class/net/%s/device", name);
	if (access(path, F_OK))
		return 0;
	snprintf(path, sizeof(path), "/sys/class/net/%s/speed", name);
	file = fopen(path, "re");
	if (!file)
		return 0;
	if (fscanf(file, "%ld", &megabits) != 1 || megabits < 0)
		megabits = 0;
	fclose(file);
	return (uint64_t)megabits * 1000000 / 8;
}

int interface_look(const char *name, struct interface *interface)
{
	int fd = socket(AF_INET, SOCK_DGRAM | SOCK_CLOEXEC, 0), error = 0;
	struct ifreq request;

	*interface = (struct interface){0};
	if (fd < 0)
		return -errno;
	name_request(&request, name);
	if (ioctl(fd, SIOCGIFINDEX, &request)) {
		error = -ENODEV;
		goto end;
	}
	interface->index = request.ifr_ifindex;
	if (ioctl(fd, SIOCGIFFLAGS, &request)) {
		error = -ENODEV;
		goto end;
	}
	interface->up = request.ifr_flags & IFF_UP;
	interface->running = request.ifr_flags & IFF_RUNNING;
	interface->loopback = request.ifr_flags & IFF_LOOPBACK;
	if (ioctl(fd, SIOCGIFMTU, &request) == 0)
		interface->mtu = (uint32_t)request.ifr_mtu;
	interface->rate = read_rate(name);
end:
	close(fd);
	return error;
}

int interface_claim(const char *name, uint32_t ip)
{
	struct sockaddr_un address = {.sun_family = AF_UNIX};
	int fd = haul_descriptor(socket(AF_UNIX, SOCK_DGRAM | SOCK_CLOEXEC, 0)), length, error;

	if (fd < 0)
		return -errno;
	/* The name starts behind a 0: it is in no folder, but in the network namespace. */
	length = snprintf(address.sun_path + 1, sizeof(address.sun_path) - 1,
			  "tensorhaul-dpdk/%s/%08x", name, ip);
	if (bind(fd, (struct sockaddr *)&address,
		 (socklen_t)(offsetof(struct sockaddr_un, sun_path) + 1 + (size_t)length))) {
		error = -errno;
		close(fd);
		return error;
	}
	return fd;
}

bool interface_runs(int fd, const char *name)
{
	struct ifreq request;

	name_request(&request, name);
	if (ioctl(fd, SIOCGIFFLAGS, &request))
		return false;
	return (request.ifr_flags & (IFF_UP | IFF_RUNNING)) == (IFF_UP | IFF_RUNNING);
}

void interface_list(char *text, size_t room)
{
	struct if_nameindex *list = if_nameindex();
	struct interface interface;
	size_t used = 0;

	text[0] = 0;
	for (struct if_nameindex *at = list; at && at->if_index && used < room; at++) {
		if (interface_look(at->if_name, &interface) || interface.loopback)
			continue;
		used += (size_t)snprintf(text + used, room - used, "%s%s%s", used ? ", " : "",
					 at->if_name, interface.up ? "" : " (down)");
	}
	if (list)
		if_freenameindex(list);
	if (!text[0])
		snprintf(text, room, "none");
}

bool interface_owns(uint32_t address, char *name)
{
	struct ifaddrs *list, *at;
	bool found = false;

	if (getifaddrs(&list))
		return false;
	for (at = list; at && !found; at = at->ifa_next) {
		const struct sockaddr_in *own = (const struct sockaddr_in *)at->ifa_addr;

		if (!own || own->sin_family != AF_INET || ntohl(own->sin_addr.s_addr) != address)
			continue;
		snprintf(name, IFNAMSIZ, "%.*s", IFNAMSIZ - 1, at->ifa_name);
		found = true;
	}
	freeifaddrs(list);
	return found;
}

void each_descriptor(void (*look)(void *user, int fd), void *user)
{
	DIR *folder = opendir("/proc/self/fd");
	struct dirent *entry;

	while (folder && (entry = readdir(folder))) {
		int fd = atoi(entry->d_name);

		if (entry->d_name[0] != '.' && fd > 2 && fd != dirfd(folder))
			look(user, fd);
	}
	if (folder)
		closedir(folder);
}
