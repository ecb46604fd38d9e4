/* SPDX-License-Identifier: Apache-2.0 */
/* Adapters: which there are, which is meant, and what it can do. */
#include <errno.h>
#include <ifaddrs.h>
#include <net/if.h>
#include <netinet/in.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "verbs.h"

/* RXE_VENDOR_ID of the kernel's drivers/infiniband/sw/rxe/rxe_param.h */
#define RXE_VENDOR 0xffffffu

/* SIW_VENDOR_ID of drivers/infiniband/sw/siw/siw.h */
#define SIW_VENDOR 0x626d74u

/* Entries of 32 bytes: more than the 0x90 pages before the offset that siw_cover() is about. */
#define SIW_COVER 32768

/* ---- A device in use --------------------------------------------------- */

/*
 * libsiw takes a queue that is mapped from offset 0x90000 on for one that could not be made, since
 * that number means "none" to it (SIW_INVAL_UOBJ_KEY), and the kernel gives offsets away one page
 * after the other: about the 33rd queue pair of a process ended in EINVAL. A completion queue that
 * nobody uses lies over that offset.
 */
static struct ibv_cq *siw_cover(const struct device *device)
{
	if (device->limits.vendor_id != SIW_VENDOR)
		return NULL;
	return ibv_create_cq(device->verbs, SIW_COVER, NULL, NULL, 0);
}

static int open_queues(struct device *device)
{
	int error;

	device->pd = ibv_alloc_pd(device->verbs);
	device->events = device->pd ? ibv_create_comp_channel(device->verbs) : NULL;
	if (!device->events)
		return -errno;
	error = verbs_set_nonblocking(device->events->fd);
	return error ? error : verbs_set_nonblocking(device->verbs->async_fd);
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
	device->windows = has && !device->iwarp && config->windows != WINDOWS_OFF &&
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
	device->rxe = device->limits.vendor_id == RXE_VENDOR;
	device->immediates = !device->iwarp;
	device->message_max =
		longest_message(device->verbs, (unsigned)device->limits.phys_port_cnt);
	device->cover = siw_cover(device);
	error = choose_windows(device);
	if (!error)
		error = open_queues(device);
	if (!error)
		error = open_mailbox(device);
	return error ? error : verbs_watch(device->context, device->events->fd, device);
}

/*
 * librdmacm closes a device with the last connection over it: one that is bound and never used
 * keeps it open.
 */
static struct rdma_cm_id *anchor_to(struct backend_context *context,
				    const struct sockaddr_storage *address)
{
	struct sockaddr_storage own = *address;
	struct rdma_cm_id *id;

	haul_address_set_port(&own, 0);
	if (rdma_create_id(context->events, &id, NULL, RDMA_PS_TCP))
		return NULL;
	if (rdma_bind_addr(id, (struct sockaddr *)&own) == 0 && id->verbs)
		return id;
	rdma_destroy_id(id);
	return NULL;
}

static struct device *device_new(struct backend_context *context, struct rdma_cm_id *anchor)
{
	struct device *device = calloc(1, sizeof(*device));
	char limit[LOCK_LIMIT_ROOM];
	int error;

	if (!device) {
		verbs_fail(context, -ENOMEM, "no memory for device %s",
			   ibv_get_device_name(anchor->verbs->device));
		rdma_destroy_id(anchor);
		return NULL;
	}
	device->context = context;
	device->anchor = anchor;
	device->verbs = anchor->verbs;
	error = open_device(device);
	if (error) {
		if (error != -EOPNOTSUPP)
			verbs_fail(context, error,
				   "device %s can't be used: %s; %s; the limit of open files is "
				   "%ld (ulimit -n)",
				   ibv_get_device_name(device->verbs->device), haul_strerror(error),
				   verbs_lock_limit(limit), sysconf(_SC_OPEN_MAX));
		device_free(device);
		return NULL;
	}
	TAILQ_INSERT_TAIL(&context->devices, device, all);
	return device;
}

static struct device *device_known(struct backend_context *context, struct ibv_context *verbs)
{
	struct device *device;

	TAILQ_FOREACH (device, &context->devices, all) {
		if (device->verbs == verbs)
			return device;
	}
	return NULL;
}

struct device *device_use(struct backend_context *context, struct rdma_cm_id *id)
{
	struct device *device = device_known(context, id->verbs);
	struct rdma_cm_id *anchor;

	if (device)
		return device;
	anchor = anchor_to(context, (struct sockaddr_storage *)rdma_get_local_addr(id));
	if (!anchor) {
		verbs_fail(context, -ENODEV, "device %s is gone",
			   ibv_get_device_name(id->verbs->device));
		return NULL;
	}
	return device_new(context, anchor);
}

/*
 * What the device said of a queue pair that it broke, for people to read. Other contexts of this
 * process share the device: whoever asks first gets the word.
 */
