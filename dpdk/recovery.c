/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The sender's side of loss detection: RFC 9002, section 6, with thresholds that learn.
 *
 * Packets leave in the order of their numbers, so both thresholds are reached in that order too:
 * losses are found by walking up from the oldest, and nothing is looked at twice. A bit for each
 * entry says whether there is still something to tell about it. Acknowledgements repeat themselves,
 * and a range that was told before costs one look at each 64 numbers.
 *
 * RFC 9002 keeps both thresholds where they are. Networks that spread packets over several paths,
 * and cards that spread them over several queues, then make it send packets again that have
 * arrived. Here a packet that comes after it was given up (as in RFC 8985, section 6.2) raises the
 * thresholds to what would have saved it, and time without such packets lowers them again.
 */
#include "recovery.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "bits.h"

#define US UINT64_C(1000)
#define MS UINT64_C(1000000)

#define ROOM_LEAST 64
#define REORDERING_LEAST 3
#define REORDERING_MOST (RECOVERY_SPAN / 4)
#define PATIENCE_LEAST 9 /* eighths of a round trip, as in RFC 9002 */
#define PATIENCE_MOST 32
/* So long without a late packet takes a quarter of the added patience back. */
#define CALM (1000 * MS)
/* A poller can't be asked to look more often. */
#define WAIT_LEAST (50 * US)
/* A ring that is hardly used for so long is given back. */
#define REST (10000 * MS)
/* The packets of a probe have to have numbers. */
#define PROBES 2

static struct sent *entry(const struct recovery *recovery, uint64_t number)
{
	return &recovery->ring[number & (recovery->room - 1)];
}

void recovery_start(struct recovery *recovery, const struct recovery_ops *ops, void *user,
		    uint64_t ack_delay)
{
	*recovery = (struct recovery){
		.ops = ops,
		.user = user,
		.next = 1,
		.oldest = 1,
		.round_end = 1,
		.reordering = REORDERING_LEAST,
		.patience = PATIENCE_LEAST,
		.ack_delay = ack_delay,
	};
}

static void give_back(struct recovery *recovery)
{
	free(recovery->ring);
	recovery->ring = NULL;
	recovery->open = NULL;
	recovery->room = 0;
}

void recovery_stop(struct recovery *recovery)
{
	give_back(recovery);
}

void recovery_rtt(struct recovery *recovery, uint64_t rtt, uint64_t now)
{
	rtt_add(&recovery->rtt, rtt, rtt, now);
}

/* The lowest number that the ring remembers. */
static uint64_t bottom(const struct recovery *recovery)
{
	return recovery->next > recovery->room ? recovery->next - recovery->room : 1;
}

static bool has_something_to_tell(const struct sent *sent)
{
	return sent->state == SENT_UNDER_WAY || sent->state == SENT_LOST;
}

/* The bits live behind the entries, in the same piece of memory. */
static bool resize(struct recovery *recovery, uint32_t room)
{
	struct sent *ring = calloc(1, room * sizeof(struct sent) + room / 8);
	uint64_t *open = (uint64_t *)(void *)(ring + room);
	uint64_t number = bottom(recovery);

	if (!ring)
		return false;
	if (room < recovery->room && number + room < recovery->next)
		number = recovery->next - room;
	for (; number < recovery->next; number++) {
		struct sent *sent = &ring[number & (room - 1)];

		*sent = *entry(recovery, number);
		if (has_something_to_tell(sent))
			*bits_word(open, room, number) |= bits_mask(number, number);
	}
	free(recovery->ring);
	recovery->ring = ring;
	recovery->open = open;
	recovery->room = room;
	return true;
}

bool recovery_room(struct recovery *recovery)
{
	if (recovery->next > PACKET_NUMBER_MAX)
		return false;
	if (recovery->next - recovery->oldest < recovery->room)
		return true;
	if (recovery->room == RECOVERY_SPAN)
		return false;
	return resize(recovery, recovery->room ? 2 * recovery->room : ROOM_LEAST);
}

void recovery_sent(struct recovery *recovery, const struct sent *sent)
{
	uint64_t number = recovery->next++;
	struct sent *kept = entry(recovery, number);

	*kept = *sent;
	kept->number = number;
	kept->state = SENT_UNDER_WAY;
	*bits_word(recovery->open, recovery->room, number) |= bits_mask(number, number);
	recovery->in_flight += sent->size;
	recovery->packets++;
	recovery->packets_sent++;
	recovery->last_sent = sent->at;
	if (recovery->next - recovery->oldest > recovery->room / 4)
		recovery->busy_at = sent->at;
}

/* ---- Losses ------------------------------------------------------------ */

static struct congestion_sample sample_begin(const struct recovery *recovery, uint64_t now)
{
	return (struct congestion_sample){
		.now = now,
		.rtt_least = recovery->rtt.least,
		.rtt_smooth = recovery->rtt.smooth,
		.in_flight = recovery->in_flight,
		.clock = recovery->clock,
	};
}

static void lose(struct recovery *recovery, struct sent *sent, struct congestion_sample *sample)
{
	sent->state = SENT_LOST;
	recovery->in_flight -= sent->size;
	recovery->packets--;
	recovery->packets_lost++;
	sample->lost += sent->size;
	recovery->ops->lost(recovery->user, sent);
}

