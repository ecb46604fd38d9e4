/* SPDX-License-Identifier: Apache-2.0 */
/* DLPack tensors: what may be sent, and how large it is. haul_tensor_bytes() is in tensor.c too. */
#ifndef TENSORHAUL_TENSOR_H
#define TENSORHAUL_TENSOR_H

#include <stdbool.h>

#include "tensorhaul/haul.h"

/*
 * Check a tensor, take its description and the address of its first byte. `anywhere`: it may be on
 * a device that the CPU does not reach. -EINVAL, -EOVERFLOW.
 */
int tensor_describe(const DLTensor *tensor, bool anywhere, struct haul_tensor_info *info,
		    uint8_t **data, char *reason, size_t room);

/*
 * The size of compact memory of this dtype and shape, bits rounded up to whole bytes once, for the
 * whole tensor. -EINVAL for a dtype of 0 bits or 0 lanes or a negative dimension; -EOVERFLOW.
 */
int tensor_info_bytes(const struct haul_tensor_info *info, uint64_t *bytes);

#endif
