# SPDX-License-Identifier: Apache-2.0
"""verbs on a host without an RDMA adapter: in the virtual machine of tests/rdma, beside perftest.

Both run in one boot, in alternating rounds. The machine is emulated, so only the ratios count.
"""

import json
import os
import tempfile

from machine import SOURCE
from processes import Failure, Program
from results import divide, median
from summary import format_table
from texts import gbps_text, microseconds_text, number_text, size_text, spread_text

VM = os.path.join(SOURCE, "tests", "rdma", "vm")
SIZES = (2**20, 100 * 2**20)
# Eight messages of 100 MiB of perftest's.
LONG_SECONDS = 20
SET_UP_SECONDS = 600
BOOT_SECONDS = 60
# Each measurement's warm-up, start and end beside its own time, in a slow machine.
SPARE_SECONDS = 8
HEADS = ("", "Gb/s", "of all rounds", "× ib_write_bw", "64 B p50 µs", "× ib_write_lat")

SCRIPT = r"""
say() { printf '%s\n' "$*" >>/host/results; }

# The server of a pair in the background; $1 is its command, $2 the client's.
pair() {
    $1 >/dev/null 2>&1 &
    local server=$!
    while kill -0 $server 2>/dev/null && [[ -z $(ss -Hltn "sport = :18515") ]]; do sleep 0.05; done
    $2 2>&1
    wait $server
}

# With a set time perftest counts the messages that end in a part of it, and of large ones hardly
# any does.
write_bw() {
    local rate length="-D $seconds"
    (($1 < 10000000)) || length="-n 8 -t 4"
    rate=$(pair "ib_write_bw -d $RDMA_DEVICE_B -x 1 -F -s $1 $length -m 4096" \
        "ib_write_bw -d $RDMA_DEVICE_A -x 1 -F -s $1 $length -m 4096 127.0.0.1" |
        awk -v size="$1" '$1 == size && $4 > 0 {print $4}')
    say "perftest $1 ${rate:-failed}"
}

# The median: with a set time instead of a count, perftest tells the mean alone.
write_lat() {
    local time
    time=$(pair "ib_write_lat -d $RDMA_DEVICE_B -x 1 -F -s 64 -n 20000" \
        "ib_write_lat -d $RDMA_DEVICE_A -x 1 -F -s 64 -n 20000 127.0.0.1" |
        awk '$1 == 64 {print $5}')
    say "perftest_latency 64 ${time:-failed}"
}

haul() {
    local spec=$1 test=$2 size=$3
    shift 3
    haul-bench-client --transport="$spec,bind=$RDMA_ADDRESS_A" --connect="$(cat /tmp/address)" \
        --test="$test" --size="$size" --rounds=1 --warmup=1 --live=no --json=/tmp/json "$@" \
        >/tmp/said 2>&1 || { say "error $spec $(tail -1 /tmp/said)"; return; }
    say "haul $spec $size $test $(tr -d '\n\t' </tmp/json)"
}

for spec in $specs; do
    rm -f /tmp/address
    haul-bench-server --transport="$spec" --listen="$RDMA_ADDRESS_B:0" \
        --address-file=/tmp/address >/dev/null 2>&1 &
    server=$!
    while kill -0 $server 2>/dev/null && [[ ! -s /tmp/address ]]; do sleep 0.05; done
    for ((round = 0; round < rounds; round++)); do
        for size in $sizes; do
            write_bw "$size"
            haul "$spec" throughput "$size" --seconds="$seconds" --concurrency=4
        done
        write_lat
        haul "$spec" latency 64 --seconds=2 --waiting=poll
    done
    kill $server
    wait $server
done
"""


def set_up(console):
    console.step("Making the virtual machine with two RDMA hosts")
    with Program([VM, "setup"]) as program:
        ended = program.wait(SET_UP_SECONDS)
    if ended.status:
        raise Failure(f"The virtual machine for verbs can't be made: {ended.errors.strip()}")


