/* SPDX-License-Identifier: Apache-2.0 */
#include "../wire.h"

#include <errno.h>
#include <string.h>

#include "bytes.h"
#include "tensor.h"

#define PROOF_SIZE (8 + WIRE_MAC_SIZE)
#define SHORT_SIZE 8 /* REJECT, BYE */
#define SLOT_SIZE 16 /* PLACED, CANCEL, CANCELLED, AGAIN, FAILED */
#define CLOCK_SIZE 24
#define READY_HEAD 24
#define PUSH_HEAD 40

/* ---- Decode ------------------------------------------------------------ */

/* These return NULL, or a word on what is wrong. */

static const char *decode_hello(const uint8_t *bytes, size_t length, struct wire_message *message)
{
	struct wire_hello *hello = &message->hello;

	/* Of another version only the head is known; its length is that version's matter. */
	if (length < 8)
		return "HELLO is too short";
	if (get32(bytes + 4) != WIRE_MAGIC)
		return "HELLO has another magic number";
	if (bytes[1] != WIRE_CONNECTOR && bytes[1] != WIRE_ACCEPTOR)
		return "HELLO has an unknown role";
	hello->role = bytes[1];
	hello->version = get16(bytes + 2);
	if (hello->version != WIRE_VERSION)
		return NULL;
	if (length != WIRE_HELLO_SIZE)
		return "HELLO has a wrong length";
	hello->features = get64(bytes + 8);
	hello->incarnation = get64(bytes + 16);
	hello->slots = get32(bytes + 24);
	memcpy(hello->nonce, bytes + 32, WIRE_NONCE_SIZE);
	return hello->slots ? NULL : "HELLO remembers no slots";
}

static const char *decode_proof(const uint8_t *bytes, size_t length, struct wire_message *message)
{
	if (length != PROOF_SIZE)
		return "PROOF has a wrong length";
	memcpy(message->mac, bytes + 8, WIRE_MAC_SIZE);
	return NULL;
}

static const char *decode_reject(const uint8_t *bytes, size_t length, struct wire_message *message)
{
	if (length != SHORT_SIZE)
		return "REJECT has a wrong length";
	message->reason = get16(bytes + 2); /* any: a later version has more of them */
	return NULL;
}

static const char *decode_ready(const uint8_t *bytes, size_t length, struct wire_message *message)
{
	struct wire_ready *ready = &message->ready;

	if (length < READY_HEAD)
		return "READY is too short";
	ready->flags = bytes[1];
	ready->key_length = bytes[2];
	ready->descriptor_length = bytes[3];
	ready->slot = get64(bytes + 8);
	ready->room = get64(bytes + 16);
	ready->descriptor = bytes + READY_HEAD;
	ready->key = ready->descriptor + ready->descriptor_length;
	if (ready->flags & ~WIRE_READY_QUERY)
		return "READY has unknown flags";
	if (!ready->key_length)
		return "READY has an empty key";
	if (ready->descriptor_length > HAUL_DESCRIPTOR_MAX)
		return "READY has too long a descriptor";
	if (length != READY_HEAD + ready->descriptor_length + ready->key_length)
		return "READY has a wrong length";
	return NULL;
}

static const char *decode_push(const uint8_t *bytes, size_t length, struct wire_message *message)
{
	struct wire_push *push = &message->push;
	struct haul_tensor_info *tensor = &push->tensor;
	uint64_t size, end;

	if (length < PUSH_HEAD)
		return "PUSH is too short";
	push->flags = bytes[1];
	tensor->ndim = bytes[2];
	tensor->dtype.code = bytes[3];
	tensor->dtype.bits = bytes[4];
	tensor->dtype.lanes = (uint16_t)get16(bytes + 6);
	push->slot = get64(bytes + 8);
	tensor->bytes = get64(bytes + 16);
	push->offset = get64(bytes + 24);
	push->crc32c = get32(bytes + 32);
	if (push->flags & ~WIRE_PUSH_CHECKSUM)
		return "PUSH has unknown flags";
	if (tensor->ndim > HAUL_RANK_MAX)
		return "PUSH has too high a rank";
	if (length != PUSH_HEAD + 8 * (size_t)tensor->ndim)
		return "PUSH has a wrong length";
	for (int i = 0; i < tensor->ndim; i++)
		tensor->shape[i] = (int64_t)get64(bytes + PUSH_HEAD + 8 * i);
	if (tensor_info_bytes(tensor, &size))
		return "PUSH has a dtype or shape that can't be";
	if (size != tensor->bytes)
		return "PUSH has a size that differs from its shape's";
	if (__builtin_add_overflow(push->offset, size, &end) || end > INT64_MAX)
		return "PUSH has too large an offset";
	return NULL;
}

static const char *decode_slot(const uint8_t *bytes, size_t length, struct wire_message *message)
{
	if (length != SLOT_SIZE)
		return "a message about a slot has a wrong length";
	message->slot = get64(bytes + 8);
	return NULL;
}

static const char *decode_failed(const uint8_t *bytes, size_t length, struct wire_message *message)
{
	if (length != SLOT_SIZE)
		return "FAILED has a wrong length";
	message->failed.reason = get16(bytes + 2);
	message->failed.slot = get64(bytes + 8);
	if (message->failed.reason != WIRE_REASON_GIVEN_UP &&
	    message->failed.reason != WIRE_REASON_CHECKSUM)
		return "FAILED has an unknown reason";
	return NULL;
}

static const char *decode_bye(const uint8_t *bytes, size_t length, struct wire_message *message)
{
	return length == SHORT_SIZE ? NULL : "BYE has a wrong length";
}

