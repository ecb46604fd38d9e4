/* SPDX-License-Identifier: Apache-2.0 */
#include "content.h"

#include <string.h>
#include <xxhash.h>

#define STAMP_EVERY 64

/* splitmix64 */
static uint64_t mix(uint64_t value)
{
	value += UINT64_C(0x9e3779b97f4a7c15);
	value = (value ^ (value >> 30)) * UINT64_C(0xbf58476d1ce4e5b9);
	value = (value ^ (value >> 27)) * UINT64_C(0x94d049bb133111eb);
	return value ^ (value >> 31);
}

void content_fill(void *bytes, size_t length, uint64_t seed)
{
	uint8_t *at = bytes;
	size_t offset = 0;
	uint64_t word;

	for (; offset + sizeof(word) <= length; offset += sizeof(word)) {
		word = mix(seed + offset);
		memcpy(at + offset, &word, sizeof(word));
	}
	word = mix(seed + offset);
	memcpy(at + offset, &word, length - offset);
}

void content_stamp(void *bytes, size_t length, uint64_t seed, uint64_t sequence,
		   struct companion *companion)
{
	uint64_t stamp = mix(seed ^ mix(sequence));
	uint8_t *at = bytes;

	for (size_t offset = 0; offset < length; offset += STAMP_EVERY) {
		uint64_t word = stamp + offset;
		size_t rest = length - offset;

		memcpy(at + offset, &word, rest < sizeof(word) ? rest : sizeof(word));
	}
	companion->sequence = sequence;
	companion->hash = XXH3_64bits(bytes, length);
}

bool content_is(const void *bytes, size_t length, uint64_t sequence,
		const struct companion *companion)
{
	return companion->sequence == sequence && companion->hash == XXH3_64bits(bytes, length);
}
