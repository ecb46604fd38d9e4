/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The engine's own structures. Everything here is guarded by the context's lock, unless a
 * comment says otherwise.
 *
 * The life of a send:      WAITING -> (DIGESTING ->) PUSHING -> (ENDING ->) done
 * The life of a receive:   UNPOSTED -> POSTED -> (DIGESTING ->) done, or -> CANCELLING -> done
 */
#ifndef TENSORHAUL_ENGINE_H
#define TENSORHAUL_ENGINE_H

#include <pthread.h>
#include <sys/queue.h>

#include "../backend.h"
#include "../wire.h"
#include "auth.h"
#include "clock_offset.h"
#include "deadlines.h"
#include "keys.h"
#include "log.h"
#include "options.h"
#include "trace.h"

/* clang-format off */
#define container_of(pointer, type, member) ((type *)((char *)(pointer) - offsetof(type, member)))
/* clang-format on */

/* How much of a tensor is checksummed before others get their turn. */
#define DIGEST_SLICE (UINT64_C(1) << 20)

/* A peer that is not through the handshake costs memory and a descriptor: this many at most. */
#define HANDSHAKES_MAX 1024

/* Keys up to this length need no memory of their own. */
#define KEY_INLINE 32

struct timer {
	struct deadline deadline;
	enum timer_kind {
		TIMER_OPERATION,
		TIMER_HANDSHAKE,
	} kind;
};

/* ---- Operations -------------------------------------------------------- */

enum operation_kind {
	OPERATION_CONNECT,
	OPERATION_SEND,
	OPERATION_RECV,
	OPERATION_QUERY,
};

enum operation_state {
	STATE_CONNECTING, /* connect: until the handshake is over */
	STATE_WAITING,    /* send: in its key's queue */
	STATE_DIGESTING,  /* send: before the push; receive: all bytes are there, being checked */
	STATE_PUSHING,    /* send: the backend has the push */
	STATE_ENDING,     /* send: the backend was asked to let go of the push */
	STATE_UNPOSTED,   /* receive: the peer remembers no more slots */
	STATE_POSTED,     /* receive: READY was sent */
	STATE_CANCELLING, /* receive: the slot can't be taken back before the peer answers */
	STATE_DONE,       /* waits for haul_poll() */
};

/* What happens when the backend has let go of a push (STATE_ENDING). */
enum ending {
	ENDING_PLACED,   /* the send is complete */
	ENDING_GIVEN_UP, /* cancelled here: tell the peer, complete with `result` */
	ENDING_RETURNED, /* the peer took the slot back: the send waits again */
	ENDING_AGAIN,    /* the peer's checksum failed: push once more */
};

struct operation {
	/* In its key's queue, the endpoint's unposted, the digests or the completions. */
	TAILQ_ENTRY(operation) queued;
	TAILQ_ENTRY(operation) all; /* in endpoint->operations or context->connects */
	enum operation_kind kind;
	enum operation_state state;
	haul_endpoint *endpoint;
	haul_context *context;
	void *cookie;
	struct timer timer;
	bool blocking; /* a blocking helper waits for it: haul_poll() doesn't see it */
	int result;
	char *detail; /* why it failed, or NULL; owned */

	uint8_t key_length;
	uint8_t key_inline[KEY_INLINE];
	uint8_t *key_far; /* longer keys; owned */

	struct haul_tensor_info tensor; /* what is sent; receive: what was received */
	uint8_t *data;
	uint64_t bytes; /* send: the size; receive: the room */
	haul_region *region;
	void *registered; /* what region_add() gave; for this operation only when region is NULL */
	bool temporary;   /* `registered` ends with the operation */

	uint64_t posted_at, met_at; /* send: haul_clock() of the call, and of the last meeting */
	struct key_entry *entry;    /* send, WAITING: whose queue it is in */
	/* Send, from the meeting on: the peer's slot; NULL once it is gone. */
	struct remote_slot *remote;
	struct haul_push push;
	enum ending ending;
	unsigned tries; /* pushes that failed the checksum */

