/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Each flow has two first-in-first-out ways, for packets and for acknowledgements, and both ends
 * ask for being called at a time. The next event is the earliest of those; flows are few.
 */
#include "simulator.h"

#include <assert.h>
#include <stdlib.h>
#include <string.h>

#define NEVER UINT64_MAX

/* How the receiver acknowledges: after so many packets, at once when one is missing, or so late. */
#define ACK_PACKETS 16
#define ACK_DELAY (25 * SIMULATED_US)
/* Away for longer than this, a host knows that its times are worthless. */
#define AWAY_KNOWN (1 * SIMULATED_MS)
#define PING_SIZE 64
/* The time that one round of polling takes. */
#define LOOK_EACH (2 * SIMULATED_US)

struct packet {
	uint64_t at, number;
	bool marked;
};

struct answer {
	uint64_t at;
	struct packet_ack ack;
};

/* A first-in-first-out way; grows. `room` is a power of two. */
struct way {
	void *items;
	size_t size;
	uint32_t room, head, count;
};

struct flow {
	struct simulator *simulator;
	struct simulated_flow config;
	struct recovery recovery;
	struct received received;
	struct pacer pacer;
	_Alignas(16) uint8_t state[CONGESTION_STATE];
	struct way packets, answers;
	uint64_t send_at;  /* when the sender wants to go on */
	uint64_t ack_at;   /* when the receiver has to answer */
	uint64_t burst_at; /* when the next burst comes */
	uint64_t burst_began;
	uint64_t backlog; /* bytes to send */
	uint64_t next;    /* the earliest event */
	uint64_t seed;    /* of its absences */
	unsigned probes;
	struct simulated_counts counts;
};

struct simulator {
	struct simulated_link link;
	double bytes_per_ns;
	double busy_until;
	double queue_sum, queue_count;
	uint64_t now, random;
	unsigned count;
	struct flow flows[];
};

/* ---- Small things ------------------------------------------------------ */

static uint64_t mix(uint64_t value)
{
	value = (value ^ (value >> 30)) * UINT64_C(0xbf58476d1ce4e5b9);
	value = (value ^ (value >> 27)) * UINT64_C(0x94d049bb133111eb);
	return value ^ (value >> 31);
}

static double chance(struct simulator *simulator)
{
	simulator->random += UINT64_C(0x9e3779b97f4a7c15);
	return (double)(mix(simulator->random) >> 11) / (double)(UINT64_C(1) << 53);
}

static void *way_item(const struct way *way, uint32_t index)
{
	return (char *)way->items + ((way->head + index) & (way->room - 1)) * way->size;
}

static void *way_first(const struct way *way)
{
	return way->count ? way_item(way, 0) : NULL;
}

static void *way_add(struct way *way)
{
	if (way->count == way->room) {
		uint32_t room = way->room ? 2 * way->room : 64;
		char *items = malloc(room * way->size);

		assert(items);
		for (uint32_t i = 0; i < way->count; i++)
			memcpy(items + i * way->size, way_item(way, i), way->size);
		free(way->items);
		way->items = items;
		way->room = room;
		way->head = 0;
	}
	return way_item(way, way->count++);
}

static void way_drop(struct way *way)
{
	way->head++;
	way->count--;
}

/* ---- Hosts that are away now and then ---------------------------------- */

/* When a host comes to what is due at `at`. `which` tells sender and receiver apart. */
static uint64_t awake(const struct flow *flow, uint64_t at, unsigned which)
{
	uint64_t slot, from, length;

	if (!flow->config.away_each || at == NEVER)
		return at;
	slot = at / flow->config.away_each;
	length = mix(flow->seed + 2 * slot + which) % (flow->config.away_most + 1);
	from = slot * flow->config.away_each;
	from += mix(flow->seed ^ (2 * slot + which)) % (flow->config.away_each - length);
	return at >= from && at < from + length ? from + length : at;
}

enum { SENDER, RECEIVER };

