# SPDX-License-Identifier: Apache-2.0
"""One measurement each: iperf3, gRPC, UCX, and a pair of tensorhaul's own programs.

Each is an object with a name and measure(hosts), which answers a dictionary of what
it measured. A value that is missing was not measured.
"""

import json
import os
import re
import tempfile

from processes import Failure

GB = 1e9
# Before each measurement, and not part of it.
WARMUP_SECONDS = 1
# Beside the time that was asked for: connecting, one last tensor on a slow path.
SPARE_SECONDS = 60
LATENCY_SECONDS = 1.0
LATENCY_BYTES = 64


class Iperf3:
    """Real iperf3 from host A to host B.

    CPU time is what the kernel charged to both of its processes, as it is for tensorhaul.
    """

    def __init__(self, sockets, algorithm, seconds):
        self.sockets = sockets
        self.algorithm = algorithm
        self.name = f"iperf3 -P {sockets} {algorithm}"
        self._seconds = seconds

    def duration_s(self):
        return self._seconds + WARMUP_SECONDS + 0.3

    def measure(self, hosts):
        with hosts.start("B", ["iperf3", "--server", "--one-off", "--forceflush"]) as server:
            server.wait_for_line("Server listening")
            with hosts.start("A", self._client_command(hosts)) as client:
                sent = client.wait(self._seconds + SPARE_SECONDS)
            answer = self._parse(sent.output)
            received = server.wait(SPARE_SECONDS)
        total = answer["end"]["sum_received"]
        return {
            "goodput_gbps": total["bits_per_second"] / 1e9,
            "cpu_s_per_gb": (sent.cpu_s + received.cpu_s)
                            / ((total["bytes"] + self._warmup_bytes(answer)) / GB),
        }

    @staticmethod
    def _warmup_bytes(answer):
        """Its processes' CPU time has the warm-up in it, its sums have not."""
        return sum(interval["sum"]["bytes"] for interval in answer["intervals"]
                   if interval["sum"]["omitted"])

    def _client_command(self, hosts):
        # iperf3 takes whole seconds.
        return ["iperf3", "--client", hosts.address("B"), "--json",
                "--time", str(max(1, round(self._seconds))), "--omit", str(WARMUP_SECONDS),
                "--parallel", str(self.sockets), "--congestion", self.algorithm]

    @staticmethod
    def _parse(output):
        try:
            answer = json.loads(output)
        except ValueError as error:
            raise Failure(f"iperf3 answered no JSON: {output.strip()[:200]}") from error
        if "error" in answer:
            raise Failure(f"iperf3: {answer['error']}")
        if not answer["end"]["sum_received"]["bytes"]:
            raise Failure("iperf3 moved no bytes")
        return answer


class GrpcRaw:
    """gRPC alone from host A to host B: calls with messages of a tensor's size.

    Each channel has a socket of its own. With one, the latency of small calls is measured as well.
    """

    MOST_BYTES = 100 * 2**20  # of a message: gRPC's own copies of those in flight have to fit

    def __init__(self, channels, size, seconds, programs):
        self._channels = channels
        self._calls = 4 if channels == 1 else 1  # in flight on each channel
        self._size = min(size, self.MOST_BYTES)
        self._seconds = seconds
        self._program = programs.grpc_raw
        self.name = f"grpc_raw, {channels} {'channel' if channels == 1 else 'channels'}"

    def duration_s(self):
        latency = LATENCY_SECONDS + WARMUP_SECONDS if self._channels == 1 else 0
        return self._seconds + WARMUP_SECONDS + latency + 1

    def measure(self, hosts):
        in_flight = self._channels * self._calls * self._size
        with hosts.start("B", [self._program, "--job-type=server",
                               f"--target-ip={hosts.address('B')}:0", f"--memory={in_flight}",
                               f"--response-size={LATENCY_BYTES}"]) as server:
            address = server.read_line().removeprefix("listening on ")
            result = self._run(hosts, address, self._size, self._calls, self._seconds)
            sample = {key: result.get(key) for key in ("goodput_gbps", "cpu_s_per_gb")}
            if self._channels == 1:
                result = self._run(hosts, address, LATENCY_BYTES, 1, LATENCY_SECONDS)
                sample["latency_us"] = result.get("latency_us")
        return sample

    def _run(self, hosts, address, size, calls, seconds):
        with tempfile.TemporaryDirectory() as folder:
            json_file = os.path.join(folder, "results")
            hosts.run("A", [self._program, "--job-type=client", f"--target-ip={address}",
                            f"--channels={self._channels}", f"--concurrency={calls}",
                            f"--message-size={size}", f"--seconds={seconds:g}",
                            f"--warmup={WARMUP_SECONDS}", f"--json={json_file}"],
                      seconds + WARMUP_SECONDS + SPARE_SECONDS)
            with open(json_file, encoding="utf-8") as file:
                return json.load(file)


