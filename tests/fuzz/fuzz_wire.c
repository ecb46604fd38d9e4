/* SPDX-License-Identifier: Apache-2.0 */
/* A peer that is not trusted: any bytes are refused, or decode into what encodes to the same again.
 */
#include <stdlib.h>
#include <string.h>

#include "wire.h"

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t length);

static size_t encode(uint8_t *out, const struct wire_message *message)
{
	switch (message->type) {
	case WIRE_HELLO:
		return wire_encode_hello(out, &message->hello);
	case WIRE_PROOF:
		return wire_encode_proof(out, message->mac);
	case WIRE_REJECT:
		return wire_encode_reject(out, message->reason);
	case WIRE_READY:
		return wire_encode_ready(out, &message->ready);
	case WIRE_PUSH:
	case WIRE_REFUSED:
		return wire_encode_push(out, message->type, &message->push);
	case WIRE_FAILED:
		return wire_encode_failed(out, message->failed.slot, message->failed.reason);
	case WIRE_BYE:
		return wire_encode_bye(out);
	case WIRE_CLOCK:
		return wire_encode_clock(out, &message->clock);
	default:
		return wire_encode_slot(out, message->type, message->slot);
	}
}

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t length)
{
	uint8_t first[HAUL_CONTROL_MAX], second[HAUL_CONTROL_MAX];
	struct wire_message message;
	const char *why;
	size_t encoded;

	if (wire_decode(bytes, length, &message, &why)) {
		if (!why || !*why)
			abort();
		return 0;
	}
	encoded = encode(first, &message);
	if (wire_decode(first, encoded, &message, &why))
		abort();
	if (encode(second, &message) != encoded || memcmp(first, second, encoded))
		abort();
	return 0;
}
