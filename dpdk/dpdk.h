/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The dpdk backend's own structures. All is guarded by the context's lock (see backend.h), except
 * for what says otherwise. Times are haul_clock()'s ns.
 *
 *   port, eal       what DPDK gives                        frame      Ethernet to UDP, as bytes
 *   packet          our protocol, as bytes                 neighbour  who has which address (ARP)
 *   recovery        what was lost                          congestion how much may be under way
 *   link, opening   one peer, from OPEN to CLOSED          input      from frames to links
 *   stream          control messages, in order             output     from links to frames
 *   transfer        the bytes of tensors                   keeper     the housekeeping thread
 */
#ifndef TENSORHAUL_DPDK_H
#define TENSORHAUL_DPDK_H

#include <pthread.h>
#include <sys/queue.h>

#include "backend.h"
#include "congestion.h"
#include "frame.h"
#include "options.h"
#include "packet.h"
#include "port.h"
#include "recovery.h"

#define US UINT64_C(1000)
#define MS UINT64_C(1000000)
#define SECOND UINT64_C(1000000000)

/* Control bytes that may wait for the peer; beyond, it must have stopped reading for good. */
#define OUTBOX_MAX (64u << 20)

/* Bytes of the control stream that may be under way, and what a receiver keeps of them when one
 * packet is missing. */
#define STREAM_WINDOW (1u << 20)

/* Tensors to one peer take turns after so many packets. */
#define TURN 16

/* The largest tensor that goes with the control messages, whatever the option small= says there. */
#define SMALL_MAX 8192

/* ---- Neighbours -------------------------------------------------------- */

struct neighbours;

/* Questions without an answer (a second apart) after which nobody is taken to be there. */
#define NEIGHBOUR_ASKS 3

/* One address of the port's net. */
struct neighbour {
	LIST_ENTRY(neighbour) all;
	uint32_t ip;
	uint8_t mac[FRAME_MAC];
	bool known;
	uint32_t version;      /* goes up when `mac` changes */
	uint32_t users;        /* links that send there */
	uint64_t confirmed_at; /* it was heard from */
	uint64_t ask_at;       /* the next question; UINT64_MAX: none is needed */
	unsigned asked;        /* without an answer */
};

/* ---- Opening ----------------------------------------------------------- */

struct opening_address {
	uint32_t ip;
	uint16_t port;
};

struct backend_listener {
	TAILQ_ENTRY(backend_listener) all;
	struct backend_context *context;
	haul_listener *engine;
	uint16_t port;
};

/* ---- The control stream ------------------------------------------------ */

/* A piece of the stream as it was sent; it is sent again as it is. */
struct segment {
	uint64_t offset;
	uint32_t length;
	bool arrived, lost;
};

/* A piece of the stream that came before its turn. */
struct early {
	TAILQ_ENTRY(early) all;
	uint64_t offset;
	uint32_t length;
	uint8_t bytes[];
};

struct stream {
	/* What leaves: bytes from `base` (nothing before is needed) to `end`. Those before `due`
	 * may leave, the others wait for the end of their batch. */
	uint8_t *bytes;
	size_t room;
	size_t start; /* of `base` within `bytes` */
	uint64_t base, next, due, end;
	/* Numbered by use; the ring holds first..last - 1. */
	struct segment *segments;
	uint32_t segment_room;
	uint64_t segment_first, segment_last;
	uint64_t lost_from; /* no segment before this number is lost */
	uint32_t lost;
	/* What came. */
	uint64_t expected; /* offset of the next byte */
	uint8_t *partial;  /* the start of a record whose end is still to come */
	uint32_t partial_length, partial_room;
	TAILQ_HEAD(earlies, early) early;
	uint32_t early_bytes, early_count;
	uint64_t *early_total; /* of all links; NULL: not counted */
};

/* ---- Transfers --------------------------------------------------------- */

/* One push on its way. */
struct transfer {
	TAILQ_ENTRY(transfer) all;
	TAILQ_ENTRY(transfer) queued; /* has bytes that were never sent */
	struct haul_push *push;       /* NULL: the engine does not want it any more */
	struct port_holder holder;
	uint64_t next;      /* bytes before were sent */
	uint64_t unsettled; /* packets that are under way or wait to be sent again */
	bool waiting;       /* on the list `queued` */
	bool external;      /* its memory may be given to the port */
	bool returning;     /* push_end() answered 0: haul_on_pushed() follows */
};

