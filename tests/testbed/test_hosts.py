# SPDX-License-Identifier: Apache-2.0
"""The two hosts themselves: the path is what was asked for, and nothing is left behind."""

import json
import os
import signal
import subprocess
import tempfile

from harness import check, main, require_root, wait_until
from hosts import HOSTS_SCRIPT, Hosts
from processes import run

SEND_DATAGRAMS = """
import socket, sys
out = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
for _ in range(int(sys.argv[2])):
    out.sendto(bytes(64), (sys.argv[1], 9))
"""


def call(*arguments):
    return subprocess.run([HOSTS_SCRIPT, *arguments], capture_output=True, text=True,
                          stdin=subprocess.DEVNULL, timeout=60, check=False)


def namespaces_of(name):
    return [entry for entry in os.listdir("/run/netns") if entry.startswith(name)]


def received_frames(hosts):
    return int(hosts.run("B", ["cat", "/sys/class/net/eth0/statistics/rx_packets"], 10))


def test_bad_values_are_named():
    require_root()
    with Hosts() as hosts:
        name = hosts.name
        for arguments in (["make", "--owner=1", "--rate=fast"], ["make", "--owner=1", "--rate=0gbit"],
                          ["make", "--owner=1", "--mtu=100"], ["make", "--owner=1", "--mtu=70000"],
                          ["make", "--owner=1", "--loss=2"], ["make", "--owner=1", "--loss=-1"],
                          ["make", "--owner=1", "--queue=mine"], ["make", "--owner=999999999"], ["make", "--owner=1", "--color=red"],
                          ["loss", name, "many"], ["rate", name, "10"], ["throttle", name, "0"],
                          ["throttle", name, "80", "slow"], ["exec", name, "C", "true"],
                          ["loss", "nobody", "0"], ["fly"]):
            done = call(*arguments)
            value = arguments[-1].split("=")[-1]
            if arguments[0] == "exec":
                value = "C"
            elif arguments[1:2] == ["nobody"]:
                value = "nobody"
            check(done.returncode == 2, f"{arguments}: status {done.returncode}")
            check(value in done.stderr, f"{arguments}: {done.stderr}")


def count_arriving(hosts, frames):
    before = received_frames(hosts)
    hosts.run("A", ["/usr/bin/python3", "-c", SEND_DATAGRAMS, hosts.address("B"), str(frames)], 60)
    return received_frames(hosts) - before


def test_loss_is_what_was_asked_for():
    require_root()
    frames = 20000
    with Hosts(rate="1gbit", mtu=1500, loss=0.01) as hosts:
        arrived = count_arriving(hosts, frames)
        # Within five standard deviations, with a few frames of other protocols.
        check(frames * 0.9865 < arrived < frames * 0.9935 + 20, f"1 %: {arrived} of {frames}")
        hosts.change("loss", 0)
        arrived = count_arriving(hosts, frames)
        check(arrived >= frames, f"none: {arrived} of {frames}")
        hosts.change("loss", 1)
        arrived = count_arriving(hosts, frames)
        check(arrived == 0, f"all: {arrived} of {frames}")


def test_cut_and_mend():
    require_root()
    with Hosts() as hosts:
        carrier = ["cat", "/sys/class/net/eth0/carrier"]
        check(hosts.run("A", carrier, 10).strip() == "1", "no carrier at first")
        hosts.change("cut")
        check(hosts.run("A", carrier, 10).strip() == "0", "a carrier with the cable cut")
        check(count_arriving(hosts, 100) == 0, "frames cross a cable that is cut")
        hosts.change("mend")
        check(hosts.run("A", carrier, 10).strip() == "1", "no carrier after the mending")
        check(count_arriving(hosts, 100) >= 100, "frames don't cross the mended cable")


def iperf3(hosts, *options):
    """What a second of one socket's looked like at its end."""
    with hosts.start("B", ["iperf3", "--server", "--one-off", "--forceflush"]) as server:
        server.wait_for_line("Server listening")
        return json.loads(hosts.run("A", ["iperf3", "--client", hosts.address("B"), "--json",
                                          "--time", "1", "--congestion", "cubic", *options],
                                    30))["end"]


def goodput_gbps(hosts, *options):
    return iperf3(hosts, *options)["sum_received"]["bits_per_second"] / 1e9


def longest_round_trip(hosts):
    """In microseconds. Reno does not leave its slow start before something is lost."""
    end = iperf3(hosts, "--congestion", "reno")
    goodput = end["sum_received"]["bits_per_second"]
    check(goodput > 70e6, f"{goodput} b/s")
    return end["streams"][0]["sender"]["max_rtt"]


