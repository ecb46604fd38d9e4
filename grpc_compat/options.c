/* SPDX-License-Identifier: Apache-2.0 */
#include "rpc.h"

#define AT(field) offsetof(struct rpc_config, field)

/* clang-format off */
const struct haul_option rpc_options[] = {
	{{"channels", "1", "1..64", "channels for large tensors, each with its own socket"},
	 HAUL_OPTION_NUMBER, AT(channels), .low = 1, .high = STREAMS_MAX},
	{{"threads", "1", "1..64", "threads that read and write gRPC's sockets"},
	 HAUL_OPTION_NUMBER, AT(threads), .low = 1, .high = 64},
	{{"chunk", "1MiB", "64KiB..16MiB", "a large tensor is cut into messages of at most this size"},
	 HAUL_OPTION_BYTES, AT(chunk), .low = 64 << 10, .high = CHUNK_MAX},
	{{"window", "16MiB", "4MiB..256MiB",
	  "bytes of one channel that may be under way, two chunks at least"},
	 HAUL_OPTION_BYTES, AT(window), .low = 4 << 20, .high = 256 << 20},
	{{"small", "32KiB", "0..64KiB", "tensors up to this size travel with the control messages"},
	 HAUL_OPTION_BYTES, AT(small), .high = SMALL_MAX},
	{{"tls_ca", "", "FILE", "PEM certificates that the peer's must be signed by; this or tls_cert "
	  "switches TLS on"},
	 HAUL_OPTION_TEXT, AT(tls_ca)},
	{{"tls_cert", "", "FILE", "this side's PEM certificate chain; listening with TLS needs one"},
	 HAUL_OPTION_TEXT, AT(tls_cert)},
	{{"tls_key", "", "FILE", "the PEM private key of tls_cert"},
	 HAUL_OPTION_TEXT, AT(tls_key)},
	{{"tls_name", "", "NAME", "the name in the server's certificate; empty: its address"},
	 HAUL_OPTION_TEXT, AT(tls_name)},
	{{"heap", "yes", "yes or no",
	  "yes lets glibc keep freed memory, which gRPC needs again at once"},
	 HAUL_OPTION_SWITCH, AT(warm)},
	{{"interface", "", "NAME", "use only this network interface (SO_BINDTODEVICE); not with TLS"},
	 HAUL_OPTION_TEXT, AT(interface)},
	{{"ports", "", "LOW-HIGH", "ports to listen on when the address says port 0"},
	 HAUL_OPTION_RANGE, AT(ports), .low = 1, .high = 65535},
	{{"backlog", "1024", "1..65535", "connections that may wait to be accepted"},
	 HAUL_OPTION_NUMBER, AT(backlog), .low = 1, .high = 65535},
	{{NULL}},
};
/* clang-format on */
