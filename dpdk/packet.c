/* SPDX-License-Identifier: Apache-2.0 */
#include "packet.h"

#include <string.h>

#include "bytes.h"

/* ---- Reading ----------------------------------------------------------- */

/* The shortest packet of each type; 0: there is no such type. */
static const uint8_t shortest[] = {
	[PACKET_TYPE_OPEN] = PACKET_OPEN,
	[PACKET_TYPE_COOKIE] = PACKET_COOKIE,
	[PACKET_TYPE_OPENED] = PACKET_OPENED,
	[PACKET_TYPE_REFUSED] = PACKET_REFUSED,
	[PACKET_TYPE_STREAM] = PACKET_STREAM,
	[PACKET_TYPE_DATA] = PACKET_DATA,
	[PACKET_TYPE_PING] = PACKET_HEAD,
	[PACKET_TYPE_ACK] = PACKET_HEAD + PACKET_ACK_FIXED + PACKET_ACK_RANGE,
	[PACKET_TYPE_CLOSE] = PACKET_CLOSE,
	[PACKET_TYPE_CLOSED] = PACKET_HEAD,
	[PACKET_TYPE_RESET] = PACKET_RESET,
};

bool packet_read_head(const uint8_t *packet, size_t length, struct packet_head *head)
{
	if (length < PACKET_HEAD)
		return false;
	head->connection = get64(packet);
	head->type = packet[8];
	head->flags = packet[9];
	head->number = get48(packet + 10);
	if (head->type >= sizeof(shortest) || !shortest[head->type])
		return false;
	return length >= shortest[head->type];
}

/* What OPEN and OPENED have in common. */
static bool read_wish(const uint8_t *packet, struct packet_open *open)
{
	if (get32(packet + 16) != PACKET_MAGIC)
		return false;
	open->version = packet[20];
	open->payload = get16(packet + 22);
	open->name = get64(packet + 24);
	open->incarnation = get64(packet + 32);
	open->window = get32(packet + 40);
	return true;
}

bool packet_read_open(const uint8_t *packet, size_t length, struct packet_open *open)
{
	if (length < PACKET_OPEN || !read_wish(packet, open))
		return false;
	memcpy(open->cookie, packet + 48, PACKET_COOKIE_SIZE);
	return true;
}

bool packet_read_opened(const uint8_t *packet, size_t length, struct packet_open *open)
{
	if (length < PACKET_OPENED)
		return false;
	memset(open->cookie, 0, PACKET_COOKIE_SIZE);
	return read_wish(packet, open);
}

bool packet_read_cookie(const uint8_t *packet, size_t length, struct packet_answer *answer)
{
	if (length < PACKET_COOKIE || get32(packet + 16) != PACKET_MAGIC)
		return false;
	answer->version = packet[20];
	answer->payload = get16(packet + 22);
	answer->reason = PACKET_REASON_NONE;
	memcpy(answer->cookie, packet + 32, PACKET_COOKIE_SIZE);
	return true;
}

bool packet_read_refused(const uint8_t *packet, size_t length, struct packet_answer *answer)
{
	if (length < PACKET_REFUSED || get32(packet + 16) != PACKET_MAGIC)
		return false;
	*answer = (struct packet_answer){.version = packet[20], .reason = get16(packet + 22)};
	return true;
}

bool packet_read_data(const uint8_t *packet, size_t length, struct packet_data *data)
{
	if (length <= PACKET_DATA)
		return false;
	data->slot = get64(packet + 16);
	data->offset = get48(packet + 24);
	data->back = get16(packet + 30);
	return data->back <= PACKET_BACK_MAX;
}

bool packet_read_close(const uint8_t *packet, size_t length, uint16_t *reason)
{
	if (length < PACKET_CLOSE)
		return false;
	*reason = get16(packet + 16);
	return true;
}

bool packet_read_reset(const uint8_t *packet, size_t length, uint64_t *name)
{
	if (length < PACKET_RESET)
		return false;
	*name = get64(packet + 16);
	return true;
}

