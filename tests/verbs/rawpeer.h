/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A peer written by hand, over bare librdmacm, from what verbs/framing.h and wire.h say: it can do
 * everything wrong that a peer can. It connects to a side of the library whose contexts run by
 * themselves (progress=thread), so that the test may block here.
 */
#ifndef VERBS_RAWPEER_H
#define VERBS_RAWPEER_H

#include <rdma/rdma_cma.h>

#include "../tcp/rawpeer.h" /* its messages are the same for every transport */
#include "verbs/framing.h"

/* One queue pair, with receives posted and everything else by hand. */
struct raw_channel {
	struct rdma_cm_id *id;
	struct ibv_mr *mr;
	uint8_t *
		buffers; /* RAW_RECEIVES of RAW_BUFFER bytes, then as much to send and write from */
	bool connected;
};

#define RAW_RECEIVES 40
#define RAW_BUFFER 2048
#define RAW_SOURCE ((size_t)RAW_RECEIVES * RAW_BUFFER)
#define RAW_SOURCE_SIZE ((size_t)1 << 20)

/* The address of this host that raw peers connect from. */
extern const char *raw_source;

struct raw_answer {
	bool accepted;
	struct greeting greeting; /* when accepted */
	unsigned refusal;         /* the reason, 0: none of ours */
};

/* Connect with this private data. */
struct raw_answer raw_channel_open(struct raw_channel *channel, const char *address,
				   const void *greeting, size_t length);
void raw_channel_close(struct raw_channel *channel);
/* SEND; false when the connection is gone. */
bool raw_channel_send(struct raw_channel *channel, const void *bytes, size_t length);
/* RDMA write from the source buffer; `tag` goes with it as immediate. False when it failed. */
bool raw_channel_write(struct raw_channel *channel, uint64_t address, uint32_t key, size_t length,
		       const uint32_t *tag);
/* RDMA read into the source buffer. False when it failed. */
bool raw_channel_read(struct raw_channel *channel, uint64_t address, uint32_t key, size_t length);
/* SEND a word that says nothing, and with it that the other side's adapter forgets a key. */
bool raw_channel_forget(struct raw_channel *channel, uint32_t key);
/* The next SEND of the other side, copied; 0 at the end of the connection. */
size_t raw_channel_receive(struct raw_channel *channel, uint8_t *bytes);
bool raw_channel_closed_within(struct raw_channel *channel, unsigned ms);

/* A peer that has passed the handshake. */
struct raw_verbs {
	struct raw_channel control, data;
	struct raw_channel other; /* for the other direction, when the side has windows */
	struct greeting theirs;
	uint32_t packets; /* that were taken of theirs */
	haul_endpoint *endpoint;
	uint8_t packet[RAW_BUFFER]; /* the last one, and how far it was read */
	size_t length, read;
};

/* A greeting that is right. */
struct greeting raw_greeting(enum verbs_kind kind, const uint8_t *session);
void raw_verbs_open(struct raw_verbs *peer, struct side *side);
void raw_verbs_close(struct raw_verbs *peer);
/* One packet with one message, and with `bytes` as a SMALL record when they are given. */
bool raw_verbs_message(struct raw_verbs *peer, const uint8_t *message, size_t length);
bool raw_verbs_small(struct raw_verbs *peer, uint64_t slot, uint64_t offset, const uint8_t *message,
		     size_t length, const void *bytes, uint32_t count);
/* The next message of this type; others are skipped. */
void raw_verbs_expect(struct raw_verbs *peer, enum wire_type type, uint8_t *message);

#endif
