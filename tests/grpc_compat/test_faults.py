#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""What the drop-in layer does when peers lie, die or are slow: only what has to fail fails."""

import contextlib
import ctypes
import os
import re
import select
import socket
import subprocess
import unittest
from pathlib import Path

from harness import ALL, LINKED, PATIENCE, PROGRAMS, Server, echo, echo_client, echo_server, \
    ended, environment, program
from child import Child

PIDFD_GETFD = 438
MIB = 1 << 20
# Requests of 1,000 bytes go as they are, and their answers aside.
INLINE_REQUESTS = "tcp,threshold=2000,wait_ms=5000,log=info"


def memory(pid, what="VmHWM"):
    """Bytes of a process: VmHWM, the most that it had, or VmRSS."""
    found = re.search(rf"{what}:\s+(\d+) kB", Path(f"/proc/{pid}/status").read_text())
    return int(found.group(1)) * 1024


def side_port(server):
    """The port that the server has told; its log is read up to there."""
    line = ""
    while "takes messages aside at" not in line:
        line = server.process.stderr.readline()
    return int(re.search(r"aside at \S*:(\d+)", line).group(1))


def cut_sockets(pid, port):
    """Shut down all connections of a process from or to a port, as if their path had broken."""
    libc = ctypes.CDLL(None, use_errno=True)
    process = os.pidfd_open(pid)
    found = []
    for name in os.listdir(f"/proc/{pid}/fd"):
        descriptor = libc.syscall(PIDFD_GETFD, process, int(name), 0)
        if descriptor < 0:
            continue
        if not os.readlink(f"/proc/self/fd/{descriptor}").startswith("socket:"):
            os.close(descriptor)
            continue
        one = socket.socket(fileno=descriptor)
        try:
            ends = one.getsockname()[1], one.getpeername()[1]
        except (OSError, IndexError):
            ends = ()
        if port in ends:
            found.append(one)
        else:
            one.close()
    for one in found:
        with contextlib.suppress(OSError):  # it has ended meanwhile
            one.shutdown(socket.SHUT_RDWR)
    for one in found:
        one.close()
    os.close(process)
    return len(found)


class Stepping(Child):
    """An echo_client that makes one call at each step()."""

    def __init__(self, target, spec, **words):
        words = {"step": 1, "calls": 1000000, **words}
        super().__init__(
            [program("echo_client"), target, *(f"{name}={value}" for name, value in words.items())],
            env=environment(spec), stdin=subprocess.PIPE)
        self.log = ""

    def begin(self, step="\n"):
        self.process.stdin.write(step)
        self.process.stdin.flush()

    def status(self):
        return int(self.process.stdout.readline())

    def has_ended(self):
        return bool(select.select([self.process.stdout], [], [], 0)[0])

    def step(self):
        self.begin()
        return self.status()

    def times_aside(self):
        """How often it has found a side path so far."""
        while select.select([self.process.stderr], [], [], 0)[0]:
            self.log += os.read(self.process.stderr.fileno(), 65536).decode()
        return self.log.count("go aside")

    def step_until_aside(self, times):
        """Calls until it has found a side path that often; they go inline meanwhile."""
        statuses = []
        while self.times_aside() < times:
            statuses.append(self.step())
        return statuses

    def end(self):
        output, errors = self.process.communicate(timeout=PATIENCE)
        return ended(self.process.returncode, output, self.log + errors)


@contextlib.contextmanager
def client_in_mid_message(server):
    """Its large message is on its way: the server has some of it."""
    before = memory(server.process.pid)
    with Stepping(server.target, ALL, bytes=24 * MIB, method="Chat") as client:
        client.begin()
        while memory(server.process.pid) < before + 8 * MIB:
            pass
        yield client


class Checks(unittest.TestCase):
    def expect_nothing_left(self, end, status=0):
        self.assertEqual(end.status, status, end.errors)
        self.assertEqual(end.counters[-3:], (0, 0, 0), end.errors)


