/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What two dpdk backends say to each other in the payload of a UDP datagram, byte by byte.
 * docs/protocol.md explains how it plays together. Numbers are little-endian; reserved bytes are
 * sent as 0 and ignored. Nothing in this file and packet.c needs DPDK.
 *
 * Every packet starts with a head:
 *
 *    0 u64 connection: the receiver's name of it (0 in OPEN and RESET)
 *    8 u8 type   9 u8 flags   10 u48 number                                              16 bytes
 *
 * Opening a connection. The side that connects sends OPEN, is given a cookie, and sends OPEN again
 * with it: whoever can't receive at the address that it claims costs the other side no memory. The
 * second OPEN and its answer are as long as the longest packet that both ports can carry, so a path
 * that drops those is found out at once. The number is 0.
 *
 *   OPEN       head  16 u32 magic  20 u8 version  21 u8 reserved  22 u16 payload
 *              24 u64 sender's name of the connection  32 u64 incarnation  40 u32 window
 *              44 u32 reserved  48 cookie[32] (0 at first)  80 padding           80 bytes and more
 *   COOKIE     head  16 u32 magic  20 u8 version  21 u8 reserved  22 u16 payload
 *              24 u32 reserved 28 u32 reserved  32 cookie[32]                              64 bytes
 *   OPENED     head  then as OPEN up to byte 48, padding                         48 bytes and more
 *   REFUSED    head  16 u32 magic  20 u8 version  21 u8 reserved  22 u16 reason           24 bytes
 *
 *   payload: the longest UDP payload that the sender of this packet can take and send.
 *   window: how many packets may be under way to the sender of this packet.
 *
 * Packets of an open connection have numbers of their own, which rise by one with each packet that
 * asks for an acknowledgement (STREAM, DATA, PING); no packet is ever sent twice, only its content.
 * The others carry the number 0.
 *
 *   STREAM     head  [acknowledgement]  u64 offset  bytes of the control stream up to the end
 *   DATA       head  16 u64 slot  24 u48 offset  30 u16 back  32 the bytes of a tensor up to the
 * end PING       head  padding up to the end ACK        head  acknowledgement CLOSE      head  16
 * u16 reason  18 reserved[6]: the connection is over              24 bytes CLOSED     head  it is
 * over here, too                                               16 bytes RESET      head  16 u64 the
 * name that the receiver of a packet did not know         24 bytes
 *
 *   acknowledgement (in STREAM when the flag says so):
 *    0 u64 largest number that arrived   8 u32 ns since it arrived   12 u32 window
 *   16 u32 packets that arrived with the mark "congestion experienced", in all
 *   20 u16 count of ranges, 1..64   22 u16 clock   24 ranges                24 + 8 x count
 *
 *   clock: the time of day at this packet's sender, UTC in units of 2^18 ns, its low 16 bits. By
 *   it senders that share a link do at the same time what they do now and then.
 *
 *   range: u32 numbers that did not arrive, below the range before (the first: 0)
 *          u32 numbers that arrived, at least 1
 *
 *   back: these bytes were sent before, first in the packet whose number is smaller by this much;
 *   0: never before. A receiver that has placed them knows by that number, since several packets
 *   can carry the same bytes when one was taken for lost too early.
 *
 * The control stream is a sequence of records:
 *
 *   MESSAGE    0 u16 1  2 u16 length  4 u32 reserved  message[length]            8 + length bytes
 *   SMALL      0 u16 2  2 u16 length  4 u32 payload  8 u64 slot  16 u64 offset
 *              message[length] payload[payload]                    24 + length + payload bytes
 */
#ifndef TENSORHAUL_DPDK_PACKET_H
#define TENSORHAUL_DPDK_PACKET_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define PACKET_MAGIC 0x4b504148u /* "HAPK" */
#define PACKET_VERSION 1

#define PACKET_HEAD 16
#define PACKET_OPEN 80
#define PACKET_COOKIE 64
#define PACKET_OPENED 48
#define PACKET_REFUSED 24
#define PACKET_STREAM 24 /* without an acknowledgement */
#define PACKET_DATA 32
#define PACKET_CLOSE 24
#define PACKET_RESET 24
#define PACKET_ACK_FIXED 24
#define PACKET_ACK_RANGE 8
#define PACKET_RANGES_MAX 64
#define PACKET_COOKIE_SIZE 32

#define PACKET_CLOCK_UNIT 18

/* The shortest and longest UDP payload of a connection: IPv4 guarantees 576 bytes a packet. */
#define PACKET_PAYLOAD_LEAST 548
#define PACKET_PAYLOAD_MOST 9672

/* Numbers have 48 bits: at 100 million packets a second they last for a month. */
#define PACKET_NUMBER_MAX ((UINT64_C(1) << 48) - 1)

enum packet_type {
	PACKET_TYPE_OPEN = 1,
	PACKET_TYPE_COOKIE = 2,
	PACKET_TYPE_OPENED = 3,
	PACKET_TYPE_REFUSED = 4,
	PACKET_TYPE_STREAM = 5,
	PACKET_TYPE_DATA = 6,
	PACKET_TYPE_PING = 7,
	PACKET_TYPE_ACK = 8,
	PACKET_TYPE_CLOSE = 9,
	PACKET_TYPE_CLOSED = 10,
	PACKET_TYPE_RESET = 11,
};

