/* SPDX-License-Identifier: Apache-2.0 */
#include "rawpeer.h"

#include <arpa/inet.h>
#include <stdio.h>
#include <stdlib.h>

/* ---- Frames and packets ------------------------------------------------ */

struct raw_side raw_find(const char *address)
{
	uint8_t bytes[HUB_FRAME_MOST], own[FRAME_MAC];
	struct raw_side side = {0};
	struct in_addr in;
	char host[64];
	unsigned port;
	uint64_t until = now_ms() + RAW_PATIENCE_MS;

	assert_int_equal(sscanf(address, "%63[^:]:%u", host, &port), 2);
	assert_int_equal(inet_pton(AF_INET, host, &in), 1);
	side.ip = ntohl(in.s_addr);
	side.port = (uint16_t)port;
	hub_mac(HUB_IP(1), own);
	while (now_ms() < until) {
		struct frame frame;
		size_t length;

		hub_send(bytes, frame_write_arp(bytes, own, HUB_IP(1), 0, NULL, side.ip));
		length = hub_receive(bytes, 100);
		frame_read(bytes, length, (struct frame_checked){0}, &frame, NULL);
		if (frame.kind != FRAME_IS_ARP || frame.source != side.ip || frame.arp_asks)
			continue;
		memcpy(side.mac, frame.arp_mac, FRAME_MAC);
		return side;
	}
	fail_msg("nobody answers for %s", address);
	return side;
}

void raw_start(struct raw_dpdk *peer, const struct raw_side *side)
{
	static struct received all[8];
	static unsigned count;

	memset(peer, 0, sizeof(*peer));
	count++;
	peer->side = *side;
	peer->ip = HUB_IP(1 + count % 60000);
	peer->port = (uint16_t)(20000 + count);
	peer->name = UINT64_C(0x0123456789abcd00) + count;
	peer->payload = RAW_PAYLOAD;
	peer->window = 1024;
	peer->ecn = FRAME_ECN_0;
	peer->received = &all[count % 8];
	received_stop(peer->received);
}

size_t raw_frame(const struct raw_dpdk *peer, uint8_t *frame, const void *payload, size_t length)
{
	struct frame_ends ends = {
		.source = peer->ip,
		.target = peer->side.ip,
		.source_port = peer->port,
		.target_port = peer->side.port,
		.ecn = peer->ecn,
		.ttl = 64,
	};
	struct frame_template template;
	uint64_t sum = frame_sum(payload, length, 0);

	hub_mac(peer->ip, ends.source_mac);
	memcpy(ends.target_mac, peer->side.mac, FRAME_MAC);
	frame_template_make(&template, &ends);
	frame_write(&template, frame, length, &sum);
	memcpy(frame + template.length, payload, length);
	return template.length + length;
}

void raw_udp(const struct raw_dpdk *peer, const void *payload, size_t length)
{
	uint8_t frame[HUB_FRAME_MOST];

	hub_send(frame, raw_frame(peer, frame, payload, length));
}

size_t raw_take(struct raw_dpdk *peer, uint8_t *payload, unsigned ms)
{
	uint8_t bytes[HUB_FRAME_MOST];
	uint64_t until = now_ms() + ms;
	struct frame frame;

	for (;;) {
		uint64_t now = now_ms();
		size_t length = hub_receive(bytes, now < until ? (unsigned)(until - now) : 0);

		if (!length)
			return 0;
		frame_read(bytes, length, (struct frame_checked){0}, &frame, NULL);
		if (frame.kind != FRAME_IS_UDP || frame.target != peer->ip ||
		    frame.target_port != peer->port)
			continue;
		memcpy(payload, frame.payload, frame.length);
		return frame.length;
	}
}

/* ---- Opening ----------------------------------------------------------- */

struct packet_open raw_open_of(const struct raw_dpdk *peer)
{
	return (struct packet_open){
		.name = peer->name,
		.incarnation = peer->name ^ UINT64_C(0x5555),
		.window = peer->window,
		.payload = peer->payload,
		.version = PACKET_VERSION,
	};
}

void raw_say_open(const struct raw_dpdk *peer, const struct packet_open *open, size_t length)
{
	uint8_t payload[PACKET_PAYLOAD_MOST] = {0};

	packet_write_open(payload, open);
	raw_udp(peer, payload, length);
}

