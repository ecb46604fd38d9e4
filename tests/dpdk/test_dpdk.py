# SPDX-License-Identifier: Apache-2.0
"""The dpdk transport over virtual ports: the conformance suite, and the programs of this folder.

Over memif the ports meet at a switch of our own (wire.c), which does to frames what networks do;
over interfaces at a bridge of the kernel's (bridge), in a network namespace of its own.
"""

import contextlib
import os
import re
import sys
import tempfile
import time

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "testbed"))

from harness import (  # noqa: E402
    BUILD, Skip, check, main, program, require_root, sanitizer)
from processes import Program  # noqa: E402

HERE = os.path.dirname(os.path.abspath(__file__))
BRIDGE = os.path.join(HERE, "bridge")
SKIPPED_STATUS = 77
# Contexts at a time, of all processes; each of them has an address and a port of the switch.
NUMBERS = 32
# Those of test_tensors.c that come again under the same number.
FIXED = 2
ENVIRONMENT = {"HAUL_MODULE_PATH": os.path.join(BUILD, "dpdk")}
# Wide enough for everything below on a busy machine, with no room for a hang.
SECONDS = 900
NOBODY = ["setpriv", "--reuid=65534", "--regid=65534", "--clear-groups"]
# All of the suite but memory, whose figures are those of small rings, and what takes minutes, since
# dead peers are found out by their silence: depth (F11), expire, storm, kill (F12, F13) and stop
# (F14) are for a run by hand, over a wire: "conformance --transport=SPEC --numbers=32
# --listen-host='*' --dies-silently".
GROUPS = ("sizes,types,keys,cancel,refuse,ends,poll,completion,threads,fork,auth,resources,"
          "bad_spec,bad_address,bad_tensor,statistics")
# What the sanitizers see of it: the rest is the engine's, which they see over tcp.
SANITIZED_GROUPS = {"address,undefined": "types,keys,cancel,refuse,ends", "thread": "types,keys"}

# Each alone, in percent of the frames.
FAULTS = ("loss", "duplicate", "reorder", "truncate", "corrupt")


# ---- Networks ---------------------------------------------------------------

class Wire:
    """The switch, running; as a context manager it is ended at the end of the block."""

    def __init__(self, *settings):
        self._program = Program([program("tests/dpdk/wire"), f"ports={NUMBERS + FIXED}", *settings],
                                takes_input=True)
        self.socket = None

    def __enter__(self):
        self._program.__enter__()
        word, self.socket = self._program.read_line().split(" ", 1)
        check(word == "ready", f"the wire says {word}")
        return self

    def __exit__(self, *ended):
        self._program.__exit__(*ended)

    def _ask(self, line):
        self._program.say(line)
        return self._program.read_line()

    def set(self, **settings):
        answer = self._ask(" ".join(f"{name}={value}" for name, value in settings.items()))
        check(answer == "ok", f"the wire says {answer}")

    def counts(self):
        """Of frames, by name."""
        return {name: int(value) for name, value in re.findall(r"(\w+)=(\d+)", self._ask("stats"))}

    def spec(self, more=""):
        return ("dpdk,port={net_memif,role=client,id=%n,bsize=9216,socket-abstract=no,"
                f"socket={self.socket}}},ip=10.77.0.%n/16,hugepages=no{more}")


class VhostSwitch:
    """The same without faults, for vhost: what connects to it are the cards of virtual machines."""

    # Debian's DPDK has room for 31 ports and no more.
    NUMBERS = 30

    def __enter__(self):
        self._stack = contextlib.ExitStack()
        with self._stack:
            self._folder = self._stack.enter_context(tempfile.TemporaryDirectory())
            switch = self._stack.enter_context(
                Program([program("tests/dpdk/vhost-switch"), self._folder, str(self.NUMBERS)],
                        takes_input=True))
            switch.wait_for_line("ready")
            self._stack = self._stack.pop_all()
        return self

    def __exit__(self, *ended):
        self._stack.__exit__(*ended)

    def spec(self, more=""):
        return (f"dpdk,port={{net_virtio_user,path={self._folder}/%n.sock}},ip=10.77.0.%n/16,"
                f"hugepages=no{more}")


def module():
    """The backend, or a skip when it was not built."""
    if not os.path.exists(os.path.join(BUILD, "dpdk", "libtensorhaul-dpdk.so")):
        raise Skip(f"libtensorhaul-dpdk.so was not built in {BUILD}")


# ---- Programs ---------------------------------------------------------------

def start(command):
    module()
    return Program(command, ENVIRONMENT)


