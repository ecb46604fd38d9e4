/* SPDX-License-Identifier: Apache-2.0 */
/* dpdk-bare's two sides: all that happens to a frame. */
#include "dpdk_bare.h"

#include <rte_cycles.h>
#include <rte_ethdev.h>
#include <sched.h>
#include <string.h>

/* Nothing heard for so long means that frames, or what told of them, were lost. */
#define STALL_NS 50000000
#define ASK_AGAIN_NS 20000000
/* The clock is read once in so many rounds. */
#define CLOCK_ROUNDS 32
/* After so many rounds without a frame, others may have the processor: the other side may be among
 * them. */
#define IDLE_ROUNDS 512

static void idle(unsigned *rounds, bool moved)
{
	*rounds = moved ? 0 : *rounds + 1;
	if (*rounds % IDLE_ROUNDS == IDLE_ROUNDS - 1)
		sched_yield();
}

/* ---- The sender -------------------------------------------------------- */

struct sender {
	struct bare *bare;
	struct rte_mbuf_ext_shared_info shared;
	struct rte_mbuf *ready[BARE_BURST]; /* made, and not yet taken by the driver */
	unsigned ready_count;
	uint32_t payload;
	uint64_t next;         /* number of the frame that is made next */
	uint64_t offset;       /* of its payload */
	uint64_t confirmed;    /* the receiver has seen higher numbers than all below */
	uint64_t arrived;      /* frames that it has counted */
	struct bare_head last; /* of what came last, but for credits */
};

static void nothing_to_free(void *memory, void *user)
{
}

/* Up to `count` frames of two pieces, the second one in our memory. */
static void make_frames(struct sender *sender, unsigned count)
{
	struct bare *bare = sender->bare;
	struct rte_mbuf *heads[BARE_BURST], *externals[BARE_BURST];
	struct bare_head head = {.magic = BARE_MAGIC, .kind = BARE_DATA, .length = sender->payload};

	if (rte_pktmbuf_alloc_bulk(bare->heads, heads, count))
		return;
	if (rte_pktmbuf_alloc_bulk(bare->externals, externals, count)) {
		rte_pktmbuf_free_bulk(heads, count);
		return;
	}
	rte_mbuf_ext_refcnt_update(&sender->shared, (int16_t)count);
	for (unsigned i = 0; i < count; i++) {
		uint8_t *front = rte_pktmbuf_mtod(heads[i], uint8_t *);
		uint8_t *payload = bare->memory + sender->offset;

		head.number = sender->next++;
		head.offset = sender->offset;
		memcpy(front, bare->front, BARE_HEADERS);
		memcpy(front + BARE_HEADERS, &head, sizeof(head));
		rte_pktmbuf_attach_extbuf(externals[i], payload, rte_mem_virt2iova(payload),
					  (uint16_t)sender->payload, &sender->shared);
		externals[i]->data_len = (uint16_t)sender->payload;
		heads[i]->data_len = BARE_FRONT;
		heads[i]->pkt_len = BARE_FRONT + sender->payload;
		heads[i]->nb_segs = 2;
		heads[i]->next = externals[i];
		sender->offset += sender->payload;
		if (sender->offset + sender->payload > bare->options.memory)
			sender->offset = 0;
	}
	memcpy(sender->ready, heads, count * sizeof(heads[0]));
	sender->ready_count = count;
}

static void take_answer(struct sender *sender, struct rte_mbuf *frame, uint64_t now)
{
	struct bare_head *head = bare_head_of(frame);

	if (!head || head->kind == BARE_HELLO)
		return;
	sender->bare->heard_at = now;
	if (head->kind == BARE_HERE) {
		struct rte_ether_hdr *ethernet = rte_pktmbuf_mtod(frame, struct rte_ether_hdr *);

		bare_address(sender->bare, &ethernet->src_addr);
	}
	if (head->kind == BARE_CREDIT) {
		if (head->offset > sender->confirmed)
			sender->confirmed = head->offset;
		sender->arrived = head->number > sender->arrived ? head->number : sender->arrived;
	} else {
		sender->last = *head;
	}
}

static unsigned take_answers(struct sender *sender, uint64_t now)
{
	struct rte_mbuf *frames[BARE_BURST];
	unsigned count = rte_eth_rx_burst(sender->bare->id, 0, frames, BARE_BURST);

	for (unsigned i = 0; i < count; i++)
		take_answer(sender, frames[i], now);
	rte_pktmbuf_free_bulk(frames, count);
	return count;
}

/* Ask again and again, until this kind of answer comes. */
static void ask(struct sender *sender, enum bare_kind question, enum bare_kind answer)
{
	uint64_t asked = 0, now = bench_now();

	sender->last.kind = 0;
	while (sender->last.kind != answer) {
		if (now > asked + ASK_AGAIN_NS) {
			bare_say(sender->bare, question, 0, 0);
			asked = now;
		}
		take_answers(sender, now);
		now = bench_now();
		bare_check_peer(sender->bare, now);
	}
}

