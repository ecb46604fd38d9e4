/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Any frame is left alone, or everything that is said of it lies within it. Right sums are hard to
 * guess: the first byte says whether they count as checked, so that what is behind them is reached,
 * too.
 */
#include <stdlib.h>
#include <string.h>

#include "frame.h"

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t length);

static void check_within(const uint8_t *bytes, size_t length, const uint8_t *part, size_t size)
{
	if (part < bytes || size > length || (size_t)(part - bytes) > length - size)
		abort();
}

/* An answer is no question, its sums are right, and it goes back. */
static void check_echo(const struct frame *frame)
{
	static const uint8_t own[FRAME_MAC] = {2, 0, 0, 0, 0, 1};
	static uint8_t answer[FRAME_HEADERS + 65536];
	size_t length = frame_write_echo(answer, sizeof(answer), own, frame);
	struct frame back;
	bool bad = true;

	if (length < FRAME_LEAST || frame_write_echo(answer, length - 1, own, frame))
		abort();
	frame_read(answer, length, (struct frame_checked){0}, &back, &bad);
	if (back.kind != FRAME_OTHER || bad || memcmp(answer, frame->source_mac, FRAME_MAC))
		abort();
}

/* The same packet, written here, reads the same. */
static void check_udp(const struct frame *frame)
{
	static uint8_t copy[FRAME_HEADERS + 65536];
	struct frame_template template;
	struct frame_ends ends = {
		.source = frame->source,
		.target = frame->target,
		.source_port = frame->source_port,
		.target_port = frame->target_port,
		.tag = frame->tag,
		.ecn = frame->ecn,
	};
	uint64_t sum = frame_sum(frame->payload, frame->length, 0);
	struct frame back;
	bool bad = true;
	size_t headers;

	frame_template_make(&template, &ends);
	headers = frame_write(&template, copy, frame->length, frame->unchecked ? NULL : &sum);
	if (frame_fold(frame_sum_copy(copy + headers, frame->payload, frame->length, 0)) !=
	    frame_fold(sum))
		abort();
	frame_read(copy, headers + frame->length, (struct frame_checked){0}, &back, &bad);
	if (back.kind != FRAME_IS_UDP || bad || back.length != frame->length ||
	    back.source != frame->source || back.target != frame->target ||
	    back.source_port != frame->source_port || back.target_port != frame->target_port ||
	    back.tag != frame->tag || back.ecn != frame->ecn ||
	    back.unchecked != frame->unchecked ||
	    memcmp(back.payload, frame->payload, frame->length))
		abort();
}

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t length)
{
	struct frame_checked checked;
	struct frame frame;
	bool bad = false;

	if (!length)
		return 0;
	checked = (struct frame_checked){.ip = bytes[0] & 1, .udp = bytes[0] & 2};
	bytes++;
	length--;
	frame_read(bytes, length, checked, &frame, &bad);
	if (frame.kind == FRAME_OTHER)
		return 0;
	if (bad)
		abort();
	check_within(bytes, length, frame.source_mac, FRAME_MAC);
	if (frame.kind == FRAME_IS_ARP)
		check_within(bytes, length, frame.arp_mac, FRAME_MAC);
	else
		check_within(bytes, length, frame.payload, frame.length);
	if (frame.kind == FRAME_IS_UDP)
		check_udp(&frame);
	if (frame.kind == FRAME_IS_ECHO)
		check_echo(&frame);
	return 0;
}
