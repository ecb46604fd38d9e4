# SPDX-License-Identifier: Apache-2.0
"""What the user asked for. Every value is checked here, before anything is set up."""

import argparse
import os
import re
from dataclasses import dataclass

TRANSPORT_NAMES = ("tcp", "grpc", "verbs", "dpdk")
EXPERIMENTS = ("goodput", "small", "clients")
CLEAN_AND_LOSSY = (0.0, 0.01)
SWEEP_SIZES = "4KiB,64KiB,1MiB,10MiB,100MiB"
SIZE_UNITS = {
    "": 1, "B": 1,
    "KB": 10**3, "MB": 10**6, "GB": 10**9,
    "KiB": 2**10, "MiB": 2**20, "GiB": 2**30,
}
RATE_UNITS = {"kbit": 1e3, "mbit": 1e6, "gbit": 1e9}

DESCRIPTION = """\
Compare tensorhaul with one TCP socket, with iperf3 and with gRPC.

Makes two hosts on this machine (network namespaces, joined by a wire of a set rate
and loss), runs all of them over it in alternating rounds, prints a table, writes a
report, and takes everything down again. Needs root."""


@dataclass(frozen=True)
class Rate:
    text: str
    gbps: float


def parse_size(text):
    match = re.fullmatch(r"(\d+)([A-Za-z]*)", text)
    if not match or match[2] not in SIZE_UNITS:
        raise argparse.ArgumentTypeError(
            f"'{text}' is no size: a whole number, with {', '.join(filter(None, SIZE_UNITS))} "
            "or no unit for bytes, as in 100MiB")
    size = int(match[1]) * SIZE_UNITS[match[2]]
    if not 1 <= size <= 2**40:
        raise argparse.ArgumentTypeError(f"'{text}' is out of range: 1 B to 1024GiB")
    return size


def parse_sizes(text):
    return sorted({parse_size(size) for size in text.split(",")}) if text else []


def parse_rate(text):
    match = re.fullmatch(r"(\d+(?:\.\d+)?)(kbit|mbit|gbit)", text)
    if not match:
        raise argparse.ArgumentTypeError(
            f"'{text}' is no rate: a number with kbit, mbit or gbit, as in 10gbit")
    bits = float(match[1]) * RATE_UNITS[match[2]]
    if not 1e6 <= bits <= 1e12:
        raise argparse.ArgumentTypeError(f"'{text}' is out of range: 1mbit to 1000gbit")
    return Rate(text, bits / 1e9)


def parse_loss(text):
    if not re.fullmatch(r"\d*\.?\d+", text) or not 0 <= float(text) < 1:
        raise argparse.ArgumentTypeError(
            f"'{text}' is no loss: a fraction from 0 to below 1, as in 0.01")
    return float(text)


def whole_number(low, high):
    def parse(text):
        if not re.fullmatch(r"\d{1,9}", text) or not low <= int(text) <= high:
            raise argparse.ArgumentTypeError(
                f"'{text}' is not valid: a whole number from {low} to {high}")
        return int(text)
    return parse


def seconds_from(low):
    def parse(text):
        if not re.fullmatch(r"\d+(\.\d+)?", text) or not low <= float(text) <= 3600:
            raise argparse.ArgumentTypeError(f"'{text}' is not valid: {low:g} to 3600 seconds")
        return float(text)
    return parse


parse_seconds = seconds_from(0.5)


def check_transport_name(name):
    if name not in TRANSPORT_NAMES:
        raise argparse.ArgumentTypeError(
            f"'{name}' is no transport: {', '.join(TRANSPORT_NAMES)} are")


def parse_transport_names(text):
    names = text.split(",")
    for name in names:
        check_transport_name(name)
    return list(dict.fromkeys(names))


def parse_experiments(text):
    names = text.split(",")
    for name in names:
        if name not in EXPERIMENTS:
            raise argparse.ArgumentTypeError(
                f"'{name}' is no experiment: {', '.join(EXPERIMENTS)} are")
    return [name for name in EXPERIMENTS if name in names]