bool packet_read_ack(const uint8_t *bytes, size_t length, struct packet_ack *ack, size_t *used)
{
	uint64_t below;

	if (length < PACKET_ACK_FIXED + PACKET_ACK_RANGE)
		return false;
	below = get64(bytes);
	ack->delay_ns = get32(bytes + 8);
	ack->window = get32(bytes + 12);
	ack->marks = get32(bytes + 16);
	ack->count = get16(bytes + 20);
	ack->clock = get16(bytes + 22);
	if (ack->count < 1 || ack->count > PACKET_RANGES_MAX || below > PACKET_NUMBER_MAX ||
	    length < PACKET_ACK_FIXED + PACKET_ACK_RANGE * ack->count)
		return false;
	bytes += PACKET_ACK_FIXED;
	/* `below` is the largest number that the next range may have; numbers start at 1. */
	for (uint32_t i = 0; i < ack->count; i++, bytes += PACKET_ACK_RANGE) {
		uint32_t gap = get32(bytes), arrived = get32(bytes + 4);

		if (arrived == 0 || (i == 0) != (gap == 0) || below < (uint64_t)gap + arrived)
			return false;
		ack->ranges[i].last = below - gap;
		ack->ranges[i].first = ack->ranges[i].last - arrived + 1;
		below = ack->ranges[i].first - 1;
	}
	*used = PACKET_ACK_FIXED + PACKET_ACK_RANGE * ack->count;
	return true;
}

uint64_t packet_read_offset(const uint8_t *bytes)
{
	return get64(bytes);
}

long packet_read_record(const uint8_t *bytes, size_t length, uint32_t payload_most,
			struct packet_record *record)
{
	size_t whole;

	if (length < RECORD_MESSAGE)
		return 0;
	record->message_length = get16(bytes + 2);
	record->small = get16(bytes) == 2;
	if ((get16(bytes) != 1 && !record->small) || record->message_length == 0 ||
	    record->message_length > RECORD_MESSAGE_MAX)
		return -1;
	record->payload_length = record->small ? get32(bytes + 4) : 0;
	if (record->payload_length > payload_most)
		return -1;
	whole = (record->small ? RECORD_SMALL : RECORD_MESSAGE) + (size_t)record->message_length +
		record->payload_length;
	if (length < whole)
		return 0;
	record->slot = record->small ? get64(bytes + 8) : 0;
	record->offset = record->small ? get64(bytes + 16) : 0;
	record->message = bytes + (record->small ? RECORD_SMALL : RECORD_MESSAGE);
	record->payload = record->message + record->message_length;
	return (long)whole;
}

/* ---- Writing ----------------------------------------------------------- */

size_t packet_write_head(uint8_t *packet, const struct packet_head *head)
{
	put64(packet, head->connection);
	packet[8] = head->type;
	packet[9] = head->flags;
	put48(packet + 10, head->number);
	return PACKET_HEAD;
}

/* A head without number and flags. */
static void write_plain_head(uint8_t *packet, uint64_t connection, uint8_t type)
{
	packet_write_head(packet, &(struct packet_head){.connection = connection, .type = type});
}

size_t packet_write_data(uint8_t *packet, const struct packet_head *head,
			 const struct packet_data *data)
{
	packet_write_head(packet, head);
	put64(packet + 16, data->slot);
	put48(packet + 24, data->offset);
	put16(packet + 30, (uint16_t)data->back);
	return PACKET_DATA;
}

static void write_wish(uint8_t *packet, const struct packet_open *open)
{
	put32(packet + 16, PACKET_MAGIC);
	packet[20] = open->version;
	packet[21] = 0;
	put16(packet + 22, open->payload);
	put64(packet + 24, open->name);
	put64(packet + 32, open->incarnation);
	put32(packet + 40, open->window);
	put32(packet + 44, 0);
}

