// SPDX-License-Identifier: Apache-2.0
//
// What the two sides of the matrix have in common: messages, methods, and what is expected.
#ifndef TENSORHAUL_TEST_GRPC_MATRIX_H
#define TENSORHAUL_TEST_GRPC_MATRIX_H

#include <grpcpp/grpcpp.h>
#include <grpcpp/impl/codegen/rpc_method.h>

#include <string>
#include <vector>

// A message is bytes, and the codec is this; no protocol buffers are needed.
struct Bytes {
	std::string data;
};

namespace grpc
{
template <> class SerializationTraits<Bytes>
{
      public:
	static Status Serialize(const Bytes &bytes, ByteBuffer *buffer, bool *own)
	{
		// Several slices, as protocol buffers leave them.
		std::vector<Slice> slices;
		size_t part = bytes.data.size() / 3 + 1;

		for (size_t at = 0; at < bytes.data.size(); at += part)
			slices.emplace_back(bytes.data.substr(at, part));
		ByteBuffer made(slices.data(), slices.size());
		buffer->Swap(&made);
		*own = true;
		return Status::OK;
	}
	static Status Deserialize(ByteBuffer *buffer, Bytes *bytes)
	{
		std::vector<Slice> slices;

		if (!buffer->Dump(&slices).ok())
			return Status(StatusCode::INTERNAL, "a message could not be read");
		bytes->data.clear();
		for (const Slice &slice : slices)
			bytes->data.append(reinterpret_cast<const char *>(slice.begin()),
					   slice.size());
		return Status::OK;
	}
};
} // namespace grpc

using grpc::internal::RpcMethod;

static const char *const names[] = {"/test.Matrix/Unary", "/test.Matrix/Collect",
				    "/test.Matrix/Spread", "/test.Matrix/Chat"};
static const RpcMethod::RpcType kinds[] = {RpcMethod::NORMAL_RPC, RpcMethod::CLIENT_STREAMING,
					   RpcMethod::SERVER_STREAMING, RpcMethod::BIDI_STREAMING};
enum { UNARY, COLLECT, SPREAD, CHAT };
static const int SPREAD_COUNT = 5;

// Runs until standard input ends. The kind is sync, async or callback.
int serve(const std::string &kind, int limit);

#endif
