/* SPDX-License-Identifier: Apache-2.0 */
/* The ledger: each operation that was started ends in exactly one completion. */
#include "ledger.h"

#include <stdio.h>
#include <stdlib.h>

static struct entry *entry_take(struct side *side)
{
	struct ledger_block *block = side->ledger;
	struct entry *entry = side->free_entries;

	if (entry) {
		side->free_entries = entry->next_free;
		return entry;
	}
	if (!block || block->used == LEDGER_BLOCK) {
		block = calloc(1, sizeof(*block));
		assert_non_null(block);
		block->next = side->ledger;
		side->ledger = block;
	}
	return &block->entries[block->used++];
}

struct entry *ledger_new(struct side *side, haul_endpoint *endpoint, enum haul_event event)
{
	struct entry *entry = entry_take(side);

	memset(entry, 0, sizeof(*entry));
	entry->side = side;
	entry->endpoint = endpoint;
	entry->event = event;
	side->started++;
	return entry;
}

void ledger_withdraw(struct entry *entry)
{
	struct side *side = entry->side;

	side->started--;
	entry->done = true;
	entry->next_free = side->free_entries;
	side->free_entries = entry;
}

void entry_recycle(struct entry *entry)
{
	assert_true(entry->done);
	entry->next_free = entry->side->free_entries;
	entry->side->free_entries = entry;
}

/* A cookie comes back from the library: is it one of ours? */
static struct entry *entry_of(struct side *side, void *cookie)
{
	uintptr_t at = (uintptr_t)cookie;

	for (struct ledger_block *block = side->ledger; block; block = block->next) {
		uintptr_t first = (uintptr_t)block->entries;

		if (at >= first && at < (uintptr_t)&block->entries[block->used] &&
		    (at - first) % sizeof(struct entry) == 0)
			return cookie;
	}
	fail_msg("side %c: a completion carries a cookie that was never given", side->name);
	return NULL;
}

static void record_operation(struct side *side, const struct haul_completion *completion)
{
	struct entry *entry = entry_of(side, completion->cookie);

	if (entry->done)
		fail_msg("side %c: an operation (event %d) completed twice: %d, then %d",
			 side->name, entry->event, entry->result, completion->result);
	if (entry->event != completion->event)
		fail_msg("side %c: an operation of event %d ended as event %d", side->name,
			 entry->event, completion->event);
	if (entry->event == HAUL_CONNECTED)
		entry->endpoint = completion->endpoint;
	else if (entry->endpoint != completion->endpoint)
		fail_msg("side %c: an operation ended on another endpoint", side->name);
	if (completion->result > 0)
		fail_msg("side %c: result %d", side->name, completion->result);
	entry->done = true;
	entry->result = completion->result;
	entry->tensor = completion->tensor;
	snprintf(entry->detail, sizeof(entry->detail), "%s",
		 completion->detail ? completion->detail : "");
	entry->order = ++side->finished;
	if (entry->hook)
		entry->hook(entry);
}

/* HAUL_LOST comes once for an endpoint, and after the ends of its operations. */
static void record_lost(struct side *side, const struct haul_completion *completion)
{
	for (unsigned i = 0; i < side->lost_count; i++) {
		if (side->lost[i].endpoint == completion->endpoint &&
		    side->lost[i].cookie == completion->cookie && completion->cookie)
			fail_msg("side %c: HAUL_LOST came twice for one endpoint", side->name);
	}
	for (struct ledger_block *block = side->ledger; block; block = block->next) {
		for (unsigned i = 0; i < block->used; i++) {
			if (!block->entries[i].done &&
			    block->entries[i].endpoint == completion->endpoint)
				fail_msg("side %c: HAUL_LOST came before the end of an operation "
					 "(event %d) of its endpoint",
					 side->name, block->entries[i].event);
		}
	}
	assert_true(side->lost_count < ENDPOINTS_MAX);
	side->lost[side->lost_count].endpoint = completion->endpoint;
	side->lost[side->lost_count].cookie = completion->cookie;
	side->lost[side->lost_count].result = completion->result;
	side->lost_count++;
}

void ledger_record(struct side *side, const struct haul_completion *completion)
{
	switch (completion->event) {
	case HAUL_ACCEPTED:
		assert_int_equal(completion->result, 0);
		assert_non_null(completion->endpoint);
		assert_ptr_equal(completion->cookie, side);
		assert_true(side->accepted_count < ENDPOINTS_MAX);
		side->accepted[side->accepted_count++] = completion->endpoint;
		break;
	case HAUL_LOST:
		record_lost(side, completion);
		break;
	default:
		record_operation(side, completion);
	}
}

void ledger_free(struct side *side)
{
	struct ledger_block *block;

	while ((block = side->ledger)) {
		side->ledger = block->next;
		free(block);
	}
}
