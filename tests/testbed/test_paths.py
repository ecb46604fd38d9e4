# SPDX-License-Identifier: Apache-2.0
"""What becomes of tensors when the path between the hosts loses packets, or is cut."""

from harness import check, main, require_root
from hosts import Hosts
from probes import connected, exchange

MIB = 2**20
# Above what the library's own clocks are set to: for a busy machine.
SLACK_MS = 3000


def check_counts(results, count):
    check(results.succeeded + results.failed == count,
          f"{count} were started, and these completed: {results}")
    check(results.wrong == 0, f"wrong bytes: {results}")


def test_all_tensors_arrive_over_a_lossy_path():
    require_root()
    with Hosts(rate="10gbit", mtu=9000, loss=0.01) as hosts, connected(hosts) as (a, b):
        exchange(a, b, 16 * MIB, 8)
        exchange(b, a, 1000, 2000)
        exchange(b, a, MIB + 1, 16)


def test_all_tensors_arrive_when_the_path_changes():
    require_root()
    with Hosts(rate="1gbit", mtu=1500) as hosts, connected(hosts) as (a, b):
        b.recv("tensor", 4 * MIB, 40)
        a.send("tensor", 4 * MIB, 40)
        for change in (("loss", 0.05), ("rate", "200mbit"), ("loss", 0), ("rate", "2gbit")):
            hosts.change(*change)
        sent, received = a.results(), b.results()
        check(sent.succeeded == received.succeeded == 40, f"{sent}, {received}")
        check(received.wrong == 0, f"{received}")


def test_a_cut_cable_loses_the_peer():
    """Both sides notice within peer_ms, and all that was outstanding ends once."""
    require_root()
    with Hosts(rate="500mbit") as hosts, connected(hosts, "peer_ms=1500") as (a, b):
        for probe in (a, b):
            # One in transit each way, many that wait, and some that nobody will match.
            probe.recv("flow", 8 * MIB, 12)
            probe.recv("never", 8, 100)
        for probe in (a, b):
            probe.send("flow", 8 * MIB, 12)
            probe.send("unwanted", 8, 100)
        hosts.change("cut")
        for probe in (a, b):
            name, delay_ms = probe.ask("lost").split()
            check(name in ("ETIMEDOUT", "ECONNRESET"), f"lost with {name}")
            check(int(delay_ms) <= 1500 + SLACK_MS, f"noticed after {delay_ms} ms")
            results = probe.results()
            check_counts(results, 224)
            check(set(results.errors) <= {"ETIMEDOUT", "ECONNRESET"}, f"{results}")


def test_a_cable_mended_in_time_loses_nothing():
    require_root()
    with Hosts(rate="500mbit") as hosts, connected(hosts, "peer_ms=20000") as (a, b):
        b.recv("tensor", 8 * MIB, 12)
        a.send("tensor", 8 * MIB, 12)
        hosts.change("cut")
        a.ask("sleep 500")
        hosts.change("mend")
        sent, received = a.results(), b.results()
        check(sent.succeeded == received.succeeded == 12, f"{sent}, {received}")
        check(received.wrong == 0, f"{received}")
        exchange(b, a, MIB, 4)


def test_deadlines_hold_when_every_packet_is_dropped():
    """Field case F14: no operation stays pending for ever."""
    require_root()
    with Hosts() as hosts, connected(hosts, "peer_ms=4000") as (a, b):
        exchange(a, b, MIB, 2)
        b.recv("flow", 16 * MIB, 4)
        hosts.change("loss", 1)
        # These have no peer to wait for; the others' bytes or answers never come.
        a.send("unwanted", 8, 100, 500)
        a.send("flow", 16 * MIB, 4, 500)
        a.recv("never", 8, 100, 500)
        results = a.results()
        check_counts(results, 204)
        check(results.succeeded == 0, f"{results}")
        check(set(results.errors) <= {"ETIMEDOUT", "ECONNRESET"}, f"{results}")
        check(500 <= results.first_ms <= 500 + SLACK_MS, f"first after {results.first_ms} ms")
        check(results.last_ms <= 500 + 4000 + SLACK_MS, f"last after {results.last_ms} ms")


def test_no_answer_to_a_connect_is_a_timeout():
    """Field case F25: a firewall drops everything; the error names address and port."""
    require_root()
    with Hosts() as hosts, connected(hosts, "connect_ms=1000") as (a, b):
        where = b.ask(f"listen {hosts.address('B')}:0")
        hosts.change("loss", 1)
        try:
            a.ask(f"connect {where}")
        except Exception as failure:
            text = str(failure)
        else:
            text = "it connected"
        check(text.startswith("ETIMEDOUT") and where in text, text)


def test_a_peer_that_computes_lives():
    """Slow is not dead: its kernel answers for it."""
    require_root()
    with Hosts() as hosts, connected(hosts, "peer_ms=1000") as (a, b):
        b.say("sleep 3000")
        a.recv("later", MIB, 2)
        a.send("tensor", MIB, 2)
        b.answer()
        b.recv("tensor", MIB, 2)
        b.send("later", MIB, 2)
        for probe in (a, b):
            results = probe.results()
            check(results.succeeded == 4 and results.wrong == 0, f"{results}")


main(globals())
