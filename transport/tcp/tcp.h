/* SPDX-License-Identifier: Apache-2.0 */
/* The tcp backend's own structures. Guarded by the context's lock; see backend.h. */
#ifndef TENSORHAUL_TCP_H
#define TENSORHAUL_TCP_H

#include <sys/queue.h>
#include <sys/socket.h>

#include "backend.h"
#include "framing.h"
#include "streams/chunks.h"
#include "streams/small_pushes.h"

#define MS UINT64_C(1000000) /* in ns */

#define STREAMS_MAX 64

/* Streams that broke and are not settled: beyond this no new one is opened or let in. */
#define GONE_MAX 256

/* The control stream is read in pieces of this size; a longer record arrives in several. */
#define INBOX_SIZE (16 * 1024)

/* How many bytes of the control stream the peer may be behind before small tensors wait for it. */
#define CONTROL_WINDOW (256 * 1024)

/* TAKEN is said after this many bytes, so that the peer need not keep them. */
#define TAKEN_EVERY (16 * 1024)

/* A peer that lets more than this wait has stopped reading for good. */
#define OUTBOX_MAX (64u << 20)

/* Chunks that were written to a stream and not yet taken by the peer: a ring of this size. */
#define CHUNK_LOG 256
#define STREAM_TAKEN_EVERY 32

/* Sockets that have not shown their preamble; the oldest makes room. */
#define STRANGERS_MAX 512

struct tcp_config {
	uint64_t streams; /* HAUL_OPTION_AUTO or 1..64 */
	uint64_t chunk;
	uint64_t small;
	uint64_t unsent;
	uint64_t sndbuf, rcvbuf; /* HAUL_OPTION_AUTO: the kernel's choice */
	uint64_t backlog;
	unsigned zerocopy;
	char *congestion;       /* NULL: auto */
	uint64_t retransmit_ms; /* 0: the kernel's choice */
	char *bind;
	char *interface;
	struct haul_option_range ports;
};

enum { ZEROCOPY_NO, ZEROCOPY_MSG };

extern const struct haul_option tcp_options[];

/* ---- Sockets ----------------------------------------------------------- */

enum socket_role {
	SOCKET_LISTENER,
	SOCKET_STRANGER, /* accepted, its preamble is awaited */
	SOCKET_CONTROL,
	SOCKET_PULSE,
	SOCKET_STREAM,
	SOCKET_DEAD, /* closed; freed by the next progress, since an event may still name it */
};

enum socket_state {
	SOCKET_CONNECTING, /* TCP's own handshake */
	SOCKET_ASKING,     /* our preamble is on its way, the answer is awaited */
	SOCKET_UP,
};

TAILQ_HEAD(socket_list, tcp_socket);

struct tcp_socket {
	TAILQ_ENTRY(tcp_socket) all; /* in context->sockets (or strangers), or the dead */
	TAILQ_ENTRY(tcp_socket) ready_entry;
	struct backend_context *context;
	struct backend_link *link;         /* control, pulse, stream */
	struct stream *stream;             /* stream */
	struct backend_listener *listener; /* listener, stranger */
	enum socket_role role;
	enum socket_state state;
	int fd;
	bool ready;              /* in context->ready */
	bool readable, writable; /* as the last event said and no call has disproved */
	bool ended;     /* behind what can be read is the end, or an error: no event tells again */
	bool full;      /* control: the last write found no room */
	uint64_t since; /* haul_clock(): accepted or connecting */
	size_t preamble_done; /* bytes sent or received of it */
	uint8_t preamble[PREAMBLE_SIZE];
};

/* ---- Streams ----------------------------------------------------------- */

struct stream {
	TAILQ_ENTRY(stream) streams; /* in link->streams or link->gone */
	struct backend_link *link;
	struct tcp_socket *socket; /* NULL: gone */
	uint32_t name;
	uint64_t used_at; /* haul_clock() of the last chunk, either way */

	/* out: chunks [log_first, log_next) may not be taken yet; the last may be half written */
	struct haul_chunk log[CHUNK_LOG];
	uint64_t log_first, log_next;
	bool writing;     /* the chunk log_next - 1 is being written */
	uint64_t written; /* of it, the header included */
	uint8_t header_out[CHUNK_SIZE];
	uint64_t begun_out, kernel_out; /* for the trace: of the chunk that is being written */

	/* in */
	uint64_t taken; /* chunks read whole */
	uint64_t taken_told;
	uint8_t header_in[CHUNK_SIZE];
	size_t header_done;
	uint64_t slot, offset;        /* of the chunk being read: where its next byte goes */
	uint32_t length, left;        /* of the chunk; bytes of it still to come */
	uint64_t begun_in, kernel_in; /* for the trace: of the chunk that is being read */

	/* gone: both must be settled before it is forgotten */
	bool asked;    /* STREAM_GONE was sent, the final STREAM_TAKEN is awaited */
	bool answered; /* the peer's STREAM_GONE was answered */
};

TAILQ_HEAD(stream_list, stream);

/* ---- Links ------------------------------------------------------------- */

