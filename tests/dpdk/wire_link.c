/* SPDX-License-Identifier: Apache-2.0 */
#include "wire_link.h"

#include <stdlib.h>
#include <string.h>

#define ETHERNET 14
#define TAG 4
#define IPV4 20
/* Preamble, check sequence and gap: what a frame takes beside its bytes. */
#define ETHERNET_AROUND 24
/* A frame that was overtaken waits no longer than this for others to pass. */
#define OVERTAKEN_NS 5000000
#define HELD_MOST ((uint64_t)256 << 20)

struct held {
	struct held *next;
	uint64_t due;
	uint32_t hash;
	unsigned passing; /* frames that still have to pass it */
	size_t length;
	uint8_t bytes[];
};

/* ---- Chance ------------------------------------------------------------ */

/* xorshift64* (Vigna): the same frames and the same seed give the same faults. */
static uint64_t chance_next(struct wire *wire)
{
	wire->random ^= wire->random >> 12;
	wire->random ^= wire->random << 25;
	wire->random ^= wire->random >> 27;
	return wire->random * UINT64_C(2685821657736338717);
}

static uint64_t chance_below(struct wire *wire, uint64_t limit)
{
	return (chance_next(wire) >> 16) % limit;
}

static bool chance(struct wire *wire, double percent)
{
	return percent > 0 && (double)(chance_next(wire) >> 11) * 0x1p-53 * 100 < percent;
}

/* ---- Frames ------------------------------------------------------------ */

size_t view_copy(const struct view *view, uint8_t *to, size_t room)
{
	size_t copied = 0;

	for (unsigned i = 0; i < view->count && copied < room; i++) {
		size_t now = view->pieces[i].length;

		if (now > room - copied)
			now = room - copied;
		memcpy(to + copied, view->pieces[i].bytes, now);
		copied += now;
	}
	return copied;
}

static struct held *held_new(struct wire *wire, const struct view *frame, uint32_t hash)
{
	struct held *held = NULL;

	if (wire->held_bytes + frame->length <= HELD_MOST)
		held = malloc(sizeof(*held) + frame->length);
	if (!held)
		return NULL;
	held->next = NULL;
	held->hash = hash;
	held->length = view_copy(frame, held->bytes, frame->length);
	wire->held_bytes += held->length;
	return held;
}

static void held_free(struct wire *wire, struct held *held)
{
	wire->held_bytes -= held->length;
	free(held);
}

static struct view held_view(const struct held *held)
{
	struct view view = {.count = 1, .length = held->length};

	view.pieces[0].bytes = held->bytes;
	view.pieces[0].length = held->length;
	return view;
}

/* "Congestion experienced" (RFC 3168), when the sender of an IPv4 packet can hear it. */
static bool mark(uint8_t *frame, size_t length)
{
	size_t ip = ETHERNET;
	uint32_t sum = 0;

	if (length >= ETHERNET + TAG && frame[12] == 0x81 && frame[13] == 0)
		ip += TAG;
	if (length < ip + IPV4 || frame[ip - 2] != 8 || frame[ip - 1] != 0 || frame[ip] != 0x45 ||
	    !(frame[ip + 1] & 3))
		return false;
	frame[ip + 1] |= 3;
	frame[ip + 10] = frame[ip + 11] = 0;
	for (unsigned i = 0; i < IPV4; i += 2)
		sum += (uint32_t)frame[ip + i] << 8 | frame[ip + i + 1];
	sum = (sum & 0xffff) + (sum >> 16);
	sum = ~((sum & 0xffff) + (sum >> 16));
	frame[ip + 10] = (uint8_t)(sum >> 8);
	frame[ip + 11] = (uint8_t)sum;
	return true;
}

static void corrupt(struct wire *wire, struct held *held)
{
	uint64_t from = wire->faults.corrupt_from;
	uint64_t times, start, bits;

	if (from + 2 > held->length)
		return;
	bits = (held->length - from) * 8;
	if (wire->faults.corrupt_kind == CORRUPT_BYTES) {
		times = 1 + chance_below(wire, 8);
		while (times--)
			held->bytes[from + chance_below(wire, bits / 8)] =
				(uint8_t)chance_next(wire);
	} else {
		times = 1 + chance_below(wire, 3);
		start = chance_below(wire, bits - 15);
		/* Each within five bits of its own: none undoes another. */
		while (times--) {
			uint64_t bit = from * 8 + start + 5 * times + chance_below(wire, 5);

			held->bytes[bit / 8] ^= (uint8_t)(1u << bit % 8);
		}
	}
	wire->counts.corrupted++;
}

/* ---- The link ---------------------------------------------------------- */

void link_start(struct link *link, struct memif_port *port)
{
	memset(link, 0, sizeof(*link));
	link->port = port;
	link->last = &link->first;
}

void link_clear(struct wire *wire, struct link *link)
{
	struct held *held;

	while ((held = link->first) || (held = link->overtaken)) {
		if (held == link->first)
			link->first = held->next;
		else
			link->overtaken = held->next;
		held_free(wire, held);
	}
	link_start(link, link->port);
}