static void send_ready(struct sender *sender)
{
	unsigned sent =
		rte_eth_tx_burst(sender->bare->id, 0, sender->ready, (uint16_t)sender->ready_count);

	sender->ready_count -= sent;
	if (sent && sender->ready_count)
		memmove(sender->ready, sender->ready + sent,
			sender->ready_count * sizeof(sender->ready[0]));
}

static void send_until(struct sender *sender, uint64_t end)
{
	const struct bare_options *options = &sender->bare->options;
	uint64_t now = bench_now(), moved_at = now, confirmed = sender->confirmed;
	unsigned quiet = 0;

	for (unsigned round = 1; now < end; round++) {
		uint64_t under_way = sender->next - sender->confirmed;

		idle(&quiet, take_answers(sender, now) || sender->ready_count);
		if (!sender->ready_count && under_way < options->window) {
			uint64_t room = options->window - under_way;

			make_frames(sender,
				    room < options->burst ? (unsigned)room : options->burst);
		}
		if (sender->ready_count)
			send_ready(sender);
		if (round % CLOCK_ROUNDS)
			continue;
		now = bench_now();
		if (sender->confirmed != confirmed) {
			confirmed = sender->confirmed;
			moved_at = now;
		} else if (now > moved_at + STALL_NS) {
			/* What is under way will not be told of any more. */
			sender->confirmed = sender->next;
			moved_at = now;
			bare_check_peer(sender->bare, now);
		}
	}
}

/* A receiver that has heard it ends, and its answer may be lost: nobody waits for long. */
static void say_bye(struct sender *sender)
{
	uint64_t begin = bench_now(), asked = 0, now = begin;

	while (sender->last.kind != BARE_GONE && now < begin + NS_PER_S) {
		if (now > asked + ASK_AGAIN_NS) {
			bare_say(sender->bare, BARE_BYE, 0, 0);
			asked = now;
		}
		take_answers(sender, now);
		now = bench_now();
	}
}

static void sender_start(struct sender *sender, struct bare *bare)
{
	static const struct rte_ether_addr all = {{255, 255, 255, 255, 255, 255}};

	memset(sender, 0, sizeof(*sender));
	sender->bare = bare;
	sender->shared.free_cb = nothing_to_free;
	rte_mbuf_ext_refcnt_set(&sender->shared, 1);
	sender->payload = bare->options.frame - (uint32_t)BARE_FRONT;
	bare_address(bare, &all);
	ask(sender, BARE_HELLO, BARE_HERE);
}

void bare_send(struct bare *bare, struct bare_result *result)
{
	struct sender sender;
	uint64_t begin, cpu;

	sender_start(&sender, bare);
	bare_fill(bare->memory, bare->options.memory);
	send_until(&sender, bench_now() + (uint64_t)(bare->options.warmup * 1e9));
	ask(&sender, BARE_BEGIN, BARE_BEGUN);
	begin = bench_now();
	cpu = bare_cpu_ns();
	send_until(&sender, begin + (uint64_t)(bare->options.seconds * 1e9));
	ask(&sender, BARE_END, BARE_ENDED);
	result->seconds = (double)(bench_now() - begin) / 1e9;
	result->sender_cpu_s = (double)(bare_cpu_ns() - cpu) / 1e9;
	result->receiver_cpu_s = (double)sender.last.number / 1e9;
	result->frames = sender.last.offset;
	result->lost = sender.next - sender.arrived;
	say_bye(&sender);
	rte_pktmbuf_free_bulk(sender.ready, sender.ready_count);
}

void bare_ping(struct bare *bare, struct bare_result *result)
{
	uint64_t begin, measured, now, number = 0, cpu;
	unsigned quiet = 0;
	struct sender sender;

	sender_start(&sender, bare);
	begin = now = bench_now();
	measured = begin + (uint64_t)(bare->options.warmup * 1e9);
	cpu = bare_cpu_ns();
	histogram_reset(&result->times);
	while (now < measured + (uint64_t)(bare->options.seconds * 1e9)) {
		uint64_t sent = now;

		bare_say(bare, BARE_PING, ++number, 0);
		do {
			idle(&quiet, take_answers(&sender, now));
			now = bench_now();
		} while ((sender.last.kind != BARE_PONG || sender.last.number != number) &&
			 now < sent + STALL_NS);
		if (sender.last.number != number)
			result->lost++;
		else if (sent >= measured)
			histogram_add(&result->times, now - sent);
		bare_check_peer(bare, now);
	}
	result->frames = number;
	result->seconds = (double)(now - begin) / 1e9;
	result->sender_cpu_s = (double)(bare_cpu_ns() - cpu) / 1e9;
	say_bye(&sender);
}

/* ---- The receiver ------------------------------------------------------ */

