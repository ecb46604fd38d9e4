/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The contract between the engine and a backend. This is the one page that the
 * author of a new transport reads: a backend is one folder that defines one
 * `const struct haul_backend`, and no change to the engine.
 *
 * Who does what. The engine owns keys, tensors, operations, deadlines, completions,
 * authentication and checksums. A backend moves two things between two hosts: small
 * control messages, reliable and in order, and the bytes of pushes, reliable and in
 * any order. It never sees a key or a completion.
 *
 * Names. A *link* is the backend's half of an endpoint. The three structs below
 * (backend_context, backend_listener, backend_link) are declared here and defined by
 * each backend for itself; the engine only carries the pointers.
 *
 * Threads and the lock. Every op but `wait`, `wake`, `probe` runs with the context's
 * lock held: a backend needs no lock for its own state. No op may block. `wait` runs
 * without the lock, in one thread at a time. `wake` may be called from any
 * thread at any time between open and close.
 *
 * Callbacks (haul_on_*, haul_place) may be called only from within `progress`,
 * never from another op: an op that finds out that a link is broken remembers it, and
 * the next `progress` reports it. The engine may call any op from within a callback;
 * a link that is disconnected from within a callback must not be freed before that
 * callback has returned. A thread of the backend's own never calls a callback; it
 * hands over to `progress` (and makes `wait` return), or drives the context with haul_drive().
 *
 * Memory of the caller. The backend may read a push's source from push() until it
 * called haul_on_pushed() or push_end() returned 1, and may write a slot's memory from slot_open()
 * until slot_close() returned 0. After haul_on_lost() or disconnect() it touches
 * neither.
 *
 * The peer is not trusted: every length, offset and slot from the wire goes through
 * haul_place(), or is checked by the backend with overflow-safe arithmetic. A peer that
 * breaks the protocol loses its own link: haul_on_lost(endpoint, -EPROTO, "why").
 */
#ifndef TENSORHAUL_BACKEND_H
#define TENSORHAUL_BACKEND_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/socket.h>

#include "tensorhaul/haul.h"

/* Raised with each incompatible change of this page; a module that differs is not loaded. */
#define HAUL_BACKEND_VERSION 1

/* The most bytes that slot_open() may write for READY. */
#define HAUL_DESCRIPTOR_MAX 64

/* The longest control message: READY with the longest key and descriptor fits twice. */
#define HAUL_CONTROL_MAX 1024

struct backend_context;
struct backend_listener;
struct backend_link;

/* ---- Options ----------------------------------------------------------- */

enum haul_option_kind {
	HAUL_OPTION_NUMBER, /* uint64_t; decimal */
	HAUL_OPTION_BYTES,  /* uint64_t; decimal, or with the suffix KiB, MiB, GiB */
	HAUL_OPTION_SWITCH, /* bool; yes or no */
	HAUL_OPTION_CHOICE, /* unsigned: the index into `choices` */
	HAUL_OPTION_TEXT,   /* char *, NULL when empty; belongs to the config */
	HAUL_OPTION_RANGE,  /* struct haul_option_range; LOW-HIGH within low..high; empty: 0, 0 */
};

struct haul_option_range {
	uint64_t low, high;
};

/* What an automatic number or size holds when the value is "auto". */
#define HAUL_OPTION_AUTO UINT64_MAX

/* One row of a backend's (or the engine's) option table; ends with a row whose name is NULL. */
struct haul_option {
	struct haul_option_info info; /* info.value is the default and is parsed like any value */
	enum haul_option_kind kind;
	size_t offset;              /* of the value within the config struct */
	uint64_t low, high;         /* numbers and sizes: both inclusive */
	bool automatic;             /* numbers and sizes: "auto" is taken too */
	const char *const *choices; /* choices: NULL-terminated */
};

/* ---- Pushes ------------------------------------------------------------ */

/*
 * One tensor on its way into a slot of the peer. Filled in and owned by the engine; the
 * backend uses `backend` and `next` as it likes until it gives the push back.
 */
struct haul_push {
	uint64_t slot;             /* the peer's */
	uint64_t offset;           /* of the first byte within the slot */
	const uint8_t *data;       /* the source */
	uint64_t length;           /* may be 0: then only the header goes */
	void *region;              /* what region_add() gave for the source's region, or NULL */
	const uint8_t *descriptor; /* what the peer's slot_open() wrote */
	size_t descriptor_length;
	/*
	 * A control message (PUSH) that must be delivered to the peer's haul_on_control() exactly
	 * once, in its place among the messages of control(). The bytes may arrive before it.
	 */
	const uint8_t *header;
	size_t header_length;   /* at most HAUL_CONTROL_MAX */
	void *backend;          /* for the backend; NULL at first */
	struct haul_push *next; /* for the backend */
};