static uint64_t loss_wait(const struct recovery *recovery)
{
	uint64_t wait = rtt_or_default(&recovery->rtt) * recovery->patience / 8;

	return wait > WAIT_LEAST ? wait : WAIT_LEAST;
}

/*
 * Move `oldest` up to the first packet that is under way and not given up. Without `by_time`
 * only numbers count, and time has to go on for a moment first: this side has been away, and what
 * is missing may be among what waits for it.
 */
static void find_losses(struct recovery *recovery, uint64_t now, bool by_time,
			struct congestion_sample *sample)
{
	uint64_t wait = loss_wait(recovery);

	recovery->loss_at = 0;
	for (; recovery->oldest < recovery->next; recovery->oldest++) {
		struct sent *sent = entry(recovery, recovery->oldest);

		if (sent->state != SENT_UNDER_WAY)
			continue;
		if (sent->number > recovery->largest)
			return;
		if (sent->number + recovery->reordering > recovery->largest &&
		    (!by_time || sent->at + wait > now)) {
			recovery->loss_at = sent->at + wait;
			if (!by_time && recovery->loss_at < now + WAIT_LEAST)
				recovery->loss_at = now + WAIT_LEAST;
			return;
		}
		lose(recovery, sent, sample);
	}
}

void recovery_lose_all(struct recovery *recovery)
{
	struct congestion_sample sample = {0};

	for (; recovery->oldest < recovery->next; recovery->oldest++) {
		struct sent *sent = entry(recovery, recovery->oldest);

		if (sent->state == SENT_UNDER_WAY)
			lose(recovery, sent, &sample);
	}
	recovery->loss_at = 0;
	recovery->timeouts = 0;
}

/* ---- Acknowledgements -------------------------------------------------- */

/* What the packets of one acknowledgement have in common. */
struct arrival {
	struct recovery *recovery;
	struct congestion_sample *sample;
	const struct sent *newest; /* newly acknowledged; NULL: none was */
	uint64_t largest;          /* that had arrived before */
	bool heard;
};

static bool is_sound(const struct recovery *recovery, const struct packet_ack *ack)
{
	uint64_t below = recovery->next;

	if (ack->count > PACKET_RANGES_MAX)
		return false;
	for (uint32_t i = 0; i < ack->count; i++) {
		const struct packet_range *range = &ack->ranges[i];

		if (range->first < 1 || range->first > range->last || range->last >= below)
			return false;
		below = range->first;
	}
	return true;
}

/* `sent` was given up and did arrive: wait longer from now on. */
static void learn(struct arrival *arrival, const struct sent *sent)
{
	struct recovery *recovery = arrival->recovery;
	uint64_t now = arrival->sample->now;
	uint64_t overtaken = arrival->largest - sent->number + 1;
	uint64_t patience;

	recovery->calm_at = now;
	if (sent->number < arrival->largest && overtaken > recovery->reordering)
		recovery->reordering = overtaken < REORDERING_MOST ? overtaken : REORDERING_MOST;
	if (!arrival->heard || sent->at + loss_wait(recovery) > now)
		return;
	patience = (now - sent->at) * 8 / rtt_or_default(&recovery->rtt) + 1;
	if (patience > recovery->patience)
		recovery->patience = patience < PATIENCE_MOST ? patience : PATIENCE_MOST;
}

static void forget(struct recovery *recovery, uint64_t now)
{
	if (now - recovery->calm_at < CALM)
		return;
	recovery->calm_at = now;
	/* Rounded up, so that it gets there. */
	recovery->reordering -= (recovery->reordering - REORDERING_LEAST + 3) / 4;
	recovery->patience -= (recovery->patience - PATIENCE_LEAST + 3) / 4;
}

static void arrive(struct arrival *arrival, struct sent *sent)
{
	struct recovery *recovery = arrival->recovery;
	bool late = sent->state == SENT_LOST;

	sent->state = SENT_ARRIVED;
	arrival->sample->acked += sent->size;
	arrival->newest = sent;
	if (late) {
		arrival->sample->late += sent->size;
		recovery->packets_late++;
		learn(arrival, sent);
		recovery->ops->late(recovery->user, sent);
		return;
	}
	recovery->in_flight -= sent->size;
	recovery->packets--;
	recovery->ops->arrived(recovery->user, sent);
}

static void arrive_range(struct arrival *arrival, uint64_t first, uint64_t last)
{
	struct recovery *recovery = arrival->recovery;

	while (first <= last) {
		uint64_t end = bits_end(first, last);
		uint64_t *word = bits_word(recovery->open, recovery->room, first);
		uint64_t fresh = *word & bits_mask(first, end);

		*word &= ~fresh;
		for (; fresh; fresh &= fresh - 1)
			arrive(arrival,
			       entry(recovery, (first & ~UINT64_C(63)) + __builtin_ctzll(fresh)));
		first = end + 1;
	}
}

