#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Traces from end to end: pairs of programs that write them, and haul-trace that reads them.

The programs are found through HAUL_BENCH_SERVER, HAUL_BENCH_CLIENT and HAUL_TRACE; the transport
is HAUL_TEST_SPEC, or tcp; memif is dpdk over shared memory, with a port for each side.
"""

import errno
import json
import os
import re
import signal
import subprocess
import tempfile
import unittest

SERVER = os.environ["HAUL_BENCH_SERVER"]
CLIENT = os.environ["HAUL_BENCH_CLIENT"]
TRACE = os.environ["HAUL_TRACE"]
SPEC = os.environ.get("HAUL_TEST_SPEC", "tcp")
PATIENCE = 60
SHORT = ["--seconds=0.1", "--warmup=0", "--rounds=1"]


def memif(folder, role, number):
    return (f"dpdk,port={{net_memif,role={role},socket={folder}/socket,socket-abstract=no}},"
            f"ip=10.77.0.{number}/24,hugepages=no")


def run(*command):
    return subprocess.run(command, text=True, capture_output=True, timeout=PATIENCE, check=False)


class Traces(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder = folder.name

    def path(self, name):
        return os.path.join(self.folder, name)

    def specs(self):
        """The server's with where it listens, and the client's."""
        if SPEC == "memif":
            return memif(self.folder, "server", 1), "10.77.0.1:0", memif(self.folder, "client", 2)
        return SPEC, "127.0.0.1:0", SPEC

    def start_server(self, *options, spec=""):
        server_spec, address, _ = self.specs()
        reader, writer = os.pipe()
        server = subprocess.Popen(
            [SERVER, f"--listen={address}", f"--transport={server_spec}{spec}",
             f"--ready-fd={writer}", "--no-ceiling", *options],
            pass_fds=[writer], text=True, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
        os.close(writer)
        self.addCleanup(server.communicate)
        self.addCleanup(server.kill)
        with os.fdopen(reader) as ready:
            return server, ready.readline().strip()

    def record(self, *options, spec=""):
        """A run with a trace on both sides; their paths, the client's first."""
        client, server = self.path("client"), self.path("server")
        process, address = self.start_server("--once", f"--trace={server}", spec=spec)
        done = run(CLIENT, f"--connect={address}", f"--transport={self.specs()[2]}{spec}",
                   f"--trace={client}", *SHORT, *options)
        self.assertEqual(done.returncode, 0, done.stderr)
        _, errors = process.communicate(timeout=PATIENCE)
        self.assertEqual((process.returncode, errors), (0, ""))
        return client, server

    def summary(self, *arguments):
        done = run(TRACE, "--json=-", *arguments)
        self.assertEqual(done.returncode, 0, done.stderr)
        return json.loads(done.stdout)

    def group(self, summary, way, size):
        return next(group for group in summary["sizes"]
                    if (group["way"], group["size"]) == (way, size))

    def test_both_sides_of_a_run(self):
        client, server = self.record("--size=1MiB,64B", "--concurrency=4", "--count=300")
        merged = self.path("merged")
        found = self.summary(f"--merge={merged}", client, server)
        self.check_files(found)
        for size in ("up to 64 B", "up to 1 MiB"):
            sent, received, both = (self.group(found, way, size) for way in
                                    ("send", "receive", "send and receive"))
            # Each send met its receive, on the right clock.
            self.assertEqual(sent["tensors"], received["tensors"])
            self.assertEqual(sent["tensors"], both["tensors"])
            for group in (sent, received):
                parts = sum(group[name] for name in ("wait_us", "checksum_us", "move_us",
                                                     "copy_us", "complete_us"))
                self.assertAlmostEqual(parts, group["mean_us"], delta=1e-3 * group["mean_us"])
            self.assertGreater(both["move_us"] + both["copy_us"],
                               -found["files"][1]["clock_uncertainty_us"])
        self.check_merged(merged, found)

    def check_files(self, found):
        self.assertEqual([file["program"] for file in found["files"]],
                         ["haul-bench-client", "haul-bench-server"])
        for file in found["files"]:
            self.assertTrue(file["whole"])
            self.assertEqual(file["lost"], 0)
            self.assertGreater(file["tensors"], 0)
            self.assertLess(file["copy_share"], 1)
        # One host has one clock: the estimate may not be further off than it says.
        server = found["files"][1]
        self.assertLessEqual(abs(server["clock_offset_us"]), server["clock_uncertainty_us"] + 1)

    def check_merged(self, path, found):
        with open(path, encoding="utf-8") as file:
            events = json.load(file)
        self.assertEqual({event["pid"] for event in events}, {1, 2})
        times = [event["ts"] for event in events if "ts" in event]
        self.assertGreaterEqual(min(times), -found["files"][1]["clock_uncertainty_us"] - 1e4)
        self.assertLess(max(times), 60e6)
        arrows = [event for event in events if event["ph"] in "sf"]
        self.assertGreater(len(arrows), 0)
        self.assertEqual(len(arrows) % 2, 0)
        # An operation's begin, steps and end belong together, and nobody else has its number.
        depth = {}
        for event in events:
            if event["ph"] in "be":
                depth[event["id"]] = depth.get(event["id"], 0) + (1 if event["ph"] == "b" else -1)
                self.assertGreaterEqual(depth[event["id"]], 0)
        self.assertEqual(set(depth.values()), {0})
        # What was merged can be summed up, and not merged again.
        again = self.summary(path)
        self.assertEqual(again["files"][0]["tensors"],
                         sum(file["tensors"] for file in found["files"]))
        done = run(TRACE, f"--merge={path}.2", path)
        self.assertEqual(done.returncode, 1)
        self.assertIn("merged already", done.stderr)

    def test_the_shares_of_a_tensor_are_all_of_it(self):
        client, server = self.record("--size=3MiB", "--concurrency=2")
        for path, name, way in ((client, "send", "out"), (server, "receive", "in")):
            with open(path, encoding="utf-8") as file:
                events = json.load(file)
            moved = {}
            for event in events:
                if event.get("cat") == "share" and event["name"] == way:
                    values = event["args"]
                    moved[values["slot"]] = moved.get(values["slot"], 0) + values["bytes"]
            tensors = [event["args"] for event in events if event["ph"] == "b"
                       and event["name"] == name and event["args"]["bytes"] == 3 << 20
                       and event["args"]["result"] == 0]
            self.assertGreater(len(tensors), 0)
            for tensor in tensors:
                self.assertEqual(moved[tensor["slot"]], tensor["bytes"])
                self.assertEqual(tensor["to"], "acceptor")

    def test_checksums_and_the_threads_of_the_library(self):
        client, server = self.record("--size=1MiB", spec=",checksum=crc32c,progress=thread")
        found = self.summary(client, server)
        for way in ("send", "receive"):
            self.assertGreater(self.group(found, way, "up to 1 MiB")["checksum_us"], 0)

    def test_several_clients_take_files_of_their_own(self):
        client, server = self.record("--size=64KiB", "--clients=3")
        found = self.summary(server, client, client + ".2", client + ".3")
        self.assertEqual(self.group(found, "send", "up to 256 KiB")["tensors"],
                         self.group(found, "send and receive", "up to 256 KiB")["tensors"])
        # Two clients have only the server in common: no merge, but what each has done.
        merged = self.path("merged")
        done = run(TRACE, f"--merge={merged}", client, client + ".2")
        self.assertEqual((done.returncode, done.stdout), (1, ""))
        self.assertIn(client + ".2 shares no endpoint", done.stderr)
        self.assertFalse(os.path.exists(merged))
        done = run(TRACE, client, client + ".2")
        self.assertEqual(done.returncode, 0)
        self.assertIn("warning: " + client + ".2 shares no endpoint", done.stderr)
        self.assertIn("clock: unknown", done.stdout)
        found = self.summary(client, client + ".2")
        self.assertEqual([file["clock_offset_us"] for file in found["files"]], [0, None])
        self.assertTrue(all(file["tensors"] > 0 for file in found["files"]))
        self.assertNotIn("send and receive", [group["way"] for group in found["sizes"]])

    def test_a_side_that_is_killed_leaves_what_it_wrote(self):
        client, server = self.path("client"), self.path("server")
        process, address = self.start_server(f"--trace={server}")
        done = run(CLIENT, f"--connect={address}", f"--transport={SPEC}", f"--trace={client}",
                   *SHORT, "--size=1MiB")
        self.assertEqual(done.returncode, 0, done.stderr)
        # What it has done meanwhile is written without its help.
        while os.path.getsize(server) < os.path.getsize(client) / 2:
            self.assertIsNone(process.poll())
        process.send_signal(signal.SIGKILL)
        process.wait(PATIENCE)
        with open(server, encoding="utf-8") as file:
            text = file.read()
        json.loads(text + "]")
        found = self.summary(client, server)
        self.assertEqual([file["whole"] for file in found["files"]], [True, False])
        # In the middle of an event.
        with open(server, "w", encoding="utf-8") as file:
            file.write(text[:len(text) * 2 // 3].rstrip("\n,"))
        done = run(TRACE, client, server)
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assertIn("the end is missing", done.stdout)
        self.assertIn("the end is missing", done.stderr)

    def test_receives_that_are_left_over_did_not_fail(self):
        client, server = self.record("--size=64KiB", "--concurrency=4", "--count=20")
        self.assertEqual(self.summary(client)["files"][0]["failed"], 0)
        counts = self.summary(server)["files"][0]
        self.assertEqual(counts["failed"], 0)
        # And perhaps the one for the client's next wish.
        self.assertIn(counts["still_waited"], (4, 5))
        done = run(TRACE, server)
        self.assertRegex(done.stdout, r" tensors, 0 failed, [45] receives still waited at the end")

    def test_what_is_a_failure(self):
        """A send that nobody took, what ended in the middle of a tensor, and all other errors."""
        path = self.path("made")
        events = [{"ph": "M", "name": "tensorhaul_trace",
                   "args": {"version": 1, "program": "p", "host": "h", "spec": "tcp"}}]
        for name, result, move in (
                ("send", 0, 1), ("receive", 0, 1),
                ("receive", -errno.ECANCELED, 0), ("receive", -errno.ECONNRESET, 0),
                ("receive", -errno.ECANCELED, 1), ("receive", -errno.ETIMEDOUT, 0),
                ("send", -errno.ECONNRESET, 0)):
            events.append({"ph": "b", "cat": "tensor", "name": name, "ts": 10,
                           "args": {"bytes": 8, "result": result, "wait_us": 1, "checksum_us": 0,
                                    "move_us": move, "copy_us": 0, "kernel_us": 0,
                                    "complete_us": 1}})
        with open(path, "w", encoding="utf-8") as file:
            file.write("[\n" + ",\n".join(json.dumps(event) for event in events) + "\n]\n")
        counts = self.summary(path)["files"][0]
        self.assertEqual([counts[name] for name in ("tensors", "still_waited", "failed")],
                         [2, 2, 3])

    def test_only_one_side_has_a_trace(self):
        server, address = self.start_server("--once")
        client = self.path("client")
        done = run(CLIENT, f"--connect={address}", f"--transport={SPEC}", f"--trace={client}",
                   *SHORT, "--size=64KiB")
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assertEqual(server.wait(PATIENCE), 0)
        done = run(TRACE, client)
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assertRegex(done.stdout, r"(?m)^up to 256 KiB +send +\d+")
        self.assertIn("copies outside of the kernel", done.stdout)


class BadInput(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder = folder.name

    def check_text(self, text, complaint):
        path = os.path.join(self.folder, "file")
        with open(path, "wb") as file:
            file.write(text)
        done = run(TRACE, path)
        self.assertEqual((done.returncode, done.stdout), (1, ""), done.stderr)
        self.assertIn(path, done.stderr)
        self.assertRegex(done.stderr, complaint)

    def test_files_that_are_none(self):
        head = b'[\n{"ph":"M","name":"tensorhaul_trace","args":{"version":1}},\n'
        for text, complaint in (
                (b"", "it is empty"),
                (b"\x7fELF\x02\x01", "it is no trace"),
                (b'{"traceEvents":[]}', "it is no trace"),
                (b"[]", "no trace of tensorhaul"),
                (b"[\n{}\n]\n", "no trace of tensorhaul"),
                (b"[\n{\"ph\":\n]\n", "line 2: it is no event"),
                (b'[\n{"ph":"M"} trailing\n]\n', "line 2: it is no event"),
                (b"[\n7\n]\n", "line 2: it is no event"),
                (head.replace(b":1}", b":2}"), "another version"),
                (head + b'{"ph":"b","cat":"tensor","name":"send","args":{}}\n]\n',
                 "line 3: a tensor without"),
                (head + b'{"ph":"X","cat":"share","name":"in"}\n]\n', "line 3: a share without"),
                (head + b'{"ph":"i","cat":"clock"}\n]\n', "line 3: a clock offset without"),
                (head + b'{"ph":"X","cat":"program"}\n]\n', "line 3: a span without")):
            with self.subTest(text=text):
                self.check_text(text, complaint)

    def test_arguments(self):
        missing = os.path.join(self.folder, "missing")
        for arguments, status, complaint in (
                ((), 2, "which traces"),
                ((missing,), 1, f"{missing}: No such file"),
                ((self.folder,), 1, "Is a directory"),
                (("--merge=/nowhere/merged", missing), 2, "--merge=/nowhere/merged: No such file"),
                ((f"--merge={missing}", missing), 2, "one of the files that are read"),
                ((f"--json={missing}", missing), 2, "one of the files that are read"),
                ((missing, missing), 2, f"{missing} is there twice"),
                (("--wrong",), 2, "--wrong")):
            with self.subTest(arguments=arguments):
                done = run(TRACE, *arguments)
                self.assertEqual(done.returncode, status, done.stderr)
                self.assertIn(complaint, done.stderr)

    def test_a_merge_that_does_not_fit(self):
        path = os.path.join(self.folder, "file")
        with open(path, "w", encoding="utf-8") as file:
            file.write('[\n{"ph":"M","name":"tensorhaul_trace","args":{"version":1}}\n]\n')
        done = run(TRACE, "--merge=/dev/full", path)
        self.assertEqual(done.returncode, 1)
        self.assertIn("--merge=/dev/full: No space left", done.stderr)

    def test_traces_that_cant_be_written(self):
        for trace, complaint in (("/dev/full", "No space left"), (self.folder, "Is a directory"),
                                 ("/nowhere/trace", "No such file")):
            with self.subTest(trace=trace):
                server = run(SERVER, "--listen=127.0.0.1:0", f"--trace={trace}",
                             f"--transport={SPEC}")
                client = run(CLIENT, "--connect=127.0.0.1:1", f"--trace={trace}",
                             f"--transport={SPEC}")
                for done in (server, client):
                    self.assertEqual(done.returncode, 1)
                    self.assertTrue(re.search(f"trace={trace}: {complaint}", done.stderr),
                                    done.stderr)


if __name__ == "__main__":
    unittest.main()