def finish(running, seconds=SECONDS):
    """The lines of cmocka's that the program wrote are passed on; it has to end well."""
    ended = running.wait(seconds)
    for line in ended.output.splitlines():
        if re.match(r"\[ +(RUN|OK|FAILED|SKIPPED|ERROR) +\]|SKIP|ERROR", line):
            print(line)
    # All that these cases need was looked for: a transport that can't be opened is a failure.
    if ended.status == SKIPPED_STATUS and ended.errors.startswith("bridge: "):
        raise Skip(ended.errors.strip())
    check(ended.status == 0, f"status {ended.status}:\n{ended.output[-6000:]}\n"
                             f"{ended.errors[-2000:]}")
    return ended.output


def run(command):
    with start(command) as running:
        return finish(running)


def conformance(spec, groups, before=(), numbers=NUMBERS):
    """Groups of the suite, each side under a number of its own; `before`: what it is run by."""
    run([*before, program("tests/conformance/conformance"), f"--transport={spec}",
         f"--numbers={numbers}", "--listen-host=*", "--dies-silently", "--scale=quarter",
         f"--groups={SANITIZED_GROUPS.get(sanitizer(), groups)}"])


def tensors(wire, *cases, more="", before=()):
    return [*before, program("tests/dpdk/test_tensors"), wire.spec(more), str(NUMBERS), *cases]


def as_somebody_else():
    """As root, another user; else nothing. He has to be able to read what was built."""
    if os.geteuid() != 0:
        return []
    folder = BUILD
    while folder != "/":
        if not os.stat(folder).st_mode & 0o001:
            raise Skip(f"other users can't look into {folder}")
        folder = os.path.dirname(folder)
    return NOBODY


# ---- The conformance suite --------------------------------------------------

# All of it once; the others are about what differs there.

def test_conformance_over_memif():
    """F18 (group completion), and the engine's part of the others."""
    with Wire() as wire:
        conformance(wire.spec(), GROUPS)


def test_memory_over_memif():
    """F32: what nobody asked for uses up no memory."""
    with Wire() as wire:
        conformance(wire.spec(",mtu=1500,memory=10MiB"), "memory")


def test_kill_over_memif():
    """F12, F13. By hand: it takes minutes."""
    with Wire() as wire:
        conformance(wire.spec(",peer_ms=1000"), "kill")


def test_conformance_over_memif_without_root():
    with Wire() as wire:
        conformance(wire.spec(), "types,auth", before=as_somebody_else())


def test_conformance_over_memif_in_a_user_namespace():
    with Wire() as wire:
        conformance(wire.spec(), "types,keys", before=["unshare", "--user", "--map-root-user"])


def test_conformance_over_memif_with_small_packets():
    with Wire() as wire:
        conformance(wire.spec(",mtu=1500"), "types,cancel,refuse")


def test_conformance_over_memif_with_progress_by_thread():
    with Wire() as wire:
        conformance(wire.spec(",progress=thread"), "threads,ends,completion")


def test_conformance_over_memif_with_checksums():
    with Wire() as wire:
        conformance(wire.spec(",checksum=crc32c,sums=no"), "types,cancel,refuse")


def bridged(*options):
    return [BRIDGE, f"--count={NUMBERS}", *options, "--"]


def test_conformance_over_af_packet():
    require_root()
    conformance("dpdk,port=haul%n,ip=10.77.0.%n/16,hugepages=no",
                "types,ends,auth", before=bridged())


def test_conformance_over_af_packet_without_root():
    # What may be locked in memory suffices for the rings of a few contexts in a process.
    conformance("dpdk,port=haul%n,ip=10.77.0.%n/16,hugepages=no,memory=4MiB", "types",
                before=bridged("--user", "--mtu=1500"))


def test_kill_over_af_packet():
    """F12, F13. By hand: it takes minutes."""
    require_root()
    conformance("dpdk,port=haul%n,ip=10.77.0.%n/16,hugepages=no,peer_ms=1000", "kill",
                before=bridged())


def test_storm_and_stop_over_af_packet():
    """F14. By hand: it takes minutes."""
    require_root()
    conformance("dpdk,port=haul%n,ip=10.77.0.%n/16,hugepages=no", "storm,stop", before=bridged())


def test_conformance_over_af_xdp():
    """By hand: DPDK's driver keeps descriptors of ports that are closed, which the suite counts."""
    require_root()
    # The longest packet of an interface whose packets XDP sees in one piece.
    conformance("dpdk,port=af_xdp:haul%n,ip=10.77.0.%n/16,hugepages=no", "types",
                before=bridged("--mtu=3400"))


def test_conformance_over_virtio():
    with VhostSwitch() as switch:
        conformance(switch.spec(), "types,cancel", numbers=switch.NUMBERS)


def test_kill_over_virtio():
    """F12, F13. By hand: it takes minutes."""
    with VhostSwitch() as switch:
        conformance(switch.spec(",peer_ms=1000"), "kill", numbers=switch.NUMBERS)


def test_storm_and_stop_over_virtio():
    """F14. By hand: it takes minutes."""
    with VhostSwitch() as switch:
        conformance(switch.spec(), "storm,stop", numbers=switch.NUMBERS)


