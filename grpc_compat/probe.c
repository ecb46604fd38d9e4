/* SPDX-License-Identifier: Apache-2.0 */
/* What this host has for gRPC, in words. gRPC is not started for it. */
#include <errno.h>
#include <stdio.h>
#include <sys/socket.h>
#include <unistd.h>

#include "rpc.h"

int rpc_probe(char *reason, size_t room)
{
	int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);

	if (fd < 0)
		fd = socket(AF_INET6, SOCK_STREAM | SOCK_CLOEXEC, 0);
	if (fd < 0) {
		snprintf(reason, room, "no TCP socket can be made: %s", haul_strerror(errno));
		return -errno;
	}
	close(fd);
	snprintf(reason, room, "gRPC's C core %s", grpc_version_string());
	return 0;
}

int rpc_describe(const char *where, char *text, size_t room)
{
	struct haul_text out = {.at = text, .room = room};

	text[0] = 0;
	haul_text_add(&out, "gRPC's C core %s\n", grpc_version_string());
	if (where)
		haul_text_add(&out, "to %s: over TCP, as the kernel routes it\n", where);
	return 0;
}
