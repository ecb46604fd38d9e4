# SPDX-License-Identifier: Apache-2.0
"""What every testbed test stands on: cases, skips, and programs on the two hosts.

A test is a Python program whose functions test_* are its cases. It prints what cmocka
prints, so that tests/run counts it the same way, and ends with 77 when all are skipped.
"""

import os
import sys
import time
import traceback

SOURCE = os.path.abspath(os.path.join(os.path.dirname(__file__), "..", ".."))
BUILD = os.environ.get("TENSORHAUL_BUILD", os.path.join(SOURCE, "build"))
sys.path.append(os.path.join(SOURCE, "bench", "testbed"))

# The tests import hosts and processes from there too.
from processes import Failure, Interrupted, interruption  # noqa: E402

SKIPPED_STATUS = 77


class Skip(Exception):
    """The case can't run here; the text says why."""


def require_root():
    if os.geteuid() != 0:
        raise Skip("network namespaces need root")


def program(name):
    """A program of the build, or a skip when it was not built."""
    path = os.path.join(BUILD, name)
    if not os.access(path, os.X_OK):
        raise Skip(f"{name} was not built in {BUILD}")
    return path


def sanitizer():
    """Meson's b_sanitize. What is slowed down by one says nothing about speed."""
    return os.environ.get("TENSORHAUL_SANITIZE", "none")


def is_sanitized():
    return sanitizer() != "none"


def check(condition, text):
    if not condition:
        raise AssertionError(text)


def wait_until(is_so, seconds, what):
    """Asks again and again, until it is so."""
    deadline = time.monotonic() + seconds
    while not is_so():
        check(time.monotonic() < deadline, f"not within {seconds} s: {what}")
        time.sleep(0.01)


def run_case(name, case):
    print(f"[ RUN      ] {name}", flush=True)
    try:
        case()
    except Skip as skip:
        print(f"SKIP: {skip}\n[  SKIPPED ] {name}", flush=True)
        return "skipped"
    except (AssertionError, Failure) as failure:
        traceback.print_exception(failure, file=sys.stdout)
        print(f"[  FAILED  ] {name}", flush=True)
        return "failed"
    print(f"[       OK ] {name}", flush=True)
    return "passed"


def main(namespace):
    """Runs the cases of a test's globals(), or those named on the command line."""
    wanted = sys.argv[1:]
    cases = {name: case for name, case in namespace.items()
             if name.startswith("test_") and (not wanted or name in wanted)}
    interruption.install()
    try:
        results = [run_case(name, case) for name, case in cases.items()]
    except Interrupted as interrupted:
        sys.exit(128 + interrupted.number)
    if "failed" in results:
        sys.exit(1)
    sys.exit(SKIPPED_STATUS if set(results) == {"skipped"} else 0)