bool raw_answer(struct raw_dpdk *peer, enum packet_type type, uint8_t *payload, size_t *length,
		unsigned ms)
{
	uint64_t until = now_ms() + ms;
	struct packet_head head;

	do {
		*length = raw_take(peer, payload, 20);
		if (*length && packet_read_head(payload, *length, &head) && head.type == type)
			return true;
	} while (now_ms() < until);
	return false;
}

void raw_cookie(struct raw_dpdk *peer, uint8_t cookie[PACKET_COOKIE_SIZE])
{
	struct packet_open open = raw_open_of(peer);
	uint8_t payload[PACKET_PAYLOAD_MOST];
	struct packet_answer answer;
	struct packet_head head;
	size_t length;

	for (unsigned tries = 0; tries < 50; tries++) {
		raw_say_open(peer, &open, PACKET_OPEN);
		if (!raw_answer(peer, PACKET_TYPE_COOKIE, payload, &length, 200))
			continue;
		assert_int_equal(length, PACKET_COOKIE);
		assert_true(packet_read_head(payload, length, &head));
		assert_int_equal(head.connection, peer->name);
		assert_true(packet_read_cookie(payload, length, &answer));
		memcpy(cookie, answer.cookie, PACKET_COOKIE_SIZE);
		return;
	}
	fail_msg("no cookie came");
}

void raw_connect_link(struct raw_dpdk *peer)
{
	struct packet_open open = raw_open_of(peer), opened;
	uint8_t payload[PACKET_PAYLOAD_MOST];
	size_t length;

	raw_cookie(peer, open.cookie);
	raw_say_open(peer, &open, peer->payload);
	assert_true(raw_answer(peer, PACKET_TYPE_OPENED, payload, &length, RAW_PATIENCE_MS));
	assert_true(packet_read_opened(payload, length, &opened));
	assert_int_equal(opened.payload, peer->payload);
	assert_int_equal(length, peer->payload);
	peer->side_name = opened.name;
}

void raw_dpdk_open(struct raw_dpdk *peer, struct side *side)
{
	unsigned before = side->accepted_count;
	uint8_t message[HAUL_CONTROL_MAX];

	raw_connect_link(peer);
	raw_dpdk_message(peer, message, raw_hello(message, WIRE_VERSION, 0, 65536));
	raw_dpdk_expect(peer, WIRE_HELLO, message);
	wait_accepted(side, before + 1);
	peer->endpoint = side->accepted[before];
}

/* ---- Sending ----------------------------------------------------------- */

struct packet_head raw_head(struct raw_dpdk *peer, enum packet_type type)
{
	return (struct packet_head){.connection = peer->side_name, .type = (uint8_t)type};
}

void raw_stream_at(struct raw_dpdk *peer, uint64_t offset, const void *bytes, size_t length)
{
	struct packet_head head = raw_head(peer, PACKET_TYPE_STREAM);
	uint8_t payload[PACKET_PAYLOAD_MOST];

	head.number = ++peer->number;
	packet_write_head(payload, &head);
	packet_write_offset(payload + PACKET_HEAD, offset);
	memcpy(payload + PACKET_STREAM, bytes, length);
	raw_udp(peer, payload, PACKET_STREAM + length);
}

void raw_stream(struct raw_dpdk *peer, const void *bytes, size_t length)
{
	raw_stream_at(peer, peer->stream_sent, bytes, length);
	peer->stream_sent += length;
}

void raw_dpdk_message(struct raw_dpdk *peer, const uint8_t *message, size_t length)
{
	const struct packet_record record = {.message = message,
					     .message_length = (uint16_t)length};
	uint8_t bytes[RECORD_MESSAGE + HAUL_CONTROL_MAX];

	raw_stream(peer, bytes, packet_write_record(bytes, &record));
}

void raw_data_as(struct raw_dpdk *peer, uint64_t number, uint32_t back, uint64_t slot,
		 uint64_t offset, const void *bytes, size_t length)
{
	const struct packet_data data = {.slot = slot, .offset = offset, .back = back};
	struct packet_head head = raw_head(peer, PACKET_TYPE_DATA);
	uint8_t payload[PACKET_PAYLOAD_MOST];

	head.number = number;
	packet_write_data(payload, &head, &data);
	memcpy(payload + PACKET_DATA, bytes, length);
	raw_udp(peer, payload, PACKET_DATA + length);
}

void raw_data(struct raw_dpdk *peer, uint64_t slot, uint64_t offset, const void *bytes,
	      size_t length)
{
	raw_data_as(peer, ++peer->number, 0, slot, offset, bytes, length);
}