/* Bytes that have to be sent (again). */
struct piece {
	struct transfer *transfer;
	uint64_t offset;
	uint64_t first; /* the number under which they were sent first; 0: not yet */
	uint32_t length;
};

/* ---- Links ------------------------------------------------------------- */

/* link->error of one that the peer has closed in order. */
#define LINK_ENDED 1

enum link_state {
	LINK_ASKING,  /* OPEN was sent, the cookie is to come */
	LINK_PROVING, /* OPEN was sent with the cookie */
	LINK_OPEN,
	LINK_LEAVING, /* disconnected in order: the stream's rest is on its way */
	LINK_CLOSING, /* CLOSE was sent */
	LINK_GONE,    /* freed by the next progress */
};

struct backend_link {
	TAILQ_ENTRY(backend_link) all;
	TAILQ_ENTRY(backend_link) ready_entry;
	TAILQ_ENTRY(backend_link) heard_entry;
	LIST_ENTRY(backend_link) peer_entry; /* once its peer's name is known */
	struct backend_context *context;
	haul_endpoint *endpoint; /* NULL: disconnected */
	enum link_state state;
	bool connector;
	bool ready;     /* on the list of those that may have something to send */
	bool heard;     /* on the list of those that packets came for in this round */
	bool lost;      /* haul_on_lost() was called */
	bool closed;    /* the peer said CLOSE */
	bool forgotten; /* nothing of the caller's is used any more */
	int error;      /* to be reported by progress */
	char why[200];
	char address[64]; /* the peer's, as text */

	/* Names and addresses. */
	uint64_t name, peer_name, peer_incarnation;
	uint32_t ip; /* the peer's */
	uint16_t peer_port, own_port;
	unsigned queue;
	struct neighbour *neighbour;
	uint32_t neighbour_version;
	struct frame_template template;
	bool local; /* the peer is at our own address */

	/* Opening. */
	struct opening_address *addresses; /* to connect to, best first */
	unsigned address_count, address_tried;
	uint8_t cookie[PACKET_COOKIE_SIZE];
	uint64_t open_at;  /* OPEN was sent last */
	uint64_t close_at; /* CLOSE is said again */
	uint64_t give_up_at;
	unsigned opens;   /* OPEN, or CLOSE, sent in this state */
	uint16_t payload; /* the longest of both sides */

	/* Sending. */
	struct recovery recovery;
	uint8_t congestion[CONGESTION_STATE] __attribute__((aligned(16)));
	struct pacer pacer;
	uint32_t peer_window; /* packets */
	struct stream stream;
	TAILQ_HEAD(, transfer) transfers, queued;
	struct piece *pieces; /* a ring of those to be sent again */
	uint32_t piece_room, piece_first, piece_count;
	unsigned turn;      /* packets of the tensor whose turn it is */
	unsigned returning; /* transfers with `returning` */
	uint64_t
		first_floor; /* no bytes are on their way that were sent first before this number */
	uint64_t floor_at;   /* it was found */
	unsigned probes;     /* packets to be sent whatever the window says */
	bool limited;        /* the window was not used up when it last sent */

	/* Receiving. */
	struct received received;
	struct received replaced; /* first numbers of bytes that came under another one */
	uint64_t heard_at;        /* a valid packet came */
	bool shut;                /* packets for it are kept */
	uint64_t shut_at;         /* ... and from this time on the window is closed */
	uint64_t ack_at;          /* an acknowledgement has to leave; UINT64_MAX: none */
	uint64_t data_at;         /* bytes of tensors came, for sharing the window */
	bool marked;              /* the packet at hand met congestion (ECN) */
	bool active;              /* counted in context->active */
	uint64_t arrived_slot, arrived_bytes;  /* in place, and not yet told to the engine */
	struct haul_share share_out, share_in; /* for the trace: not yet told */

	/* Time. */
	uint64_t timer_at; /* within the heap; UINT64_MAX: not there */
	uint32_t timer_index;

	uint64_t packets_sent, pieces_again;
};

TAILQ_HEAD(links, backend_link);
LIST_HEAD(peers, backend_link);

/* Lists of links by their peers' names; a power of two. */
#define PEERS 4096

/* ---- The context ------------------------------------------------------- */

/* Packets that wait for the port to take them. */
#define OUT_MAX 256

