/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The server's end of memif (shared memory packet interface, version 2.0), written against its
 * documentation and not against DPDK's driver: ports that DPDK programs connect to as clients, come
 * and go, and are killed.
 *
 * A client brings the memory: rings of descriptors and the buffers that they name. In the ring "to
 * server" it fills buffers and moves the head, and the server moves the tail behind them; in the
 * ring "to client" it offers empty buffers up to the head, and the server fills them and moves the
 * tail. One thread does everything. What a client writes into its memory is never trusted.
 */
#ifndef TESTS_DPDK_MEMIF_SERVER_H
#define TESTS_DPDK_MEMIF_SERVER_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define MEMIF_QUEUES 4 /* pairs of rings that a client may have */
#define MEMIF_PIECES 8 /* descriptors that a frame may be spread over */

/* The bytes of a frame, where they lie. */
struct view {
	unsigned count;
	size_t length; /* of all pieces */
	struct {
		const uint8_t *bytes;
		size_t length;
	} pieces[MEMIF_PIECES];
};

struct memif_ring;

struct memif_queue {
	struct memif_ring *ring; /* in the client's memory; NULL: there is none */
	uint16_t region;
	uint32_t offset;
	uint16_t size; /* descriptors, a power of two */
	uint16_t at;   /* to server: the next to take */
	int event;     /* wakes the other side */
	bool produced; /* to client: something it was not told of */
};

struct memif_region {
	uint8_t *base;
	uint64_t size;
};

struct memif_port {
	struct memif_server *server;
	unsigned id;
	int socket; /* -1: nobody is connected */
	bool up;    /* frames can pass */
	unsigned region_count, to_server_count, to_client_count;
	struct memif_region regions[2];
	struct memif_queue to_server[MEMIF_QUEUES], to_client[MEMIF_QUEUES];
	void *user;
};

struct memif_server_ops {
	void (*up)(struct memif_port *port);
	void (*down)(struct memif_port *port);
};

/* Ports 1..count at a socket of this path. 0 or a negative errno. */
int memif_server_open(const char *path, unsigned count, const struct memif_server_ops *ops,
		      struct memif_server **server);
void memif_server_close(struct memif_server *server);
struct memif_port *memif_server_port(struct memif_server *server, unsigned id);

/* A descriptor to wait on: clients that come, say something or go, and frames while the ports are
 * watched. */
int memif_server_fd(const struct memif_server *server);
/* See to all that. */
void memif_server_serve(struct memif_server *server);
/* Have clients wake us when they send, or not. */
void memif_server_watch(struct memif_server *server, bool watch);

/* The next frame of a queue: false when there is none. It stays where it is until memif_release().
 */
bool memif_receive(struct memif_port *port, unsigned queue, struct view *frame);
/* Give the buffers of all frames that were received back to the client. */
void memif_release(struct memif_port *port, unsigned queue);

enum memif_result {
	MEMIF_SENT,
	MEMIF_FULL, /* the client did not take what was sent before */
	MEMIF_DOWN,
};

/* Copy a frame to the client; `hash` chooses its queue. */
enum memif_result memif_send(struct memif_port *port, const struct view *frame, uint32_t hash);
/* Wake the client when it sleeps and something was sent. */
void memif_flush(struct memif_port *port);

#endif