static void plan(struct flow *flow)
{
	const struct packet *packet = way_first(&flow->packets);
	const struct answer *answer = way_first(&flow->answers);
	uint64_t sender = recovery_deadline(&flow->recovery);
	uint64_t receiver = flow->ack_at;

	if (packet && packet->at < receiver)
		receiver = packet->at;
	if (answer && answer->at < sender)
		sender = answer->at;
	if (flow->send_at < sender)
		sender = flow->send_at;
	if (flow->burst_at < sender)
		sender = flow->burst_at;
	sender = awake(flow, sender, SENDER);
	receiver = awake(flow, receiver, RECEIVER);
	flow->next = sender < receiver ? sender : receiver;
}

/* ---- The link ---------------------------------------------------------- */

static bool passes(struct simulator *simulator)
{
	const struct simulated_link *link = &simulator->link;

	if (simulator->now >= link->cut_from && simulator->now < link->cut_until)
		return false;
	return !(link->loss > 0) || chance(simulator) >= link->loss;
}

static void enter_link(struct flow *flow, uint64_t number, uint32_t size)
{
	struct simulator *simulator = flow->simulator;
	double now = (double)simulator->now;
	double begin = simulator->busy_until > now ? simulator->busy_until : now;
	double waiting = (begin - now) * simulator->bytes_per_ns;
	struct packet *packet;

	simulator->queue_sum += waiting;
	simulator->queue_count++;
	if (waiting + size > (double)simulator->link.buffer)
		return;
	simulator->busy_until = begin + size / simulator->bytes_per_ns;
	if (!passes(simulator))
		return;
	packet = way_add(&flow->packets);
	packet->at = (uint64_t)simulator->busy_until + simulator->link.rtt / 2;
	packet->number = number;
	packet->marked = simulator->link.mark_above && waiting > (double)simulator->link.mark_above;
}

/* ---- The receiver ------------------------------------------------------ */

static void answer(struct flow *flow)
{
	struct simulator *simulator = flow->simulator;
	struct answer *answer = way_add(&flow->answers);

	flow->ack_at = NEVER;
	received_ack(&flow->received, simulator->now, &answer->ack);
	answer->ack.clock =
		(uint16_t)((simulator->now + flow->config.far_clock) >> PACKET_CLOCK_UNIT);
	answer->at = simulator->now + simulator->link.rtt / 2;
	if (!passes(simulator))
		flow->answers.count--;
}

static void receive(struct flow *flow)
{
	uint64_t now = flow->simulator->now;
	struct packet *packet;

	while ((packet = way_first(&flow->packets)) && packet->at <= now) {
		enum received_packet result = received_add(&flow->received, packet->number, now);

		assert(result != RECEIVED_NO_MEMORY);
		if (result == RECEIVED_AGAIN)
			flow->counts.again++;
		else if (packet->marked)
			flow->received.marks++;
		way_drop(&flow->packets);
		if (flow->ack_at == NEVER)
			flow->ack_at = now + ACK_DELAY;
		if (flow->received.pending >= ACK_PACKETS || flow->received.gap)
			answer(flow);
	}
	if (flow->ack_at <= now)
		answer(flow);
}

/* ---- The sender -------------------------------------------------------- */

static void on_arrived(void *user, const struct sent *sent)
{
	struct flow *flow = user;
	struct simulated_counts *counts = &flow->counts;

	counts->delivered += sent->length;
	if (!flow->config.burst || counts->delivered < (counts->bursts + 1) * flow->config.burst)
		return;
	counts->bursts++;
	if (flow->simulator->now - flow->burst_began > counts->burst_longest)
		counts->burst_longest = flow->simulator->now - flow->burst_began;
}

static void on_lost(void *user, const struct sent *sent)
{
	struct flow *flow = user;

	flow->backlog += sent->length;
}

static void on_late(void *user, const struct sent *sent)
{
}

static const struct recovery_ops flow_ops = {
	.arrived = on_arrived,
	.lost = on_lost,
	.late = on_late,
};

/* Opening the connection measures the way; the time that it takes is left out. */
static void shake_hands(struct flow *flow)
{
	struct simulator *simulator = flow->simulator;
	double waiting = simulator->busy_until - (double)simulator->now;
	const struct congestion_ops *ops = flow->config.ops;

	recovery_rtt(&flow->recovery, simulator->link.rtt + (uint64_t)(waiting > 0 ? waiting : 0),
		     simulator->now);
	pacer_set_rate(&flow->pacer, ops->rate(flow->state, flow->recovery.rtt.smooth),
		       simulator->now);
}

