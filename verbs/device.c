/* SPDX-License-Identifier: Apache-2.0 */
/* Adapters: which there are, which is meant, and what it can do. */
#include <errno.h>
#include <fcntl.h>
#include <ifaddrs.h>
#include <netinet/in.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "verbs.h"

/* ---- A device in use --------------------------------------------------- */

static int open_queues(struct device *device)
{
	int flags;

	device->pd = ibv_alloc_pd(device->verbs);
	device->events = device->pd ? ibv_create_comp_channel(device->verbs) : NULL;
	if (!device->events)
		return -errno;
	flags = fcntl(device->events->fd, F_GETFL);
	if (fcntl(device->events->fd, F_SETFL, flags | O_NONBLOCK))
		return -errno;
	return 0;
}

/* Peers read 8 bytes of the first page to see whether this host is there, and so do we with theirs.
 * With iWARP, what is read arrives as a write of the peer's. */
static int open_mailbox(struct device *device)
{
	uint8_t *page = device->context->mailbox;

	device->mailbox = ibv_reg_mr(device->pd, page, MAILBOX_SIZE, IBV_ACCESS_REMOTE_READ);
	device->sink =
		ibv_reg_mr(device->pd, page + MAILBOX_SIZE, MAILBOX_SIZE,
			   IBV_ACCESS_LOCAL_WRITE | (device->iwarp ? IBV_ACCESS_REMOTE_WRITE : 0));
	return device->mailbox && device->sink ? 0 : -errno;
}

static int watch(struct device *device)
{
	struct epoll_event event = {.events = EPOLLIN, .data.ptr = device};

	return epoll_ctl(device->context->epoll, EPOLL_CTL_ADD, device->events->fd, &event) ? -errno
											    : 0;
}

/* What the port allows: the longest message, and whether it is up. */
static uint64_t longest_message(struct ibv_context *verbs, unsigned ports)
{
	uint64_t longest = UINT32_C(1) << 30;

	for (unsigned i = 1; i <= ports; i++) {
		struct ibv_port_attr port;

		if (ibv_query_port(verbs, (uint8_t)i, &port) == 0 && port.max_msg_sz &&
		    port.max_msg_sz < longest)
			longest = port.max_msg_sz;
	}
	return longest;
}

static int choose_windows(struct device *device)
{
	struct backend_context *context = device->context;
	const struct verbs_config *config = context->config;
	bool has = device->limits.device_cap_flags & IBV_DEVICE_MEM_WINDOW_TYPE_2B;

	if (config->windows == WINDOWS_ON && !has)
		return verbs_fail(context, -EOPNOTSUPP,
				  "windows=on: device %s has no memory windows of type 2B",
				  ibv_get_device_name(device->verbs->device));
	/* A window belongs to one queue pair. */
	device->windows = has && config->windows != WINDOWS_OFF &&
			  (config->windows == WINDOWS_ON || config->qps == HAUL_OPTION_AUTO ||
			   config->qps == 1);
	return 0;
}

static int open_device(struct device *device)
{
	int error = -ibv_query_device(device->verbs, &device->limits);

	if (error)
		return error;
	device->iwarp = device->verbs->device->transport_type == IBV_TRANSPORT_IWARP;
	device->immediates = !device->iwarp;
	device->message_max =
		longest_message(device->verbs, (unsigned)device->limits.phys_port_cnt);
	error = choose_windows(device);
	if (!error)
		error = open_queues(device);
	if (!error)
		error = open_mailbox(device);
	return error ? error : watch(device);
}

struct device *device_use(struct backend_context *context, struct ibv_context *verbs)
{
	struct device *device;
	int error;

	TAILQ_FOREACH (device, &context->devices, all) {
		if (device->verbs == verbs)
			return device;
	}
	device = calloc(1, sizeof(*device));
	if (!device)
		return NULL;
	device->context = context;
	device->verbs = verbs;
	error = open_device(device);
	if (error) {
		if (error != -EOPNOTSUPP)
			verbs_fail(context, error,
				   "device %s can't be used: %s (ulimit -l, the locked memory, and "
				   "ulimit -n count too)",
				   ibv_get_device_name(verbs->device), haul_strerror(error));
		device_free(device);
		return NULL;
	}
	TAILQ_INSERT_TAIL(&context->devices, device, all);
	return device;
}

