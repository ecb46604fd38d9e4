/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The verbs backend's own structures. Guarded by the context's lock; see backend.h.
 *
 *   context   one rdma_cm event channel, and what follows
 *   device    an adapter that is in use: protection domain, completion channel, limits
 *   link      one peer: a completion queue, a control channel, data channels
 *   channel   one reliable connected queue pair and its rdma_cm connection
 */
#ifndef TENSORHAUL_VERBS_H
#define TENSORHAUL_VERBS_H

#include <infiniband/verbs.h>
#include <rdma/rdma_cma.h>
#include <sys/epoll.h>
#include <sys/queue.h>

#include "backend.h"
#include "framing.h"

/* Receives that are posted for packets and words of the peer, beside VERBS_SPARE. */
#define RING 32u

/* The longest packet. A record of the longest message and small tensor fits into it. */
#define PACKET 2048u

/* Work requests that may wait in one send queue. */
#define SEND_DEPTH 64u

/* Buffers that a control channel sends from; what is short enough needs none. */
#define SEND_BUFFERS 16u

/* Bytes of writes that wait in one send queue: enough for 200 Gb/s times 100 us, and little enough
 * that tensors take turns. */
#define WRITE_WINDOW (4u << 20)

#define QPS_MAX 16
#define QPS_AUTO 1

/* A peer that lets more than this wait has stopped reading for good. */
#define OUTBOX_MAX (64u << 20)

/* Inline data that a queue pair is asked for; devices that have less are asked for less. */
#define INLINE_WISH 256u

/* How many completions are taken from a queue at once. */
#define COMPLETIONS 16

/* What peers may read of us, and what is read of theirs: a page each. */
#define MAILBOX_SIZE 4096u

/* Peers in the handshake; more are turned away. */
#define STRANGERS_MAX 512

#define MS UINT64_C(1000000)

enum { WINDOWS_AUTO, WINDOWS_ON, WINDOWS_OFF };

struct verbs_config {
	char *device, *bind;
	uint64_t gid;           /* an index, or HAUL_OPTION_AUTO */
	unsigned mtu;           /* 0: the route's; else 1 (256) to 5 (4096), as enum ibv_mtu */
	uint64_t service_level; /* or HAUL_OPTION_AUTO */
	uint64_t traffic_class; /* or HAUL_OPTION_AUTO */
	uint64_t qps;           /* or HAUL_OPTION_AUTO */
	unsigned windows;
	uint64_t piece;
	uint64_t small;
	uint64_t region_piece; /* or HAUL_OPTION_AUTO */
	uint64_t backlog;
	struct haul_option_range ports;
};

extern const struct haul_option verbs_options[];

/* ---- Devices ----------------------------------------------------------- */

struct device {
	TAILQ_ENTRY(device) all;
	struct backend_context *context;
	struct ibv_context *verbs; /* librdmacm's: not ours to close */
	struct rdma_cm_id *anchor; /* keeps it open */
	struct ibv_pd *pd;
	struct ibv_comp_channel *events;
	struct ibv_device_attr limits;
	bool rxe;        /* Linux's Soft-RoCE: see channel_ring() */
	bool iwarp;      /* connections only by rdma_cm's own hand, no immediates */
	bool immediates; /* RDMA writes with immediate data */
	uint64_t message_max;
	bool windows; /* memory windows of type 2 narrow the peer's rights, and are wanted */
	struct ibv_mr *mailbox, *sink; /* what peers read, and what is read from theirs */
	struct ibv_cq *cover;          /* see siw_cover() */
};

/* ---- Memory ------------------------------------------------------------ */

/* One region on one device: registrations of at most `each` bytes, one behind the other. */
struct registration {
	struct registration *next;
	struct device *device;
	uint64_t each;
	unsigned count;
	unsigned windows; /* that are bound to it: it can't be released before they are gone */
	bool dying;       /* the region is released; the last window takes this along */
	struct ibv_mr *mrs[];
};

struct region {
	TAILQ_ENTRY(region) all;
	uint8_t *base;
	size_t length;
	unsigned use;
	int dmabuf; /* a descriptor of our own, or -1 */
	uint64_t dmabuf_offset;
	struct registration *registrations;
};

/* A slot that the peer knows of. */
struct open_slot {
	uint32_t uses; /* the high half of its name */
	bool open, used;
	bool write_only; /* the CPU doesn't reach its memory */
	uint8_t window_count;
	struct window **windows;
};