class Hostile(Checks):
    def test_client_that_lies(self):
        """Its own calls fail, each as it should; another client's don't, and memory stays small."""
        spec = "tcp,threshold=1000,wait_ms=5000,log=info"
        with echo_server(spec) as server, Stepping(server.target, spec, bytes=100000) as other:
            self.assertEqual(other.step(), 0)
            hostile = subprocess.Popen([str(PROGRAMS / "hostile_client"), server.target],
                                       env=environment(None), stderr=subprocess.PIPE, text=True)
            calls = 1
            while hostile.poll() is None:
                self.assertEqual(other.step(), 0)
                calls += 1
            errors = hostile.communicate()[1]
            self.assertEqual(hostile.returncode, 0, errors)
            self.assertLess(memory(server.process.pid), (300 if LINKED else 60) * MIB)
            end = other.end()
            self.expect_nothing_left(end)
            self.assertEqual(end.counters.sent, calls, end.errors)
            self.expect_nothing_left(server.end())


    def hostile_server(self, *words):
        server = Server([str(PROGRAMS / "hostile_server"), *words], None, environment(None))
        self.addCleanup(server.kill)
        return server, [int(word) for word in server.process.stdout.readline().split()]

    def test_server_that_lies(self):
        """A lie in an answer fails its own call; the next one on the same channel is good."""
        server, statuses = self.hostile_server("lies")
        with Stepping(server.target, INLINE_REQUESTS, bytes=1000) as client:
            self.assertEqual([client.step() for _ in statuses], statuses, client.log)
            end = client.end()
        self.expect_nothing_left(end)
        self.assertEqual(end.counters.received, statuses.count(0), end.errors)

    def test_server_whose_bytes_never_come(self):
        server, statuses = self.hostile_server("waits")
        self.assertGreater(len(statuses), 0)
        with Stepping(server.target, INLINE_REQUESTS, bytes=1000, timeout_ms=300) as client:
            self.assertEqual([client.step() for _ in statuses], statuses, client.log)
            self.expect_nothing_left(client.end())

    def test_server_that_floods(self):
        """Pieces that never come are bounded for each side connection: some calls fail at once, the
        others by their deadline."""
        server, _ = self.hostile_server("floods")
        end = echo_client(server, INLINE_REQUESTS, bytes=1000, warm=1, calls=200, threads=100,
                          timeout_ms=3000)
        self.expect_nothing_left(end)
        counts = dict(map(int, word.split(":")) for word in end.output.split())
        self.assertEqual(set(counts), {0, 4, 8}, end.errors)
        self.assertEqual(counts[0], end.counters.received, end.errors)

    def test_server_that_claims_to_be_another(self):
        """Messages for a server never go to one that only says that it is the same process."""
        with echo_server(ALL) as honest:
            server, _ = self.hostile_server("as", honest.target)
            end = echo_client(honest, INLINE_REQUESTS, beside=server.target, bytes=1000, calls=1)
            self.assertEqual((end.output, end.counters.received), ("0:2", 2), end.errors)
            self.expect_nothing_left(end)
            self.expect_nothing_left(honest.end())


class Dying(Checks):
    def test_client_killed_in_mid_message(self):
        with echo_server(ALL) as server:
            with client_in_mid_message(server) as client:
                client.process.kill()
            client = echo_client(server, ALL, calls=3, bytes=100000)
            self.assertEqual(client.output, "0:3", client.errors)
            self.assertEqual(client.counters.sent, 3)
            self.expect_nothing_left(server.end())

    def test_server_restarted_on_its_address(self):
        with echo_server(ALL) as server:
            with Stepping(server.target, ALL, bytes=100000, method="Chat") as client:
                self.assertEqual(client.step(), 0)
                server.kill()
                self.assertEqual(client.step(), 14)
                with echo_server(ALL, address=server.target) as again:
                    statuses = client.step_until_aside(2)
                    self.assertEqual(client.step(), 0)
                    end = client.end()
                    self.expect_nothing_left(end)
                    self.assertLessEqual(set(statuses), {0, 14}, end.errors)
                    # The one call after the kill, if the side path's end was known before gRPC's.
                    self.assertLessEqual(end.counters.failed, 1, end.errors)
                    end = again.end()
                    self.expect_nothing_left(end)
                    self.assertGreaterEqual(end.counters.received, 1)

    def test_side_path_cut(self):
        """With bytes on it the call fails with UNAVAILABLE; the next go inline, and then aside."""
        spec = f"{ALL},peer_ms=1000"
        with echo_server(spec) as server:
            port = side_port(server)
            with Stepping(server.target, spec, bytes=MIB, method="Chat") as client:
                self.assertEqual(client.step(), 0)
                client.begin("s")
                while "silent" not in server.process.stderr.readline():
                    pass
                # A connection that is cut once the transport replaces, and the call goes on.
                while not client.has_ended():
                    cut_sockets(client.process.pid, port)
                self.assertEqual(client.status(), 14)
                inline = client.step_until_aside(2)
                self.assertEqual([*inline, client.step()], [0] * (len(inline) + 1))
                end = client.end()
                self.expect_nothing_left(end)
                self.assertEqual(end.counters.failed, 1, end.errors)
                self.assertGreaterEqual(end.counters.sent, 3, end.errors)
                self.expect_nothing_left(server.end())

    def test_server_ends_in_mid_message(self):
        """In order, with large messages on their way in both directions."""
        with echo_server(ALL) as server:
            with client_in_mid_message(server) as client:
                self.expect_nothing_left(server.end())
                self.assertIn(client.status(), (0, 1, 14))
                self.expect_nothing_left(client.end())

    def test_channels_and_calls_dropped_in_mid_message(self):
        for queue, calls, size in (("next", 60, 1000), ("pluck", 30, 1000), ("next", 30, 2000000)):
            with self.subTest(queue=queue, size=size):
                client, server = echo(ALL, ALL, queue, calls=calls, threads=3, drop=1, bytes=size)
                self.expect_nothing_left(client)
                self.expect_nothing_left(server)
                # All channels of a process share it.
                self.assertEqual(server.errors.count("side connection with"), 1, server.errors)


