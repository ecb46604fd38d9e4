# SPDX-License-Identifier: Apache-2.0
"""What the tests that need an RDMA device stand on: a command in the virtual machine.

Cases, skips and checks are those of tests/testbed/harness.py, under their names there.
"""

import functools
import importlib.util
import os
import shlex
import sys

HERE = os.path.dirname(os.path.abspath(__file__))
VM = os.path.join(HERE, "vm")
# vm's own statuses.
CANNOT_STATUS = 77
TIME_OUT_STATUS = 124
FAILED_STATUS = 125
# A set-up downloads and compiles.
SET_UP_SECONDS = 600
# vm ends by itself; this much later, it is taken for stuck.
SLACK_SECONDS = 60


def _load_testbed_harness():
    """That module has this one's name, so it can't be imported by it."""
    path = os.path.join(HERE, "..", "testbed", "harness.py")
    specification = importlib.util.spec_from_file_location("testbed_harness", path)
    module = importlib.util.module_from_spec(specification)
    sys.modules[specification.name] = module
    specification.loader.exec_module(module)
    return module


_testbed = _load_testbed_harness()
BUILD = _testbed.BUILD
Skip = _testbed.Skip
check = _testbed.check
is_sanitized = _testbed.is_sanitized
main = _testbed.main
program = _testbed.program
wait_until = _testbed.wait_until

# Found where the testbed's harness finds it.
from processes import Failure, Program  # noqa: E402


@functools.cache
def _set_up():
    """Makes what all machines share, once; answers why this machine can't, or nothing."""
    with Program([VM, "setup"]) as set_up:
        ended = set_up.wait(SET_UP_SECONDS)
    if ended.status == CANNOT_STATUS:
        return ended.errors.strip().replace("\n", "; ")
    if ended.status != 0:
        raise Failure(f"vm setup: {ended.errors.strip()}")
    return ""


def require_machine():
    """Skips the case where the virtual machine can't be made."""
    reason = _set_up()
    if reason:
        raise Skip(reason)


def library(name):
    """A library of the build, or a skip when it was not built."""
    path = os.path.join(BUILD, name)
    if not os.path.exists(path):
        raise Skip(f"{name} was not built in {BUILD}")
    return path


def machine(command, device="rxe", seconds=120, programs=(), libraries=(), options=(),
            environment=None):
    """The virtual machine as a Program that runs a shell command, a string or a list of words.

    programs and libraries are those of the build, as in programs=["bench/haul-info"].
    """
    require_machine()
    if not isinstance(command, str):
        command = shlex.join(command)
    return Program([
        VM, "run", f"--device={device}", f"--seconds={seconds}",
        *(f"--program={program(name)}" for name in programs),
        *(f"--library={library(name)}" for name in libraries),
        *options, "--", command], environment)


def run(command, seconds=120, **arguments):
    """Runs a command in a virtual machine; answers its status, output and errors."""
    with machine(command, seconds=seconds, **arguments) as running:
        return running.wait(seconds + SLACK_SECONDS)


def require_success(ended):
    """Answers the output of a command that has to end well."""
    check(ended.status == 0, f"status {ended.status}:\n{ended.output}\n{ended.errors}")
    return ended.output
