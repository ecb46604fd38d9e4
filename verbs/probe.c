/* SPDX-License-Identifier: Apache-2.0 */
/* What this host has, in words. */
#include <arpa/inet.h>
#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "verbs.h"

static const char *gid_type(enum ibv_gid_type type)
{
	switch (type) {
	case IBV_GID_TYPE_ROCE_V1:
		return "RoCE v1";
	case IBV_GID_TYPE_ROCE_V2:
		return "RoCE v2";
	default:
		return "InfiniBand or iWARP";
	}
}

void device_print_gids(struct ibv_context *verbs, char *text, size_t room)
{
	struct ibv_gid_entry entries[16];
	ssize_t count = ibv_query_gid_table(verbs, entries, 16, 0);
	size_t used = 0;

	text[0] = 0;
	for (ssize_t i = 0; i < count && used < room; i++) {
		char address[INET6_ADDRSTRLEN];

		inet_ntop(AF_INET6, entries[i].gid.raw, address, sizeof(address));
		used += (size_t)snprintf(text + used, room - used, "%s%u %s (%s)", i ? ", " : "",
					 entries[i].gid_index, address,
					 gid_type(entries[i].gid_type));
	}
}

static const char *layer(const struct ibv_context *verbs, const struct ibv_port_attr *port)
{
	if (verbs->device->transport_type == IBV_TRANSPORT_IWARP)
		return "iWARP";
	return port->link_layer == IBV_LINK_LAYER_ETHERNET ? "RoCE" : "InfiniBand";
}

/* Appends one device's ports; the number of them that are up. */
static unsigned print_ports(struct ibv_context *verbs, char *text, size_t room)
{
	struct ibv_device_attr limits;
	struct ibv_port_attr port;
	size_t used = strlen(text);
	unsigned up = 0;

	if (ibv_query_device(verbs, &limits))
		return 0;
	for (uint8_t i = 1; i <= limits.phys_port_cnt && used < room; i++) {
		if (ibv_query_port(verbs, i, &port))
			continue;
		up += port.state == IBV_PORT_ACTIVE;
		used += (size_t)snprintf(text + used, room - used, "%s%s port %u: %s, %s, MTU %u%s",
					 used ? "; " : "", ibv_get_device_name(verbs->device), i,
					 layer(verbs, &port), ibv_port_state_str(port.state),
					 128u << port.active_mtu,
					 limits.device_cap_flags & IBV_DEVICE_MEM_WINDOW_TYPE_2B
						 ? ", memory windows"
						 : "");
	}
	return up;
}

static int no_devices(char *reason, size_t room)
{
	int count = 0;
	struct ibv_device **list = ibv_get_device_list(&count);

	if (list)
		ibv_free_device_list(list);
	if (count == 0)
		snprintf(reason, room,
			 "this host has no RDMA device: load its adapter's driver, or make a "
			 "software one: `modprobe rdma_rxe; rdma link add rxe0 type rxe netdev "
			 "eth0`");
	else
		snprintf(
			reason, room,
			"%d RDMA devices, and none can be opened: this user has to be allowed to "
			"read and write /dev/infiniband/uverbs* and /dev/infiniband/rdma_cm (which "
			"`modprobe rdma_ucm` makes)",
			count);
	return -ENODEV;
}

int verbs_probe(char *reason, size_t room)
{
	int count = 0;
	struct ibv_context **list = rdma_get_devices(&count);
	unsigned up = 0;

	reason[0] = 0;
	if (!list || count == 0) {
		if (list)
			rdma_free_devices(list);
		return no_devices(reason, room);
	}
	for (int i = 0; i < count; i++)
		up += print_ports(list[i], reason, room);
	rdma_free_devices(list);
	if (up)
		return 0;
	snprintf(reason + strlen(reason), room - strlen(reason), " - no port is up");
	return -ENETDOWN;
}