/*
 * A memory window of type 2. It works for the queue pair that it was bound on only.
 */
struct window {
	TAILQ_ENTRY(window) all;    /* in link->all_windows */
	TAILQ_ENTRY(window) queued; /* in link->window_work, or in link->windows when it is free */
	struct ibv_mw *mw;
	struct registration *registration; /* that it is bound to, or will be */
	struct ibv_mr *mr;
	uint64_t address, length;
	uint32_t key;
	bool bind;   /* what is to be done: bind, or invalidate */
	bool posted; /* the bind is in the send queue, or done */
};

TAILQ_HEAD(window_list, window);

/* ---- Channels ---------------------------------------------------------- */

enum posted_kind {
	POSTED_PACKET, /* a control packet or a word: its buffer is free again */
	POSTED_WRITE,  /* a piece of a push */
	POSTED_READ,   /* of the peer's mailbox */
	POSTED_BIND,   /* a window was bound, and READY may go */
	POSTED_INVALIDATE,
};

struct posted {
	enum posted_kind kind;
	uint32_t bytes;
	unsigned buffer; /* POSTED_PACKET: its number, or NO_BUFFER */
	struct outgoing *push;
	uint64_t at; /* POSTED_WRITE, for the trace */
	struct window *window;
};

#define NO_BUFFER UINT32_MAX

/* wr_id: a receive's number, or a count of work requests; above it the channel, 0 is control. */
#define RECEIVE_BIT (UINT64_C(1) << 47)
#define POSTED_MASK (RECEIVE_BIT - 1)

enum channel_state {
	CHANNEL_RESOLVING,
	CHANNEL_CONNECTING,
	CHANNEL_UP,
	CHANNEL_BROKEN, /* nothing is sent any more; without a queue pair, no byte of the peer's
			   lands */
};

struct channel {
	struct backend_link *link;
	struct rdma_cm_id *id;
	struct ibv_qp *qp;
	enum channel_state state;
	bool control;
	bool attached; /* the queue pair was made by rdma_create_qp() */
	unsigned number;
	uint32_t inline_max;

	/* The send queue, oldest first: what each work request was for. */
	struct posted posted[SEND_DEPTH];
	unsigned posted_first, posted_count, unsignalled;
	uint64_t posted_before; /* work requests that have left the queue: numbers them */
	uint64_t posted_seen;   /* that number when it was last looked at */
	uint64_t writing;       /* bytes of writes in the queue */
	uint64_t written_at;    /* for the trace: when the last one ended */

	/* Credits. */
	uint32_t sent, taken_by_peer; /* packets with records, or words of writes */
	uint32_t taken, taken_told;   /* the peer's */

	/* Buffers: `receives` of `size` bytes, then SEND_BUFFERS to send from. */
	uint8_t *buffers;
	struct ibv_mr *buffers_mr;
	uint32_t size;
	unsigned receives;
	uint32_t buffers_used; /* one bit for each send buffer */
};

/* ---- Links ------------------------------------------------------------- */

enum link_state {
	LINK_CONNECTING,
	LINK_OPEN,
	LINK_LEAVING, /* disconnected in order: the last packets leave */
	LINK_GONE,    /* freed at the end of this progress */
};

/* A push that was not ended. */
struct outgoing {
	TAILQ_ENTRY(outgoing) all, queued;
	struct haul_push *push;
	struct registration *registration;
	uint64_t before; /* bytes of the region before the push's first */
	struct place place;
	uint64_t posted;    /* bytes */
	unsigned under_way; /* writes */
	bool waiting;       /* in link->pushes: has bytes to post */
	bool ending;        /* the engine waits for haul_on_pushed() */
};

TAILQ_HEAD(outgoing_list, outgoing);

/* Records from this position of the outbox on wait for so many windows to be bound. */
struct barrier {
	uint64_t position, binds;
};

struct backend_link {
	TAILQ_ENTRY(backend_link) all;
	struct backend_context *context;
	haul_endpoint *endpoint; /* NULL: disconnected, or not yet accepted */
	haul_listener *listener; /* of a link that is still to be announced */
	struct device *device;
	struct ibv_cq *cq;
	enum link_state state;
	bool connector, announced, lost;
	bool counted;       /* in context->strangers */
	bool error_counted; /* in context->errors */
	int error;          /* to be reported */
	char why[512];
	char address[128];