/* Why the engine ends a push. */
enum haul_push_end {
	HAUL_PUSH_PLACED, /* the peer says that every byte is in place */
	HAUL_PUSH_ABORT,  /* given up: stop as soon as possible; what was sent will be ignored */
};

/* ---- What a backend provides ------------------------------------------- */

/* One context. */
struct haul_context_ops {
	/*
	 * Whether this host can run the transport: 0 or a negative errno, with the
	 * reason and the remedy in `reason`. No context is needed; nothing stays open.
	 */
	int (*probe)(char *reason, size_t room);

	/*
	 * Lines of text about what the host has, and, with `where` (numeric, as for connect), what
	 * would lead there. May block. NULL: there is nothing to tell.
	 */
	int (*describe)(const char *where, char *text, size_t room);

	/* Open. `config` was filled in from the option table and lives as long as the context. */
	int (*open)(haul_context *engine, const void *config, struct backend_context **context);

	/* Close and free. Every link and listener has been disconnected before. */
	void (*close)(struct backend_context *context);

	/*
	 * In a forked child: close the child's copies of descriptors, so that the peer notices when
	 * the parent ends; say nothing on them, free nothing (another thread may have
	 * held the lock when the process forked). NULL: there are none.
	 */
	void (*close_in_child)(struct backend_context *context);

	/* Move whatever can move, call the callbacks, and return: the number of things
	 * that were done (0: nothing to do). */
	int (*progress)(struct backend_context *context);

	/*
	 * Sleep until `progress` has something to do, wake() is called, or timeout_ms
	 * is over (-1: never). Without the lock, in one thread at a time; other threads may call
	 * other ops meanwhile. A wake() that came since the last progress() counts.
	 */
	void (*wait)(struct backend_context *context, int timeout_ms);
	void (*wake)(struct backend_context *context);

	/* A descriptor that is readable when wait() would return. */
	int (*event_fd)(struct backend_context *context);

	/* When progress() wants to be called next even without an event: haul_clock() time in
	 * ns; UINT64_MAX is never. Asked before each wait(), and before each time that an owner of
	 * event_fd may sleep: a backend that has to ask for its events does it here. */
	uint64_t (*next_timer)(struct backend_context *context);
};

/*
 * Listeners and links. `where` is numeric, names were resolved before: "10.0.0.2:7000",
 * "[fe80::1%eth0]:7000", several separated by commas, best first; to listen also "*:7000". Port 0
 * is for listening on any free port.
 */
struct haul_link_ops {
	/* `address` takes the text of haul_listener_address(). */
	int (*listen)(struct backend_context *context, const char *where, haul_listener *engine,
		      char *address, size_t room, struct backend_listener **listener);
	void (*unlisten)(struct backend_listener *listener);

	/*
	 * Start to connect; ends in haul_on_connected() or haul_on_lost() on `engine`.
	 * The engine keeps the time and disconnects when it is over. `address` takes the peer's.
	 */
	int (*connect)(struct backend_context *context, const char *where, haul_endpoint *engine,
		       char *address, size_t room, struct backend_link **link);

	/*
	 * Give the link up: in order (what control() took still leaves, in the background,
	 * within the time that close_links() gets) or at once. The backend frees the link in its
	 * own time and calls no callback for it any more.
	 */
	void (*disconnect)(struct backend_link *link, bool in_order);

	/*
	 * How many links that were disconnected in order are still leaving. haul_close() runs
	 * progress until it is 0 or its patience ends.
	 */
	unsigned (*leaving)(struct backend_context *context);

	/*
	 * Queue one control message (copied). -ENOBUFS when so much waits already that
	 * the peer must have stopped reading for good: the engine then drops the endpoint.
	 */
	int (*control)(struct backend_link *link, const uint8_t *message, size_t length);

	/* Let what control() and push() queued leave now: the end of a batch. */
	void (*flush)(struct backend_link *link);

	/* Add the link's chunks_sent, chunks_again, streams, streams_replaced. */
	void (*statistics)(struct backend_link *link, struct haul_statistics *statistics);
};

/* Memory and bytes. */
struct haul_data_ops {
	/*
	 * Register memory; may take long. NULL in `region` is a good answer for a backend that
	 * needs nothing. region_add NULL: the backend never registers.
	 */
	int (*region_add)(struct backend_context *context, void *base, size_t length, unsigned use,
			  void **region);
	/* The same for memory behind a dma-buf. NULL: the backend can't. */
	int (*region_add_dmabuf)(struct backend_context *context, int fd, uint64_t offset,
				 void *base, size_t length, unsigned use, void **region);
	void (*region_remove)(struct backend_context *context, void *region);

