# SPDX-License-Identifier: Apache-2.0
"""Small tensors with few and with many in flight, each transport beside the others.

Closed loop: each starts when another one has ended. And at a set rate, where one that comes late
makes those behind it late, and the time counts from when it was due.
"""

import page_parts
from charts import SERIES_ROLES, draw
from hosts import Hosts
from measurements import Tensorhaul
from results import column, median
from summary import format_table
from texts import microseconds_text, number_text, rate_text, size_text

SIZES = (64, 16 * 2**10)
IN_FLIGHT = (1, 64, 1000)
SET_RATE_PER_S = 20000
SET_RATE_BYTES = 64
MOST_SECONDS = 0.5  # of one measurement
WARMUP_SECONDS = 0.3
CLOSED_LOOP = [f"--rate-size={','.join(map(str, SIZES))}",
               f"--rate-concurrency={','.join(map(str, IN_FLIGHT))}"]
SET_RATE = [f"--rate={SET_RATE_PER_S}", f"--rate-size={SET_RATE_BYTES}",
            f"--rate-concurrency={IN_FLIGHT[-1]}"]
VALUES = ("rate_per_s", "p50_us", "p99_us", "p99_9_us")
HEADS = ("", "size", "in flight", "set rate", "tensors/s", "p50 µs", "p99 µs", "p99.9 µs")


class SmallMessages:
    key = "small_messages"
    name = "small messages"

    def __init__(self, settings, programs, specs, console):
        self._settings = settings
        self._console = console
        self._transports = [Tensorhaul(spec, programs) for spec in specs]
        self._seconds = min(settings.seconds, MOST_SECONDS)
        # By transport, size, in flight and set rate, in the order of the tables.
        self._samples = {}
        self.failures = []

    def expected_seconds(self):
        points = len(SIZES) * len(IN_FLIGHT) + 1
        of_one = points * (self._seconds + WARMUP_SECONDS) + 2
        return self._settings.rounds * len(self._transports) * of_one + 2

    def run(self):
        settings = self._settings
        self._console.say(self._title())
        with Hosts(settings.rate.text, settings.mtu, 0) as hosts:
            for number in range(1, settings.rounds + 1):
                for transport in self._transports:
                    for loads, set_rate in ((CLOSED_LOOP, None), (SET_RATE, SET_RATE_PER_S)):
                        self._keep(transport, set_rate, self._console.attempt(
                            f"round {number} of {settings.rounds}: {transport.name}, "
                            f"{'at a set rate' if set_rate else 'many in flight'}",
                            lambda one=transport, options=loads: one.rates(
                                hosts, options, self._seconds, WARMUP_SECONDS), self.failures))
        self._console.done()

    def _keep(self, transport, set_rate, samples):
        for sample in samples or ():
            point = (transport.spec, sample["size_bytes"], sample["in_flight"], set_rate)
            self._samples.setdefault(point, []).append({key: sample[key] for key in VALUES})

    def _rows(self):
        return [{"transport": spec, "size_bytes": size, "in_flight": in_flight,
                 "set_rate_per_s": set_rate,
                 **{key: median(column(samples, key)) for key in VALUES}, "rounds": samples}
                for (spec, size, in_flight, set_rate), samples in self._samples.items()]

    def as_json(self):
        return {"rate_gbps": self._settings.rate.gbps, "mtu": self._settings.mtu,
                "rows": self._rows(), "failures": self.failures}

    # ---- For people ---------------------------------------------------------

    def _title(self):
        return (f"Small messages, {rate_text(self._settings.rate.gbps)}, "
                f"MTU {self._settings.mtu}, no loss")

    def _cells(self):
        """By size and number in flight, so that the transports stand beside each other."""
        rows = sorted(self._rows(), key=lambda row: (
            row["set_rate_per_s"] or 0, row["size_bytes"], row["in_flight"]))
        return [(f"tensorhaul {row['transport']}", size_text(row["size_bytes"]),
                 str(row["in_flight"]), number_text(row["set_rate_per_s"], 0),
                 number_text(row["rate_per_s"], 0), microseconds_text(row["p50_us"]),
                 microseconds_text(row["p99_us"]), microseconds_text(row["p99_9_us"]))
                for row in rows]

    def table(self):
        return f"{self._title()}\n\n{format_table([HEADS, *self._cells()])}"

    def _picture(self, size):
        specs = [transport.spec for transport in self._transports]
        if len(specs) > len(SERIES_ROLES):
            return None
        table = []
        for in_flight in IN_FLIGHT:
            cells = [in_flight]
            for spec in specs:
                samples = self._samples.get((spec, size, in_flight, None), [])
                cells += [median(column(samples, key)) for key in VALUES[:3]]
            table.append(cells)
        if not any(cell for row in table for cell in row[1:]):
            return None
        return draw("small.gnuplot", f"Small messages, {size_text(size)}", table,
                    count=len(specs), series=" ".join(f'"{spec}"' for spec in specs),
                    roles=" ".join(SERIES_ROLES[:len(specs)]))

    def section(self):
        return page_parts.section(
            self._title(),
            "Each tensor is started when another one has ended, so many at a time; the last rows "
            f"are at a set rate of {SET_RATE_PER_S:,} a second, with so many in flight at most, where a "
            f"time counts from when a tensor was due. {self._settings.rounds} rounds of {self._seconds:g} s; medians.",
            *(page_parts.figure(f"{size_text(size)}: tensors a second, and how long one takes",
                                self._picture(size)) for size in SIZES),
            page_parts.table(HEADS, self._cells()))
