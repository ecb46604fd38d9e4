/* SPDX-License-Identifier: Apache-2.0 */
#include "verbs.h"

static const char *const windows_choices[] = {"auto", "on", "off", NULL};
/* As enum ibv_mtu counts. */
static const char *const mtu_choices[] = {"auto", "256", "512", "1024", "2048", "4096", NULL};

#define AT(field) offsetof(struct verbs_config, field)

/* clang-format off */
const struct haul_option verbs_options[] = {
	{{"device", "", "NAME, as in ibv_devices",
	  "the adapter; empty: that of the route to the peer"},
	 HAUL_OPTION_TEXT, AT(device)},
	{{"bind", "", "ADDRESS", "local address for connections that are made"},
	 HAUL_OPTION_TEXT, AT(bind)},
	{{"gid", "auto", "0..255 or auto",
	  "use the address of this GID of the device; auto: the route's"},
	 HAUL_OPTION_NUMBER, AT(gid), .high = 255, .automatic = true},
	{{"mtu", "auto", "auto, 256, 512, 1024, 2048 or 4096",
	  "the longest packet's payload, when less than the route's"},
	 HAUL_OPTION_CHOICE, AT(mtu), .choices = mtu_choices},
	{{"sl", "auto", "0..15 or auto", "service level (InfiniBand), priority (RoCE)"},
	 HAUL_OPTION_NUMBER, AT(service_level), .high = 15, .automatic = true},
	{{"traffic_class", "auto", "0..255 or auto",
	  "traffic class of the packets; with RoCE v2 DSCP and ECN bits"},
	 HAUL_OPTION_NUMBER, AT(traffic_class), .high = 255, .automatic = true},
	{{"qps", "auto", "1..16 or auto",
	  "queue pairs for tensors; more than one only without windows"},
	 HAUL_OPTION_NUMBER, AT(qps), .low = 1, .high = QPS_MAX, .automatic = true},
	{{"windows", "auto", "auto, on or off",
	  "memory windows, so that a peer reaches its slots only, and not their regions; auto: where "
	  "the device has them"},
	 HAUL_OPTION_CHOICE, AT(windows), .choices = windows_choices},
	{{"piece", "1MiB", "4KiB..1GiB", "a tensor is written in pieces of at most this size"},
	 HAUL_OPTION_BYTES, AT(piece), .low = 4096, .high = 1 << 30},
	{{"small", "512", "0..960", "tensors up to this size travel within the control messages"},
	 HAUL_OPTION_BYTES, AT(small), .high = 960},
	{{"region_piece", "auto", "4KiB..1TiB or auto",
	  "a region is registered in pieces of at most this size; auto: the device's limit"},
	 HAUL_OPTION_BYTES, AT(region_piece), .low = 4096, .high = UINT64_C(1) << 40,
	 .automatic = true},
	{{"ports", "", "LOW-HIGH", "ports to listen on when the address says port 0"},
	 HAUL_OPTION_RANGE, AT(ports), .low = 1, .high = 65535},
	{{"backlog", "128", "1..65535", "connections that may wait to be accepted"},
	 HAUL_OPTION_NUMBER, AT(backlog), .low = 1, .high = 65535},
	{{NULL}},
};
/* clang-format on */
