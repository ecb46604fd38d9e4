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

/*
 * Send `bytes` bytes under that number, to whoever asks for them; they are never waited for, so
 * that `data` has to stay. NULL: zeros.
 */
void forged_send(haul_endpoint *side, uint64_t number, const uint8_t *data, size_t bytes);

void forged_note(haul_endpoint *side, const struct wire_note *note);
/* The peer's next note; false when none came within ten seconds. */
bool forged_note_wait(haul_endpoint *side, struct wire_note *note);

grpc_byte_buffer *forged_message(const uint8_t *bytes, size_t length);
/* Copies a message; the number of its bytes, or 0 when there is none or no room. */
size_t forged_copy(grpc_byte_buffer *message, uint8_t *bytes, size_t room);

/* A descriptor of one piece. */
void forged_descriptor(const struct wire_mark *mark, uint64_t number, uint64_t bytes,
		       struct wire_descriptor *descriptor);

/* ---- Forgeries ----------------------------------------------------------- */

#define FORGED_FIRST_NUMBER 1000 /* the honest one's: each peer sends that first */
#define FORGED_BYTES 1000        /* of the message that a descriptor stands for */

/* A call's only message in one direction, written by hand. */
struct forgery {
	struct wire_mark mark;
	struct wire_descriptor descriptor;
	size_t length; /* of the message; 0: the descriptor's */
	size_t aside;  /* bytes that really come under the descriptor's number */
	bool waits;    /* its call can only end by its deadline */
};

/* The ways to lie, and how a call ends that meets them. The list ends with a name of NULL. */
struct forgery_kind {
	const char *name;
	void (*forge)(struct forgery *forgery); /* changes what is honest, but for the bytes */
	grpc_status_code status;
};

extern const struct forgery_kind forgeries[];

_Noreturn void forged_die(const char *what, int error);

#endif