	/* Connecting. */
	struct sockaddr_storage *addresses;
	unsigned address_count, address_at;
	uint64_t give_up_at;   /* accepted but not established; leaving */
	uint64_t last_word_at; /* a channel has ended: until when the goodbye may come */

	/* What the peer said. */
	uint8_t session[VERBS_SESSION];
	uint64_t peer_mailbox;
	uint32_t peer_mailbox_key, peer_packet;
	uint32_t small_out, small_in; /* tensors up to this size travel within packets */
	unsigned peer_ring;
	bool immediates; /* both have them */
	/*
	 * One side has windows: each data channel carries writes in one direction, the first one
	 * those of the connecting side. Windows are bound on the receiver's end of it, whose send
	 * queue has nothing else to do: a bind would have to wait there, and rxe repeats it when a
	 * write before it has to be sent again.
	 */
	bool split;

	struct channel *control;
	struct channel *data[QPS_MAX];
	unsigned data_count, data_up;
	unsigned data_room; /* that the completion queue has entries for */
	unsigned mtu;       /* the smaller one of both sides' options; 0: the route's */

	/* What control() queued: records from `out_start` on. */
	uint8_t *outbox;
	size_t out_start, out_end, out_room;
	uint64_t out_before; /* bytes that have left it */
	struct barrier *barriers;
	unsigned barrier_first, barrier_count, barrier_room;
	uint64_t binds_wanted, binds_done;
	bool blocked; /* control_flush() left something for want of credits, room or a window */

	struct outgoing_list all_pushes; /* those that are not ended */
	struct outgoing_list pushes;     /* those that have bytes to post */

	struct open_slot *slots;
	uint32_t slot_room;
	unsigned slots_open;
	unsigned windows_used; /* bound, or to be bound or invalidated */
	unsigned windows_free; /* in link->windows */
	bool starved;          /* a slot waits for a window */
	struct window_list all_windows, windows, window_work;

	/* Completions. */
	bool armed;
	struct ibv_wc stash[COMPLETIONS];
	int stashed;

	/* The peer's host answers a read of its mailbox. */
	uint64_t heard_at, asked_at;
	bool asking;

	uint64_t watch_at; /* when to look whether the send queues move; 0: they are empty */
	uint64_t pieces_sent;
};

struct backend_listener {
	TAILQ_ENTRY(backend_listener) all;
	struct backend_context *context;
	haul_listener *engine;
	struct rdma_cm_id *id;
	struct rdma_cm_id *four; /* for IPv4, when `id` is for every address of IPv6; or NULL */
};

/* ---- Contexts ---------------------------------------------------------- */

struct backend_context {
	haul_context *engine;
	const struct verbs_config *config;
	bool traced;
	struct rdma_event_channel *events;
	int epoll, wake;
	int event_count; /* of `found`: what wait() has seen already */
	struct epoll_event *found;
	unsigned armed; /* links */
	TAILQ_HEAD(, device) devices;
	TAILQ_HEAD(, region) regions;
	TAILQ_HEAD(, backend_listener) listeners;
	TAILQ_HEAD(, backend_link) links;
	unsigned errors, strangers, looks;
	uint64_t looked_at; /* the descriptors, while somebody polls */
	uint64_t next_timer;
	bool sleeping;    /* a thread is in wait() */
	bool counted;     /* in open_contexts */
	bool gone;        /* there are links to be freed */
	char why[512];    /* what failed last */
	int error;        /* ... and how */
	uint8_t *mailbox; /* a page that peers may read, and one that is read into */
};

/* context.c */
/* As haul_fail(), and keeps the text in context->why. */
int verbs_fail(struct backend_context *context, int error, const char *format, ...)
	__attribute__((format(printf, 3, 4)));

/* Let the context's sleep end when `fd` is readable; `what` tells whose it is. */
int verbs_watch(struct backend_context *context, int fd, void *what);
int verbs_set_nonblocking(int fd);

/* Whether this user is not allowed to read and write the file. */
bool verbs_is_forbidden(const char *path);

/* What the limit of locked memory is and how to raise it, for errors that it may be behind. */
#define LOCK_LIMIT_ROOM 200
const char *verbs_lock_limit(char text[LOCK_LIMIT_ROOM]);

/* -EMFILE, with the limit and the remedy. */
int verbs_no_descriptor(struct backend_context *context);

