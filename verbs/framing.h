/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What two verbs backends say to each other, byte by byte. docs/protocol.md explains how it plays
 * together. Numbers are little-endian.
 *
 * A link is a control channel and one or more data channels. Each channel is a reliable connected
 * queue pair with its own rdma_cm connection. GREETING is the private data of the connection
 * request and of its acceptance, REFUSAL that of a rejection; both may be followed by padding
 * (InfiniBand's connection manager pads, and leaves 56 bytes of a request to its user).
 *
 *   GREETING   0 u32 magic  4 u8 version  5 u8 kind  6 u8 number  7 u8 flags
 *              8 session[16]  24 u16 ring  26 u16 small  28 u32 packet
 *              32 u64 mailbox address  40 u32 mailbox key  44 u32 mtu                48 bytes
 *   REFUSAL    0 u32 magic  4 u8 version  5 u8 reason  6..7 reserved                  8 bytes
 *
 * Control channel: each SEND is one packet, that is a head and whole records up to its end.
 *
 *   head       0 u32 taken  4 u32 writes taken                                        8 bytes
 *   MESSAGE    0 u16 1  2 u16 length  4 u32 reserved  message[length]         8 + length bytes
 *   SMALL      0 u16 2  2 u16 length  4 u32 payload  8 u64 slot  16 u64 offset
 *              message[length] payload[payload]                     24 + length + payload bytes
 *
 * Data channel: the bytes of pushes are RDMA writes. Each write is followed by word of it: where
 * both sides have immediates, the write carries one (slot tag, the length is the write's own),
 * elsewhere a SEND follows it. Without a write, a SEND tells how many words were taken.
 *
 * When one side has memory windows, there are two data channels, the first one for what the
 * connecting side writes, the second one for the other direction, and "writes taken" in the
 * packets' head tells how many words were taken, instead of SENDs.
 *
 *   WORD       0 u32 taken  4 u32 slot tag  8 u64 length (0: nothing was written)     16 bytes
 *
 * A slot tag is the low 24 bits of the slot's index and the low 8 bits of its use count.
 *
 * Credits. Each side posts `ring` + VERBS_SPARE receives on every channel before the peer can send.
 * A sender has at most `ring` packets with records (or words of writes) under way that the peer has
 * not said to have taken. `taken` counts them since the connection, and is also said without any
 * of them, after a quarter of the ring: at most VERBS_SPARE such messages can be under way, since
 * each of them names a quarter of the ring that the peer could not have sent without the one
 * before.
 */
#ifndef TENSORHAUL_VERBS_FRAMING_H
#define TENSORHAUL_VERBS_FRAMING_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define VERBS_MAGIC 0x4d445248u /* "HRDM" */
#define VERBS_VERSION 1

#define VERBS_GREETING 48
#define VERBS_REFUSAL 8
#define VERBS_SESSION 16
#define VERBS_HEAD 8
#define VERBS_MESSAGE 8
#define VERBS_SMALL 24
#define VERBS_WORD 16
#define VERBS_SPARE 8

/* The limits of what a greeting may say. */
#define VERBS_RING_LEAST 8
#define VERBS_RING_MOST 1024
#define VERBS_PACKET_LEAST 2048
#define VERBS_PACKET_MOST 65536
#define VERBS_MTU_MOST 5 /* 4096 bytes */

enum verbs_kind {
	VERBS_CONTROL = 1,
	VERBS_DATA = 2,
};

enum verbs_flag {
	VERBS_IMMEDIATES = 1, /* the device can send and take writes with immediates */
	VERBS_WINDOWS = 2,    /* slots are reached through windows: see data channels */
};

enum verbs_reason {
	VERBS_REASON_VERSION = 1,
	VERBS_REASON_SESSION = 2, /* a data channel of a session that isn't known (any more) */
	VERBS_REASON_ROOM = 3,    /* too many peers are in the handshake, or no memory */
	VERBS_REASON_DEVICE = 4,  /* the option device= names another one */
	VERBS_REASON_GREETING = 5,
};

struct greeting {
	unsigned version;
	unsigned kind;   /* enum verbs_kind */
	unsigned number; /* of the data channel, from 0 */
	unsigned flags;
	uint8_t session[VERBS_SESSION]; /* of the acceptor's making; in the first request zeros */
	unsigned ring;                  /* see above */
	unsigned small;                 /* tensors up to this size are sent within packets */
	unsigned packet;                /* the longest packet that is taken */
	unsigned mtu; /* of the adapter's packets at most, as enum ibv_mtu; 0: the route's */
	/* Eight bytes that the peer may read to see whether this host is there. */
	uint64_t mailbox;
	uint32_t mailbox_key;
};

struct record {
	uint32_t payload; /* bytes of a small tensor; only of a SMALL record */
	bool small;
	uint64_t slot, offset;
	const uint8_t *message, *bytes;
	size_t length;
};

struct word {
	uint32_t taken, tag;
	uint64_t length;
};

void verbs_encode_greeting(uint8_t bytes[VERBS_GREETING], const struct greeting *greeting);
/* 0, -EPROTO when it is none or says what can't be, -EPROTONOSUPPORT for another version. */
int verbs_decode_greeting(const uint8_t *bytes, size_t length, struct greeting *greeting);

void verbs_encode_refusal(uint8_t bytes[VERBS_REFUSAL], enum verbs_reason reason);
/* The reason, or 0 when it is no refusal of ours. */
unsigned verbs_decode_refusal(const uint8_t *bytes, size_t length);

size_t verbs_encode_message(uint8_t *bytes, size_t length);
size_t verbs_encode_small(uint8_t *bytes, size_t length, uint32_t payload, uint64_t slot,
			  uint64_t offset);
/* The size of the record at `bytes`, or 0 when there is no whole one. */
size_t verbs_decode_record(const uint8_t *bytes, size_t length, struct record *record);

void verbs_encode_word(uint8_t bytes[VERBS_WORD], const struct word *word);
void verbs_decode_word(const uint8_t bytes[VERBS_WORD], struct word *word);

/* ---- Where a slot is --------------------------------------------------- */

/*
 * What slot_open() writes for READY: an address, and the keys of the memory registrations that the
 * slot lies in, one after another. The first `first` bytes belong to the first key, each following
 * `each` to the next. Bit 63 of `first`: only the adapter reaches the memory, so that a small
 * tensor too has to be written.
 *
 *   0 u64 address  8 u64 first  16 u64 each  24 u32 key[1..10]                  24 + 4 x keys bytes
 */
#define PLACE_KEYS 10

struct place {
	uint64_t address, first, each;
	bool write_only;
	unsigned keys;
	uint32_t key[PLACE_KEYS];
	uint64_t length[PLACE_KEYS]; /* only where it is made: of each part */
};

size_t place_encode(uint8_t *bytes, const struct place *place);
/* 0 or -EPROTO. */
int place_decode(const uint8_t *bytes, size_t length, struct place *place);
/*
 * The piece of at most `most` bytes at `offset` of the place that lies under one key: its length,
 * address and key. 0 when the place ends there.
 */
uint64_t place_piece(const struct place *place, uint64_t offset, uint64_t most, uint64_t *address,
		     uint32_t *key);

/* A slot's name is its use count << 32 | its index. */
static inline uint32_t slot_tag(uint64_t slot)
{
	return ((uint32_t)slot & 0xffffff) | (uint32_t)(slot >> 32) << 24;
}

#endif
