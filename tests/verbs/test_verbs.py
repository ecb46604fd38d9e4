# SPDX-License-Identifier: Apache-2.0
"""The verbs transport over two Soft-RoCE or iWARP hosts: the programs of this folder, and the
conformance suite, each in a machine of its own.

The figures of such a machine say nothing; what arrives, and how it ends, does.
"""

import json
import os
import re
import sys

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "rdma"))

from harness import (  # noqa: E402
    Program, Skip, check, is_sanitized, library, main, program, run)

MODULE = ["verbs/libtensorhaul-verbs.so"]
SPEC = "verbs,bind=$RDMA_ADDRESS_A"
# The emulation is slow, and all runs together have to stay below half an hour: tests that repeat
# themselves do it a quarter as often, and the groups that take minutes even so (kill, stop, storm,
# memory) are for a run by hand, which all of the suite passes:
#   tests/rdma/vm run --memory=3000 --seconds=900 --program=... --library=... -- conformance ...
GROUPS = ("sizes,types,keys,depth,cancel,expire,refuse,ends,poll,completion,threads,fork,auth,"
          "resources,bad_spec,bad_address,bad_tensor,statistics")
SANITIZED_GROUPS = "types,keys,cancel,refuse,ends,completion,auth,statistics,bad_tensor"
# Wide enough for everything below, with no room for a hang.
SECONDS = 900


def suite(name, arguments, device="rxe", path="", after="", programs=(), options=(),
          seconds=SECONDS):
    """Runs a cmocka program in the machine, and a script after it; its own lines are passed on."""
    command = f"{path}\n{os.path.basename(name)} {arguments} || exit\n{after}"
    ended = run(command, seconds=seconds, device=device, programs=[name, *programs],
                libraries=MODULE, options=options)
    for line in ended.output.splitlines():
        if re.match(r"\[ +(RUN|OK|FAILED|SKIPPED|ERROR) +\]|SKIP|ERROR|.* died in", line):
            print(line)
    check(ended.status == 0, f"status {ended.status}:\n{ended.output[-6000:]}\n"
                             f"{ended.errors[-2000:]}")
    return ended.output


def conformance(more="", spec=SPEC, listen="$RDMA_ADDRESS_B", **arguments):
    return suite(
        "tests/conformance/conformance",
        f"--transport={spec} --listen-host={listen} --scale=quarter {more}", **arguments)


def test_host_without_adapter():
    """Needs no machine: one line says what is missing, the same one everywhere."""
    if os.path.isdir("/sys/class/infiniband") and os.listdir("/sys/class/infiniband"):
        raise Skip("this host has an RDMA device")
    environment = {"HAUL_MODULE_PATH": os.path.dirname(library(MODULE[0]))}
    commands = {
        "haul-info": ["--transport=verbs", "--peer=192.0.2.1"],
        "haul-bench-server": ["--transport=verbs", "--listen=127.0.0.1:0"],
        "haul-bench-client": ["--transport=verbs", "--connect=192.0.2.1:7411"],
    }
    for name, words in commands.items():
        with Program([program(f"bench/{name}"), *words], environment) as running:
            ended = running.wait(20)
        said = ended.output + ended.errors
        check("this host has no RDMA device" in said and "rdma link add" in said, said)
        check("192.0.2.1:1" not in said, said)


def test_conformance_over_rxe():
    conformance(f"--groups={SANITIZED_GROUPS if is_sanitized() else GROUPS}",
                options=["--memory=3000"])


def test_conformance_over_siw():
    """At "*", which is another listener than that of one address."""
    conformance("--groups=sizes,types,keys,cancel,refuse,ends,poll",
                device="siw", listen="*")