def parse_transport_spec(text):
    check_transport_name(text.split(",")[0])
    return text


def parse_build_folder(text):
    if not os.path.isfile(os.path.join(text, "build.ninja")):
        raise argparse.ArgumentTypeError(f"'{text}' is no folder that meson has set up")
    return os.path.abspath(text)


def make_parser():
    parser = argparse.ArgumentParser(
        prog="compare", usage="sudo bench/compare [OPTION...]", description=DESCRIPTION,
        allow_abbrev=False,
        formatter_class=argparse.RawDescriptionHelpFormatter)
    what = parser.add_argument_group("what is compared")
    what.add_argument(
        "--transports", metavar="LIST", type=parse_transport_names,
        help=f"names, separated by commas: {', '.join(TRANSPORT_NAMES)} [all that are built and "
             "can run here, and with grpc also grpc,channels=8]; verbs, on a host without an RDMA "
             "device, in an emulated machine")
    what.add_argument(
        "--transport", metavar="SPEC", dest="specs", type=parse_transport_spec, action="append",
        default=[], help="a whole transport spec, as in tcp,streams=4; may be repeated")
    what.add_argument(
        "--experiments", metavar="LIST", type=parse_experiments, default=",".join(EXPERIMENTS),
        help="goodput: tensors and their latency on each path; small: 64 B and 16 KiB with 1 to "
             "1000 in flight, and at a set rate; clients: 1 to 64 clients of one server, on a link "
             f"of at most 1 Gb/s [{','.join(EXPERIMENTS)}]")
    what.add_argument("--ucx", action="store_true",
                      help="UCX over tcp as well (Debian: ucx-utils) [no]")
    what.add_argument(
        "--iperf3-sweep", action="store_true",
        help="iperf3 with 1, 8, 16 and 32 sockets, cubic and bbr as well [no]")
    path = parser.add_argument_group("the path")
    path.add_argument("--rate", type=parse_rate, default="10gbit",
                      help="line rate, with kbit, mbit or gbit [10gbit]")
    path.add_argument("--mtu", type=whole_number(1280, 65535), default=9000, metavar="BYTES",
                      help="1280 to 65535 [9000]")
    path.add_argument(
        "--loss", type=parse_loss, action="append", dest="losses", metavar="FRACTION",
        help="fraction of the packets that get lost, each way; may be repeated: each is a path "
             "[0 and 0.01]")
    how = parser.add_argument_group("how it is measured")
    how.add_argument("--size", type=parse_size, default="100MiB",
                     help="bytes of a tensor [100MiB]")
    how.add_argument(
        "--sizes", type=parse_sizes, default=SWEEP_SIZES, metavar="LIST",
        help=f"further sizes, measured once each for the report; empty: none [{SWEEP_SIZES}]")
    how.add_argument("--seconds", type=parse_seconds, default=2.0,
                     help="length of one measurement, 0.5 to 3600; iperf3 takes whole "
                          "seconds [2]")
    how.add_argument("--rounds", type=whole_number(1, 1000), default=3,
                     help="how often each is measured, 1 to 1000 [3]")
    output = parser.add_argument_group("results")
    output.add_argument("--json", metavar="FILE", help="write the results; -: to the standard "
                        "output, the table then goes to the standard error [no]")
    output.add_argument("--report", metavar="DIR",
                        help="folder for the report [report in the build folder]")
    machine = parser.add_argument_group("this machine")
    machine.add_argument(
        "--build", metavar="DIR", type=parse_build_folder,
        help="take the programs from this build folder as they are [build-compare in the source "
             "tree, built when it has to be]")
    machine.add_argument("--no-install", action="store_true",
                         help="never install Debian packages: say which are missing, and stop [no]")
    return parser


def parse(arguments):
    settings = make_parser().parse_args(arguments)
    if not settings.losses:
        settings.losses = list(CLEAN_AND_LOSSY)
    settings.losses = list(dict.fromkeys(settings.losses))
    return settings
