# SPDX-License-Identifier: Apache-2.0
"""The report: one HTML page with its pictures inside, and the figures beside it."""

import datetime
import os
import shlex
import string
from html import escape

import output_files
import page_parts
from charts import SCRIPTS, draw_bars, draw_latency, draw_sizes
from processes import Failure
from results import divide
from summary import COLUMNS, size_rows, summarize
from texts import gbps_text, loss_text, number_text, percent_text, rate_text, size_text

TITLE = "tensorhaul beside one TCP socket"
# Whether the goodput of paths was measured.
LEADS = {True: "Tensors of {size} from one host to another, over the same path as a plain socket, "
               "iperf3 and gRPC, in the same run.",
         False: "Tensors from one host to another, in the same run."}

METHOD = """
<p>Two hosts were made on this machine: network namespaces, joined by a wire that holds the
line rate in each direction and loses packets at the set rate. The rate counts what a real
link spends on a frame beside its content (preamble, gap, checksum), so the payload limit is
that of a real link. Segmentation and receive offload are off: one frame lost is one packet
lost.</p>
<p>The contenders ran one after the other, $rounds times around, $seconds s each. The table
has the medians of the rounds; the ratio to one socket is the median over pairs that were
measured one right after the other. <em>One TCP socket</em> is a plain blocking socket with
cubic that reads and writes 128 KiB at a time; iperf3 is the real one. <em>grpc_raw</em> is gRPC
alone: calls with messages of the tensors' size (100 MiB at most), 4 in flight on one channel or
one on each of 8, a socket for each channel. CPU seconds are what the
kernel charged to the two programs together, for each 10<sup>9</sup> bytes that arrived.
Latency is that of a ping-pong of 64 bytes, each way a tensor (a message, with gRPC): the whole
round trip. Each
measurement follows one second of the same traffic that is not measured.</p>
"""


def read(name):
    with open(os.path.join(SCRIPTS, name), encoding="utf-8") as file:
        return file.read().strip()


def short_path_text(path):
    return f"{rate_text(path.rate_gbps)}, MTU {path.mtu}, {loss_text(path.loss)}"


def card(path):
    """The path's best transport in one glance."""
    transports = [line for line in summarize(path) if line.kind == "transport" and line.goodput]
    if not transports:
        return ""
    best = max(transports, key=lambda line: line.goodput)
    facts = [f"{percent_text(divide(best.goodput, best.limit_gbps))} of what the link carries"]
    if best.ratio_to_ceiling:
        facts.insert(0, f"{number_text(best.ratio_to_ceiling, 2)} × one TCP socket")
    items = "".join(f"<li>{escape(fact)}</li>" for fact in facts)
    return (f'<div class="card"><div class="what">{escape(short_path_text(path))}</div>'
            f'<div class="value">{gbps_text(best.goodput)} <small>Gb/s, {escape(best.label)}'
            f"</small></div><ul>{items}</ul></div>")


def table(path):
    lines = summarize(path)
    return page_parts.table(COLUMNS, [line.cells() for line in lines],
                            [line.kind for line in lines])


def section(path):
    lines = summarize(path)
    where = short_path_text(path)
    cpu = {line.label: line.cpu_s_per_gb for line in lines}
    return page_parts.section(
        where,
        f"The link carries {path.limit_gbps():.3f} Gb/s of payload over TCP. "
        f"Tensors of {size_text(path.size)}.",
        page_parts.figure("Goodput", draw_bars(
            f"Goodput, {where}", lines, lambda line: line.goodputs, "Gb/s", "%.2f",
            path.limit_gbps())),
        table(path),
        page_parts.figure("Goodput over the size of a tensor", draw_sizes(
            f"Goodput over size, {where}", [transport.spec for transport in path.transports],
            size_rows(path), path.limit_gbps())),
        page_parts.figure("Latency of 64 B", draw_latency(f"Latency, {where}", lines)),
        page_parts.figure("CPU seconds for each GB, both hosts", draw_bars(
            f"CPU, {where}", lines, lambda line: [cpu[line.label]], "s/GB", "%.2f")))


def failures(paths, experiments):
    found = [*((short_path_text(path), failure) for path in paths for failure in path.failures),
             *((one.name, failure) for one in experiments for failure in one.failures)]
    if not found:
        return ""
    items = "".join(f"<li>{escape(where)}: {escape(failure)}</li>" for where, failure in found)
    return ('<div class="warning"><strong>Not everything could be measured.</strong>'
            f"<ul>{items}</ul></div>")


def make_page(settings, results, paths, experiments):
    facts = "\n".join(f'<tr><th scope="row">{escape(name)}</th><td>{escape(value)}</td></tr>'
                      for name, value in results["host"].items())
    method = string.Template(METHOD).substitute(
        rounds=settings.rounds, seconds=f"{settings.seconds:g}")
    return string.Template(read("page.html")).substitute(
        title=TITLE,
        lead=LEADS["goodput" in settings.experiments].format(size=size_text(settings.size)),
        style=read("style.css"),
        cards=f'<div class="cards">{"".join(map(card, paths))}</div>',
        failures=failures(paths, experiments),
        paths="\n".join([*map(section, paths), *(one.section() for one in experiments)]),
        method=method,
        machine=facts,
        command=escape("sudo " + shlex.join(results["command"])),
        date=f"{datetime.datetime.now():%d %B %Y, %H:%M}",
    )


def write(folder, settings, results, paths, experiments):
    """experiments are those that have been run, beside the paths. Answers the page's path."""
    page = os.path.join(folder, "index.html")
    text = make_page(settings, results, paths, experiments)
    try:
        os.makedirs(folder, exist_ok=True)
        with open(page, "w", encoding="utf-8") as file:
            file.write(text)
    except OSError as error:
        raise Failure(f"The report can't be written to {folder}: {error.strerror}") from error
    output_files.write_json(os.path.join(folder, "results.json"), results)
    return page
