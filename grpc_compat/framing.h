/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What grpc puts into its calls. Numbers are little-endian, reserved bytes are 0.
 *
 * An endpoint is a session of several calls, each over a connection of its own, all made by the
 * side that connected:
 *
 *   METHOD_CONTROL  one call. Its messages are records, in order: the engine's messages, small
 *                   tensors, and the session's own words. The session ends with it.
 *   METHOD_STREAM   calls that carry the chunks of large tensors, in any order. One that breaks is
 *                   given up; its chunks that were not taken go over others.
 *
 * Metadata of a call's beginning: METADATA_VERSION both ways, METADATA_SESSION in the answer to
 * METHOD_CONTROL and in the request of METHOD_STREAM, METADATA_STREAM, a decimal number, in the
 * latter. The session's name is random, 32 hexadecimal digits, and known to the two sides only.
 *
 * A message of METHOD_CONTROL is one or more whole records:
 *
 *    0 u32 length of what follows the 8 bytes   4 u8 type   5 u8 reserved   6 u16 header length
 *
 *   MESSAGE       one message of the engine
 *   SMALL         u64 slot, u64 offset, the engine's message ("header length" bytes), the
 *                 tensor's bytes
 *   STREAMS       u32 how many streams this side would like; only the connecting side can open them
 *   STREAM_TAKEN  u32 stream, u32 final, u64 chunks that were taken from it since it was opened
 *   STREAM_GONE   u32 stream: it broke here. Nothing more is read from it: the other side answers
 *                 with a final STREAM_TAKEN
 *
 * A message of METHOD_STREAM is one chunk: u64 slot, u64 offset in the slot, at least one byte.
 */
#ifndef TENSORHAUL_GRPC_FRAMING_H
#define TENSORHAUL_GRPC_FRAMING_H

#include <stddef.h>
#include <stdint.h>

#include "bytes.h"
#include "streams/outbox.h"

#define METHOD_CONTROL "/tensorhaul.Tensors/Control"
#define METHOD_STREAM "/tensorhaul.Tensors/Stream"

#define METADATA_VERSION "tensorhaul-version"
#define METADATA_SESSION "tensorhaul-session"
#define METADATA_STREAM "tensorhaul-stream"

#define RPC_VERSION "1"
#define SESSION_DIGITS 32

enum record_type {
	RECORD_MESSAGE = 1,
	RECORD_SMALL = 2,
	RECORD_STREAMS = 3,
	RECORD_STREAM_TAKEN = 4,
	RECORD_STREAM_GONE = 5,
};

#define CHUNK_SIZE 16

/* The largest value of the option small=. */
#define SMALL_MAX ((size_t)64 * 1024)

/* The longest record, and the longest message of METHOD_CONTROL. */
#define RECORD_MAX (RECORD_SIZE + SMALL_SIZE + 1024 + SMALL_MAX)
#define CONTROL_MESSAGE_MAX ((size_t)256 * 1024)

/* The largest value of the option chunk=: no message may be longer. */
#define CHUNK_MAX ((size_t)16 << 20)

/* A receiver tells what it has taken after so many bytes or chunks, whichever comes first. */
#define TAKEN_BYTES ((size_t)2 << 20)
#define TAKEN_CHUNKS 32

#endif
