/* SPDX-License-Identifier: Apache-2.0 */
/* The caller's memory, for drivers that send out of memory that they know. */
/* Mapping memory for a card is one of the calls that DPDK may still change. */
#define ALLOW_EXPERIMENTAL_API

#include <errno.h>
#include <stdlib.h>

#include <rte_bus_vdev.h>
#include <rte_dev.h>
#include <rte_errno.h>
#include <rte_malloc.h>
#include <rte_memory.h>

#include "port_private.h"

#define PAGE ((uintptr_t)4096)

struct registration {
	void *base; /* of the pages that were registered; NULL: there was no need */
	size_t length;
	bool usable;
};

/* Memory of DPDK's own, from one list of its segments, is known to every driver. */
static bool is_dpdks(const void *base, size_t length)
{
	const struct rte_memseg_list *first = rte_mem_virt2memseg_list(base);
	const uint8_t *last = (const uint8_t *)base + length - 1;

	return length && first && !first->external && rte_mem_virt2memseg_list(last) == first;
}

/* The card reaches memory by the IOMMU, where addresses are the same as here (--iova-mode=va). */
static bool map_for_card(struct port_private *self, struct registration *registration)
{
	struct rte_eth_dev_info info;
	uint64_t address = (uintptr_t)registration->base;

	if (rte_eth_dev_info_get(self->port.id, &info) || !info.device)
		return false;
	/* Two regions in one page: the second one is not registered, and is copied. */
	if (rte_extmem_register(registration->base, registration->length, NULL, 0, PAGE))
		return false;
	if (rte_dev_dma_map(info.device, registration->base, address, registration->length) == 0)
		return true;
	haul_log(HAUL_LOG_INFO, "dpdk: a region of %zu bytes is not reached by the card: %s",
		 registration->length, rte_strerror(rte_errno));
	rte_extmem_unregister(registration->base, registration->length);
	return false;
}

int port_register(struct port *port, void *base, size_t length, void **region)
{
	struct port_private *self = port_private(port);
	uintptr_t start = (uintptr_t)base & ~(PAGE - 1);
	uintptr_t end = ((uintptr_t)base + length + PAGE - 1) & ~(PAGE - 1);
	struct registration *registration;

	*region = NULL;
	if (!port->external_registered || !length)
		return 0;
	registration = calloc(1, sizeof(*registration));
	if (!registration)
		return -ENOMEM;
	*region = registration;
	if (is_dpdks(base, length)) {
		registration->usable = true;
		return 0;
	}
	/* Others than cards see DPDK's own memory only. */
	if (self->driver != &driver_card)
		return 0;
	registration->base = (void *)start;
	registration->length = end - start;
	eal_lock();
	registration->usable = map_for_card(self, registration);
	eal_unlock();
	return 0;
}

void port_unregister(struct port *port, void *region)
{
	struct registration *registration = region;
	struct rte_eth_dev_info info;

	if (!registration)
		return;
	if (registration->base && registration->usable) {
		eal_lock();
		if (rte_eth_dev_info_get(port->id, &info) == 0 && info.device)
			rte_dev_dma_unmap(info.device, registration->base,
					  (uintptr_t)registration->base, registration->length);
		rte_extmem_unregister(registration->base, registration->length);
		eal_unlock();
	}
	free(registration);
}

bool port_is_registered(const struct port *port, const void *region)
{
	const struct registration *registration = region;

	return registration && registration->usable;
}

void *port_memory(struct port *port, size_t length)
{
	if (port_private(port)->driver->memory != DRIVER_EAL)
		return NULL;
	return rte_zmalloc_socket(NULL, length, PAGE, SOCKET_ID_ANY);
}

void port_memory_free(struct port *port, void *base)
{
	rte_free(base);
}
