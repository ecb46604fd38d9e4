# SPDX-License-Identifier: Apache-2.0
"""client-scale, grpc-pairs and dpdk-share: what they refuse, and that their figures agree."""

import json
import os
import subprocess
import tempfile

from harness import BUILD, SOURCE, Skip, check, is_sanitized, main, program, require_root

TOOLS = ("client-scale", "grpc-pairs", "dpdk-share")
PATIENCE_SECONDS = 120


def tool(name, *options):
    return subprocess.run([os.path.join(SOURCE, "bench", name), f"--build={BUILD}", *options],
                          capture_output=True, text=True, stdin=subprocess.DEVNULL,
                          timeout=PATIENCE_SECONDS, check=False)


def require(*names):
    require_root()
    if is_sanitized():
        raise Skip("a sanitizer's speed says nothing")
    for name in names:
        program(name)


def measure(name, *options):
    """Runs a tool that has to succeed: its JSON, and what it printed."""
    with tempfile.TemporaryDirectory() as folder:
        results = os.path.join(folder, "results")
        done = tool(name, f"--json={results}", *options)
        check(done.returncode == 0, f"{name}: {done.returncode}: {done.stdout}{done.stderr}")
        with open(results, encoding="utf-8") as file:
            found = json.load(file)
    check(found["tool"] == name and f"--json={results}" in found["command"], found)
    return found, done.stdout


def check_refused(name, option, text, status=2):
    done = tool(name, option)
    check(done.returncode == status and text in done.stderr,
          f"{name} {option}: {done.returncode}: {done.stdout}{done.stderr}")
    check(not done.stdout, f"{name} {option} began: {done.stdout}")


def test_bad_options_are_named():
    for name in TOOLS:
        check_refused(name, "--rate=10", "'10' is no rate")
        check_refused(name, "--colour=red", "--colour")
    for name, option, text in (
            ("client-scale", "--clients=1,2", "any two numbers"),
            ("client-scale", "--clients=1,2,257", "257"),
            ("client-scale", "--loads=below,beside", "'beside' is no load"),
            ("client-scale", "--size=5MeB", "5MeB"),
            ("grpc-pairs", "--path=pigeon", "pigeon"), ("grpc-pairs", "--size=5MeB", "5MeB"),
            ("grpc-pairs", "--concurrency=0", "'0'"),
            ("dpdk-share", "--connections=65", "'65'"), ("dpdk-share", "--loss=1", "'1' is no loss"),
            ("dpdk-share", "--seconds=1.9", "2 to 3600")):
        check_refused(name, option, text)


def test_files_that_cannot_be_written_are_found_out_before():
    require_root()
    for name, option in (*((name, "--json") for name in TOOLS), ("client-scale", "--picture")):
        check_refused(name, f"{option}=/nonexistent/x", f"{option}: /nonexistent/x", 1)


def check_scale_rows(result, printed):
    rows = result["rows"]
    check([row["clients"] for row in rows] == [1, 2, 3], rows)
    best = max(row["goodput_gbps"] for row in rows)
    for row in rows:
        check(0 < row["goodput_gbps"] <= 0.5, row)
        check(abs(row["of_best"] - row["goodput_gbps"] / best) < 1e-9, row)
        check(1 / row["clients"] <= row["jain_index"] <= 1, row)
        check(row["p50_ms"] > 0 and row["cpu_s_per_gb"] > 0 and len(row["rounds"]) == 1, row)
        # The table has what the JSON has.
        line = f"{row['clients']} {row['goodput_gbps']:.3f} – {row['of_best']:.3f}"
        check(line in " ".join(printed.split()), f"{line}: {printed}")
    for key in ("latency_r2", "sum_r2"):
        check(result[key] is None or result[key] <= 1, result)


def test_many_clients():
    require("bench/haul-bench-server", "bench/haul-bench-client")
    with tempfile.TemporaryDirectory() as folder:
        picture = os.path.join(folder, "picture")
        found, printed = measure("client-scale", "--clients=3,1,2", "--loads=below",
                                 "--rate=500mbit", "--seconds=0.5", "--rounds=1",
                                 "--size=64KiB", f"--picture={picture}")
        with open(picture, encoding="utf-8") as file:
            svg = file.read()
    check(svg.startswith("<svg") and svg.rstrip().endswith("</svg>"), svg[:200])
    check("500 Mb/s, below the rate" in svg, svg)
    (result,) = found["results"]
    check(result["load"] == "below", result)
    check_scale_rows(result, printed)
    # Each asks for the same, which all together are 0.8 of the link.
    sums = [row["goodput_gbps"] for row in result["rows"]]
    check(sums[0] < 0.5 * sums[2], sums)


def test_pairs_of_grpc():
    require("bench/grpc_raw")
    found, printed = measure("grpc-pairs", "--size=1MiB", "--concurrency=2", "--seconds=0.5",
                             "--rounds=1")
    (size, rounds), = found["rounds"].items()
    check(size == "1MiB" and len(rounds) == 1, found)
    plain, aside = rounds[0]
    for result in (plain, aside):
        check(result["tool"] == "grpc_raw" and result["goodput_gbps"] > 0, result)
        check(0 < result["latency_us"]["p50"] <= result["latency_us"]["p99"], result)
    # Only with the layer does anything go beside gRPC.
    check(plain["sent_aside"] == 0 < aside["sent_aside"], found)
    check(f"messages aside: 1MiB: {aside['sent_aside']}" in printed, printed)
    ratio = aside["goodput_gbps"] / plain["goodput_gbps"]
    check(f"{ratio:.2f} ({ratio:.2f} to {ratio:.2f})" in printed, f"{ratio}: {printed}")


def test_shares_of_dpdk():
    require("bench/haul-bench-server", "bench/haul-bench-client")
    if not os.path.isfile(os.path.join(BUILD, "dpdk", "libtensorhaul-dpdk.so")):
        raise Skip(f"the transport dpdk was not built in {BUILD}")
    found, printed = measure("dpdk-share", "--connections=2", "--sockets=1", "--seconds=2",
                             "--rate=500mbit")
    (result,) = found["rounds"]
    shares = result["connections_gbps"]
    check(len(shares) == 2 and len(result["sockets_gbps"]) == len(result["sockets_busy"]) == 1,
          result)
    check(0 < sum(shares) <= 0.6, shares)
    check(0.5 <= result["fairness"] <= 1, result)
    check(f"dpdk: {shares[0]:.3f}, {shares[1]:.3f}  together {sum(shares):.3f} Gb/s" in printed,
          printed)
    check(f"cubic: {result['sockets_gbps'][0]:.3f} " in printed, printed)


main(globals())