	uint32_t slot;     /* receive, POSTED: index into endpoint->slots */
	uint64_t digested; /* DIGESTING: bytes done */
	uint32_t crc;
	uint8_t header[40 + 8 * HAUL_RANK_MAX]; /* PUSH */
	/* Only with the option trace, and not cleared without it. */
	struct operation_trace {
		uint64_t at[TRACE_POINTS];
		uint64_t slot, copied, kernel;
		uint32_t link; /* the endpoint's: it may be gone before the completion */
		uint64_t link_id;
		bool connector;
	} trace;
};

/* The detail that goes with a failed operation (owned copy); best effort. */
void operation_explain(struct operation *operation, const char *text);

static inline const uint8_t *operation_key(const struct operation *operation)
{
	return operation->key_far ? operation->key_far : operation->key_inline;
}

/* ---- Slots ------------------------------------------------------------- */

/* A receive as the peer sees it. */
struct local_slot {
	uint32_t generation; /* the high half of the slot's name; raised when it is freed */
	enum {
		SLOT_FREE,
		SLOT_OPEN,
		SLOT_CLOSED, /* the receive is over, but the peer may still use the name */
	} state;
	struct operation *operation; /* OPEN */
	uint64_t arrived;
	uint64_t expected; /* valid when `announced` */
	uint32_t crc;      /* of the sender, when `checked` */
	uint32_t next_free;
	bool announced; /* PUSH was read */
	bool checked;   /* PUSH carried a checksum */
};

/* A receive of the peer's. */
struct remote_slot {
	TAILQ_ENTRY(remote_slot) queued; /* in its key's queue while unmatched */
	struct key_entry *entry;         /* unmatched: whose queue it is in */
	struct operation *operation;     /* matched: the send */
	uint64_t name;
	uint64_t room;
	bool query;
	uint8_t descriptor_length;
	uint8_t descriptor[HAUL_DESCRIPTOR_MAX];
};

/* ---- Endpoints, listeners, regions ------------------------------------- */

enum endpoint_state {
	ENDPOINT_CONNECTING, /* the backend connects */
	ENDPOINT_HELLO,      /* HELLO was sent, the peer's is awaited */
	ENDPOINT_PROOF,      /* the proof is awaited */
	ENDPOINT_OPEN,
	ENDPOINT_LOST,
};

TAILQ_HEAD(endpoint_list, haul_endpoint);

struct haul_endpoint {
	TAILQ_ENTRY(haul_endpoint) all; /* in context->endpoints */
	TAILQ_ENTRY(haul_endpoint) dirty_entry;
	TAILQ_ENTRY(haul_endpoint) event_entry; /* in context->events */
	haul_context *context;
	haul_listener *listener; /* that accepted it, as long as it listens */
	void *accept_cookie;
	struct backend_link *link;
	enum endpoint_state state;
	enum wire_role role;
	char address[128];
	void *user;
	bool announced;         /* the caller knows the handle */
	uint64_t handed_in;     /* the round in which haul_poll() handed it out */
	bool dirty;             /* queued messages wait for a flush */
	uint64_t flushed_in;    /* the round in which a send was flushed at once */
	int doomed;             /* errno to lose it with in the next progress; 0 */
	const char *doomed_why; /* static */
	bool polite;            /* lost, but the last message should still leave */
	bool released;          /* the next progress frees it */
	int lost_error;
	char lost_why[160];
	enum haul_event event; /* 0: none waits in context->events */
	int event_result;
	char *event_detail; /* owned */

	struct timer timer;        /* of the handshake */
	struct operation *connect; /* the haul_connect() that made it, until it completes */
	uint8_t hello_own[WIRE_HELLO_SIZE], hello_peer[WIRE_HELLO_SIZE];
	uint64_t peer_incarnation, peer_features;

	struct operation_queue operations; /* all that are not done */
	struct operation_queue unposted;
	struct keys keys;

	struct local_slot *slots;
	uint32_t slot_count;            /* room of the array */
	uint32_t slot_free;             /* head of the free list, UINT32_MAX: none */
	uint32_t slots_used, slots_max; /* what the peer remembers */

	struct remote_slot **remotes; /* by index; grows */
	uint32_t remote_count;

	struct haul_statistics counters;

	uint32_t trace_link; /* its number in the context's trace */
	uint64_t trace_link_id;
	struct clock_offset clock;
};