	/* Memory that the backend likes best, zeroed and page aligned. NULL, the op or its answer:
	 * the engine maps it. */
	void *(*memory_allocate)(struct backend_context *context, size_t length);
	void (*memory_free)(struct backend_context *context, void *base, size_t length);

	/*
	 * Open [base, base + length) for the peer as `slot`, and write what the peer needs to reach
	 * it. NULL: nothing is needed, as for a backend that asks haul_place().
	 * Returns the number of bytes written or a negative errno. -EAGAIN: not now, but
	 * haul_on_room() will be called.
	 */
	int (*slot_open)(struct backend_link *link, uint64_t slot, void *base, size_t length,
			 void *region, uint8_t descriptor[HAUL_DESCRIPTOR_MAX]);

	/*
	 * Take the right back. 0: no byte lands there from now on. -EBUSY: it can't be taken back
	 * while the peer may be writing; the engine waits for its CANCELLED, and calls again. With
	 * `over` the peer has said that it is done with the slot, or all bytes are there: the slot
	 * has to be closed, whatever is returned. NULL: always 0.
	 */
	int (*slot_close)(struct backend_link *link, uint64_t slot, bool over);

	/* Queue a push; it leaves from flush() and progress(). Pushes of one link take turns. */
	int (*push)(struct backend_link *link, struct haul_push *push);

	/*
	 * Stop using a push. 1: the backend has let go of it and its source. 0: it will, and then
	 * calls haul_on_pushed(). Called once for each push that push() took, except
	 * when the link is lost or disconnected, which ends them all.
	 */
	int (*push_end)(struct backend_link *link, struct haul_push *push, enum haul_push_end why);
};

struct haul_backend {
	unsigned version;    /* HAUL_BACKEND_VERSION */
	const char *name;    /* as in a transport spec */
	const char *summary; /* one line for haul-info */
	const struct haul_option *options;
	size_t config_size;
	const struct haul_context_ops *context;
	const struct haul_link_ops *link;
	const struct haul_data_ops *data;
};

/*
 * A backend outside of the library is a module libtensorhaul-NAME.so that exports
 * `const struct haul_backend haul_backend_NAME`.
 */

/* ---- What the engine provides ------------------------------------------ */

/*
 * A new peer on a listener. Gives the engine's half, or NULL when the engine does not want it
 * (then the backend drops the link). `address` is the peer's, copied.
 */
haul_endpoint *haul_on_accepted(haul_listener *listener, struct backend_link *link,
				const char *address);

/* connect() has reached a tensorhaul peer: control() and push() may be used. */
void haul_on_connected(haul_endpoint *endpoint);

/*
 * The link is gone, once per link: error 0 (the peer closed it in order) or a negative
 * errno, and one sentence why. The engine then calls disconnect(link, false).
 */
void haul_on_lost(haul_endpoint *endpoint, int error, const char *why);

/* A whole control message arrived. The engine may call any op, also disconnect, from here. */
void haul_on_control(haul_endpoint *endpoint, const uint8_t *message, size_t length);

/* The answers of haul_place(). */
enum haul_place {
	HAUL_PLACE_HERE,    /* *address is where the bytes go */
	HAUL_PLACE_DISCARD, /* read and forget them: the slot was closed */
	HAUL_PLACE_FORGED,  /* the peer lies: lose the link with -EPROTO */
};

/*
 * Where do `length` bytes at `offset` of a slot go? Cheap: ask again for each read, so that
 * no address is kept while a slot may be closed.
 */
enum haul_place haul_place(haul_endpoint *endpoint, uint64_t slot, uint64_t offset, uint64_t length,
			   uint8_t **address);

/*
 * For bytes that came whole beside a message: copy them to their place in the slot, and report them
 * as arrived. False: the peer lies, as with HAUL_PLACE_FORGED.
 */
bool haul_put(haul_endpoint *endpoint, uint64_t slot, uint64_t offset, const void *bytes,
	      uint64_t length);

/* `length` more bytes of the slot are in place: each byte of a push is reported exactly once. */
void haul_on_arrived(haul_endpoint *endpoint, uint64_t slot, uint64_t length);

/* slot_open() may be called again after its -EAGAIN. */
void haul_on_room(haul_endpoint *endpoint);

/* The backend has let go of a push and its source. */
void haul_on_pushed(haul_endpoint *endpoint, struct haul_push *push);

