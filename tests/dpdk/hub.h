/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Where hostile peers meet the library: a process of its own that is the memif server of contexts
 * (ports 1..HUB_PORTS), passes frames between them, and hands the test those for addresses that
 * start with HUB_MAC; the test's frames go to whom they name. It answers ARP for the addresses that
 * are ours: 10.77.1.0 to 10.77.255.255. No DPDK in it.
 */
#ifndef TESTS_DPDK_HUB_H
#define TESTS_DPDK_HUB_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define HUB_PORTS 8
#define HUB_FRAME_MOST 9700
#define HUB_NET UINT32_C(0x0a4d0000)
/* The n-th address of ours, n = 1..65279. */
#define HUB_IP(n) (HUB_NET + 255 + (uint32_t)(n))

/* Start it; gives the path of its socket. Before anything else of the process runs. */
const char *hub_start(void);
void hub_stop(void);

/* The MAC of an address of ours. */
void hub_mac(uint32_t ip, uint8_t mac[6]);

/* Send a frame; waits while the hub is busy. From any thread. */
void hub_send(const void *frame, size_t length);
/* The next frame for us: its length, 0 when none comes within so many ms. */
size_t hub_receive(uint8_t frame[HUB_FRAME_MOST], unsigned ms);
/* Take no frames from the contexts for a while, so that their rings fill up. */
void hub_hold(bool hold);
/* Forget what has come. */
void hub_forget(void);

#endif
