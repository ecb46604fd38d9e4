/* SPDX-License-Identifier: Apache-2.0 */
#include "frame.h"

#include <arpa/inet.h>
#include <string.h>

enum {
	ETHERTYPE_IPV4 = 0x0800,
	ETHERTYPE_ARP = 0x0806,
	ETHERTYPE_VLAN = 0x8100,
	PROTOCOL_ICMP = 1,
	PROTOCOL_UDP = 17,
	ICMP_ANSWER = 0,
	ICMP_UNREACHABLE = 3,
	ICMP_ECHO = 8,
	ICMP_HEAD = 8,
	ARP_ASKS = 1,
	ARP_ANSWERS = 2,
	TIME_TO_LIVE = 64,
};

#define TAG_ID 0x0fff
#define DONT_FRAGMENT 0x4000
#define FRAGMENT 0x3fff /* "more fragments", and the offset */

static const uint8_t everybody[FRAME_MAC] = {0xff, 0xff, 0xff, 0xff, 0xff, 0xff};

/* ---- Numbers ----------------------------------------------------------- */

static uint16_t read16(const uint8_t *bytes)
{
	return (uint16_t)(bytes[0] << 8 | bytes[1]);
}

static uint32_t read32(const uint8_t *bytes)
{
	return (uint32_t)read16(bytes) << 16 | read16(bytes + 2);
}

static void write16(uint8_t *bytes, uint16_t number)
{
	bytes[0] = (uint8_t)(number >> 8);
	bytes[1] = (uint8_t)number;
}

static void write32(uint8_t *bytes, uint32_t number)
{
	write16(bytes, (uint16_t)(number >> 16));
	write16(bytes + 2, (uint16_t)number);
}

/* ---- The checksum ------------------------------------------------------ */

/*
 * Words are added in the host's byte order, eight bytes at a time: the sum of swapped words is the
 * swapped sum (RFC 1071, section 2), and carries are brought back at the end. Four sums that don't
 * depend on each other keep the adders busy.
 */
struct sum {
	uint64_t low[4], carries[4];
};

static inline void sum_add(struct sum *sum, unsigned lane, uint64_t word)
{
	sum->carries[lane] += __builtin_add_overflow(sum->low[lane], word, &sum->low[lane]);
}

/* One's complement: a carry out of the top comes back at the bottom. */
static inline uint64_t add_around(uint64_t a, uint64_t b)
{
	uint64_t sum;

	return __builtin_add_overflow(a, b, &sum) ? sum + 1 : sum;
}

static inline uint64_t sum_end(const struct sum *sum)
{
	uint64_t all = 0;

	for (unsigned lane = 0; lane < 4; lane++) {
		all = add_around(all, sum->low[lane]);
		all = add_around(all, sum->carries[lane]);
	}
	return all;
}

static inline uint64_t load(const uint8_t *bytes)
{
	uint64_t word;

	memcpy(&word, bytes, sizeof(word));
	return word;
}

/* What is left behind the last whole block: less than 32 bytes, the last word is filled with 0. */
static inline uint64_t sum_rest(const uint8_t *bytes, size_t length, uint64_t sum)
{
	uint64_t word = 0;

	for (; length >= 8; length -= 8, bytes += 8)
		sum = add_around(sum, load(bytes));
	memcpy(&word, bytes, length);
	return add_around(sum, word);
}

uint64_t frame_sum(const void *bytes, size_t length, uint64_t sum)
{
	const uint8_t *at = bytes;
	struct sum sums = {.low = {sum}};

	for (; length >= 32; length -= 32, at += 32) {
		for (unsigned lane = 0; lane < 4; lane++)
			sum_add(&sums, lane, load(at + 8 * lane));
	}
	return sum_rest(at, length, sum_end(&sums));
}

uint64_t frame_sum_copy(void *to, const void *from, size_t length, uint64_t sum)
{
	const uint8_t *at = from;
	uint8_t *out = to;
	struct sum sums = {.low = {sum}};

	for (; length >= 32; length -= 32, at += 32, out += 32) {
		for (unsigned lane = 0; lane < 4; lane++) {
			uint64_t word = load(at + 8 * lane);

			memcpy(out + 8 * lane, &word, sizeof(word));
			sum_add(&sums, lane, word);
		}
	}
	memcpy(out, at, length);
	return sum_rest(at, length, sum_end(&sums));
}

