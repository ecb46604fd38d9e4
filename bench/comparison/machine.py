# SPDX-License-Identifier: Apache-2.0
"""This machine: packages, the build, the transports that can run here, its description."""

import json
import os
import platform
import shutil
import subprocess
import tempfile
from dataclasses import dataclass

from processes import Failure, Program, run

SOURCE = os.path.abspath(os.path.join(os.path.dirname(__file__), "..", ".."))
BUILD_SECONDS = 900
# By itself, grpc has the single socket that gRPC programs have.
GRPC_WITH_MORE_SOCKETS = "grpc,channels=8"


@dataclass(frozen=True)
class Programs:
    build: str     # the folder that has them
    server: str
    client: str
    info: str
    grpc_raw: str | None  # built where gRPC is


def install_packages(settings):
    arguments = ["--no-install"] if settings.no_install else []
    groups = ["testbed", "compare"] if settings.build else ["build", "testbed", "compare"]
    if any(spec.split(",")[0] == "verbs" for spec in [*(settings.transports or []),
                                                      *settings.specs]):
        groups.append("rdma")
    # It says itself what it installs, or what is missing.
    done = subprocess.run([os.path.join(SOURCE, ".ci", "install-packages"), *arguments, *groups],
                          stdin=subprocess.DEVNULL, check=False)
    if done.returncode != 0:
        raise Failure("Without these packages nothing can be compared.")
    if settings.ucx and not shutil.which("ucx_perftest"):
        raise Failure("--ucx needs ucx_perftest: apt-get install ucx-utils")


def build_folder(settings):
    return settings.build or os.path.join(SOURCE, "build-compare")


def build(settings, console):
    folder = build_folder(settings)
    if not settings.build:
        console.step(f"Building in {folder}")
        if not os.path.isfile(os.path.join(folder, "build.ninja")):
            run(["meson", "setup", "--buildtype=release", "-Dtests=disabled", folder, SOURCE],
                BUILD_SECONDS)
        run(["meson", "compile", "-C", folder], BUILD_SECONDS)
    needed = [os.path.join(folder, "bench", name) for name in
              ("haul-bench-server", "haul-bench-client", "haul-info")]
    for program in needed:
        if not os.access(program, os.X_OK):
            raise Failure(f"{program} is missing: build it with meson compile -C {folder}")
    grpc_raw = os.path.join(folder, "bench", "grpc_raw")
    # Modules that are built and not installed.
    os.environ.setdefault("HAUL_MODULE_PATH",
                          ":".join(os.path.join(folder, name) for name in
                                   ("verbs", "dpdk", "grpc_compat")))
    return Programs(folder, *needed, grpc_raw if os.access(grpc_raw, os.X_OK) else None)


def transports_here(programs):
    """Every transport that is built: its name, and why it can't run here, or None."""
    return {transport["name"]: None if transport["available"] else transport["reason"]
            for transport in ask_info(programs)["transports"]}


def ask_info(programs):
    return json.loads(run([programs.info, "--json"], 30))


def choose_specs(settings, programs, console):
    """The specs to compare; what was asked for by name has to be able to run."""
    here = transports_here(programs)
    asked = list(settings.transports or [])
    for name in [*asked, *(spec.split(",")[0] for spec in settings.specs)]:
        if name not in here:
            raise Failure(f"The transport {name} is not built: {', '.join(here)} are.")
        # What needs an adapter that this host lacks has a machine of its own.
        if here[name] and name != "verbs":
            raise Failure(f"The transport {name} can't run here: {here[name]}")
    if settings.transports is None and not settings.specs:
        asked = [name for name, reason in here.items() if not reason]
        if "grpc" in asked:
            asked.append(GRPC_WITH_MORE_SOCKETS)
        left_out = [name for name, reason in here.items() if reason]
        if left_out:
            console.say(f"Left out, since they can't run here: {', '.join(left_out)} "
                        f"({programs.info} tells why)")
        if not asked:
            raise Failure("No transport can run here.")
    for spec in settings.specs:
        if not here[spec.split(",")[0]]:
            check_spec(spec, programs)
    return list(dict.fromkeys([*asked, *settings.specs]))


def lacks_adapter(spec, programs):
    """verbs on a host without an RDMA device."""
    return spec.split(",")[0] == "verbs" and transports_here(programs)["verbs"] is not None


def check_spec(spec, programs):
    """A server that gets ready with it, and ends."""
    if spec.split(",")[0] == "dpdk":
        return  # its ports are made later, with the hosts
    with tempfile.TemporaryDirectory() as folder:
        address_file = os.path.join(folder, "address")
        with Program([programs.server, f"--transport={spec}", "--listen=127.0.0.1:0",
                      f"--address-file={address_file}"]) as server:
            server.wait_for_file(address_file)


def read_first_line(path, fallback="unknown"):
    try:
        with open(path, encoding="utf-8") as file:
            return file.readline().strip()
    except OSError:
        return fallback


def cpu_model():
    with open("/proc/cpuinfo", encoding="utf-8") as file:
        for line in file:
            if line.startswith("model name"):
                return line.split(":", 1)[1].strip()
    return platform.machine()


def memory_gib():
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30


def operating_system():
    try:
        return platform.freedesktop_os_release()["PRETTY_NAME"]
    except OSError:
        return platform.system()


def describe(programs):
    """What a reader of the report has to know about this machine."""
    ipv4 = "/proc/sys/net/ipv4"
    return {
        "CPU": f"{cpu_model()}, {len(os.sched_getaffinity(0))} cores",
        "Memory": f"{memory_gib():.0f} GiB",
        "System": f"{operating_system()}, Linux {platform.release()}",
        "Congestion control": f"{read_first_line(f'{ipv4}/tcp_congestion_control')} by default; "
                              f"{read_first_line(f'{ipv4}/tcp_available_congestion_control')}"
                              " available",
        "Socket buffers": f"receive {read_first_line(f'{ipv4}/tcp_rmem')}; "
                          f"send {read_first_line(f'{ipv4}/tcp_wmem')} bytes "
                          "(least, first, most)",
        "iperf3": run(["iperf3", "--version"], 10).split(" (")[0].replace("iperf ", ""),
        "tensorhaul": ask_info(programs)["version"],
    }
