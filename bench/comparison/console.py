# SPDX-License-Identifier: Apache-2.0
"""What the user sees while it runs: a status line on a terminal, a line for each step otherwise."""

import shutil
import sys
import time

from processes import Failure


class Console:
    def __init__(self, stream):
        self._stream = stream
        self._is_terminal = stream.isatty()
        self._has_status = False
        self._end_of_run = None

    def say(self, text=""):
        self._clear_status()
        print(text, file=self._stream, flush=True)

    def expect(self, seconds):
        """From now on it will take about this long."""
        self._end_of_run = time.monotonic() + seconds

    def step(self, text):
        """What is being done now."""
        if not self._is_terminal:
            self.say(text)
            return
        self._clear_status()
        width = shutil.get_terminal_size().columns - 1
        print((text + self._remaining())[:width], end="", file=self._stream, flush=True)
        self._has_status = True

    def done(self):
        self._clear_status()

    def attempt(self, what, measure, failures):
        """A step whose failure leaves a gap in the results, and is told."""
        self.step(f"  {what}")
        try:
            return measure()
        except Failure as failure:
            failures.append(f"{what}: {failure}")
            self.say(f"  {what} failed: {failure}")
            return {}

    def _remaining(self):
        if self._end_of_run is None:
            return " …"
        left = self._end_of_run - time.monotonic()
        return f" … about {duration_text(left)} left" if left > 1 else " …"

    def _clear_status(self):
        if self._has_status:
            print("\r\x1b[K", end="", file=self._stream, flush=True)
            self._has_status = False


def duration_text(seconds):
    seconds = max(1, round(seconds))
    return f"{seconds} s" if seconds < 100 else f"{round(seconds / 60)} min"


def complain(text):
    print(f"compare: {text}", file=sys.stderr, flush=True)