class Ucx:
    """UCX's own benchmark over tcp: tagged messages of one tensor's size."""

    ENVIRONMENT = {"UCX_TLS": "tcp", "UCX_NET_DEVICES": "eth0", "UCX_WARN_UNUSED_ENV_VARS": "n"}

    def __init__(self, size, seconds):
        self.name = "UCX over tcp"
        self._size = size
        self._seconds = seconds
        # It counts messages, not seconds: the first round finds out how many.
        self._messages = 2

    def duration_s(self):
        return self._seconds + 1

    def measure(self, hosts):
        goodput = self._measure(hosts)
        wanted = int(goodput * 1e9 / 8 * self._seconds / self._size)
        if wanted > 2 * self._messages:
            self._messages = wanted
            goodput = self._measure(hosts)
        return {"goodput_gbps": goodput}

    def _measure(self, hosts):
        # stdbuf: it would keep the line that says it is ready to itself.
        with hosts.start("B", ["stdbuf", "--output=L", "ucx_perftest"],
                         self.ENVIRONMENT) as server:
            server.wait_for_line("Waiting for connection")
            command = ["ucx_perftest", hosts.address("B"), "-t", "tag_bw", "-f", "-v",
                       "-s", str(self._size), "-n", str(self._messages), "-w", "1"]
            with hosts.start("A", command, self.ENVIRONMENT) as client:
                ended = client.wait(10 * self._seconds + SPARE_SECONDS)
        return self._parse(ended)

    @staticmethod
    def _parse(ended):
        # messages, latencies (percentile, average, overall), MiB/s (average, overall), ...
        for line in ended.output.splitlines():
            if re.fullmatch(r"[\d.]+(,[\d.]+){7}", line.strip()):
                return float(line.split(",")[5]) * 2**20 * 8 / 1e9
        raise Failure(f"ucx_perftest: {(ended.errors or ended.output).strip()[-300:]}")


class Tensorhaul:
    """haul-bench-client on host A and haul-bench-server on host B.

    dpdk goes through the hosts' own network cards, beside the kernel, with addresses that the
    kernel does not know.
    """

    def __init__(self, spec, programs):
        self.spec = spec
        self._past_kernel = spec.split(",")[0] == "dpdk"
        self.name = f"tensorhaul {spec}"
        self._programs = programs

    def throughput(self, hosts, size, seconds, beside_socket=True):
        """Tensors of one size, and one plain TCP socket, one after the other."""
        result, = self._run(hosts, ["--test=throughput", f"--size={size}"], seconds,
                            WARMUP_SECONDS, beside_socket)
        return {key: result.get(key) for key in
                ("goodput_gbps", "ceiling_gbps", "cpu_s_per_gb", "ceiling_cpu_s_per_gb",
                 "streams", "chunks_again")}

    def latency(self, hosts, seconds):
        """Ping-pong of tensors of 64 B, and of 64 B over one plain TCP socket."""
        result, = self._run(hosts, ["--test=latency", f"--size={LATENCY_BYTES}"], seconds,
                            WARMUP_SECONDS, True)
        return {"latency_us": result.get("latency_us"),
                "ceiling_latency_us": result.get("ceiling_latency_us")}

    def rates(self, hosts, loads, seconds, warmup_seconds):
        """Small tensors; loads are the options --rate... Answers one sample for each load."""
        results = self._run(hosts, ["--test=rate", *loads], seconds, warmup_seconds, False)
        return [{"size_bytes": result["size_bytes"], "in_flight": result["concurrency"],
                 "rate_per_s": result["rate_per_s"],
                 **{f"{key}_us": (result["tensor_us"] or {}).get(key)
                    for key in ("p50", "p99", "p99_9")}} for result in results]

    def _spec_on(self, hosts, host):
        if not self._past_kernel:
            return self.spec
        return f"{self.spec},port=eth0,ip={hosts.port_address(host)}/24"

    def _listen_host(self, hosts):
        return hosts.port_address("B") if self._past_kernel else hosts.address("B")

    def _run(self, hosts, options, seconds, warmup_seconds, beside_socket):
        ceiling = (["--ceiling", f"--ceiling-connect={hosts.address('B')}:0"]
                   if beside_socket else [])
        with tempfile.TemporaryDirectory() as folder:
            address_file = os.path.join(folder, "address")
            json_file = os.path.join(folder, "results")
            with hosts.start("B", [self._programs.server,
                                   f"--transport={self._spec_on(hosts, 'B')}",
                                   f"--listen={self._listen_host(hosts)}:0",
                                   f"--ceiling-host={hosts.address('B')}",
                                   f"--address-file={address_file}"]) as server:
                address = server.wait_for_file(address_file)
                hosts.run("A", [self._programs.client,
                                f"--transport={self._spec_on(hosts, 'A')}",
                                f"--connect={address}", *options,
                                f"--seconds={seconds:g}", f"--warmup={warmup_seconds:g}",
                                "--rounds=1", "--live=no", f"--json={json_file}", *ceiling],
                          2 * (seconds + warmup_seconds) + SPARE_SECONDS)
            with open(json_file, encoding="utf-8") as file:
                return json.load(file)["results"]
