/* SPDX-License-Identifier: Apache-2.0 */
/* Little-endian numbers at any address, as all of tensorhaul's wire formats have them. */
#ifndef TENSORHAUL_BYTES_H
#define TENSORHAUL_BYTES_H

#include <stdint.h>

static inline void put16(uint8_t *out, uint16_t value)
{
	out[0] = (uint8_t)value;
	out[1] = (uint8_t)(value >> 8);
}

static inline void put32(uint8_t *out, uint32_t value)
{
	put16(out, (uint16_t)value);
	put16(out + 2, (uint16_t)(value >> 16));
}

static inline void put48(uint8_t *out, uint64_t value)
{
	put32(out, (uint32_t)value);
	put16(out + 4, (uint16_t)(value >> 32));
}

static inline void put64(uint8_t *out, uint64_t value)
{
	put32(out, (uint32_t)value);
	put32(out + 4, (uint32_t)(value >> 32));
}

static inline uint16_t get16(const uint8_t *in)
{
	return (uint16_t)(in[0] | in[1] << 8);
}

static inline uint32_t get32(const uint8_t *in)
{
	return get16(in) | (uint32_t)get16(in + 2) << 16;
}

static inline uint64_t get48(const uint8_t *in)
{
	return get32(in) | (uint64_t)get16(in + 4) << 32;
}

static inline uint64_t get64(const uint8_t *in)
{
	return get32(in) | (uint64_t)get32(in + 4) << 32;
}

#endif
