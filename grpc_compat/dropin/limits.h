/* SPDX-License-Identifier: Apache-2.0 */
/* What a channel's or a server's arguments say that concerns messages. */
#ifndef TENSORHAUL_DROPIN_LIMITS_H
#define TENSORHAUL_DROPIN_LIMITS_H

#include "core.h"
#include "layer.h"

struct limits {
	uint64_t receive, send; /* bytes of a message */
	bool compresses;        /* messages without being asked */
	const char *service;    /* the service config that the program gave, or NULL */
};

void limits_read(const grpc_channel_args *args, struct limits *limits);

/*
 * Whether a service config has what the layer leaves to gRPC: retries, which send a message twice,
 * and limits of single methods.
 */
bool limits_service_forbids(const char *service_config);

#endif
