/* SPDX-License-Identifier: Apache-2.0 */
/*
 * CLOCK: a side that traces asks what the peer's clock says, so that two traces can be laid over
 * each other. A row of questions follows the handshake, and another one each second while tensors
 * move.
 */
#include <errno.h>

#include "engine.h"

/* Clocks of hosts drift by some 10 us in a second. */
#define REFRESH_NS UINT64_C(1000000000)

/* Leaves at once: what waits for the next poll would make the round trip long. */
static void say(haul_endpoint *endpoint, const struct wire_clock *clock)
{
	uint8_t message[HAUL_CONTROL_MAX];

	endpoint_control(endpoint, message, wire_encode_clock(message, clock));
	endpoint->context->backend->link->flush(endpoint->link);
}

static void ask(haul_endpoint *endpoint)
{
	struct wire_clock question = {.asked = haul_clock()};

	clock_offset_ask(&endpoint->clock, question.asked);
	say(endpoint, &question);
}

void clock_open(haul_endpoint *endpoint, uint64_t features)
{
	if (!endpoint->context->trace || !(features & WIRE_FEATURE_CLOCK))
		return;
	endpoint->clock.wanted = true;
	clock_offset_begin(&endpoint->clock);
	ask(endpoint);
}

void clock_refresh(haul_endpoint *endpoint)
{
	struct clock_offset *clock = &endpoint->clock;

	if (!clock->wanted || clock->left || endpoint->state != ENDPOINT_OPEN || endpoint->doomed ||
	    haul_clock() - clock->asked < REFRESH_NS)
		return;
	clock_offset_begin(clock);
	ask(endpoint);
}

void clock_message(haul_endpoint *endpoint, const struct wire_clock *message)
{
	struct clock_offset *clock = &endpoint->clock;
	uint64_t now = haul_clock();
	struct wire_clock answer = {.answer = true, .asked = message->asked, .answered = now};

	if (!message->answer) {
		say(endpoint, &answer);
		return;
	}
	if (!clock_offset_answer(clock, message->asked, message->answered, now)) {
		endpoint_doom(endpoint, -EPROTO, "the peer told its clock without being asked");
		return;
	}
	if (clock->left)
		ask(endpoint);
	else
		trace_offset(endpoint, &clock->best);
}