size_t packet_write_open(uint8_t *packet, const struct packet_open *open)
{
	write_plain_head(packet, 0, PACKET_TYPE_OPEN);
	write_wish(packet, open);
	memcpy(packet + 48, open->cookie, PACKET_COOKIE_SIZE);
	return PACKET_OPEN;
}

size_t packet_write_opened(uint8_t *packet, uint64_t connection, const struct packet_open *open)
{
	write_plain_head(packet, connection, PACKET_TYPE_OPENED);
	write_wish(packet, open);
	return PACKET_OPENED;
}

/* What COOKIE and REFUSED start with. */
static void write_answer(uint8_t *packet, const struct packet_answer *answer, uint16_t last)
{
	put32(packet + 16, PACKET_MAGIC);
	packet[20] = answer->version;
	packet[21] = 0;
	put16(packet + 22, last);
}

size_t packet_write_cookie(uint8_t *packet, uint64_t connection, const struct packet_answer *answer)
{
	write_plain_head(packet, connection, PACKET_TYPE_COOKIE);
	write_answer(packet, answer, answer->payload);
	put64(packet + 24, 0);
	memcpy(packet + 32, answer->cookie, PACKET_COOKIE_SIZE);
	return PACKET_COOKIE;
}

size_t packet_write_refused(uint8_t *packet, uint64_t connection,
			    const struct packet_answer *answer)
{
	write_plain_head(packet, connection, PACKET_TYPE_REFUSED);
	write_answer(packet, answer, answer->reason);
	return PACKET_REFUSED;
}

size_t packet_write_close(uint8_t *packet, uint64_t connection, uint16_t reason)
{
	write_plain_head(packet, connection, PACKET_TYPE_CLOSE);
	put64(packet + 16, reason);
	return PACKET_CLOSE;
}

size_t packet_write_closed(uint8_t *packet, uint64_t connection)
{
	write_plain_head(packet, connection, PACKET_TYPE_CLOSED);
	return PACKET_HEAD;
}

size_t packet_write_reset(uint8_t *packet, uint64_t name)
{
	write_plain_head(packet, 0, PACKET_TYPE_RESET);
	put64(packet + 16, name);
	return PACKET_RESET;
}

size_t packet_write_offset(uint8_t *bytes, uint64_t offset)
{
	put64(bytes, offset);
	return 8;
}

size_t packet_write_ack(uint8_t *bytes, size_t room, const struct packet_ack *ack)
{
	uint64_t below = ack->ranges[0].last + 1;
	uint32_t count = 0;
	uint8_t *at = bytes + PACKET_ACK_FIXED;

	put64(bytes, ack->ranges[0].last);
	put32(bytes + 8, ack->delay_ns);
	put32(bytes + 12, ack->window);
	put32(bytes + 16, ack->marks);
	while (count < ack->count &&
	       PACKET_ACK_FIXED + PACKET_ACK_RANGE * ((size_t)count + 1) <= room) {
		const struct packet_range *range = &ack->ranges[count++];

		put32(at, (uint32_t)(below - 1 - range->last));
		put32(at + 4, (uint32_t)(range->last - range->first + 1));
		at += PACKET_ACK_RANGE;
		below = range->first;
	}
	put16(bytes + 20, (uint16_t)count);
	put16(bytes + 22, ack->clock);
	return (size_t)(at - bytes);
}

size_t packet_write_record(uint8_t *bytes, const struct packet_record *record)
{
	uint8_t *at = bytes + (record->small ? RECORD_SMALL : RECORD_MESSAGE);

	put16(bytes, record->small ? 2 : 1);
	put16(bytes + 2, record->message_length);
	put32(bytes + 4, record->small ? record->payload_length : 0);
	if (record->small) {
		put64(bytes + 8, record->slot);
		put64(bytes + 16, record->offset);
	}
	memcpy(at, record->message, record->message_length);
	at += record->message_length;
	if (record->small && record->payload_length)
		memcpy(at, record->payload, record->payload_length);
	return (size_t)(at - bytes) + (record->small ? record->payload_length : 0);
}
