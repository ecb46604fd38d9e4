/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The pre-shared key: HMAC-SHA256 challenge and response (OpenSSL). Each side proves the key over
 * both HELLO messages, so that neither can be changed or replayed, and its role, so
 * that a proof can't be reflected.
 */
#ifndef TENSORHAUL_AUTH_H
#define TENSORHAUL_AUTH_H

#include "../wire.h"

#define AUTH_KEY_MAX 4096

struct auth_key {
	size_t length;
	uint8_t bytes[AUTH_KEY_MAX];
};

/*
 * Read a key from `method`, "psk:FILE". A trailing newline is no part of it. Errors name the file:
 * -EINVAL (not psk:, key under 16 bytes or over AUTH_KEY_MAX), -EACCES (can't be read; or it can be
 * read or written by group or others, with the chmod that mends it), -ENOENT.
 */
int auth_load(const char *method, struct auth_key *key, char *why, size_t room);
void auth_forget(struct auth_key *key); /* wipes it */

/* mac = HMAC-SHA256(key, "tensorhaul proof" || prover's role || both HELLOs, connector's first) */
int auth_proof(const struct auth_key *key, enum wire_role prover,
	       const uint8_t connector[WIRE_HELLO_SIZE], const uint8_t acceptor[WIRE_HELLO_SIZE],
	       uint8_t mac[WIRE_MAC_SIZE]);

/* Compare in constant time. */
bool auth_equal(const uint8_t *a, const uint8_t *b, size_t length);

#endif
