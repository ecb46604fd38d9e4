/* SPDX-License-Identifier: Apache-2.0 */
/* Registered memory: pinned, and known to the devices that are in use. */
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <unistd.h>

#include "verbs.h"

/* ---- Errors ------------------------------------------------------------ */

/* Whether all of it is mapped: some kernels and libraries say that there is no memory when it
 * isn't. */
static bool is_mapped(const struct region *region)
{
	uintptr_t page = (uintptr_t)sysconf(_SC_PAGESIZE);
	uintptr_t first = (uintptr_t)region->base & ~(page - 1);
	uintptr_t last = ((uintptr_t)region->base + region->length - 1) & ~(page - 1);
	unsigned char resident;

	if (region->dmabuf >= 0)
		return true;
	/* The ends, and so many pages between them that a hole shows. */
	for (unsigned i = 0; i <= 64; i++) {
		uintptr_t at = first + (uintptr_t)((last - first) / page * i / 64) * page;

		if (mincore((void *)at, page, &resident) && errno == ENOMEM)
			return false;
	}
	return true;
}

static int explain(struct backend_context *context, const struct device *device,
		   const struct region *region, int error)
{
	const char *name = ibv_get_device_name(device->verbs->device);
	char limit[LOCK_LIMIT_ROOM];

	if (error == -ENOMEM && !is_mapped(region))
		error = -EFAULT;

	switch (error) {
	case -ENOMEM:
	case -EAGAIN:
	case -EPERM:
		return verbs_fail(context, -ENOMEM,
				  "device %s can't register %zu bytes: out of locked memory? %s; "
				  "the device has room for %d registrations",
				  name, region->length, verbs_lock_limit(limit),
				  device->limits.max_mr);
	case -EFAULT:
		return verbs_fail(context, -EFAULT,
				  "device %s can't register %zu bytes at %p: not all of it is "
				  "mapped%s",
				  name, region->length, (void *)region->base,
				  region->use & HAUL_USE_RECV ? ", or not all may be written" : "");
	case -EOPNOTSUPP:
		return verbs_fail(context, -EOPNOTSUPP,
				  "device %s, its driver or this kernel can't register that kind "
				  "of memory",
				  name);
	default:
		return verbs_fail(context, error, "device %s can't register %zu bytes: %s", name,
				  region->length, haul_strerror(error));
	}
}

/* ---- Registrations ----------------------------------------------------- */

static int access_of(const struct device *device, unsigned use)
{
	if (!(use & HAUL_USE_RECV))
		return 0;
	/* Either a window opens a part of it, or the peer gets the key to all. */
	return IBV_ACCESS_LOCAL_WRITE |
	       (device->windows ? IBV_ACCESS_MW_BIND : IBV_ACCESS_REMOTE_WRITE);
}

static void registration_free(struct registration *registration)
{
	while (registration->count > 0)
		ibv_dereg_mr(registration->mrs[--registration->count]);
	free(registration);
}

/* Devices say how much one registration may hold; some say 0 and mean no limit. */
static uint64_t piece_of(const struct backend_context *context, const struct device *device)
{
	uint64_t page = (uint64_t)sysconf(_SC_PAGESIZE);
	uint64_t each = device->limits.max_mr_size ? device->limits.max_mr_size : UINT64_MAX;

	if (context->config->region_piece < each)
		each = context->config->region_piece;
	return each > page ? each - each % page : page;
}

static struct ibv_mr *register_part(struct device *device, const struct region *region,
				    uint64_t from, uint64_t length)
{
	int access = access_of(device, region->use);
	uint8_t *base = region->base + from;

	errno = 0;
	if (region->dmabuf < 0)
		return ibv_reg_mr(device->pd, base, length, access);
	return ibv_reg_dmabuf_mr(device->pd, region->dmabuf_offset + from, length, (uintptr_t)base,
				 region->dmabuf, access);
}

static struct registration *registration_new(struct backend_context *context, struct region *region,
					     struct device *device)
{
	uint64_t each = piece_of(context, device);
	size_t count = (region->length - 1) / each + 1;
	struct registration *registration;
	int error = 0;

