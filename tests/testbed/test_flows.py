# SPDX-License-Identifier: Apache-2.0
"""What becomes of a transfer when one of its sockets is slow, or breaks."""

from harness import Skip, check, is_sanitized, main, require_root
from hosts import Hosts
from probes import connected, connections, exchange
from processes import Failure

MIB = 2**20


def sent_by_port(hosts):
    return dict(connections(hosts, "A"))


def busiest_port(hosts):
    """Host A's port of the connection that has sent most: one of those for large tensors."""
    sent = sent_by_port(hosts)
    return max(sent, key=sent.get)


def gbps(results, size, count):
    return size * count * 8 / results.last_ms / 1e6


def test_one_slow_socket_does_not_hold_up_the_others():
    """Field case F33: with a fixed share for each socket, four of them would reach 0.4 Gb/s."""
    require_root()
    if is_sanitized():
        raise Skip("a sanitizer's speed says nothing")
    with Hosts(rate="2gbit", mtu=9000) as hosts, connected(hosts, "streams=4") as (a, b):
        exchange(a, b, 32 * MIB, 8)
        slow_port = busiest_port(hosts)
        hosts.change("throttle", slow_port, "100mbit")
        before, count = sent_by_port(hosts), 24
        goodput = gbps(exchange(a, b, 32 * MIB, count), 32 * MIB, count)
        check(goodput > 0.45, f"{goodput:.2f} Gb/s of 2, with one socket of four at 0.1")
        shares = {port: sent - before.get(port, 0) for port, sent in sent_by_port(hosts).items()}
        check(shares[slow_port] < sum(shares.values()) / 6,
              f"port {slow_port} at 0.1 Gb/s of 2 took as much as the others: {shares}")


def test_a_socket_that_breaks_is_replaced():
    require_root()
    with Hosts(rate="1gbit", mtu=9000) as hosts, connected(hosts, "streams=4") as (a, b):
        exchange(a, b, 8 * MIB, 8)
        before = len(connections(hosts, "A"))
        b.recv("tensor", 16 * MIB, 12)
        a.send("tensor", 16 * MIB, 12)
        hosts.run("A", ["ss", "--kill", "--tcp", "sport", "=", f":{busiest_port(hosts)}"], 10)
        sent, received = a.results(), b.results()
        check(sent.succeeded == received.succeeded == 12, f"{sent}, {received}")
        check(received.wrong == 0, f"{received}")
        exchange(b, a, 8 * MIB, 4)
        statistics = a.statistics()
        check(statistics["replaced"] >= 1, f"{statistics}")
        check(len(connections(hosts, "A")) >= before - 1, f"{connections(hosts, 'A')}")


def test_streams_auto_does_not_run_away_on_a_clean_path():
    require_root()
    if is_sanitized():
        raise Skip("a sanitizer's speed says nothing")
    with Hosts(rate="1gbit", mtu=9000) as hosts, connected(hosts) as (a, b):
        exchange(a, b, 32 * MIB, 8)
        streams = a.statistics()["streams"]
        check(streams <= 16, f"{streams} streams where one fills the link")


def test_streams_auto_adds_some_on_a_lossy_path():
    require_root()
    if is_sanitized():
        raise Skip("a sanitizer's speed says nothing")
    # cubic, with which one socket reaches a seventh of the link.
    with Hosts(rate="1gbit", mtu=1500, loss=0.01) as hosts, \
            connected(hosts, "congestion=cubic") as (a, b):
        exchange(a, b, 32 * MIB, 10)
        streams = a.statistics()["streams"]
        check(streams > 1, f"{streams} stream where one reaches 0.14 of 1 Gb/s")


def test_port_range():
    """Field case F25: a firewall that lets ten ports through needs no eleventh."""
    require_root()
    low, high = 41000, 41001
    with Hosts() as hosts, connected(hosts, f"ports={low}-{high}") as (a, b):
        exchange(a, b, 8 * MIB, 8)
        ports = {port for port, _ in connections(hosts, "B")}
        check(ports <= {low, high}, f"host B uses ports {ports}")
        b.ask(f"listen {hosts.address('B')}:0")
        try:
            b.ask(f"listen {hosts.address('B')}:0")
        except Failure as failure:
            check("EADDRINUSE" in str(failure) and f"{low}-{high}" in str(failure), failure)
        else:
            check(False, "three listeners on two ports")


main(globals())
