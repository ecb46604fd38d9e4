/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The grpc backend's own structures. Guarded by the context's lock unless a comment says otherwise;
 * see backend.h.
 *
 * Who does what. A few threads of the backend sit in the context's completion queue, where gRPC
 * reads and writes its sockets too. They put what has happened into the mailbox and wake the owner;
 * nothing else. Whatever it means is decided in progress, by the owner.
 */
#ifndef TENSORHAUL_RPC_H
#define TENSORHAUL_RPC_H

#include <pthread.h>
#include <sys/queue.h>
#include <sys/socket.h>

#include <grpc/grpc.h>

#include "backend.h"
#include "framing.h"
#include "streams/chunks.h"
#include "streams/small_pushes.h"

#define MS UINT64_C(1000000)

#define STREAMS_MAX 64

/* Streams that broke and are not settled: beyond this no new one is opened or let in. */
#define GONE_MAX 256

/* Connections that have not shown a call of ours; the oldest makes room. */
#define STRANGERS_MAX 512

/* Calls that a server is ready to take at once. */
#define REQUESTS 16

/* The text of a link's end, in which gRPC has its say. */
#define WHY_MAX 480

/* Chunks that were given to a stream and may not be taken yet: a ring of this size. */
#define CHUNK_LOG 256

struct rpc_config {
	uint64_t channels;
	uint64_t threads;
	uint64_t chunk;
	uint64_t window;
	uint64_t small;
	uint64_t backlog;
	bool warm;
	char *tls_ca, *tls_cert, *tls_key, *tls_name;
	char *interface;
	struct haul_option_range ports;
};

extern const struct haul_option rpc_options[];

/* ---- What gRPC tells ---------------------------------------------------- */

enum event_kind {
	EVENT_BEGUN,   /* a call: the first metadata was sent, and at the client received */
	EVENT_SENT,    /* a call: room for the next message */
	EVENT_GOT,     /* a call: a message, or that none follows */
	EVENT_ENDED,   /* a call: its status */
	EVENT_CALLED,  /* a server: a new call */
	EVENT_STOPPED, /* a server: it has shut down */
	EVENT_SETTLED, /* a connection that has ended: it connects no more */
};

/* The tag of a batch. Guarded by the mailbox. */
struct event {
	STAILQ_ENTRY(event) next;
	void *owner; /* struct rpc_call, request, rpc_server or connection */
	enum event_kind kind;
	bool queued;
	bool ok;
};

STAILQ_HEAD(event_list, event);

/* Between the backend's threads and the owner; has a lock of its own. */
struct mailbox {
	pthread_mutex_t lock;
	pthread_cond_t changed; /* `changes` has grown */
	uint64_t changes;       /* events of dropped calls, and tensors that gRPC has let go of */
	struct event_list events;
	int fd;            /* eventfd; readable when the owner has to look */
	bool armed;        /* the owner sleeps, or is about to */
	bool urgent;       /* there is more than room for messages that nobody has yet */
	bool hungry;       /* something waits for room, too */
	bool released_any; /* a transfer that was waited for */
};

/* ---- Connections and calls ---------------------------------------------- */

enum connection_state {
	CONNECTION_CONNECTING, /* TCP's own handshake */
	CONNECTION_UP,         /* gRPC has it */
	CONNECTION_SETTLING,   /* it ended, and its channel can't be destroyed yet */
	CONNECTION_DEAD,       /* freed by the next progress, since an event may still name it */
};

/*
 * A socket that gRPC uses. The descriptor here is a copy of gRPC's: it outlives it, so that it
 * always means this socket. With TLS gRPC makes its sockets itself, and there is none.
 */
struct connection {
	TAILQ_ENTRY(connection) all; /* context->connections or strangers */
	struct backend_context *context;
	struct backend_link *link;         /* whose it is; NULL: a stranger's */
	struct stream *stream;             /* with it; NULL: the control call's */
	struct backend_listener *listener; /* of an accepted one */
	enum connection_state state;
	int fd;                /* -1: none */
	int number;            /* gRPC's descriptor; -1: none */
	bool stranger;         /* in context->strangers */
	grpc_channel *channel; /* of the side that connected */
	uint64_t since;        /* haul_clock(): accepted or connecting */
	struct event settled;
};

TAILQ_HEAD(connection_list, connection);

/* Messages that were read and not looked at. */
#define INBOX_MESSAGES 64