struct haul_listener {
	TAILQ_ENTRY(haul_listener) all;
	haul_context *context;
	struct backend_listener *backend;
	void *cookie;
	char address[128];
};

struct haul_region {
	TAILQ_ENTRY(haul_region) all;
	haul_context *context;
	uint8_t *base;
	size_t length;
	unsigned use;
	unsigned uses;    /* operations that are not done */
	void *registered; /* the backend's */
	enum {
		REGION_CALLER,  /* the caller's memory */
		REGION_MAPPED,  /* mapped by the engine */
		REGION_BACKEND, /* memory_allocate() */
		REGION_DEVICE,  /* a dma-buf: the CPU need not reach it */
	} memory;
};

/* ---- Contexts ---------------------------------------------------------- */

struct haul_context {
	pthread_mutex_t lock;
	pthread_cond_t changed;   /* completions came, or the driver left */
	unsigned fork_generation; /* of the process that opened it */
	const struct haul_backend *backend;
	struct backend_context *state;
	struct engine_config config;
	void *backend_config;
	char *spec;
	struct auth_key *key; /* auth=psk, or NULL */
	uint64_t incarnation;
	char detail[DETAIL_MAX];

	struct endpoint_list endpoints;
	struct endpoint_list dirty;  /* wait for a flush */
	struct endpoint_list events; /* HAUL_ACCEPTED and HAUL_LOST that wait for haul_poll() */
	TAILQ_HEAD(, haul_listener) listeners;
	TAILQ_HEAD(, haul_region) regions;
	struct operation_queue connects;
	struct operation_queue digests;
	struct operation_queue completions;
	struct operation_queue spare; /* operations to be used again */
	unsigned spare_count;
	unsigned handshakes; /* accepted endpoints that are not open yet */
	unsigned doomed;     /* endpoints with doomed set */
	unsigned released;   /* endpoints with released set */
	struct deadlines deadlines;
	struct haul_statistics past; /* of released endpoints */

	struct haul_trace *trace; /* NULL without the option; set before the backend is opened */
	uint32_t trace_links;     /* that have a number in it */

	uint64_t now;   /* of haul_now(); 0: nobody has asked since the call began */
	uint64_t round; /* counts polls: the first send of an endpoint in each leaves at once */
	bool driving;   /* a thread is in progress or in wait */
	bool sleeping;  /* ... in wait, without the lock */
	uint64_t sleeping_until; /* haul_clock() */
	unsigned waiters;        /* threads on `changed` */
	bool closing;            /* tells the progress thread to end */
	bool threaded;           /* progress=thread */
	pthread_t thread;

	int outside; /* epoll descriptor of haul_event_fd(), -1 until it is asked for */
	int signal;  /* eventfd in it */
	int clock;   /* timerfd in it */
	bool signalled;
	uint64_t clock_at;
};

/* context.c */
int context_enter(haul_context *context);  /* lock; -ECHILD in a forked child */
void context_leave(haul_context *context); /* flush or wake what has to, and unlock */
bool context_forked(const haul_context *context);
int context_fail(haul_context *context, int error, const char *format, ...)
	__attribute__((format(printf, 3, 4)));

/* poll.c */
int engine_progress(haul_context *context);
void engine_flush(haul_context *context);
/* Run the context until ready(user): 0; or until the time, as of haul_clock(): -ETIMEDOUT. */
int engine_wait(haul_context *context, bool (*ready)(haul_context *, void *), void *user,
		uint64_t until);
uint64_t poll_next_timer(haul_context *context);
int poll_start(haul_context *context); /* the progress thread */
void poll_stop(haul_context *context);
void poll_signal(haul_context *context); /* bring haul_event_fd()'s state up to date */

/* operation.c */
struct operation *operation_new(haul_context *context, enum operation_kind kind,
				haul_endpoint *endpoint, const struct haul_op *op);
/*
 * A new send, receive or query with all that it was given, in no queue yet: 0, or an error with its
 * detail. Queries have no tensor.
 */
int operation_begin(haul_endpoint *endpoint, enum operation_kind kind, struct haul_key key,
		    const DLTensor *tensor, haul_region *region, const struct haul_op *op,
		    struct operation **out);
