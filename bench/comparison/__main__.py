# SPDX-License-Identifier: Apache-2.0
"""bench/compare: see --help."""

import os
import sys

sys.path.append(os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "testbed"))

import machine
import options
import output_files
import rdma_machine
import report
from console import Console, complain
from many_clients import ManyClients
from path_runner import PathRunner, say_what_comes
from processes import Failure, Interrupted, interruption
from results import path_as_json
from small_messages import SmallMessages
from summary import path_table

EXIT_FAILED = 1
EXIT_USAGE = 2
# The experiments beside the goodput of each path, in the order in which they run.
OTHERS = {"small": SmallMessages, "clients": ManyClients}


def compare(settings):
    console = Console(sys.stderr if settings.json == "-" else sys.stdout)
    report_folder = settings.report or os.path.join(machine.build_folder(settings), "report")
    machine.install_packages(settings)
    programs = machine.build(settings, console)
    specs = machine.choose_specs(settings, programs, console)
    emulated = [spec for spec in specs if machine.lacks_adapter(spec, programs)]
    specs = [spec for spec in specs if spec not in emulated]
    results = {
        "tool": "compare",
        "command": ["bench/compare", *sys.argv[1:]],
        "host": machine.describe(programs),
        "paths": [],
        "rdma_machine": None,
        **{kind.key: None for kind in OTHERS.values()},
    }
    others = [kind(settings, programs, specs, console) for name, kind in OTHERS.items()
              if specs and name in settings.experiments]
    if specs:
        say_what_comes(settings, programs, specs, others, console)
    paths, done, page, rdma = [], [], None, None
    for _ in measure(settings, programs, specs, others, results, paths, done, console):
        # What is measured is kept, whatever becomes of the rest.
        page = report.write(report_folder, settings, results, paths, done)
        output_files.keep_json(settings.json, results)
    if emulated and "goodput" in settings.experiments:
        rdma, table = rdma_machine.run(settings, programs, emulated, console)
        results["rdma_machine"] = rdma
        console.say(f"\n{table}\n")
        if page:
            page = report.write(report_folder, settings, results, paths, done)
    if settings.json:
        output_files.write_json(settings.json, results)
    if page:
        console.say(f"Report: {page}")
    failed = any(one.failures for one in [*paths, *done]) or (rdma and rdma["failures"])
    return EXIT_FAILED if failed else 0


def measure(settings, programs, specs, others, results, paths, done, console):
    """One experiment after the other; comes back whenever there are results more."""
    runner = PathRunner(settings, programs, specs, console)
    goodput = specs and "goodput" in settings.experiments
    for loss in settings.losses if goodput else ():
        paths.append(runner.run(loss))
        results["paths"].append(path_as_json(paths[-1]))
        console.say(f"\n{path_table(paths[-1])}\n")
        yield
    for one in others:
        one.run()
        done.append(one)
        results[one.key] = one.as_json()
        console.say(f"\n{one.table()}\n")
        yield


def main():
    for stream in (sys.stdout, sys.stderr):
        # A terminal that knows no µ shows something else.
        stream.reconfigure(errors="replace")
    settings = options.parse(sys.argv[1:])
    try:
        output_files.check(settings)
    except Failure as failure:
        complain(failure)
        return EXIT_USAGE
    if os.geteuid() != 0:
        complain("network namespaces need root: run it with sudo")
        return EXIT_USAGE
    interruption.install()
    try:
        return compare(settings)
    except Failure as failure:
        complain(failure)
        return EXIT_FAILED
    except Interrupted as interrupted:
        complain(f"ended by {interrupted}; the hosts are removed")
        return 128 + interrupted.number


sys.exit(main())
