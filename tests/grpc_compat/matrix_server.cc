// SPDX-License-Identifier: Apache-2.0
//
// The servers of the matrix: synchronous, asynchronous, and with callbacks.
#include <grpcpp/generic/async_generic_service.h>
#include <grpcpp/impl/codegen/method_handler.h>
#include <grpcpp/impl/codegen/sync_stream.h>

#include <chrono>
#include <iostream>
#include <memory>
#include <thread>
#include <unistd.h>

#include "matrix.h"

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

int serve(const std::string &kind, int limit)
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
