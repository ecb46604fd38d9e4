# SPDX-License-Identifier: Apache-2.0
"""Programs that are started, waited for, and never left behind."""

import contextlib
import os
import selectors
import signal
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass


class Failure(Exception):
    """Something could not be done; the text says what and why."""


class Interrupted(BaseException):
    """A signal asked this program to end."""

    def __init__(self, number):
        super().__init__(signal.Signals(number).name)
        self.number = number


class Interruption:
    """Turns signals into Interrupted, at once or when a step that must be whole is done."""

    SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)

    def __init__(self):
        self._depth = 0
        self._pending = None

    def install(self):
        for number in self.SIGNALS:
            signal.signal(number, self._on_signal)

    def _on_signal(self, number, _frame):
        if self._depth:
            self._pending = number
        else:
            raise Interrupted(number)

    @contextlib.contextmanager
    def put_off(self):
        self._depth += 1
        try:
            yield
        finally:
            self._depth -= 1
        if not self._depth and self._pending is not None:
            number, self._pending = self._pending, None
            raise Interrupted(number)


interruption = Interruption()


def run_tool(name, work):
    """The end of a tool: does the work, a function; the exit status. What fails is told."""
    interruption.install()
    try:
        return work() or 0
    except Failure as failure:
        print(f"{name}: {failure}", file=sys.stderr)
        return 1
    except Interrupted as interrupted:
        return 128 + interrupted.number


@dataclass
class Ended:
    status: int
    cpu_s: float
    output: str
    errors: str


class Program:
    """A running program; as a context manager it is ended at the end of the block.

    It has a session of its own, so that a Ctrl-C reaches only this program, which
    then ends the others in order.
    """

    def __init__(self, command, environment=None, takes_input=False):
        self.name = os.path.basename(command[0])
        self._errors = tempfile.TemporaryFile("w+")
        self._output = b""
        with interruption.put_off():
            self._process = subprocess.Popen(
                command, stdin=subprocess.PIPE if takes_input else subprocess.DEVNULL,
                stdout=subprocess.PIPE, stderr=self._errors,
                env={**os.environ, "LC_ALL": "C", **(environment or {})}, start_new_session=True)
        os.set_blocking(self._process.stdout.fileno(), False)

    def __enter__(self):
        return self

    def __exit__(self, *_):
        with interruption.put_off():
            if self._process.returncode is None:
                self._end()
            self._process.stdout.close()
            if self._process.stdin:
                with contextlib.suppress(BrokenPipeError):
                    self._process.stdin.close()
            self._errors.close()

    @property
    def pid(self):
        return self._process.pid

    def say(self, line):
        """Writes a line to the program's standard input."""
        self._process.stdin.write(f"{line}\n".encode())
        self._process.stdin.flush()

    def read_line(self, seconds=20):
        """The next line that the program writes."""
        deadline = time.monotonic() + seconds
        while b"\n" not in self._output:
            if not self._read_output(deadline):
                raise Failure(f"{self.name} ended: {self.read_errors().strip()}")
        line, self._output = self._output.split(b"\n", 1)
        return line.decode(errors="replace")

    def _end(self):
        self._process.terminate()
        try:
            self._process.wait(5)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()

    def read_errors(self):
        self._errors.seek(0)
        return self._errors.read()

    def _wait_readable(self, file, deadline):
        with selectors.DefaultSelector() as selector:
            selector.register(file, selectors.EVENT_READ)
            if not selector.select(max(0, deadline - time.monotonic())):
                raise Failure(f"{self.name} did not end in time")

    def _read_output(self, deadline):
        """Waits for more output; False at its end."""
        self._wait_readable(self._process.stdout, deadline)
        more = self._process.stdout.read()
        self._output += more or b""
        return bool(more)

    def has_ended(self):
        return self._process.poll() is not None

    def wait_for_line(self, text, seconds=20):
        deadline = time.monotonic() + seconds
        while text.encode() not in self._output:
            if not self._read_output(deadline):
                raise Failure(self._why_not_ready())

    def _why_not_ready(self):
        return f"{self.name} ended before it was ready: {self.read_errors().strip()}"

    def wait_for_file(self, path, seconds=20):
        """Waits until the program has written a line to a file; answers the line."""
        deadline = time.monotonic() + seconds
        while time.monotonic() < deadline:
            with contextlib.suppress(FileNotFoundError), open(path, encoding="utf-8") as file:
                text = file.read()
                if text.endswith("\n"):
                    return text.strip()
            if self._process.poll() is not None:
                raise Failure(self._why_not_ready())
            self._wait_a_moment()
        raise Failure(f"{self.name} was not ready within {seconds} s")

    def _wait_a_moment(self):
        """Ten milliseconds, or less if the program ends."""
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._process.wait(0.01)

    def wait(self, seconds):
        """Waits for the program's end. CPU time is what the kernel charged to it."""
        deadline = time.monotonic() + seconds
        while self._read_output(deadline):
            pass
        return self._collect(deadline)

    def _collect(self, deadline):
        descriptor = os.pidfd_open(self._process.pid)
        try:
            self._wait_readable(descriptor, deadline)
        finally:
            os.close(descriptor)
        with interruption.put_off():
            _, status, usage = os.wait4(self._process.pid, 0)
            self._process.returncode = os.waitstatus_to_exitcode(status)
        return Ended(self._process.returncode, usage.ru_utime + usage.ru_stime,
                     self._output.decode(errors="replace"), self.read_errors())


def run(command, seconds=120, environment=None):
    """Runs a program to its end and answers its output; Failure unless it went well."""
    with Program(command, environment) as program:
        ended = program.wait(seconds)
    if ended.status != 0:
        text = "\n".join(filter(None, (ended.output.strip(), ended.errors.strip())))
        raise Failure(f"{program.name}: {text or f'status {ended.status}'}")
    return ended.output
