/* SPDX-License-Identifier: Apache-2.0 */
/* The layer's options in TENSORHAUL_GRPC. haul-info prints this table, too. */
#ifndef TENSORHAUL_DROPIN_OPTIONS_H
#define TENSORHAUL_DROPIN_OPTIONS_H

#include "../../transport/backend.h"

enum layer_log { LAYER_LOG_NONE, LAYER_LOG_WARNING, LAYER_LOG_INFO, LAYER_LOG_DEBUG };

/* The layer's own options in TENSORHAUL_GRPC; what else is in there belongs to the transport. */
struct layer_settings {
	uint64_t threshold; /* messages of this size and above go aside */
	uint64_t window;    /* bytes of a stream that may be under way before its writes wait */
	uint64_t pool;      /* bytes of free buffers that are kept */
	uint64_t wait_ms;   /* how long a channel's first call waits to learn what its server can */
	uint64_t retransmit_ms; /* of gRPC's own sockets; 0: the kernel's choice */
	bool strict;
	unsigned log;
	char *listen;
	char *spec; /* the transport's */
};

extern const struct haul_option layer_options[];

#endif