struct rpc_call {
	TAILQ_ENTRY(rpc_call) all; /* context->calls, until nothing of it is under way */
	struct backend_context *context;
	struct backend_link *link; /* NULL: nobody wants it any more */
	struct stream *stream;     /* NULL: the control call */
	grpc_call *call;
	bool client;
	struct event begun, sent, got, ended;
	bool begin_pending, send_pending, end_pending; /* batches under way */
	bool over;                                     /* its end was seen */
	bool serving;                                  /* an event of it is being handled */
	grpc_metadata_array first, last;
	grpc_status_code status;
	grpc_slice why;
	int cancelled;

	/* In. Guarded by the mailbox. */
	grpc_byte_buffer *arriving;
	grpc_byte_buffer *inbox[INBOX_MESSAGES];
	unsigned inbox_first, inbox_count;
	size_t inbox_bytes, inbox_most;
	bool reading; /* a batch is under way */
	bool ends;    /* no message follows */
	bool dropped;
	/* Out, with the same guard: what the backend's threads send after the message under way. */
	grpc_slice_buffer after;
};

TAILQ_HEAD(call_list, rpc_call);

/* A call that a server waits for. */
struct request {
	struct event event;
	struct rpc_server *server;
	grpc_call *call;
	grpc_call_details details;
	grpc_metadata_array metadata;
};

/* Without TLS a context has one, which gets accepted sockets; with TLS each listener has its own.
 */
struct rpc_server {
	TAILQ_ENTRY(rpc_server) all;
	struct backend_context *context;
	struct backend_listener *listener; /* with TLS */
	grpc_server *server;
	struct event stopped;
	struct request requests[REQUESTS];
	unsigned waiting; /* of these */
	bool stopping, has_stopped;
};

/* ---- Pushes and chunks -------------------------------------------------- */

/* A large push. */
struct transfer {
	struct haul_transfer base;
	struct backend_context *context;
	struct haul_push *leaving; /* ended, but gRPC still has slices: to be given back */
	uint64_t break_at;         /* with it: when streams that keep a slice are broken */
	/* Guarded by the mailbox. */
	unsigned held; /* slices that gRPC has; each is a user of it */
	bool awaited;  /* their end is to be told */
};

struct stream {
	TAILQ_ENTRY(stream) streams; /* in link->streams or link->gone */
	struct backend_link *link;
	struct connection *connection; /* NULL: gone, or the accepting side's with TLS */
	struct rpc_call *call;         /* NULL: gone, or not connected */
	uint32_t name;
	bool up, is_gone;
	bool shared; /* it uses the control call's connection: the peer listens no more */

	/* Out: chunks [log_first, log_next) may not be taken yet. */
	struct haul_chunk log[CHUNK_LOG];
	uint64_t log_first, log_next;
	uint64_t log_bytes;
	struct haul_share leaving; /* of the chunk under way, for the trace */

	/* In. */
	uint64_t taken, taken_told;
	size_t taken_bytes; /* since it was told */

	/* Gone: both must be settled before it is forgotten. */
	bool asked;    /* STREAM_GONE was sent, the final STREAM_TAKEN is awaited */
	bool answered; /* the peer's STREAM_GONE was answered */
};

TAILQ_HEAD(stream_list, stream);

/* ---- Links -------------------------------------------------------------- */

enum link_state {
	LINK_CONNECTING,
	LINK_OPEN,
	LINK_LEAVING, /* disconnected in order: the outbox still leaves */
};

TAILQ_HEAD(link_list, backend_link);

struct backend_link {
	TAILQ_ENTRY(backend_link) all;
	struct backend_context *context;
	haul_endpoint *endpoint; /* NULL once it is disconnected */
	enum link_state state;
	bool connector;
	bool lost; /* reported, or about to be */
	int error; /* to be reported by the next progress; 0: none */
	char why[WHY_MAX];
	char session[SESSION_DIGITS + 1];
	struct sockaddr_storage *addresses; /* the connecting side: all that the name stands for */
	unsigned address_count, address;    /* the one in use */
	uint64_t leave_until;
	uint64_t check_at; /* when to look at its sockets */

	struct connection *connection; /* the control call's */
	struct rpc_call *control;
	bool closed; /* our last word was said */
	bool hungry; /* something waits for room in a call */
	struct haul_outbox outbox;

	struct stream_list streams;
	struct stream_list gone;
	unsigned stream_count, gone_count, streams_up;
	uint32_t next_stream;
	unsigned wanted; /* streams, by either side */
	bool asked;      /* the accepting side: it has said how many it wants */
	uint64_t stream_retry_at;
	uint64_t streamless_since; /* no stream can be made, and none is there; 0: not so */

