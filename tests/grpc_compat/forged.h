/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What the layer's peers have in common that don't keep to its protocol: one side connection of
 * their own, and messages written by hand.
 */
#ifndef TENSORHAUL_TEST_GRPC_FORGED_H
#define TENSORHAUL_TEST_GRPC_FORGED_H

#include <tensorhaul/haul.h>

#include "../../grpc_compat/dropin/wire.h"
#include "steps.h"

/* Open a context over tcp, whose thread moves bytes until the process ends. Ends it on failure. */
haul_context *forged_open(void);

/* Send `bytes` bytes under that number, to whoever asks for them; they are never waited for. */
void forged_send(haul_endpoint *side, uint64_t number, size_t bytes);

void forged_note(haul_endpoint *side, const struct wire_note *note);
/* The peer's next note; false when none came within ten seconds. */
bool forged_note_wait(haul_endpoint *side, struct wire_note *note);

grpc_byte_buffer *forged_message(const uint8_t *bytes, size_t length);
/* Copies a message; the number of its bytes, or 0 when there is none or no room. */
size_t forged_copy(grpc_byte_buffer *message, uint8_t *bytes, size_t room);

/* A descriptor of one piece. */
void forged_descriptor(const struct wire_mark *mark, uint64_t number, uint64_t bytes,
		       struct wire_descriptor *descriptor);

_Noreturn void forged_die(const char *what, int error);

#endif
