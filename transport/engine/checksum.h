/* SPDX-License-Identifier: Apache-2.0 */
/* CRC32C (Castagnoli, RFC 3720 appendix B.4) over any length, by ISA-L. */
#ifndef TENSORHAUL_CHECKSUM_H
#define TENSORHAUL_CHECKSUM_H

#include <stddef.h>
#include <stdint.h>

/* Start with 0; the result of "123456789" is 0xe3069283. Can be continued in pieces. */
uint32_t checksum_update(uint32_t crc, const void *bytes, size_t length);

#endif