enum link_state {
	LINK_CONNECTING, /* the connecting side: until the answer to OPEN */
	LINK_OPEN,
	LINK_LEAVING, /* disconnected in order: the outbox still leaves */
};

/* How many streams? See tune.c. */
struct tune {
	unsigned target; /* streams that chunks are given to */
	unsigned steady; /* ... when nothing is tried */
	unsigned tried;  /* what the trial was about, for its second half */
	enum {
		TUNE_STEADY,
		TUNE_TRIAL,   /* another number is in use */
		TUNE_CONFIRM, /* the old one again, to compare with once more */
	} phase;
	bool settling;       /* the first part after a change is not counted */
	bool bbr;            /* the streams were moved to it */
	bool recount;        /* a stream broke, its counters with it */
	uint64_t busy_since; /* there is work: haul_clock(); 0: all is handed out */
	uint64_t busy_ns;    /* sums of the measurement, over the busy times */
	uint64_t bytes;
	uint64_t segments, again;
	/* TCP's counters when the busy time began. */
	uint64_t last_bytes, last_segments, last_again;
	double rate, best; /* bytes per ns: before the trial; the best in steady state */
	double trial_rate;
	uint64_t next_trial;
	uint64_t patience; /* ns until the next trial after one that failed; doubles */
};

TAILQ_HEAD(link_list, backend_link);

struct backend_link {
	TAILQ_ENTRY(backend_link) all;
	struct backend_context *context;
	haul_endpoint *endpoint; /* NULL once it is disconnected */
	enum link_state state;
	bool connector;
	bool local; /* the peer is on this host */
	bool lost;  /* reported, or about to be */
	int error;  /* to be reported by the next progress; 0: none */
	char why[160];
	uint8_t session[SESSION_SIZE];
	struct sockaddr_storage *addresses; /* the connecting side: all that the name stands for */
	unsigned address_count, address;    /* the one in use */
	/* The connecting side: tries that failed to replace a socket, and since when. */
	unsigned tries_failed;
	uint64_t failing_since;
	uint64_t retry_at; /* the connecting side: when to try to replace a socket again */
	uint64_t leave_until;

	struct tcp_socket *control, *pulse;
	/* The sender's half of the control stream. Bytes are kept until the peer has taken them. */
	struct haul_outbox outbox;
	size_t sent;   /* of these, handed to the socket */
	uint64_t base; /* position in the stream of the first of them */
	uint8_t *inbox;
	size_t inbox_start, inbox_end;
	uint64_t taken, taken_told; /* bytes of the control stream read here, and of these told */
	/* A SMALL that is longer than the inbox is read straight to its place. */
	uint64_t small_slot, small_offset, small_length, small_left;
	size_t small_header;
	uint8_t small_message[HAUL_CONTROL_MAX];

	struct stream_list streams; /* up or on their way */
	struct stream_list gone;
	unsigned stream_count; /* in `streams` */
	unsigned gone_count;   /* in `gone` */
	unsigned streams_up;
	uint32_t next_stream;
	uint64_t stream_retry_at;
	unsigned wanted_by_peer;
	struct haul_chunks chunks;              /* of large pushes */
	struct haul_small_pushes small_waiting; /* for the window of the control stream */

	struct tune tune;
	uint64_t moved_at;      /* the last chunk, either way: haul_clock() */
	unsigned crowd_told;    /* what the peer knows of context->crowd */
	unsigned crowd_at_peer; /* how many move chunks to or from the peer, as it said last */
	uint64_t checked_at;    /* stalled streams were looked for */
	struct haul_statistics counters;
};

struct backend_listener {
	TAILQ_ENTRY(backend_listener) all;
	haul_listener *engine;
	struct tcp_socket *socket;
	bool complained;       /* about that, once */
	uint64_t paused_until; /* no descriptor was left for a peer; 0: not paused */
};

#define EVENTS_MAX 128

struct backend_context {
	haul_context *engine;
	const struct tcp_config *config;
	bool traced;
	int epoll;
	int wake;        /* eventfd */
	void *events;    /* struct epoll_event[EVENTS_MAX], filled by wait */
	int event_count; /* not yet looked at */
	struct link_list links;
	struct link_list gone; /* freed by the next progress */
	TAILQ_HEAD(, backend_listener) listeners;
	struct socket_list sockets;   /* of links and listeners */
	struct socket_list strangers; /* oldest first */
	unsigned stranger_count;
	struct socket_list dead;
	struct socket_list ready;
	unsigned leaving;
	unsigned errors; /* links with an error to report */
	uint64_t next_timer;
	bool bbr;     /* the kernel lets us choose it */
	bool watched; /* the event descriptor was asked for */
	bool in_vain; /* the socket that was served had nothing */
	unsigned looks;
	unsigned crowd; /* links that moved chunks lately */
	uint64_t crowd_counted_at;
	struct tcp_socket *hot; /* the control stream that spoke last, if nothing else did since */
	uint8_t *scrap;         /* where discarded bytes go; SCRAP_SIZE */
};

#define SCRAP_SIZE (256 * 1024)

