/* SPDX-License-Identifier: Apache-2.0 */
#include "options.h"

static const char *const progress_choices[] = {"caller", "thread", NULL};
static const char *const checksum_choices[] = {"none", "crc32c", NULL};

/* clang-format off */
const struct haul_option engine_options[] = {
	{{"progress", "caller", "caller or thread",
	  "who moves the bytes: the caller within haul_poll(), or a thread of the library"},
	 HAUL_OPTION_CHOICE, offsetof(struct engine_config, progress), .choices = progress_choices},
	{{"checksum", "none", "none or crc32c",
	  "check each tensor's bytes where they lie; both sides need the same value"},
	 HAUL_OPTION_CHOICE, offsetof(struct engine_config, checksum), .choices = checksum_choices},
	{{"auth", "", "psk:FILE", "both sides prove that they know the key in FILE"},
	 HAUL_OPTION_TEXT, offsetof(struct engine_config, auth)},
	{{"slots", "65536", "1..16777216",
	  "how many of one peer's receives are remembered; more wait at the peer"},
	 HAUL_OPTION_NUMBER, offsetof(struct engine_config, slots), .low = 1, .high = 16777216},
	{{"connect_ms", "10000", "1..3600000", "time for a connection, the handshake included"},
	 HAUL_OPTION_NUMBER, offsetof(struct engine_config, connect_ms), .low = 1, .high = 3600000},
	{{"handshake_ms", "5000", "1..3600000", "time for a stranger to show that he is none"},
	 HAUL_OPTION_NUMBER, offsetof(struct engine_config, handshake_ms), .low = 1,
	 .high = 3600000},
	{{"peer_ms", "10000", "1000..3600000",
	  "a peer whose host doesn't answer for this long is lost"},
	 HAUL_OPTION_NUMBER, offsetof(struct engine_config, peer_ms), .low = 1000,
	 .high = 3600000},
	{{"linger_ms", "1000", "0..3600000", "time for the last messages when a context is closed"},
	 HAUL_OPTION_NUMBER, offsetof(struct engine_config, linger_ms), .high = 3600000},
	{{"spin_us", "0", "0..1000000", "poll this long before sleeping: saves latency, costs CPU"},
	 HAUL_OPTION_NUMBER, offsetof(struct engine_config, spin_us), .high = 1000000},
	{{"trace", "", "FILE", "write where each tensor's time goes, as a Chrome trace"},
	 HAUL_OPTION_TEXT, offsetof(struct engine_config, trace)},
	{{"trace_buffer", "16MiB", "64KiB..4GiB",
	  "room for events of the trace that are not written yet; more are counted and dropped"},
	 HAUL_OPTION_BYTES, offsetof(struct engine_config, trace_buffer), .low = 64 * 1024,
	 .high = UINT64_C(4) << 30},
	{{NULL}},
};
/* clang-format on */
