/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What tcp puts on its sockets, byte by byte. Numbers are little-endian, reserved bytes are 0.
 *
 * An endpoint is a session of several sockets, all opened by the side that connected:
 *
 *   control  records, in order: the engine's messages, small tensors, and the session's own
 *            words. It outlives its socket: a broken one is replaced and goes on at the first
 *            byte that the other side has not taken.
 *   pulse    never carries a byte after its preamble. The kernel's keep-alive on it tells a dead
 *            peer from one that is only busy: a stopped process still has a kernel that answers.
 *   streams  chunks of large tensors, in any order. One that breaks is given up; its chunks that
 *            were not taken go over others.
 *
 * Every socket starts with one preamble each way, the connecting side's first:
 *
 *    0 u32 magic   4 u8 version   5 u8 kind   6 u16 status (answers)
 *    8 session[16]               24 u32 stream   28 u32 reserved
 *   32 u64 taken: bytes of the control stream that this side has taken (CONTROL)
 *   40 u64 reserved                                                               48 bytes
 *
 * OPEN makes a new session: the answer names it, and the socket is its control stream.
 * CONTROL, PULSE and STREAM join a socket to a session. The session's name is random and
 * known to the two sides only.
 *
 * Records of the control stream:
 *
 *    0 u32 length of what follows the 8 bytes   4 u8 type   5 u8 reserved   6 u16 header length
 *
 *   MESSAGE       one message of the engine
 *   SMALL         u64 slot, u64 offset, the engine's message ("header length" bytes), the
 *                 tensor's bytes
 *   TAKEN         u64 bytes of the control stream that were taken: they need not be kept any longer
 *   STREAMS       u32 how many streams this side would like; only the connecting side can open them
 *   STREAM_TAKEN  u32 stream, u16 final, u16 crowd, u64 chunks that were taken whole from it since
 *                 it was opened. Crowd: how many links this side moves chunks over now
 *   STREAM_GONE   u32 stream, u32 reserved: it broke here. Nothing more is read from it: the
 *                 other side answers with a final STREAM_TAKEN
 *
 * A stream carries chunks:
 *
 *    0 u64 slot   8 u64 offset in the slot   16 u32 length (at least 1)   20 u32 CHUNK_MAGIC
 *   24 the bytes
 */
#ifndef TENSORHAUL_TCP_FRAMING_H
#define TENSORHAUL_TCP_FRAMING_H

#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include "bytes.h"
#include "streams/outbox.h"

#define TCP_MAGIC 0x43544148u /* "HATC" */
#define TCP_VERSION 1
#define PREAMBLE_SIZE 48
#define SESSION_SIZE 16

enum preamble_kind {
	PREAMBLE_OPEN = 1,
	PREAMBLE_CONTROL = 2,
	PREAMBLE_PULSE = 3,
	PREAMBLE_STREAM = 4,
};

enum preamble_status {
	PREAMBLE_WELCOME = 0,
	PREAMBLE_VERSION = 1, /* another version; the answer carries this side's */
	PREAMBLE_UNKNOWN = 2, /* no such session: the process is another one */
	PREAMBLE_REFUSED = 3, /* too many peers, or too many streams */
};

struct preamble {
	uint8_t version;
	uint8_t kind;
	uint16_t status;
	uint8_t session[SESSION_SIZE];
	uint32_t stream;
	uint64_t taken;
};

enum record_type {
	RECORD_MESSAGE = 1,
	RECORD_SMALL = 2,
	RECORD_TAKEN = 3,
	RECORD_STREAMS = 4,
	RECORD_STREAM_TAKEN = 5,
	RECORD_STREAM_GONE = 6,
};

#define CHUNK_SIZE 24
#define CHUNK_MAGIC 0x4b4e4843u /* "CHNK" */

static inline void preamble_encode(uint8_t out[PREAMBLE_SIZE], const struct preamble *preamble)
{
	memset(out, 0, PREAMBLE_SIZE);
	put32(out, TCP_MAGIC);
	out[4] = preamble->version;
	out[5] = preamble->kind;
	put16(out + 6, preamble->status);
	memcpy(out + 8, preamble->session, SESSION_SIZE);
	put32(out + 24, preamble->stream);
	put64(out + 32, preamble->taken);
}

/* -1 when it doesn't start with the magic. */
static inline int preamble_decode(const uint8_t in[PREAMBLE_SIZE], struct preamble *preamble)
{
	if (get32(in) != TCP_MAGIC)
		return -1;
	preamble->version = in[4];
	preamble->kind = in[5];
	preamble->status = get16(in + 6);
	memcpy(preamble->session, in + 8, SESSION_SIZE);
	preamble->stream = get32(in + 24);
	preamble->taken = get64(in + 32);
	return 0;
}

#endif