class Slow(Checks):
    def test_fast_sender_and_slow_receiver(self):
        """100 MiB ahead of a server that reads 4 MiB each 20 ms: neither side holds them."""
        with echo_server("tcp,log=info,wait_ms=5000") as server:
            client = echo_client(server, "tcp,log=info,wait_ms=5000,window=8MiB", method="Slow",
                                 messages=25, ahead=1, bytes=4 * MIB, memory=1)
            peak = memory(server.process.pid)
            self.assertEqual(client.output, "0:1", client.errors)
            self.assertEqual(client.counters.sent, 25, client.errors)
            self.expect_nothing_left(client)
            self.expect_nothing_left(server.end())
        if not LINKED:
            self.assertLess(peak, 40 * MIB)
            peak = int(re.search(r"memory in the end: (\d+)", client.errors).group(1)) // 1024
            self.assertLess(peak, 60, client.errors)


class Forked(Checks):
    def setUp(self):
        # What the parent's threads hold looks lost in a child.
        before = os.environ.get("ASAN_OPTIONS", "")
        os.environ["ASAN_OPTIONS"] = f"{before}:detect_leaks=0"
        self.addCleanup(os.environ.__setitem__, "ASAN_OPTIONS", before)

    def test_fork(self):
        for when, calls in (("early", 5), ("late", 10)):
            with self.subTest(when=when):
                client, server = echo(ALL, ALL, calls=5, bytes=100000, fork=when)
                self.assertEqual((client.status, client.output), (0, f"0:{calls}"), client.errors)
                self.expect_nothing_left(server)
                self.assertEqual(server.counters.received, 10)


class Strict(Checks):
    """What can't work is told in one line; with strict=yes the program doesn't start."""

    def check(self, spec, words):
        """A server with that spec, without strict=yes and with it."""
        with echo_server(spec) as server:
            client = echo_client(server, ALL, calls=1, bytes=300000)
            self.assertEqual(client.output, "0:1", client.errors)
            end = server.end()
        lines = [line for line in end.errors.split("\n") if "aside:" not in line and line]
        self.assertEqual((end.status, len(lines)), (0, 1), end.errors)
        self.assertRegex(lines[0], words)
        refused = subprocess.run([program("echo_server"), "next", "-1"], text=True,
                                 capture_output=True, env=environment(f"{spec},strict=yes"),
                                 timeout=PATIENCE, check=False, stdin=subprocess.DEVNULL)
        self.assertEqual(refused.returncode, 78, refused.stderr)
        self.assertRegex(refused.stderr, words)

    def test_port_that_is_taken(self):
        with socket.create_server(("127.0.0.1", 0)) as taken:
            port = taken.getsockname()[1]
            self.check(f"tcp,listen=127.0.0.1:{port}", rf"127.0.0.1:{port}.*plain gRPC|strict")

    @unittest.skipIf(LINKED, "the layer is linked, and can't be given another libgrpc")
    def test_another_libgrpc(self):
        before = os.environ.get("DROPIN_PRELOAD", "")
        os.environ["DROPIN_PRELOAD"] = os.environ["DROPIN_OTHER_VERSION"]
        try:
            self.check("tcp", r"calls itself 30\.1\.2")
        finally:
            os.environ["DROPIN_PRELOAD"] = before

    def test_spec_of_no_device(self):
        self.check("tcp,interface=nowhere0", "nowhere0")


if __name__ == "__main__":
    unittest.main(verbosity=2)
