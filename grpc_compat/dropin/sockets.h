/* SPDX-License-Identifier: Apache-2.0 */
/* Options of gRPC's own sockets. */
#ifndef TENSORHAUL_DROPIN_SOCKETS_H
#define TENSORHAUL_DROPIN_SOCKETS_H

#include "core.h"

#define SOCKET_ARGUMENTS_MAX 64

/* Room for a copy of a program's arguments. */
struct socket_arguments {
	grpc_arg list[SOCKET_ARGUMENTS_MAX + 1];
	grpc_channel_args args;
};

/*
 * A program's arguments for a channel or a server, and one more that tunes its sockets. They live
 * as long as `room`. The program's own when there is nothing to add.
 */
const grpc_channel_args *sockets_arguments(const grpc_channel_args *args,
					   struct socket_arguments *room);

#endif
