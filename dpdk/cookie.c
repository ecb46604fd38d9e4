/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Cookies: whoever shows one has received a packet at the address that it claims to have, a moment
 * ago (the idea of RFC 4987's SYN cookies and RFC 9000's Retry). Nothing is stored for them: a
 * cookie is a MAC over the address, with a secret that only this context has.
 */
#include <string.h>

#include <openssl/crypto.h>
#include <openssl/evp.h>
#include <openssl/hmac.h>

#include "dpdk.h"

/* A cookie is good during this period and the next one. */
#define PERIOD (10 * SECOND)

static bool cookie_of(const struct backend_context *context, uint64_t period, uint32_t ip,
		      uint16_t port, uint64_t name, uint8_t cookie[PACKET_COOKIE_SIZE])
{
	struct {
		uint64_t period, name;
		uint32_t ip, port;
	} what = {period, name, ip, port};
	unsigned length = 0;

	return HMAC(EVP_sha256(), context->secret, sizeof(context->secret), (const uint8_t *)&what,
		    sizeof(what), cookie, &length) &&
	       length == PACKET_COOKIE_SIZE;
}

void cookie_make(const struct backend_context *context, uint32_t ip, uint16_t port, uint64_t name,
		 uint8_t cookie[PACKET_COOKIE_SIZE])
{
	/* One of zeros asks for a cookie: the peer tries once more, and so do we. */
	if (!cookie_of(context, context->now / PERIOD, ip, port, name, cookie))
		memset(cookie, 0, PACKET_COOKIE_SIZE);
}

bool cookie_check(const struct backend_context *context, uint32_t ip, uint16_t port, uint64_t name,
		  const uint8_t cookie[PACKET_COOKIE_SIZE])
{
	uint64_t period = context->now / PERIOD;
	uint8_t wanted[PACKET_COOKIE_SIZE];

	for (unsigned i = 0; i < 2 && i <= period; i++) {
		if (cookie_of(context, period - i, ip, port, name, wanted) &&
		    !CRYPTO_memcmp(wanted, cookie, PACKET_COOKIE_SIZE))
			return true;
	}
	return false;
}
