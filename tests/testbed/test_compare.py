# SPDX-License-Identifier: Apache-2.0
"""bench/compare: what it refuses, what it writes, and that it leaves nothing behind."""

import json
import os
import re
import signal
import subprocess
import tempfile

from harness import (BUILD, SOURCE, Skip, check, is_sanitized, main, program, require_root,
                     wait_until)

COMPARE = os.path.join(SOURCE, "bench", "compare")
REGISTRY = "/run/tensorhaul/testbed"
SHORT = ["--seconds=0.5", "--rounds=2", "--size=1MiB", "--sizes=4KiB", "--loss=0", "--mtu=9000",
         "--experiments=goodput"]
ROW_KEYS = {
    "transport", "size_bytes", "goodput_gbps", "ceiling_gbps", "ratio_to_ceiling",
    "iperf3_p1_gbps", "iperf3_p8_gbps", "payload_limit_gbps", "share_of_limit", "cpu_s_per_gb",
    "iperf3_cpu_s_per_gb", "latency_us", "rounds",
}


WITH_GRPC = os.access(os.path.join(BUILD, "bench", "grpc_raw"), os.X_OK)
# Of the case that looks at goodput; the one of the other experiments has tcp.
TRANSPORT = "grpc" if WITH_GRPC else "tcp"


def require_programs():
    require_root()
    if is_sanitized():
        raise Skip("a sanitizer's speed says nothing")
    for name in ("haul-bench-server", "haul-bench-client", "haul-info"):
        program(f"bench/{name}")


def compare(*arguments):
    return subprocess.run([COMPARE, "--no-install", *arguments], capture_output=True, text=True,
                          stdin=subprocess.DEVNULL, timeout=300, check=False)


def test_bad_input_is_named():
    for option, value in (
            ("--rate", "10"), ("--rate", "0gbit"), ("--mtu", "100"), ("--mtu", "many"),
            ("--loss", "1"), ("--loss", "-1"), ("--size", "0"), ("--size", "5MeB"),
            ("--sizes", "1,x"), ("--seconds", "0"), ("--rounds", "0"), ("--rounds", "two"),
            ("--transports", "tcp,pigeon"), ("--transport", "pigeon,streams=2"),
            ("--experiments", "goodput,pigeon"),
            ("--json", "/nonexistent/results"), ("--json", "/"), ("--report", "/etc/passwd/x"),
            ("--report", "/proc/x"), ("--build", "/nonexistent"), ("--colour", "red")):
        done = compare(f"{option}={value}")
        last = done.stderr.strip().splitlines()[-1]
        check(done.returncode == 2, f"{option}={value}: status {done.returncode}, {last}")
        named = re.search(r"pigeon|x$|[^,]+$", value)[0] if option != "--colour" else option
        check(named in last, f"{option}={value}: {last}")
        check(not done.stdout, f"{option}={value} began: {done.stdout}")


def test_a_transport_that_is_not_built_is_refused():
    require_programs()
    done = compare(f"--build={BUILD}", "--transport=tcp,streams=many", *SHORT)
    check(done.returncode != 0 and "many" in done.stderr, f"{done.returncode}: {done.stderr}")


def test_results_have_the_promised_form():
    require_programs()
    with tempfile.TemporaryDirectory() as folder:
        results = os.path.join(folder, "results")
        report = os.path.join(folder, "deep", "report")
        done = compare(f"--build={BUILD}", f"--transports={TRANSPORT}",
                       f"--json={results}", f"--report={report}", *SHORT)
        check(done.returncode == 0, f"status {done.returncode}: {done.stdout}{done.stderr}")
        check(f"tensorhaul {TRANSPORT}" in done.stdout and "iperf3 -P 8" in done.stdout, done.stdout)
        with open(results, encoding="utf-8") as file:
            check_results(json.load(file), 2)
        with open(os.path.join(report, "index.html"), encoding="utf-8") as file:
            check_page(file.read())


def test_many_clients():
    """The other experiment beside goodput, small messages, is in what follows a crash."""
    require_programs()
    with tempfile.TemporaryDirectory() as folder:
        done = compare(f"--build={BUILD}", "--transports=tcp", "--json=-", f"--report={folder}",
                       "--seconds=0.5", "--rounds=1", "--experiments=clients")
        check(done.returncode == 0, f"status {done.returncode}: {done.stderr}")
        results = json.loads(done.stdout)
        with open(os.path.join(folder, "index.html"), encoding="utf-8") as file:
            page = file.read()
    check(results["paths"] == [] and results["rdma_machine"] is None, results)
    check_many_clients(results["many_clients"])
    # Below and at the link's rate.
    check(page.count("<svg") == 2, f"{page.count('<svg')} pictures")
    text = "Many clients on one server, 1 Gb/s"
    check(text in done.stderr and f"<h2>{text}" in page, text)


def check_small_messages(found, transport):
    check(not found["failures"], found["failures"])
    points = [(row["size_bytes"], row["in_flight"], row["set_rate_per_s"]) for row in found["rows"]]
    expected = [(size, number, None) for size in (64, 16384) for number in (1, 64, 1000)]
    check(points == [*expected, (64, 1000, 20000)], points)
    for row in found["rows"]:
        check(row["transport"] == transport and len(row["rounds"]) == 1, row)
        # On a busy machine none of very many may both begin and end in so short a time.
        if row["in_flight"] < 1000:
            check(row["rate_per_s"] > 0, row)
            check(0 < row["p50_us"] <= row["p99_us"] <= row["p99_9_us"], row)


