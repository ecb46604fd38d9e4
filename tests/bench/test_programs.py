#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""haul-bench-server, haul-bench-client and haul-info as a user runs them, over loopback.

The programs are found through HAUL_BENCH_SERVER, HAUL_BENCH_CLIENT and HAUL_INFO; the transport
is HAUL_TEST_SPEC, or tcp.
"""

import json
import os
import re
import signal
import socket
import subprocess
import sys
import tempfile
import unittest

sys.path.append(os.path.join(os.path.dirname(os.path.abspath(__file__)), ".."))

from child import Child  # noqa: E402

SERVER = os.environ["HAUL_BENCH_SERVER"]
CLIENT = os.environ["HAUL_BENCH_CLIENT"]
INFO = os.environ["HAUL_INFO"]
KEY_TABLES = os.environ["HAUL_KEY_TABLES"]
SPEC = os.environ.get("HAUL_TEST_SPEC", "tcp")

# Long enough for a loaded machine with sanitizers, and shorter than the test runner's patience.
PATIENCE = 60
SHORT = ["--seconds=0.2", "--warmup=0.05", "--rounds=2"]


class Server(Child):
    """A server on a free port; it tells the port itself, nobody sleeps."""

    def __init__(self, *options):
        reader, writer = os.pipe()
        command = [SERVER, "--listen=127.0.0.1:0", f"--transport={SPEC}", f"--ready-fd={writer}"]
        super().__init__([*command, *options], pass_fds=[writer])
        os.close(writer)
        with os.fdopen(reader) as ready:
            self.address = ready.readline().strip()
        if not self.address:
            raise AssertionError(self.process.communicate()[1])

    def end(self, number=None):
        """Returns the exit status and both outputs."""
        if number is not None:
            self.process.send_signal(number)
        output = self.process.communicate(timeout=PATIENCE)
        return self.process.returncode, *output


def run(*command):
    return subprocess.run(command, text=True, capture_output=True, timeout=PATIENCE)


def client(server, *options):
    return run(CLIENT, f"--connect={server.address}", f"--transport={SPEC}", *options)


def measure(server, *options):
    """Runs a client that has to succeed; returns its JSON."""
    done = client(server, "--json=-", *options)
    if done.returncode:
        raise AssertionError(done.stderr)
    return json.loads(done.stdout)


class Measuring(unittest.TestCase):
    def test_everything_at_once(self):
        with Server("--once") as server:
            found = measure(server, *SHORT, "--ceiling", "--verify", "--size=4KiB,1MiB",
                            "--test=throughput,latency", "--test=rate,bidirectional")
            status, _, errors = server.end()
        self.assertEqual((status, errors), (0, ""))
        self.assertEqual(found["tool"], "haul-bench-client")
        self.assertEqual(found["transport"], SPEC)
        self.assertEqual(found["rounds"], 2)
        self.assertFalse(found["failed"])
        self.assertIsNone(found["clients"])
        self.assertIsNone(found["jain_index"])
        self.assertEqual(
            [(result["test"], result["size_bytes"]) for result in found["results"]],
            [("throughput", 4096), ("throughput", 1 << 20), ("latency", 64), ("rate", 64),
             ("bidirectional", 4096), ("bidirectional", 1 << 20)])
        for result in found["results"]:
            self.check_result(result)

    def check_result(self, result):
        self.assertGreater(result["verified"], 0)
        self.assertEqual(result["mismatches"], 0)
        self.assertEqual(result["endpoints"], 1)
        if result["test"] == "latency":
            self.check_latency(result)
            return
        self.assertGreater(result["goodput_gbps"], 0)
        self.assertEqual(len(result["goodput_gbps_rounds"]), 2)
        self.assertEqual(len(result["ceiling_gbps_rounds"]), 2)
        self.assertGreater(result["cpu_s_per_gb"], 0)
        self.assertGreaterEqual(result["streams"], 1)
        if result["test"] == "rate":
            self.assertGreater(result["rate_per_s"], 0)
            self.assertIsNone(result["ceiling_gbps"])
            self.assertIsNone(result["ceiling_cpu_s_per_gb"])
        else:
            self.assertGreater(result["ceiling_gbps"], 0)
            self.assertGreater(result["ceiling_cpu_s_per_gb"], 0)

    def check_latency(self, result):
        for name in ("latency_us", "ceiling_latency_us"):
            times = [result[name][key] for key in ("p50", "p90", "p99", "p99_9", "max")]
            self.assertEqual(times, sorted(times))
            self.assertGreater(times[0], 0)
            self.assertEqual(len(result[name + "_rounds"]), 2)

    def test_without_ceiling_and_verify_they_are_null(self):
        with Server("--once", "--no-ceiling") as server:
            found = measure(server, *SHORT, "--test=throughput,latency", "--size=1MiB")
        throughput, latency = found["results"]
        for name in ("ceiling_gbps", "ceiling_cpu_s_per_gb", "ratio_to_ceiling", "verified",
                     "mismatches", "received_gbps"):
            self.assertIsNone(throughput[name], name)
        self.assertIsNone(latency["ceiling_latency_us"])

    def test_directions(self):
        with Server() as server:
            for direction, seen in (("send", (True, False)), ("recv", (False, True)),
                                    ("both", (True, True))):
                found = measure(server, *SHORT, f"--direction={direction}", "--size=64KiB",
                                "--verify", "--ceiling", "--endpoints=2")
                result = found["results"][0]
                self.assertEqual((result["sent_gbps"] is not None,
                                  result["received_gbps"] is not None), seen)
                self.assertEqual(result["mismatches"], 0)
            self.assertEqual(server.end(signal.SIGTERM)[0], 0)

    def test_sizes_without_bytes_and_odd_ones(self):
        with Server() as server:
            found = measure(server, *SHORT, "--size=0,1,63,65,4095,4097,1048577", "--verify",
                            "--concurrency=3")
        for result in found["results"]:
            self.assertGreater(result["rate_per_s"], 0)
            self.assertEqual(result["mismatches"], 0)

    def test_several_clients(self):
        with Server("--once") as server:
            found = measure(server, *SHORT, "--clients=3", "--size=256KiB", "--ceiling",
                            "--test=throughput,latency", "--verify")
            self.assertEqual(server.end()[0], 0)
        self.assertEqual(len(found["clients"]), 3)
        self.assertTrue(all(one["goodput_gbps"] > 0 for one in found["clients"]))
        self.assertTrue(1 / 3 <= found["jain_index"] <= 1)
        result = found["results"][0]
        self.assertEqual(len(result["clients_gbps"]), 3)
        # The clients' medians may come from different rounds.
        self.assertAlmostEqual(sum(result["clients_gbps"]) / result["goodput_gbps"], 1, delta=0.5)

    def test_polling_and_pings_in_flight(self):
        with Server() as server:
            found = measure(server, *SHORT, "--test=latency", "--waiting=poll", "--verify",
                            "--latency-concurrency=4", "--latency-size=1000")
        self.assertEqual(found["results"][0]["waiting"], "poll")
        self.assertGreater(found["results"][0]["pings"], 0)

    def test_count_ends_a_round(self):
        with Server() as server:
            found = measure(server, "--rounds=1", "--warmup=0", "--count=50", "--size=4KiB",
                            "--test=throughput,latency", "--ceiling", "--seconds=1")
            self.assertIsNotNone(found["results"][0]["goodput_gbps"])
            found = measure(server, "--rounds=1", "--warmup=0", "--count=50", "--test=latency")
            self.assertIsNone(found["options"]["seconds"])
            self.assertGreaterEqual(found["results"][0]["pings"], 50)

    def test_sizes_and_concurrencies_of_the_rate(self):
        with Server() as server:
            found = measure(server, *SHORT, "--test=rate", "--rate-size=64,16KiB",
                            "--rate-concurrency=1,100")
        self.assertEqual(
            [(result["size_bytes"], result["concurrency"]) for result in found["results"]],
            [(64, 1), (64, 100), (16384, 1), (16384, 100)])
        for result in found["results"]:
            self.assertIsNone(result["offered_per_s"])
            self.assertEqual(len(result["tensor_us_rounds"]), 2)

    def test_a_set_rate(self):
        with Server() as server:
            found = measure(server, *SHORT, "--test=rate,latency", "--rate=500", "--clients=2",
                            "--rate-concurrency=50", "--verify")
        for result in found["results"]:
            self.assertEqual(result["offered_per_s"], 500)
            self.assertAlmostEqual(result["rate_per_s"], 500, delta=50)
            self.assertEqual(result["mismatches"], 0)

    def test_a_rate_that_is_too_high_shows_in_the_times(self):
        with Server() as server:
            found = measure(server, "--rounds=1", "--seconds=0.1", "--warmup=0", "--test=latency",
                            "--rate=200000")
        # All that was due is counted, and what was due at the end waited for all before it.
        self.assertTrue(10000 < found["results"][0]["pings"] <= 20001, found["results"][0])
        self.assertGreater(found["results"][0]["latency_us"]["p99"], 20000)

    def test_diagnosis(self):
        options = ["--diagnose", "--sockets=1,2", "--seconds=0.1", "--warmup=0.05", "--size=1MiB"]
        with Server() as server:
            found = measure(server, *options)
            text = client(server, *options)
        self.assertEqual([step["sockets"] for step in found["steps"]], [1, 2])
        for step in found["steps"]:
            self.assertGreater(step["gbps"], 0)
            self.assertGreater(step["client_cores"], 0)
            self.assertGreater(step["server_cores"], 0)
            self.assertGreater(step["round_trip_us"], 0)
        self.assertGreater(found["ping_us"]["p50"], 0)
        self.assertGreater(found["measured"]["gbps"], 0)
        self.assertGreaterEqual(len(found["diagnosis"]["words"]), 4)
        self.assertEqual(text.returncode, 0, text.stderr)
        self.assertRegex(text.stdout, r"(?m)^2 +[0-9.]+ ")
        self.assertRegex(text.stdout, r"(?m)^Within a host take --transport=tcp")

    def test_diagnosis_needs_the_plain_side(self):
        with Server("--no-ceiling") as server:
            done = client(server, "--diagnose")
        self.assertEqual((done.returncode, done.stdout), (1, ""))
        self.assertIn("--no-ceiling", done.stderr)

    def test_live_lines_and_tables(self):
        with Server() as server:
            done = client(server, "--rounds=1", "--seconds=1.2", "--warmup=0", "--size=64KiB",
                          "--live=yes", "--ceiling")
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assertRegex(done.stdout, r"(?m)^throughput +1 s +[0-9.]+ Gb/s +[0-9]+ tensors$")
        self.assertRegex(done.stdout, r"(?m)^plain TCP +1 s +[0-9.]+ Gb/s$")
        self.assertRegex(done.stdout, r"(?m)^throughput +64 KiB ")

    def test_no_live_lines_into_a_pipe(self):
        with Server() as server:
            done = client(server, "--rounds=1", "--seconds=1.2", "--warmup=0", "--size=64KiB")
        self.assertNotIn(" 1 s ", done.stdout)


class Ends(unittest.TestCase):
    def test_address_file_and_summary(self):
        with tempfile.TemporaryDirectory() as folder:
            address, summary = os.path.join(folder, "address"), os.path.join(folder, "json")
            with Server(f"--address-file={address}", f"--json={summary}", "--once") as server:
                with open(address, encoding="utf-8") as file:
                    self.assertEqual(file.read(), server.address + "\n")
                measure(server, *SHORT, "--size=64KiB", "--verify")
                self.assertEqual(server.end()[0], 0)
            self.assertEqual(os.listdir(folder), ["json"])
            with open(summary, encoding="utf-8") as file:
                found = json.load(file)
        self.assertEqual(found["tool"], "haul-bench-server")
        self.assertEqual((found["clients"], found["rounds"]), (1, 2))
        self.assertEqual(found["mismatches"], 0)
        self.assertGreater(found["verified"], 0)
        self.assertGreater(found["bytes_received"], 0)

    def test_signals_end_it_in_order(self):
        for number in (signal.SIGINT, signal.SIGTERM):
            with Server() as server:
                self.assertEqual(server.end(number)[0], 0)

    def start_client(self, server, *options):
        """A client that has surely begun to move tensors when this returns."""
        process = subprocess.Popen(
            [CLIENT, f"--connect={server.address}", f"--transport={SPEC}", "--live=yes",
             "--seconds=50", "--warmup=0", "--size=64KiB", *options],
            text=True, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
        self.assertIn("Gb/s", process.stdout.readline())
        return process

    def test_a_server_that_leaves_fails_the_client(self):
        for number, status in ((signal.SIGTERM, 0), (signal.SIGKILL, -signal.SIGKILL)):
            for options in ((), ("--clients=2",)):
                with Server() as server:
                    process = self.start_client(server, *options)
                    self.assertEqual(server.end(number)[0], status)
                    _, errors = process.communicate(timeout=PATIENCE)
                    self.assertEqual(process.returncode, 1)
                    self.assertIn("haul-bench-client: ", errors)

    def test_a_client_that_dies_frees_the_server(self):
        for number in (signal.SIGTERM, signal.SIGKILL):
            with Server("--once") as server:
                process = self.start_client(server)
                process.send_signal(number)
                process.communicate(timeout=PATIENCE)
                self.assertEqual(server.end()[0], 0)

    def test_a_server_that_stands_still_is_noticed(self):
        with Server() as server:
            process = self.start_client(server, "--timeout=1")
            server.process.send_signal(signal.SIGSTOP)
            _, errors = process.communicate(timeout=PATIENCE)
            server.process.send_signal(signal.SIGCONT)
            self.assertEqual(process.returncode, 1)
            self.assertIn("nothing moved for 1 seconds", errors)
            self.assertEqual(server.end(signal.SIGTERM)[0], 0)

    @unittest.skipUnless(SPEC.startswith("tcp"), "SKIP: the port is not TCP's")
    def test_strangers_on_its_ports(self):
        with Server("--verbose") as server:
            host, port = server.address.rsplit(":", 1)
            for garbage in (b"", b"GET / HTTP/1.0\r\n\r\n", bytes(65536)):
                with socket.create_connection((host, int(port))) as stranger:
                    stranger.sendall(garbage)
            measure(server, *SHORT, "--size=4KiB", "--ceiling")
            self.assertEqual(server.end(signal.SIGTERM)[0], 0)


class Mistakes(unittest.TestCase):
    def check(self, program, options, status, *texts):
        done = run(program, *options)
        self.assertEqual(done.returncode, status, (options, done.stderr))
        for text in texts:
            self.assertIn(text, done.stderr, options)

    def test_client_options(self):
        for option, text in (
                ("--size=1M", "MiB"), ("--size=", "expected a size"), ("--test=x", "latency"),
                ("--waiting=x", "block, poll"), ("--direction=x", "send, recv, both"),
                ("--rounds=0", "1 to 1000"), ("--rounds=x", "1 to 1000"),
                ("--seconds=-1", "seconds"), ("--warmup=x", "seconds"),
                ("--clients=0", "from 1"), ("--endpoints=0", "from 1"),
                ("--concurrency=70000", "65536"), ("--latency-size=0", "1 B"),
                ("--rate-size=2MiB", "1 MiB"), ("--live=x", "auto, yes, no"),
                ("--json=/nonexistent/x", "No such file"), ("--json=/", "directory"),
                ("--ceiling-connect=x", "HOST:PORT"), ("--timeout=0", "seconds"),
                ("--ceiling-congestion=a-name-that-is-too-long", "letters")):
            self.check(CLIENT, ["--connect=127.0.0.1:1", option], 2, option, text, "--help")
        for options, text in (
                (["--rate=x", "--test=rate"], "--rate=x"), (["--rate=-1", "--test=rate"], "from 0"),
                (["--rate=1"], "--test=rate or --test=latency"),
                (["--rate=1", "--test=rate", "--direction=recv"], "--direction=send"),
                (["--rate=1", "--test=latency", "--ceiling"], "--ceiling"),
                (["--diagnose", "--clients=2"], "--clients"),
                (["--diagnose", "--direction=recv"], "other host"),
                (["--diagnose", "--count=5"], "--count"),
                (["--sockets=2,4"], "the first one is 1"), (["--sockets=1,x"], "--sockets=x"),
                (["--sockets=1,129"], "1 to 128"),
                (["--rate-concurrency=1,0"], "--rate-concurrency=0"),
                (["--rate-size=64,"], "--rate-size="),
                (["--rate-size=" + ",".join(["1"] * 65)], "more than 64")):
            self.check(CLIENT, ["--connect=127.0.0.1:1", *options], 2, text, "--help")
        self.check(CLIENT, [], 2, "--connect=HOST:PORT is missing")
        self.check(CLIENT, ["--connect=127.0.0.1"], 2, "--connect=127.0.0.1: expected HOST:PORT")
        self.check(CLIENT, ["--connect=127.0.0.1:0"], 2, "port from 1")
        self.check(CLIENT, ["--connect=h:1", "--nonsense"], 2, "--nonsense")
        self.check(CLIENT, ["--connect=h:1", "word"], 2, "word")
        self.check(CLIENT, ["--connect=h:1", "--concurrency=100", "--memory=1GiB"], 2,
                   "--memory=1GiB is too small", "100 MiB")

    def test_nobody_there(self):
        with socket.socket() as taken:
            taken.bind(("127.0.0.1", 0))
            address = f"127.0.0.1:{taken.getsockname()[1]}"
            with tempfile.TemporaryDirectory() as folder:
                path = os.path.join(folder, "json")
                self.check(CLIENT, [f"--connect={address}", f"--json={path}", "--timeout=5"], 1,
                           address)
                with open(path, encoding="utf-8") as file:
                    found = json.load(file)
        self.assertTrue(found["failed"])
        self.assertEqual(found["results"], [])

    def test_transports(self):
        for program, option in ((CLIENT, "--connect=127.0.0.1:1"), (SERVER, "--listen=*:0")):
            self.check(program, [option, "--transport=carrier-pigeon"], 1, "carrier-pigeon")
            self.check(program, [option, "--transport=tcp,streams=x"], 1, "streams=x")
        self.check(CLIENT, ["--connect=no-such-host.invalid:5"], 1, "no-such-host.invalid")

    def test_server_options(self):
        for option, text in (
                ("--listen=x", "HOST:PORT"), ("--memory=1", "size"),
                ("--ceiling-port=70000", "port"), ("--ready-fd=99", "descriptor"),
                ("--json=/nonexistent/x", "No such file")):
            self.check(SERVER, [option], 2, option, text)
        for option in ("--listen=203.0.113.5:0", "--ceiling-host=203.0.113.5",
                       "--address-file=/nonexistent/x"):
            self.check(SERVER, ["--listen=127.0.0.1:0", option], 1, "203.0.113.5" if "203" in option
                       else "/nonexistent/x")

    def test_a_port_in_use(self):
        with Server() as server:
            self.check(SERVER, [f"--listen={server.address}", f"--transport={SPEC}"], 1,
                       server.address)

    def test_the_server_says_no(self):
        with Server("--memory=1MiB", "--no-ceiling") as server:
            done = client(server, "--size=1MiB")
            self.assertEqual(done.returncode, 1)
            self.assertIn("--memory=1 MiB", done.stderr)
            done = client(server, "--ceiling")
            self.assertEqual(done.returncode, 1)
            self.assertIn("--no-ceiling", done.stderr)
        with Server() as server:
            done = client(server, "--ceiling", "--ceiling-congestion=no-such", *SHORT,
                          "--size=64KiB")
            self.assertEqual(done.returncode, 1)
            self.assertIn("no-such", done.stderr)

    def test_every_option_tells_its_default(self):
        for program in (CLIENT, SERVER, INFO):
            text = run(program, "--help").stdout.split("Help options:")[0]
            options = re.split(r"\n  (?:-., |    )(?=--)", text)[1:]
            self.assertGreater(len(options), 1)
            for option in options:
                self.assertRegex(" ".join(option.split()), r"--\S+ .*\(default: .+\)")


class KeyTables(unittest.TestCase):
    def test_json(self):
        for order in ("queued", "scattered"):
            done = run(KEY_TABLES, "--threads=1,3", "--pending=10,1000", "--seconds=0.02",
                       "--rounds=2", f"--order={order}", "--json=-")
            self.assertEqual(done.returncode, 0, done.stderr)
            found = json.loads(done.stdout)
            self.assertEqual((found["tool"], found["order"]), ("key-tables", order))
            self.assertEqual(
                [(one["pending"], one["threads"], one["contender"]) for one in found["results"]],
                [(pending, threads, contender) for pending in (10, 1000) for threads in (1, 3)
                 for contender in ("contexts", "mutex")])
            for one in found["results"]:
                self.assertEqual(len(one["matches_per_s_rounds"]), 2)
                self.assertAlmostEqual(
                    one["ns_per_match"] * one["matches_per_s"] / one["threads"] / 1e9, 1, places=3)

    def test_table(self):
        done = run(KEY_TABLES, "--threads=2", "--pending=100", "--seconds=0.02", "--rounds=1")
        self.assertEqual((done.returncode, done.stderr), (0, ""))
        self.assertRegex(done.stdout, r"(?m)^pending +threads +contexts M/s ")
        self.assertRegex(done.stdout, r"(?m)^100 +2 +[0-9.]+ +[0-9]+ +[0-9.]+ +[0-9]+ +[0-9.]+$")

    def test_options(self):
        for option, text in (("--threads=0", "from 1 to 1024"), ("--threads=1,,2", "--threads=:"),
                             ("--threads=" + "1," * 16 + "1", "more than 16"),
                             ("--pending=x", "--pending=x"), ("--pending=1", "fewer keys"),
                             ("--order=none", "queued, scattered"), ("--rounds=0", "--rounds=0"),
                             ("--seconds=0", "--seconds=0"), ("--json=/nowhere/x", "No such file"),
                             ("--what", "--what"), ("word", "word")):
            done = run(KEY_TABLES, option)
            self.assertEqual(done.returncode, 2, option)
            self.assertIn(text, done.stderr)
            self.assertEqual(done.stdout, "")


class Info(unittest.TestCase):
    def test_text(self):
        done = run(INFO)
        self.assertEqual(done.returncode, 0, done.stderr)
        for text in ("tcp: can run here", "streams", "locked memory", "congestion control", "lo "):
            self.assertIn(text, done.stdout)

    def test_json(self):
        found = json.loads(run(INFO, "--json").stdout)
        transports = {one["name"]: one for one in found["transports"]}
        self.assertTrue(transports["tcp"]["available"])
        for transport in transports.values():
            self.assertTrue(transport["available"] or transport["reason"])
        streams = [one for one in transports["tcp"]["options"] if one["name"] == "streams"]
        self.assertEqual(streams[0]["default"], "auto")
        self.assertIn("progress", [one["name"] for one in found["common_options"]])
        # Where gRPC is.
        layer = found.get("layer_options", [{"name": "threshold"}])
        self.assertIn("threshold", [one["name"] for one in layer])
        host = found["host"]
        self.assertGreaterEqual(host["cpus"]["allowed"], 1)
        self.assertIn("lo", [one["name"] for one in host["interfaces"]])
        self.assertIn(host["congestion"]["default"], host["congestion"]["available"])

    def test_one_transport(self):
        found = json.loads(run(INFO, "--json", "--transport=tcp").stdout)
        self.assertEqual([one["name"] for one in found["transports"]], ["tcp"])
        self.assertNotIn("host", found)
        done = run(INFO, "--transport=x")
        self.assertEqual(done.returncode, 2)
        self.assertIn("--transport=x: expected one of: tcp", done.stderr)

    def test_json_file(self):
        with tempfile.TemporaryDirectory() as folder:
            path = os.path.join(folder, "info")
            self.assertEqual(run(INFO, f"--json={path}").returncode, 0)
            with open(path, encoding="utf-8") as file:
                self.assertEqual(json.load(file)["tool"], "haul-info")
        self.assertEqual(run(INFO, "--json=/nonexistent/x").returncode, 2)
        # What follows is no file: it was meant for something else.
        for flag in ("--json", "-j"):
            done = run(INFO, flag, "tcp")
            self.assertEqual((done.returncode, os.path.exists("tcp")), (2, False))
            self.assertIn("tcp: not an option", done.stderr)


if __name__ == "__main__":
    unittest.main(verbosity=2)