struct out_queue {
	struct rte_mbuf *packets[OUT_MAX];
	unsigned count;
};

/* What is answered to strangers is limited: see limiter_take() and output_may_answer(). Addresses
 * share some limits, and nobody knows which ones do. A power of two. */
#define ANSWER_SHARES 64

struct limiter {
	uint64_t at;
	uint32_t left;
};

struct timers {
	struct backend_link **heap;
	uint32_t count, room;
};

struct backend_context {
	haul_context *engine;
	const struct dpdk_config *config;
	bool traced;
	const struct congestion_ops *congestion;
	struct port *port;
	bool sums; /* UDP checksums are sent */
	uint64_t incarnation;
	uint8_t secret[32]; /* for cookies */

	struct links links;          /* all */
	struct links ready;          /* may have something to send */
	struct links hearing;        /* packets came for them in this round */
	struct backend_link **names; /* by the low bits of a link's name */
	uint32_t name_room, name_hint, link_count;
	struct peers peers[PEERS];
	uint64_t peer_factor; /* nobody can choose names that all get into one of them */
	TAILQ_HEAD(, backend_listener) listeners;
	LIST_HEAD(, neighbour) neighbours;
	uint32_t neighbour_count;
	struct timers timers;
	uint64_t neighbour_at, sweep_at; /* when to look next */
	unsigned errors;                 /* links with an error to report */
	unsigned returning;              /* transfers that the driver still reads */
	bool gone;                       /* some link is LINK_GONE */
	uint32_t active;                 /* links that get tensors */
	struct limiter answers, arps, resets;
	struct limiter answers_each[ANSWER_SHARES];
	bool conflict;        /* another host with our address was told of */
	uint64_t bad_sums;    /* packets with a wrong checksum */
	uint64_t early_total; /* bytes of control streams that came before their turn */

	struct out_queue out[PORT_QUEUES_MAX];
	struct out_queue loop; /* to our own address */

	/* Packets for the owner, that came while it was away: at most `kept_room`. */
	struct rte_mbuf **kept;
	uint32_t kept_count, kept_room;
	bool away; /* it is the housekeeping thread that drives this round */

	/* Taken by wait(), for the next progress. Only the thread that drives the context. */
	struct rte_mbuf *held[PORT_BURST];
	unsigned held_count, looks;

	uint64_t now;      /* of this round */
	uint64_t day;      /* what the time of day is ahead of it */
	uint64_t took_at;  /* the port took something, or there was nothing to take */
	uint64_t seen_at;  /* when its packets came: `now`, or 0 when they waited for us */
	uint64_t awake_at; /* the last time that a long pause of the process ended */
	uint64_t pause;    /* how long nobody looked at the port, before this round */
	uint64_t busy_at;  /* when something of the engine's came or left; atomic */
	uint64_t input_at; /* when somebody did; only the thread that drives the context */

	/* Any thread. */
	uint64_t looked_at; /* the owner, at the port; 0: it sleeps; atomic */
	bool listens;       /* the owner sleeps until the port tells of packets; atomic */
	uint64_t due_at;    /* atomic: what next_timer() said */
	bool woken;         /* atomic */
	int wake_fd;
	bool watched; /* the owner has asked for the event descriptor */

	/* The keeper. */
	pthread_t keeper;
	bool keeping;
	bool keeper_ends, keeper_rests; /* atomic */
	int keeper_fd;
};

/* Somebody waits for what comes next: no long naps now. */
static inline void note_busy(struct backend_context *context)
{
	__atomic_store_n(&context->busy_at, context->now, __ATOMIC_RELAXED);
}

/* ---- timers.c: a heap of links by time --------------------------------- */

/* The link has something to do at this time; an earlier one that was set stays. */
int timers_set(struct timers *timers, struct backend_link *link, uint64_t at);
void timers_remove(struct timers *timers, struct backend_link *link);
/* The first one that is due is taken out; NULL: none is. */
struct backend_link *timers_due(struct timers *timers, uint64_t now);
uint64_t timers_next(const struct timers *timers);
void timers_free(struct timers *timers);

/* ---- neighbour.c ------------------------------------------------------- */

