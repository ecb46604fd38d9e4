/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A peer written by hand, frame by frame, from what dpdk/packet.h and wire.h say: it can do
 * everything wrong that a peer can. It connects to a side of the library whose contexts run by
 * themselves (progress=thread), so that the test may block here.
 */
#ifndef TESTS_DPDK_RAWPEER_H
#define TESTS_DPDK_RAWPEER_H

#include "../tcp/rawpeer.h" /* its messages are the same for every transport */
#include "frame.h"
#include "hub.h"
#include "packet.h"
#include "recovery.h"

#define RAW_PAYLOAD 1472
#define RAW_STREAM ((size_t)1 << 18)
#define RAW_DATA ((size_t)1 << 20)

/* The side that is spoken to. */
struct raw_side {
	uint32_t ip;
	uint16_t port;
	uint8_t mac[FRAME_MAC];
};

/* One peer of ours. It is large: static, or in the world's memory. */
struct raw_dpdk {
	struct raw_side side;
	uint32_t ip;
	uint16_t port;
	uint64_t name, side_name;
	uint16_t payload; /* of the connection */
	uint64_t number;  /* the last that was used */
	uint8_t ecn;
	bool silent;               /* nothing is acknowledged */
	uint32_t window;           /* that acknowledgements tell */
	uint32_t delay;            /* the same; 0: the truth */
	struct received *received; /* what is acknowledged */
	uint64_t largest;          /* number that came */
	/* The side's stream, as far as it came; no hole is filled beyond. */
	uint8_t stream[RAW_STREAM];
	size_t stream_length, stream_read;
	uint64_t stream_sent;
	/* DATA that came, by offset. */
	uint8_t data[RAW_DATA];
	uint64_t data_packets, data_bytes;
	bool closed, reset;
	uint16_t reason; /* of CLOSE */
	haul_endpoint *endpoint;
};

/* ---- Frames and packets ------------------------------------------------ */

/* Where a listening side is; asks for its MAC. */
struct raw_side raw_find(const char *address);
/* A peer with an address of its own, that has said nothing. Eight can be used at a time. */
void raw_start(struct raw_dpdk *peer, const struct raw_side *side);

/* The frame around so many bytes of UDP payload; gives its length. */
size_t raw_frame(const struct raw_dpdk *peer, uint8_t *frame, const void *payload, size_t length);
/* Send it. */
void raw_udp(const struct raw_dpdk *peer, const void *payload, size_t length);
/* The next UDP payload for this peer: its length, 0 when none comes within so many ms. */
size_t raw_take(struct raw_dpdk *peer, uint8_t *payload, unsigned ms);

/* ---- Opening ----------------------------------------------------------- */

/* An OPEN that is right, without a cookie; of PACKET_OPEN bytes. */
struct packet_open raw_open_of(const struct raw_dpdk *peer);
/* Send it, filled up to `length`. */
void raw_say_open(const struct raw_dpdk *peer, const struct packet_open *open, size_t length);
/* The next packet of this type; false when none comes within so many ms. */
bool raw_answer(struct raw_dpdk *peer, enum packet_type type, uint8_t *payload, size_t *length,
		unsigned ms);
void raw_cookie(struct raw_dpdk *peer, uint8_t cookie[PACKET_COOKIE_SIZE]);
/* Up to OPENED. */
void raw_connect_link(struct raw_dpdk *peer);
/* Up to HELLO of both: the side has accepted the endpoint. */
void raw_dpdk_open(struct raw_dpdk *peer, struct side *side);

/* ---- An open connection ------------------------------------------------ */

struct packet_head raw_head(struct raw_dpdk *peer, enum packet_type type);
/* A piece of the stream at any offset; DATA with any number, PING. */
void raw_stream_at(struct raw_dpdk *peer, uint64_t offset, const void *bytes, size_t length);
void raw_stream(struct raw_dpdk *peer, const void *bytes, size_t length);
void raw_dpdk_message(struct raw_dpdk *peer, const uint8_t *message, size_t length);
void raw_data_as(struct raw_dpdk *peer, uint64_t number, uint32_t back, uint64_t slot,
		 uint64_t offset, const void *bytes, size_t length);
void raw_data(struct raw_dpdk *peer, uint64_t slot, uint64_t offset, const void *bytes,
	      size_t length);
/* A whole tensor: first the PUSH, then its bytes in pieces. */
void raw_tensor(struct raw_dpdk *peer, uint64_t slot, const uint8_t *bytes, size_t length);
void raw_acknowledge(struct raw_dpdk *peer, const struct packet_ack *ack);
/* Take one packet and do with it what is right; false when none comes within so many ms. */
bool raw_serve(struct raw_dpdk *peer, unsigned ms);
/* The next message of this type; others are skipped. */
void raw_dpdk_expect(struct raw_dpdk *peer, enum wire_type type, uint8_t *message);

#endif
