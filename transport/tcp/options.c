/* SPDX-License-Identifier: Apache-2.0 */
#include "tcp.h"

static const char *const zerocopy_choices[] = {"no", "msg", NULL};

#define AT(field) offsetof(struct tcp_config, field)

/* clang-format off */
const struct haul_option tcp_options[] = {
	{{"streams", "auto", "1..64 or auto",
	  "sockets for large tensors; auto adds some for as long as that helps"},
	 HAUL_OPTION_NUMBER, AT(streams), .low = 1, .high = STREAMS_MAX, .automatic = true},
	{{"chunk", "1MiB", "4KiB..64MiB", "a large tensor is cut into pieces of at most this size"},
	 HAUL_OPTION_BYTES, AT(chunk), .low = 4096, .high = 64 << 20},
	{{"small", "8KiB", "0..64KiB", "tensors up to this size travel with the control messages"},
	 HAUL_OPTION_BYTES, AT(small), .high = 65536},
	{{"unsent", "256KiB", "4KiB..64MiB",
	  "bytes that may wait unsent in one socket (TCP_NOTSENT_LOWAT)"},
	 HAUL_OPTION_BYTES, AT(unsent), .low = 4096, .high = 64 << 20},
	{{"sndbuf", "auto", "4KiB..1GiB or auto",
	  "send buffer of each socket; auto is the kernel's choice"},
	 HAUL_OPTION_BYTES, AT(sndbuf), .low = 4096, .high = 1 << 30, .automatic = true},
	{{"rcvbuf", "auto", "4KiB..1GiB or auto",
	  "receive buffer of each socket; auto is the kernel's choice"},
	 HAUL_OPTION_BYTES, AT(rcvbuf), .low = 4096, .high = 1 << 30, .automatic = true},
	{{"zerocopy", "no", "no or msg",
	  "msg sends large tensors with MSG_ZEROCOPY, where the NIC can"},
	 HAUL_OPTION_CHOICE, AT(zerocopy), .choices = zerocopy_choices},
	{{"congestion", "", "NAME, as in tcp_allowed_congestion_control",
	  "TCP's congestion control; empty: the host's, with streams=auto bbr where packets are "
	  "lost"},
	 HAUL_OPTION_TEXT, AT(congestion)},
	{{"retransmit_ms", "10", "0..200",
	  "TCP's least retransmission timeout, from Linux 6.16 on; 0: the kernel's"},
	 HAUL_OPTION_NUMBER, AT(retransmit_ms), .high = 200},
	{{"bind", "", "ADDRESS", "local address for connections that are made"},
	 HAUL_OPTION_TEXT, AT(bind)},
	{{"interface", "", "NAME", "use only this network interface (SO_BINDTODEVICE)"},
	 HAUL_OPTION_TEXT, AT(interface)},
	{{"ports", "", "LOW-HIGH", "ports to listen on when the address says port 0"},
	 HAUL_OPTION_RANGE, AT(ports), .low = 1, .high = 65535},
	{{"backlog", "1024", "1..65535", "connections that may wait to be accepted"},
	 HAUL_OPTION_NUMBER, AT(backlog), .low = 1, .high = 65535},
	{{NULL}},
};
/* clang-format on */
