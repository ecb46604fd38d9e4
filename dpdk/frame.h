/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Ethernet, ARP, IPv4, UDP and ICMP, as bytes: reading what came, and writing what leaves. Plain
 * arithmetic, no DPDK, no state. Addresses and ports are in host byte order, unless they are bytes.
 *
 * RFC 894 and 1042 (Ethernet), IEEE 802.1Q (VLAN tag), RFC 826 (ARP), 791 (IPv4), 768 (UDP),
 * 792 (ICMP), 3168 (ECN), 1071 (the checksum).
 */
#ifndef TENSORHAUL_DPDK_FRAME_H
#define TENSORHAUL_DPDK_FRAME_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define FRAME_MAC 6
#define FRAME_ETHERNET 14
#define FRAME_TAG 4
#define FRAME_IPV4 20 /* as we write it: without options */
#define FRAME_UDP 8
#define FRAME_ARP 28
/* The most bytes before the UDP payload, and those between Ethernet and the payload. */
#define FRAME_HEADERS (FRAME_ETHERNET + FRAME_TAG + FRAME_IPV4 + FRAME_UDP)
#define FRAME_IP_HEADERS (FRAME_IPV4 + FRAME_UDP)
/* The shortest frame, without the check sequence. */
#define FRAME_LEAST 60

enum frame_ecn {
	FRAME_ECN_NONE = 0,
	FRAME_ECN_1 = 1,
	FRAME_ECN_0 = 2,   /* "capable": what we send */
	FRAME_ECN_MET = 3, /* congestion experienced */
};

enum frame_kind {
	FRAME_OTHER = 0, /* not ours to answer, or broken */
	FRAME_IS_ARP,
	FRAME_IS_UDP,
	FRAME_IS_ECHO,        /* an ICMP echo request */
	FRAME_IS_UNREACHABLE, /* ICMP destination unreachable for a UDP packet that we sent */
};

/* What came. */
struct frame {
	enum frame_kind kind;
	const uint8_t *source_mac;
	uint32_t source, target; /* IPv4 addresses; of an ARP packet: sender and target */
	uint16_t source_port, target_port;
	uint16_t tag; /* VLAN id, 0: none */
	uint8_t ecn;
	bool arp_asks;  /* else it answers */
	bool unchecked; /* UDP: the sender left the checksum out */
	uint8_t icmp_code;
	const uint8_t *arp_mac; /* ARP: the sender's */
	const uint8_t *payload; /* UDP payload; of ICMP the whole message */
	size_t length;
	/* UNREACHABLE: source, target and the ports are of the packet that we sent. */
};

/* What the card has checked already (offloads). */
struct frame_checked {
	bool ip, udp;
};

/*
 * Look at the `length` contiguous bytes of one frame. Lengths that lie, fragments, IP options that
 * don't fit, bad checksums give FRAME_OTHER. With checked.udp the UDP checksum is not looked at.
 * `bad_checksum` tells why, for the statistics; it may be NULL. Pointers of `frame` lead into
 * `bytes`.
 */
void frame_read(const uint8_t *bytes, size_t length, struct frame_checked checked,
		struct frame *frame, bool *bad_checksum);

/* One's complement sum over bytes, to be folded: start with 0, or the sum of what was before (an
 * even number of bytes). Fast: it runs over all bytes of tensors where the card can't. */
uint64_t frame_sum(const void *bytes, size_t length, uint64_t sum);
/* Copy and sum at once. */
uint64_t frame_sum_copy(void *to, const void *from, size_t length, uint64_t sum);
/* The checksum field for a sum: folded, inverted; a number like any other in this file. */
uint16_t frame_fold(uint64_t sum);

/* Everything below UDP's payload for packets to one peer, made once. */
struct frame_template {
	uint8_t bytes[FRAME_HEADERS];
	uint8_t length;   /* of bytes: 42, or 46 with a tag */
	uint64_t ip_sum;  /* of the IPv4 header with length 0 */
	uint64_t udp_sum; /* of the pseudo header and UDP header with length 0 */
};

struct frame_ends {
	uint8_t source_mac[FRAME_MAC], target_mac[FRAME_MAC];
	uint32_t source, target;
	uint16_t source_port, target_port;
	uint16_t tag; /* 0: none */
	uint8_t ecn, dscp, ttl;
};

void frame_template_make(struct frame_template *frame, const struct frame_ends *ends);

/*
 * Write the headers for `payload` bytes of UDP payload to `to` and give their length. The IPv4
 * checksum is filled in. UDP's: with `sum` NULL it is left out (0), else it is computed with *sum,
 * the sum of the payload.
 */
size_t frame_write(const struct frame_template *frame, uint8_t *to, size_t payload,
		   const uint64_t *sum);

/* An ARP packet; padded to FRAME_LEAST. Gives the length. `target_mac` NULL asks, by broadcast. */
size_t frame_write_arp(uint8_t *to, const uint8_t *source_mac, uint32_t source, uint16_t tag,
		       const uint8_t *target_mac, uint32_t target);

/* The answer to an echo request, which is the `length` bytes of `frame`: 0 when it is longer than
 * `room`. */
size_t frame_write_echo(uint8_t *to, size_t room, const uint8_t *source_mac,
			const struct frame *request);

#endif
