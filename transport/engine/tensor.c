/* SPDX-License-Identifier: Apache-2.0 */
#include "tensor.h"

#include <errno.h>
#include <inttypes.h>
#include <stdbool.h>

#include "log.h"

static bool device_is_host(DLDeviceType type)
{
	return type == kDLCPU || type == kDLCUDAHost || type == kDLROCMHost;
}

static int check_form(const DLTensor *tensor, bool anywhere, char *reason, size_t room)
{
	if (tensor->ndim < 0 || tensor->ndim > HAUL_RANK_MAX)
		return explain(reason, room, -EINVAL,
			       "the tensor's rank (ndim) is %d; valid are 0 to %d", tensor->ndim,
			       HAUL_RANK_MAX);
	if (tensor->ndim && !tensor->shape)
		return explain(
			reason, room, -EINVAL,
			"the tensor's shape is NULL; with ndim %d it must name %d dimensions",
			tensor->ndim, tensor->ndim);
	if (!anywhere && !device_is_host(tensor->device.device_type))
		return explain(
			reason, room, -EINVAL,
			"the tensor is on DLPack device type %d; valid are CPU (%d), CUDA host "
			"(%d) and ROCm host memory (%d): copy it to one of these first, or "
			"register "
			"its memory with haul_region_dmabuf()",
			(int)tensor->device.device_type, kDLCPU, kDLCUDAHost, kDLROCMHost);
	if (!tensor->dtype.bits || !tensor->dtype.lanes)
		return explain(
			reason, room, -EINVAL,
			"the tensor's dtype has %u bits and %u lanes; valid are 1 to 255 bits "
			"and 1 to 65535 lanes",
			tensor->dtype.bits, tensor->dtype.lanes);
	for (int i = 0; i < tensor->ndim; i++) {
		if (tensor->shape[i] < 0)
			return explain(reason, room, -EINVAL,
				       "the tensor's shape[%d] is %" PRId64
				       "; valid are 0 and above",
				       i, tensor->shape[i]);
	}
	return 0;
}

/* Of a tensor that has elements. A dimension of size 1 is never stepped along. */
static int check_strides(const DLTensor *tensor, char *reason, size_t room)
{
	uint64_t compact = 1;

	if (!tensor->strides)
		return 0;
	for (int i = tensor->ndim - 1; i >= 0; i--) {
		if (tensor->shape[i] != 1 && (uint64_t)tensor->strides[i] != compact)
			return explain(reason, room, -EINVAL,
				       "the tensor's strides[%d] is %" PRId64 "; valid is %" PRIu64
				       ", since only compact row-major tensors are taken: make a "
				       "contiguous copy first",
				       i, tensor->strides[i], compact);
		compact *= (uint64_t)tensor->shape[i];
	}
	return 0;
}

static int check_data(const DLTensor *tensor, uint64_t bytes, char *reason, size_t room)
{
	uint64_t end;

	if (!tensor->data && !bytes)
		return 0;
	if (!tensor->data)
		return explain(
			reason, room, -EINVAL,
			"the tensor's data is NULL; that is valid only for 0 bytes, and this "
			"one has %" PRIu64,
			bytes);
	if (__builtin_add_overflow((uintptr_t)tensor->data, tensor->byte_offset, &end) ||
	    __builtin_add_overflow(end, bytes, &end) || end > UINTPTR_MAX)
		return explain(reason, room, -EINVAL,
			       "the tensor's data, byte_offset %" PRIu64 " and %" PRIu64
			       " bytes go over the end of the address space",
			       tensor->byte_offset, bytes);
	return 0;
}

int tensor_info_bytes(const struct haul_tensor_info *info, uint64_t *bytes)
{
	uint64_t element_bits = (uint64_t)info->dtype.bits * info->dtype.lanes;
	uint64_t elements = 1;
	bool empty = false, overflow = false;

	if (!element_bits || info->ndim < 0 || info->ndim > HAUL_RANK_MAX)
		return -EINVAL;
	for (int i = 0; i < info->ndim; i++) {
		if (info->shape[i] < 0)
			return -EINVAL;
		empty |= !info->shape[i];
		overflow |= __builtin_mul_overflow(elements, (uint64_t)info->shape[i], &elements);
	}
	*bytes = 0;
	if (empty) /* however large the other dimensions are */
		return 0;
	/* In groups of eight elements, which are whole bytes, so that bits can't overflow. */
	overflow |= __builtin_mul_overflow(elements / 8, element_bits, bytes);
	overflow |= __builtin_add_overflow(*bytes, (elements % 8 * element_bits + 7) / 8, bytes);
	return overflow || *bytes > INT64_MAX ? -EOVERFLOW : 0;
}

int tensor_describe(const DLTensor *tensor, bool anywhere, struct haul_tensor_info *info,
		    uint8_t **data, char *reason, size_t room)
{
	int error;

	if (reason && room)
		reason[0] = 0;
	if (!tensor)
		return explain(reason, room, -EINVAL, "the tensor is NULL; valid is a DLTensor");
	error = check_form(tensor, anywhere, reason, room);
	if (error)
		return error;
	*info = (struct haul_tensor_info){.dtype = tensor->dtype, .ndim = tensor->ndim};
	for (int i = 0; i < tensor->ndim; i++)
		info->shape[i] = tensor->shape[i];
	error = tensor_info_bytes(info, &info->bytes);
	if (error)
		return explain(reason, room, error,
			       "the tensor's shape and dtype ask for more than 2^63 - 1 bytes");
	if (info->bytes)
		error = check_strides(tensor, reason, room);
	if (!error)
		error = check_data(tensor, info->bytes, reason, room);
	if (!error)
		*data = tensor->data ? (uint8_t *)tensor->data + tensor->byte_offset : NULL;
	return error;
}

int haul_tensor_bytes(const DLTensor *tensor, uint64_t *bytes, char *reason, size_t room)
{
	struct haul_tensor_info info;
	uint8_t *data;
	int error = tensor_describe(tensor, false, &info, &data, reason, room);

	if (!error)
		*bytes = info.bytes;
	return error;
}
