// SPDX-License-Identifier: Apache-2.0
//
// C++ programs on libgrpc++: a server and a client, each written synchronously or with callbacks,
// for every kind of call. Nothing here knows tensorhaul.
//
//   matrix server sync|async|callback LIMIT      says its port; ends with standard input
//   matrix client TARGET sync|async|callback BYTES COUNT
//
// The client ends with 1 and says why when anything was not as it should be.
#include <grpcpp/generic/async_generic_service.h>
#include <grpcpp/generic/generic_stub.h>
#include <grpcpp/grpcpp.h>
#include <grpcpp/impl/codegen/method_handler.h>
#include <grpcpp/impl/codegen/sync_stream.h>
#include <grpcpp/impl/codegen/client_unary_call.h>
#include <grpcpp/impl/codegen/client_callback.h>

#include <future>
#include <iostream>
#include <memory>
#include <string>
#include <thread>
#include <unistd.h>
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

static std::string contents(size_t bytes, int number)
{
	std::string data(bytes, 0);

	for (size_t i = 0; i < bytes; i++)
		data[i] = static_cast<char>(number * 31 + i * 7 + (i >> 8));
	return data;
}

// ---- The synchronous server ------------------------------------------------

// Unary and Chat give back what came; Collect all of it in one message; Spread it five times.
class SyncService : public grpc::Service
{
      public:
	SyncService()
	{
		using namespace grpc;
		using namespace grpc::internal;

		add(UNARY, new RpcMethodHandler<SyncService, Bytes, Bytes, Bytes, Bytes>(
				   [](SyncService *, ServerContext *, const Bytes *in, Bytes *out) {
					   out->data = in->data;
					   return Status::OK;
				   },
				   this));
		add(COLLECT, new ClientStreamingHandler<SyncService, Bytes, Bytes>(
				     [](SyncService *, ServerContext *, ServerReader<Bytes> *reader,
					Bytes *out) {
					     Bytes in;
					     while (reader->Read(&in))
						     out->data += in.data;
					     return Status::OK;
				     },
				     this));
		add(SPREAD, new ServerStreamingHandler<SyncService, Bytes, Bytes>(
				    [](SyncService *, ServerContext *, const Bytes *in,
				       ServerWriter<Bytes> *writer) {
					    for (int i = 0; i < SPREAD_COUNT; i++)
						    writer->Write(*in);
					    return Status::OK;
				    },
				    this));
		add(CHAT, new BidiStreamingHandler<SyncService, Bytes, Bytes>(
				  [](SyncService *, ServerContext *,
				     ServerReaderWriter<Bytes, Bytes> *stream) {
					  Bytes in;
					  while (stream->Read(&in))
						  stream->Write(in);
					  return Status::OK;
				  },
				  this));
	}

      private:
	void add(int which, grpc::internal::MethodHandler *handler)
	{
		AddMethod(
			new grpc::internal::RpcServiceMethod(names[which], kinds[which], handler));
	}
};

// ---- The server with callbacks ---------------------------------------------

class Collector : public grpc::ServerReadReactor<Bytes>
{
      public:
	explicit Collector(Bytes *out) : out_(out)
	{
		StartRead(&in_);
	}
	void OnReadDone(bool good) override
	{
		if (!good) {
			Finish(grpc::Status::OK);
			return;
		}
		out_->data += in_.data;
		StartRead(&in_);
	}
	void OnDone() override
	{
		delete this;
	}

      private:
	Bytes in_, *out_;
};

class Spreader : public grpc::ServerWriteReactor<Bytes>
{
      public:
	explicit Spreader(const Bytes *in) : in_(*in)
	{
		StartWrite(&in_);
	}
	void OnWriteDone(bool good) override
	{
		if (good && ++written_ < SPREAD_COUNT)
			StartWrite(&in_);
		else
			Finish(grpc::Status::OK);
	}
	void OnDone() override
	{
		delete this;
	}

      private:
	Bytes in_;
	int written_ = 0;
};

class Chatter : public grpc::ServerBidiReactor<Bytes, Bytes>
{
      public:
	Chatter()
	{
		StartRead(&in_);
	}
	void OnReadDone(bool good) override
	{
		if (good)
			StartWrite(&in_);
		else
			Finish(grpc::Status::OK);
	}
	void OnWriteDone(bool good) override
	{
		if (good)
			StartRead(&in_);
		else
			Finish(grpc::Status(grpc::StatusCode::ABORTED, "a write failed"));
	}
	void OnDone() override
	{
		delete this;
	}

      private:
	Bytes in_;
};

