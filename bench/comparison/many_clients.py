# SPDX-License-Identifier: Apache-2.0
"""Many clients on one server, for each transport whose clients need no port of their own."""

import page_parts
import scale
from hosts import Hosts
from options import parse_rate
from texts import rate_text, size_text

CLIENTS = [1, 4, 16, 64]
# In flight of all, it passes the link in a part of the shortest measurement.
TENSOR_BYTES = 64 * 2**10
OUTSTANDING = 4
# Above it, the cores of one machine are the limit, and not the link.
MOST_RATE = parse_rate("1gbit")
# Starting and ending so many processes.
START_SECONDS = 2


class ManyClients:
    key = "many_clients"
    name = "many clients"

    def __init__(self, settings, programs, specs, console):
        self._settings = settings
        self._console = console
        self._rate = min(settings.rate, MOST_RATE, key=lambda rate: rate.gbps)
        # One of each transport; a port of dpdk has one process.
        self._specs = list({spec.split(",")[0]: spec for spec in reversed(specs)
                            if spec.split(",")[0] != "dpdk"}.values())[::-1]
        self._build = programs.build
        self._results = []  # transport, and what scale.summarize() answered
        self.failures = []

    def expected_seconds(self):
        of_one = self._settings.seconds + scale.WARMUP_SECONDS + START_SECONDS
        return len(self._specs) * len(scale.LOADS) * len(CLIENTS) * of_one

    def run(self):
        settings = self._settings
        self._console.say(self._title())
        for spec in self._specs:
            load = scale.Load(spec, CLIENTS, TENSOR_BYTES, OUTSTANDING, settings.seconds,
                              self._rate.gbps, settings.mtu, self._build)
            with Hosts(self._rate.text, settings.mtu, 0) as hosts:
                for name in scale.LOADS:
                    self._measure(hosts, load, name)
        self._console.done()

    def _measure(self, hosts, load, name):
        samples = [self._console.attempt(
            f"tensorhaul {load.transport}, {name} the link's rate: clients {clients}",
            lambda number=clients: load.measure(hosts, name, number), self.failures)
            for clients in CLIENTS]
        # A straight line with a gap says nothing.
        if all(samples):
            self._results.append((load.transport,
                                  scale.summarize(load, name, [[sample] for sample in samples])))

    def as_json(self):
        return {"mtu": self._settings.mtu, "size_bytes": TENSOR_BYTES,
                "results": [{"transport": spec, **result} for spec, result in self._results],
                "failures": self.failures}

    # ---- For people ---------------------------------------------------------

    def _title(self):
        return f"Many clients on one server, {rate_text(self._rate.gbps)}, no loss"

    @staticmethod
    def _caption(spec, result):
        return f"tensorhaul {spec}, {scale.title(result)}"

    def table(self):
        return "\n\n".join([self._title(), *(f"{self._caption(*one)}\n\n{scale.table(one[1])}"
                                             for one in self._results)])

    def _picture(self, name):
        found = [(spec, result) for spec, result in self._results if result["load"] == name]
        if not found:
            return None
        return scale.picture(f"Many clients, {name} the link's rate",
                             [spec for spec, _ in found], [result for _, result in found])

    def section(self):
        return page_parts.section(
            self._title(),
            f"Each client is a process with {OUTSTANDING} tensors of {size_text(TENSOR_BYTES)} in "
            "flight. Below the link's rate each starts them at a set rate, so that "
            f"{CLIENTS[-1]} clients ask for {scale.SHARE:g} of the link: the sum has to grow with "
            "them. At the link's rate each starts one when another has ended: the sum has to stay, and the latency to grow on a "
            "straight line. Measured once each; dpdk is left out, as each of its clients needs a "
            "network port of its own (bench/dpdk-share has that).",
            *(page_parts.figure(f"{name.capitalize()} the link's rate", self._picture(name))
              for name in scale.LOADS),
            *(f"<h3>{self._caption(*one)}</h3>\n"
              + page_parts.table(scale.HEADS, list(map(scale.cells, one[1]["rows"])))
              for one in self._results))
