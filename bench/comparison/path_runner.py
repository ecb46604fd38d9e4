# SPDX-License-Identifier: Apache-2.0
"""Measures everything on one path, in alternating rounds."""

from console import duration_text
from hosts import Hosts
from measurements import LATENCY_SECONDS, WARMUP_SECONDS, GrpcRaw, Iperf3, Tensorhaul, Ucx
from results import PathResults, TransportResults
from texts import path_text, size_text

SWEEP_SECONDS = 1.0

# What one socket carries with 1 % loss, and the tensors that wait for it; for the forecast only.
LOSSY_GBPS = 1
IN_FLIGHT = 4


def make_baselines(settings, programs):
    """Name in the results, measurement."""
    baselines = {"iperf3_p1": Iperf3(1, "cubic", settings.seconds),
                 "iperf3_p8": Iperf3(8, "cubic", settings.seconds)}
    if settings.iperf3_sweep:
        for sockets, algorithm in ((16, "cubic"), (32, "cubic"), (1, "bbr"), (8, "bbr"),
                                   (16, "bbr"), (32, "bbr")):
            baselines[f"iperf3_p{sockets}_{algorithm}"] = Iperf3(sockets, algorithm,
                                                                 settings.seconds)
    if programs.grpc_raw:
        for channels in (1, 8):
            baselines[f"grpc_raw_{channels}"] = GrpcRaw(channels, settings.size, settings.seconds,
                                                        programs)
    if settings.ucx:
        baselines["ucx_tcp"] = Ucx(settings.size, settings.seconds)
    return baselines


def sweep_sizes(settings):
    return [size for size in settings.sizes if size != settings.size]


def drain_seconds(settings, programs, specs, loss):
    """In each round, until tensors in flight are through on a path that loses packets."""
    if not loss:
        return 0
    slow = len(specs) + (2 if programs.grpc_raw else 0)
    return slow * IN_FLIGHT * settings.size * 8 / (LOSSY_GBPS * 1e9)


def expected_seconds(settings, programs, specs):
    baselines = sum(one.duration_s() for one in make_baselines(settings, programs).values())
    # Each is measured beside a plain socket.
    transport = 2 * (settings.seconds + LATENCY_SECONDS + 2 * WARMUP_SECONDS) + 1
    one_size = (len(specs) + 1) * (SWEEP_SECONDS + WARMUP_SECONDS) + len(specs) * 0.5
    sweep = len(sweep_sizes(settings)) * one_size
    one_path = settings.rounds * (baselines + len(specs) * transport) + sweep + 2
    return sum(one_path + settings.rounds * drain_seconds(settings, programs, specs, loss)
               for loss in settings.losses)


class PathRunner:
    def __init__(self, settings, programs, specs, console):
        self._settings = settings
        self._console = console
        self._baselines = make_baselines(settings, programs)
        self._transports = [Tensorhaul(spec, programs) for spec in specs]

    def run(self, loss):
        settings = self._settings
        path = PathResults(settings.rate.gbps, settings.mtu, loss, settings.size)
        path.baselines = {name: [] for name in self._baselines}
        path.baseline_labels = {name: one.name for name, one in self._baselines.items()}
        path.transports = [TransportResults(one.spec) for one in self._transports]
        self._console.say(path_text(path))
        with Hosts(settings.rate.text, settings.mtu, loss) as hosts:
            for number in range(1, settings.rounds + 1):
                self._run_round(hosts, path, f"round {number} of {settings.rounds}")
            self._run_sweep(hosts, path)
        self._console.done()
        return path

    def _run_round(self, hosts, path, when):
        for name, baseline in self._baselines.items():
            path.baselines[name].append(self._attempt(
                path, f"{when}: {baseline.name}", lambda one=baseline: one.measure(hosts)))
        for transport, results in zip(self._transports, path.transports):
            results.rounds.append(self._attempt(
                path, f"{when}: {transport.name}, {size_text(path.size)}",
                lambda one=transport: one.throughput(hosts, path.size, self._settings.seconds)))
            results.latencies.append(self._attempt(
                path, f"{when}: {transport.name}, latency",
                lambda one=transport: one.latency(hosts, LATENCY_SECONDS)))

    def _run_sweep(self, hosts, path):
        """The plain socket is measured beside the first transport alone, for the time it takes."""
        for transport, results in zip(self._transports, path.transports):
            beside_socket = transport is self._transports[0]
            for size in sweep_sizes(self._settings):
                results.sizes[size] = self._attempt(
                    path, f"{transport.name}, {size_text(size)}",
                    lambda one=transport, of=size, socket=beside_socket:
                        one.throughput(hosts, of, SWEEP_SECONDS, socket))

    def _attempt(self, path, what, measure):
        return self._console.attempt(what, measure, path.failures)


def say_what_comes(settings, programs, specs, others, console):
    """others are the experiments beside the goodput of each path."""
    seconds = sum(one.expected_seconds() for one in others)
    if "goodput" in settings.experiments:
        seconds += expected_seconds(settings, programs, specs)
    beside = "one TCP socket, iperf3 and gRPC" if programs.grpc_raw else "one TCP socket and iperf3"
    console.say(f"Comparing {'; '.join(specs)} with {beside}: about {duration_text(seconds)}")
    console.expect(seconds)