class CallbackService : public grpc::Service
{
      public:
	CallbackService()
	{
		using namespace grpc;
		using namespace grpc::internal;

		for (int i = 0; i < 4; i++)
			AddMethod(new RpcServiceMethod(names[i], kinds[i], nullptr));
		MarkMethodCallback(
			UNARY,
			new CallbackUnaryHandler<Bytes, Bytes>(
				[](CallbackServerContext *context, const Bytes *in, Bytes *out) {
					ServerUnaryReactor *reactor = context->DefaultReactor();
					out->data = in->data;
					reactor->Finish(Status::OK);
					return reactor;
				}));
		MarkMethodCallback(COLLECT, new CallbackClientStreamingHandler<Bytes, Bytes>(
						    [](CallbackServerContext *, Bytes *out) {
							    return new Collector(out);
						    }));
		MarkMethodCallback(SPREAD, new CallbackServerStreamingHandler<Bytes, Bytes>(
						   [](CallbackServerContext *, const Bytes *in) {
							   return new Spreader(in);
						   }));
		MarkMethodCallback(CHAT,
				   new CallbackBidiHandler<Bytes, Bytes>(
					   [](CallbackServerContext *) { return new Chatter(); }));
	}
};

// ---- The asynchronous server -----------------------------------------------

// Generic: every method is a stream of byte buffers, and behaves by its name.
class AsyncServer
{
      public:
	void start(grpc::ServerBuilder *builder)
	{
		builder->RegisterAsyncGenericService(&service_);
		queue_ = builder->AddCompletionQueue();
	}
	void run()
	{
		void *tag;
		bool good;

		new Call(this);
		while (queue_->Next(&tag, &good))
			static_cast<Call *>(tag)->go_on(good);
	}
	void end()
	{
		queue_->Shutdown();
	}

      private:
	struct Call {
		explicit Call(AsyncServer *server) : server_(server), stream_(&context_)
		{
			server_->service_.RequestCall(&context_, &stream_, server_->queue_.get(),
						      server_->queue_.get(), this);
		}
		void go_on(bool good)
		{
			switch (state_) {
			case State::asked:
				if (!good) {
					delete this;
					return;
				}
				new Call(server_);
				read();
				break;
			case State::reading:
				got(good);
				break;
			case State::writing:
				if (!good || ++written_ >= writes_)
					one_done(good);
				else
					write();
				break;
			case State::finishing:
				delete this;
				break;
			}
		}

	      private:
		enum class State { asked, reading, writing, finishing };

		bool is(int which) const
		{
			return context_.method() == names[which];
		}
		void read()
		{
			state_ = State::reading;
			stream_.Read(&in_, this);
		}
		void write()
		{
			grpc::ByteBuffer copy(out_);

			state_ = State::writing;
			stream_.Write(copy, this);
		}
		void finish()
		{
			state_ = State::finishing;
			stream_.Finish(grpc::Status::OK, this);
		}
		void got(bool good)
		{
			if (good && is(COLLECT)) {
				Bytes part;
				grpc::SerializationTraits<Bytes>::Deserialize(&in_, &part);
				all_.data += part.data;
				read();
			} else if (good) {
				out_.Swap(&in_);
				writes_ = is(SPREAD) ? SPREAD_COUNT : 1;
				written_ = 0;
				write();
			} else if (is(COLLECT) && !collected_) {
				bool own;
				grpc::SerializationTraits<Bytes>::Serialize(all_, &out_, &own);
				collected_ = true;
				writes_ = 1;
				written_ = 0;
				write();
			} else {
				finish();
			}
		}
		void one_done(bool good)
		{
			if (good && is(CHAT))
				read();
			else
				finish();
		}

		AsyncServer *server_;
		grpc::GenericServerContext context_;
		grpc::GenericServerAsyncReaderWriter stream_;
		State state_ = State::asked;
		grpc::ByteBuffer in_, out_;
		Bytes all_;
		bool collected_ = false;
		int writes_ = 0, written_ = 0;
	};

	grpc::AsyncGenericService service_;
	std::unique_ptr<grpc::ServerCompletionQueue> queue_;
};

static int serve(const std::string &kind, int limit)
{
	grpc::ServerBuilder builder;
	SyncService sync;
	CallbackService callback;
	AsyncServer async;
	std::thread thread;
	int port = 0;
	char byte;

	builder.SetMaxReceiveMessageSize(limit);
	builder.AddListeningPort("127.0.0.1:0", grpc::InsecureServerCredentials(), &port);
	if (kind == "sync")
		builder.RegisterService(&sync);
	else if (kind == "callback")
		builder.RegisterService(&callback);
	else
		async.start(&builder);
	std::unique_ptr<grpc::Server> server = builder.BuildAndStart();
	if (kind == "async")
		thread = std::thread(&AsyncServer::run, &async);
	std::cout << port << std::endl;
	while (read(STDIN_FILENO, &byte, 1) > 0)
		;
	server->Shutdown(std::chrono::system_clock::now());
	if (kind == "async") {
		async.end();
		thread.join();
	}
	return 0;
}

// ---- Clients ---------------------------------------------------------------

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
