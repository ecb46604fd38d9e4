/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A transport within one process, for tests: links are queues between contexts. It shows how little
 * a backend needs, and it can do on purpose what networks do by accident. Options set how a
 * context behaves from the start; the functions below, found with dlsym() in the
 * module, make something happen at a moment that a test chooses.
 */
#ifndef BACKEND_MEMORY_H
#define BACKEND_MEMORY_H

#include <pthread.h>
#include <sys/queue.h>

#include "backend.h"

struct memory_config {
	uint64_t piece;      /* tensors are cut into pieces of this size */
	uint64_t window;     /* bytes under way on one link */
	uint64_t delay_us;   /* how long everything is under way */
	uint64_t descriptor; /* length of a slot's descriptor */
	uint64_t seed;
	bool shuffle;  /* pieces arrive in any order, before their header too */
	bool sticky;   /* a slot can't be taken back before the peer has answered (as RDMA) */
	bool slow_end; /* a push is only let go of in the next progress */
	bool keeper;   /* a thread of the backend's drives, too, and links leave slowly */
};

/* ---- What tests do ----------------------------------------------------- */

enum memory_forgery {
	FORGE_NOTHING,
	FORGE_SLOT,   /* a slot that never was */
	FORGE_OFFSET, /* just behind the slot's end */
	FORGE_WRAP,   /* offset + length wraps around */
};

struct memory_counts {
	unsigned contexts, listeners, links, regions, slots, pushes, messages;
};

struct memory_control {
	void (*hold)(bool hold);                /* pieces stay under way */
	void (*corrupt)(unsigned pieces);       /* so many of the next pieces get a wrong byte */
	void (*forge)(enum memory_forgery how); /* the next piece names another place */
	void (*cut_after)(uint64_t bytes); /* links break once so many more bytes have arrived */
	void (*jam)(bool jam);             /* control() finds no room */
	void (*let_fail)(unsigned regions, unsigned slots, unsigned pushes); /* calls that fail */
	void (*reset)(void);                                                 /* all that */
	struct memory_counts (*count)(void);
};

/* The module exports one of these. */
#define MEMORY_CONTROL "memory_control"

/* ---- Messages ---------------------------------------------------------- */

enum message_kind {
	MESSAGE_CONNECT, /* to a listener's context: somebody wants in */
	MESSAGE_WELCOME,
	MESSAGE_REFUSED, /* nobody listens */
	MESSAGE_CONTROL,
	MESSAGE_PIECE,
	MESSAGE_CREDIT, /* a piece has left the window */
	MESSAGE_GONE,   /* the other end is; `length` is a positive errno or 0 */
};

struct message {
	TAILQ_ENTRY(message) queued;
	enum message_kind kind;
	uint64_t due;      /* haul_clock() */
	uint64_t to, from; /* links */
	uint64_t listener; /* CONNECT */
	uint64_t push;     /* PIECE, and CONTROL when it is a push's header; 0: it is none */
	uint64_t total;    /* of the push */
	uint64_t slot, offset;
	uint8_t descriptor[HAUL_DESCRIPTOR_MAX];
	size_t descriptor_length;
	size_t length;
	uint8_t bytes[];
};

TAILQ_HEAD(message_list, message);

/* ---- Contexts and links ------------------------------------------------ */

/* A slot that is open for the peer. */
struct open_slot {
	struct open_slot *next;
	uint64_t slot;
};

/* How far a push has come. */
struct cut {
	struct cut *next;
	struct haul_push *push;
	uint64_t name;
	uint64_t done;
};

/* A push that comes in: its header has to be there before its last piece. */
struct incoming {
	struct incoming *next;
	uint64_t push;
	uint64_t arrived;
	bool header;
};

struct backend_link {
	TAILQ_ENTRY(backend_link) all;   /* in the context's links */
	TAILQ_ENTRY(backend_link) known; /* in the house's */
	uint64_t name;
	uint64_t peer; /* 0: not known yet */
	struct backend_context *context;
	haul_endpoint *endpoint; /* NULL: disconnected */
	bool dead;               /* freed at the end of this progress */
	bool lost;
	int error; /* to be reported */
	const char *why;
	struct cut *cuts;               /* of all pushes that aren't ended */
	struct haul_push *first, *last; /* those that have bytes to send */
	struct haul_push *ending;       /* to be let go of */
	uint64_t in_flight, pieces;
	struct open_slot *slots;
	struct incoming *incoming;
};

struct backend_listener {
	TAILQ_ENTRY(backend_listener) all; /* in the house */
	struct backend_context *context;
	haul_listener *engine;
	uint64_t name;
	char host[64];
	unsigned port;
};

struct backend_context {
	TAILQ_ENTRY(backend_context) all;
	haul_context *engine;
	const struct memory_config *config;
	int wake;
	struct message_list inbox;  /* guarded by the house's lock */
	struct message_list pieces; /* due, but held back or to be shuffled */
	TAILQ_HEAD(, backend_link) links;
	uint64_t next_due;
	uint64_t random;
	bool again; /* progress has more to do */
	uint64_t leaving_until;
	bool waits; /* a thread is in wait: atomic */

	/* With keeper=yes. */
	pthread_t keeper;
	bool keeper_ends; /* atomic */
};

/* What the contexts share: everything in here is guarded by its lock, which is a leaf. */
struct house {
	pthread_mutex_t lock;
	TAILQ_HEAD(, backend_context) contexts;
	TAILQ_HEAD(, backend_listener) listeners;
	TAILQ_HEAD(, backend_link) links;
	uint64_t next_name;
	unsigned next_port;
	struct memory_counts counts;
	bool held, jammed;
	unsigned corrupt, fail_regions, fail_slots, fail_pushes;
	enum memory_forgery forgery;
	bool cutting;
	uint64_t cut_after;
};

extern struct house house;

/* memory_house.c */
void house_lock(void);
void house_unlock(void);
struct message *message_new(enum message_kind kind, size_t length);
void message_free(struct message *message);
void house_post(struct message *message); /* to the link `to`; dropped when there is none */
bool house_connect(struct message *message, const char *host, unsigned port); /* to a listener */
bool house_take(unsigned *budget); /* one of a number of things that shall happen */
uint64_t house_name(void);

/* memory_link.c */
extern const struct haul_link_ops memory_link_ops;
struct backend_link *link_new(struct backend_context *context, haul_endpoint *endpoint);
struct backend_link *link_find(struct backend_context *context, uint64_t name);
void link_fail(struct backend_link *link, int error, const char *why);
void link_free(struct backend_link *link);
void link_pump(struct backend_link *link); /* let pieces leave while the window has room */

/* memory_data.c */
extern const struct haul_data_ops memory_data_ops;
bool data_deliver(struct backend_link *link, struct message *piece); /* false: not yet */
void data_header_came(struct backend_link *link, uint64_t push);
void data_forget(struct backend_link *link);

#endif