/* device.c */
/* Loopback has no adapter. rdma_cm takes it for "*", and would listen to all networks. */
bool device_is_loopback(const struct sockaddr_storage *address);

/* Whether an address of this host belongs to a device, or, with NULL, to any. */
bool device_owns(struct backend_context *context, const struct sockaddr_storage *address,
		 const struct ibv_context *verbs);

/* Whether it is the one that device= names; without that, any is. */
bool device_is_named(const struct backend_context *context, const struct ibv_context *verbs);
/* The device that a connection goes over. */
struct device *device_use(struct backend_context *context, struct rdma_cm_id *id);
/* The device that a region is registered with when no peer is known yet; NULL with a detail. */
struct device *device_default(struct backend_context *context);
/* Whether this host has an adapter at all, be it one that can't be opened. */
bool device_is_any(void);
/* Why there is no device to use: the error, with its detail. */
int device_missing(struct backend_context *context);
void device_free(struct device *device);
const char *device_last_event(struct device *device);
/* Whether `verbs` is what device= and gid= ask for: 0, or -ENODEV with a reason. */
int device_is_wished(struct backend_context *context, struct ibv_context *verbs, char *why,
		     size_t room);
/* An address of this host that belongs to the device= asked for, or to any. */
int device_address(struct backend_context *context, int family, struct sockaddr_storage *out);
/* The address to bind to for bind=, gid= or device=; family AF_UNSPEC: none is asked for. */
int device_source(struct backend_context *context, int family, struct sockaddr_storage *source);

/* probe.c */
int verbs_probe(char *reason, size_t room);
int verbs_describe(const char *where, char *text, size_t room);
/* "0 fe80::1 (RoCE v2), 1 10.0.0.1 (RoCE v2)" */
void device_print_gids(struct ibv_context *verbs, char *text, size_t room);

/* region.c */
int verbs_region_add(struct backend_context *context, void *base, size_t length, unsigned use,
		     void **out);
int verbs_region_add_dmabuf(struct backend_context *context, int fd, uint64_t offset, void *base,
			    size_t length, unsigned use, void **out);
void verbs_region_remove(struct backend_context *context, void *region);
/* The registration with a device, made now if need be; NULL with a detail. */
struct registration *region_on(struct backend_context *context, struct region *region,
			       struct device *device);
void registration_use(struct registration *registration);
void registration_unuse(struct registration *registration);

/* slot.c */
int verbs_slot_open(struct backend_link *link, uint64_t slot, void *base, size_t length,
		    void *region, uint8_t descriptor[HAUL_DESCRIPTOR_MAX]);
int verbs_slot_close(struct backend_link *link, uint64_t slot, bool over);
void slots_free(struct backend_link *link);
/* Slots that had to wait may be opened now. */
void slots_have_room(struct backend_link *link);
/* Take every window away; the queue pairs take no more work. */
void windows_free(struct backend_link *link);
/* Bind and invalidate what waits, as far as the send queue has room. */
void windows_pump(struct backend_link *link);
/* A window was bound or invalidated. */
void window_done(struct backend_link *link, enum posted_kind kind, struct window *window);
/* Whether a packet's tensor may be copied into the slot of this name. */
bool slot_takes_packets(const struct backend_link *link, uint64_t slot);
/* The peer says that it wrote `length` bytes into the slot of this tag. */
void slot_written(struct backend_link *link, uint32_t tag, uint64_t length);

/* channel.c */
struct channel *channel_new(struct backend_link *link, bool control, unsigned number);
/* The queue pair, its buffers and its receives. */
int channel_open(struct channel *channel);
/* Move the queue pair on: 0 or a negative errno. Does nothing where rdma_cm does it. */
int channel_ready(struct channel *channel);
/* No byte lands any more, and none leaves. */
void channel_stop(struct channel *channel);
/* ... and the queue pair is gone. */
void channel_break(struct channel *channel);
/* Back to what channel_new() made. */
void channel_reset(struct channel *channel);
void channel_free(struct channel *channel);
unsigned channel_room(const struct channel *channel);
/* Fill in wr_id and flags, post, and remember what it was for. */
int channel_post(struct channel *channel, struct ibv_send_wr *work, const struct posted *what,
		 bool signalled);
