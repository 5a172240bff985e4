"""`python -m zerolab.apps.sweep.hosts`: makes hosts on shaped wires, and runs the ranks of a case on them.

A process of its own, since a process can enter a network but not come back. It reads a job a line and answers with a
line. Each job gets a new switch and new hosts:

    this process            hears whoever started it; ends with it, by the end of its input
      the switch            a network namespace with a bridge; ends when one of its ranks has failed
        a host              a network namespace with one end of a wire
          its ranks

Each is killed by the kernel when the one above it ends, so that nothing is left of a network whichever is killed.
"""

from __future__ import annotations

import ctypes
import json
import os
import select
import signal
import subprocess
import sys
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any, NoReturn

from zerolab.apps.sweep.member import carry_member, train_member
from zerolab.apps.sweep.shaping import DEVICE, Command, address, host_end, switch, wire
from zerolab.collectives import Link
from zerolab.errors import InputError, RankError, ZerolabError
from zerolab.ranks.forkserver import die_with_parent

NEW_USER, NEW_NETWORK = 0x10000000, 0x40000000
PORT = 29500
"""Where ranks meet: nobody else is in their network."""
OWN = "zerolab: "
Job = dict[str, Any]


def main() -> int:
    """Serve until the input ends."""
    enter_user_namespace()
    print(json.dumps({"ready": True}), flush=True)
    while line := sys.stdin.buffer.readline():
        reader, writer = os.pipe()
        child = fork(lambda: answer_job(json.loads(line), writer), [reader])  # noqa: B023 - forked at once
        os.close(writer)
        heard = b""
        while True:
            readable, _, _ = select.select([reader, 0], [], [])
            # Whoever asked says nothing until it has its answer: what comes meanwhile is its end.
            if 0 in readable:
                os.kill(child, signal.SIGKILL)
                return 0
            if not (some := os.read(reader, 1 << 16)):
                break
            heard += some
        os.close(reader)
        os.waitpid(child, 0)
        sys.stdout.buffer.write((heard or b'{"error": "the switch was killed"}') + b"\n")
        sys.stdout.flush()
    return 0


def enter_user_namespace() -> None:
    """Become root in a user namespace of our own, unless this process may make networks as it is."""
    if fork_and_try(NEW_NETWORK):
        return
    user, group = os.getuid(), os.getgid()
    unshare(NEW_USER)
    # Without this line a user may not map groups.
    Path("/proc/self/setgroups").write_text("deny")
    Path("/proc/self/uid_map").write_text(f"0 {user} 1")
    Path("/proc/self/gid_map").write_text(f"0 {group} 1")


def fork_and_try(flags: int) -> bool:
    child = fork(lambda: unshare(flags), [])
    return os.waitpid(child, 0)[1] == 0


def unshare(flags: int) -> None:
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.unshare(flags):
        raise InputError(
            f"network namespaces may not be made here ({os.strerror(ctypes.get_errno())}); run it as root, or where "
            "user namespaces are allowed"
        )


def fork(do: Callable[[], None], closed: Iterable[int]) -> int:
    """Start a child that does something and ends, with this process at the latest."""
    child = os.fork()
    if child:
        return child
    status = 1
    try:
        die_with_parent()
        for descriptor in closed:
            os.close(descriptor)
        do()
        status = 0
    finally:
        os._exit(status)


def answer_job(job: Job, writer: int) -> None:
    """In a process of its own: make the network, run the ranks in it, and write what came of it."""
    # What this process and its children print is no answer.
    os.dup2(os.open(os.devnull, os.O_RDWR), 0)
    os.dup2(2, 1)
    try:
        result: Job = {"value": run_job(job)}
    except ZerolabError as error:
        result = {"error": str(error), "kind": type(error).__name__}
    except Exception as error:
        result = {"error": f"{type(error).__name__}: {error}", "kind": "RankError"}
    with open(writer, "wb", closefd=False) as pipe:
        pipe.write(json.dumps(result).encode())


def run_job(job: Job) -> Any:
    link = None if job["link"] is None else Link(*job["link"])
    unshare(NEW_NETWORK)
    run_all(switch())
    hosts = [start_host(job, host, link) for host in range(job["hosts"])]
    names = {process: f"host {host}" for host, process in enumerate(hosts)}
    failed = None
    while names and failed is None:
        process, status = os.wait()
        if status:
            failed = f"{names[process]} ended with status {os.waitstatus_to_exitcode(status)}"
        del names[process]
    for process in names:
        os.kill(process, signal.SIGKILL)
    return read_result(Path(job["folder"]), failed)