/* The largest value of the option small=. */
#define SMALL_MAX 65536

/* socket.c */
struct tcp_socket *socket_new(struct backend_context *context, enum socket_role role, int fd);
int socket_open(struct backend_context *context, const struct sockaddr_storage *address);
int socket_connect(struct backend_context *context, const struct sockaddr_storage *address,
		   int *fd);
int socket_prepare(struct tcp_socket *socket); /* options of its role */
void socket_ready(struct tcp_socket *socket);  /* look at it in this progress */
void socket_dead(struct tcp_socket *socket);   /* close; NULL is allowed */
/* There was less than asked for: wait for an event. */
void socket_short_read(struct tcp_socket *socket);
int socket_error(const struct tcp_socket *socket);          /* SO_ERROR, negative */
bool socket_only_notified(const struct tcp_socket *socket); /* EPOLLERR was about MSG_ZEROCOPY */
bool socket_is_local(const struct tcp_socket *socket);      /* the peer is on this host */
const char *socket_names(enum socket_role role);

/* listen.c */
int tcp_listen(struct backend_context *context, const char *where, haul_listener *engine,
	       char *address, size_t room, struct backend_listener **listener);
void tcp_unlisten(struct backend_listener *listener);
void listener_accept(struct tcp_socket *socket);
void listener_timers(struct backend_listener *listener, uint64_t now);
void stranger_read(struct tcp_socket *socket);
void strangers_expire(struct backend_context *context, uint64_t now);

/* link.c */
void tcp_disconnect(struct backend_link *link, bool in_order);
unsigned tcp_leaving(struct backend_context *context);
void tcp_statistics(struct backend_link *link, struct haul_statistics *statistics);
struct backend_link *link_new(struct backend_context *context, bool connector);
struct backend_link *link_find(struct backend_context *context,
			       const uint8_t session[SESSION_SIZE]);
void link_free(struct backend_link *link);
/* Report it in the next progress. */
void link_fail(struct backend_link *link, int error, const char *why);
void link_socket_broken(struct tcp_socket *socket, int error);
void link_adopt(struct backend_link *link, struct tcp_socket *socket,
		const struct preamble *preamble);
/* Look at the link again then, at the latest. */
void link_timer(struct backend_link *link, uint64_t at);
void link_timers(struct backend_link *link, uint64_t now);

/* connect.c */
int tcp_connect(struct backend_context *context, const char *where, haul_endpoint *engine,
		char *address, size_t room, struct backend_link **link);
void connect_event(struct tcp_socket *socket); /* of a socket that isn't up yet */
/* The control stream or the pulse is away: look after the new one. */
void connect_missing(struct backend_link *link, struct tcp_socket **missing, enum socket_role role,
		     uint64_t now);
void connect_streams(struct backend_link *link, uint64_t now); /* as many as are wanted */

/* control.c */
int tcp_control(struct backend_link *link, const uint8_t *message, size_t length);
int control_record(struct backend_link *link, enum record_type type, const void *bytes,
		   size_t length);
int control_small(struct backend_link *link, const struct haul_push *push); /* 0 or -ENOMEM */
void control_write(struct backend_link *link);
void control_read(struct backend_link *link);
int control_rewind(struct backend_link *link, uint64_t taken); /* a new socket goes on there */
bool control_has_room(const struct backend_link *link);

/* stream.c */
struct stream *stream_new(struct backend_link *link, struct tcp_socket *socket, uint32_t name);
void stream_up(struct stream *stream);
void stream_write(struct stream *stream);
void stream_read(struct stream *stream);
void stream_break(struct stream *stream); /* its chunks go elsewhere, once it is known which */
int stream_taken(struct backend_link *link, uint32_t name, bool final, uint64_t chunks);
unsigned stream_crowd(struct backend_context *context, uint64_t now);
int stream_gone_at_peer(struct backend_link *link, uint32_t name);
void stream_free(struct stream *stream);
bool stream_use_bbr(struct stream *stream); /* false: it did already */

/* push.c */
int tcp_push(struct backend_link *link, struct haul_push *push);
int tcp_push_end(struct backend_link *link, struct haul_push *push, enum haul_push_end why);
void tcp_flush(struct backend_link *link);
bool push_next_chunk(struct backend_link *link, struct haul_chunk *chunk);
void push_return_chunk(struct backend_link *link, const struct haul_chunk *chunk);
void push_small_waiting(struct backend_link *link);
void push_forget(struct backend_link *link);

/* tune.c */
void tune_init(struct backend_link *link);
void tune_busy(struct backend_link *link);        /* there is something to send */
void tune_idle(struct backend_link *link);        /* everything was handed to sockets */
void tune_stream_gone(struct backend_link *link); /* TCP's counters are about to lose a stream */
void tune_ask(struct backend_link *link); /* the accepting side: let the peer open what is wanted */
void tune_run(struct backend_link *link, uint64_t now);
uint64_t tune_next(const struct backend_link *link);
unsigned tune_wanted(const struct backend_link *link); /* how many streams should be open */

#endif