	if (count > (size_t)device->limits.max_mr) {
		verbs_fail(context, -ENOMEM,
			   "device %s can't register %zu bytes: it takes %d registrations of at "
			   "most %llu bytes",
			   ibv_get_device_name(device->verbs->device), region->length,
			   device->limits.max_mr, (unsigned long long)each);
		return NULL;
	}
	registration = calloc(1, sizeof(*registration) + count * sizeof(struct ibv_mr *));
	if (!registration)
		return NULL;
	registration->device = device;
	registration->each = each;
	for (size_t i = 0; i < count && !error; i++) {
		uint64_t from = i * each, left = region->length - from;
		struct ibv_mr *mr = register_part(device, region, from, left < each ? left : each);

		if (mr)
			registration->mrs[registration->count++] = mr;
		else
			error = errno ? -errno : -EIO;
	}
	if (error) {
		registration_free(registration);
		explain(context, device, region, error);
		return NULL;
	}
	registration->next = region->registrations;
	region->registrations = registration;
	return registration;
}

struct registration *region_on(struct backend_context *context, struct region *region,
			       struct device *device)
{
	struct registration *registration = region->registrations;

	while (registration && registration->device != device)
		registration = registration->next;
	return registration ? registration : registration_new(context, region, device);
}

void registration_use(struct registration *registration)
{
	registration->windows++;
}

void registration_unuse(struct registration *registration)
{
	registration->windows--;
	if (registration->dying && registration->windows == 0)
		registration_free(registration);
}

/* ---- Regions ----------------------------------------------------------- */

static void region_free(struct backend_context *context, struct region *region)
{
	struct registration *registration;

	while ((registration = region->registrations)) {
		region->registrations = registration->next;
		registration->dying = true;
		if (registration->windows == 0)
			registration_free(registration);
	}
	TAILQ_REMOVE(&context->regions, region, all);
	if (region->dmabuf >= 0)
		close(region->dmabuf);
	free(region);
}

static struct region *region_new(struct backend_context *context, void *base, size_t length,
				 unsigned use)
{
	struct region *region = calloc(1, sizeof(*region));

	if (!region)
		return NULL;
	region->base = base;
	region->length = length;
	region->use = use;
	region->dmabuf = -1;
	TAILQ_INSERT_TAIL(&context->regions, region, all);
	return region;
}

/* With the devices that are in use now; with others when a peer is met over them. */
static int register_now(struct backend_context *context, struct region *region)
{
	struct device *device;

	if (TAILQ_EMPTY(&context->devices) && !device_default(context))
		return context->error;
	TAILQ_FOREACH (device, &context->devices, all) {
		if (!region_on(context, region, device))
			return context->error ? context->error : -ENOMEM;
	}
	return 0;
}

int verbs_region_add(struct backend_context *context, void *base, size_t length, unsigned use,
		     void **out)
{
	struct region *region = region_new(context, base, length, use);
	int error;

	if (!region)
		return -ENOMEM;
	/* So little travels in packets; it is registered when an adapter has to reach it. */
	error = length <= context->config->small ? 0 : register_now(context, region);
	if (error)
		region_free(context, region);
	else
		*out = region;
	return error;
}

int verbs_region_add_dmabuf(struct backend_context *context, int fd, uint64_t offset, void *base,
			    size_t length, unsigned use, void **out)
{
	struct region *region;
	int error;

	/* Otherwise peers don't say where their small slots are. */
	if ((use & HAUL_USE_SEND) && context->config->small)
		return verbs_fail(
			context, -EINVAL,
			"sends from a dma-buf need the option small=0, since the CPU can't "
			"put them into packets");
	region = region_new(context, base, length, use);
	if (!region)
		return -ENOMEM;
	region->dmabuf_offset = offset;
	region->dmabuf = haul_descriptor(fcntl(fd, F_DUPFD_CLOEXEC, 3));
	error = region->dmabuf < 0 ? -errno : register_now(context, region);
	if (error)
		region_free(context, region);
	else
		*out = region;
	return error;
}

void verbs_region_remove(struct backend_context *context, void *region)
{
	if (region)
		region_free(context, region);
}
