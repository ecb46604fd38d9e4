/* SPDX-License-Identifier: Apache-2.0 */
/* What this host has, in words. */
#include <arpa/inet.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "verbs.h"

/* Time for each step to a peer. */
#define ROUTE_MS 2000

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

static int no_devices(char *reason, size_t room, int count)
{
	if (count == 0)
		snprintf(reason, room,
			 "this host has no RDMA device: load its adapter's driver, or make a "
			 "software one: `modprobe rdma_rxe; rdma link add rxe0 type rxe netdev "
			 "eth0`");
	else
		snprintf(reason, room,
			 "%d RDMA devices, and none can be opened: this user has to be allowed to "
			 "read and write /dev/infiniband/uverbs*",
			 count);
	return -ENODEV;
}

/* Connections are rdma_cm's. */
static int check_connections(char *reason, size_t room)
{
	struct rdma_event_channel *events = rdma_create_event_channel();

	if (events) {
		rdma_destroy_event_channel(events);
		return 0;
	}
	snprintf(reason, room,
		 "no RDMA connections can be made (%s): `modprobe rdma_ucm` makes "
		 "/dev/infiniband/rdma_cm, which this user has to be allowed to read and write",
		 haul_strerror(errno));
	return -ENODEV;
}

/* Calls `look` for each device that can be opened; the number of them. */
static int each_device(void (*look)(void *user, struct ibv_context *verbs), void *user, int *count)
{
	struct ibv_device **list = ibv_get_device_list(count);
	int opened = 0;

	for (int i = 0; list && i < *count; i++) {
		struct ibv_context *verbs = ibv_open_device(list[i]);

		if (!verbs)
			continue;
		opened++;
		look(user, verbs);
		ibv_close_device(verbs);
	}
	if (list)
		ibv_free_device_list(list);
	return opened;
}

struct ports {
	char *text;
	size_t room;
	unsigned up;
};

static void look_at_ports(void *user, struct ibv_context *verbs)
{
	struct ports *ports = user;

	ports->up += print_ports(verbs, ports->text, ports->room);
}

int verbs_probe(char *reason, size_t room)
{
	struct ports ports = {.text = reason, .room = room};
	int count = 0;

	reason[0] = 0;
	if (each_device(look_at_ports, &ports, &count) == 0)
		return no_devices(reason, room, count);
	if (check_connections(reason, room))
		return -ENODEV;
	if (ports.up)
		return 0;
	snprintf(reason + strlen(reason), room - strlen(reason), " - no port is up");
	return -ENETDOWN;
}

/* ---- haul-info --------------------------------------------------------- */

static void describe_device(void *user, struct ibv_context *verbs)
{
	struct haul_text *text = user;
	struct ibv_device_attr limits;
	struct ibv_port_attr port;
	char gids[800];

	if (ibv_query_device(verbs, &limits))
		return;
	haul_text_add(text, "device %s: %d queue pairs, %d registrations of up to %llu bytes, %s\n",
		      ibv_get_device_name(verbs->device), limits.max_qp, limits.max_mr,
		      (unsigned long long)limits.max_mr_size,
		      limits.device_cap_flags & IBV_DEVICE_MEM_WINDOW_TYPE_2B
			      ? "memory windows"
			      : "no memory windows");
	for (uint8_t i = 1; i <= limits.phys_port_cnt; i++) {
		if (ibv_query_port(verbs, i, &port))
			continue;
		haul_text_add(text, "  port %u: %s, %s, MTU %u, messages of up to %u bytes\n", i,
			      layer(verbs, &port), ibv_port_state_str(port.state),
			      128u << port.active_mtu, port.max_msg_sz);
	}
	device_print_gids(verbs, gids, sizeof(gids));
	haul_text_add(text, "  GIDs: %s\n", gids[0] ? gids : "none");
}

/* The next event's kind, or -1 when it is a failure; the event is given back. */
static int wait_for(struct rdma_event_channel *events, enum rdma_cm_event_type wanted, int *error)
{
	struct rdma_cm_event *event;
	enum rdma_cm_event_type kind;

	if (rdma_get_cm_event(events, &event)) {
		*error = -errno;
		return -1;
	}
	kind = event->event;
	*error = event->status < 0 ? event->status : -EHOSTUNREACH;
	rdma_ack_cm_event(event);
	return kind == wanted ? 0 : -1;
}

static int find_route(struct rdma_event_channel *events, struct rdma_cm_id *id,
		      struct sockaddr_storage *peer)
{
	int error = 0;

	if (rdma_resolve_addr(id, NULL, (struct sockaddr *)peer, ROUTE_MS))
		return -errno;
	if (wait_for(events, RDMA_CM_EVENT_ADDR_RESOLVED, &error))
		return error;
	if (rdma_resolve_route(id, ROUTE_MS))
		return -errno;
	return wait_for(events, RDMA_CM_EVENT_ROUTE_RESOLVED, &error) ? error : 0;
}

/* Without the port, which says nothing about the way. */
static void print_host(const struct sockaddr_storage *address, char *text, size_t room)
{
	haul_address_print(address, text, room);
	*strrchr(text, ':') = 0;
}

static void print_route(struct haul_text *text, const struct rdma_cm_id *id, const char *to,
			const struct sockaddr_storage *peer)
{
	struct sockaddr_storage own = {0};
	struct ibv_port_attr port;
	char from[128];

	memcpy(&own, rdma_get_local_addr((struct rdma_cm_id *)id),
	       peer->ss_family == AF_INET6 ? sizeof(struct sockaddr_in6)
					   : sizeof(struct sockaddr_in));
	print_host(&own, from, sizeof(from));
	haul_text_add(text, "to %s: device %s port %u, from %s", to,
		      ibv_get_device_name(id->verbs->device), id->port_num, from);
	if (ibv_query_port(id->verbs, id->port_num, &port) == 0)
		haul_text_add(text, ", MTU %u", 128u << port.active_mtu);
	haul_text_add(text, "\n");
}

static void describe_route(struct haul_text *text, const char *where)
{
	struct haul_addresses addresses = {0};
	struct rdma_event_channel *events;
	struct rdma_cm_id *id = NULL;
	int error = haul_address_parse(NULL, where, &addresses);
	char to[128];

	if (error) {
		haul_text_add(text, "to %s: %s\n", where, haul_strerror(error));
		return;
	}
	print_host(&addresses.list[0], to, sizeof(to));
	if (device_is_loopback(&addresses.list[0])) {
		haul_text_add(
			text,
			"to %s: no device leads there; name an address of the peer's adapter\n",
			to);
		free(addresses.list);
		return;
	}
	events = rdma_create_event_channel();
	error = events ? 0 : -errno;
	if (!error && rdma_create_id(events, &id, NULL, RDMA_PS_TCP))
		error = -errno;
	if (!error)
		error = find_route(events, id, &addresses.list[0]);
	if (error)
		haul_text_add(text, "to %s: no device leads there (%s)\n", to,
			      haul_strerror(error));
	else
		print_route(text, id, to, &addresses.list[0]);
	if (id)
		rdma_destroy_id(id);
	free(addresses.list);
	if (events)
		rdma_destroy_event_channel(events);
}

int verbs_describe(const char *where, char *out, size_t room)
{
	struct haul_text text = {.at = out, .room = room};
	int count;

	out[0] = 0;
	each_device(describe_device, &text, &count);
	if (where)
		describe_route(&text, where);
	return 0;
}
