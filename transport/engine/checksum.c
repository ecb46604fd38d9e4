/* SPDX-License-Identifier: Apache-2.0 */
#include "checksum.h"

#include <isa-l/crc.h>

/* ISA-L counts in int. A multiple of what its widest loop takes at once. */
#define STEP_MAX ((size_t)1 << 30)

uint32_t checksum_update(uint32_t crc, const void *bytes, size_t length)
{
	const unsigned char *next = bytes;

	/* ISA-L leaves out both inversions of the standard. */
	crc = ~crc;
	while (length) {
		size_t step = length < STEP_MAX ? length : STEP_MAX;

		crc = crc32_iscsi((unsigned char *)next, (int)step, crc);
		next += step;
		length -= step;
	}
	return ~crc;
}