/* Sixteen bits in the host's byte order. */
static uint16_t fold(uint64_t sum)
{
	sum = (sum >> 32) + (sum & UINT32_MAX);
	sum = (sum >> 32) + (sum & UINT32_MAX);
	sum = (sum >> 16) + (sum & UINT16_MAX);
	sum = (sum >> 16) + (sum & UINT16_MAX);
	return (uint16_t)((sum >> 16) + sum);
}

uint16_t frame_fold(uint64_t sum)
{
	return (uint16_t)~ntohs(fold(sum));
}

/* Add a number that stands in the bytes as two big-endian ones. */
static uint64_t sum_number(uint64_t sum, uint16_t number)
{
	return add_around(sum, htons(number));
}

/* Bytes that contain their own checksum. */
static bool sum_is_right(uint64_t sum)
{
	return fold(sum) == UINT16_MAX;
}

/* ---- Reading ----------------------------------------------------------- */

/* Of a packet on its way up. */
struct input {
	const uint8_t *bytes;
	size_t length;
	struct frame_checked checked;
	bool bad;
};

static void skip(struct input *input, size_t length)
{
	input->bytes += length;
	input->length -= length;
}

/* Addresses that no packet comes from: RFC 1122, section 3.2.1.3. */
static bool is_no_source(uint32_t address)
{
	return address == 0 || address >> 24 == 127 || address >= 0xe0000000;
}

static enum frame_kind read_arp(struct input *input, struct frame *frame)
{
	static const uint8_t ethernet_ipv4[6] = {0, 1, 8, 0, FRAME_MAC, 4};
	const uint8_t *arp = input->bytes;
	uint16_t operation;

	if (input->length < FRAME_ARP || memcmp(arp, ethernet_ipv4, sizeof(ethernet_ipv4)))
		return FRAME_OTHER;
	operation = read16(arp + 6);
	if ((operation != ARP_ASKS && operation != ARP_ANSWERS) || arp[8] & 1)
		return FRAME_OTHER;
	frame->arp_asks = operation == ARP_ASKS;
	frame->arp_mac = arp + 8;
	frame->source = read32(arp + 14);
	frame->target = read32(arp + 24);
	return FRAME_IS_ARP;
}

static enum frame_kind read_udp(struct input *input, struct frame *frame)
{
	const uint8_t *udp = input->bytes;
	uint64_t sum;

	if (input->length < FRAME_UDP || read16(udp + 4) != input->length)
		return FRAME_OTHER;
	frame->source_port = read16(udp);
	frame->target_port = read16(udp + 2);
	frame->unchecked = read16(udp + 6) == 0;
	if (!frame->unchecked && !input->checked.udp) {
		sum = sum_number(0, PROTOCOL_UDP);
		sum = sum_number(sum, (uint16_t)input->length);
		sum = sum_number(sum, (uint16_t)(frame->source >> 16));
		sum = sum_number(sum, (uint16_t)frame->source);
		sum = sum_number(sum, (uint16_t)(frame->target >> 16));
		sum = sum_number(sum, (uint16_t)frame->target);
		if (!sum_is_right(frame_sum(udp, input->length, sum))) {
			input->bad = true;
			return FRAME_OTHER;
		}
	}
	frame->payload = udp + FRAME_UDP;
	frame->length = input->length - FRAME_UDP;
	return FRAME_IS_UDP;
}

/* The head of a packet that we are said to have sent: its IPv4 header and 8 bytes. */
static enum frame_kind read_unreachable(const uint8_t *icmp, size_t length, struct frame *frame)
{
	const uint8_t *sent = icmp + ICMP_HEAD;
	size_t header;

	if (length < ICMP_HEAD + FRAME_IPV4 || sent[0] >> 4 != 4)
		return FRAME_OTHER;
	header = (sent[0] & 15u) * 4;
	if (header < FRAME_IPV4 || length < ICMP_HEAD + header + FRAME_UDP)
		return FRAME_OTHER;
	if (sent[9] != PROTOCOL_UDP || read16(sent + 6) & FRAGMENT)
		return FRAME_OTHER;
	frame->source = read32(sent + 12);
	frame->target = read32(sent + 16);
	frame->source_port = read16(sent + header);
	frame->target_port = read16(sent + header + 2);
	frame->icmp_code = icmp[1];
	return FRAME_IS_UNREACHABLE;
}

