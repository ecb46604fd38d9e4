/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What a path loses by itself: counted while hardly anything waits, when no loss can come from a
 * buffer that is full. A round trip with clearly more than that tells of such a buffer.
 */
#ifndef TENSORHAUL_DPDK_SWIFT_LOSS_H
#define TENSORHAUL_DPDK_SWIFT_LOSS_H

#include <stdbool.h>

/* In packets; all zero: nothing is known, and each loss is too much. */
struct own_loss {
	double all, lost;
};

/* A round trip without a queue, in which `lost` of `all` packets did not arrive. */
void own_loss_count(struct own_loss *own, double all, double lost);
/* In another one, of `all` packets, more were lost than chance would have it. */
bool own_loss_exceeded(const struct own_loss *own, double all, double lost);

#endif
