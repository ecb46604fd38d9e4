#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""tensor_transfer_throughput as a user runs it: parameter servers and workers over loopback.

The program is found through TENSOR_TRANSFER, and haul-bench-client through HAUL_BENCH_CLIENT; the
transport is HAUL_TEST_SPEC, or tcp.
"""

import contextlib
import json
import os
import signal
import socket
import subprocess
import tempfile
import unittest

PROGRAM = os.environ["TENSOR_TRANSFER"]
CLIENT = os.environ["HAUL_BENCH_CLIENT"]
SPEC = os.environ.get("HAUL_TEST_SPEC", "tcp")

# Long enough for a loaded machine with sanitizers, and shorter than the test runner's patience.
PATIENCE = 60


def start(job, *options):
    return subprocess.Popen([PROGRAM, f"--job={job}", f"--transport={SPEC}", *options], text=True,
                            stdout=subprocess.PIPE, stderr=subprocess.PIPE)


class Cluster:
    """Parameter servers on free ports, which they tell themselves."""

    def __init__(self, servers, workers, *options):
        self.workers = [f"127.0.0.1:{number + 1}" for number in range(workers)]
        self.options = options
        mine = ",".join(["127.0.0.1:0"] * servers)
        self.processes = [start("ps", f"--ps-hosts={mine}", self._worker_hosts(),
                                f"--task={task}", *options) for task in range(servers)]
        self.servers = [self._address(process) for process in self.processes]

    @staticmethod
    def _address(process):
        line = process.stdout.readline()
        if not line.startswith("listening on "):
            raise AssertionError(process.communicate()[1])
        return line.split()[2]

    def _worker_hosts(self):
        return f"--worker-hosts={','.join(self.workers)}"

    def worker(self, task, *options):
        return start("worker", f"--ps-hosts={','.join(self.servers)}", self._worker_hosts(),
                     f"--task={task}", *self.options, *options)

    def ends(self):
        """Exit status and both outputs of each server."""
        ended = [(process.communicate(timeout=PATIENCE), process) for process in self.processes]
        return [(process.returncode, *outputs) for outputs, process in ended]

    def __enter__(self):
        return self

    def __exit__(self, *_):
        for process in self.processes:
            if process.poll() is None:
                process.kill()
            process.communicate()


def end(process):
    outputs = process.communicate(timeout=PATIENCE)
    return process.returncode, *outputs


def end_by_signal(process, number):
    """The thread sanitizer of GCC 12 loses about one early signal in a hundred: there, once more."""
    process.send_signal(number)
    while os.environ.get("TENSORHAUL_SANITIZE") == "thread" and process.poll() is None:
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(timeout=5)
        process.send_signal(number)


class Measuring(unittest.TestCase):
    def check_numbers(self, found, assign, servers, workers):
        self.assertEqual(found["assign"], assign)
        self.assertEqual((found["servers"], found["workers"]), (servers, workers))
        self.assertEqual((found["variable_bytes"], found["iterations"]), (3000000, 5))
        self.assertEqual(found["mismatches"], 0)
        self.assertAlmostEqual(found["transfer_s"] + found["assign_s"], found["seconds"], places=6)
        self.assertAlmostEqual(found["transfer_mb_per_s"] * found["seconds"], 15 * servers,
                               places=2)
        self.assertGreaterEqual(found["transfer_only_mb_per_s"], found["transfer_mb_per_s"])
        self.assertGreater(found["cpu_s_per_gb"], 0)
        self.assertGreater(found["prepare_s"], 0)

    def test_several_servers_and_workers(self):
        for assign, servers, workers in (("place", 1, 1), ("copy", 2, 1), ("add", 2, 3)):
            with Cluster(servers, workers, "--data-mb=3", "--iters=5",
                         f"--assign={assign}") as cluster:
                running = [cluster.worker(task, "--json=-") for task in range(workers)]
                for task, (status, output, errors) in enumerate(map(end, running)):
                    self.assertEqual(status, 0, errors)
                    self.assertIn("transfer rate: ", errors)
                    found = json.loads(output)
                    self.assertEqual((found["job"], found["task"]), ("worker", task))
                    self.check_numbers(found, assign, servers, workers)
                    if assign != "place":
                        self.assertGreater(found["server_assign_s"], 0)
                for task, (status, output, errors) in enumerate(cluster.ends()):
                    self.assertEqual((status, errors), (0, ""))
                    self.assertIn(f"ps {task}: {workers} of {workers} workers finished, "
                                  f"{6 * workers} tensors", output)

    def test_both_spellings_and_what_it_prints(self):
        for mark in "-_":
            with Cluster(1, 1, f"--data{mark}mb=1", "--iters=2") as cluster:
                process = start("worker", f"--ps{mark}hosts={cluster.servers[0]}", "--task=0",
                                f"--worker{mark}hosts=h:1", f"--data{mark}mb=1", "--iters=2")
                status, output, errors = end(process)
                self.assertEqual((status, errors), (0, ""))
                self.assertRegex(output, r"(?m)^transfer rate: [0-9.]+ MB/s$")
                self.assertRegex(output, r"(?m)^transfer rate without the steps beside it: "
                                         r"[0-9.]+ MB/s$")
                self.assertEqual(cluster.ends()[0][0], 0)

    def test_a_servers_json(self):
        with tempfile.TemporaryDirectory() as folder:
            path = os.path.join(folder, "json")
            with Cluster(1, 1, "--data-mb=1", "--iters=2", f"--json={path}") as cluster:
                worker = start("worker", f"--ps-hosts={cluster.servers[0]}", "--data-mb=1",
                               "--iters=2")
                self.assertEqual(end(worker)[0], 0)
                self.assertEqual(cluster.ends()[0][0], 0)
            with open(path, encoding="utf-8") as file:
                found = json.load(file)
        self.assertEqual((found["job"], found["finished"], found["tensors"]), ("ps", 1, 3))
        self.assertEqual(found["mismatches"], 0)


class Ends(unittest.TestCase):
    def start_worker(self, cluster, *options):
        """A worker that moves tensors when this returns."""
        process = cluster.worker(0, *options)
        self.assertIn(": connected", process.stdout.readline())
        return process

    def test_a_server_that_is_killed_fails_the_worker(self):
        with Cluster(2, 1, "--data-mb=1", "--iters=4000000") as cluster:
            process = self.start_worker(cluster)
            cluster.processes[1].kill()
            status, _, errors = end(process)
            self.assertEqual(status, 1)
            self.assertRegex(errors, r"ps 1 \(127.0.0.1:\d+\): ")
            self.assertEqual([status for status, *_ in cluster.ends()], [1, -signal.SIGKILL])

    def test_a_worker_that_is_killed_leaves_the_server_to_others(self):
        with Cluster(1, 2, "--data-mb=2", "--iters=500") as cluster:
            process = self.start_worker(cluster)
            process.kill()
            process.communicate()
            status, _, errors = end(cluster.worker(1))
            self.assertEqual((status, errors), (0, ""))
            status, output, errors = cluster.ends()[0]
            self.assertEqual(status, 1)
            self.assertRegex(errors, r"worker 0 \(127.0.0.1:\d+\): left before its end")
            self.assertIn("1 of 2 workers finished", output)

    def test_a_worker_that_is_there_twice(self):
        with Cluster(1, 1, "--data-mb=1", "--iters=4000000") as cluster:
            process = self.start_worker(cluster)
            status, _, errors = end(cluster.worker(0))
            self.assertEqual(status, 1)
            self.assertIn("a worker with --task=0 is there already", errors)
            process.kill()
            process.communicate()
            self.assertEqual(cluster.ends()[0][0], 1)

    def read_until(self, stream, text):
        lines = []
        while not lines or text not in lines[-1]:
            lines.append(stream.readline())
            self.assertTrue(lines[-1], lines)

    def test_a_peer_that_never_says_which_worker_it_is(self):
        with Cluster(1, 2, "--data-mb=1", "--iters=2") as cluster:
            # Connects as a worker does, and then says something else.
            stranger = subprocess.Popen(
                [CLIENT, f"--connect={cluster.servers[0]}", f"--transport={SPEC}", "--verbose"],
                text=True, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
            self.read_until(stranger.stderr, f"{cluster.servers[0]} is open")
            stranger.kill()
            stranger.communicate()
            # It waits on, for two that come.
            self.read_until(cluster.processes[0].stderr, "waiting for workers 0, 1 of 2")
            for task in range(2):
                self.assertEqual(end(cluster.worker(task))[0], 0)
            self.assertEqual(cluster.ends()[0][0], 0)

    def test_workers_that_do_not_come(self):
        with Cluster(1, 3, "--data-mb=1", "--iters=2", "--timeout=0.4", "--wait=4") as cluster:
            cluster.options = ("--data-mb=1", "--iters=2")
            worker = end(cluster.worker(1))
            self.assertEqual(worker[0], 0, worker)
            status, output, errors = cluster.ends()[0]
            self.assertEqual(status, 1)
            self.assertIn("still waiting for workers 0, 2 of 3\n", errors)
            self.assertIn("gave up after --wait=4 s without workers 0, 2 of 3\n", errors)
            self.assertIn("1 of 3 workers finished", output)

    def test_a_signal_ends_a_server(self):
        with Cluster(1, 1) as cluster:
            end_by_signal(cluster.processes[0], signal.SIGTERM)
            status, _, errors = cluster.ends()[0]
            self.assertEqual(status, 1)
            self.assertIn("0 of 1 workers have finished", errors)


class Mistakes(unittest.TestCase):
    def check(self, job, options, status, *texts):
        found, _, errors = end(start(job, *options))
        self.assertEqual(found, status, (options, errors))
        for text in texts:
            self.assertIn(text, errors, options)

    def test_options(self):
        for options, text in (
                (["--task=1"], "--worker-hosts has 1 host\n"), (["--task=x"], "from 0 to 0"),
                (["--worker-hosts=a:1,b:2", "--task=2"], "from 0 to 1, as --worker-hosts has 2"),
                (["--ps-hosts=a:1,b:2,a:1"], "a:1 is there twice"),
                (["--worker_hosts=a:1,a:1"], "a:1 is there twice"),
                (["--ps-hosts=a:1", "--worker-hosts=a:1"], "a:1 is there twice"),
                (["--ps-hosts=a"], "'a' is no HOST:PORT"), (["--ps-hosts=a:0"], "no port from 1"),
                (["--ps-hosts=a:1,"], "'' is no HOST:PORT"), (["--data-mb=0"], "from 1"),
                (["--data_mb=x"], "a number"), (["--iters=0"], "from 1"),
                (["--assign=x"], "place, copy, add"), (["--timeout=0"], "seconds"), (["--wait=-1"], "seconds"),
                (["--json=/nonexistent/x"], "No such file"), (["--nonsense"], "--nonsense")):
            self.check("worker", options, 2, text, "--help")
        self.check("ps", ["--ps-hosts=a:0,a:0", "--task=2"], 2, "--ps-hosts has 2 hosts")
        self.check("x", [], 2, "ps, worker")

    def test_too_much_memory(self):
        for job in ("ps", "worker"):
            self.check(job, ["--data-mb=100000000"], 1, "--data-mb=100000000", "MB are available")

    def test_a_server_that_is_not_there(self):
        with socket.socket() as taken:
            taken.bind(("127.0.0.1", 0))
            address = f"127.0.0.1:{taken.getsockname()[1]}"
            status, _, errors = end(start("worker", f"--ps-hosts={address}", "--data-mb=1",
                                          "--timeout=0.3"))
            self.assertEqual(status, 1)
            self.assertIn(f"ps 0 ({address}): can't be reached", errors)
            # It is told once, not at each of its attempts.
            self.assertNotIn(f"endpoint {address} ended", errors)

    def test_what_the_two_sides_do_not_agree_on(self):
        for options, text in ((["--data-mb=2"], "--data-mb=1, the worker 2"),
                              (["--iters=3"], "--iters=20, the worker 3"),
                              (["--assign=add"], "--assign=place"),
                              (["--worker-hosts=h:1,h:2"], "1 --worker-hosts")):
            with Cluster(1, 1, "--data-mb=1") as cluster:
                status, _, errors = end(cluster.worker(0, *options))
                self.assertEqual(status, 1)
                self.assertIn(text, errors)

    def test_servers_in_the_wrong_order(self):
        with Cluster(2, 1, "--data-mb=1", "--iters=1") as cluster:
            cluster.servers.reverse()
            status, _, errors = end(cluster.worker(0))
            self.assertEqual(status, 1)
            self.assertIn("this is --task=1 of --ps-hosts, not 0", errors)

    @unittest.skipUnless(SPEC.startswith("tcp"), "SKIP: the port is not TCP's")
    def test_a_port_that_is_taken(self):
        with socket.create_server(("127.0.0.1", 0)) as taken:
            address = f"127.0.0.1:{taken.getsockname()[1]}"
            self.check("ps", [f"--ps-hosts={address}", "--data-mb=1"], 1, "--ps-hosts", address)


if __name__ == "__main__":
    unittest.main(verbosity=2)
