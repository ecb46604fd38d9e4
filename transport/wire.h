/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The engine's messages, byte by byte. docs/protocol.md explains how they play together.
 *
 * Every message is one control message of a backend, which frames it. Numbers are little-endian.
 * The first byte is the type; reserved bytes are sent as 0 and ignored.
 *
 *   HELLO      0 type  1 role  2 u16 version  4 u32 magic  8 u64 features  16 u64 incarnation
 *              24 u32 slots  28 u32 reserved  32 nonce[32]                            64 bytes
 *   PROOF      0 type  1..7 reserved  8 mac[32]                                       40 bytes
 *   REJECT     0 type  1 reserved  2 u16 reason  4..7 reserved                         8 bytes
 *   READY      0 type  1 flags  2 u8 key length (1..255)  3 u8 descriptor length  4 u32 reserved
 *              8 u64 slot  16 u64 room  24 descriptor, key                    24 + both lengths
 *   PUSH       0 type  1 flags  2 u8 rank  3 u8 dtype code  4 u8 dtype bits  5 u8 reserved
 *              6 u16 dtype lanes  8 u64 slot  16 u64 bytes  24 u64 offset  32 u32 crc32c
 *              36 u32 reserved  40 i64 shape[rank]                           40 + 8 x rank
 *   REFUSED    as PUSH
 *   PLACED     0 type  1..7 reserved  8 u64 slot                                      16 bytes
 *   CANCEL     as PLACED
 *   CANCELLED  as PLACED
 *   AGAIN      as PLACED
 *   FAILED     0 type  1 reserved  2 u16 reason  4..7 reserved  8 u64 slot            16 bytes
 *   BYE        0 type  1..7 reserved                                                   8 bytes
 *   CLOCK      0 type  1 flags  2..7 reserved  8 u64 asked  16 u64 answered           24 bytes
 *
 * A slot is the receiver's: the low 32 bits are its index (below what the sender said in
 * HELLO), the high 32 bits count how often the index was used, so that late bytes
 * and messages for an earlier use are told apart.
 */
#ifndef TENSORHAUL_WIRE_H
#define TENSORHAUL_WIRE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "backend.h"

#define WIRE_MAGIC 0x4c554148u /* "HAUL" */
#define WIRE_VERSION 1

#define WIRE_NONCE_SIZE 32
#define WIRE_MAC_SIZE 32
#define WIRE_HELLO_SIZE 64

enum wire_type {
	WIRE_HELLO = 1,
	WIRE_PROOF = 2,
	WIRE_REJECT = 3,
	WIRE_READY = 4,
	WIRE_PUSH = 5,
	WIRE_REFUSED = 6,
	WIRE_PLACED = 7,
	WIRE_CANCEL = 8,
	WIRE_CANCELLED = 9,
	WIRE_AGAIN = 10,
	WIRE_FAILED = 11,
	WIRE_BYE = 12,
	WIRE_CLOCK = 13,
};

/*
 * Feature bits of HELLO. The low 32 bits must be the same on both sides, bit for
 * bit; the high 32 bits are offers that both may use when both have them.
 */
#define WIRE_FEATURE_AUTH (UINT64_C(1) << 0)     /* PROOF follows */
#define WIRE_FEATURE_CHECKSUM (UINT64_C(1) << 1) /* PUSH carries a CRC32C */
#define WIRE_FEATURE_CLOCK (UINT64_C(1) << 32)   /* offer: CLOCK is answered */
/* Bits 48 to 63 are kept for the choice of a transport that both sides share. */

/* Who says HELLO. */
enum wire_role {
	WIRE_CONNECTOR = 1,
	WIRE_ACCEPTOR = 2,
};

/* Reasons of REJECT and FAILED. */
enum wire_reason {
	WIRE_REASON_VERSION = 1,     /* another version */
	WIRE_REASON_AUTH = 2,        /* the proof is wrong */
	WIRE_REASON_AUTH_NEEDED = 3, /* this side asks for a proof, the other has none */
	WIRE_REASON_FEATURES = 4,    /* checksum on one side only */
	WIRE_REASON_GIVEN_UP = 5,    /* FAILED: the sender cancelled */
	WIRE_REASON_CHECKSUM = 6,    /* FAILED: the bytes were wrong twice */
};

/* READY */
#define WIRE_READY_QUERY 1u      /* only asks what the tensor is */
#define WIRE_READY_PERSISTENT 2u /* reserved: the slot stays open after a PUSH */
/* PUSH */
#define WIRE_PUSH_CHECKSUM 1u /* crc32c is set */
/* CLOCK */
#define WIRE_CLOCK_ANSWER 1u /* answered is set */

struct wire_hello {
	enum wire_role role;
	unsigned version;
	uint64_t features;
	uint64_t incarnation; /* random, one per context */
	uint32_t slots;       /* how many of the peer's slots this side remembers; at least 1 */
	uint8_t nonce[WIRE_NONCE_SIZE];
};

struct wire_ready {
	unsigned flags;
	uint64_t slot;
	uint64_t room;
	const uint8_t *descriptor; /* both point into the message */
	size_t descriptor_length;
	const uint8_t *key;
	size_t key_length;
};

/* PUSH and REFUSED */
struct wire_push {
	unsigned flags;
	uint64_t slot;
	uint64_t offset;
	uint32_t crc32c;
	struct haul_tensor_info tensor;
};

/* Times are by the clock of the side that sets them, ns. */
struct wire_clock {
	bool answer;
	uint64_t asked;    /* returned in the answer as it was */
	uint64_t answered; /* 0 in a question */
};

/* One decoded message. */
struct wire_message {
	enum wire_type type;
	union {
		struct wire_hello hello;
		uint8_t mac[WIRE_MAC_SIZE]; /* PROOF */
		unsigned reason;            /* REJECT */
		struct wire_ready ready;
		struct wire_push push; /* PUSH, REFUSED */
		uint64_t slot;         /* PLACED, CANCEL, CANCELLED, AGAIN */
		struct {
			uint64_t slot;
			unsigned reason;
		} failed;
		struct wire_clock clock;
	};
};

/*
 * Decode a message of a peer that is not trusted: the length is exactly what the type asks
 * for, the magic is right, rank and key are within their limits, the shape is not negative and its
 * size in bytes is `bytes` (no overflow). -EPROTO otherwise, with a word in *why (static).
 * An unknown version in HELLO is decoded (only role, version and magic are then valid).
 */
int wire_decode(const uint8_t *bytes, size_t length, struct wire_message *message,
		const char **why);

/*
 * Encode; `out` has room for HAUL_CONTROL_MAX bytes. They return the length. What they are given
 * was checked before: they can't fail.
 */
size_t wire_encode_hello(uint8_t *out, const struct wire_hello *hello);
size_t wire_encode_proof(uint8_t *out, const uint8_t mac[WIRE_MAC_SIZE]);
size_t wire_encode_reject(uint8_t *out, unsigned reason);
size_t wire_encode_ready(uint8_t *out, const struct wire_ready *ready);
size_t wire_encode_push(uint8_t *out, enum wire_type type, const struct wire_push *push);
size_t wire_encode_slot(uint8_t *out, enum wire_type type, uint64_t slot);
size_t wire_encode_failed(uint8_t *out, uint64_t slot, unsigned reason);
size_t wire_encode_bye(uint8_t *out);
size_t wire_encode_clock(uint8_t *out, const struct wire_clock *clock);

#endif
