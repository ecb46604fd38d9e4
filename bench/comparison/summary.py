# SPDX-License-Identifier: Apache-2.0
"""The rows that a reader compares, for the table on the terminal and for the report."""

from dataclasses import dataclass, field

from results import column, divide, latency_summary, main_row_of, median
from texts import (gbps_text, microseconds_text, number_text, path_text, percent_text, size_text,
                   spread_text)

COLUMNS = ("", "Gb/s", "of all rounds", "of limit", "× socket", "CPU s/GB", "64 B p50 µs",
           "p99 µs")


@dataclass
class Line:
    """One contender on one path."""

    label: str
    kind: str   # ceiling, baseline or transport
    goodputs: list
    limit_gbps: float
    ratio_to_ceiling: float = None
    cpu_s_per_gb: float = None
    latency: dict = field(default=None)

    @property
    def goodput(self):
        return median(self.goodputs)

    def cells(self):
        latency = self.latency or {}
        return (self.label, gbps_text(self.goodput), spread_text(self.goodputs),
                percent_text(divide(self.goodput, self.limit_gbps)),
                number_text(self.ratio_to_ceiling, 2), number_text(self.cpu_s_per_gb, 2),
                microseconds_text(latency.get("p50")), microseconds_text(latency.get("p99")))


def summarize(path):
    """The lines of one path: the ceiling first, the transports last."""
    ceilings = path.ceilings()
    ceiling = Line("one TCP socket (cubic)", "ceiling", column(ceilings, "goodput_gbps"),
                   path.limit_gbps(), cpu_s_per_gb=median(column(ceilings, "cpu_s_per_gb")),
                   latency=latency_summary(path.ceiling_latencies()))
    ceiling.ratio_to_ceiling = 1.0 if ceiling.goodput else None
    lines = [ceiling]
    for name, samples in path.baselines.items():
        goodputs = column(samples, "goodput_gbps")
        lines.append(Line(
            path.baseline_labels[name], "baseline", goodputs, path.limit_gbps(),
            divide(median(goodputs), ceiling.goodput), median(column(samples, "cpu_s_per_gb")),
            latency_summary(samples)))
    for transport in path.transports:
        row = main_row_of(path, transport)
        lines.append(Line(
            f"tensorhaul {transport.spec}", "transport",
            column(transport.rounds, "goodput_gbps"), row["payload_limit_gbps"],
            row["ratio_to_ceiling"], row["cpu_s_per_gb"], row["latency_us"]))
    return lines


def size_rows(path):
    """Bytes, one socket's goodput and that of each transport, for all sizes measured."""
    sizes = {size for transport in path.transports for size in transport.sizes}
    if not sizes:
        return []
    return [(size,
             median(median_at(transport, size, path.size, "ceiling_gbps")
                    for transport in path.transports),
             [median_at(transport, size, path.size, "goodput_gbps")
              for transport in path.transports])
            for size in sorted({*sizes, path.size})]


def median_at(transport, size, main_size, key):
    if size == main_size:
        return median(column(transport.rounds, key))
    return transport.sizes.get(size, {}).get(key)


def format_table(rows):
    widths = [max(len(row[index]) for row in rows) for index in range(len(rows[0]))]
    return "\n".join(
        "  ".join(cell.rjust(width) if index else cell.ljust(width)
                  for index, (cell, width) in enumerate(zip(row, widths))).rstrip()
        for row in rows)


def path_table(path):
    """All that was found on one path, as text."""
    parts = [path_text(path), format_table([COLUMNS, *(line.cells() for line in summarize(path))])]
    sizes = size_rows(path)
    if sizes:
        heads = ("Gb/s by size", "one socket", *(transport.spec for transport in path.transports))
        parts.append(format_table(
            [heads, *((size_text(size), gbps_text(ceiling), *map(gbps_text, goodputs))
                      for size, ceiling, goodputs in sizes)]))
    return "\n\n".join(parts)
