# SPDX-License-Identifier: Apache-2.0
"""What was measured, and what follows from it: medians, ratios, shares of the limit."""

import statistics
from dataclasses import dataclass, field

ETHERNET_BYTES = 38  # header, checksum, preamble and gap
TCP_BYTES = 52       # IPv4 and TCP with timestamps
UDP_BYTES = 60       # IPv4, UDP and the 32 bytes of the dpdk transport
ROCE_BYTES = 82      # all around the payload of a RoCEv2 packet, Ethernet included
ROCE_MTUS = (4096, 2048, 1024, 512, 256)


def payload_limit_gbps(transport, rate_gbps, mtu):
    """The most that a link can carry of the tensors' own bytes."""
    if transport == "dpdk":
        return rate_gbps * (mtu - UDP_BYTES) / (mtu + ETHERNET_BYTES)
    if transport == "verbs":
        payload = next(size for size in ROCE_MTUS if size + 60 <= mtu)
        return rate_gbps * payload / (payload + ROCE_BYTES)
    return rate_gbps * (mtu - TCP_BYTES) / (mtu + ETHERNET_BYTES)


def median(values):
    """The median of what was measured; None when nothing was."""
    measured = [value for value in values if value is not None]
    return statistics.median(measured) if measured else None


def divide(dividend, divisor):
    return dividend / divisor if dividend is not None and divisor else None


def column(samples, key):
    return [sample.get(key) for sample in samples]


@dataclass
class TransportResults:
    """One transport on one path. A sample is a dictionary, empty when it failed."""

    spec: str
    rounds: list = field(default_factory=list)     # the main size, one sample a round
    latencies: list = field(default_factory=list)  # one sample a round
    sizes: dict = field(default_factory=dict)      # bytes: sample

    @property
    def transport(self):
        return self.spec.split(",")[0]


@dataclass
class PathResults:
    rate_gbps: float
    mtu: int
    loss: float
    size: int
    baselines: dict = field(default_factory=dict)   # name: samples, one a round
    baseline_labels: dict = field(default_factory=dict)  # name: what a reader sees
    transports: list = field(default_factory=list)
    failures: list = field(default_factory=list)    # texts

    def ceilings(self):
        """The samples of one plain TCP socket, measured beside each transport."""
        return [{"goodput_gbps": sample.get("ceiling_gbps"),
                 "cpu_s_per_gb": sample.get("ceiling_cpu_s_per_gb")}
                for transport in self.transports for sample in transport.rounds]

    def ceiling_latencies(self):
        return [{"latency_us": sample.get("ceiling_latency_us")}
                for transport in self.transports for sample in transport.latencies]

    def limit_gbps(self, transport="tcp"):
        return payload_limit_gbps(transport, self.rate_gbps, self.mtu)


def latency_summary(samples):
    """Medians over the rounds of the percentiles; None when nothing was measured."""
    measured = [sample["latency_us"] for sample in samples if sample.get("latency_us")]
    if not measured:
        return None
    return {"size_bytes": 64, "p50": median(column(measured, "p50")),
            "p99": median(column(measured, "p99"))}


def rounds_of(path, transport):
    one, eight = (path.baselines.get(name, []) for name in ("iperf3_p1", "iperf3_p8"))
    return [{
        "goodput_gbps": sample.get("goodput_gbps"),
        "ceiling_gbps": sample.get("ceiling_gbps"),
        "iperf3_p1_gbps": one[index].get("goodput_gbps") if index < len(one) else None,
        "iperf3_p8_gbps": eight[index].get("goodput_gbps") if index < len(eight) else None,
        "cpu_s_per_gb": sample.get("cpu_s_per_gb"),
        "ceiling_cpu_s_per_gb": sample.get("ceiling_cpu_s_per_gb"),
        "streams": sample.get("streams"),
        "chunks_again": sample.get("chunks_again"),
    } for index, sample in enumerate(transport.rounds)]


def row_of(path, transport, size, samples):
    goodput = median(column(samples, "goodput_gbps"))
    limit = path.limit_gbps(transport.transport)
    return {
        "transport": transport.spec,
        "size_bytes": size,
        "goodput_gbps": goodput,
        "ceiling_gbps": median(column(samples, "ceiling_gbps")),
        # Of each pair, since a pair was measured one right after the other.
        "ratio_to_ceiling": median(divide(sample.get("goodput_gbps"), sample.get("ceiling_gbps"))
                                   for sample in samples),
        "iperf3_p1_gbps": None,
        "iperf3_p8_gbps": None,
        "payload_limit_gbps": limit,
        "share_of_limit": divide(goodput, limit),
        "cpu_s_per_gb": median(column(samples, "cpu_s_per_gb")),
        "iperf3_cpu_s_per_gb": None,
        "latency_us": None,
        "rounds": [],
    }


def main_row_of(path, transport):
    one, eight = (path.baselines.get(name, []) for name in ("iperf3_p1", "iperf3_p8"))
    row = row_of(path, transport, path.size, transport.rounds)
    row.update(
        iperf3_p1_gbps=median(column(one, "goodput_gbps")),
        iperf3_p8_gbps=median(column(eight, "goodput_gbps")),
        iperf3_cpu_s_per_gb=median(column(one, "cpu_s_per_gb")),
        latency_us=latency_summary(transport.latencies),
        rounds=rounds_of(path, transport),
    )
    return row


def path_as_json(path):
    rows = []
    for transport in path.transports:
        rows.append(main_row_of(path, transport))
        rows.extend(row_of(path, transport, size, [sample])
                    for size, sample in sorted(transport.sizes.items()))
    return {
        "path": {"rate_gbps": path.rate_gbps, "mtu": path.mtu, "loss": path.loss},
        "rows": rows,
        "baselines": [{
            "name": name,
            "goodput_gbps": median(column(samples, "goodput_gbps")),
            "cpu_s_per_gb": median(column(samples, "cpu_s_per_gb")),
            "latency_us": latency_summary(samples),
            "rounds": [{"goodput_gbps": sample.get("goodput_gbps"),
                        "cpu_s_per_gb": sample.get("cpu_s_per_gb")} for sample in samples],
        } for name, samples in path.baselines.items()],
        "failures": path.failures,
    }
