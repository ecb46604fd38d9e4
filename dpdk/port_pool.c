/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Memory for packets. DPDK's own pools are queues that any thread may use: a packet that was just
 * freed is the last one to be used again, when the caches have long forgotten it, and each packet
 * costs atomic operations, because the caches that DPDK has for its own threads don't exist for the
 * program's. A port's pools are used by one thread at a time: plain stacks are enough.
 */
#include <errno.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>

#include <rte_errno.h>

#include "port_private.h"

#define HUGE ((size_t)2 << 20)

/* ---- A stack as mempool operations ------------------------------------- */

struct stack {
	unsigned count;
	void *objects[];
};

static int stack_make(struct rte_mempool *pool)
{
	struct stack *stack = malloc(sizeof(*stack) + pool->size * sizeof(void *));

	if (!stack)
		return -ENOMEM;
	stack->count = 0;
	pool->pool_data = stack;
	return 0;
}

static void stack_free(struct rte_mempool *pool)
{
	free(pool->pool_data);
	pool->pool_data = NULL;
}

static int stack_put(struct rte_mempool *pool, void *const *objects, unsigned count)
{
	struct stack *stack = pool->pool_data;

	for (unsigned i = 0; i < count; i++)
		stack->objects[stack->count + i] = objects[i];
	stack->count += count;
	return 0;
}

static int stack_take(struct rte_mempool *pool, void **objects, unsigned count)
{
	struct stack *stack = pool->pool_data;

	if (stack->count < count)
		return -ENOBUFS;
	for (unsigned i = 0; i < count; i++)
		objects[i] = stack->objects[--stack->count];
	return 0;
}

static unsigned stack_count(const struct rte_mempool *pool)
{
	return ((const struct stack *)pool->pool_data)->count;
}

static const struct rte_mempool_ops stack_ops = {
	.name = "haul_stack",
	.alloc = stack_make,
	.free = stack_free,
	.enqueue = stack_put,
	.dequeue = stack_take,
	.get_count = stack_count,
};

/* DPDK has room for 16 kinds, and comes with 14; "stack" is the same with a lock. */
static const char *stack_name(void)
{
	static bool asked, there;

	if (!asked)
		there = rte_mempool_register_ops(&stack_ops) >= 0;
	asked = true;
	return there ? stack_ops.name : "stack";
}

/* ---- Memory of our own ------------------------------------------------- */

static size_t round_up(size_t length, size_t unit)
{
	return (length + unit - 1) / unit * unit;
}

static void unmap(struct rte_mempool_memhdr *memory, void *user)
{
	munmap(memory->addr, (size_t)user);
}

/* In hugepages when some are free, else where the kernel may make some by itself. A forked child
 * gets no copy: it would cost the parent a fault at each page. */
static void *map(size_t length, bool hugepages)
{
	int flags = MAP_PRIVATE | MAP_ANONYMOUS;
	void *base = MAP_FAILED;

	if (hugepages)
		base = mmap(NULL, length, PROT_READ | PROT_WRITE, flags | MAP_HUGETLB, -1, 0);
	if (base == MAP_FAILED) {
		base = mmap(NULL, length, PROT_READ | PROT_WRITE, flags, -1, 0);
		if (base != MAP_FAILED)
			madvise(base, length, MADV_HUGEPAGE);
	}
	if (base == MAP_FAILED)
		return NULL;
	madvise(base, length, MADV_DONTFORK);
	return base;
}

static int fill(struct rte_mempool *pool, bool hugepages)
{
	size_t element = pool->header_size + pool->elt_size + pool->trailer_size;
	size_t length = round_up(element * pool->size + RTE_MEMPOOL_ALIGN, HUGE);
	void *base = map(length, hugepages);
	int added;

	if (!base)
		return -ENOMEM;
	added = rte_mempool_populate_iova(pool, base, (rte_iova_t)(uintptr_t)base, length, unmap,
					  (void *)length);
	if (added <= 0)
		munmap(base, length);
	return added == (int)pool->size ? 0 : -ENOMEM;
}

/* ---- Pools ------------------------------------------------------------- */

size_t pool_element(uint32_t room, uint16_t extra)
{
	size_t head = RTE_CACHE_LINE_SIZE + sizeof(struct rte_mbuf) + extra; /* the pool's, ours */

	return round_up(head + (room ? room + RTE_PKTMBUF_HEADROOM : 0), RTE_CACHE_LINE_SIZE);
}

struct rte_mempool *pool_make(const struct port_wish *wish, const char *what, unsigned count,
			      uint32_t room, uint16_t extra)
{
	static atomic_uint next;
	struct rte_pktmbuf_pool_private about = {
		.mbuf_data_room_size = (uint16_t)(room ? room + RTE_PKTMBUF_HEADROOM : 0),
		.mbuf_priv_size = extra,
	};
	size_t size = sizeof(struct rte_mbuf) + extra + about.mbuf_data_room_size;
	/* Memory of our own has no pages that a packet must not cross. */
	bool own = wish->driver->memory == DRIVER_ANY;
	unsigned flags = RTE_MEMPOOL_F_NO_SPREAD | (own ? RTE_MEMPOOL_F_NO_IOVA_CONTIG : 0);
	struct rte_mempool *pool;
	char name[RTE_MEMPOOL_NAMESIZE];
	int error;

	snprintf(name, sizeof(name), "haul_%s_%u", what, atomic_fetch_add(&next, 1));
	pool = rte_mempool_create_empty(name, count, (unsigned)size, 0, sizeof(about),
					SOCKET_ID_ANY, flags);
	if (!pool)
		return NULL;
	error = rte_mempool_set_ops_byname(
		pool, wish->driver->crosses ? "ring_mp_mc" : stack_name(), NULL);
	if (!error) {
		rte_pktmbuf_pool_init(pool, &about);
		if (own)
			error = fill(pool, wish->config->hugepages != DPDK_HUGEPAGES_NO);
		else
			error = rte_mempool_populate_default(pool) < 0 ? -ENOMEM : 0;
	}
	if (error) {
		rte_mempool_free(pool);
		return NULL;
	}
	rte_mempool_obj_iter(pool, rte_pktmbuf_init, NULL);
	return pool;
}

void pool_free(struct rte_mempool *pool)
{
	rte_mempool_free(pool);
}
