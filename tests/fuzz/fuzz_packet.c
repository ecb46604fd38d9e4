/* SPDX-License-Identifier: Apache-2.0 */
/* A dpdk peer that is not trusted: any bytes are refused, or mean what they say when written again.
 * Records are read as the control stream does, one behind the other. */
#include <stdlib.h>
#include <string.h>

#include "packet.h"

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t length);

static void check(bool right)
{
	if (!right)
		abort();
}

static void check_ack(const uint8_t *bytes, size_t length)
{
	uint8_t written[PACKET_ACK_FIXED + PACKET_ACK_RANGE * PACKET_RANGES_MAX];
	struct packet_ack ack, again;
	size_t used, used_again;

	if (!packet_read_ack(bytes, length, &ack, &used))
		return;
	check(used <= length);
	for (uint32_t i = 0; i < ack.count; i++) {
		check(ack.ranges[i].first >= 1 && ack.ranges[i].first <= ack.ranges[i].last);
		check(i == 0 || ack.ranges[i].last + 1 < ack.ranges[i - 1].first);
	}
	check(packet_write_ack(written, sizeof(written), &ack) == used);
	check(packet_read_ack(written, used, &again, &used_again) && used_again == used);
	check(!memcmp(ack.ranges, again.ranges, ack.count * sizeof(ack.ranges[0])));
}

static void check_records(const uint8_t *bytes, size_t length)
{
	while (length) {
		struct packet_record record;
		long size = packet_read_record(bytes, length, 8192, &record);

		if (size <= 0)
			return;
		check((size_t)size <= length && record.message_length > 0);
		check(record.message >= bytes &&
		      record.payload + record.payload_length == bytes + size);
		bytes += size;
		length -= (size_t)size;
	}
}

static void check_opening(const uint8_t *bytes, size_t length)
{
	uint8_t written[PACKET_OPEN];
	struct packet_answer answer;
	struct packet_open open, again;

	if (packet_read_open(bytes, length, &open)) {
		packet_write_open(written, &open);
		check(packet_read_open(written, sizeof(written), &again));
		check(again.name == open.name && again.window == open.window &&
		      again.payload == open.payload && again.version == open.version);
	}
	packet_read_opened(bytes, length, &open);
	packet_read_cookie(bytes, length, &answer);
	packet_read_refused(bytes, length, &answer);
}

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t length)
{
	struct packet_head head;
	struct packet_data data;
	uint64_t name;
	uint16_t reason;

	check_ack(bytes, length);
	check_records(bytes, length);
	check_opening(bytes, length);
	if (!packet_read_head(bytes, length, &head))
		return 0;
	check(head.number <= PACKET_NUMBER_MAX);
	if (packet_read_data(bytes, length, &data))
		check(data.offset <= PACKET_OFFSET_MAX && data.back <= PACKET_BACK_MAX);
	packet_read_close(bytes, length, &reason);
	packet_read_reset(bytes, length, &name);
	return 0;
}
