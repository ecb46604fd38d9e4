/* SPDX-License-Identifier: Apache-2.0 */
/*
 * tensorhaul: moves tensors between hosts at line rate.
 *
 * This header is the whole public interface. The words used here:
 *
 *   transport       a way to move bytes: tcp, grpc, verbs, dpdk
 *   transport spec  one string: a transport's name, then ",option=value" for
 *                   each option that is not left at its default: "tcp,streams=8"
 *   context         one opened transport in one process; owns everything else
 *   endpoint        one connected peer
 *   region          memory registered with a context
 *   tensor          a DLPack DLTensor (dlpack.h): data, dtype, shape
 *   key             1 to 255 bytes that pair a send with a receive
 *
 * Errors. Every function that can fail returns 0 (or a count) or a negative
 * errno. haul_strerror() names it, haul_detail() tells what failed, which value
 * or limit was the cause, and what to do about it.
 *
 * Completions. haul_connect(), haul_send(), haul_recv() and haul_query() only
 * start an operation. When one of them returned 0, exactly one completion for it
 * is handed out by haul_poll(); when it returned an error, none is.
 *
 * Threads. Any thread may call any function on any context: a context has one
 * lock, held for a short time and never over a system call that blocks. Two
 * contexts share nothing, so a program that wants more cores opens more
 * contexts. A handle (endpoint, region, listener) must not be used by one thread
 * while another one releases it.
 *
 * Fork. A context belongs to the process that opened it. In a forked child every
 * function returns -ECHILD, except haul_close(), which gives the child's copies
 * back without disturbing the parent.
 *
 * Signals. The library neither raises nor handles signals (no SIGPIPE).
 */
#ifndef TENSORHAUL_HAUL_H
#define TENSORHAUL_HAUL_H