/* Of a device that is in no list. */
void device_free(struct device *device)
{
	if (device->mailbox)
		ibv_dereg_mr(device->mailbox);
	if (device->sink)
		ibv_dereg_mr(device->sink);
	if (device->events)
		ibv_destroy_comp_channel(device->events);
	if (device->pd)
		ibv_dealloc_pd(device->pd);
	free(device);
}

/* ---- Which one --------------------------------------------------------- */

static bool is_up(struct ibv_context *verbs)
{
	struct ibv_device_attr limits;
	struct ibv_port_attr port;

	if (ibv_query_device(verbs, &limits))
		return false;
	for (uint8_t i = 1; i <= limits.phys_port_cnt; i++) {
		if (ibv_query_port(verbs, i, &port) == 0 && port.state == IBV_PORT_ACTIVE)
			return true;
	}
	return false;
}

static bool is_named(const struct backend_context *context, const struct ibv_context *verbs)
{
	const char *name = context->config->device;

	return !name || strcmp(name, ibv_get_device_name(verbs->device)) == 0;
}

static void list_names(char *text, size_t room)
{
	int count = 0;
	struct ibv_device **list = ibv_get_device_list(&count);
	size_t used = 0;

	text[0] = 0;
	for (int i = 0; i < count && used < room; i++)
		used += (size_t)snprintf(text + used, room - used, "%s%s", i ? ", " : "",
					 ibv_get_device_name(list[i]));
	if (list)
		ibv_free_device_list(list);
}

/* The first device of rdma_cm's that is wished for and up; `any`: also one that is down. */
static struct ibv_context *first_device(struct backend_context *context, bool any)
{
	int count = 0;
	struct ibv_context **list = rdma_get_devices(&count), *found = NULL;

	for (int i = 0; i < count && !found; i++) {
		if (is_named(context, list[i]) && (any || is_up(list[i])))
			found = list[i];
	}
	if (list)
		rdma_free_devices(list);
	return found;
}

static int no_device(struct backend_context *context)
{
	char names[256];

	list_names(names, sizeof(names));
	if (context->config->device && names[0])
		return verbs_fail(context, -ENODEV, "device=%s: the devices here are %s",
				  context->config->device, names);
	return verbs_fail(
		context, -ENODEV,
		"this host has no RDMA device (haul-info and ibv_devices list them): load "
		"its driver, or make a software one: `rdma link add rxe0 type rxe netdev "
		"eth0`");
}

struct device *device_default(struct backend_context *context)
{
	struct ibv_context *verbs = first_device(context, false);

	if (!verbs)
		verbs = first_device(context, true);
	if (!verbs) {
		no_device(context);
		return NULL;
	}
	return device_use(context, verbs);
}

int device_is_wished(struct backend_context *context, struct ibv_context *verbs, char *why,
		     size_t room)
{
	if (is_named(context, verbs))
		return 0;
	snprintf(why, room, "the route goes over device %s, and device=%s was asked for",
		 ibv_get_device_name(verbs->device), context->config->device);
	return -ENODEV;
}

/* ---- Which address of ours --------------------------------------------- */

/* The device that rdma_cm finds behind an address of this host; NULL: none. */
static struct ibv_context *device_behind(struct backend_context *context,
					 const struct sockaddr *address)
{
	struct ibv_context *verbs = NULL;
	struct rdma_cm_id *id;

	if (rdma_create_id(context->events, &id, NULL, RDMA_PS_TCP))
		return NULL;
	if (rdma_bind_addr(id, (struct sockaddr *)address) == 0)
		verbs = id->verbs;
	rdma_destroy_id(id);
	return verbs;
}