/* The neighbour by which packets get to an address; NULL with haul_fail() or `why` set. */
struct neighbour *neighbour_use(struct backend_context *context, uint32_t ip);
void neighbour_release(struct neighbour *neighbour);
/* Something that only it can have sent has come from this MAC. */
void neighbour_confirm(struct neighbour *neighbour, uint64_t now);
/* It does not seem to be there: ask. */
void neighbour_doubt(struct backend_context *context, struct neighbour *neighbour);
void neighbour_learn(struct backend_context *context, uint32_t ip, const uint8_t *mac);
void neighbours_input(struct backend_context *context, const struct frame *frame);
void neighbours_announce(struct backend_context *context);
void neighbours_run(struct backend_context *context);
void neighbours_free(struct backend_context *context);
/* Whether the address is reached at all: on the net, or by a gateway. */
int neighbour_route(struct backend_context *context, uint32_t ip, uint32_t *next_hop);

/* ---- cookie.c ---------------------------------------------------------- */

void cookie_make(const struct backend_context *context, uint32_t ip, uint16_t port, uint64_t name,
		 uint8_t cookie[PACKET_COOKIE_SIZE]);
bool cookie_check(const struct backend_context *context, uint32_t ip, uint16_t port, uint64_t name,
		  const uint8_t cookie[PACKET_COOKIE_SIZE]);

/* ---- link.c ------------------------------------------------------------ */

struct backend_link *link_new(struct backend_context *context, uint32_t ip, uint16_t peer_port,
			      uint16_t own_port);
void link_free(struct backend_link *link);
/* The link whose own name this is; NULL: there is none. */
struct backend_link *link_find(const struct backend_context *context, uint64_t name);
/* All that may be with a peer that calls it by this name. */
struct peers *link_peers(struct backend_context *context, uint64_t peer_name);
/* Both sides know what they need: packets may leave. */
void link_opened(struct backend_link *link, const struct packet_open *open);
void link_fail(struct backend_link *link, int error, const char *format, ...)
	__attribute__((format(printf, 3, 4)));
void link_gone(struct backend_link *link);
/* One word that it is over, when there is no time left for more. A peer that misses it is told when
 * it speaks, as long as this context lives. */
void link_say_over(struct backend_link *link);
void link_timer(struct backend_link *link, uint64_t at);
/* Its time has come. */
void link_run(struct backend_link *link);
/* It may have something to send now. */
void link_ready(struct backend_link *link);
bool link_talks(const struct backend_link *link);
/* The peer took a packet of the stream or of a tensor, or one was lost. */
extern const struct recovery_ops link_recovery_ops;
void link_disconnect(struct backend_link *link, bool in_order);
unsigned links_leaving(struct backend_context *context);
void link_statistics(struct backend_link *link, struct haul_statistics *statistics);

/* ---- opening.c, listen.c ----------------------------------------------- */

int opening_connect(struct backend_context *context, const char *where, haul_endpoint *engine,
		    char *address, size_t room, struct backend_link **link);
void opening_run(struct backend_link *link);
/* This address does not work: the next one, or the link fails. */
void opening_next(struct backend_link *link, int error, const char *why);
/* Packets of types OPEN, COOKIE, OPENED, REFUSED. */
void opening_input(struct backend_context *context, const struct frame *frame,
		   const struct packet_head *head);
void opening_unreachable(struct backend_context *context, const struct frame *frame);

int listen_open(struct backend_context *context, const char *where, haul_listener *engine,
		char *address, size_t room, struct backend_listener **listener);
void listen_close(struct backend_listener *listener);
/* An address as text. */
void address_print(uint32_t ip, uint16_t port, char *text, size_t room);
struct backend_listener *listen_find(struct backend_context *context, uint16_t port);

/* ---- input.c, receive.c ------------------------------------------------ */

/* Take what came; the number of packets. */
int input_run(struct backend_context *context);
/* The owner is back: what was kept for it is taken now. */
void input_kept(struct backend_context *context);
/* A packet of an open link. */
void receive_packet(struct backend_link *link, const struct frame *frame,
		    const struct packet_head *head);
/* Tell the engine what has arrived since the last time. */
void receive_tell(struct backend_link *link);

/* share.c: with a trace. A piece of a slot was sent or placed from `begin` until now. */
void share_sent(struct backend_link *link, uint64_t slot, uint64_t begin, uint32_t bytes,
		bool copied);
