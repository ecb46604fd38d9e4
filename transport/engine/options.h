/* SPDX-License-Identifier: Apache-2.0 */
/* The options that every transport has. */
#ifndef TENSORHAUL_OPTIONS_H
#define TENSORHAUL_OPTIONS_H

#include "../backend.h"

enum { PROGRESS_CALLER, PROGRESS_THREAD };
enum { CHECKSUM_NONE, CHECKSUM_CRC32C };

struct engine_config {
	unsigned progress;
	unsigned checksum;
	char *auth; /* "psk:FILE" or NULL */
	uint64_t slots;
	uint64_t connect_ms, handshake_ms, peer_ms, linger_ms;
	uint64_t spin_us;
	char *trace; /* a file, or NULL */
	uint64_t trace_buffer;
};

extern const struct haul_option engine_options[];

#endif
