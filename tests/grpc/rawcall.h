/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A client and a server written by hand on gRPC's C core, from what grpc_compat/framing.h says:
 * they can do everything wrong that a peer can. They block; the library's contexts run by
 * themselves (progress=thread).
 */
#ifndef GRPC_RAWCALL_H
#define GRPC_RAWCALL_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include <grpc/grpc.h>

/* How long a raw call waits for anything, in ms. */
#define RAW_CALL_MS 10000

enum raw_method { RAW_CONTROL, RAW_STREAM, RAW_UNKNOWN };

enum raw_record { RAW_MESSAGE = 1, RAW_SMALL = 2, RAW_STREAMS = 3, RAW_TAKEN = 4, RAW_GONE = 5 };

struct raw_call {
	grpc_channel *channel;
	grpc_completion_queue *queue;
	grpc_call *call;
	grpc_metadata_array first, last;
	grpc_status_code status;
	grpc_slice why;
	char text[200];   /* of the status, once it is known */
	char session[64]; /* of the answer; "": none */
	bool ended;       /* the status is known */
};

/* A call over a connection of its own, or with `beside` over that call's. NULL words: not said. */
void raw_call_open(struct raw_call *call, const struct raw_call *beside, const char *address,
		   enum raw_method method, const char *version, const char *session,
		   const char *stream);
void raw_call_close(struct raw_call *call);

/* False when it has ended. */
bool raw_call_send(struct raw_call *call, const void *bytes, size_t length);
/* With slot and offset before the bytes. */
bool raw_call_chunk(struct raw_call *call, uint64_t slot, uint64_t offset, const void *bytes,
		    size_t length);
bool raw_call_record(struct raw_call *call, enum raw_record type, size_t header, const void *body,
		     size_t length);
/* The next message; 0 at the end. */
size_t raw_call_receive(struct raw_call *call, uint8_t *bytes, size_t room);
/* Wait for the status. */
grpc_status_code raw_call_status(struct raw_call *call);

/* A gRPC server that answers the first call with this status, after metadata if there is some. */
struct raw_server {
	grpc_server *server;
	grpc_completion_queue *queue;
	char address[64];
	const char *version;
	grpc_status_code status; /* GRPC_STATUS_OK: it is left open */
};

void raw_server_open(struct raw_server *server);
/* Take one call, and answer it. */
void raw_server_answer(struct raw_server *server);
void raw_server_close(struct raw_server *server);

#endif
