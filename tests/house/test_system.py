"""What Linux has and other systems may not: everything hidden, the library does the same by other means."""

import os
import re
from pathlib import Path
from typing import Any

import pytest
import torch

from zerolab import system
from zerolab.apps.cli.tables import text_of
from zerolab.collectives.shared.peers import is_possible
from zerolab.course.grade import cage
from zerolab.data import Corpus, load_corpus
from zerolab.errors import InputError
from zerolab.offload import files
from zerolab.offload.buffers import aligned
from zerolab.offload.files import SwapFile
from zerolab.offload.groups import PAGE
from zerolab.ranks import RankFailure, launch
from zerolab.ranks.job import threads_per_rank
from zerolab.ranks.lockstep import scheduler
from zerolab.run import RunSpec
from zerolab.system import THINGS
from zerolab.train.rank import train_rank
from zerolab.train.resume import Start
from zerolab.train.run import make_report

ROOT = Path(__file__).resolve().parents[2]
TINY_RUN = {"model_size": "nano", "seq_len": 16, "max_steps": 3, "ranks": 2}
# A rank that is spawned imports torch.
SPAWNED = 200


@pytest.fixture
def bare(monkeypatch: pytest.MonkeyPatch) -> None:
    """A system that has nothing of all that."""
    monkeypatch.setattr(system, "_found", lambda thing: False)


def test_the_page_about_platforms_names_each_thing_and_what_happens_without_it() -> None:
    rows = re.findall(
        r"^\| `(\w+)` \| .+ \| (.+) \|$", (ROOT / "docs" / "platforms.md").read_text(), flags=re.MULTILINE
    )
    assert dict(rows) == {name: thing.instead for name, thing in THINGS.items()}


def test_nothing_else_asks_which_system_this_is() -> None:
    asking = re.compile(r"sys\.platform|hasattr\((os|mmap|signal), \"")
    found = [path.name for path in (ROOT / "zerolab").rglob("*.py") if asking.search(path.read_text())]
    assert found == ["system.py"]


# Each fallback by itself


@pytest.mark.usefixtures("bare")
def test_without_memory_files_the_ring_is_the_default_and_shared_memory_is_refused() -> None:
    assert not is_possible()
    with pytest.raises(InputError, match="shared"):
        launch(lambda comm: None, ranks=2, collectives="shared", world="lockstep", timeout=30)


@pytest.mark.usefixtures("bare")
def test_without_affinity_all_cores_count() -> None:
    assert threads_per_rank(1) == os.cpu_count()


@pytest.mark.usefixtures("bare")
def test_without_landlock_no_fence_is_claimed(tmp_path: Path) -> None:
    assert cage.version() < 1 and not cage.fence(tmp_path)
    cage.limit(1)
    assert cage.memory_taken() == 0 and len(bytearray(2**22)) == 2**22


@pytest.mark.usefixtures("bare")
def test_a_rank_that_fails_in_lockstep_is_named_though_threads_cannot_be_looked_at() -> None:
    with pytest.raises(RankFailure, match="rank 1 raised ZeroDivisionError"):
        launch(lambda comm: 1 // (1 - comm.rank), ranks=2, world="lockstep", timeout=30)
    assert scheduler.UNSEEN_SECONDS < 1


@pytest.mark.usefixtures("bare")
def test_a_swap_file_keeps_its_records_without_any_of_linuxs_calls(tmp_path: Path) -> None:
    sizes = [3 * PAGE, 5000, PAGE]
    with SwapFile(tmp_path, "a", sizes) as file:
        assert file.why_not == "this system has no direct I/O" and not file.direct
        assert file.measure() == 6 * PAGE and file.path.stat().st_blocks * 512 >= 6 * PAGE
        buffers = [aligned(size).random_(256) for size in sizes]
        for record in (2, 0, 1):
            file.write(record, buffers[record])
        for record, written in enumerate(buffers):
            read = aligned(sizes[record])
            file.read(record, read)
            assert torch.equal(read, written)
        assert files.left_overs(tmp_path) == []
    assert list(tmp_path.iterdir()) == []


# All of them


def trains_at_stages_0_and_3(comm: Any, configs: list[RunSpec], corpus: Corpus) -> Any:
    """What `zerolab train` runs on each rank, for each of the configurations."""
    return [train_rank(comm, Start(config), corpus, None) for config in configs], type(comm).__name__


def test_with_everything_hidden_ranks_talk_over_the_ring_and_train_to_the_same_bits(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    disk = {"offload_optimizer": "disk", "offload_param": "disk", "offload_path": tmp_path}
    configs = [RunSpec(**TINY_RUN), RunSpec(**TINY_RUN, zero_stage=3, **disk)]
    corpus = load_corpus("embedded", seq_len=16)
    usual = launch(trains_at_stages_0_and_3, configs, corpus, ranks=2, timeout=60, world="lockstep")
    monkeypatch.setattr(system, "_found", lambda thing: False)
    bare = launch(trains_at_stages_0_and_3, configs, corpus, ranks=2, timeout=60, world="lockstep")
    digests = [record["parameters_sha256"] for record in usual[0][0]]
    assert digests[0] == digests[1]
    for records, collectives in bare:
        assert [record["parameters_sha256"] for record in records] == digests
        assert collectives == "RingCollectives"
    made = zip(map(Start, configs), bare[0][0], strict=True)
    shown = [text_of(make_report(start, record, corpus)) for start, record in made]
    assert ["disk: through the page cache" in text for text in shown] == [False, True]