static void deliver(struct wire *wire, struct link *link, const struct view *frame, uint32_t hash)
{
	enum memif_result result = memif_send(link->port, frame, hash);

	wire->counts.sent += result == MEMIF_SENT;
	wire->counts.client_full += result == MEMIF_FULL;
}

/* How many bytes wait for a link with a rate, and with the frame that enters now: when it will
 * have left. */
static uint64_t queue_up(struct wire *wire, struct link *link, size_t length, uint64_t now,
			 uint64_t *leaves)
{
	uint64_t rate = wire->faults.rate;
	uint64_t begins = link->free_at > now ? link->free_at : now;

	*leaves = begins + (length + ETHERNET_AROUND) * 8000 / rate;
	return (begins - now) * rate / 8000;
}

/* The frame has survived. */
static void pass(struct wire *wire, struct link *link, const struct view *frame, uint32_t hash,
		 uint64_t now)
{
	uint64_t due = now, waiting = 0;
	struct held *held;

	if (wire->faults.rate) {
		waiting = queue_up(wire, link, frame->length, now, &due);
		if (waiting + frame->length > wire->faults.queue) {
			wire->counts.queue_full++;
			return;
		}
		link->free_at = due;
	}
	due += wire->faults.delay_us * 1000;
	if (due <= now && !link->first) {
		deliver(wire, link, frame, hash);
		return;
	}
	held = held_new(wire, frame, hash);
	if (!held) {
		wire->counts.queue_full++;
		return;
	}
	if (wire->faults.ecn && waiting >= wire->faults.ecn)
		wire->counts.marked += mark(held->bytes, held->length);
	held->due = due;
	*link->last = held;
	link->last = &held->next;
}

/* The frame waits until some others have passed it. */
static void hold_back(struct wire *wire, struct link *link, const struct view *frame, uint32_t hash,
		      uint64_t now)
{
	struct held *held = held_new(wire, frame, hash);

	if (!held)
		return;
	held->passing = (unsigned)(1 + chance_below(wire, wire->faults.reorder_by));
	held->due = now + OVERTAKEN_NS;
	held->next = link->overtaken;
	link->overtaken = held;
}

/* Those that have waited enough go on. */
static void release(struct wire *wire, struct link *link, uint64_t now, unsigned passed)
{
	struct held **place = &link->overtaken, *held;

	while ((held = *place)) {
		struct view view;

		held->passing -= held->passing < passed ? held->passing : passed;
		if (held->passing && held->due > now) {
			place = &held->next;
			continue;
		}
		*place = held->next;
		view = held_view(held);
		pass(wire, link, &view, held->hash, now);
		held_free(wire, held);
	}
}

static void go_on(struct wire *wire, struct link *link, const struct view *frame, uint32_t hash,
		  uint64_t now)
{
	if (chance(wire, wire->faults.reorder)) {
		hold_back(wire, link, frame, hash, now);
		wire->counts.reordered++;
		return;
	}
	pass(wire, link, frame, hash, now);
	if (link->overtaken)
		release(wire, link, now, 1);
}

/* Damage a copy of the frame. NULL: there is no memory for it. */
static struct held *damage(struct wire *wire, const struct view *frame, bool shorter,
			   bool corrupted)
{
	struct held *held = held_new(wire, frame, 0);

	if (!held)
		return NULL;
	if (shorter && held->length > ETHERNET) {
		size_t length = ETHERNET + chance_below(wire, held->length - ETHERNET);

		wire->held_bytes -= held->length - length;
		held->length = length;
		wire->counts.truncated++;
	}
	if (corrupted)
		corrupt(wire, held);
	return held;
}

void link_enter(struct wire *wire, struct link *link, const struct view *frame, uint32_t hash,
		uint64_t now)
{
	bool lost = chance(wire, wire->faults.loss);
	bool twice = chance(wire, wire->faults.duplicate);
	bool shorter = chance(wire, wire->faults.truncate);
	bool corrupted = chance(wire, wire->faults.corrupt);
	struct held *damaged = NULL;
	struct view view = *frame;

	if (wire->faults.cut) {
		wire->counts.cut_off++;
		return;
	}
	if (lost) {
		wire->counts.lost++;
		return;
	}
	if (shorter || corrupted) {
		damaged = damage(wire, frame, shorter, corrupted);
		if (!damaged)
			return;
		view = held_view(damaged);
	}
	go_on(wire, link, &view, hash, now);
	if (twice) {
		wire->counts.duplicated++;
		go_on(wire, link, &view, hash, now);
	}
	if (damaged)
		held_free(wire, damaged);
}

uint64_t link_run(struct wire *wire, struct link *link, uint64_t now)
{
	uint64_t next = UINT64_MAX;
	struct held *held;

	if (link->overtaken)
		release(wire, link, now, 0);
	while ((held = link->first) && held->due <= now) {
		struct view view = held_view(held);

		link->first = held->next;
		if (!link->first)
			link->last = &link->first;
		deliver(wire, link, &view, held->hash);
		held_free(wire, held);
	}
	if (link->first)
		next = link->first->due;
	for (held = link->overtaken; held; held = held->next)
		next = held->due < next ? held->due : next;
	return next;
}
