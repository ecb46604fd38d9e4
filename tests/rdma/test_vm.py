# SPDX-License-Identifier: Apache-2.0
"""The virtual machine itself: its devices, its path, and how a run ends."""

import os
import re
import tempfile

from harness import FAILED_STATUS, TIME_OUT_STATUS, check, machine, main, run, wait_until

# As ib_write_bw and its kind print it: bytes, iterations, peak and average rate.
BANDWIDTH = re.compile(r"^\s*65536\s+\d+\s+[\d.]+\s+([\d.]+)", re.MULTILINE)
NETEM = "delay 2ms  1ms loss 2% duplicate 1% reorder 25% corrupt 0.5%"

# The server of a pair in the background, its client here; both must end well.
PAIR = """
listens() {
    [[ -n $(ss -Hltn) ]] || rdma resource show cm_id | grep -q LISTEN
}

pair() {
    local server=$1 client=$2
    timeout 30 $server >/tmp/server 2>&1 &
    while kill -0 $! && ! listens; do
        sleep 0.1
    done
    timeout 30 $client 2>&1 || echo "client: status $?"
    wait $! || { echo "server: status $?"; cat /tmp/server; }
}
"""

DEVICES = """
echo "== DEVICES"
rdma link
ip link show "$RDMA_NETDEV_A"
"""

SOFT_ROCE = PAIR + DEVICES + """
echo "== WRITE"
pair "ib_write_bw -d $RDMA_DEVICE_A -x 1 -F -n 200" \
    "ib_write_bw -d $RDMA_DEVICE_B -x 1 -F -n 200 127.0.0.1"
echo "== IPV6"
pair "rping -s -a $RDMA_ADDRESS6_A -C 2" \
    "rping -c -a $RDMA_ADDRESS6_A -I $RDMA_ADDRESS6_B -C 2 -v"
echo "== COUNTERS"
cat /sys/class/net/lo/statistics/rx_bytes /sys/class/net/$RDMA_NETDEV_A/statistics/rx_bytes
echo "== LOSSY"
rdma-path loss=2% delay=2ms,1ms reorder=25% duplicate=1% corrupt=0.5%
rdma-path
pair "rping -s -a $RDMA_ADDRESS_A -C 10" \
    "rping -c -a $RDMA_ADDRESS_A -I $RDMA_ADDRESS_B -C 10 -v"
echo "== CLEAN"
rdma-path clean
rdma-path
echo "== LIMITS"
ulimit -l
ping -c 1 -W 5 127.0.0.1 | grep received
echo "== LONG"
head -c 1000000 /dev/zero | tr '\\0' x
echo
echo "== END"
echo "to the errors" >/dev/stderr
sleep 1000 &
exit 7
"""

IWARP = PAIR + DEVICES + """
echo "== SEND"
pair "ib_send_bw -d $RDMA_DEVICE_A -R -F -n 200" \
    "ib_send_bw -R -F -n 200 --source_ip=$RDMA_ADDRESS_B $RDMA_ADDRESS_A"
echo "== IPV6"
pair "rping -s -a $RDMA_ADDRESS6_A -C 2" \
    "rping -c -a $RDMA_ADDRESS6_A -I $RDMA_ADDRESS6_B -C 2 -v"
echo "== FILES"
pwd
cat from-outside
echo inside >from-inside
"""


def sections(output):
    """The parts of a command's output, by the titles above them."""
    words = re.split(r"^== (\w+)\n", output, flags=re.MULTILINE)
    return dict(zip(words[1::2], words[2::2]))


def check_devices(text, device):
    for number in (0, 1):
        check(f"link {device}{number}/1 state ACTIVE" in text, f"{device}{number}: {text}")
    check("mtu 4200 " in text, text)


def check_bandwidth(text):
    found = BANDWIDTH.search(text)
    check(found and float(found[1]) > 0 and "status" not in text, text)


