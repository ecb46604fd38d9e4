/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What the trace gets: a share is a run of packets of one tensor. All of a port's packets take one
 * way, so that a link has one lane.
 */
#include "dpdk.h"

#define LANE 1

static void tell(struct backend_link *link, struct haul_share *share)
{
	if (share->bytes && link->endpoint)
		haul_trace_share(link->endpoint, share);
	share->bytes = 0;
}

/* These bytes were handled from `begin` until now; the share is told when the next one begins. */
static void add(struct backend_link *link, struct haul_share *share, enum haul_share_way way,
		uint64_t slot, uint64_t begin, uint32_t bytes, bool copied)
{
	uint64_t now = haul_clock();

	if (share->slot != slot)
		tell(link, share);
	if (!share->bytes)
		*share =
			(struct haul_share){.way = way, .lane = LANE, .slot = slot, .begin = begin};
	share->end = now;
	share->bytes += bytes;
	share->copied += copied ? now - begin : 0;
}

void share_sent(struct backend_link *link, uint64_t slot, uint64_t begin, uint32_t bytes,
		bool copied)
{
	add(link, &link->share_out, HAUL_SHARE_OUT, slot, begin, bytes, copied);
}

void share_received(struct backend_link *link, uint64_t slot, uint64_t begin, uint32_t bytes)
{
	add(link, &link->share_in, HAUL_SHARE_IN, slot, begin, bytes, true);
}

void share_tell_sent(struct backend_link *link, uint64_t slot)
{
	if (link->share_out.slot == slot)
		tell(link, &link->share_out);
}

void share_tell_received(struct backend_link *link)
{
	tell(link, &link->share_in);
}
