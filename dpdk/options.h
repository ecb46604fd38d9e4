/* SPDX-License-Identifier: Apache-2.0 */
/* The options of the transport dpdk; their table is in options.c. */
#ifndef TENSORHAUL_DPDK_OPTIONS_H
#define TENSORHAUL_DPDK_OPTIONS_H

#include "backend.h"

struct dpdk_config {
	char *port, *ip, *gateway, *eal; /* NULL: not given */
	uint64_t queues, vlan, dscp;
	uint64_t mtu;        /* the longest IPv4 packet, bytes; HAUL_OPTION_AUTO: the port's */
	unsigned congestion; /* 0: by the port; else 1 + the index into congestion_all */
	uint64_t rate;      /* bits per second for congestion=fixed; HAUL_OPTION_AUTO: the link's */
	uint64_t target_us; /* HAUL_OPTION_AUTO: the controller's own */
	uint64_t window; /* packets under way to this side; HAUL_OPTION_AUTO: what the port holds */
	unsigned sums;   /* enum dpdk_sums */
	unsigned copy;   /* enum dpdk_copy: external buffers or not */
	uint64_t small;  /* bytes of a tensor that go with the control messages */
	uint64_t memory; /* bytes for packets */
	unsigned hugepages;   /* enum dpdk_hugepages */
	uint64_t connections; /* at most */
	struct haul_option_range ports;
};

enum dpdk_sums {
	DPDK_SUMS_AUTO, /* unless packets don't pass a wire */
	DPDK_SUMS_YES,
	DPDK_SUMS_NO,
};

enum dpdk_copy {
	DPDK_COPY_AUTO, /* when the driver asks for it */
	DPDK_COPY_YES,
};

enum dpdk_hugepages {
	DPDK_HUGEPAGES_AUTO, /* where they are reserved */
	DPDK_HUGEPAGES_YES,
	DPDK_HUGEPAGES_NO,
};

extern const struct haul_option dpdk_options[];

#endif