static void arrive_all(struct arrival *arrival, const struct packet_ack *ack)
{
	uint64_t lowest = bottom(arrival->recovery);

	for (uint32_t i = ack->count; i--;) {
		const struct packet_range *range = &ack->ranges[i];

		if (range->last >= lowest)
			arrive_range(arrival, range->first > lowest ? range->first : lowest,
				     range->last);
	}
}

/*
 * Only the largest number tells a time, and only when it is new: the peer's delay is about that
 * one. The controller gets the time without all of this delay, for a host that is slow to answer is
 * no queue, and so does the least. The timers get no more taken off than the peer said that it
 * needs (RFC 9002, section 5.3): if its host is slow they have to wait for it.
 */
static void add_rtt(struct arrival *arrival, const struct packet_ack *ack)
{
	struct recovery *recovery = arrival->recovery;
	struct congestion_sample *sample = arrival->sample;
	const struct sent *newest = arrival->newest;
	uint64_t whole, delay = ack->delay_ns;

	if (!arrival->heard || newest->number != ack->ranges[0].last || newest->at > sample->now)
		return;
	whole = sample->now - newest->at;
	if (delay >= whole)
		return; /* a clock that runs wrong, or a lie */
	sample->rtt = whole - delay;
	if (delay > recovery->ack_delay)
		delay = recovery->ack_delay;
	rtt_add(&recovery->rtt, whole - delay, sample->rtt, sample->now);
	sample->rtt_least = recovery->rtt.least;
	sample->rtt_smooth = recovery->rtt.smooth;
}

static void count_marks(struct arrival *arrival, const struct packet_ack *ack)
{
	uint32_t marks = ack->marks - arrival->recovery->marks;

	/* One that was overtaken knows of fewer. */
	if (marks > INT32_MAX)
		return;
	arrival->recovery->marks = ack->marks;
	arrival->sample->marks = marks;
}

int recovery_on_ack(struct recovery *recovery, const struct packet_ack *ack, uint64_t now,
		    bool heard, struct congestion_sample *sample)
{
	struct arrival arrival = {
		.recovery = recovery,
		.sample = sample,
		.largest = recovery->largest,
		.heard = heard,
	};

	*sample = sample_begin(recovery, now);
	if (!is_sound(recovery, ack))
		return -EPROTO;
	if (recovery->room)
		arrive_all(&arrival, ack);
	count_marks(&arrival, ack);
	if (!arrival.newest)
		return 0;
	if (arrival.newest->number > recovery->largest) {
		recovery->largest = arrival.newest->number;
		recovery->clock = sample->clock = ack->clock;
	}
	if (arrival.newest->number >= recovery->round_end) {
		recovery->round_end = recovery->next;
		sample->round = true;
	}
	sample->limited = arrival.newest->limited;
	recovery->timeouts = 0;
	if (!heard)
		recovery->probed_at = now; /* others' answers may lie there, too */
	add_rtt(&arrival, ack);
	forget(recovery, now);
	find_losses(recovery, now, heard, sample);
	return 0;
}

/* ---- Time -------------------------------------------------------------- */

static uint64_t later(uint64_t one, uint64_t other)
{
	return one > other ? one : other;
}

static uint64_t rest_at(const struct recovery *recovery)
{
	if (!recovery->room)
		return UINT64_MAX;
	return REST + (recovery->room > ROOM_LEAST ? recovery->busy_at : recovery->last_sent);
}

uint64_t recovery_deadline(const struct recovery *recovery)
{
	if (recovery->loss_at)
		return recovery->loss_at;
	if (!recovery->packets)
		return rest_at(recovery);
	return later(recovery->last_sent, recovery->probed_at) +
	       rtt_probe(&recovery->rtt, recovery->ack_delay, recovery->timeouts);
}

/* Nothing is under way, and has hardly been for long. */
static void rest(struct recovery *recovery, uint64_t now)
{
	if (now - recovery->last_sent >= REST)
		give_back(recovery);
	else if (!resize(recovery, ROOM_LEAST))
		recovery->busy_at = now; /* try again later */
}

/* All numbers are in use, and nothing is heard: then probes take the place of the oldest. */
static void make_room(struct recovery *recovery, struct congestion_sample *sample)
{
	for (unsigned i = 0; i < PROBES && recovery->packets; recovery->oldest++) {
		struct sent *sent = entry(recovery, recovery->oldest);

		if (sent->state != SENT_UNDER_WAY)
			continue;
		lose(recovery, sent, sample);
		i++;
	}
}

enum recovery_timer recovery_on_timer(struct recovery *recovery, uint64_t now,
				      struct congestion_sample *sample)
{
	*sample = sample_begin(recovery, now);
	if (now < recovery_deadline(recovery))
		return RECOVERY_NOTHING;
	if (recovery->loss_at) {
		find_losses(recovery, now, true, sample);
		return sample->lost ? RECOVERY_LOSS : RECOVERY_NOTHING;
	}
	if (!recovery->packets) {
		rest(recovery, now);
		return RECOVERY_NOTHING;
	}
	recovery->timeouts++;
	recovery->probed_at = now;
	if (!recovery_room(recovery))
		make_room(recovery, sample);
	return RECOVERY_PROBE;
}