/* A burst, when its time has come; one after the other. */
static void add_burst(struct flow *flow)
{
	uint64_t now = flow->simulator->now;

	if (flow->burst_at > now)
		return;
	flow->burst_at = flow->config.burst ? flow->burst_at + flow->config.every : NEVER;
	if (flow->config.burst &&
	    flow->counts.bursts * flow->config.burst + flow->backlog + flow->recovery.in_flight >
		    flow->counts.delivered)
		return; /* the one before is not through */
	if (flow->recovery.last_sent && now > flow->recovery.last_sent)
		flow->config.ops->on_idle(flow->state, now - flow->recovery.last_sent);
	if (!flow->recovery.rtt.known)
		shake_hands(flow);
	flow->burst_began = now;
	flow->backlog += flow->config.burst ? flow->config.burst : UINT64_MAX / 2;
}

static void send_one(struct flow *flow, uint32_t length)
{
	struct sent sent = {
		.at = flow->simulator->now,
		.length = length,
		.size = length ? length : PING_SIZE,
		.limited = flow->backlog == 0,
	};

	enter_link(flow, flow->recovery.next, sent.size);
	recovery_sent(&flow->recovery, &sent);
	pacer_sent(&flow->pacer, sent.size);
	flow->counts.sent++;
}

/* Whether a packet may leave now; else `send_at` says when to look again. */
static bool may_send(struct flow *flow)
{
	uint64_t now = flow->simulator->now;
	uint64_t window = flow->config.ops->window(flow->state);

	flow->send_at = NEVER;
	/* It is polled all the time, unless it was away. */
	if (now > LOOK_EACH && awake(flow, now - LOOK_EACH, SENDER) < now)
		pacer_room(&flow->pacer, now - LOOK_EACH);
	if (flow->probes)
		return true;
	if (!flow->backlog || flow->recovery.in_flight + flow->config.packet > window)
		return false;
	if (pacer_room(&flow->pacer, now) > 0)
		return true;
	flow->send_at = pacer_next(&flow->pacer);
	return false;
}

static void send_all(struct flow *flow)
{
	if (flow->config.stop && flow->simulator->now >= flow->config.stop)
		flow->backlog = 0;
	while (may_send(flow) && recovery_room(&flow->recovery)) {
		uint32_t length = flow->backlog < flow->config.packet ? (uint32_t)flow->backlog
								      : flow->config.packet;

		flow->backlog -= length;
		if (flow->probes)
			flow->probes--;
		send_one(flow, length);
	}
}

static void control(struct flow *flow, struct congestion_sample *sample)
{
	const struct congestion_ops *ops = flow->config.ops;

	sample->now += flow->config.clock;
	ops->on_ack(flow->state, sample);
	pacer_set_rate(&flow->pacer, ops->rate(flow->state, flow->recovery.rtt.smooth),
		       flow->simulator->now);
}

static void take_answers(struct flow *flow)
{
	uint64_t now = flow->simulator->now;
	struct congestion_sample sample;
	struct answer *answer;

	while ((answer = way_first(&flow->answers)) && answer->at <= now) {
		bool heard = now - answer->at < AWAY_KNOWN;

		if (recovery_on_ack(&flow->recovery, &answer->ack, now, heard, &sample))
			abort();
		way_drop(&flow->answers);
		control(flow, &sample);
	}
}

static void watch_time(struct flow *flow)
{
	struct recovery *recovery = &flow->recovery;
	uint64_t now = flow->simulator->now;
	struct congestion_sample sample;

	switch (recovery_on_timer(recovery, now, &sample)) {
	case RECOVERY_NOTHING:
		return;
	case RECOVERY_LOSS:
		break;
	case RECOVERY_PROBE:
		flow->probes = 1;
		flow->config.ops->on_timeout(flow->state, recovery->timeouts,
					     now + flow->config.clock);
		break;
	}
	control(flow, &sample);
}

/* ---- Everything -------------------------------------------------------- */