def test_vhost_and_virtio():
    """The host's end of a card and the machine's, with nothing between them."""
    module()
    with tempfile.TemporaryDirectory() as folder:
        socket, address_file = os.path.join(folder, "socket"), os.path.join(folder, "address")
        rest = "10.77.0.{}/16,hugepages=no"
        host = f"dpdk,port={{net_vhost,iface={socket}}},ip={rest.format(1)}"
        guest = f"dpdk,port={{net_virtio_user,path={socket}}},ip={rest.format(2)}"
        with start([program("bench/haul-bench-server"), f"--transport={host}", "--listen=*:0",
                    f"--address-file={address_file}"]) as server:
            # It has no plain TCP side, whose address the kernel would have to know, and says so.
            address = server.wait_for_file(address_file)
            for _ in range(2):  # a card that comes again
                finish(start_client(guest, address))


def test_memif_client_before_its_server():
    """It asks for its peer as long as there is no wire, and longer than it would ask on one."""
    module()
    with tempfile.TemporaryDirectory() as folder:
        spec = ("dpdk,port={{net_memif,role={},socket-abstract=no,socket=" + folder + "/socket}},"
                "ip=10.77.0.{}/16,hugepages=no,connect_ms=30000")
        with start_client(spec.format("client", 2), "10.77.0.1:7411") as client:
            time.sleep(3)  # of ARP's questions the last one would have gone unanswered
            with start([program("bench/haul-bench-server"), "--listen=*:7411", "--no-ceiling",
                        f"--transport={spec.format('server', 1)}"]):
                finish(client)


def start_client(spec, address):
    return start([program("bench/haul-bench-client"), f"--transport={spec}",
                  f"--connect={address}", "--test=bidirectional,latency,rate", "--size=1,5000,10MiB",
                  "--rounds=1", "--seconds=0.3", "--warmup=0.1", "--live=no", "--verify"])


# ---- A network that does what it likes --------------------------------------

def through_faults(more="", **faults):
    settings = [f"{name}={value}" for name, value in faults.items()]
    with Wire(*settings, f"seed={os.getpid()}") as wire:
        # By itself it trusts memory that processes share.
        output = run(tensors(wire, "test_10000_tensors_of_mixed_sizes", more=",sums=yes" + more))
        counts = wire.counts()
    print(" ".join(settings), re.search("all arrived after.*", output)[0], counts)
    names = {"loss": "lost", "duplicate": "duplicated", "reorder": "reordered",
             "truncate": "truncated", "corrupt": "corrupted"}
    for fault, percent in faults.items():
        if fault in names:
            check(counts[names[fault]] > counts["frames"] * percent / 200,
                  f"hardly any frame was {names[fault]}: {counts}")
    return counts


def test_tensors_with_each_fault():
    for fault in FAULTS:
        through_faults(**{fault: 5})


def test_tensors_over_a_slow_link():
    # As a program asks for that knows it is not alone on its memif.
    counts = through_faults(",congestion=swift", rate=2000, queue=200000, loss=1, delay_us=200)
    check(counts["queue_full"] < counts["frames"] / 10, f"it fills queues that are full: {counts}")


def test_tensors_with_all_faults():
    through_faults(delay_us=200, **{fault: 5 for fault in FAULTS})


# ---- Cables, owners, peers --------------------------------------------------

def cut_when_told(wire, running):
    running.wait_for_line("cut now", SECONDS)
    wire.set(cut=1)


def test_wire_cut_and_mended():
    with Wire() as wire, start(tensors(wire, "test_cut_and_mended")) as running:
        cut_when_told(wire, running)
        time.sleep(5)  # the case itself
        wire.set(cut=0)
        finish(running)


def test_wire_cut_for_good():
    """F14: all packets are dropped, and no operation stays pending."""
    with Wire() as wire, start(tensors(wire, "test_cut_for_good")) as running:
        cut_when_told(wire, running)
        finish(running)


def test_wire_restarted():
    """The switch itself goes, and another one comes in its place."""
    with tempfile.TemporaryDirectory() as folder:
        socket = f"socket={folder}/wire.sock"
        with contextlib.ExitStack() as first:
            wire = first.enter_context(Wire(socket))
            running = start(tensors(wire, "test_cut_and_mended"))
            with running:
                running.wait_for_line("cut now", SECONDS)
                first.close()
                time.sleep(5)  # the case itself
                with Wire(socket):
                    finish(running)


def test_owners_that_compute():
    with Wire() as wire:
        run(tensors(wire, "test_owners_compute", "test_one_owner_computes"))


def test_peers_that_stop_die_and_come_again():
    """F12, F13: a peer dies, and its endpoint alone is lost."""
    with Wire() as wire:
        run(tensors(wire, "test_stopped_5_s", "test_killed_is_noticed",
                    "test_restarted_with_the_same_address"))


main(globals())
