# SPDX-License-Identifier: Apache-2.0
"""The two ends of a connection that the tests play with: programs of probe.c on the hosts."""

import contextlib
import re
from dataclasses import dataclass

from harness import check, program, sanitizer
from processes import Failure

PATIENCE_SECONDS = 60


@dataclass
class Results:
    succeeded: int
    failed: int
    wrong: int
    first_ms: int
    last_ms: int
    errors: dict


class Probe:
    def __init__(self, running):
        self._running = running
        self.spec = self.answer()

    def say(self, command):
        self._running.say(command)

    def answer(self, seconds=PATIENCE_SECONDS):
        status, _, text = self._running.read_line(seconds).partition(" ")
        if status != "ok":
            raise Failure(text)
        return text

    def ask(self, command, seconds=PATIENCE_SECONDS):
        self.say(command)
        return self.answer(seconds)

    def send(self, key, size, count, timeout_ms=0):
        self.ask(f"send {key} {size} {count} {timeout_ms}")

    def recv(self, key, size, count, timeout_ms=0):
        self.ask(f"recv {key} {size} {count} {timeout_ms}")

    def results(self, seconds=PATIENCE_SECONDS):
        """When all that was started has ended."""
        *numbers, errors = re.fullmatch(r"(\d+) (\d+) (\d+) (\d+) (\d+)(.*)",
                                        self.ask("results", seconds)).groups()
        return Results(*map(int, numbers), {name: int(count) for name, count in (
            error.split("=") for error in errors.split())})

    def statistics(self):
        return {name: int(value) for name, value in (
            pair.split("=") for pair in self.ask("statistics").split())}


@contextlib.contextmanager
def probe_on(hosts, host, options=""):
    # Otherwise there is one thread, and nothing for the thread sanitizer to see.
    progress = "thread" if sanitizer() == "thread" else "caller"
    spec = ",".join(filter(None, ("tcp", f"progress={progress}", options)))
    with hosts.start(host, [program("tests/testbed/probe"), spec], takes_input=True) as running:
        yield Probe(running)


@contextlib.contextmanager
def connected(hosts, options="", address=None):
    """Two probes, the first on host A; it connected to the second, on host B."""
    with probe_on(hosts, "A", options) as a, probe_on(hosts, "B", options) as b:
        where = b.ask(f"listen {address or hosts.address('B') + ':0'}")
        a.ask(f"connect {where}")
        b.ask("accept")
        yield a, b


def exchange(sender, receiver, size, count, key="tensor"):
    """Tensors from one to the other; all have to arrive, with the right bytes.

    Answers the sender's results: its clock starts when everything is ready.
    """
    receiver.recv(key, size, count)
    sender.send(key, size, count)
    sent, received = sender.results(), receiver.results()
    check(sent.succeeded == received.succeeded == count, f"of {count}: {sent}, {received}")
    check(received.wrong == 0, f"wrong bytes in {received.wrong} of {count}")
    return sent


def connections(hosts, host):
    """The established TCP connections of a host: (own port, bytes sent)."""
    text = hosts.run(host, ["ss", "--tcp", "--numeric", "--no-header", "--info", "--oneline",
                            "state", "established"], 10)
    found = []
    for line in text.splitlines():
        sent = re.search(r"bytes_sent:(\d+)", line)
        found.append((int(line.split()[2].rpartition(":")[2]), int(sent[1]) if sent else 0))
    return found