	struct haul_chunks chunks;              /* of large pushes */
	struct haul_small_pushes small_waiting; /* for room in the control call */
	struct haul_statistics counters;
};

struct backend_listener {
	TAILQ_ENTRY(backend_listener) all;
	struct backend_context *context;
	haul_listener *engine;
	struct sockaddr_storage bound;
	int fd;                    /* -1 with TLS */
	struct rpc_server *server; /* with TLS */
	bool complained;           /* about missing descriptors, once */
	uint64_t paused_until;     /* no descriptor was left for a peer; 0: not paused */
};

struct backend_context {
	haul_context *engine;
	const struct rpc_config *config;
	int epoll;
	struct mailbox mail;
	grpc_completion_queue *queue;
	pthread_t *threads;
	unsigned thread_count;
	void *epoll_events;
	int event_count; /* not yet looked at */
	struct link_list links;
	struct link_list gone_links; /* freed by the next progress */
	TAILQ_HEAD(, backend_listener) listeners;
	TAILQ_HEAD(, rpc_server) servers;
	struct connection_list connections;
	struct connection_list strangers; /* oldest first */
	struct connection_list settling;  /* until EVENT_SETTLED */
	struct connection_list dead;      /* freed by the next progress */
	unsigned stranger_count;
	struct call_list calls;
	struct call_list dropped;
	unsigned hungry; /* links */
	unsigned leaving;
	unsigned errors; /* links with an error to report */
	uint64_t next_timer;
	bool runs; /* gRPC was started for it */
	bool tls;
	bool traced;
	/* TLS, as gRPC takes it. */
	char *ca, *cert, *key;
	uint8_t *scratch; /* a control message in one piece; CONTROL_MESSAGE_MAX */
};

/* runtime.c: gRPC itself. */
int runtime_enter(haul_context *engine, bool warm);
void runtime_leave(void);
int no_descriptor(haul_context *engine, int error);

/* probe.c */
int rpc_probe(char *reason, size_t room);
int rpc_describe(const char *where, char *text, size_t room);

/* tls.c */
int tls_open(struct backend_context *context);
void tls_close(struct backend_context *context);
grpc_channel_credentials *tls_channel(const struct backend_context *context);
grpc_server_credentials *tls_server(const struct backend_context *context);

/* mailbox.c */
int mailbox_open(struct backend_context *context);
void mailbox_close(struct backend_context *context);
int mailbox_start(struct backend_context *context); /* its threads */
void mailbox_stop(struct backend_context *context);
void mailbox_wake(struct mailbox *mail);
void mailbox_changed(struct mailbox *mail); /* with its lock */
/* Handle what has come; in flush, which may not call the engine, only room for messages. */
int mailbox_look(struct backend_context *context);
void mailbox_look_for_room(struct backend_context *context);
/* Until a count is 0 that gRPC brings down once the calls that were dropped are over. */
void mailbox_wait(struct backend_context *context, const unsigned *held);
void mailbox_hungry(struct backend_context *context, bool hungry);
bool mailbox_arm(struct backend_context *context); /* false: there is something already */

/* call.c */
struct rpc_call *call_make(struct backend_link *link, struct stream *stream, grpc_channel *channel);
struct rpc_call *call_take(struct backend_context *context, struct request *request);
void call_answer(struct rpc_call *call, struct backend_link *link, struct stream *stream);
void call_refuse(struct rpc_call *call, grpc_status_code status, const char *why);
/* Nobody wants it any more: it is cancelled, and freed when gRPC is done with it. */
void call_drop(struct rpc_call *call);
int call_send(struct rpc_call *call, grpc_slice *slices, size_t count);
/*
 * Let a control message leave after the one under way, also when the owner does not come back.
 * False: the slice is still the caller's, there is no room, or the other one has been sent.
 */
bool call_follow(struct rpc_call *call, grpc_slice slice);
bool call_sent(struct rpc_call *call, grpc_slice_buffer *after);       /* as call_got(); then: */
bool call_send_after(struct rpc_call *call, grpc_slice_buffer *after); /* without the lock */
void call_say_end(struct rpc_call *call);
/* The next message that has come, in the order in which they were sent; NULL: none. */
grpc_byte_buffer *call_next(struct rpc_call *call);
bool call_has_ended(struct rpc_call *call); /* and everything was read */
bool call_metadata(const grpc_metadata_array *array, const char *key, char *text, size_t room);
void call_event(struct event *event);
void call_read(struct rpc_call *call);
bool call_got(struct rpc_call *call, bool ok); /* with the mailbox's lock; true: call_read() it */
bool call_reap(struct rpc_call *call);         /* true: it was dropped and is over, and was freed */
void call_why(const struct rpc_call *call, char *text, size_t room);