static const char *decode_clock(const uint8_t *bytes, size_t length, struct wire_message *message)
{
	struct wire_clock *clock = &message->clock;

	if (length != CLOCK_SIZE)
		return "CLOCK has a wrong length";
	if (bytes[1] & ~WIRE_CLOCK_ANSWER)
		return "CLOCK has unknown flags";
	clock->answer = bytes[1] & WIRE_CLOCK_ANSWER;
	clock->asked = get64(bytes + 8);
	clock->answered = get64(bytes + 16);
	return NULL;
}

typedef const char *decode_function(const uint8_t *bytes, size_t length,
				    struct wire_message *message);

static decode_function *const decoders[] = {
	[WIRE_HELLO] = decode_hello, [WIRE_PROOF] = decode_proof,   [WIRE_REJECT] = decode_reject,
	[WIRE_READY] = decode_ready, [WIRE_PUSH] = decode_push,     [WIRE_REFUSED] = decode_push,
	[WIRE_PLACED] = decode_slot, [WIRE_CANCEL] = decode_slot,   [WIRE_CANCELLED] = decode_slot,
	[WIRE_AGAIN] = decode_slot,  [WIRE_FAILED] = decode_failed, [WIRE_BYE] = decode_bye,
	[WIRE_CLOCK] = decode_clock,
};

int wire_decode(const uint8_t *bytes, size_t length, struct wire_message *message, const char **why)
{
	memset(message, 0, sizeof(*message));
	if (!length)
		*why = "an empty message";
	else if (length > HAUL_CONTROL_MAX)
		*why = "a message that is too long";
	else if (bytes[0] >= sizeof(decoders) / sizeof(decoders[0]) || !decoders[bytes[0]])
		*why = "a message of an unknown type";
	else
		*why = decoders[bytes[0]](bytes, length, message);
	if (*why)
		return -EPROTO;
	message->type = bytes[0];
	return 0;
}

/* ---- Encode ------------------------------------------------------------ */

/* Zero the head, which also clears what is reserved. */
static void start(uint8_t *out, enum wire_type type, size_t length)
{
	memset(out, 0, length);
	out[0] = (uint8_t)type;
}

size_t wire_encode_hello(uint8_t *out, const struct wire_hello *hello)
{
	start(out, WIRE_HELLO, WIRE_HELLO_SIZE);
	out[1] = (uint8_t)hello->role;
	put16(out + 2, hello->version);
	put32(out + 4, WIRE_MAGIC);
	put64(out + 8, hello->features);
	put64(out + 16, hello->incarnation);
	put32(out + 24, hello->slots);
	memcpy(out + 32, hello->nonce, WIRE_NONCE_SIZE);
	return WIRE_HELLO_SIZE;
}

size_t wire_encode_proof(uint8_t *out, const uint8_t mac[WIRE_MAC_SIZE])
{
	start(out, WIRE_PROOF, PROOF_SIZE);
	memcpy(out + 8, mac, WIRE_MAC_SIZE);
	return PROOF_SIZE;
}

size_t wire_encode_reject(uint8_t *out, unsigned reason)
{
	start(out, WIRE_REJECT, SHORT_SIZE);
	put16(out + 2, reason);
	return SHORT_SIZE;
}

size_t wire_encode_ready(uint8_t *out, const struct wire_ready *ready)
{
	uint8_t *next = out + READY_HEAD;

	start(out, WIRE_READY, READY_HEAD);
	out[1] = (uint8_t)ready->flags;
	out[2] = (uint8_t)ready->key_length;
	out[3] = (uint8_t)ready->descriptor_length;
	put64(out + 8, ready->slot);
	put64(out + 16, ready->room);
	if (ready->descriptor_length)
		memcpy(next, ready->descriptor, ready->descriptor_length);
	next += ready->descriptor_length;
	memcpy(next, ready->key, ready->key_length);
	next += ready->key_length;
	return (size_t)(next - out);
}

size_t wire_encode_push(uint8_t *out, enum wire_type type, const struct wire_push *push)
{
	const struct haul_tensor_info *tensor = &push->tensor;

	start(out, type, PUSH_HEAD);
	out[1] = (uint8_t)push->flags;
	out[2] = (uint8_t)tensor->ndim;
	out[3] = tensor->dtype.code;
	out[4] = tensor->dtype.bits;
	put16(out + 6, tensor->dtype.lanes);
	put64(out + 8, push->slot);
	put64(out + 16, tensor->bytes);
	put64(out + 24, push->offset);
	put32(out + 32, push->crc32c);
	for (int i = 0; i < tensor->ndim; i++)
		put64(out + PUSH_HEAD + 8 * i, (uint64_t)tensor->shape[i]);
	return PUSH_HEAD + 8 * (size_t)tensor->ndim;
}

size_t wire_encode_slot(uint8_t *out, enum wire_type type, uint64_t slot)
{
	start(out, type, SLOT_SIZE);
	put64(out + 8, slot);
	return SLOT_SIZE;
}

size_t wire_encode_failed(uint8_t *out, uint64_t slot, unsigned reason)
{
	start(out, WIRE_FAILED, SLOT_SIZE);
	put16(out + 2, reason);
	put64(out + 8, slot);
	return SLOT_SIZE;
}

size_t wire_encode_bye(uint8_t *out)
{
	start(out, WIRE_BYE, SHORT_SIZE);
	return SHORT_SIZE;
}

size_t wire_encode_clock(uint8_t *out, const struct wire_clock *clock)
{
	start(out, WIRE_CLOCK, CLOCK_SIZE);
	out[1] = clock->answer ? WIRE_CLOCK_ANSWER : 0;
	put64(out + 8, clock->asked);
	put64(out + 16, clock->answered);
	return CLOCK_SIZE;
}