def read_result(folder: Path, failed: str | None) -> Any:
    """What rank 0 has left; or raise what the first rank to fail has said."""
    said = sorted(folder.glob("failed*.json"), key=lambda path: path.stat().st_mtime_ns)
    if said:
        first = json.loads(said[0].read_text(encoding="utf-8"))
        raise (InputError if first["kind"] == InputError.__name__ else RankError)(first["error"])
    if failed is not None:
        # A rank that is overdue ends with a line.
        lines = [line for path in sorted(folder.glob("said*.txt")) for line in path.read_text().splitlines()]
        last = next((line.removeprefix(OWN) for line in lines if line.startswith(OWN)), "no rank of it could say why")
        raise RankError(f"{failed}: {last}")
    if not (folder / "row.json").exists():
        return None
    return json.loads((folder / "row.json").read_text(encoding="utf-8"))


def start_host(job: Job, host: int, link: Link | None) -> int:
    """A process in a network of its own, with a wire to the switch; it runs the host's ranks, once all is there."""
    there, is_there = os.pipe()
    wired, is_wired = os.pipe()

    def live() -> None:
        try:
            unshare(NEW_NETWORK)
            os.write(is_there, b"!")
            if os.read(wired, 1):
                run_all(host_end(host, link))
        except InputError as error:
            leave_word(Path(job["folder"]), f"-host{host}", error)
            raise
        run_ranks(job, host)

    process = fork(live, [there, is_wired])
    os.close(is_there)
    os.close(wired)
    if os.read(there, 1):
        run_all(wire(host, process, link))
        os.write(is_wired, b"!")
    os.close(there)
    os.close(is_wired)
    return process


def run_ranks(job: Job, host: int) -> None:
    """Run the ranks of this host, and end as they do."""
    count = job["ranks"] // job["hosts"]
    # Without one of both the network is made, to see whether it can be.
    ranks = range(host * count, (host + 1) * count) if job["carries"] or job["settings"] is not None else range(0)
    for rank in ranks:
        fork(lambda rank=rank: be_rank(job, host, rank), [])  # type: ignore[misc]
    for _ in ranks:
        if os.wait()[1]:
            raise SystemExit(1)


def be_rank(job: Job, host: int, rank: int) -> None:
    """Train as a rank that torchrun would have started."""
    os.environ |= {
        "RANK": str(rank), "WORLD_SIZE": str(job["ranks"]), "MASTER_ADDR": address(0), "MASTER_PORT": str(PORT),
        # All hosts share the cores of this machine, as the ranks of one machine would.
        "LOCAL_RANK": str(rank), "LOCAL_WORLD_SIZE": str(job["ranks"]),
        "GROUP_RANK": str(host), "GROUP_WORLD_SIZE": str(job["hosts"]), "GLOO_SOCKET_IFNAME": DEVICE,
    }  # fmt: skip
    folder = Path(job["folder"])
    # torch misses a host's name in each message that it writes of a connection.
    os.dup2(os.open(folder / f"said{rank}.txt", os.O_WRONLY | os.O_CREAT), 2)
    try:
        trace = Path(job["trace"]) if job["trace"] and rank == 0 else None
        figures = carry_member() if job["carries"] else train_member(job["settings"], trace)
        if rank == 0:
            (folder / "row.json").write_text(json.dumps(figures), encoding="utf-8")
    except BaseException as error:
        leave_word(folder, str(rank), error)
        raise


def leave_word(folder: Path, who: str, error: BaseException) -> None:
    """Why something failed, for whoever looks for the first that did."""
    cause = error.__cause__ if isinstance(error.__cause__, ZerolabError) else error
    text = str(cause) if isinstance(cause, ZerolabError) else f"{type(cause).__name__}: {cause}"
    (folder / f"failed{who}.json").write_text(json.dumps({"error": text, "kind": type(cause).__name__}))


def run_all(commands: Iterable[Command]) -> None:
    """Run commands of iproute2, or raise an InputError that says which one cannot be, and what is missing."""
    for command in commands:
        try:
            done = subprocess.run(command, capture_output=True, text=True, timeout=20)
        except FileNotFoundError:
            raise InputError(f"the command {command[0]} (iproute2) is not installed; install it") from None
        if done.returncode:
            kind = next((kind for kind in ("netem", "tbf", "bridge", "veth") if kind in command), None)
            missing = f"; the kernel may lack {kind}" if kind else ""
            why = " ".join(done.stderr.split()).rstrip(".")
            raise InputError(f"{' '.join(command)} was refused ({why}){missing}")


def end(status: int) -> NoReturn:
    """End without what torch would do at its exit, in a process that only forks."""
    os._exit(status)


if __name__ == "__main__":
    try:
        end(main())
    except BrokenPipeError:
        # Whoever asked is gone.
        end(1)
    except ZerolabError as error:
        print(json.dumps({"error": str(error)}), flush=True)
        end(1)
