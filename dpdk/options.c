/* SPDX-License-Identifier: Apache-2.0 */
#include "options.h"

static const char *const congestion_choices[] = {"auto", "swift", "cubic", "fixed", NULL};
static const char *const sums_choices[] = {"auto", "yes", "no", NULL};
static const char *const copy_choices[] = {"auto", "yes", NULL};
static const char *const hugepages_choices[] = {"auto", "yes", "no", NULL};

#define AT(field) offsetof(struct dpdk_config, field)

/* clang-format off */
const struct haul_option dpdk_options[] = {
	{{"port", "", "PCI address, INTERFACE, af_xdp:INTERFACE, or {DRIVER,ARGUMENTS}",
	  "what carries the packets; always needed. 0000:3b:00.0 is a card of DPDK's own, eth1 shares "
	  "an interface with the kernel, {net_memif,role=client,socket=/run/m} is any other driver"},
	 HAUL_OPTION_TEXT, AT(port)},
	{{"ip", "", "ADDRESS/PREFIX", "this port's own IPv4 address, which no one else has; always "
	  "needed"},
	 HAUL_OPTION_TEXT, AT(ip)},
	{{"gateway", "", "ADDRESS", "the router to peers of other nets; empty: there are none"},
	 HAUL_OPTION_TEXT, AT(gateway)},
	{{"mtu", "auto", "576..9700 or auto",
	  "the longest IPv4 packet, in bytes; auto: the interface's, or what the driver takes"},
	 HAUL_OPTION_NUMBER, AT(mtu), .low = 576, .high = 9700, .automatic = true},
	{{"queues", "1", "1..16", "receive queues, over which the card spreads connections"},
	 HAUL_OPTION_NUMBER, AT(queues), .low = 1, .high = 16},
	{{"vlan", "0", "0..4094", "VLAN of the packets; 0: they have no tag"},
	 HAUL_OPTION_NUMBER, AT(vlan), .high = 4094},
	{{"dscp", "0", "0..63", "the packets' DSCP, for switches that tell classes apart"},
	 HAUL_OPTION_NUMBER, AT(dscp), .high = 63},
	{{"congestion", "auto", "auto, swift, cubic or fixed",
	  "how fast to send: swift looks at delay, cubic at loss, fixed at nothing; auto: swift, and "
	  "fixed where packets stay within this host's memory"},
	 HAUL_OPTION_CHOICE, AT(congestion), .choices = congestion_choices},
	{{"rate", "auto", "100000..1000000000000 or auto",
	  "bits per second of each connection with congestion=fixed; auto: the link's"},
	 HAUL_OPTION_NUMBER, AT(rate), .low = 100000, .high = UINT64_C(1000000000000),
	 .automatic = true},
	{{"target_us", "auto", "1..1000000 or auto",
	  "time in queues that congestion=swift aims at, in microseconds; auto: by the path"},
	 HAUL_OPTION_NUMBER, AT(target_us), .low = 1, .high = 1000000, .automatic = true},
	{{"window", "auto", "16..32768 or auto",
	  "packets of one peer that may be under way to this side; auto: what the port holds"},
	 HAUL_OPTION_NUMBER, AT(window), .low = 16, .high = 32768, .automatic = true},
	{{"sums", "auto", "auto, yes or no",
	  "UDP checksums; auto: unless the packets stay within this host's memory"},
	 HAUL_OPTION_CHOICE, AT(sums), .choices = sums_choices},
	{{"copy", "auto", "auto or yes",
	  "copy tensors into packets; auto: only for drivers that can't take them where they lie"},
	 HAUL_OPTION_CHOICE, AT(copy), .choices = copy_choices},
	{{"small", "1KiB", "0..8KiB", "tensors up to this size travel with the control messages"},
	 HAUL_OPTION_BYTES, AT(small), .high = 8192},
	{{"memory", "64MiB", "4MiB..64GiB", "memory for packets"},
	 HAUL_OPTION_BYTES, AT(memory), .low = 4 << 20, .high = UINT64_C(64) << 30},
	{{"hugepages", "auto", "auto, yes or no",
	  "DPDK's memory is in hugepages; auto: when enough are free. The first context of a process "
	  "decides"},
	 HAUL_OPTION_CHOICE, AT(hugepages), .choices = hugepages_choices},
	{{"connections", "16384", "1..1000000", "connections at most; more peers are refused"},
	 HAUL_OPTION_NUMBER, AT(connections), .low = 1, .high = 1000000},
	{{"ports", "", "LOW-HIGH", "UDP ports to listen on when the address says port 0"},
	 HAUL_OPTION_RANGE, AT(ports), .low = 1, .high = 65535},
	{{"eal", "", "{ARGUMENTS}",
	  "more arguments for DPDK's EAL, separated by blanks. The first context of a process decides"},
	 HAUL_OPTION_TEXT, AT(eal)},
	{{NULL}},
};
/* clang-format on */