/* Look again at what is next in the send queue, where the driver may have missed something. */
void channel_ring(struct channel *channel);
/* SEND the bytes; they are copied. -EAGAIN when there is no buffer or no room. */
int channel_send(struct channel *channel, const uint8_t *bytes, uint32_t length);
bool channel_can_send(const struct channel *channel);
uint8_t *channel_buffer(struct channel *channel, unsigned number);
void channel_post_receive(struct channel *channel, unsigned number);
unsigned channel_credits(const struct channel *channel);
/* Take the peer's word for how much it has taken; false when that can't be. */
bool channel_taken(struct channel *channel, uint32_t taken);

/* connect.c */
int verbs_connect(struct backend_context *context, const char *where, haul_endpoint *engine,
		  char *address, size_t room, struct backend_link **out);
int connect_data(struct backend_link *link);
int connect_events(struct backend_context *context);

/* accept.c */
/* A connection that a peer asks for. */
struct request {
	struct rdma_cm_id *id;
	int wrong; /* what verbs_decode_greeting() said */
	struct greeting greeting;
	unsigned responder_resources, initiator_depth;
};

int verbs_listen(struct backend_context *context, const char *where, haul_listener *engine,
		 char *address, size_t room, struct backend_listener **out);
void verbs_unlisten(struct backend_listener *listener);
bool is_listener(const struct backend_context *context, const struct rdma_cm_id *id);
void accept_request(struct backend_context *context, struct backend_listener *listener,
		    const struct request *request);
void accept_announce(struct backend_link *link);

/* link.c */
struct backend_link *link_new(struct backend_context *context);
int link_use_device(struct backend_link *link, struct rdma_cm_id *id);
void link_leave_device(struct backend_link *link);
/* The peer has ended the connection. */
void link_disconnected(struct channel *channel);
/*
 * Something says that a channel has ended. With iWARP it may be that of a peer that says goodbye:
 * then the last word is waited for, and true given. False: it is for the caller to fail.
 */
bool link_awaits_last_word(struct channel *channel);
/* Of a link that leaves in order: see whether it may go. */
void link_leave(struct backend_link *link);
/* What this side says with a connection: fills in `parameters`, whose private data is `bytes`. */
void channel_offer(struct channel *channel, uint8_t bytes[VERBS_GREETING],
		   struct rdma_conn_param *parameters);
void link_take_greeting(struct backend_link *link, const struct greeting *greeting);
void link_fail(struct backend_link *link, int error, const char *format, ...)
	__attribute__((format(printf, 3, 4)));
/* It is freed at the end of this progress. */
void link_gone(struct backend_link *link);
void link_forget_error(struct backend_link *link);
void link_opened(struct backend_link *link, struct channel *channel);
/* Send what was held back, and what is owed to the peer. */
void link_pump(struct backend_link *link);
void link_timers(struct backend_link *link, uint64_t now);
void link_timer(struct backend_link *link, uint64_t at);
/* Something was posted: see to it that it moves. */
void link_watch(struct backend_link *link);
/* With windows: the channel that this side writes on, and the one that the peer does. */
struct channel *link_outbound(const struct backend_link *link);
struct channel *link_inbound(const struct backend_link *link);
void link_free(struct backend_link *link);
void verbs_disconnect(struct backend_link *link, bool in_order);
unsigned verbs_leaving(struct backend_context *context);
void verbs_statistics(struct backend_link *link, struct haul_statistics *statistics);

/* completion.c */
/* Take what is there; the number of completions. */
int link_poll(struct backend_link *link);
/* Ask for an event; true when something is there already. */
bool link_arm(struct backend_link *link);

/* control.c */
int verbs_control(struct backend_link *link, const uint8_t *message, size_t length);
int control_small(struct backend_link *link, const struct haul_push *push);
void control_flush(struct backend_link *link);
void control_packet(struct backend_link *link, const uint8_t *bytes, size_t length);
void control_tell_taken(struct backend_link *link);
void control_free(struct backend_link *link);
void verbs_flush(struct backend_link *link);

/* push.c */
int verbs_push(struct backend_link *link, struct haul_push *push);
int verbs_push_end(struct backend_link *link, struct haul_push *push, enum haul_push_end why);
void push_pump(struct backend_link *link);
void push_written(struct backend_link *link, struct outgoing *outgoing);
void push_word(struct channel *channel, const uint8_t *bytes, size_t length);
void push_tell_taken(struct channel *channel);
void pushes_forget(struct backend_link *link);

#endif