def _parse_haul(text):
    for result in json.loads(text)["results"]:
        if result["test"] == "throughput":
            return result["goodput_gbps"]
        if result["test"] == "latency":
            # Perftest tells half a round trip.
            return result["latency_us"]["p50"] / 2
    return None


def _read(path):
    """(who, size): what was measured, one value a round."""
    values, failures = {}, []
    with open(path, encoding="utf-8") as file:
        for line in file:
            kind, first, *rest = line.rstrip("\n").split(" ", 4)
            if kind == "error":
                failures.append(" ".join([first, *rest]))
            elif kind == "haul":
                key = (first, "latency" if rest[1] == "latency" else int(rest[0]))
                values.setdefault(key, []).append(_parse_haul(rest[2]))
            elif rest[0] == "failed":
                failures.append(f"{kind}, {first} B")
            elif kind == "perftest":
                # It counts MiB.
                values.setdefault((None, int(first)), []).append(
                    float(rest[0]) * 2**20 * 8 / 1e9)
            else:
                values.setdefault((None, "latency"), []).append(float(rest[0]))
    return values, failures


def _rows(values, specs):
    """One line for each size: perftest, then each spec."""
    latency = {spec: median(values.get((spec, "latency"), [])) for spec in (None, *specs)}
    for size in SIZES:
        base = values.get((None, size), [])
        for spec in (None, *specs):
            rates = values.get((spec, size), [])
            yield {
                "transport": spec or "ib_write_bw, ib_write_lat",
                "size_bytes": size,
                "goodput_gbps": median(rates),
                "rounds": rates,
                # Of each pair; perftest runs once before each of several specs.
                "ratio": median(map(divide, rates, base)) if spec else 1.0,
                "latency_us": latency[spec],
                "latency_ratio": divide(latency[spec], latency[None]) if spec else 1.0,
            }


def _table(rows):
    lines = [HEADS]
    for row in rows:
        lines.append((f"{row['transport']}, {size_text(row['size_bytes'])}",
                      gbps_text(row["goodput_gbps"]), spread_text(row["rounds"]),
                      number_text(row["ratio"], 2), microseconds_text(row["latency_us"]),
                      number_text(row["latency_ratio"], 2)))
    return format_table(lines)


def run(settings, programs, specs, console):
    """Answers what belongs into the JSON, and the table."""
    set_up(console)
    measurements = settings.rounds * len(specs) * (2 * len(SIZES) + 2)
    limit = BOOT_SECONDS + measurements * (max(settings.seconds, LONG_SECONDS) + SPARE_SECONDS)
    module = os.path.join(os.path.dirname(os.path.dirname(programs.info)), "verbs",
                          "libtensorhaul-verbs.so")
    console.step(f"Measuring verbs in the virtual machine: at most {limit / 60:.0f} min")
    with tempfile.TemporaryDirectory() as folder:
        script = (f"specs='{' '.join(specs)}' sizes='{' '.join(map(str, SIZES))}'\n"
                  f"rounds={settings.rounds} seconds={max(1, round(settings.seconds))}\n{SCRIPT}")
        with Program([VM, "run", f"--seconds={limit:.0f}", "--memory=2000", f"--folder={folder}",
                      f"--program={programs.server}", f"--program={programs.client}",
                      f"--library={module}", "--", script]) as machine:
            ended = machine.wait(limit + SET_UP_SECONDS)
        results = os.path.join(folder, "results")
        if ended.status or not os.path.exists(results):
            raise Failure(f"The virtual machine for verbs ended with status {ended.status}: "
                          f"{ended.errors.strip()[-500:]}")
        values, failures = _read(results)
    rows = list(_rows(values, specs))
    title = ("verbs over Soft-RoCE in an emulated machine, beside perftest: its speed says "
             "nothing, only the ratios count")
    console.done()
    return ({"machine": "emulated", "device": "rdma_rxe", "rows": rows, "failures": failures},
            "\n\n".join([title, _table(rows), *(f"failed: {one}" for one in failures)]))
