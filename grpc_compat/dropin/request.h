/* SPDX-License-Identifier: Apache-2.0 */
/* What stands behind a server's requests for calls. */
#ifndef TENSORHAUL_DROPIN_REQUEST_H
#define TENSORHAUL_DROPIN_REQUEST_H

#include "batch.h"

/* A request for a call, notified on that queue. NULL: the call passes through untouched. */
struct batch *request_new(grpc_completion_queue *core_queue, void *tag,
			  const struct batch_request *request, grpc_byte_buffer **payload);

/*
 * Whether this libgrpc has the functions through which C++ servers take calls. Without them a C++
 * server could get a descriptor that nobody sees: the layer is no server's then.
 */
bool allocators_found(void);

#endif
