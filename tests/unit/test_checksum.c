/* SPDX-License-Identifier: Apache-2.0 */
#include "unit.h"

#include <sys/mman.h>
#include <unistd.h>

#include "engine/checksum.h"

/* RFC 3720, appendix B.4, and the check value of the CRC catalogue. */
static void known_vectors(void **state)
{
	static const uint8_t command[48] = {
		0x01, 0xc0, 0, 0, 0, 0, 0,    0, 0,    0, 0, 0,    0, 0, 0, 0,
		0x14, 0,    0, 0, 0, 0, 0x04, 0, 0,    0, 0, 0x14, 0, 0, 0, 0x18,
		0x28, 0,    0, 0, 0, 0, 0,    0, 0x02, 0, 0, 0,    0, 0, 0, 0,
	};
	uint8_t bytes[32];

	assert_int_equal(checksum_update(0, "123456789", 9), 0xe3069283);
	memset(bytes, 0, sizeof(bytes));
	assert_int_equal(checksum_update(0, bytes, 32), 0x8a9136aa);
	memset(bytes, 0xff, sizeof(bytes));
	assert_int_equal(checksum_update(0, bytes, 32), 0x62a8ab43);
	for (int i = 0; i < 32; i++)
		bytes[i] = (uint8_t)i;
	assert_int_equal(checksum_update(0, bytes, 32), 0x46dd794e);
	for (int i = 0; i < 32; i++)
		bytes[i] = (uint8_t)(31 - i);
	assert_int_equal(checksum_update(0, bytes, 32), 0x113fdb5c);
	assert_int_equal(checksum_update(0, command, 48), 0xd9963a56);
}

static void nothing(void **state)
{
	assert_int_equal(checksum_update(0, NULL, 0), 0);
	assert_int_equal(checksum_update(0xe3069283, "x", 0), 0xe3069283);
}

/* Bit by bit, as the polynomial says. */
static uint32_t slow(const uint8_t *bytes, size_t length)
{
	uint32_t crc = ~0u;

	for (size_t i = 0; i < length; i++) {
		crc ^= bytes[i];
		for (int bit = 0; bit < 8; bit++)
			crc = crc >> 1 ^ (crc & 1 ? 0x82f63b78 : 0);
	}
	return ~crc;
}

/* Each length and alignment around the widths that a fast loop takes at once. */
static void every_length_and_alignment(void **state)
{
	uint8_t bytes[1100];
	uint64_t seed = 1;

	for (size_t i = 0; i < sizeof(bytes); i++)
		bytes[i] = (uint8_t)unit_random(&seed);
	for (size_t start = 0; start < 9; start++) {
		for (size_t length = 0; length <= 1024; length += length < 80 ? 1 : 59)
			assert_int_equal(checksum_update(0, bytes + start, length),
					 slow(bytes + start, length));
	}
}

static void pieces(void **state)
{
	uint8_t bytes[300];
	uint32_t whole;

	for (size_t i = 0; i < sizeof(bytes); i++)
		bytes[i] = (uint8_t)(i * 7 + 3);
	whole = checksum_update(0, bytes, sizeof(bytes));
	for (size_t cut = 0; cut <= sizeof(bytes); cut++) {
		uint32_t crc = checksum_update(0, bytes, cut);

		assert_int_equal(checksum_update(crc, bytes + cut, sizeof(bytes) - cut), whole);
	}
}

/*
 * Longer than what an int can count: one small file mapped over and over, so that it costs neither
 * memory nor time. Its size divides no power of two, so that no two gibibytes are alike.
 */
static void over_two_gibibytes(void **state)
{
	const size_t window = ((size_t)8 << 20) + 65536, windows = 257,
		     length = window * windows - 13;
	const size_t piece = 700000001;
	uint8_t *bytes = mmap(NULL, window * windows, PROT_NONE,
			      MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
	int file = memfd_create("window", MFD_CLOEXEC);
	uint32_t crc = 0;

	if (bytes == MAP_FAILED || file < 0 || ftruncate(file, (off_t)window))
		skip();
	for (size_t i = 0; i < windows; i++)
		assert_true(mmap(bytes + i * window, window, PROT_READ | PROT_WRITE,
				 MAP_SHARED | MAP_FIXED | MAP_POPULATE, file, 0) != MAP_FAILED);
	for (size_t i = 0; i < window; i += 8191)
		bytes[i] = (uint8_t)(i / 8191 + 1);
	for (size_t done = 0; done < length; done += piece)
		crc = checksum_update(crc, bytes + done,
				      length - done < piece ? length - done : piece);
	assert_int_equal(checksum_update(0, bytes, length), crc);
	munmap(bytes, window * windows);
	close(file);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(known_vectors),
		cmocka_unit_test(nothing),
		cmocka_unit_test(every_length_and_alignment),
		cmocka_unit_test(pieces),
		cmocka_unit_test(over_two_gibibytes),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
