// SPDX-License-Identifier: Apache-2.0
//
// C++ programs on libgrpc++: a server and a client, each written synchronously or with callbacks,
// for every kind of call. Nothing here knows tensorhaul.
//
//   matrix server sync|async|callback LIMIT      says its port; ends with standard input
//   matrix client TARGET sync|async|callback BYTES COUNT
//
// The client ends with 1 and says why when anything was not as it should be.
#include <grpcpp/impl/codegen/async_stream.h>
#include <grpcpp/impl/codegen/async_unary_call.h>
#include <grpcpp/impl/codegen/client_callback.h>
#include <grpcpp/impl/codegen/client_unary_call.h>
#include <grpcpp/impl/codegen/sync_stream.h>

#include <future>
#include <iostream>
#include <memory>

#include "matrix.h"

static std::string contents(size_t bytes, int number)
{
	std::string data(bytes, 0);

	for (size_t i = 0; i < bytes; i++)
		data[i] = static_cast<char>(number * 31 + i * 7 + (i >> 8));
	return data;
}

static int wrong;

static void expect(bool good, const char *what, const grpc::Status &status = grpc::Status::OK)
{
	if (good && status.ok())
		return;
	wrong++;
	std::cerr << what << ": " << status.error_code() << " " << status.error_message()
		  << std::endl;
}

class Client
{
      public:
	explicit Client(const std::string &target)
	{
		grpc::ChannelArguments arguments;

		arguments.SetMaxReceiveMessageSize(-1);
		channel_ = grpc::CreateCustomChannel(target, grpc::InsecureChannelCredentials(),
						     arguments);
		for (int i = 0; i < 4; i++)
			methods_.emplace_back(names[i], kinds[i], channel_);
	}

	void sync_unary(const Bytes &in)
	{
		grpc::ClientContext context;
		Bytes out;
		grpc::Status status = grpc::internal::BlockingUnaryCall<Bytes, Bytes>(
			channel_.get(), methods_[UNARY], &context, in, &out);

		expect(out.data == in.data, "sync unary", status);
	}
	void sync_collect(const Bytes &in)
	{
		grpc::ClientContext context;
		Bytes out;
		std::unique_ptr<grpc::ClientWriter<Bytes>> writer(
			grpc::internal::ClientWriterFactory<Bytes>::Create(
				channel_.get(), methods_[COLLECT], &context, &out));

		for (int i = 0; i < 3; i++)
			writer->Write(in);
		writer->WritesDone();
		grpc::Status status = writer->Finish();
		expect(out.data == in.data + in.data + in.data, "sync collect", status);
	}
	void sync_spread(const Bytes &in)
	{
		grpc::ClientContext context;
		Bytes out;
		int count = 0;
		std::unique_ptr<grpc::ClientReader<Bytes>> reader(
			grpc::internal::ClientReaderFactory<Bytes>::Create(
				channel_.get(), methods_[SPREAD], &context, in));

		while (reader->Read(&out))
			count += out.data == in.data;
		expect(count == SPREAD_COUNT, "sync spread", reader->Finish());
	}
	void sync_chat(const Bytes &in)
	{
		grpc::ClientContext context;
		Bytes out;
		std::unique_ptr<grpc::ClientReaderWriter<Bytes, Bytes>> stream(
			grpc::internal::ClientReaderWriterFactory<Bytes, Bytes>::Create(
				channel_.get(), methods_[CHAT], &context));

		for (int i = 0; i < 3; i++) {
			expect(stream->Write(in), "sync chat: write");
			expect(stream->Read(&out) && out.data == in.data, "sync chat: read");
		}
		stream->WritesDone();
		expect(!stream->Read(&out), "sync chat: end");
		expect(true, "sync chat", stream->Finish());
	}
	void sync_all(const Bytes &in)
	{
		sync_unary(in);
		sync_collect(in);
		sync_spread(in);
		sync_chat(in);
	}

