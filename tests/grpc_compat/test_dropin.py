#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""gRPC programs with the drop-in layer in front of them: what they see is what gRPC alone shows.

Each test runs a server and a client as processes of their own, with the layer on both sides, on one
or on none.
"""

import os
import re
import socket
import subprocess
import tempfile
import unittest
from pathlib import Path

from harness import ALL, LINKED, NOTHING, PATIENCE, Server, echo, echo_client, echo_server, \
    environment, program

MATRIX = os.environ.get("DROPIN_MATRIX")
WORDS = ALL.partition(",")[2]


def has_ruby():
    if LINKED or not Path("/usr/bin/ruby").exists():
        return False
    probe = subprocess.run(["/usr/bin/ruby", "-e", "require 'grpc'"], capture_output=True,
                           check=False)
    return probe.returncode == 0


def ruby(name):
    return ["/usr/bin/ruby", str(Path(__file__).resolve().parent / name)]


class Aside(unittest.TestCase):
    def expect_good(self, ends, statuses):
        for end in ends:
            self.assertEqual(end.status, 0, end.errors)
        self.assertEqual(ends[0].output, statuses, ends[0].errors)

    def test_each_queue_and_kind_of_call(self):
        kinds = [{"method": "Echo"}, {"method": "Chat", "messages": 4},
                 {"method": "Count", "messages": 5, "ahead": 1}, {"method": "Chat", "slices": 7}]
        for queue in ("next", "pluck", "callback"):
            for kind in kinds:
                with self.subTest(queue=queue, **kind):
                    ends = echo(ALL, ALL, queue, calls=5, bytes=200000, **kind)
                    self.expect_good(ends, "0:5")
                    sent = 5 * kind.get("messages", 1)
                    self.assertEqual(ends[0].counters.sent, sent, ends[0].errors)
                    self.assertEqual(ends[1].counters.received, sent, ends[1].errors)
                    self.assertEqual(ends[1].counters.sent, ends[0].counters.received)
                    self.assertEqual(ends[0].counters.failed + ends[1].counters.failed, 0)

    def test_one_side_without_the_layer(self):
        for server, client in ((None, None), (ALL, None), (None, ALL)):
            with self.subTest(server=server, client=client):
                ends = echo(server, client, calls=3, bytes=300000, method="Chat", messages=3)
                self.expect_good(ends, "0:3")
                for end in ends:
                    self.assertIn(end.counters, (None, NOTHING))

    def test_small_messages_stay_inline(self):
        ends = echo("tcp,threshold=100000,log=info,wait_ms=5000",
                    "tcp,threshold=100000,log=info,wait_ms=5000", calls=4, bytes=99999)
        self.expect_good(ends, "0:4")
        self.assertEqual(ends[0].counters, NOTHING)

    def test_answers_that_grow(self):
        """Small calls are marked no more once 64 answers were small; a large answer changes that."""
        spec = "tcp,threshold=6000,log=info,wait_ms=5000"
        for small, aside in ((0, 110), (60, 50), (100, 9)):
            with self.subTest(small=small):
                ends = echo(spec, spec, calls=110, small=small, bytes=1000, method="Repeat")
                self.expect_good(ends, "0:110")
                self.assertEqual(ends[1].counters.sent, aside, ends[1].errors)
                self.assertEqual(ends[0].counters.received, aside, ends[0].errors)

    def test_large_answers_now_and_then(self):
        """Only the first one comes within gRPC."""
        spec = "tcp,threshold=6000,log=info,wait_ms=5000"
        ends = echo(spec, spec, calls=10 * 65, every=65, bytes=1000, method="Repeat")
        self.expect_good(ends, "0:650")
        self.assertEqual(ends[0].counters.received, 9, ends[0].errors)

    def test_compressed_messages_stay_inline(self):
        ends = echo(ALL, ALL, calls=3, bytes=50000, compress=1, method="Chat")
        self.expect_good(ends, "0:3")
        self.assertEqual(ends[0].counters.sent, 0)

    def test_over_a_unix_socket(self):
        path = f"{os.environ.get('TMPDIR', '/tmp')}/haul-dropin-{os.getpid()}"
        try:
            with echo_server(ALL, address=f"unix:{path}") as server:
                server.target = f"unix:{path}"
                client = echo_client(server, ALL, calls=3, bytes=100000)
                self.expect_good((client, server.end()), "0:3")
                self.assertEqual(client.counters.sent, 3)
        finally:
            Path(path).unlink(missing_ok=True)


    @unittest.skipUnless(os.environ.get("DROPIN_DPDK"), "no dpdk, or a build with sanitizers")
    def test_random_calls_over_memif(self):
        """Sizes, cancellations and deadlines at random over shared memory, large and small ones."""
        with tempfile.TemporaryDirectory() as folder:
            server, client = (
                f"dpdk,port={{net_memif,role={role},socket={folder}/socket,socket-abstract=no}},"
                f"ip=10.77.0.{host}/24,listen=10.77.0.{host}:0,{WORDS}"
                for role, host in (("server", 1), ("client", 2)))
            ends = echo(server, client, calls=200, random=1, bytes=200000, threads=4, method="Chat",
                        seed=os.getpid())
        for end in ends:
            self.assertEqual((end.status, end.counters[-3:]), (0, (0, 0, 0)), end.errors)
        self.assertGreater(ends[0].counters.sent, 100, ends[0].errors)
        self.assertGreater(ends[1].counters.sent, 100, ends[1].errors)


class OtherLanguages(unittest.TestCase):
    """Each pair of ends in C++ and in Ruby, contents checked; small messages go aside too."""

    def check(self, serve, call, spec_of_server, spec_of_client):
        with Server(serve, spec_of_server) as server:
            client = subprocess.run([word.replace("TARGET", server.target) for word in call],
                                    env=environment(spec_of_client), text=True, capture_output=True,
                                    timeout=PATIENCE, check=False)
            server = server.end()
        self.assertEqual(client.returncode, 0, client.stderr)
        self.assertEqual(server.status, 0, server.errors)
        if spec_of_server and spec_of_client:
            self.assertGreater(server.counters.received, 0, server.errors)
            self.assertGreater(server.counters.sent, 0, server.errors)
            self.assertEqual(server.counters.inline + server.counters.failed, 0, server.errors)

    @unittest.skipUnless(MATRIX, "libgrpc++-dev is missing")
    def test_cpp(self):
        kinds = ("sync", "async", "callback")
        for serving in kinds:
            for calling in kinds:
                with self.subTest(server=serving, client=calling):
                    self.check([MATRIX, "server", serving, "-1"],
                               [MATRIX, "client", "TARGET", calling, "100000", "3"], ALL, ALL)

    @unittest.skipUnless(MATRIX, "libgrpc++-dev is missing")
    def test_cpp_with_the_layer_on_one_side(self):
        for serving in ("sync", "async", "callback"):
            for specs in ((ALL, None), (None, ALL)):
                with self.subTest(server=serving, specs=specs):
                    self.check([MATRIX, "server", serving, "-1"],
                               [MATRIX, "client", "TARGET", "sync", "100000", "2"], *specs)

    @unittest.skipUnless(has_ruby(), "ruby-grpc is missing, or this is a build with sanitizers")
    def test_ruby(self):
        echo_rb = ruby("echo.rb")
        for specs in ((ALL, ALL), (ALL, None), (None, ALL)):
            with self.subTest(specs=specs):
                self.check([*echo_rb, "server"], [*echo_rb, "client", "TARGET", "100000", "2"],
                           *specs)

    @unittest.skipUnless(has_ruby(), "ruby-grpc is missing, or this is a build with sanitizers")
    def test_ruby_interop(self):
        """The programs that Debian's ruby-grpc comes with: large, empty and small messages, streams,
        metadata, statuses, cancellations, deadlines."""
        interop = ruby("interop.rb")
        self.check([*interop, "server"], [*interop, "client", "TARGET"], ALL, ALL)


class AsGrpcDoes(unittest.TestCase):
    """Statuses and details are those of gRPC alone."""

    def same(self, **words):
        plain = echo(None, None, **words)
        aside = echo(ALL, ALL, **words)
        self.assertEqual(aside[0].output, plain[0].output, aside[0].errors)
        self.assertEqual(aside[0].status, plain[0].status, aside[0].errors)
        self.assertEqual(aside[1].status, 0, aside[1].errors)
        details = set(plain[0].errors.split("\n"))
        for line in aside[0].errors.split("\n"):
            if not line.startswith("tensorhaul-grpc:"):
                self.assertIn(line, details)
        return aside

    def test_limit_of_the_server(self):
        ends = self.same(limit=100000, calls=2, bytes=200000)
        self.assertTrue(ends[0].output.startswith("8:"), ends[0].output)

    def test_limit_of_the_client(self):
        plain = echo(None, None, calls=2, bytes=200000)
        self.assertEqual(plain[0].output, "0:2")
        for spec in (None, ALL):
            with echo_server(spec) as server:
                client = echo_client(server, spec, calls=2, bytes=200000, limit=100000)
                self.assertEqual(client.output, "8:2", client.errors)
                self.assertEqual(server.end().status, 0)

    def test_server_that_ends_the_call(self):
        self.same(method="Deaf", calls=3, messages=3, ahead=1, bytes=100000)

    def test_answer_beside_a_status(self):
        for bytes_, messages in ((100000, 1), (1000000, 1), (100000, 3)):
            with self.subTest(bytes=bytes_, messages=messages):
                self.same(method="Sorry", calls=2, messages=messages, ahead=1, bytes=bytes_)

    def test_deadline(self):
        self.same(method="Silent", calls=2, timeout_ms=200, bytes=100000)

    def test_cancellation(self):
        self.same(method="Silent", calls=3, bytes=100000, cancel=1)

    def test_cancellation_in_mid_stream(self):
        self.same(method="Chat", calls=3, messages=6, bytes=100000, cancel=1)

    def test_random_calls(self):
        """Sizes, cancellations and deadlines at random: echo_client knows how each may end. Memory
        after DROPIN_CALLS calls is what it was after half of them."""
        calls = int(os.environ.get("DROPIN_CALLS", "600"))
        for queue in ("next", "pluck"):
            with self.subTest(queue=queue):
                client, server = echo(ALL, ALL, queue, calls=calls, random=1, bytes=200000,
                                      threads=4, method="Chat", seed=os.getpid(), memory=1)
                for end in (client, server):
                    self.assertEqual((end.status, end.counters[-3:]), (0, (0, 0, 0)), end.errors)
                self.assertGreater(server.counters.sent, calls, server.errors)
                if calls >= 10000 and not LINKED:
                    middle, last = (int(re.search(rf"memory in the {when}: (\d+)",
                                                  client.errors).group(1))
                                    for when in ("middle", "end"))
                    self.assertLess(last, middle * 1.1 + 2000, client.errors)


class Faults(unittest.TestCase):
    def test_spec_that_is_wrong(self):
        for spec in ("tcp,threshold=many", "tcp,nothing=1", "carrier-pigeon", "tcp,", "grpc"):
            with self.subTest(spec=spec):
                ends = echo(spec, spec, calls=1, bytes=300000)
                for end in ends:
                    self.assertEqual(end.status, 0, end.errors)
                    lines = [line for line in end.errors.split("\n") if line]
                    self.assertEqual(len(lines), 1, end.errors)
                    self.assertIn("runs as plain gRPC", lines[0])

    def test_strict(self):
        for wrong in ("threshold=many", "nothing=1", "listen=nowhere", "listen=*:65536"):
            process = subprocess.run(
                [program("echo_server"), "next", "-1"], text=True, capture_output=True,
                env=environment(f"tcp,{wrong},strict=yes"), timeout=PATIENCE, check=False,
                stdin=subprocess.DEVNULL)
            self.assertEqual(process.returncode, 78, process.stderr)
            self.assertIn(wrong.split("=")[0], process.stderr)

    def test_program_without_grpc(self):
        process = subprocess.run(["/bin/true"], env=environment(ALL), text=True,
                                 capture_output=True, timeout=PATIENCE, check=False)
        self.assertEqual((process.returncode, process.stdout, process.stderr), (0, "", ""))

    def test_stranger_on_the_side_port(self):
        with echo_server(ALL) as server:
            line = ""
            while "takes messages aside at" not in line:
                line = server.process.stderr.readline()
            port = int(re.search(r"aside at \S*:(\d+)", line).group(1))
            with socket.create_connection(("127.0.0.1", port)) as stranger, \
                    socket.create_connection(("127.0.0.1", port)):
                stranger.sendall(b"GET / HTTP/1.0\r\n\r\n" * 100)
                client = echo_client(server, ALL, calls=3, bytes=300000)
            self.assertEqual(client.output, "0:3", client.errors)
            self.assertEqual(client.counters.sent, 3)
            self.assertEqual(server.end().status, 0)


if __name__ == "__main__":
    unittest.main(verbosity=2)
