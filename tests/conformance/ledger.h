/* SPDX-License-Identifier: Apache-2.0 */
/* The ledger's inside, for the harness only. */
#ifndef CONFORMANCE_LEDGER_H
#define CONFORMANCE_LEDGER_H

#include "harness.h"

#define LEDGER_BLOCK 1024

struct ledger_block {
	struct ledger_block *next;
	unsigned used;
	struct entry entries[LEDGER_BLOCK];
};

struct entry *ledger_new(struct side *side, haul_endpoint *endpoint, enum haul_event event);
/* The call that was to start it failed. */
void ledger_withdraw(struct entry *entry);
/* Keep a completion; fails the test when it is the second one, or of no operation. */
void ledger_record(struct side *side, const struct haul_completion *completion);
void ledger_free(struct side *side);

/* Close a side that its world has forgotten. */
void side_free(struct side *side);

#endif