	// One queue, and the tag that has to come next.
	void await(long tag, const char *what)
	{
		void *got;
		bool good = false;

		expect(queue_.Next(&got, &good) && got == reinterpret_cast<void *>(tag) && good,
		       what);
	}
	void async_all(const Bytes &in)
	{
		using grpc::internal::ClientAsyncResponseReaderHelper;
		grpc::ClientContext unary_context, chat_context;
		grpc::Status status;
		Bytes out;
		std::unique_ptr<grpc::ClientAsyncResponseReader<Bytes>> reader(
			ClientAsyncResponseReaderHelper::Create<Bytes, Bytes, Bytes, Bytes>(
				channel_.get(), &queue_, methods_[UNARY], &unary_context, in));

		reader->StartCall();
		reader->Finish(&out, &status, reinterpret_cast<void *>(1));
		await(1, "async unary: finish");
		expect(out.data == in.data, "async unary", status);

		std::unique_ptr<grpc::ClientAsyncReaderWriter<Bytes, Bytes>> stream(
			grpc::internal::ClientAsyncReaderWriterFactory<Bytes, Bytes>::Create(
				channel_.get(), &queue_, methods_[CHAT], &chat_context, true,
				reinterpret_cast<void *>(2)));
		await(2, "async chat: start");
		for (long i = 0; i < 3; i++) {
			stream->Write(in, reinterpret_cast<void *>(10 + i));
			await(10 + i, "async chat: write");
			stream->Read(&out, reinterpret_cast<void *>(20 + i));
			await(20 + i, "async chat: read");
			expect(out.data == in.data, "async chat: contents");
		}
		stream->WritesDone(reinterpret_cast<void *>(3));
		await(3, "async chat: half close");
		stream->Finish(&status, reinterpret_cast<void *>(4));
		await(4, "async chat: finish");
		expect(true, "async chat", status);
	}

	class Talk : public grpc::ClientBidiReactor<Bytes, Bytes>
	{
	      public:
		explicit Talk(const Bytes &in) : in_(in)
		{
		}
		void start()
		{
			StartWrite(&in_);
			StartCall();
		}
		void OnWriteDone(bool good) override
		{
			if (good)
				StartRead(&out_);
		}
		void OnReadDone(bool good) override
		{
			if (!good)
				return;
			same_ += out_.data == in_.data;
			if (++read_ < 3)
				StartWrite(&in_);
			else
				StartWritesDone();
		}
		void OnDone(const grpc::Status &status) override
		{
			expect(same_ == 3, "callback chat", status);
			done_.set_value();
		}
		void wait()
		{
			done_.get_future().wait();
		}

	      private:
		Bytes in_, out_;
		int read_ = 0, same_ = 0;
		std::promise<void> done_;
	};
	void callback_all(const Bytes &in)
	{
		grpc::ClientContext unary_context, chat_context;
		std::promise<grpc::Status> ended;
		Talk talk(in);
		Bytes out;

		grpc::internal::CallbackUnaryCall<Bytes, Bytes>(
			channel_.get(), methods_[UNARY], &unary_context, &in, &out,
			[&ended](grpc::Status status) { ended.set_value(status); });
		grpc::Status status = ended.get_future().get();
		expect(out.data == in.data, "callback unary", status);
		grpc::internal::ClientCallbackReaderWriterFactory<Bytes, Bytes>::Create(
			channel_.get(), methods_[CHAT], &chat_context, &talk);
		talk.start();
		talk.wait();
	}

      private:
	std::shared_ptr<grpc::Channel> channel_;
	std::vector<RpcMethod> methods_;
	grpc::CompletionQueue queue_;
};

int main(int count, char **words)
{
	if (count == 4 && std::string(words[1]) == "server")
		return serve(words[2], std::stoi(words[3]));
	if (count != 6) {
		std::cerr << "usage: see the head of matrix.cc" << std::endl;
		return 2;
	}
	Client client(words[2]);
	std::string kind = words[3];

	for (int i = 0; i < std::stoi(words[5]); i++) {
		Bytes in{contents(std::stoul(words[4]), i)};

		if (kind == "sync")
			client.sync_all(in);
		else if (kind == "async")
			client.async_all(in);
		else
			client.callback_all(in);
	}
	return wrong ? 1 : 0;
}