void share_received(struct backend_link *link, uint64_t slot, uint64_t begin, uint32_t bytes);
/* The push ends, or what arrived is told. */
void share_tell_sent(struct backend_link *link, uint64_t slot);
void share_tell_received(struct backend_link *link);
/* A packet was kept for the owner. */
void receive_later(struct backend_link *link, const struct packet_head *head);
/* How many packets may be under way to this link. */
uint32_t receive_window(const struct backend_link *link);
void receive_sweep(struct backend_context *context);

/* ---- stream.c ---------------------------------------------------------- */

void stream_start(struct stream *stream);
void stream_stop(struct stream *stream);
/* Append a record; it may leave once the stream was flushed. */
int stream_append(struct stream *stream, const struct packet_record *record);
void stream_flush(struct stream *stream);
/* Bytes that wait for it. */
uint64_t stream_held(const struct stream *stream);
/* Whether something may be sent: what was lost comes first. */
bool stream_pending(const struct stream *stream);
/* Nothing waits, and everything has arrived. */
bool stream_empty(const struct stream *stream);
/* The next piece of at most `room` bytes: its number, NULL `bytes`: there is none. */
struct stream_piece {
	const uint8_t *bytes;
	uint64_t segment, offset;
	uint32_t length;
};
bool stream_next(struct stream *stream, uint32_t room, struct stream_piece *piece);
void stream_arrived(struct stream *stream, uint64_t segment);
void stream_lost(struct stream *stream, uint64_t segment);
/*
 * Bytes came. 0: they were taken (or known), and the packet may be acknowledged; -EAGAIN: there is
 * no room for them now, as if they had been lost; else the link is lost.
 */
int stream_input(struct backend_link *link, uint64_t offset, const uint8_t *bytes, uint32_t length);

/* ---- transfer.c -------------------------------------------------------- */

int transfer_push(struct backend_link *link, struct haul_push *push);
int transfer_push_end(struct backend_link *link, struct haul_push *push, enum haul_push_end why);
bool transfer_pending(const struct backend_link *link);
/* The next bytes to send, lost ones first; false: none. At most `room` of them. */
bool transfer_next(struct backend_link *link, uint32_t room, struct piece *piece);
void transfer_arrived(struct backend_link *link, const struct sent *sent);
void transfer_lost(struct backend_link *link, const struct sent *sent);
/* The port may have let go of sent packets. */
void transfer_reclaimed(struct backend_link *link);
/* Let go of everything; the caller's memory isn't read after this. */
void transfers_forget(struct backend_link *link);

/* ---- output.c ---------------------------------------------------------- */

/* What recovery's entries carry. */
enum sent_kind {
	SENT_STREAM,
	SENT_DATA,
	SENT_PING,
};

/* Send what may be sent: of one link, of all. */
void output_link(struct backend_link *link);
int output_run(struct backend_context *context);
/* Packets came for it in this round: there may be more to send now. */
void output_heard(struct backend_link *link);
/* Whether something waits to be sent. */
bool output_pending(const struct backend_link *link);
/* When to offer a full port again what it did not take. */
uint64_t output_offer_at(const struct backend_context *context);
/* Let the port have what waits for it. */
void output_flush(struct backend_context *context);
void output_ack(struct backend_link *link);
void output_ping(struct backend_link *link, bool now);
/* Drop what waits for the port and lies in callers' memory, as if it had been lost. */
void output_drop(struct backend_context *context, unsigned queue);
void output_free(struct backend_context *context);

/* A whole frame that was made elsewhere (ARP, echo). */
void output_frame(struct backend_context *context, const uint8_t *frame, size_t length);
/* Small packets of a link that are not numbered, and answers to a frame of a stranger. */
void output_plain(struct backend_link *link, const uint8_t *bytes, size_t length, size_t padded);
void output_answer(struct backend_context *context, const struct frame *frame, const uint8_t *bytes,
		   size_t length, size_t padded);
/* Whether one more of these may leave, or come. */
bool limiter_take(struct limiter *limiter, uint64_t now);
/* Whether one more answer to a stranger may leave: a flood from one address does not use up what
 * the others get. */
bool output_may_answer(struct backend_context *context, uint32_t ip);

/* ---- keeper.c ---------------------------------------------------------- */

int keeper_start(struct backend_context *context);
/* The owner is about to sleep on its event descriptor: look at the port from now on. */
void keeper_wake(struct backend_context *context);
void keeper_stop(struct backend_context *context);

#endif