/*
 * For a thread of a backend's own, which does not hold the lock: drive the context once, as its
 * owner does in haul_poll(), when nobody else drives it. Completions wait for the owner. The number
 * of things that `progress` did, or -EBUSY: somebody drives it, or has the lock.
 */
int haul_drive(haul_context *context);

/* CLOCK_MONOTONIC in ns. */
uint64_t haul_clock(void);
/*
 * The same as of this call of progress(), flush() and so on: the clock is read once in each of
 * them, and once in each of the program's calls, by whoever asks first. Reading it can cost as much
 * as moving a small tensor. Not for wait() and wake().
 */
uint64_t haul_now(haul_context *context);

/*
 * ---- Tracing (the option trace) ----
 *
 * A backend says which part of a tensor went where: a chunk over a stream, a write of a queue
 * pair. It asks once, in open(), whether there is a trace, so that it costs a branch without one:
 *
 *     uint64_t begin = context->trace ? haul_clock() : 0;
 *     ...
 *     if (context->trace)
 *             haul_trace_share(endpoint, &share);
 */

/* Whether the context has a trace; doesn't change. */
bool haul_is_traced(const haul_context *context);

enum haul_share_way {
	HAUL_SHARE_OUT, /* of a push */
	HAUL_SHARE_IN,  /* into a slot of this side; to be told before haul_on_arrived() */
};

struct haul_share {
	enum haul_share_way way;
	unsigned lane;       /* of the stream, queue pair or channel; 0 is what messages take */
	uint64_t slot;       /* of the push, or as for haul_place() */
	uint64_t bytes;      /* of the tensor */
	uint64_t begin, end; /* haul_clock(); the shares of a lane must not overlap */
	uint64_t kernel;     /* ns of it in system calls; 0 when that is not known */
	uint64_t copied;     /* ns of it in copies outside of the kernel */
};

/* From any op or callback, with a trace only. */
void haul_trace_share(haul_endpoint *endpoint, const struct haul_share *share);

/* A small tensor that goes with the messages was copied from `begin` until now. */
void haul_trace_copy(haul_endpoint *endpoint, enum haul_share_way way, uint64_t slot,
		     uint64_t bytes, uint64_t begin);

/* Keep a detail for the context: what failed, with which value, and what to do. Returns `error`. */
int haul_fail(haul_context *context, int error, const char *format, ...)
	__attribute__((format(printf, 3, 4)));

void haul_log(enum haul_log_level level, const char *format, ...)
	__attribute__((format(printf, 2, 3)));

/*
 * The same descriptor, but never 0, 1 or 2: a program that was started without standard streams
 * would write its messages into a socket. Negative ones are passed through; errno stays as it was.
 */
int haul_descriptor(int fd);

/* What a `where` says, best first; `list` is malloc()ed and the backend's to free. */
struct haul_addresses {
	struct sockaddr_storage *list;
	unsigned count;
};

/* 0, -ENOMEM, or -EINVAL with a detail. "*:port" gives every IPv6 address, then every IPv4 one. */
int haul_address_parse(haul_context *context, const char *where, struct haul_addresses *addresses);
/* "10.0.0.2:7000", "[fe80::1%eth0]:7000"; a mapped IPv4 address as IPv4. */
void haul_address_print(const struct sockaddr_storage *address, char *text, size_t room);
socklen_t haul_address_size(const struct sockaddr_storage *address);
unsigned haul_address_port(const struct sockaddr_storage *address);
void haul_address_set_port(struct sockaddr_storage *address, unsigned port);

/*
 * Try to listen on each address that `where` says until `try` answers 0, or with port 0 on each
 * port of the option ports=. `try` leaves the result with `user`; -EADDRNOTAVAIL and -EAFNOSUPPORT
 * lead to the next address, -EADDRINUSE to the next port. 0, or the last error with its detail.
 */
int haul_listen_on(haul_context *context, const char *where, const struct haul_option_range *ports,
		   int (*try)(void *user, const struct sockaddr_storage *address), void *user);

/* Text that grows within its room; what does not fit is cut off. */
struct haul_text {
	char *at;
	size_t room, used;
};

void haul_text_add(struct haul_text *text, const char *format, ...)
	__attribute__((format(printf, 2, 3)));

/* Fill `bytes` with randomness that can't be guessed; 0 or -EIO. */
int haul_random(void *bytes, size_t length);

/* The option peer_ms: how long a peer may be silent, at the network's level, before it is lost. */
uint64_t haul_peer_ms(const haul_context *context);
/* The option handshake_ms: how long a stranger may take to show that it is none. */
uint64_t haul_handshake_ms(const haul_context *context);

#endif