const char *device_last_event(struct device *device)
{
	const char *text = "the device does not say why";
	struct ibv_async_event event;

	while (ibv_get_async_event(device->verbs, &event) == 0) {
		text = ibv_event_type_str(event.event_type);
		ibv_ack_async_event(&event);
	}
	return text;
}

/* Of a device that is in no list. */
void device_free(struct device *device)
{
	if (device->mailbox)
		ibv_dereg_mr(device->mailbox);
	if (device->sink)
		ibv_dereg_mr(device->sink);
	if (device->cover)
		ibv_destroy_cq(device->cover);
	if (device->events)
		ibv_destroy_comp_channel(device->events);
	if (device->pd)
		ibv_dealloc_pd(device->pd);
	rdma_destroy_id(device->anchor);
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

bool device_is_named(const struct backend_context *context, const struct ibv_context *verbs)
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

/* Whether the host has a device of the name that was asked for; without one, whether it has any. */
static bool exists(const struct backend_context *context)
{
	int count = 0;
	struct ibv_device **list = ibv_get_device_list(&count);
	const char *name = context->config->device;
	bool found = false;

	for (int i = 0; i < count; i++)
		found = found || !name || strcmp(ibv_get_device_name(list[i]), name) == 0;
	if (list)
		ibv_free_device_list(list);
	return found;
}

/* librdmacm does not say that a device could not be opened for want of a descriptor. */
static bool out_of_descriptors(void)
{
	int fd = dup(STDERR_FILENO);

	if (fd < 0)
		return errno == EMFILE || errno == ENFILE;
	close(fd);
	return false;
}

/* Of the device that was asked for, or of all: the file that this user may not open. */
static bool is_forbidden(const struct backend_context *context, char *path, size_t room)
{
	int count = 0;
	struct ibv_device **list = ibv_get_device_list(&count);
	const char *name = context->config->device;
	bool forbidden = false;

	for (int i = 0; i < count; i++) {
		if (name && strcmp(ibv_get_device_name(list[i]), name))
			continue;
		snprintf(path, room, "/dev/infiniband/%s", list[i]->dev_name);
		forbidden = verbs_is_forbidden(path);
		if (!forbidden)
			break;
	}
	if (list)
		ibv_free_device_list(list);
	return forbidden;
}

bool device_is_any(void)
{
	int count = 0;
	struct ibv_device **list = ibv_get_device_list(&count);

	if (list)
		ibv_free_device_list(list);
	return count > 0;
}

int device_missing(struct backend_context *context)
{
	const char *name = context->config->device;
	char names[256], path[300];

	if (out_of_descriptors())
		return verbs_no_descriptor(context);
	if (is_forbidden(context, path, sizeof(path)))
		return verbs_fail(context, -EACCES,
				  "this user may not open %s, and has to be allowed to read and "
				  "write it",
				  path);
	list_names(names, sizeof(names));
	if (exists(context))
		return verbs_fail(context, -ENODEV,
				  "%s%s has no IP address, or may not be opened: connections are "
				  "made by address (haul-info tells more)",
				  name ? "device=" : "the RDMA device ", name ? name : names);
	if (names[0])
		return verbs_fail(context, -ENODEV, "device=%s: the devices here are %s", name,
				  names);
	return verbs_fail(
		context, -ENODEV,
		"this host has no RDMA device (haul-info and ibv_devices list them): load "
		"its driver, or make a software one: `rdma link add rxe0 type rxe netdev "
		"eth0`");
}

struct device *device_default(struct backend_context *context)
{
	struct sockaddr_storage address;
	struct rdma_cm_id *anchor;
	struct device *device;

	if (device_address(context, AF_UNSPEC, &address)) {
		device_missing(context);
		return NULL;
	}
	anchor = anchor_to(context, &address);
	if (!anchor) {
		device_missing(context);
		return NULL;
	}
	device = device_known(context, anchor->verbs);
	if (!device)
		return device_new(context, anchor);
	rdma_destroy_id(anchor);
	return device;
}

int device_is_wished(struct backend_context *context, struct ibv_context *verbs, char *why,
		     size_t room)
{
	if (device_is_named(context, verbs))
		return 0;
	snprintf(why, room, "the route goes over device %s, and device=%s was asked for",
		 ibv_get_device_name(verbs->device), context->config->device);
	return -ENODEV;
}

/* ---- Which address of ours --------------------------------------------- */

bool device_is_loopback(const struct sockaddr_storage *address)
{
	const struct sockaddr_in *four = (const struct sockaddr_in *)address;
	const struct sockaddr_in6 *six = (const struct sockaddr_in6 *)address;

	if (address->ss_family == AF_INET)
		return ntohl(four->sin_addr.s_addr) >> 24 == IN_LOOPBACKNET;
	return IN6_IS_ADDR_LOOPBACK(&six->sin6_addr);
}

/* How well an address of this host would do: 0 not at all, 1 its port is down, 2 well. */
static int worth(struct backend_context *context, const struct sockaddr_storage *address)
{
	struct rdma_cm_id *id = anchor_to(context, address);
	int result = 0;

	if (!id)
		return 0;
	if (device_is_named(context, id->verbs))
		result = is_up(id->verbs) ? 2 : 1;
	rdma_destroy_id(id);
	return result;
}

/* An interface's address, when it is of the family that is looked for. */
static bool take_address(const struct ifaddrs *from, int family, struct sockaddr_storage *out)
{
	size_t size;

	if (!from->ifa_addr || (from->ifa_flags & IFF_LOOPBACK))
		return false;
	if (from->ifa_addr->sa_family == AF_INET)
		size = sizeof(struct sockaddr_in);
	else if (from->ifa_addr->sa_family == AF_INET6)
		size = sizeof(struct sockaddr_in6);
	else
		return false;
	if (family != AF_UNSPEC && from->ifa_addr->sa_family != family)
		return false;
	memset(out, 0, sizeof(*out));
	memcpy(out, from->ifa_addr, size);
	return true;
}

int device_address(struct backend_context *context, int family, struct sockaddr_storage *out)
{
	struct sockaddr_storage address;
	struct ifaddrs *list, *at;
	int best = 0;

	if (getifaddrs(&list))
		return -errno;
	for (at = list; at && best < 2; at = at->ifa_next) {
		int value = take_address(at, family, &address) ? worth(context, &address) : 0;

		if (value <= best)
			continue;
		best = value;
		*out = address;
	}
	freeifaddrs(list);
	return best ? 0 : -EADDRNOTAVAIL;
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

bool device_owns(struct backend_context *context, const struct sockaddr_storage *address,
		 const struct ibv_context *verbs)
{
	struct rdma_cm_id *id = anchor_to(context, address);
	bool found = id && (!verbs || id->verbs == verbs);

	if (id)
		rdma_destroy_id(id);
	return found;
}

/* Of gid=: the table is what helps. */
static int wrong_gid(struct backend_context *context, const char *why)
{
	struct device *device = device_default(context);
	char table[400] = "";

	if (device)
		device_print_gids(device->verbs, table, sizeof(table));
	return verbs_fail(context, -EADDRNOTAVAIL, "gid=%u %s; the GIDs of device %s: %s",
			  (unsigned)context->config->gid, why,
			  device ? ibv_get_device_name(device->verbs->device) : "", table);
}

static int gid_source(struct backend_context *context, struct sockaddr_storage *source)
{
	unsigned index = (unsigned)context->config->gid;
	struct device *device = device_default(context);
	struct ibv_gid_entry entry;

	if (!device)
		return -ENODEV;
	if (ibv_query_gid_ex(device->verbs, 1, index, &entry, 0) == 0 &&
	    gid_to_address(&entry, source) == 0 && device_owns(context, source, device->verbs))
		return 0;
	return wrong_gid(context, "is no address, and connections are made by address");
}

static int bind_source(struct backend_context *context, struct sockaddr_storage *source)
{
	const char *text = context->config->bind;
	struct haul_addresses addresses;
	struct rdma_cm_id *id;
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
	id = anchor_to(context, source);
	if (!id)
		return verbs_fail(context, -EADDRNOTAVAIL,
				  "bind=%s: no RDMA device of this host has that address "
				  "(haul-info lists them)",
				  text);
	error = device_is_named(context, id->verbs)
			? 0
			: verbs_fail(context, -EADDRNOTAVAIL,
				     "bind=%s is an address of device %s, and device=%s was asked "
				     "for: give one of them",
				     text, ibv_get_device_name(id->verbs->device),
				     context->config->device);
	rdma_destroy_id(id);
	return error;
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
	if (!error && config->bind && family != AF_UNSPEC && source->ss_family != family)
		error = verbs_fail(context, -EADDRNOTAVAIL,
				   "bind=%s is no %s address, as the peer's", config->bind,
				   family == AF_INET6 ? "IPv6" : "IPv4");
	if (!error && config->gid != HAUL_OPTION_AUTO && family != AF_UNSPEC &&
	    source->ss_family != family)
		error = wrong_gid(context, family == AF_INET6
						   ? "is no IPv6 address, as the peer's"
						   : "is no IPv4 address, as the peer's");
	if (error == -EADDRNOTAVAIL && !config->bind && config->gid == HAUL_OPTION_AUTO)
		return exists(context)
			       ? verbs_fail(context, error, "device=%s has no %s address",
					    config->device, family == AF_INET6 ? "IPv6" : "IPv4")
			       : device_missing(context);
	return error;
}