int device_address(struct backend_context *context, int family, struct sockaddr_storage *out)
{
	struct ifaddrs *list, *at;
	int error = -EADDRNOTAVAIL;

	if (getifaddrs(&list))
		return -errno;
	for (at = list; at && error; at = at->ifa_next) {
		struct ibv_context *verbs;

		if (!at->ifa_addr ||
		    (at->ifa_addr->sa_family != AF_INET && at->ifa_addr->sa_family != AF_INET6))
			continue;
		if (family != AF_UNSPEC && at->ifa_addr->sa_family != family)
			continue;
		verbs = device_behind(context, at->ifa_addr);
		if (!verbs || !is_named(context, verbs))
			continue;
		memset(out, 0, sizeof(*out));
		memcpy(out, at->ifa_addr,
		       at->ifa_addr->sa_family == AF_INET6 ? sizeof(struct sockaddr_in6)
							   : sizeof(struct sockaddr_in));
		error = 0;
	}
	freeifaddrs(list);
	return error;
}

/* A GID of RoCE v2 is an address; others belong to no address that rdma_cm could bind to. */
static int gid_to_address(const struct ibv_gid_entry *entry, struct sockaddr_storage *out)
{
	const struct in6_addr *address = (const struct in6_addr *)entry->gid.raw;

	memset(out, 0, sizeof(*out));
	if (entry->gid_type == IBV_GID_TYPE_ROCE_V1)
		return -EINVAL;
	if (IN6_IS_ADDR_V4MAPPED(address)) {
		struct sockaddr_in *four = (struct sockaddr_in *)out;

		four->sin_family = AF_INET;
		memcpy(&four->sin_addr, &address->s6_addr[12], 4);
	} else {
		struct sockaddr_in6 *six = (struct sockaddr_in6 *)out;

		six->sin6_family = AF_INET6;
		six->sin6_addr = *address;
		if (IN6_IS_ADDR_LINKLOCAL(address))
			six->sin6_scope_id = entry->ndev_ifindex;
	}
	return 0;
}

static int gid_source(struct backend_context *context, struct sockaddr_storage *source)
{
	unsigned index = (unsigned)context->config->gid;
	struct device *device = device_default(context);
	struct ibv_gid_entry entry;
	char table[600];

	if (!device)
		return -ENODEV;
	if (ibv_query_gid_ex(device->verbs, 1, index, &entry, 0) == 0 &&
	    gid_to_address(&entry, source) == 0 &&
	    device_behind(context, (struct sockaddr *)source) == device->verbs)
		return 0;
	device_print_gids(device->verbs, table, sizeof(table));
	return verbs_fail(context, -EADDRNOTAVAIL,
			  "gid=%u: connections are made by address, and that GID of device %s "
			  "belongs to none; its GIDs are %s",
			  index, ibv_get_device_name(device->verbs->device), table);
}

static int bind_source(struct backend_context *context, struct sockaddr_storage *source)
{
	const char *text = context->config->bind;
	struct haul_addresses addresses;
	char where[300];
	int error;

	snprintf(where, sizeof(where), strchr(text, ':') && text[0] != '[' ? "[%s]:0" : "%s:0",
		 text);
	error = haul_address_parse(context->engine, where, &addresses);
	if (error)
		return verbs_fail(context, error,
				  "bind=%s: expected a numeric address of this host", text);
	*source = addresses.list[0];
	free(addresses.list);
	if (!device_behind(context, (struct sockaddr *)source))
		return verbs_fail(context, -EADDRNOTAVAIL,
				  "bind=%s: no RDMA device of this host has that address", text);
	return 0;
}

int device_source(struct backend_context *context, int family, struct sockaddr_storage *source)
{
	const struct verbs_config *config = context->config;
	int error = 0;

	source->ss_family = AF_UNSPEC;
	if (config->bind)
		error = bind_source(context, source);
	else if (config->gid != HAUL_OPTION_AUTO)
		error = gid_source(context, source);
	else if (config->device)
		error = device_address(context, family, source);
	if (error == -EADDRNOTAVAIL && !config->bind && config->gid == HAUL_OPTION_AUTO)
		return first_device(context, true)
			       ? verbs_fail(context, error, "device=%s has no %s address",
					    config->device, family == AF_INET6 ? "IPv6" : "IPv4")
			       : no_device(context);
	return error;
}
