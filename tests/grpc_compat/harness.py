# SPDX-License-Identifier: Apache-2.0
"""gRPC programs as processes, with the drop-in layer in front of them or without it.

DROPIN_LIBRARY is the layer, DROPIN_PROGRAMS the folder of the programs, and DROPIN_LINKED is set
when they have it linked instead of loading it (with sanitizers). DROPIN_PRELOAD is what is loaded
behind the layer.
"""

import collections
import os
import re
import signal
import subprocess
import sys
from pathlib import Path

sys.path.append(str(Path(__file__).resolve().parent.parent))

from child import Child  # noqa: E402

LIBRARY = os.environ["DROPIN_LIBRARY"]
PROGRAMS = Path(os.environ["DROPIN_PROGRAMS"])
LINKED = bool(os.environ.get("DROPIN_LINKED"))
PATIENCE = 60 + int(os.environ.get("DROPIN_CALLS", "0")) // 20


ALL = "tcp,threshold=1,wait_ms=5000,log=info"
COUNTERS = re.compile(r"aside: sent (\d+) messages, (\d+) bytes \((\d+) copied\); "
                      r"received (\d+) messages, (\d+) bytes; "
                      r"large but inline: (\d+) messages; calls failed by the side path: (\d+); "
                      r"left over: (\d+) calls, (\d+) messages, (\d+) buffers")
Counters = collections.namedtuple(
    "Counters", "sent sent_bytes copied received received_bytes inline failed calls messages buffers")
NOTHING = Counters(*[0] * 10)
Ended = collections.namedtuple("Ended", "status output errors counters")


def environment(spec):
    variables = {key: value for key, value in os.environ.items() if key != "TENSORHAUL_GRPC"}
    if spec:
        variables["TENSORHAUL_GRPC"] = spec
    if not LINKED:
        variables["LD_PRELOAD"] = " ".join([LIBRARY, os.environ.get("DROPIN_PRELOAD", "")])
    return variables


def ended(status, output, errors):
    found = COUNTERS.search(errors)
    return Ended(status, output.strip(), errors,
                 Counters(*map(int, found.groups())) if found else None)


class Server(Child):
    """A server process that says its port on its first line, and ends when its input does."""

    def __init__(self, command, spec, variables=None):
        super().__init__(command, env=variables or environment(spec), stdin=subprocess.PIPE)
        line = self.process.stdout.readline().strip()
        if not line:
            raise AssertionError(self.process.communicate(timeout=PATIENCE)[1])
        self.port = int(line)
        self.target = f"127.0.0.1:{self.port}"

    def end(self):
        output, errors = self.process.communicate(timeout=PATIENCE)
        return ended(self.process.returncode, output, errors)

    def kill(self):
        self.process.send_signal(signal.SIGKILL)
        self.process.communicate(timeout=PATIENCE)


def program(name):
    return str(PROGRAMS / (name + ("_linked" if LINKED else "")))


def echo_server(spec, queue="next", limit=-1, address=None):
    return Server([program("echo_server"), queue, str(limit), *([address] if address else [])], spec)


def echo_client(server, spec, **words):
    command = [program("echo_client"), server.target,
               *(f"{name}={value}" for name, value in words.items())]
    process = subprocess.run(command, env=environment(spec), text=True, capture_output=True,
                             timeout=PATIENCE, check=False)
    return ended(process.returncode, process.stdout, process.stderr)


def echo(server_spec, client_spec, queue="next", limit=-1, **words):
    """Both ends of one run."""
    with echo_server(server_spec, queue, limit) as server:
        client = echo_client(server, client_spec, queue=queue, **words)
        return client, server.end()
