# SPDX-License-Identifier: Apache-2.0
#
# A gRPC server and client in Ruby, whose messages are bytes. Nothing here knows tensorhaul.
#
#   echo.rb server                        says its port; ends with standard input
#   echo.rb client TARGET BYTES COUNT     ends with 1 when an answer was wrong
require "grpc"

# A message is bytes, and the codec is this; no protocol buffers are needed.
Bytes = Struct.new(:data) do
  def self.encode(bytes)
    bytes.data
  end

  def self.decode(data)
    new(data)
  end
end

class Echo
  include GRPC::GenericService
  self.marshal_class_method = :encode
  self.unmarshal_class_method = :decode
  self.service_name = "test.Ruby"

  rpc :Unary, Bytes, Bytes
  rpc :Collect, stream(Bytes), Bytes
  rpc :Spread, Bytes, stream(Bytes)
  rpc :Chat, stream(Bytes), stream(Bytes)
end

class Server < Echo
  def unary(bytes, _call)
    bytes
  end

  def collect(call)
    Bytes.new(call.each_remote_read.map(&:data).join)
  end

  def spread(bytes, _call)
    [bytes] * 3
  end

  def chat(stream, _call)
    stream
  end
end

def serve
  server = GRPC::RpcServer.new(pool_size: 4, server_args: {"grpc.max_receive_message_length" => -1})
  puts server.add_http2_port("127.0.0.1:0", :this_port_is_insecure)
  $stdout.flush
  server.handle(Server)
  thread = Thread.new { server.run }
  server.wait_till_running
  $stdin.read
  server.stop
  thread.join
end

def call_all(stub, data)
  bytes = Bytes.new(data)
  wrong = []
  wrong << "unary" unless stub.unary(bytes) == bytes
  wrong << "collect" unless stub.collect([bytes, bytes]).data == data + data
  wrong << "spread" unless stub.spread(bytes).to_a == [bytes] * 3
  wrong << "chat" unless stub.chat([bytes, bytes]).to_a == [bytes] * 2
  wrong
end

case ARGV[0]
when "server"
  serve
when "client"
  stub = Echo.rpc_stub_class.new(ARGV[1], :this_channel_is_insecure,
                                 channel_args: {"grpc.max_receive_message_length" => -1})
  wrong = Array.new(ARGV[3].to_i) do |number|
    call_all(stub, Random.new(number).bytes(ARGV[2].to_i))
  end.flatten
  warn "wrong: #{wrong.join(", ")}" unless wrong.empty?
  exit wrong.empty?
end