def test_two_hosts_with_soft_roce():
    ended = run(SOFT_ROCE, options=["--mtu=4200"])
    check(ended.status == 7, f"status {ended.status}: {ended.output[:2000]}\n{ended.errors}")
    check("to the errors" in ended.errors and "to the errors" not in ended.output, ended.errors)
    parts = sections(ended.output)
    check_devices(parts["DEVICES"], "rxe")
    check_bandwidth(parts["WRITE"])
    check("rdma-ping-1" in parts["IPV6"], parts["IPV6"] + ended.errors)
    loopback, cable = map(int, parts["COUNTERS"].split())
    check(cable > 100 * 65536 > 100 * loopback, f"{cable} bytes by cable, {loopback} not")
    check(parts["LOSSY"].count(NETEM) == 2, parts["LOSSY"])
    check("rdma-ping-9" in parts["LOSSY"] and "status" not in parts["LOSSY"], parts["LOSSY"])
    check("netem" not in parts["CLEAN"], parts["CLEAN"])
    check("unlimited" in parts["LIMITS"] and "1 received" in parts["LIMITS"], parts["LIMITS"])
    check(parts["LONG"] == "x" * 1000000 + "\n", f"{len(parts['LONG'])} characters")


def test_two_hosts_with_iwarp():
    with tempfile.TemporaryDirectory() as folder:
        with open(os.path.join(folder, "from-outside"), "w", encoding="utf-8") as file:
            file.write("outside\n")
        ended = run(IWARP, device="siw", options=["--mtu=4200", f"--folder={folder}"])
        check(ended.status == 0, f"status {ended.status}: {ended.output}\n{ended.errors}")
        parts = sections(ended.output)
        check_devices(parts["DEVICES"], "siw")
        check_bandwidth(parts["SEND"])
        check("rdma-ping-1" in parts["IPV6"], parts["IPV6"])
        check(parts["FILES"] == "/host\noutside\n", parts["FILES"])
        with open(os.path.join(folder, "from-inside"), encoding="utf-8") as file:
            check(file.read() == "inside\n", "what the guest wrote")


def test_the_build_runs_inside():
    ended = run("haul-info", programs=["bench/haul-info"])
    check(ended.status == 0 and "tcp" in ended.output, f"{ended.output}\n{ended.errors}")


def test_a_machine_that_dies_is_told():
    ended = run("echo before; sleep 0.5; echo c >/proc/sysrq-trigger; sleep 60")
    check(ended.status == FAILED_STATUS, f"status {ended.status}: {ended.errors}")
    check(ended.output == "before\n", ended.output)
    check("Kernel panic" in ended.errors, ended.errors)


def test_a_run_that_takes_too_long_leaves_nothing():
    with tempfile.TemporaryDirectory() as folder:
        ended = run("sleep 1000", seconds=9, environment={"TMPDIR": folder})
        check(ended.status == TIME_OUT_STATUS, f"status {ended.status}: {ended.errors}")
        check("within 9 s" in ended.errors, ended.errors)
        check("Show Blocked State" in ended.errors, f"not who hangs: {ended.errors}")
        check(os.listdir(folder) == [], f"left: {os.listdir(folder)}")


def test_a_run_that_is_stopped_leaves_nothing():
    with tempfile.TemporaryDirectory() as folder:
        with machine("sleep 1000", environment={"TMPDIR": folder}) as running:
            wait_until(lambda: has_booted(folder), 60, "QEMU starts")
            children = descendants(running.pid)
            check(any("qemu" in name for name in children.values()), f"{children}")
        check(os.listdir(folder) == [], f"left: {os.listdir(folder)}")
        for pid in children:
            check(not os.path.exists(f"/proc/{pid}"), f"{children[pid]} still runs")


def has_booted(folder):
    """Has the guest's kernel begun to write to the console?"""
    consoles = [os.path.join(folder, name, "console") for name in os.listdir(folder)]
    return any(os.path.exists(console) and os.path.getsize(console) for console in consoles)


def descendants(pid):
    """The names of the processes that a process started, and those started, by number."""
    with open(f"/proc/{pid}/task/{pid}/children", encoding="ascii") as file:
        children = [int(word) for word in file.read().split()]
    names = {}
    for child in children:
        with open(f"/proc/{child}/comm", encoding="ascii") as file:
            names[child] = file.read().strip()
        names.update(descendants(child))
    return names


main(globals())
