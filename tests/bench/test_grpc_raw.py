#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""grpc_raw as a user runs it: real pairs over loopback. The program is found through GRPC_RAW."""

import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
import unittest

sys.path.append(os.path.join(os.path.dirname(os.path.abspath(__file__)), ".."))

from child import Child  # noqa: E402

PROGRAM = os.environ["GRPC_RAW"]

# Long enough for a loaded machine with sanitizers, and shorter than the test runner's patience.
PATIENCE = 60
SHORT = ["--seconds=0.2", "--warmup=0.05", "--message-size=64KiB"]


class Server(Child):
    """A server on a free port, which it tells itself."""

    def __init__(self, *options):
        super().__init__([PROGRAM, "--job-type=server", "--target-ip=127.0.0.1", "--port=0",
                          "--memory=1MiB", *options])
        line = self.process.stdout.readline()
        if not line.startswith("listening on "):
            raise AssertionError(self.process.communicate()[1])
        self.address = line.split()[2]
        self.port = int(self.address.rsplit(":", 1)[1])

    def end(self, number=signal.SIGTERM):
        """Returns the exit status and the errors."""
        self.process.send_signal(number)
        errors = self.process.communicate(timeout=PATIENCE)[1]
        return self.process.returncode, errors


def run(*options):
    return subprocess.run([PROGRAM, *options], text=True, capture_output=True, timeout=PATIENCE)


def client(server, *options):
    return run("--job-type=client", f"--target-ip={server.address}", *options)


def measure(server, *options):
    """Runs a client that has to succeed; returns its JSON."""
    done = client(server, "--json=-", *options)
    if done.returncode:
        raise AssertionError(done.stderr)
    return json.loads(done.stdout)


def count_sockets(port):
    """Connections to that port, as ss sees them."""
    done = subprocess.run(["ss", "-Htn", "state", "established", "dport", "=", f":{port}"],
                          text=True, capture_output=True, check=True)
    return len(done.stdout.splitlines())


class Measuring(unittest.TestCase):
    def test_one_channel(self):
        with Server() as server:
            found = measure(server, *SHORT)
            self.assertEqual(server.end(), (0, ""))
        self.assertEqual(found["tool"], "grpc_raw")
        self.assertEqual(found["target"], server.address)
        self.assertEqual((found["channels"], found["sockets"], found["concurrency"]), (1, 1, 4))
        self.assertEqual((found["message_size_bytes"], found["response_size_bytes"]), (65536, 0))
        self.assertEqual((found["allocator"], found["server_allocator"]), ("keep", "keep"))
        self.assertAlmostEqual(found["seconds"], 0.2, places=3)
        self.assertAlmostEqual(found["goodput_gbps"] * 1e9 / 8 / 65536 / found["calls_per_s"], 1,
                               places=6)
        self.assertGreater(found["cpu_client_s_per_gb"], 0)
        self.assertGreater(found["cpu_server_s_per_gb"], 0)
        times = [found["latency_us"][key] for key in ("p50", "p90", "p99", "p99_9", "max")]
        self.assertEqual(times, sorted(times))
        self.assertGreater(times[0], 0)

    def test_queues_threads_and_responses(self):
        with Server("--completion-queues=2", "--server-threads=3", "--response-size=1000",
                    "--allocator=default") as server:
            for queues, channels in ((1, 1), (3, 2), (2, 4)):
                found = measure(server, *SHORT, f"--completion-queues={queues}",
                                f"--channels={channels}", "--concurrency=5")
                self.assertEqual(found["sockets"], channels)
                self.assertEqual(found["response_size_bytes"], 1000)
                self.assertGreater(found["response_gbps"], 0)
                self.assertEqual(found["server_allocator"], "default")
                self.assertEqual((found["server_threads"], found["server_completion_queues"]),
                                 (3, 2))
            done = client(server, *SHORT, "--response-size=5")
            self.assertEqual(done.returncode, 1)
            self.assertIn("the server was started with --response-size=1000", done.stderr)
            self.assertEqual(server.end(), (0, ""))

    def test_sizes(self):
        with Server() as server:
            for size in ("0", "1", "23", "24", "100000", "5MiB"):
                found = measure(server, "--seconds=0.1", "--warmup=0", f"--message-size={size}")
                self.assertGreater(found["calls_per_s"], 0)
            self.assertEqual(server.end(), (0, ""))

    def test_total_message_under_both_spellings(self):
        with Server() as server:
            for option in ("--total_message=300", "--total-message=300"):
                found = measure(server, option, "--message_size=1KiB", "--warmup=0")
                self.assertAlmostEqual(found["messages"], 300, delta=5)
            self.assertEqual(server.end(), (0, ""))

    def test_the_table(self):
        with Server() as server:
            done = client(server, *SHORT, "--channels=2")
        self.assertEqual((done.returncode, done.stderr), (0, ""))
        self.assertIn("2 channels with 4 calls in flight each", done.stdout)
        self.assertIn("freed memory is kept", done.stdout)
        self.assertRegex(done.stdout, r"(?m)^64 KiB +0 B .* 2$")