#include <dlpack/dlpack.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#ifdef __cplusplus
extern "C" {
#endif

#define HAUL_VERSION_MAJOR 0
#define HAUL_VERSION_MINOR 1
#define HAUL_VERSION_PATCH 0

/* The longest key, in bytes, and the highest rank of a tensor. */
#define HAUL_KEY_MAX 255
#define HAUL_RANK_MAX 8

typedef struct haul_context haul_context;
typedef struct haul_listener haul_listener;
typedef struct haul_endpoint haul_endpoint;
typedef struct haul_region haul_region;

/* ---- Contexts ---------------------------------------------------------- */

/*
 * Open a context. `spec` is a transport spec; NULL means $HAUL_TRANSPORT, and
 * "auto" when that is not set. `auto` takes the best transport of this host; that
 * is tcp for now.
 *
 * A value that holds a comma is put in braces: "dpdk,port={net_tap0,iface=x}".
 * haul-info(1) prints each transport's options.
 *
 * Errors: -EINVAL (unknown transport or option, value out of range; haul_detail(NULL)
 * names the value and the valid ones), -ENOSYS (the transport is not built or its
 * module can't be loaded), -ENOENT and -EACCES (the key file of auth=psk:FILE), -ENOMEM,
 * -EMFILE, and what the transport reports.
 */
int haul_open(const char *spec, haul_context **context);

/*
 * Close a context: listeners and endpoints are closed in order, which may take
 * up to the option linger_ms (default 1,000) while the last messages leave. Operations
 * that were not complete are given up, and their completions are lost. Regions that
 * were not released are. No other thread may be inside the context. NULL is allowed.
 */
void haul_close(haul_context *context);

/* The spec that was opened, with every option: "tcp,streams=auto,...". Lives with the context. */
const char *haul_spec(const haul_context *context);

/* A short text for an errno, negative or not; never NULL, thread-safe. */
const char *haul_strerror(int error);

/*
 * What failed last on this context, or with NULL, in the last haul_open() of the
 * calling thread that failed. One or two sentences without a newline; "" when nothing
 * failed. The text is a copy that belongs to the calling thread and stays valid until
 * that thread's next call of haul_detail().
 */
const char *haul_detail(haul_context *context);

/* Log levels, and the callback that takes the library's messages. */
enum haul_log_level {
	HAUL_LOG_ERROR = 0,   /* something was lost or refused */
	HAUL_LOG_WARNING = 1, /* works, but not as well as it could */
	HAUL_LOG_INFO = 2,    /* connections made and lost */
	HAUL_LOG_DEBUG = 3,   /* streams added and dropped, handshakes */
};

typedef void haul_log_function(void *user, enum haul_log_level level, const char *message);

/*
 * Set the function that takes log messages up to `level` for all contexts of the
 * process; NULL (the default) drops them. It may be called from any thread that
 * is inside the library, with a lock held: it must not call the library.
 */
void haul_log_set(haul_log_function *function, void *user, enum haul_log_level level);

/* ---- Listeners and endpoints ------------------------------------------- */

/*
 * Listen for peers on `address`, "host:port": an IPv4 address, an IPv6 address in
 * brackets (with a scope: "[fe80::1%eth0]:7000"), a host name, or "*" for every
 * address. Port 0 takes a free port (of the option ports=LOW-HIGH when it is set).
 * Each peer that connects and passes the handshake is handed out as one HAUL_ACCEPTED
 * completion, with `cookie`. A stranger who sends something else, or
 * nothing, is dropped after the option handshake_ms and never reported.
 *
 * Errors: -EINVAL (not an address), -EADDRINUSE, -EADDRNOTAVAIL, -EACCES,
 * -ENOENT (the name does not resolve). May block while a host name is resolved.
 */
int haul_listen(haul_context *context, const char *address, void *cookie, haul_listener **listener);

/* What a peer on this host connects to, "127.0.0.1:40123"; lives as long as the listener. */
const char *haul_listener_address(const haul_listener *listener);

/*
 * Stop listening and release the handle. Endpoints that it accepted live on, but a
 * broken connection of theirs can't be replaced any more. NULL is allowed.
 */
void haul_listener_close(haul_listener *listener);

/*
 * Connect to a listener. Ends in one HAUL_CONNECTED completion with `cookie`
 * and, when its result is 0, an endpoint. Names are resolved in this call,
 * which may block for that.
 *
 * Errors: -EINVAL (not an address), -ENOENT (the name does not resolve), -EADDRNOTAVAIL
 * and -ENODEV (the options bind and interface), -ENOMEM, -EMFILE. Results: -ECONNREFUSED
 * (nobody listens), -ETIMEDOUT (no answer within the option connect_ms), -EPROTO (no
 * tensorhaul there, or another version), -EACCES (authentication failed), -ENETUNREACH,
 * -EHOSTUNREACH.
 */
int haul_connect(haul_context *context, const char *address, void *cookie);

/*
 * Close an endpoint in order and release the handle. Its operations complete
 * with -ECANCELED at once, before this returns to haul_poll(); nothing of the
 * caller's memory is touched after that. No HAUL_LOST is reported for it afterwards.
 * Tensors that were received completely are acknowledged to the peer.
 * Each endpoint needs this call, a lost one too. NULL is allowed.
 */
void haul_disconnect(haul_endpoint *endpoint);

/* The peer's address, "10.0.0.2:40123"; lives as long as the endpoint. */
const char *haul_endpoint_address(const haul_endpoint *endpoint);

/* A pointer for the caller to keep with an endpoint; NULL at first. */
void haul_endpoint_set_user(haul_endpoint *endpoint, void *user);
void *haul_endpoint_user(const haul_endpoint *endpoint);

/* ---- Regions ----------------------------------------------------------- */

/* What a region's memory is used for, or'ed. Only memory that receives is ever opened to a peer. */
#define HAUL_USE_SEND 1u
#define HAUL_USE_RECV 2u

/*
 * Register [base, base + length) with a context, once, for many operations. The
 * memory must stay valid until the region is released. Registering may take long
 * (verbs pins the pages) or nothing (tcp).
 *
 * Errors: -EINVAL (NULL, length 0, the end wraps around, unknown use), -ENOMEM (the detail
 * names the limit: RLIMIT_MEMLOCK on verbs).
 */
int haul_region_register(haul_context *context, void *base, size_t length, unsigned use,
			 haul_region **region);

/*
 * Allocate and register memory of the kind that the transport likes best, page
 * aligned and zeroed. Freed by haul_region_release().
 */
int haul_region_allocate(haul_context *context, size_t length, unsigned use, haul_region **region);

/*
 * Register memory that a dma-buf stands for, as a GPU's: `length` bytes from `offset` of descriptor
 * `fd`, which may be closed afterwards. `base` is the address that tensors use for the first of
 * them; the CPU need not reach it, so a tensor in this region may be on any DLPack device. verbs
 * only, where the adapter's driver and the kernel have it; without the option checksum.
 *
 * Errors: those of haul_region_register(), -EBADF (no dma-buf), -EOPNOTSUPP (the transport, the
 * device or its driver can't; the detail says which).
 */
int haul_region_dmabuf(haul_context *context, int fd, uint64_t offset, void *base, size_t length,
		       unsigned use, haul_region **region);

void *haul_region_base(const haul_region *region);
size_t haul_region_length(const haul_region *region);

/*
 * Release a region. -EBUSY while an operation uses it: the region is unchanged then.
 * NULL is allowed.
 */
int haul_region_release(haul_region *region);

/* ---- Operations -------------------------------------------------------- */

/* A key. The bytes are copied by the call that takes it. */
struct haul_key {
	const void *bytes;
	size_t length; /* 1 to HAUL_KEY_MAX */
};

/* The key that is spelled by a C string. */
static inline struct haul_key haul_key(const char *text)
{
	struct haul_key key = {text, text ? strlen(text) : 0};

	return key;
}

/* How an operation is run. NULL in its place means no cookie and no deadline. */
struct haul_op {
	size_t size;  /* sizeof(struct haul_op) */
	void *cookie; /* handed back in the completion; names the operation in haul_cancel() */
	uint64_t timeout_ms; /* from this call on; 0 is without end. Ends with -ETIMEDOUT */
};

/* clang-format off */
#define HAUL_OP_INIT {.size = sizeof(struct haul_op)}
/* clang-format on */

/*
 * Send a tensor to the peer's next receive of the same key. Sends and receives of
 * one key on one endpoint meet in the order in which they were called; different
 * keys are independent of each other. The receive may be posted before or after.
 *
 * The tensor must be compact and row-major (strides NULL or what the shape says),
 * in memory that the CPU reaches (kDLCPU, kDLCUDAHost, kDLROCMHost), of rank 0 to
 * HAUL_RANK_MAX; `byte_offset` counts. The DLTensor
 * itself is copied by the call; its data must stay unchanged until the
 * completion. Data may be NULL only when the tensor has no bytes.
 *
 * `region` may be NULL: the memory is then registered for this one operation,
 * which is free on tcp and costly on verbs.
 *
 * Completes (HAUL_SENT) with 0 when the bytes are in the receiver's tensor, and not
 * before; otherwise with -ECANCELED (cancelled here), -ETIMEDOUT (deadline), -ECONNRESET
 * or -ETIMEDOUT (the peer was lost), -EBADMSG (checksum failed twice).
 *
 * A send that was given up while its bytes were on their way ends the peer's receive
 * with -ECANCELED.
 *
 * Errors: -EINVAL (tensor, key, a region of another context), -EOVERFLOW (the shape's size),
 * -EFAULT (not inside the region), -EACCES (the region is not for sends), -ENOTCONN
 * (endpoint lost), -ENOMEM.
 */
int haul_send(haul_endpoint *endpoint, struct haul_key key, const DLTensor *tensor,
	      haul_region *region, const struct haul_op *op);

/*
 * Receive the peer's next tensor of this key into `tensor`, whose dtype and shape
 * say how much room there is (only the bytes count). The completion (HAUL_RECEIVED)
 * tells the dtype and shape that were sent. The same rules as for haul_send() hold.
 *
 * Completes with 0; -EMSGSIZE when the tensor that was sent is larger (the
 * completion tells what it is; it stays queued at the sender and meets the next receive of
 * that key); -ECANCELED (cancelled here, or given up by the sender), -ETIMEDOUT,
 * -ECONNRESET, -EBADMSG. With any error the tensor's contents are undefined.
 */
int haul_recv(haul_endpoint *endpoint, struct haul_key key, DLTensor *tensor, haul_region *region,
	      const struct haul_op *op);

/*
 * Ask what the next tensor of this key will be, without taking it. Completes
 * (HAUL_QUERIED) with dtype and shape as soon as the peer has a send for that key.
 * A query takes its place in the key's order and is answered in it.
 */
int haul_query(haul_endpoint *endpoint, struct haul_key key, const struct haul_op *op);

/*
 * Give up every operation of this context that carries `cookie`, connects included.
 * Each still completes exactly once: with -ECANCELED, or as it would have, when that
 * was already decided (a receive whose bytes are on their way waits for the
 * peer's answer, at most for the option peer_ms).
 *
 * Returns how many operations were found, or -ENOENT.
 */
int haul_cancel(haul_context *context, void *cookie);

/* ---- Completions ------------------------------------------------------- */

enum haul_event {
	HAUL_CONNECTED = 1, /* haul_connect() ended */
	HAUL_ACCEPTED = 2,  /* a peer connected to a listener */
	HAUL_SENT = 3,      /* haul_send() ended */
	HAUL_RECEIVED = 4,  /* haul_recv() ended */
	HAUL_QUERIED = 5,   /* haul_query() ended */
	HAUL_LOST = 6,      /* the peer closed (result 0) or was lost; after its operations' ends */
};

/* What a tensor is, without its bytes. */
struct haul_tensor_info {
	DLDataType dtype;
	int32_t ndim;
	int64_t shape[HAUL_RANK_MAX]; /* in elements; entries from ndim on are 0 */
	uint64_t bytes;
};

struct haul_completion {
	enum haul_event event;
	int result; /* 0 or a negative errno */
	/*
	 * Of the operation; the listener's for HAUL_ACCEPTED, the endpoint's user for HAUL_LOST,
	 * which never comes from the call that handed the endpoint out.
	 */
	void *cookie;
	/* NULL when a connect failed. After haul_disconnect() it is only a name. */
	haul_endpoint *endpoint;
	struct haul_tensor_info tensor; /* received, queried or too large: what was sent */
	/* What failed, or NULL; valid until the calling thread's next haul_poll(). */
	const char *detail;
	uint64_t reserved[4];
};

/*
 * Hand out up to `max` completions, moving bytes meanwhile (with progress=caller,
 * the default, this is where bytes are moved). Waits until there is at least one,
 * or for `timeout_ms`: 0 doesn't wait, -1 waits without end. With `max` 0 it only
 * moves bytes, without waiting.
 *
 * Returns the number of completions, 0 when the time is over, or a negative errno.
 */
int haul_poll(haul_context *context, struct haul_completion *completions, int max, int timeout_ms);

/*
 * A file descriptor that is readable when haul_poll(context, ..., 0) has something to do,
 * for epoll, libuv or asyncio (level-triggered). It belongs to the context.
 */
int haul_event_fd(haul_context *context);

/* ---- Blocking helpers, for short programs ------------------------------ */

/*
 * These run haul_poll() until their own operation has ended; completions of other
 * operations are kept and handed out by the next haul_poll(). timeout_ms: -1 waits
 * without end. They return the result of the operation.
 */
int haul_connect_wait(haul_context *context, const char *address, int timeout_ms,
		      haul_endpoint **endpoint);
int haul_accept_wait(haul_listener *listener, int timeout_ms, haul_endpoint **endpoint);
int haul_send_wait(haul_endpoint *endpoint, struct haul_key key, const DLTensor *tensor,
		   haul_region *region, int timeout_ms);
/* `info` may be NULL. */
int haul_recv_wait(haul_endpoint *endpoint, struct haul_key key, DLTensor *tensor,
		   haul_region *region, int timeout_ms, struct haul_tensor_info *info);
int haul_query_wait(haul_endpoint *endpoint, struct haul_key key, int timeout_ms,
		    struct haul_tensor_info *info);

/* ---- Statistics -------------------------------------------------------- */

/* Counters since the endpoint or context was made. Times are sums over tensors. */
struct haul_statistics {
	size_t size;               /* sizeof(struct haul_statistics), set by the caller */
	uint64_t tensors_sent;     /* placed at the peer */
	uint64_t tensors_received; /* complete */
	uint64_t bytes_sent;       /* of tensors, placed at the peer */
	uint64_t bytes_received;   /* of tensors that are complete */
	uint64_t bytes_arrived;    /* in place, of tensors that are not complete too */
	uint64_t chunks_sent;      /* pieces that the transport cut tensors into */
	uint64_t chunks_again;  /* of these, sent once more (a stream broke, a packet was lost) */
	uint64_t tensors_again; /* sent once more because of a checksum */
	uint64_t streams;       /* connections, queue pairs or channels in use now */
	uint64_t streams_replaced; /* connections that broke, and were replaced or not needed */
	uint64_t wait_ns;          /* sends: from the call to the meeting with a receive */
	uint64_t move_ns;          /* sends: from the meeting to PLACED */
	uint64_t operations;       /* not complete now */
};

int haul_endpoint_statistics(haul_endpoint *endpoint, struct haul_statistics *statistics);
/* The sum over the context's endpoints, released ones included. */
int haul_context_statistics(haul_context *context, struct haul_statistics *statistics);

/* ---- Traces ------------------------------------------------------------ */

/*
 * A context with the option trace=FILE writes where the time of each tensor goes. A program adds
 * its own steps to that, as spans of the calling thread:
 *
 *     uint64_t begin = haul_trace_clock(context);
 *     assign(variable, tensor);
 *     haul_trace_span(context, "assign", begin, tensor_bytes);
 */

/* The time for the beginning of a span, in ns of CLOCK_MONOTONIC; 0 without a trace. */
uint64_t haul_trace_clock(const haul_context *context);

/*
 * A span from `begin` until now, of `bytes` bytes (0: it has none). Does nothing when `begin` is 0.
 * The name is copied, up to 63 bytes of it. Never waits: what finds no room is counted and dropped.
 */
void haul_trace_span(haul_context *context, const char *name, uint64_t begin, uint64_t bytes);

/* ---- What this build and this host can do ------------------------------ */

/* One option of a transport spec, as haul-info prints it. */
struct haul_option_info {
	const char *name;
	const char *value; /* the default */
	const char *range; /* "1..64 or auto", "yes or no", "FILE" */
	const char *help;  /* one line */
};

/* The transports that the library knows, by number; NULL behind the last one. */
const char *haul_transport_name(unsigned number);

/*
 * Whether a transport can run here: 0, or a negative errno and in `reason` why not and
 * what to install or set. `reason` also takes remarks when it can.
 */
int haul_transport_probe(const char *name, char *reason, size_t room);

/*
 * What this host has for a transport, as lines of text that each end with a newline: the adapters
 * of verbs, with their ports, GIDs and limits; nothing for tcp. With `peer` ("host" or "host:port")
 * also which of them leads there. May block while a name or a route is looked for.
 *
 * 0, or a negative errno, and in `text` why.
 */
int haul_transport_describe(const char *name, const char *peer, char *text, size_t room);

/* Options of a transport by number, NULL behind the last; "" lists those of every transport. */
const struct haul_option_info *haul_transport_option(const char *name, unsigned number);

/* ---- Tensors ----------------------------------------------------------- */

/*
 * Check that a tensor can be sent or received and compute its size. -EINVAL with a reason
 * in `reason` (may be NULL) when it can't: strides, device, rank, a shape whose size
 * overflows, data that is NULL. -EOVERFLOW when the size is over 2^63 - 1.
 */
int haul_tensor_bytes(const DLTensor *tensor, uint64_t *bytes, char *reason, size_t room);

/*
 * Describe compact memory as a tensor of dtype bits/code and the given shape.
 * `shape` must live as long as the tensor is used; it is not changed.
 */
static inline DLTensor haul_tensor(void *data, DLDataType dtype, int32_t ndim, const int64_t *shape)
{
	DLTensor tensor;

	memset(&tensor, 0, sizeof(tensor));
	tensor.data = data;
	tensor.device.device_type = kDLCPU;
	tensor.ndim = ndim;
	tensor.dtype = dtype;
	tensor.shape = (int64_t *)shape;
	return tensor;
}

#ifdef __cplusplus
}
#endif

#endif
