# SPDX-License-Identifier: Apache-2.0
"""Which addresses and interfaces a connection takes."""

from harness import check, main, require_root
from hosts import Hosts
from probes import connected, exchange, probe_on
from processes import Failure

MIB = 2**20


def add_bridges(hosts, host):
    """What container runtimes and link-local configuration put on a host."""
    for name, address in (("docker0", "172.17.0.1/16"), ("virbr0", "169.254.7.7/16"),
                          ("aaa0", "10.0.0.1/8")):
        hosts.run(host, ["ip", "link", "add", name, "type", "bridge"], 10)
        hosts.run(host, ["ip", "address", "add", address, "dev", name], 10)
        hosts.run(host, ["ip", "link", "set", name, "up"], 10)


def established(hosts, host):
    text = hosts.run(host, ["ss", "--tcp", "--numeric", "--no-header", "state", "established"], 10)
    return [line.split()[2:4] for line in text.splitlines()]


def test_bridges_are_not_taken():
    """Field case F22: docker0, loopback or 169.254.x was chosen."""
    require_root()
    with Hosts() as hosts:
        for host in "AB":
            add_bridges(hosts, host)
        for address in (None, "*:0"):
            with probe_on(hosts, "A", "streams=4") as a, probe_on(hosts, "B", "streams=4") as b:
                where = b.ask(f"listen {address or hosts.address('B') + ':0'}")
                a.ask(f"connect {hosts.address('B')}:{where.rpartition(':')[2]}")
                b.ask("accept")
                exchange(a, b, 8 * MIB, 8)
                exchange(b, a, 8 * MIB, 8)
                pairs = established(hosts, "A")
                check(len(pairs) >= 4, f"connections: {pairs}")
                for own, peer in pairs:
                    check(hosts.address("A") in own and hosts.address("B") in peer, f"{pairs}")


def test_ipv6():
    require_root()
    with Hosts() as hosts, connected(hosts, address=f"[{hosts.address('B', 6)}]:0") as (a, b):
        exchange(a, b, 8 * MIB, 4)


def link_local_address(hosts, host):
    text = hosts.run(host, ["ip", "-6", "-oneline", "address", "show", "dev", "eth0", "scope",
                            "link"], 10)
    return text.split("inet6 ")[1].split("/")[0]


def test_ipv6_with_a_scope():
    require_root()
    with Hosts() as hosts:
        address = f"[{link_local_address(hosts, 'B')}%eth0]:0"
        with connected(hosts, address=address) as (a, b):
            exchange(a, b, 8 * MIB, 4)


def test_interface_and_bind():
    require_root()
    with Hosts() as hosts:
        add_bridges(hosts, "A")
        hosts.run("A", ["ip", "address", "add", "198.18.0.77/24", "dev", "eth0"], 10)
        with probe_on(hosts, "B") as b:
            where = b.ask(f"listen {hosts.address('B')}:0")
            with probe_on(hosts, "A", "bind=198.18.0.77") as a:
                a.ask(f"connect {where}")
                check(b.ask("accept").startswith("198.18.0.77:"), "the bound address is not used")
            with probe_on(hosts, "A", "interface=docker0,connect_ms=1000") as a:
                try:
                    a.ask(f"connect {where}")
                except Failure as failure:
                    check("docker0" in str(failure) or "ETIMEDOUT" in str(failure)
                          or "UNREACH" in str(failure), failure)
                else:
                    check(False, "connected through docker0")


main(globals())