def test_whose_queue_it_is():
    """TCP keeps its own queue short, and can't see that of a switch."""
    require_root()
    with Hosts(rate="100mbit", mtu=1500) as hosts:
        own = longest_round_trip(hosts)
    with Hosts(rate="100mbit", mtu=1500, queue="switch") as hosts:
        # One socket in ten loses something early, and begins anew with little.
        others = next((time for time in (longest_round_trip(hosts) for _ in range(5))
                       if time > 3 * own), None)
    check(others, f"never above 3 times {own} us")


def test_rate_and_throttle():
    require_root()
    with Hosts(rate="1gbit", mtu=1500) as hosts:
        for rate, limit in (("1gbit", 0.9415), ("100mbit", 0.09415)):
            hosts.change("rate", rate)
            goodput = goodput_gbps(hosts)
            check(0.4 * limit < goodput < 1.02 * limit, f"{rate}: {goodput} Gb/s")
        hosts.change("rate", "1gbit")
        hosts.change("throttle", 40000, "50mbit")
        goodput = goodput_gbps(hosts, "--cport", "40000")
        check(goodput < 0.06, f"throttled to 50 Mb/s: {goodput} Gb/s")
        goodput = goodput_gbps(hosts, "--cport", "41000")
        check(goodput > 0.3, f"another flow: {goodput} Gb/s")
        hosts.change("throttle", "off")
        goodput = goodput_gbps(hosts, "--cport", "40000")
        check(goodput > 0.3, f"not throttled any more: {goodput} Gb/s")


def test_ipv6_reaches():
    require_root()
    with Hosts() as hosts:
        hosts.run("B", ["/usr/bin/python3", "-c", SEND_DATAGRAMS.replace("AF_INET", "AF_INET6"),
                        hosts.address("A", 6), "1"], 10)


def test_hosts_are_removed_with_the_program():
    require_root()
    done = call("run", "--", "bash", "-c", "echo $TENSORHAUL_TESTBED; exit 7")
    check(done.returncode == 7, f"status {done.returncode}: {done.stderr}")
    check(not namespaces_of(done.stdout.strip()), "namespaces are left")


def start_and_hold():
    """hosts run, with a program on host B that would run for an hour."""
    script = f"{HOSTS_SCRIPT} exec - B sleep 3600 & echo $TENSORHAUL_TESTBED $!; wait"
    held = subprocess.Popen([HOSTS_SCRIPT, "run", "--", "bash", "-c", script],
                            stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
                            stderr=subprocess.DEVNULL, text=True)
    name, sleeper = held.stdout.readline().split()
    wait_until(lambda: is_running_sleep(sleeper), 20, "sleep runs on host B")
    return held, name, sleeper


def is_running_sleep(number):
    try:
        with open(f"/proc/{number}/cmdline", encoding="utf-8") as file:
            return file.read().startswith("sleep")
    except OSError:
        return False


def test_signals_remove_the_hosts():
    require_root()
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        held, name, sleeper = start_and_hold()
        held.send_signal(number)
        held.wait(30)
        held.stdout.close()
        check(not namespaces_of(name), f"{number}: namespaces are left")
        wait_until(lambda: not is_running_sleep(sleeper), 5, "sleep ends")


def test_what_a_crash_left_is_removed():
    require_root()
    held, name, sleeper = start_and_hold()
    foreign = f"haul-foreign-{os.getpid()}"
    run(["ip", "netns", "add", foreign])
    try:
        with Hosts() as living:
            held.kill()
            held.wait(30)
            check(namespaces_of(name), "kill -9 removed the hosts by itself")
            done = call("sweep")
            check(done.returncode == 0 and name in done.stderr, done.stderr)
            check(not namespaces_of(name), "namespaces are left")
            wait_until(lambda: not is_running_sleep(sleeper), 5, "sleep ends")
            check(namespaces_of(foreign), "a namespace that is not ours was removed")
            living.run("A", ["true"], 10)
    finally:
        run(["ip", "netns", "delete", foreign])
        held.stdout.close()


def test_nothing_stays_in_the_temporary_folder():
    require_root()
    with tempfile.TemporaryDirectory() as folder:
        subprocess.run([HOSTS_SCRIPT, "run", "--loss=0.01", "--", "true"], check=True,
                       env={**os.environ, "TMPDIR": folder}, timeout=60)
        check(os.listdir(folder) == [], f"left: {os.listdir(folder)}")


main(globals())
