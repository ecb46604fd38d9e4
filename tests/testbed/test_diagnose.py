# SPDX-License-Identifier: Apache-2.0
"""What haul-bench-client --diagnose says of paths whose limit is known."""

import json

from harness import check, main, program, require_root
from hosts import Hosts

PORT = 7411
PATIENCE_SECONDS = 30
# Another program of the machine may spoil a measurement, but not that often.
TRIES = 3


def address(hosts):
    return f"{hosts.address('B')}:{PORT}"


def diagnose(hosts):
    with hosts.start("B", [program("bench/haul-bench-server"), f"--listen={address(hosts)}",
                           "--ready-fd=1"]) as server:
        server.read_line(PATIENCE_SECONDS)
        output = hosts.run("A", [program("bench/haul-bench-client"),
                                 f"--connect={address(hosts)}",
                                 "--diagnose", "--sockets=1,8", "--seconds=0.3",
                                 "--warmup=0.1", "--size=4MiB", "--json=-"], PATIENCE_SECONDS)
    return json.loads(output)


def check_verdict(hosts, is_right):
    """What is wrong once may be noise; what is wrong each time is wrong."""
    for _ in range(TRIES):
        found = diagnose(hosts)
        if is_right(found):
            return
    check(False, json.dumps(found, indent=1))


def test_a_clean_link():
    require_root()
    with Hosts(rate="500mbit", mtu=1500) as hosts:
        def is_right(found):
            verdict = found["diagnosis"]
            return (verdict["one_socket"], verdict["all"], verdict["sockets"],
                    found["mtu"]) == ("link", "link", 1, 1500) and \
                0.4 < found["steps"][0]["gbps"] < 0.5 and found["measured"]["gbps"] > 0.35
        check_verdict(hosts, is_right)


def test_loss():
    require_root()
    with Hosts(rate="1gbit", mtu=1500, loss=0.01) as hosts:
        def is_right(found):
            verdict, one = found["diagnosis"], found["steps"][0]
            return (verdict["one_socket"] == "loss" and verdict["sockets"] > 1 and
                    0.004 < one["loss"] < 0.03)
        check_verdict(hosts, is_right)


def test_a_small_window():
    require_root()
    with Hosts(rate="1gbit", mtu=1500) as hosts:
        hosts.run("B", ["sysctl", "-qw", "net.ipv4.tcp_rmem=4096 4096 4096"], 10)

        def is_right(found):
            verdict = found["diagnosis"]
            return verdict["one_socket"] == "receive window" and "tcp_rmem" in verdict["words"][1]
        check_verdict(hosts, is_right)


main(globals())
