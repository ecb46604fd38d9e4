/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The wire between the two hosts. It sits at the ingress of the wire's two devices:
 * a frame that came in at one of them is lost, at a set rate, or leaves by the other
 * one, where a queueing discipline holds the line rate.
 *
 * Set when it is compiled (bench/testbed/hosts does that):
 *
 *   OTHER_DEVICE    interface index of the device that frames leave by
 *   LOSS_THRESHOLD  the fraction to lose, times 2^32 (2^32 loses every frame)
 *   THROTTLED_PORT  TCP frames to or from this port take the slow lane; 0: none
 *   SLOW_LANE       the class of the queueing discipline that is the slow lane
 *   IS_SWITCH       1: what waits for the line is the sender's no more. A frame keeps its socket
 *                   on its way to the other host, and TCP holds back what it counts as not yet
 *                   sent (small queues): beside flows that fill the line's queue a socket would
 *                   get next to nothing. A clone has no socket.
 */
#include <linux/bpf.h>
#include <linux/if_ether.h>
#include <linux/in.h>
#include <linux/ip.h>
#include <linux/ipv6.h>
#include <linux/pkt_cls.h>

#define SECTION(name) __attribute__((section(name), used))
#define BIG_ENDIAN_16(value) __builtin_bswap16(value)

static __u32 (*random_u32)(void) = (void *)BPF_FUNC_get_prandom_u32;
static long (*redirect)(__u32 device, __u64 flags) = (void *)BPF_FUNC_redirect;
static long (*clone_redirect)(struct __sk_buff *frame, __u32 device,
			      __u64 flags) = (void *)BPF_FUNC_clone_redirect;
static long (*load_bytes)(const void *frame, __u32 offset, void *to,
			  __u32 length) = (void *)BPF_FUNC_skb_load_bytes;

static inline int tcp_offset(const struct __sk_buff *frame)
{
	struct ipv6hdr version6;
	struct iphdr version4;

	if (frame->protocol == BIG_ENDIAN_16(ETH_P_IP)) {
		if (load_bytes(frame, ETH_HLEN, &version4, sizeof(version4)) < 0 ||
		    version4.protocol != IPPROTO_TCP)
			return -1;
		return ETH_HLEN + version4.ihl * 4;
	}
	if (frame->protocol == BIG_ENDIAN_16(ETH_P_IPV6)) {
		if (load_bytes(frame, ETH_HLEN, &version6, sizeof(version6)) < 0 ||
		    version6.nexthdr != IPPROTO_TCP)
			return -1;
		return ETH_HLEN + sizeof(version6);
	}
	return -1;
}

static inline int is_throttled(const struct __sk_buff *frame)
{
	__u16 ports[2];
	int offset = tcp_offset(frame);

	if (offset < 0 || load_bytes(frame, offset, ports, sizeof(ports)) < 0)
		return 0;
	return ports[0] == BIG_ENDIAN_16(THROTTLED_PORT) ||
	       ports[1] == BIG_ENDIAN_16(THROTTLED_PORT);
}

SECTION("tc") int carry(struct __sk_buff *frame)
{
	if ((__u64)random_u32() < LOSS_THRESHOLD)
		return TC_ACT_SHOT;
	if (THROTTLED_PORT && is_throttled(frame))
		frame->priority = SLOW_LANE;
	if (IS_SWITCH) {
		clone_redirect(frame, OTHER_DEVICE, 0);
		return TC_ACT_STOLEN;
	}
	return redirect(OTHER_DEVICE, 0);
}

char wire_license[] SECTION("license") = "Apache-2.0";