class Ends(unittest.TestCase):
    def start_client(self, server, sockets, *options):
        """A client that is connected when this returns."""
        process = subprocess.Popen(
            [PROGRAM, "--job-type=client", f"--target-ip={server.address}", "--seconds=50",
             "--message-size=64KiB", f"--channels={sockets}", *options],
            text=True, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
        limit = time.monotonic() + PATIENCE
        while count_sockets(server.port) < sockets and time.monotonic() < limit:
            self.assertIsNone(process.poll())
        return process

    @unittest.skipUnless(shutil.which("ss"), "SKIP: ss is missing: apt-get install iproute2")
    def test_each_channel_has_a_socket(self):
        with Server() as server:
            process = self.start_client(server, 8)
            self.assertEqual(count_sockets(server.port), 8)
            process.kill()
            process.communicate()

    @unittest.skipUnless(shutil.which("ss"), "SKIP: ss is missing: apt-get install iproute2")
    def test_a_server_that_leaves_fails_the_client(self):
        for number, status in ((signal.SIGTERM, 0), (signal.SIGKILL, -signal.SIGKILL)):
            with Server() as server:
                process = self.start_client(server, 2)
                self.assertEqual(server.end(number)[0], status)
                errors = process.communicate(timeout=PATIENCE)[1]
                self.assertEqual(process.returncode, 1)
                self.assertIn("grpc_raw: ", errors)

    @unittest.skipUnless(shutil.which("ss"), "SKIP: ss is missing: apt-get install iproute2")
    def test_a_server_that_stands_still_is_noticed(self):
        with Server() as server:
            process = self.start_client(server, 2, "--timeout=1")
            server.process.send_signal(signal.SIGSTOP)
            errors = process.communicate(timeout=PATIENCE)[1]
            server.process.send_signal(signal.SIGCONT)
            self.assertEqual(process.returncode, 1)
            self.assertRegex(errors, "no call ended for 1 seconds|no answer within 1 seconds")
            self.assertEqual(server.end(), (0, ""))

    @unittest.skipUnless(shutil.which("ss"), "SKIP: ss is missing: apt-get install iproute2")
    def test_a_client_that_dies_leaves_the_server_to_others(self):
        with Server() as server:
            process = self.start_client(server, 2)
            process.kill()
            process.communicate()
            self.assertGreater(measure(server, *SHORT)["calls_per_s"], 0)
            self.assertEqual(server.end(), (0, ""))


class Mistakes(unittest.TestCase):
    def check(self, options, status, *texts):
        done = run(*options)
        self.assertEqual(done.returncode, status, (options, done.stderr))
        for text in texts:
            self.assertIn(text, done.stderr, options)

    def test_options(self):
        for option, text in (
                ("--message_size=5GiB", "to 4294967295 B"), ("--message_size=x", "units are"),
                ("--channels=0", "1 to 1024"), ("--concurrency=0", "1 to 65536"),
                ("--completion_queues=0", "1 to 256"), ("--seconds=0", "seconds"),
                ("--total_message=x", "a number"), ("--allocator=x", "keep, default"),
                ("--target_ip=[", "[IPV6]:PORT"), ("--target_ip=h:99999", "HOST:PORT"),
                ("--target_ip=h:0", "a port from 1"), ("--target_ip=*", "needs a host"),
                ("--port=0", "1 to 65535"), ("--json=/nonexistent/x", "No such file"),
                ("--timeout=0", "seconds"), ("--nonsense", "--nonsense"), ("word", "word")):
            self.check(["--job_type=client", option], 2, option.split("=")[-1], text, "--help")
        self.check([], 2, "--job-type=server or --job-type=client is missing")
        self.check(["--job_type=x"], 2, "server, client")
        self.check(["--job_type=server", "--completion_queues=2"], 2, "need as many threads")
        self.check(["--job_type=server", "--json=-"], 2, "--job-type=client")
        self.check(["--job_type=server", "--memory=16TiB", "--port=0"], 2, "--memory=16TiB")

    def test_nobody_there(self):
        with socket.socket() as taken:
            taken.bind(("127.0.0.1", 0))
            port = taken.getsockname()[1]
            self.check(["--job_type=client", f"--port={port}"], 1, f"port {port}", "UNAVAILABLE")

    def test_no_grpc_there(self):
        with socket.create_server(("127.0.0.1", 0)) as listener:
            port = listener.getsockname()[1]
            process = subprocess.Popen([PROGRAM, "--job-type=client", f"--port={port}",
                                        "--timeout=2"], text=True, stderr=subprocess.PIPE)
            with listener.accept()[0] as stranger:
                stranger.sendall(b"HTTP/1.0 400 Bad Request\r\n\r\n")
            errors = process.communicate(timeout=PATIENCE)[1]
        self.assertEqual(process.returncode, 1)
        self.assertIn(f"port {port}", errors)

    def test_a_port_that_is_taken(self):
        with Server() as server:
            self.check(["--job_type=server", f"--target-ip={server.address}", "--memory=0"], 1,
                       "can't listen", str(server.port))

    def test_a_json_file(self):
        with tempfile.TemporaryDirectory() as folder, Server() as server:
            path = os.path.join(folder, "json")
            done = client(server, *SHORT, f"--json={path}")
            self.assertEqual((done.returncode, done.stderr), (0, ""))
            with open(path, encoding="utf-8") as file:
                self.assertEqual(json.load(file)["tool"], "grpc_raw")


if __name__ == "__main__":
    unittest.main(verbosity=2)