def check_many_clients(found):
    check(not found["failures"], found["failures"])
    check([(result["transport"], result["load"], result["rate_gbps"])
           for result in found["results"]] == [("tcp", "below", 1), ("tcp", "at", 1)], found)
    for result in found["results"]:
        check([row["clients"] for row in result["rows"]] == [1, 4, 16, 64], result)
        check(all(row["goodput_gbps"] > 0 and row["p50_ms"] > 0 for row in result["rows"]), result)


def check_results(results, rounds):
    (path,) = results["paths"]
    check(not path["failures"], path["failures"])
    check(path["path"] == {"rate_gbps": 10, "mtu": 9000, "loss": 0}, path["path"])
    main_row, small = path["rows"]
    check_baselines({baseline["name"]: baseline for baseline in path["baselines"]})
    for row in path["rows"]:
        check(row["transport"] == TRANSPORT, row)
        check(ROW_KEYS == set(row), f"keys {ROW_KEYS ^ set(row)}")
    check(main_row["size_bytes"] == 2**20 and small["size_bytes"] == 4096, path["rows"])
    check(abs(main_row["payload_limit_gbps"] - 9.900) < 0.001, main_row["payload_limit_gbps"])
    for key in ROW_KEYS - {"transport", "latency_us", "rounds"}:
        check(main_row[key] > 0, f"{key} is {main_row[key]}")
    check(set(main_row["latency_us"]) == {"size_bytes", "p50", "p99"}, main_row["latency_us"])
    check(len(main_row["rounds"]) == rounds, main_row["rounds"])
    # What was not measured is null, never 0.
    check(small["latency_us"] is None and small["iperf3_p1_gbps"] is None, small)


def check_baselines(baselines):
    grpc = {"grpc_raw_1", "grpc_raw_8"} if WITH_GRPC else set()
    check(set(baselines) == {"iperf3_p1", "iperf3_p8"} | grpc, set(baselines))
    for name, baseline in baselines.items():
        check(baseline["goodput_gbps"] > 0 and baseline["cpu_s_per_gb"] > 0, baseline)
        latency = baseline["latency_us"]
        if name == "grpc_raw_1":
            check(0 < latency["p50"] <= latency["p99"], latency)
        else:
            check(latency is None, baseline)


def check_page(page):
    check(page.count("<svg") >= 4, f"{page.count('<svg')} pictures")
    if WITH_GRPC:
        # The table once, and the labels of goodput, latency and CPU.
        check(page.count(">grpc_raw, 1 channel<") == 4, page.count(">grpc_raw, 1 channel<"))
    outside = re.findall(r"(?:src|href)=[\"'](?!#|results\.json)([^\"']+)", page)
    check(not outside, f"the report loads {outside}")
    check("$" not in re.sub(r"<pre>.*?</pre>", "", page, flags=re.DOTALL), "a placeholder is left")


def hosts_owned_by(process):
    found = []
    for name in os.listdir(REGISTRY) if os.path.isdir(REGISTRY) else []:
        try:
            with open(os.path.join(REGISTRY, name, "owner"), encoding="utf-8") as file:
                owner = int(file.read().split()[0])
        except (OSError, IndexError):
            continue
        if owner == process:
            found.append(name)
    return found


def start_compare(folder):
    """A run of the default transports that would take long; answers when its hosts exist."""
    running = subprocess.Popen(
        [COMPARE, "--no-install", f"--build={BUILD}", f"--report={folder}", "--seconds=60"],
        stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True,
        env={**os.environ, "TMPDIR": folder})
    check_what_is_compared(running.stdout)
    wait_until(lambda: hosts_owned_by(running.pid), 60, "hosts are made")
    (name,) = hosts_owned_by(running.pid)
    return running, name


def check_what_is_compared(lines):
    what = next(line for line in lines if line.startswith("Comparing "))
    expected = {"tcp", "grpc", "grpc,channels=8"} if WITH_GRPC else {"tcp"}
    specs = what.removeprefix("Comparing ").split(" with ")[0].split("; ")
    check(expected <= set(specs), what)


def namespaces_of(name):
    return [entry for entry in os.listdir("/run/netns") if entry.startswith(name)]


def test_a_signal_leaves_nothing():
    require_programs()
    for number in (signal.SIGINT, signal.SIGTERM):
        with tempfile.TemporaryDirectory() as folder:
            running, name = start_compare(folder)
            running.send_signal(number)
            status = running.wait(30)
            check(status == 128 + number, f"status {status}")
            check(not namespaces_of(name), "namespaces are left")
            check(os.listdir(folder) == [], f"files are left: {os.listdir(folder)}")


def test_what_a_crash_left_the_next_run_removes():
    require_programs()
    with tempfile.TemporaryDirectory() as folder:
        running, name = start_compare(folder)
        running.kill()
        running.wait(30)
        # Its programs die with it.
        for host in "ab":
            wait_until(lambda host=host: not programs_on(f"{name}-{host}"), 10, "programs end")
        done = compare(f"--build={BUILD}", f"--transports={TRANSPORT}", f"--report={folder}",
                       "--json=-", "--seconds=0.5", "--rounds=1", "--experiments=small")
        check(name in done.stderr and not namespaces_of(name), f"{name} is left: {done.stderr}")
        # With the results on the standard output there is nothing else on it.
        check_small_messages(json.loads(done.stdout)["small_messages"], TRANSPORT)
        check("Small messages, 10 Gb/s, MTU 9000" in done.stderr, done.stderr)
        with open(os.path.join(folder, "index.html"), encoding="utf-8") as file:
            page = file.read()
        # Two sizes.
        check(page.count("<svg") == 2 and "<h2>Small messages, 10 Gb/s, MTU 9000" in page, page)


def programs_on(namespace):
    done = subprocess.run(["ip", "netns", "pids", namespace], capture_output=True, text=True,
                          check=False)
    return done.stdout.split()


main(globals())
