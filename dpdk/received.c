/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What a receiver remembers: a bit for each of the last `room` numbers. Numbers below those count
 * as arrived. So the bitmap can only stay short while nothing is missing below it; when a number
 * that did not arrive would leave it, it grows, up to RECEIVED_SPAN. Then the sender has long given
 * that number up.
 *
 * The bits of numbers that never existed (0 and below) are set, as if they had arrived.
 */
#include "recovery.h"

#include <stdlib.h>
#include <string.h>

#include "bits.h"

#define ROOM_LEAST 256
/* Ranges of packets that were told often enough. Few: what was lost leaves a hole for ever, and
 * acknowledgements would only consist of old ones. */
#define RANGES_AGAIN 8

void received_start(struct received *received)
{
	*received = (struct received){.lowest = UINT64_MAX};
	for (unsigned i = 0; i < RECEIVED_TELL; i++)
		received->told[i] = UINT64_MAX;
}

void received_stop(struct received *received)
{
	free(received->bits);
	received_start(received);
}

static bool has(const struct received *received, uint64_t number)
{
	return *bits_word(received->bits, received->room, number) & bits_mask(number, number);
}

/* Whether all of first..last arrived; no more numbers than there are bits. */
static bool has_all(const struct received *received, uint64_t first, uint64_t last)
{
	while (first <= last) {
		uint64_t end = bits_end(first, last);

		if (~*bits_word(received->bits, received->room, first) & bits_mask(first, end))
			return false;
		first = end + 1;
	}
	return true;
}

static void clear_all(struct received *received, uint64_t first, uint64_t last)
{
	if (last - first >= received->room)
		first = last - received->room + 1;
	while (first <= last) {
		uint64_t end = bits_end(first, last);

		*bits_word(received->bits, received->room, first) &= ~bits_mask(first, end);
		first = end + 1;
	}
}

static bool grow(struct received *received)
{
	uint32_t room = received->room ? 2 * received->room : ROOM_LEAST;
	uint64_t *bits = malloc(room / 8);
	uint64_t number = received->largest;

	if (!bits)
		return false;
	memset(bits, 0xff, room / 8);
	for (uint32_t i = 0; i < received->room; i++, number--)
		if (!has(received, number))
			*bits_word(bits, room, number) &= ~bits_mask(number, number);
	free(received->bits);
	received->bits = bits;
	received->room = room;
	return true;
}

/* Make `number` the largest, with all that is between missing. */
static bool advance(struct received *received, uint64_t number)
{
	uint64_t gap = number - received->largest;

	/* The bits of the numbers that come are those of the ones that go. */
	while (received->room < RECEIVED_SPAN &&
	       (gap > received->room || !has_all(received, received->largest + 1, number)))
		if (!grow(received))
			return false;
	if (gap > 1) {
		clear_all(received, received->largest + 1, number - 1);
		received->gap = true;
	}
	return true;
}

enum received_packet received_add(struct received *received, uint64_t number, uint64_t now)
{
	if (number > received->largest) {
		if (!advance(received, number))
			return RECEIVED_NO_MEMORY;
		received->largest = number;
		received->largest_at = now;
	} else if (received_has(received, number)) {
		return RECEIVED_AGAIN;
	}
	*bits_word(received->bits, received->room, number) |= bits_mask(number, number);
	received->pending++;
	if (number < received->lowest)
		received->lowest = number;
	return RECEIVED_NEW;
}

bool received_has(const struct received *received, uint64_t number)
{
	if (number > received->largest)
		return false;
	return number + received->room <= received->largest || has(received, number);
}

/* Down from `number`: the first one that did arrive (or did not); below `lowest`: there is none. */
static uint64_t find_down(const struct received *received, uint64_t number, uint64_t lowest,
			  bool arrived)
{
	uint64_t flip = arrived ? 0 : ~UINT64_C(0);

	while (number >= lowest) {
		uint64_t start = number & ~UINT64_C(63);
		uint64_t word = *bits_word(received->bits, received->room, number) ^ flip;

		word &= bits_mask(start, number);
		if (word) /* in the lowest word it may be the bit of one of the newest */
			return start + 63 - __builtin_clzll(word);
		if (start <= lowest)
			break;
		number = start - 1;
	}
	return lowest - 1;
}

/* The lowest of the last `room` numbers. */
static uint64_t lowest_of(const struct received *received, uint32_t room)
{
	return received->largest > room ? received->largest - room + 1 : 1;
}

/* The lowest number that has to be told once more. */
static uint64_t lowest_news(struct received *received)
{
	uint64_t lowest = UINT64_MAX;

	received->told[received->acks++ % RECEIVED_TELL] = received->lowest;
	received->lowest = UINT64_MAX;
	for (unsigned i = 0; i < RECEIVED_TELL; i++)
		if (received->told[i] < lowest)
			lowest = received->told[i];
	return lowest;
}

bool received_ack(struct received *received, uint64_t now, struct packet_ack *ack)
{
	uint64_t number = received->largest;
	uint64_t lowest = lowest_of(received, received->room);
	uint64_t delay = now - received->largest_at;
	uint64_t news = lowest_news(received);
	uint32_t again = 0;

	if (!number)
		return false;
	ack->delay_ns = delay < UINT32_MAX ? delay : UINT32_MAX;
	ack->marks = received->marks;
	ack->count = 0;
	while (number >= lowest && ack->count < PACKET_RANGES_MAX) {
		struct packet_range *range = &ack->ranges[ack->count];
		uint64_t hole;

		if (number < news && ack->count && again++ == RANGES_AGAIN)
			break;
		hole = find_down(received, number, lowest, false);
		range->first = hole + 1;
		/* Nothing was missing when a short bitmap left it behind. */
		if (hole < lowest)
			range->first = lowest_of(received, RECEIVED_SPAN);
		range->last = number;
		ack->count++;
		number = find_down(received, hole, lowest, true);
	}
	received->pending = 0;
	received->gap = false;
	return true;
}