enum packet_flag {
	PACKET_HAS_ACK = 1,  /* STREAM: an acknowledgement follows the head */
	PACKET_ASKS_NOW = 2, /* acknowledge at once, not with the next ones */
};

enum packet_reason {
	PACKET_REASON_NONE = 0,
	PACKET_REASON_VERSION = 1,
	PACKET_REASON_NO_LISTENER = 2,
	PACKET_REASON_FULL = 3,     /* no memory, or too many connections */
	PACKET_REASON_PROTOCOL = 4, /* the peer broke the protocol */
	PACKET_REASON_PAYLOAD = 5,  /* no length of packets suits both */
};

struct packet_head {
	uint64_t connection;
	uint64_t number;
	uint8_t type;
	uint8_t flags;
};

/* OPEN and OPENED. */
struct packet_open {
	uint64_t name;
	uint64_t incarnation;
	uint32_t window;
	uint16_t payload;
	uint8_t version;
	uint8_t cookie[PACKET_COOKIE_SIZE]; /* OPEN only */
};

/* COOKIE and REFUSED. */
struct packet_answer {
	uint8_t version;
	uint16_t payload; /* COOKIE */
	uint16_t reason;  /* REFUSED */
	uint8_t cookie[PACKET_COOKIE_SIZE];
};

/* Numbers first..last arrived. */
struct packet_range {
	uint64_t first, last;
};

/* Ranges in falling order: ranges[0].last is the largest number that arrived. */
struct packet_ack {
	uint32_t delay_ns;
	uint32_t window;
	uint32_t marks;
	uint16_t clock; /* in units of 2^PACKET_CLOCK_UNIT ns */
	uint32_t count;
	struct packet_range ranges[PACKET_RANGES_MAX];
};

struct packet_data {
	uint64_t slot, offset;
	uint32_t back;
};

/* Offsets have 48 bits: tensors of up to 256 TiB. */
#define PACKET_OFFSET_MAX ((UINT64_C(1) << 48) - 1)
/* So many numbers after the first, bytes must have been sent again: see RECEIVED_SPAN. */
#define PACKET_BACK_MAX 32767u

/* One record of the control stream. */
struct packet_record {
	const uint8_t *message, *payload;
	uint64_t slot, offset; /* SMALL */
	uint32_t payload_length;
	uint16_t message_length;
	bool small;
};

/* The longest message of a record. */
#define RECORD_MESSAGE_MAX 1024

#define RECORD_MESSAGE 8
#define RECORD_SMALL 24

/*
 * Reading. Each takes the whole UDP payload (or what the name says), looks at every length, and
 * gives false for what can't be. The structs keep no pointer but those of packet_record.
 */
bool packet_read_head(const uint8_t *packet, size_t length, struct packet_head *head);
bool packet_read_open(const uint8_t *packet, size_t length, struct packet_open *open);
bool packet_read_opened(const uint8_t *packet, size_t length, struct packet_open *open);
bool packet_read_cookie(const uint8_t *packet, size_t length, struct packet_answer *answer);
bool packet_read_refused(const uint8_t *packet, size_t length, struct packet_answer *answer);
bool packet_read_data(const uint8_t *packet, size_t length, struct packet_data *data);
/* CLOSE's reason, RESET's name. */
bool packet_read_close(const uint8_t *packet, size_t length, uint16_t *reason);
bool packet_read_reset(const uint8_t *packet, size_t length, uint64_t *name);
/* `bytes` is what follows the head; *used is how many of them the acknowledgement took. */
bool packet_read_ack(const uint8_t *bytes, size_t length, struct packet_ack *ack, size_t *used);

/*
 * Writing. Each gives the number of bytes written; the caller sees to the room: at least the sizes
 * above. packet_write_open() and _opened() write no padding.
 */
size_t packet_write_head(uint8_t *packet, const struct packet_head *head);
size_t packet_write_data(uint8_t *packet, const struct packet_head *head,
			 const struct packet_data *data);
size_t packet_write_open(uint8_t *packet, const struct packet_open *open);
size_t packet_write_opened(uint8_t *packet, uint64_t connection, const struct packet_open *open);
size_t packet_write_cookie(uint8_t *packet, uint64_t connection,
			   const struct packet_answer *answer);
size_t packet_write_refused(uint8_t *packet, uint64_t connection,
			    const struct packet_answer *answer);
size_t packet_write_close(uint8_t *packet, uint64_t connection, uint16_t reason);
size_t packet_write_closed(uint8_t *packet, uint64_t connection);
size_t packet_write_reset(uint8_t *packet, uint64_t name);
size_t packet_write_offset(uint8_t *bytes, uint64_t offset); /* STREAM's */
uint64_t packet_read_offset(const uint8_t *bytes);
/* As many ranges as fit into `room` (at least one must). */
size_t packet_write_ack(uint8_t *bytes, size_t room, const struct packet_ack *ack);
size_t packet_write_record(uint8_t *bytes, const struct packet_record *record);

/*
 * The next record of the control stream: its length, 0 when it is not there as a whole, -1 when
 * no record starts like this. `payload_most` is the longest that the peer may send.
 */
long packet_read_record(const uint8_t *bytes, size_t length, uint32_t payload_most,
			struct packet_record *record);

#endif
