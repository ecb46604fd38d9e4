/* SPDX-License-Identifier: Apache-2.0 */
/* gRPC's C core as it stands behind this library: its functions, found while the program runs. */
#ifndef TENSORHAUL_DROPIN_CORE_H
#define TENSORHAUL_DROPIN_CORE_H

#include <grpc/byte_buffer.h>
#include <grpc/grpc.h>
#include <grpc/grpc_security.h>
#include <grpc/slice_buffer.h>
#include <grpc/support/alloc.h>
#include <grpc/support/time.h>
#include <stdbool.h>

/*
 * Every function of libgrpc that the layer forwards or calls. None is linked: the library is
 * loaded into processes that have no libgrpc too, and into those that load it with dlopen().
 */
#define CORE_FUNCTIONS(F)                                                                          \
	F(grpc_init)                                                                               \
	F(grpc_version_string)                                                                     \
	F(grpc_insecure_credentials_create)                                                        \
	F(grpc_completion_queue_create)                                                            \
	F(grpc_completion_queue_create_for_next)                                                   \
	F(grpc_completion_queue_create_for_pluck)                                                  \
	F(grpc_completion_queue_create_for_callback)                                               \
	F(grpc_completion_queue_factory_lookup)                                                    \
	F(grpc_completion_queue_next)                                                              \
	F(grpc_completion_queue_pluck)                                                             \
	F(grpc_completion_queue_shutdown)                                                          \
	F(grpc_completion_queue_destroy)                                                           \
	F(grpc_completion_queue_thread_local_cache_flush)                                          \
	F(grpc_channel_create)                                                                     \
	F(grpc_channel_destroy)                                                                    \
	F(grpc_channel_get_info)                                                                   \
	F(grpc_channel_create_call)                                                                \
	F(grpc_channel_create_registered_call)                                                     \
	F(grpc_channel_watch_connectivity_state)                                                   \
	F(grpc_call_start_batch)                                                                   \
	F(grpc_call_cancel)                                                                        \
	F(grpc_call_cancel_with_status)                                                            \
	F(grpc_call_ref)                                                                           \
	F(grpc_call_unref)                                                                         \
	F(grpc_call_get_peer)                                                                      \
	F(grpc_call_auth_context)                                                                  \
	F(grpc_auth_context_release)                                                               \
	F(grpc_auth_context_find_properties_by_name)                                               \
	F(grpc_auth_property_iterator_next)                                                        \
	F(grpc_server_create)                                                                      \
	F(grpc_server_start)                                                                       \
	F(grpc_server_destroy)                                                                     \
	F(grpc_server_register_method)                                                             \
	F(grpc_server_register_completion_queue)                                                   \
	F(grpc_server_request_call)                                                                \
	F(grpc_server_request_registered_call)                                                     \
	F(grpc_byte_buffer_copy)                                                                   \
	F(grpc_byte_buffer_destroy)                                                                \
	F(grpc_raw_byte_buffer_create)                                                             \
	F(grpc_metadata_array_init)                                                                \
	F(grpc_metadata_array_destroy)                                                             \
	F(grpc_slice_from_static_string)                                                           \
	F(grpc_slice_from_copied_buffer)                                                           \
	F(grpc_slice_from_copied_string)                                                           \
	F(grpc_slice_malloc)                                                                       \
	F(grpc_slice_new_with_user_data)                                                           \
	F(grpc_slice_unref)                                                                        \
	F(grpc_slice_buffer_reset_and_unref)                                                       \
	F(gpr_free)                                                                                \
	F(gpr_now)

#define CORE_FIELD(name) __typeof__(name) *name;
struct core {
	CORE_FUNCTIONS(CORE_FIELD)
};
#undef CORE_FIELD

/* The functions. Ends the process with one line when there is no libgrpc: nothing could go on. */
const struct core *core(void);

/* A symbol of libgrpc, or NULL. */
void *core_symbol(const char *name);

/* Whether this is the C core that the layer was made for (1.51, which calls itself 29). */
bool core_fits(void);

#endif
