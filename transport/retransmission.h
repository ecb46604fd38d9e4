/* SPDX-License-Identifier: Apache-2.0 */
/* How soon TCP misses a packet that nothing follows. */
#ifndef TENSORHAUL_RETRANSMISSION_H
#define TENSORHAUL_RETRANSMISSION_H

#include <netinet/in.h>
#include <netinet/tcp.h>
#include <stdint.h>
#include <sys/socket.h>

/* Of Linux 6.16, which the C library's headers may not know. */
#ifndef TCP_RTO_MIN_US
#define TCP_RTO_MIN_US 45
#endif
#ifndef TCP_DELACK_MAX_US
#define TCP_DELACK_MAX_US 46
#endif

/*
 * A packet that nothing follows is only missed when the retransmission timeout ends, which the
 * kernel sets to 200 ms at least: ages for a control message. With a least timeout of `ms` (0: the
 * kernel's) this side also acknowledges within half of it, or each pause would look like a loss to
 * a peer that does the same. An older kernel doesn't know these options, and other sockets than
 * TCP's don't either: nothing is lost.
 */
static inline void retransmission_set(int fd, uint64_t ms)
{
	int least = (int)ms * 1000, acknowledge = least / 2;

	if (!ms)
		return;
	(void)setsockopt(fd, IPPROTO_TCP, TCP_RTO_MIN_US, &least, sizeof(least));
	(void)setsockopt(fd, IPPROTO_TCP, TCP_DELACK_MAX_US, &acknowledge, sizeof(acknowledge));
}

#endif
