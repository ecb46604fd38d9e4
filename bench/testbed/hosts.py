# SPDX-License-Identifier: Apache-2.0
"""The two hosts that bench/testbed/hosts makes."""

import os
import subprocess
import sys

from processes import Failure, Interrupted, Program, interruption, run

HOSTS_SCRIPT = os.path.join(os.path.dirname(os.path.abspath(__file__)), "hosts")


class Hosts:
    """Host A and host B, joined by a wire; a context manager that removes them again."""

    def __init__(self, rate="10gbit", mtu=9000, loss=0, queue="host"):
        self._options = [f"--rate={rate}", f"--mtu={mtu}", f"--loss={loss:.9f}", f"--queue={queue}"]
        self.name = None

    def __enter__(self):
        try:
            # A signal waits until the hosts are whole.
            with interruption.put_off():
                self.name = self._call("make", f"--owner={os.getpid()}", *self._options)
        except Interrupted:
            self.__exit__()
            raise
        return self

    def __exit__(self, *_):
        with interruption.put_off():
            self._call("remove", self.name)

    def change(self, command, *arguments):
        """loss, rate, throttle, cut or mend, as the script's --help tells."""
        self._call(command, self.name, *map(str, arguments))

    @staticmethod
    def _call(*arguments):
        done = subprocess.run(
            [HOSTS_SCRIPT, *arguments], stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
            stderr=subprocess.PIPE, text=True, start_new_session=True, check=False)
        if done.returncode != 0:
            raise Failure(done.stderr.strip())
        # What it removed of earlier runs.
        sys.stderr.write(done.stderr)
        return done.stdout.strip()

    def _command(self, host, command):
        # What "hosts exec" does, without its shell, whose CPU time would count.
        return ["setpriv", "--pdeathsig", "KILL", "ip", "netns", "exec",
                f"{self.name}-{host.lower()}", *command]

    def start(self, host, command, environment=None, takes_input=False):
        program = Program(self._command(host, command), environment, takes_input)
        program.name = os.path.basename(command[0])
        return program

    def run(self, host, command, seconds):
        return run(self._command(host, command), seconds)

    @staticmethod
    def port_address(host):
        """Of a network card that a program drives past the host's kernel, which doesn't know it."""
        return {"A": "198.18.0.101", "B": "198.18.0.102"}[host]

    @staticmethod
    def address(host, version=4):
        return {"A4": "198.18.0.1", "B4": "198.18.0.2",
                "A6": "2001:2::1", "B6": "2001:2::2"}[f"{host}{version}"]
