# SPDX-License-Identifier: Apache-2.0
#
# Runs the interop server and client that Debian's ruby-grpc comes with, as they are.
#
#   interop.rb server         says its port; ends in order with standard input
#   interop.rb client TARGET  makes the calls of each test case, and ends with 1 when one fails
require "grpc"

FOLDER = File.expand_path("../pb/test", File.dirname($LOADED_FEATURES.grep(%r{/lib/grpc\.rb$}).first))
# These want an account at Google, or compression, which this server doesn't have.
LEFT_OUT = %i[service_account_creds jwt_token_creds compute_engine_creds oauth2_auth_token per_rpc_creds
              client_compressed_unary client_compressed_streaming all].freeze

module EndsWithInput
  def add_http2_port(*arguments)
    port = super
    puts port
    $stdout.flush
    Thread.new do
      $stdin.read
      stop
    end
    port
  end
end

case ARGV.shift
when "server"
  GRPC::RpcServer.prepend(EndsWithInput)
  ARGV.replace(["--port", "0"])
  load "#{FOLDER}/server.rb"
when "client"
  host, port = ARGV[0].split(":")
  ARGV.replace(["--server_host", host, "--server_port", port, "--test_case", "all"])
  load "#{FOLDER}/client.rb"
  arguments = parse_args
  tests = NamedTests.new(create_stub(arguments), arguments)
  failed = (NamedTests.instance_methods(false) - LEFT_OUT).reject do |name|
    name.start_with?("assert") || begin
      tests.method(name).call
      true
    rescue StandardError, ScriptError => error
      warn "#{name}: #{error.class}: #{error.message}"
    end
  end
  exit failed.empty?
end