void raw_tensor(struct raw_dpdk *peer, uint64_t slot, const uint8_t *bytes, size_t length)
{
	uint8_t message[HAUL_CONTROL_MAX];

	raw_dpdk_message(peer, message, raw_push(message, WIRE_PUSH, slot, length));
	for (size_t done = 0; done < length;) {
		size_t piece = length - done < 1000 ? length - done : 1000;

		raw_data(peer, slot, done, bytes + done, piece);
		done += piece;
	}
}

void raw_acknowledge(struct raw_dpdk *peer, const struct packet_ack *ack)
{
	uint8_t payload[PACKET_PAYLOAD_MOST];
	struct packet_head head = raw_head(peer, PACKET_TYPE_ACK);
	size_t length = packet_write_head(payload, &head);

	length += packet_write_ack(payload + length, sizeof(payload) - length, ack);
	raw_udp(peer, payload, length);
}

/* ---- Receiving --------------------------------------------------------- */

static void take_number(struct raw_dpdk *peer, const struct packet_head *head)
{
	struct packet_ack ack;

	if (head->number > peer->largest)
		peer->largest = head->number;
	received_add(peer->received, head->number, now_us() * 1000);
	if (peer->silent || !received_ack(peer->received, now_us() * 1000, &ack))
		return;
	ack.window = peer->window;
	if (peer->delay)
		ack.delay_ns = peer->delay;
	raw_acknowledge(peer, &ack);
}

static void take_stream(struct raw_dpdk *peer, const struct packet_head *head, const uint8_t *bytes,
			size_t length)
{
	struct packet_ack ack;
	size_t used = 0;
	uint64_t offset;

	if (head->flags & PACKET_HAS_ACK)
		assert_true(packet_read_ack(bytes, length, &ack, &used));
	assert_true(length >= used + 8);
	offset = packet_read_offset(bytes + used);
	bytes += used + 8;
	length -= used + 8;
	/* What comes too early comes again, as long as it is not acknowledged. */
	if (offset > peer->stream_length)
		return;
	assert_true(offset + length <= RAW_STREAM);
	memcpy(peer->stream + offset, bytes, length);
	if (offset + length > peer->stream_length)
		peer->stream_length = offset + length;
	take_number(peer, head);
}

static void take_data(struct raw_dpdk *peer, const uint8_t *payload, size_t length)
{
	struct packet_data data;

	assert_true(packet_read_data(payload, length, &data));
	length -= PACKET_DATA;
	assert_true(data.offset + length <= RAW_DATA);
	memcpy(peer->data + data.offset, payload + PACKET_DATA, length);
	peer->data_packets++;
	peer->data_bytes += length;
}

bool raw_serve(struct raw_dpdk *peer, unsigned ms)
{
	uint8_t payload[PACKET_PAYLOAD_MOST], closed[PACKET_HEAD];
	size_t length = raw_take(peer, payload, ms);
	struct packet_head head;

	if (!length)
		return false;
	assert_true(packet_read_head(payload, length, &head));
	switch (head.type) {
	case PACKET_TYPE_STREAM:
		take_stream(peer, &head, payload + PACKET_HEAD, length - PACKET_HEAD);
		break;
	case PACKET_TYPE_DATA:
		take_data(peer, payload, length);
		take_number(peer, &head);
		break;
	case PACKET_TYPE_PING:
		take_number(peer, &head);
		break;
	case PACKET_TYPE_CLOSE:
		peer->closed = true;
		packet_read_close(payload, length, &peer->reason);
		raw_udp(peer, closed, packet_write_closed(closed, peer->side_name));
		break;
	case PACKET_TYPE_RESET:
		peer->reset = true;
		break;
	default:
		break;
	}
	return true;
}

void raw_dpdk_expect(struct raw_dpdk *peer, enum wire_type type, uint8_t *message)
{
	uint64_t until = now_ms() + RAW_PATIENCE_MS;
	struct packet_record record;

	while (now_ms() < until) {
		long size =
			packet_read_record(peer->stream + peer->stream_read,
					   peer->stream_length - peer->stream_read, 8192, &record);

		assert_true(size >= 0);
		if (size == 0) {
			if (peer->closed || peer->reset)
				fail_msg("the connection ended before message %d came", type);
			raw_serve(peer, 100);
			continue;
		}
		peer->stream_read += (size_t)size;
		memcpy(message, record.message, record.message_length);
		if (message[0] == type)
			return;
	}
	fail_msg("message %d did not come", type);
}
