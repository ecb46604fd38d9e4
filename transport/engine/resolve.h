/* SPDX-License-Identifier: Apache-2.0 */
/* "host:port" to the addresses that it stands for. */
#ifndef TENSORHAUL_RESOLVE_H
#define TENSORHAUL_RESOLVE_H

#include <stdbool.h>
#include <stddef.h>

#define RESOLVED_MAX 1024

/*
 * Write the numeric addresses of `text` to `out`, best first, separated by commas:
 * "[::1]:7000,127.0.0.1:7000". "*:port" (only `passive`, for listening) stays as it is. -EINVAL for
 * what is no address, -ENOENT for a name that doesn't resolve, with one sentence in `why`.
 * Blocks while a name is looked up.
 */
int resolve(const char *text, bool passive, char *out, size_t size, char *why, size_t room);

#endif
