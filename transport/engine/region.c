/* SPDX-License-Identifier: Apache-2.0 */
/* Registered memory. */
#include <errno.h>
#include <stdlib.h>
#include <sys/mman.h>

#include "engine.h"

/* From this size on, transparent huge pages are worth asking for. */
#define HUGE_PAGE (UINT64_C(2) << 20)

int region_check(haul_context *context, haul_region *region, const uint8_t *data, uint64_t bytes,
		 unsigned use)
{
	uint64_t before;

	if (region->context != context)
		return context_fail(context, -EINVAL, "the region belongs to another context");
	if ((region->use & use) != use)
		return context_fail(context, -EACCES, "the region was not registered for %s",
				    use == HAUL_USE_SEND ? "sends (HAUL_USE_SEND)"
							 : "receives (HAUL_USE_RECV)");
	if (bytes == 0)
		return 0;
	before = (uint64_t)(data - region->base);
	if (data < region->base || before > region->length || bytes > region->length - before)
		return context_fail(
			context, -EFAULT,
			"the tensor's %llu bytes at %p are not inside the region's %zu bytes at %p",
			(unsigned long long)bytes, (const void *)data, region->length,
			(void *)region->base);
	return 0;
}

static int check_use(haul_context *context, size_t length, unsigned use)
{
	if (length == 0)
		return context_fail(context, -EINVAL, "a region needs a length of at least 1 byte");
	if (use == 0 || (use & ~(HAUL_USE_SEND | HAUL_USE_RECV)))
		return context_fail(context, -EINVAL,
				    "unknown use 0x%x of a region: expected HAUL_USE_SEND, "
				    "HAUL_USE_RECV or both",
				    use);
	return 0;
}

static void free_memory(haul_region *region)
{
	haul_context *context = region->context;

	if (region->memory == REGION_MAPPED)
		munmap(region->base, region->length);
	else if (region->memory == REGION_BACKEND)
		context->backend->data->memory_free(context->state, region->base, region->length);
}

/* The backend has registered it, or `error` says that it has not; then it is freed. */
static int added(haul_region *region, int error, haul_region **out)
{
	if (error) {
		free_memory(region);
		free(region);
		return error;
	}
	TAILQ_INSERT_TAIL(&region->context->regions, region, all);
	*out = region;
	return 0;
}

/* Register what `region` describes. */
static int add(haul_region *region, haul_region **out)
{
	haul_context *context = region->context;
	const struct haul_data_ops *data = context->backend->data;
	int error = 0;

	if (data->region_add)
		error = data->region_add(context->state, region->base, region->length, region->use,
					 &region->registered);
	return added(region, error, out);
}

static haul_region *region_new(haul_context *context, void *base, size_t length, unsigned use)
{
	haul_region *region = calloc(1, sizeof(*region));

	if (!region) {
		context_fail(context, -ENOMEM, "no memory for a region");
		return NULL;
	}
	region->context = context;
	region->base = base;
	region->length = length;
	region->use = use;
	return region;
}

static int check_base(haul_context *context, const void *base, size_t length)
{
	if (base && (uintptr_t)base <= UINTPTR_MAX - length)
		return 0;
	return context_fail(
		context, -EINVAL,
		"memory at %p with %zu bytes: the address is NULL or the end wraps around", base,
		length);
}

int haul_region_register(haul_context *context, void *base, size_t length, unsigned use,
			 haul_region **out)
{
	haul_region *region;
	int error;

	if (!context || !out)
		return -EINVAL;
	*out = NULL;
	error = context_enter(context);
	if (error)
		return error;
	error = check_use(context, length, use);
	if (!error)
		error = check_base(context, base, length);
	if (!error) {
		region = region_new(context, base, length, use);
		error = region ? add(region, out) : -ENOMEM;
	}
	context_leave(context);
	return error;
}

/* Memory of the backend's, or pages of our own. */
static int allocate(haul_region *region)
{
	haul_context *context = region->context;
	const struct haul_data_ops *data = context->backend->data;

	region->memory = REGION_BACKEND;
	if (data->memory_allocate)
		region->base = data->memory_allocate(context->state, region->length);
	if (!region->base) {
		region->base = mmap(NULL, region->length, PROT_READ | PROT_WRITE,
				    MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
		region->memory = REGION_MAPPED;
		if (region->base == MAP_FAILED)
			region->base = NULL;
		else if (region->length >= HUGE_PAGE)
			madvise(region->base, region->length, MADV_HUGEPAGE);
	}
	if (region->base)
		return 0;
	return context_fail(context, -ENOMEM, "no memory for a region of %zu bytes",
			    region->length);
}

int haul_region_allocate(haul_context *context, size_t length, unsigned use, haul_region **out)
{
	haul_region *region;
	int error;

	if (!context || !out)
		return -EINVAL;
	*out = NULL;
	error = context_enter(context);
	if (error)
		return error;
	error = check_use(context, length, use);
	if (!error) {
		region = region_new(context, NULL, length, use);
		error = region ? allocate(region) : -ENOMEM;
		if (!error)
			error = add(region, out);
		else
			free(region);
	}
	context_leave(context);
	return error;
}

static int check_dmabuf(haul_context *context, int fd, uint64_t offset, size_t length)
{
	if (!context->backend->data->region_add_dmabuf)
		return context_fail(context, -EOPNOTSUPP,
				    "the transport %s can't reach dma-bufs: verbs can",
				    context->backend->name);
	if (context->config.checksum != CHECKSUM_NONE)
		return context_fail(context, -EOPNOTSUPP,
				    "checksum=crc32c reads tensors with the CPU, which need not "
				    "reach a dma-buf: use checksum=none");
	if (fd < 0)
		return context_fail(context, -EBADF, "fd %d is no descriptor of a dma-buf", fd);
	if (offset > UINT64_MAX - length)
		return context_fail(context, -EINVAL,
				    "offset %llu and %zu bytes: the end wraps around",
				    (unsigned long long)offset, length);
	return 0;
}

int haul_region_dmabuf(haul_context *context, int fd, uint64_t offset, void *base, size_t length,
		       unsigned use, haul_region **out)
{
	haul_region *region;
	int error;

	if (!context || !out)
		return -EINVAL;
	*out = NULL;
	error = context_enter(context);
	if (error)
		return error;
	error = check_use(context, length, use);
	if (!error)
		error = check_base(context, base, length);
	if (!error)
		error = check_dmabuf(context, fd, offset, length);
	if (!error) {
		region = region_new(context, base, length, use);
		error = region ? 0 : -ENOMEM;
	}
	if (!error) {
		region->memory = REGION_DEVICE;
		error = context->backend->data->region_add_dmabuf(context->state, fd, offset, base,
								  length, use, &region->registered);
		error = added(region, error, out);
	}
	context_leave(context);
	return error;
}

void *haul_region_base(const haul_region *region)
{
	return region->base;
}

size_t haul_region_length(const haul_region *region)
{
	return region->length;
}

void region_free(haul_region *region)
{
	haul_context *context = region->context;

	TAILQ_REMOVE(&context->regions, region, all);
	if (context->backend->data->region_add)
		context->backend->data->region_remove(context->state, region->registered);
	free_memory(region);
	free(region);
}

int haul_region_release(haul_region *region)
{
	haul_context *context;
	int error;

	if (!region)
		return 0;
	context = region->context;
	error = context_enter(context);
	if (error)
		return error;
	if (region->uses)
		error = context_fail(
			context, -EBUSY,
			"%u operations still use the region: release it after their completions",
			region->uses);
	else
		region_free(region);
	context_leave(context);
	return error;
}