static enum frame_kind read_icmp(struct input *input, struct frame *frame)
{
	const uint8_t *icmp = input->bytes;

	if (input->length < ICMP_HEAD)
		return FRAME_OTHER;
	if (!sum_is_right(frame_sum(icmp, input->length, 0))) {
		input->bad = true;
		return FRAME_OTHER;
	}
	frame->payload = icmp;
	frame->length = input->length;
	if (icmp[0] == ICMP_ECHO && icmp[1] == 0)
		return FRAME_IS_ECHO;
	if (icmp[0] == ICMP_UNREACHABLE)
		return read_unreachable(icmp, input->length, frame);
	return FRAME_OTHER;
}

static enum frame_kind read_ipv4(struct input *input, struct frame *frame)
{
	const uint8_t *ip = input->bytes;
	size_t header, total;

	if (input->length < FRAME_IPV4 || ip[0] >> 4 != 4)
		return FRAME_OTHER;
	header = (ip[0] & 15u) * 4;
	total = read16(ip + 2);
	if (header < FRAME_IPV4 || total < header || total > input->length)
		return FRAME_OTHER;
	if (!input->checked.ip && !sum_is_right(frame_sum(ip, header, 0))) {
		input->bad = true;
		return FRAME_OTHER;
	}
	frame->source = read32(ip + 12);
	frame->target = read32(ip + 16);
	frame->ecn = ip[1] & 3;
	if (read16(ip + 6) & FRAGMENT || is_no_source(frame->source))
		return FRAME_OTHER;
	input->length = total; /* short frames are padded */
	skip(input, header);
	if (ip[9] == PROTOCOL_UDP)
		return read_udp(input, frame);
	return ip[9] == PROTOCOL_ICMP ? read_icmp(input, frame) : FRAME_OTHER;
}

static enum frame_kind read_ethernet(struct input *input, struct frame *frame)
{
	uint16_t type;

	if (input->length < FRAME_ETHERNET || input->bytes[FRAME_MAC] & 1)
		return FRAME_OTHER;
	frame->source_mac = input->bytes + FRAME_MAC;
	type = read16(input->bytes + 12);
	skip(input, FRAME_ETHERNET);
	if (type == ETHERTYPE_VLAN) {
		if (input->length < FRAME_TAG)
			return FRAME_OTHER;
		frame->tag = read16(input->bytes) & TAG_ID;
		type = read16(input->bytes + 2);
		skip(input, FRAME_TAG);
	}
	if (type == ETHERTYPE_IPV4)
		return read_ipv4(input, frame);
	return type == ETHERTYPE_ARP ? read_arp(input, frame) : FRAME_OTHER;
}

void frame_read(const uint8_t *bytes, size_t length, struct frame_checked checked,
		struct frame *frame, bool *bad_checksum)
{
	struct input input = {.bytes = bytes, .length = length, .checked = checked};

	*frame = (struct frame){0};
	frame->kind = read_ethernet(&input, frame);
	if (bad_checksum)
		*bad_checksum = input.bad;
}

/* ---- Writing ----------------------------------------------------------- */

/* Ethernet and, when there is one, the tag; gives their length. */
static size_t write_ethernet(uint8_t *to, const uint8_t *target, const uint8_t *source,
			     uint16_t tag, uint16_t type)
{
	memcpy(to, target, FRAME_MAC);
	memcpy(to + FRAME_MAC, source, FRAME_MAC);
	if (!tag) {
		write16(to + 12, type);
		return FRAME_ETHERNET;
	}
	write16(to + 12, ETHERTYPE_VLAN);
	write16(to + 14, tag);
	write16(to + 16, type);
	return FRAME_ETHERNET + FRAME_TAG;
}

/* Without length and checksum. */
static void write_ipv4(uint8_t *to, uint8_t service, uint8_t ttl, uint8_t protocol, uint32_t source,
		       uint32_t target)
{
	memset(to, 0, FRAME_IPV4);
	to[0] = 0x45;
	to[1] = service;
	/* The identification stays 0: nobody may cut the packet (RFC 6864). */
	write16(to + 6, DONT_FRAGMENT);
	to[8] = ttl;
	to[9] = protocol;
	write32(to + 12, source);
	write32(to + 16, target);
}