/* Of one that is in no queue, and never was handed out. */
void operation_abandon(struct operation *operation);
int operation_set_timeout(struct operation *operation, const struct haul_op *op);
void operation_complete(struct operation *operation, int result);
void operation_free(struct operation *operation);
void operation_cancel(struct operation *operation, int result);

/* endpoint.c */
haul_endpoint *endpoint_new(haul_context *context, enum wire_role role);
void endpoint_lost(haul_endpoint *endpoint, int error, const char *why);
void endpoint_announce(haul_endpoint *endpoint); /* HAUL_ACCEPTED was handed out */
/* Lose it in the next progress. */
void endpoint_doom(haul_endpoint *endpoint, int error, const char *why);
void endpoint_free(haul_endpoint *endpoint);
void endpoint_control(haul_endpoint *endpoint, const uint8_t *message, size_t length);
void endpoint_dirty(haul_endpoint *endpoint);
void endpoint_event(haul_endpoint *endpoint, enum haul_event event, int result, const char *detail);
void endpoint_close(haul_endpoint *endpoint); /* in order; frees it */
/* haul_connect(); with `blocking` the operation is not handed out by haul_poll(). */
int connect_start(haul_context *context, const char *address, const struct haul_op *op,
		  struct operation **blocking);

/* handshake.c */
void handshake_start(haul_endpoint *endpoint);
void handshake_message(haul_endpoint *endpoint, const struct wire_message *message,
		       const uint8_t *bytes, size_t length);
void handshake_expired(haul_endpoint *endpoint);

/* send.c; `blocking` as for connect_start() */
int send_start(haul_endpoint *endpoint, struct haul_key key, const DLTensor *tensor,
	       haul_region *region, const struct haul_op *op, struct operation **blocking);
void send_ready(haul_endpoint *endpoint, const struct wire_ready *ready);
void send_placed(haul_endpoint *endpoint, uint64_t slot);
void send_cancelled_by_peer(haul_endpoint *endpoint, uint64_t slot);
void send_again(haul_endpoint *endpoint, uint64_t slot);
void send_failed(haul_endpoint *endpoint, uint64_t slot);
void send_digested(struct operation *operation);
void send_cancel(struct operation *operation, int result);
void send_forget(haul_endpoint *endpoint); /* remote slots and keys of a lost endpoint */

/* recv.c */
int recv_start(haul_endpoint *endpoint, enum operation_kind kind, struct haul_key key,
	       DLTensor *tensor, haul_region *region, const struct haul_op *op,
	       struct operation **blocking);
void recv_post_waiting(haul_endpoint *endpoint);
void recv_push(haul_endpoint *endpoint, const struct wire_push *push);
void recv_refused(haul_endpoint *endpoint, const struct wire_push *refused);
void recv_cancelled(haul_endpoint *endpoint, uint64_t slot);
void recv_given_up(haul_endpoint *endpoint, uint64_t slot);
void recv_digested(struct operation *operation);
void recv_cancel(struct operation *operation, int result);
void recv_forget(haul_endpoint *endpoint);

struct operation *send_of(haul_endpoint *endpoint, uint64_t slot); /* NULL: none is there */
struct operation *recv_of(haul_endpoint *endpoint, uint64_t slot);

/* clock_exchange.c */
void clock_open(haul_endpoint *endpoint, uint64_t features); /* the peer's */
void clock_message(haul_endpoint *endpoint, const struct wire_clock *clock);
void clock_refresh(haul_endpoint *endpoint); /* now and then: clocks drift */

/* trace_points.c: what goes into the trace. Without one they cost a branch. */
static inline void trace_point(struct operation *operation, enum trace_point point)
{
	if (operation->context->trace)
		operation->trace.at[point] = haul_clock();
}

void trace_called(struct operation *operation); /* begins */
void trace_done(struct operation *operation);
void trace_handed(struct operation *operation); /* ends, is written */
void trace_endpoint(haul_endpoint *endpoint);   /* is open */
void trace_offset(haul_endpoint *endpoint, const struct clock_estimate *estimate);

/* region.c */
int region_check(haul_context *context, haul_region *region, const uint8_t *data, uint64_t bytes,
		 unsigned use);
void region_free(haul_region *region);

#endif