static void flow_start(struct simulator *simulator, struct flow *flow,
		       const struct simulated_flow *config)
{
	struct congestion_config congestion;

	flow->config = *config;
	if (!flow->config.packet)
		flow->config.packet = 9000;
	congestion = (struct congestion_config){
		.packet = flow->config.packet,
		.most = (uint64_t)RECOVERY_SPAN * flow->config.packet,
		.rate = config->rate,
		.link_rate = (uint64_t)(simulator->bytes_per_ns * 1e9),
		.target = config->target,
	};
	flow->simulator = simulator;
	flow->packets.size = sizeof(struct packet);
	flow->answers.size = sizeof(struct answer);
	flow->send_at = flow->ack_at = NEVER;
	flow->burst_at = config->start;
	flow->seed = mix(simulator->random + (uint64_t)(flow - simulator->flows) + 1);
	recovery_start(&flow->recovery, &flow_ops, flow, ACK_DELAY);
	received_start(&flow->received);
	pacer_start(&flow->pacer, 4 * (uint64_t)flow->config.packet, 0);
	flow->config.ops->start(flow->state, &congestion, config->start + config->clock);
	plan(flow);
}

struct simulator *simulator_new(const struct simulated_link *link, unsigned flows,
				const struct simulated_flow *flow)
{
	struct simulator *simulator =
		calloc(1, sizeof(struct simulator) + flows * sizeof(struct flow));

	assert(simulator);
	simulator->link = *link;
	simulator->bytes_per_ns = link->gigabits / 8;
	simulator->random = mix(link->seed + 1);
	simulator->count = flows;
	for (unsigned i = 0; i < flows; i++)
		flow_start(simulator, &simulator->flows[i], &flow[i]);
	return simulator;
}

void simulator_free(struct simulator *simulator)
{
	for (unsigned i = 0; i < simulator->count; i++) {
		struct flow *flow = &simulator->flows[i];

		recovery_stop(&flow->recovery);
		received_stop(&flow->received);
		free(flow->packets.items);
		free(flow->answers.items);
	}
	free(simulator);
}

static struct flow *first_flow(struct simulator *simulator)
{
	struct flow *first = &simulator->flows[0];

	for (unsigned i = 1; i < simulator->count; i++)
		if (simulator->flows[i].next < first->next)
			first = &simulator->flows[i];
	return first;
}

void simulator_run(struct simulator *simulator, uint64_t until)
{
	for (;;) {
		struct flow *flow = first_flow(simulator);

		if (flow->next > until)
			break;
		simulator->now = flow->next;
		if (awake(flow, simulator->now, RECEIVER) == simulator->now)
			receive(flow);
		if (awake(flow, simulator->now, SENDER) == simulator->now) {
			take_answers(flow);
			watch_time(flow);
			add_burst(flow);
			send_all(flow);
		}
		plan(flow);
	}
	simulator->now = until;
}

struct simulated_counts simulator_counts(const struct simulator *simulator, unsigned index)
{
	const struct flow *flow = &simulator->flows[index];
	struct simulated_counts counts = flow->counts;

	counts.lost = flow->recovery.packets_lost;
	counts.late = flow->recovery.packets_late;
	counts.window = flow->config.ops->window(flow->state);
	counts.in_flight = flow->recovery.in_flight;
	counts.rtt_least = flow->recovery.rtt.least;
	counts.ring = flow->recovery.room;
	return counts;
}

double simulator_queue(struct simulator *simulator)
{
	double average =
		simulator->queue_count > 0 ? simulator->queue_sum / simulator->queue_count : 0;

	simulator->queue_sum = simulator->queue_count = 0;
	return average;
}

double simulator_fill(struct simulator *simulator, uint64_t from, uint64_t until, double *shares)
{
	double before[simulator->count], sum = 0;
	double most = simulator->bytes_per_ns * (double)(until - from);

	simulator_run(simulator, from);
	for (unsigned i = 0; i < simulator->count; i++)
		before[i] = (double)simulator->flows[i].counts.delivered;
	simulator_run(simulator, until);
	for (unsigned i = 0; i < simulator->count; i++) {
		double part = ((double)simulator->flows[i].counts.delivered - before[i]) / most;

		sum += part;
		if (shares)
			shares[i] = part;
	}
	return sum;
}

double simulator_fairness(const double *shares, unsigned count)
{
	double sum = 0, squares = 0;

	for (unsigned i = 0; i < count; i++) {
		sum += shares[i];
		squares += shares[i] * shares[i];
	}
	return squares > 0 ? sum * sum / (count * squares) : 0;
}
