"""Shared memory: what lies where, what is left, and what happens where there is none."""

import os
import shutil
import signal
import subprocess
import sys
from contextlib import suppress
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from zerolab.collectives import Collectives, Link, LocalTransport, SharedMemoryCollectives, build
from zerolab.collectives.shared.peers import GRAIN, Arena, is_possible
from zerolab.errors import InputError, RankError
from zerolab.flat import chunk_sizes
from zerolab.ranks import launch
from zerolab.ranks.job import choose_collectives

pytestmark = [
    pytest.mark.timeout(100),
    pytest.mark.skipif(not is_possible(), reason="shared memory takes Linux's memfd and /proc"),
]


def launched(fn: Any, *args: Any, ranks: int = 3, **options: Any) -> Any:
    return launch(fn, *args, ranks=ranks, collectives="shared", timeout=40, **options)


# Blocks of an arena


@given(st.lists(st.tuples(st.integers(1, 5000), st.booleans()), max_size=60))
def test_blocks_never_overlap_and_freed_ones_leave_nothing(steps: list[tuple[int, bool]]) -> None:
    arena = Arena(capacity=1 << 16)
    living: list[torch.Tensor] = []
    for nbytes, frees in steps:
        with suppress(InputError):
            living.append(arena.allocate(nbytes, torch.uint8))
        places = sorted((arena.offset(tensor), tensor.nbytes) for tensor in living)
        assert all(start % GRAIN == 0 and start + length <= 1 << 16 for start, length in places)
        assert all(one + length <= other for (one, length), (other, _) in pairwise(places))
        if frees and living:
            del living[len(living) // 2]
    living.clear()
    arena.collect()
    assert arena.gaps == [(0, 1 << 16)]
    arena.close()


def test_a_block_is_used_again_once_its_last_view_is_gone() -> None:
    arena = Arena(1 << 20)
    tensor = arena.allocate(1000, torch.float32)
    place, part = arena.offset(tensor), tensor[10:20].view(2, 5)
    del tensor
    assert arena.offset(arena.allocate(1000, torch.float32)) != place
    del part
    assert arena.offset(arena.allocate(1000, torch.float32)) == place
    arena.close()


def test_each_tensor_has_a_storage_of_its_own_size() -> None:
    arena = Arena(1 << 20)
    assert [arena.allocate(n, torch.bfloat16).untyped_storage().nbytes() for n in (0, 1, 300)] == [0, 2, 600]
    arena.close()


def test_too_large_an_allocation_is_refused_in_one_sentence() -> None:
    arena = Arena(1 << 16)
    with pytest.raises(InputError, match=r"no room for 80128 bytes of shared memory .*; use fewer ranks"):
        arena.allocate(20_000, torch.float32)
    # The arena goes on.
    assert arena.allocate(10_000, torch.float32).numel() == 10_000
    arena.close()


@pytest.mark.skipif(
    os.getuid() != 0 or not shutil.which("unshare"), reason="mounting a small /dev/shm takes root and unshare"
)
def test_a_container_with_one_megabyte_of_dev_shm_is_enough() -> None:
    program = """
import torch
from zerolab.ranks import launch
def total(comm):
    x = comm.allocate(4_000_000).fill_(1.0)
    return comm.all_reduce(x)[-1].item()
if __name__ == "__main__":
    print(list(launch(total, ranks=2, collectives="shared", timeout=60)))
"""
    mount = "mount -t tmpfs -o size=1m none /dev/shm && df --output=size /dev/shm"
    script = f"{mount} && {sys.executable} - <<'E'\n{program}\nE"
    done = subprocess.run(["unshare", "-m", "sh", "-c", script], capture_output=True, text=True, timeout=90)
    if "mount" in done.stderr:
        pytest.skip(f"this machine may not mount: {done.stderr.strip()}")
    assert done.stdout.split() == ["1K-blocks", "1024", "[2.0,", "2.0]"], done.stderr


# Sums


@pytest.mark.ranks
@pytest.mark.parametrize("ranks", [3, 4])
def test_sums_are_the_rings_to_the_bit_wherever_tensors_lie(ranks: int) -> None:
    """Lengths within a block, over several blocks and not divisible; some ranks' tensors in shared memory, some not."""

    def sums(comm: Collectives) -> list[torch.Tensor]:
        found = []
        for numel in (7, 1000, 300_001):
            for dtype in (torch.float32, torch.bfloat16):
                mine = torch.randn(numel, generator=torch.Generator().manual_seed(comm.rank)).to(dtype)
                placed = comm.allocate(numel, dtype).copy_(mine) if comm.rank % 2 else mine.clone()
                chunk = placed.tensor_split(comm.size)[comm.rank]
                found += [comm.reduce_scatter(mine), comm.all_gather(mine.tensor_split(comm.size)[comm.rank], numel)]
                found.append(comm.reduce_scatter(placed, average=True, out=chunk).clone())
                found.append(comm.all_reduce(placed, average=True).clone())
        return found

    by_ring = launch(sums, ranks=ranks, collectives="ring", timeout=40)
    for shared, ring in zip(launched(sums, ranks=ranks), by_ring, strict=True):
        assert all(torch.equal(a, b) for a, b in zip(shared, ring, strict=True))


@pytest.mark.ranks
def test_nobody_sees_a_tensor_before_it_is_ready_or_writes_one_that_is_read() -> None:
    """Ranks that come late, in turn, and overwrite their tensors as soon as a call has ended."""

    def hurry(comm: Collectives) -> bool:
        import time

        whole = comm.allocate(60_000)
        good = True
        for at in range(40):
            if at % comm.size == comm.rank:
                time.sleep(0.002)
            whole.fill_(at + comm.rank)
            good &= bool((comm.reduce_scatter(whole) == comm.size * at + 3).all())
            whole.fill_(-1.0)
            shard = comm.allocate(20_000).fill_(at * comm.rank)
            gathered = comm.all_gather(shard)
            shard.fill_(-1.0)
            good &= gathered.view(3, -1).eq(torch.arange(3.0)[:, None] * at).all().item()
        return good

    assert launched(hurry) == [True] * 3


@pytest.mark.ranks
def test_calls_in_a_row_take_no_more_memory_than_one() -> None:
    def many(comm: Collectives) -> int:
        assert isinstance(comm, SharedMemoryCollectives)
        for _ in range(50):
            comm.all_reduce(torch.ones(1000))
            comm.all_reduce_async(comm.allocate(500).zero_()).wait()
        return comm._peers.arena._reserved

    assert max(launched(many)) < 16_000


# The end


def holding(arenas_of: set[int]) -> set[int]:
    """The processes of this machine that map or have open an arena which one of the given processes has made."""
    names, found = {f"/memfd:zerolab-{pid} (deleted)" for pid in arenas_of}, set()
    for process in Path("/proc").glob("[0-9]*"):
        said = ""
        with suppress(OSError):  # It may have ended; so may a file that it had open.
            said = (process / "maps").read_text()
            for link in (process / "fd").iterdir():
                with suppress(OSError):
                    said += f"{os.readlink(link)}\n"
        if any(name in said for name in names):
            found.add(int(process.name))
    return found


@pytest.mark.ranks
def test_nothing_is_left_when_a_rank_is_killed(tmp_path: Path) -> None:
    def die(comm: Collectives) -> None:
        comm.all_reduce(comm.allocate(8_000_000).zero_())
        assert os.getpid() in holding({os.getpid()})
        (tmp_path / str(os.getpid())).touch()
        comm.barrier()
        if comm.rank == 1:
            os.kill(os.getpid(), signal.SIGKILL)
        comm.barrier()

    with pytest.raises(RankError, match="rank 1 was killed by SIGKILL"):
        launched(die)
    ranks = {int(path.name) for path in tmp_path.iterdir()}
    assert len(ranks) == 3 and not holding(ranks)
    assert not [name for name in os.listdir("/dev/shm") for pid in ranks if str(pid) in name]


@pytest.mark.ranks
def test_descriptors_are_given_back_at_the_close() -> None:
    """Under torchrun a process outlives its launches."""

    def again(comm: Collectives) -> list[int]:
        counts = []
        for _ in range(3):
            other = SharedMemoryCollectives(comm.transport)
            other.all_reduce(torch.ones(3))
            other.close()
            counts.append(len(os.listdir("/proc/self/fd")))
        return counts

    for counts in launched(again):
        assert counts[0] == counts[-1]


# Where there is none


def test_auto_is_shared_memory_on_one_machine_and_torch_s_where_nccl_joins_the_ranks() -> None:
    def chosen(asked: str = "auto", devices: Any = ("cpu", "cpu"), here: bool = True, **options: bool) -> str:
        return choose_collectives(asked, devices, here, **{"linked": False, "nccl": False, **options})

    assert chosen() == chosen("shared", here=False) == "shared"
    assert chosen(here=False) == chosen(linked=True) == chosen(devices=("cpu",)) == "ring"
    gpus = ("cuda:0", "cuda:1")
    assert chosen(devices=gpus, nccl=True) == chosen("torch") == "torch"
    # NCCL does not join ranks that share a GPU.
    assert chosen(devices=gpus) == chosen(devices=gpus[:1], nccl=True) == chosen(devices=gpus, nccl=True, linked=True)
    assert chosen("ring", devices=gpus, nccl=True) == chosen(devices=gpus) == "ring"


def test_on_a_simulated_link_messages_travel_beside_the_computation() -> None:
    """A link prices messages: with shared memory the rank itself would have to sleep through each."""
    link = Link(gbit_per_s=1.0)
    assert launch(lambda comm: type(comm).__name__, ranks=2, link=link, timeout=40) == ["RingCollectives"] * 2


def test_ranks_of_a_launch_share_memory_by_default() -> None:
    kinds = launch(lambda comm: (type(comm).__name__, chunk_sizes(5, comm.size)), ranks=2, timeout=40)
    assert kinds == [("SharedMemoryCollectives", [3, 2])] * 2


def test_shared_memory_on_a_gpu_or_in_lockstep_is_refused() -> None:
    class OnGpu(LocalTransport):
        device = torch.device("cuda")

    with pytest.raises(InputError, match=r'ranks on the CPU, not on cuda; use "ring" or "torch"'):
        build(OnGpu(), "shared")
    with pytest.raises(InputError, match=r'collectives="shared" needs processes'):
        launch(lambda comm: None, ranks=2, world="lockstep", collectives="shared")


@pytest.mark.ranks
def test_ranks_of_another_machine_are_named(monkeypatch: pytest.MonkeyPatch) -> None:
    def elsewhere(comm: Collectives) -> None:
        import zerolab.collectives.shared.peers as peers

        peers.host_number = lambda: comm.rank
        comm.barrier()

    with pytest.raises(RankError, match=r"rank \d runs on another machine than rank \d .*; use collectives="):
        launched(elsewhere, ranks=2)
