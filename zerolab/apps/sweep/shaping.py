"""Cases on wires that the kernel shapes, between hosts that are network namespaces.

A job is a shell's script in a network and a /run of its own. It joins hosts by wires that `tc` shapes, and becomes a
Python that forks the ranks, which enter their hosts. The kernel ends them with that Python, and networks with their
last process: nothing is left to clear.

Tried on Linux 6.18 with iproute2 6.1, as root; as another user only that hosts and wires are made. That kernel has no
netem, so a latency above 0 was refused.
"""

from __future__ import annotations

import ctypes
import os
import pickle
import shlex
import subprocess
import sys
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor, as_completed
from concurrent.futures.process import BrokenProcessPool
from multiprocessing import get_context
from pathlib import Path
from typing import Any

from zerolab.collectives import Link
from zerolab.errors import InputError, RankError
from zerolab.files import write_whole
from zerolab.ranks.folders import temporary_folder
from zerolab.ranks.forkserver import die_with_parent

MTU = 9000
"""Bytes of a packet: headers take less than a hundredth of the wire."""
QUEUE_BYTES = 1 << 24
BURST_SECONDS = 100e-6
"""What an idle wire lets through at once, in seconds at its rate: more than a kernel's timer is late."""
NETWORK = "10.231.9."
NEW_NETWORK = 0x40000000
"""Of linux/sched.h."""
START = "import sys, pathlib, zerolab.apps.sweep.shaping as job; job.serve(pathlib.Path(sys.argv[1]))"
SAID = "zerolab: "


def check_wires(link: Link | None) -> None:
    """Raise an InputError if hosts with such a link cannot be made here."""
    done = make_hosts(2, link)
    if done.returncode:
        # The shell has printed each command; the last one was refused.
        why = ": ".join(done.stderr.splitlines()[-2:]).removeprefix("+ ")
        raise InputError(f"no wire can be shaped on this machine ({why}); take wire simulated")


def call_on_hosts(hosts: int, ranks: int, link: Link | None, call: Callable[[], Any]) -> Any:
    """What a call of all ranks gives on rank 0. Raises what the first rank to fail has raised."""
    with temporary_folder("launch") as folder:
        (folder / "job").write_bytes(pickle.dumps((os.getpid(), hosts, ranks, call)))
        command = shlex.join([sys.executable, "-c", START, str(folder)])
        done = make_hosts(hosts, link, f"exec {command}")
        try:
            found = pickle.loads((folder / "found").read_bytes())
        except FileNotFoundError:
            # A rank that is overdue ends with a line.
            said = ["it could not say why", *done.stderr.splitlines()]
            why = next((line.removeprefix(SAID) for line in said if line.startswith(SAID)), said[-1])
            raise RankError(f"the ranks on shaped wires ended with status {done.returncode}: {why}") from None
    if isinstance(found, Exception):
        raise found
    return found


def make_hosts(hosts: int, link: Link | None, then: str = "") -> subprocess.CompletedProcess[str]:
    """Make hosts, and run a command in the network of their switch."""
    user, quiet = [] if os.geteuid() == 0 else ["--map-root-user"], subprocess.DEVNULL
    script = "\n".join([*host_lines(hosts, link), then])
    command = ["unshare", *user, "--net", "--mount", "sh", "-exc", script]
    try:
        # Ctrl-C is for this process: that one ends with it.
        return subprocess.run(
            command, stdin=quiet, stdout=quiet, stderr=subprocess.PIPE, text=True, errors="replace",
            start_new_session=True,
        )  # fmt: skip
    except FileNotFoundError:
        raise InputError("no wire can be shaped without unshare (util-linux, on Linux); take wire simulated") from None


def host_lines(hosts: int, link: Link | None) -> list[str]:
    """The shell's lines for a switch, hosts, and wires, shaped at both ends and late at one."""
    switch = f"ip link add switch mtu {MTU} type bridge"
    lines = ["mount -t tmpfs none /var/run", switch, "ip link set switch up"]
    for host in range(hosts):
        name, port = f"host{host}", f"port{host}"
        lines += [
            f"ip netns add {name}",
            f"ip link add {port} mtu {MTU} type veth peer name wire0 mtu {MTU} netns {name}",
            f"ip link set {port} master switch up",
            f"ip -n {name} link set lo up",
            f"ip -n {name} address add {NETWORK}{host + 1}/24 dev wire0",
            f"ip -n {name} link set wire0 up",
        ]
        if link is not None:
            bits = round(link.gbit_per_s * 1e9)
            burst = max(2 * MTU, round(bits / 8 * BURST_SECONDS))
            bucket = f"root handle 1: tbf rate {bits}bit burst {burst}b limit {QUEUE_BYTES}b"
            lines += [f"tc qdisc add dev {port} {bucket}", f"tc -n {name} qdisc add dev wire0 {bucket}"]
            if link.latency_us:
                late = f"netem delay {link.latency_us:g}us limit {QUEUE_BYTES // MTU}"
                lines.append(f"tc -n {name} qdisc add dev wire0 parent 1:1 handle 2: {late}")
    return lines


def serve(folder: Path) -> None:
    """In the network of the switch: run the ranks of a job, and write what came of it."""
    die_with_parent()
    parent, hosts, ranks, call = pickle.loads((folder / "job").read_bytes())
    if os.getppid() != parent:
        return
    pool = ProcessPoolExecutor(ranks, get_context("fork"), die_with_parent, (os.getpid(),))
    running = [pool.submit(be_rank, call, rank, ranks, rank * hosts // ranks, hosts) for rank in range(ranks)]
    found: Any = None
    try:
        for rank in as_completed(running):
            rank.result()
        found = running[0].result()
    except BrokenProcessPool:
        os._exit(1)
    except Exception as error:
        found = error
    write_whole(folder / "found", pickle.dumps(found), sync=False)
    # Without waiting for ranks that wait for one that has failed.
    os._exit(0)


def be_rank(call: Callable[[], Any], rank: int, ranks: int, host: int, hosts: int) -> Any:
    """Make the call on a host, as a rank of torchrun's."""
    os.environ |= {
        "RANK": str(rank), "WORLD_SIZE": str(ranks), "MASTER_ADDR": f"{NETWORK}1", "MASTER_PORT": "29500",
        # All hosts share the cores of this machine, as the ranks of one machine would.
        "LOCAL_RANK": str(rank), "LOCAL_WORLD_SIZE": str(ranks),
        "GROUP_RANK": str(host), "GROUP_WORLD_SIZE": str(hosts), "GLOO_SOCKET_IFNAME": "wire0",
    }  # fmt: skip
    with open(f"/var/run/netns/host{host}") as network:
        if ctypes.CDLL(None).setns(network.fileno(), NEW_NETWORK):
            raise RankError(f"rank {rank} cannot enter the network of its host")
    try:
        return call()
    except RankError as error:
        raise error.__cause__ or error from None