struct receiver {
	struct bare *bare;
	uint64_t arrived, next; /* frames; one more than the highest number */
	uint64_t told;          /* of arrived, by the last credit */
	uint64_t begun, cpu;    /* arrived and CPU time at BARE_BEGIN */
	uint64_t counted, used; /* and since then, at BARE_END */
	uint32_t frame;         /* bytes, as the sender says */
	bool measuring, bye;
};

static void tell(struct receiver *receiver)
{
	bare_say(receiver->bare, BARE_CREDIT, receiver->arrived, receiver->next);
	receiver->told = receiver->arrived;
}

/* Both turn around in place: the frame is its own answer. */
static void answer(struct receiver *receiver, struct rte_mbuf *frame, struct bare_head *head)
{
	struct rte_ether_hdr *ethernet = rte_pktmbuf_mtod(frame, struct rte_ether_hdr *);

	ethernet->dst_addr = ethernet->src_addr;
	ethernet->src_addr = receiver->bare->mac;
	if (head->kind == BARE_HELLO)
		bare_address(receiver->bare, &ethernet->dst_addr);
	head->kind++; /* each answer's kind follows its question's */
	if (rte_eth_tx_burst(receiver->bare->id, 0, &frame, 1) != 1)
		rte_pktmbuf_free(frame);
}

static void begin_or_end(struct receiver *receiver, struct bare_head *head)
{
	if (head->kind == BARE_HELLO)
		receiver->frame = head->frame;
	if (head->kind == BARE_BEGIN && !receiver->measuring) {
		receiver->measuring = true;
		receiver->begun = receiver->arrived;
		receiver->cpu = bare_cpu_ns();
	}
	if (head->kind == BARE_END && receiver->measuring) {
		receiver->measuring = false;
		receiver->counted = receiver->arrived - receiver->begun;
		receiver->used = bare_cpu_ns() - receiver->cpu;
	}
	if (head->kind == BARE_END) {
		tell(receiver);
		head->number = receiver->used;
		head->offset = receiver->counted;
	}
}

/* True when the frame went back. */
static bool take_other(struct receiver *receiver, struct rte_mbuf *frame, struct bare_head *head)
{
	receiver->bye |= head->kind == BARE_BYE;
	if (head->kind != BARE_HELLO && head->kind != BARE_BEGIN && head->kind != BARE_END &&
	    head->kind != BARE_PING && head->kind != BARE_BYE)
		return false;
	begin_or_end(receiver, head);
	answer(receiver, frame, head);
	return true;
}

static bool take_frame(struct receiver *receiver, struct rte_mbuf *frame)
{
	struct bare_head *head = bare_head_of(frame);
	uint64_t room = receiver->bare->options.memory;

	if (!head)
		return false;
	if (head->kind != BARE_DATA)
		return take_other(receiver, frame, head);
	if (head->length != frame->data_len - BARE_FRONT || head->offset > room ||
	    head->length > room - head->offset)
		return false;
	memcpy(receiver->bare->memory + head->offset, head + 1, head->length);
	receiver->arrived++;
	if (head->number >= receiver->next)
		receiver->next = head->number + 1;
	return false;
}

static unsigned receive_burst(struct receiver *receiver)
{
	struct rte_mbuf *frames[BARE_BURST];
	unsigned count = rte_eth_rx_burst(receiver->bare->id, 0, frames, BARE_BURST), kept = 0;

	for (unsigned i = 0; i < count && i < 2; i++)
		rte_prefetch0(rte_pktmbuf_mtod(frames[i], void *));
	for (unsigned i = 0; i < count; i++) {
		if (i + 2 < count) {
			uint8_t *ahead = rte_pktmbuf_mtod(frames[i + 2], uint8_t *);

			rte_prefetch0(ahead);
			rte_prefetch0(ahead + 64);
		}
		if (!take_frame(receiver, frames[i]))
			frames[kept++] = frames[i];
	}
	rte_pktmbuf_free_bulk(frames, kept);
	return count;
}

bool bare_receive(struct bare *bare)
{
	struct receiver receiver = {.bare = bare};
	uint32_t payload;
	unsigned quiet = 0;
	uint64_t passed;

	for (unsigned round = 0; !receiver.bye; round++) {
		unsigned count = receive_burst(&receiver);
		uint64_t untold = receiver.arrived - receiver.told;

		idle(&quiet, count);
		if (untold >= bare->options.window / 8 || (untold && !count))
			tell(&receiver);
		if (count)
			bare->heard_at = 0;
		if (round % CLOCK_ROUNDS)
			continue;
		if (!bare->heard_at)
			bare->heard_at = bench_now();
		bare_check_peer(bare, bench_now());
	}
	bare_wait_gone(bare);
	if (receiver.frame <= BARE_FRONT)
		return true;
	/* After one pass through all of the memory, each byte has its place. */
	payload = receiver.frame - (uint32_t)BARE_FRONT;
	passed = bare->options.memory / payload;
	return receiver.arrived < 2 * passed ||
	       bare_is_filled(bare->memory, passed * payload / 8 * 8);
}
