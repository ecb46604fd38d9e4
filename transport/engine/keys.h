/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The rendezvous table of one endpoint: which sends and which of the peer's slots wait under
 * which key. One of the two queues of a key is always empty. Hashed with XXH3 under a
 * random seed, since the peer chooses keys too; grows step by step, so that no single call pays
 * for all of it.
 */
#ifndef TENSORHAUL_KEYS_H
#define TENSORHAUL_KEYS_H

#include <stddef.h>
#include <stdint.h>
#include <sys/queue.h>

struct operation;
struct remote_slot;

TAILQ_HEAD(operation_queue, operation);
TAILQ_HEAD(remote_slot_queue, remote_slot);

struct key_entry {
	uint64_t hash;
	/* The key that was added KEYS_YOUNG later, to fetch: it may be gone. NULL: none yet. */
	const struct key_entry *ahead;
	struct operation_queue sends;
	struct remote_slot_queue slots;
	uint32_t ahead_hash; /* the lower half */
	uint8_t length;
	uint8_t bytes[];
};

struct key_tags;
struct key_places;

/* 2^n buckets; NULL: none. */
struct key_index {
	struct key_tags *tags;
	struct key_places *places; /* in the same memory, behind the tags */
	size_t mask;
};

/* How many of the latest keys are not in the index yet. Their tags are compared as one number. */
#define KEYS_YOUNG 8

struct keys {
	/* keys.c's own */
	struct key_index index;
	struct key_index old; /* being moved over, from old_next on */
	size_t old_next;
	size_t count; /* with the young ones */
	struct key_entry *young[KEYS_YOUNG];
	uint8_t young_tags[KEYS_YOUNG]; /* 0: none */
	unsigned young_next;            /* the oldest one's place */
	uint64_t seed;
};

void keys_init(struct keys *keys, uint64_t seed); /* no memory is taken before the first key */
void keys_free(struct keys *keys); /* with all entries; their queues are not looked at */

/* NULL: -ENOMEM */
struct key_entry *keys_find_or_add(struct keys *keys, const void *bytes, size_t length);
/* Frees it when both queues are empty. */
void keys_drop_if_empty(struct keys *keys, struct key_entry *entry);

#endif