# Both sides of some tensors with a trace, and what it says of them.
TRACED = """
haul-bench-server --transport=verbs --listen=$RDMA_ADDRESS_B:0 --no-ceiling --once --ready-fd=3 \\
    --trace=/tmp/server 3>/tmp/address >/tmp/said 2>&1 &
server=$!
until [[ -s /tmp/address ]] || ! kill -0 $server; do sleep 0.1; done
haul-bench-client --transport=%s --connect=$(</tmp/address) --size=1MiB --concurrency=2 \\
    --count=20 --rounds=1 --warmup=0 --live=no --trace=/tmp/client >/tmp/said_too 2>&1 &&
    wait $server && echo "== TRACES" && haul-trace --json=- /tmp/client /tmp/server ||
    { cat /tmp/said /tmp/said_too; exit 1; }
"""


def check_traces(output):
    """Each send met its receive, and the shares of its time are all of it."""
    found = json.loads(output.split("== TRACES\n")[1])
    for file in found["files"]:
        check(file["whole"] and file["lost"] == 0, file)
        check(file["transport_options"].startswith("verbs,"), file)
    ways = {group["way"]: group for group in found["sizes"] if group["size"] == "up to 1 MiB"}
    check({group["tensors"] for group in ways.values()} == {ways["send"]["tensors"]}, ways)
    check(ways["send"]["tensors"] >= 20, ways)
    for way in ("send", "receive"):
        group = ways[way]
        shares = sum(group[f"{name}_us"] for name in ("wait", "checksum", "move", "copy",
                                                      "complete"))
        check(abs(shares - group["mean_us"]) <= 1e-3 * group["mean_us"], group)


def test_ipv6():
    """And traces, in the same machine."""
    output = conformance("--groups=types,auth", spec="verbs,bind=$RDMA_ADDRESS6_A",
                         listen="[$RDMA_ADDRESS6_B]", after=TRACED % SPEC,
                         programs=[f"bench/haul-{name}" for name in
                                   ("bench-server", "bench-client", "trace")])
    check_traces(output)


def test_without_windows():
    conformance("--groups=cancel,threads", spec=f"{SPEC},windows=off,qps=3,piece=64KiB")


def test_hostile_peers():
    suite("tests/verbs/test_verbs_peers", f"{SPEC} $RDMA_ADDRESS_B $RDMA_ADDRESS_A")


def test_memory_limits_and_choices():
    suite("tests/verbs/test_verbs_host", f"{SPEC} $RDMA_ADDRESS_B")


def test_peers_killed():
    suite("tests/verbs/test_verbs_kill", f"{SPEC} $RDMA_ADDRESS_B")


def device(case):
    suite("tests/verbs/test_verbs_device",
          f"{SPEC} $RDMA_ADDRESS_B $RDMA_NETDEV_A $RDMA_DEVICE_A {case}")


def test_cable_pulled():
    device("test_cable_pulled")


def test_device_removed():
    device("test_device_removed")


def test_lossy_paths():
    """Each tensor arrives, and is right, whatever happens to packets."""
    # A reliable connection goes back to the packet that is out of order: it crawls then.
    paths = {"loss=0.1%": "1_mib*", "loss=1%": "1_mib*", "delay=2ms": "1_mib*",
             "delay=1ms reorder=5%": "4_kib", "duplicate=2%": "1_mib*", "corrupt=0.5%": "1_mib*"}
    # rdma_cm sends a packet of its own again only after 5 s.
    spec = f"{SPEC},connect_ms=60000,handshake_ms=60000"
    arguments = f"--transport={spec} --listen-host=$RDMA_ADDRESS_B"
    script = "\n".join(f"echo '== {path}'\nrdma-path {path}\n"
                       f"conformance {arguments} --filter='test_size_{sizes}' || exit 1"
                       for path, sizes in paths.items())
    ended = run(script, seconds=SECONDS, programs=["tests/conformance/conformance"],
                libraries=MODULE)
    check(ended.status == 0, f"{ended.output[-4000:]}\n{ended.errors[-2000:]}")
    check(ended.output.count("[       OK ]") == 16, ended.output[-4000:])


def test_lossy_path_over_siw():
    conformance("--filter=test_size_1_mib*", path="rdma-path loss=1% corrupt=0.5%", device="siw")


main(globals())
