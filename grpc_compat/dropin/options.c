/* SPDX-License-Identifier: Apache-2.0 */
#include "options.h"

static const char *const log_choices[] = {"none", "warning", "info", "debug", NULL};

#define AT(field) offsetof(struct layer_settings, field)

/* clang-format off */
const struct haul_option layer_options[] = {
	/* First, so that it holds for what is wrong with the others. */
	{{"strict", "no", "yes or no", "end the program instead of running as plain gRPC"},
	 HAUL_OPTION_SWITCH, AT(strict)},
	{{"threshold", "1MiB", "1..1TiB", "messages of this size and above go aside"},
	 HAUL_OPTION_BYTES, AT(threshold), .low = 1, .high = UINT64_C(1) << 40},
	{{"window", "16MiB", "0..1TiB",
	  "bytes of one stream that may be on their way before its writes wait"},
	 HAUL_OPTION_BYTES, AT(window), .high = UINT64_C(1) << 40},
	{{"pool", "512MiB", "0..1TiB", "free buffers of received messages that are kept for the next"},
	 HAUL_OPTION_BYTES, AT(pool), .high = UINT64_C(1) << 40},
	{{"wait_ms", "100", "0..60000",
	  "how long a channel's first call waits to learn whether its server has the layer"},
	 HAUL_OPTION_NUMBER, AT(wait_ms), .high = 60000},
	{{"grpc_retransmit_ms", "10", "0..200",
	  "gRPC's sockets: TCP's least retransmission timeout, from Linux 6.16 on; 0: the "
	  "kernel's"},
	 HAUL_OPTION_NUMBER, AT(retransmit_ms), .high = 200},
	{{"listen", "*:0", "HOST:PORT", "where servers take side connections; * is every address"},
	 HAUL_OPTION_TEXT, AT(listen)},
	{{"log", "warning", "none, warning, info or debug", "what is told on standard error"},
	 HAUL_OPTION_CHOICE, AT(log), .choices = log_choices},
	{{NULL}},
};
/* clang-format on */