void frame_template_make(struct frame_template *frame, const struct frame_ends *ends)
{
	uint8_t *ip, *udp;
	size_t ethernet;

	*frame = (struct frame_template){0};
	ethernet = write_ethernet(frame->bytes, ends->target_mac, ends->source_mac, ends->tag,
				  ETHERTYPE_IPV4);
	ip = frame->bytes + ethernet;
	udp = ip + FRAME_IPV4;
	write_ipv4(ip, (uint8_t)(ends->dscp << 2 | (ends->ecn & 3)), ends->ttl, PROTOCOL_UDP,
		   ends->source, ends->target);
	write16(udp, ends->source_port);
	write16(udp + 2, ends->target_port);
	frame->length = (uint8_t)(ethernet + FRAME_IP_HEADERS);
	frame->ip_sum = frame_sum(ip, FRAME_IPV4, 0);
	/* The pseudo header: both addresses, which the IPv4 header ends with, and the protocol. */
	frame->udp_sum = sum_number(frame_sum(ip + 12, 8 + FRAME_UDP, 0), PROTOCOL_UDP);
}

size_t frame_write(const struct frame_template *frame, uint8_t *to, size_t payload,
		   const uint64_t *sum)
{
	uint8_t *ip = to + frame->length - FRAME_IP_HEADERS, *udp = ip + FRAME_IPV4;
	uint16_t length = (uint16_t)(payload + FRAME_UDP), checksum;
	uint64_t all;

	/* Lengths that are known make a few moves of it. */
	if (frame->length == FRAME_HEADERS)
		memcpy(to, frame->bytes, FRAME_HEADERS);
	else
		memcpy(to, frame->bytes, FRAME_HEADERS - FRAME_TAG);
	write16(ip + 2, (uint16_t)(length + FRAME_IPV4));
	write16(ip + 10, frame_fold(sum_number(frame->ip_sum, (uint16_t)(length + FRAME_IPV4))));
	write16(udp + 4, length);
	if (sum) {
		/* The length stands in the header and in the pseudo header. */
		all = sum_number(sum_number(frame->udp_sum, length), length);
		checksum = frame_fold(add_around(all, *sum));
		write16(udp + 6, checksum ? checksum : UINT16_MAX);
	}
	return frame->length;
}

static size_t pad(uint8_t *to, size_t length)
{
	if (length >= FRAME_LEAST)
		return length;
	memset(to + length, 0, FRAME_LEAST - length);
	return FRAME_LEAST;
}

size_t frame_write_arp(uint8_t *to, const uint8_t *source_mac, uint32_t source, uint16_t tag,
		       const uint8_t *target_mac, uint32_t target)
{
	static const uint8_t head[] = {0, 1, 8, 0, FRAME_MAC, 4, 0};
	uint8_t *arp = to + write_ethernet(to, target_mac ? target_mac : everybody, source_mac, tag,
					   ETHERTYPE_ARP);

	memset(arp, 0, FRAME_ARP);
	memcpy(arp, head, sizeof(head));
	arp[7] = target_mac ? ARP_ANSWERS : ARP_ASKS;
	memcpy(arp + 8, source_mac, FRAME_MAC);
	write32(arp + 14, source);
	if (target_mac)
		memcpy(arp + 18, target_mac, FRAME_MAC);
	write32(arp + 24, target);
	return pad(to, (size_t)(arp - to) + FRAME_ARP);
}

size_t frame_write_echo(uint8_t *to, size_t room, const uint8_t *source_mac,
			const struct frame *request)
{
	size_t ethernet = FRAME_ETHERNET + (request->tag ? FRAME_TAG : 0);
	size_t total = FRAME_IPV4 + request->length;
	uint8_t *ip, *icmp;

	if (room < FRAME_LEAST || room - ethernet < total || total > UINT16_MAX)
		return 0;
	write_ethernet(to, request->source_mac, source_mac, request->tag, ETHERTYPE_IPV4);
	ip = to + ethernet;
	icmp = ip + FRAME_IPV4;
	write_ipv4(ip, 0, TIME_TO_LIVE, PROTOCOL_ICMP, request->target, request->source);
	write16(ip + 2, (uint16_t)total);
	write16(ip + 10, frame_fold(frame_sum(ip, FRAME_IPV4, 0)));
	memcpy(icmp, request->payload, request->length);
	icmp[0] = ICMP_ANSWER;
	write16(icmp + 2, 0);
	write16(icmp + 2, frame_fold(frame_sum(icmp, request->length, 0)));
	return pad(to, ethernet + total);
}
