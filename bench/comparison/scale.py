# SPDX-License-Identifier: Apache-2.0
"""Many clients on one server: what they reach together, and how long their tensors take.

Two loads: "below" the link's rate each client starts tensors at a set rate, so that the most
clients ask for a part of the link; "at" it each starts one when another has ended.
"""

import json
import os
import statistics
import tempfile
from dataclasses import dataclass

from charts import SERIES_ROLES, draw
from processes import Failure
from results import column, median, payload_limit_gbps
from summary import format_table
from texts import gbps_text, number_text, rate_text, spread_text

LOADS = ("below", "at")
# What the most clients ask for together, of what the link carries, below its rate.
SHARE = 0.8
WARMUP_SECONDS = 1  # or the measurement's own length, if that is less
# Beside the time that was asked for: connecting, the tensors that are under way at the end.
SPARE_SECONDS = 60
HEADS = ("clients", "sum, Gb/s", "of all rounds", "of the best", "Jain index", "median ms",
         "on the line", "CPU s/GB")


@dataclass
class Load:
    """What is put on the link. B has the server."""

    transport: str
    clients: list      # numbers of them, rising
    size: int          # of a tensor
    outstanding: int   # tensors in flight of a client, at most
    seconds: float
    rate_gbps: float
    mtu: int
    build: str

    def _options(self, load, clients):
        options = [f"--rate-concurrency={self.outstanding}"]
        if load == "below":
            limit_gbps = payload_limit_gbps("tcp", self.rate_gbps, self.mtu)
            all_per_s = SHARE * limit_gbps * 1e9 / 8 / self.size
            options.append(f"--rate={all_per_s * clients / max(self.clients):.0f}")
        return options

    def warmup_seconds(self):
        return min(WARMUP_SECONDS, self.seconds)

    def measure(self, hosts, load, clients):
        bench = os.path.join(self.build, "bench")
        with tempfile.TemporaryDirectory() as folder:
            address_file = os.path.join(folder, "address")
            json_file = os.path.join(folder, "results")
            with hosts.start("B", [
                    os.path.join(bench, "haul-bench-server"), "--no-ceiling",
                    f"--listen={hosts.address('B')}:0", f"--address-file={address_file}",
                    f"--transport={self.transport}"]) as server:
                address = server.wait_for_file(address_file)
                hosts.run("A", [
                    os.path.join(bench, "haul-bench-client"), f"--connect={address}",
                    f"--transport={self.transport}", f"--clients={clients}",
                    "--test=rate", f"--rate-size={self.size}", "--rounds=1",
                    f"--seconds={self.seconds:g}", f"--warmup={self.warmup_seconds():g}",
                    "--live=no", f"--json={json_file}", *self._options(load, clients)],
                    self.seconds + SPARE_SECONDS)
            with open(json_file, encoding="utf-8") as file:
                result = json.load(file)["results"][0]
        if (result["tensor_us"] or {}).get("p50") is None:
            raise Failure(f"no tensor both began and ended within {self.seconds:g} s: take a "
                          "longer --seconds")
        return {"goodput_gbps": result["goodput_gbps"],
                "jain_index": result["jain_index"] if clients > 1 else 1.0,
                "p50_ms": result["tensor_us"]["p50"] / 1000,
                "cpu_s_per_gb": result["cpu_s_per_gb"]}


def straight_line(clients, values):
    """Least squares: the line's values, and R², the share of the variance that it explains."""
    slope, origin = statistics.linear_regression(clients, values)
    fitted = [origin + slope * number for number in clients]
    mean = statistics.fmean(values)
    left = sum((value - on_line) ** 2 for value, on_line in zip(values, fitted))
    whole = sum((value - mean) ** 2 for value in values)
    return fitted, 1 - left / whole if whole else None


def summarize(load, name, rounds):
    """rounds[index of the number of clients] are samples, one at least."""
    medians = {key: [median(column(samples, key)) for samples in rounds] for key in rounds[0][0]}
    latency_line, latency_r2 = straight_line(load.clients, medians["p50_ms"])
    _, sum_r2 = straight_line(load.clients, medians["goodput_gbps"])
    best = max(medians["goodput_gbps"])
    rows = [{"clients": clients, **{key: values[index] for key, values in medians.items()},
             "of_best": medians["goodput_gbps"][index] / best,
             "p50_ms_on_line": latency_line[index], "rounds": rounds[index]}
            for index, clients in enumerate(load.clients)]
    return {"rate_gbps": load.rate_gbps, "load": name, "latency_r2": latency_r2, "sum_r2": sum_r2,
            "rows": rows}


# ---- For people -------------------------------------------------------------

def title(result):
    # Of what grows with the clients: the sum below the link's rate, the latency at it.
    what, r2 = (("sum", result["sum_r2"]) if result["load"] == "below" else
                ("latency", result["latency_r2"]))
    return (f"{rate_text(result['rate_gbps'])}, {result['load']} the link's rate: R² of the {what} "
            f"over clients {number_text(r2, 4)}")


def cells(row):
    return (str(row["clients"]), gbps_text(row["goodput_gbps"]),
            spread_text(column(row["rounds"], "goodput_gbps")), number_text(row["of_best"], 3),
            number_text(row["jain_index"], 3), number_text(row["p50_ms"], 2),
            number_text(row["p50_ms_on_line"], 2), number_text(row["cpu_s_per_gb"], 2))


def table(result):
    return format_table([HEADS, *map(cells, result["rows"])])


def picture(caption, names, results):
    """Sum and latency over the clients, a line for each result; an SVG element."""
    rows = [[clients] + [value for result in results for value in
                         (result["rows"][index]["goodput_gbps"], result["rows"][index]["p50_ms"],
                          result["rows"][index]["p50_ms_on_line"])]
            for index, clients in enumerate(row["clients"] for row in results[0]["rows"])]
    return draw("clients.gnuplot", caption, rows, count=len(results),
                series=" ".join(f'"{name}"' for name in names),
                roles=" ".join(SERIES_ROLES[:len(results)]))
