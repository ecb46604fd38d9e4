/* SPDX-License-Identifier: Apache-2.0 */
/*
 * For gRPC programs in C that are linked with the layer of tensorhaul (pkg-config tensorhaul-grpc)
 * and want more of it than it does by itself. Everything works without TENSORHAUL_GRPC, too.
 */
#ifndef TENSORHAUL_GRPC_H
#define TENSORHAUL_GRPC_H

#include <grpc/slice.h>

#ifdef __cplusplus
extern "C" {
#endif

/*
 * A slice like grpc_slice_malloc()'s, out of memory that is registered with the side path's
 * transport: verbs and dpdk send from there without registering it again for each message. A
 * message that is one such slice, or slices of 32 KiB and more, is not copied on its way out.
 * Received messages lie in such memory already, and can be sent on.
 *
 * Where the layer is off, or has no memory, it is grpc_slice_malloc().
 */
grpc_slice haul_grpc_slice_malloc(size_t bytes);

#ifdef __cplusplus
}
#endif

#endif