/* connection.c */
int connection_start(struct backend_link *link, struct stream *stream, struct connection **out);
int connection_accepted(struct backend_listener *listener, int fd);
void connection_event(struct connection *connection);   /* it is connected, or not, or gone */
void connection_settled(struct connection *connection); /* its channel can be destroyed */
void connection_close(struct connection *connection);   /* NULL is allowed */
/* Forget about it: a peer that has left closes it. */
void connection_leave(struct connection *connection);
struct connection *connection_find(struct backend_context *context, grpc_call *call);
void connection_adopt(struct connection *connection, struct backend_link *link,
		      struct stream *stream);
void connection_close_in_child(const struct connection *connection);
bool connection_silent(const struct connection *connection, uint64_t ms);
int socket_open(struct backend_context *context, const struct sockaddr_storage *address);
grpc_channel_args *channel_arguments(struct backend_context *context);

/* server.c */
int server_open(struct backend_context *context, struct backend_listener *listener,
		struct rpc_server **out);
void server_start(struct rpc_server *server);
void server_stop(struct rpc_server *server, bool all);
bool server_reap(struct rpc_server *server); /* true: it was over, and is freed */
void server_event(struct event *event);

/* listen.c */
int rpc_listen(struct backend_context *context, const char *where, haul_listener *engine,
	       char *address, size_t room, struct backend_listener **listener);
void rpc_unlisten(struct backend_listener *listener);
void listener_accept(struct backend_listener *listener);
void listener_timers(struct backend_listener *listener, uint64_t now);
void listener_called(struct rpc_server *server, struct request *request);
void strangers_expire(struct backend_context *context, uint64_t now);

/* link.c */
int rpc_connect(struct backend_context *context, const char *where, haul_endpoint *engine,
		char *address, size_t room, struct backend_link **link);
void rpc_disconnect(struct backend_link *link, bool in_order);
unsigned rpc_leaving(struct backend_context *context);
void rpc_statistics(struct backend_link *link, struct haul_statistics *statistics);
void rpc_flush(struct backend_link *link);
struct backend_link *link_new(struct backend_context *context, bool connector);
struct backend_link *link_find(struct backend_context *context, const char *session);
void link_free(struct backend_link *link);
void link_fail(struct backend_link *link, int error, const char *why);
void link_connected(struct connection *connection, int error); /* the control call's */
void link_begun(struct backend_link *link, bool ok);
void link_ended(struct backend_link *link);
void link_want_streams(struct backend_link *link); /* there is a large tensor to send */
void link_open_streams(struct backend_link *link);
void link_hunger(struct backend_link *link); /* find out anew whether something waits for room */
void link_timer(struct backend_link *link, uint64_t at);
void link_timers(struct backend_link *link, uint64_t now);

/* control.c */
int rpc_control(struct backend_link *link, const uint8_t *message, size_t length);
int control_record(struct backend_link *link, enum record_type type, const void *bytes,
		   size_t length);
int control_small(struct backend_link *link, const struct haul_push *push);
void control_write(struct backend_link *link);
void control_read(struct backend_link *link);
bool control_has_room(const struct backend_link *link);
bool control_waits(const struct backend_link *link);

/* stream.c */
struct stream *stream_new(struct backend_link *link, uint32_t name);
void stream_connected(struct connection *connection, int error);
void stream_begun(struct stream *stream, bool ok);
void stream_write(struct stream *stream);
void stream_wrote(struct stream *stream); /* gRPC takes the next message */
void stream_read(struct stream *stream);
void stream_break(struct stream *stream); /* its chunks go elsewhere, once it is known which */
bool stream_holds(const struct stream *stream, const struct haul_transfer *transfer);
int stream_taken(struct backend_link *link, uint32_t name, bool final, uint64_t chunks);
int stream_gone_at_peer(struct backend_link *link, uint32_t name);
void stream_free(struct stream *stream);

/* push.c */
int rpc_push(struct backend_link *link, struct haul_push *push);
int rpc_push_end(struct backend_link *link, struct haul_push *push, enum haul_push_end why);
void push_small_waiting(struct backend_link *link);
grpc_slice push_slice(const struct haul_chunk *chunk, bool copied);
int push_released(struct backend_context *context); /* report what gRPC has let go of */
void push_timers(struct backend_link *link, uint64_t now);
/* Nothing of the link's tensors is in gRPC when it returns: the streams are broken already. */
void push_forget(struct backend_link *link);

#endif
