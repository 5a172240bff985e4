"""A kill at any moment of a save leaves the last good checkpoint loadable, and the next run cleans up.

Real ranks, killed by SIGKILL at a drawn call to the system: rank 0, another, or all at once. Each run goes on from what
the one before left. `tools/soak.py --saves` does the same by the thousand, at moments that a clock draws, too.
"""

from __future__ import annotations

import os
import random
import shutil
import signal
import subprocess
import time
from itertools import product
from pathlib import Path

import born
import psutil
import pytest
from checkpoint_cases import Calls, Run, Way, differing, killed_at, launch_saving, values_of
from cover import NIGHTLY, covering

from zerolab.checkpoint import Checkpoints, checkpoints_in, find_latest
from zerolab.checkpoint.folder import Folder, discard, draft_name
from zerolab.collectives import Collectives
from zerolab.errors import RankError
from zerolab.ranks import launch

pytestmark = [pytest.mark.timeout(240), pytest.mark.ranks]

CALLS = 100
"""More calls to the system than a rank makes in a save: a kill drawn beyond the last one comes after it."""
KILLS = 9 if NIGHTLY else 2


@pytest.fixture(scope="module")
def expected(tmp_path_factory: pytest.TempPathFactory) -> dict[int, Path]:
    """The checkpoints of a run that nobody disturbs."""

    def train(comm: Collectives, folder: Path) -> None:
        run = Run(comm, Way(3))
        with Checkpoints(folder) as checkpoints:
            for step in range(1, 13):
                run.train(step - 1, step)
                checkpoints.save(run.engine, step, scheduler=run.scheduler)

    folder = tmp_path_factory.mktemp("undisturbed")
    launch(train, folder, ranks=2, world="lockstep")
    return {step: folder / f"step-{step:08d}" for step in range(1, 13)}


@pytest.mark.parametrize(
    ("victims", "wait"),
    covering(
        [*product([(0,), (1,), (0, 1)], [True, False])], shows=lambda run: [("victims", run[0]), ("wait", run[1])]
    ),
)
def test_a_kill_at_any_call_of_a_save_leaves_the_last_good_checkpoint(
    victims: tuple[int, ...], wait: bool, expected: dict[int, Path], tmp_path: Path
) -> None:
    """Nightly nine kills each, more than fifty in all, by day two; a run that comes to its end unharmed makes room for
    another."""
    drawn, kills, runs = random.Random(f"{victims} {wait}"), 0, 0
    folder, last = tmp_path / "0", 0
    while kills < KILLS:
        at = drawn.randrange(1, CALLS)
        try:
            launch(launch_saving, folder, last + 1, victims, at, wait, ranks=2, timeout=60)
        except RankError as error:
            assert "SIGKILL" in str(error)
            kills += 1
        found = find_latest(folder)
        assert found is not None or last == 0
        if found is not None:
            step = int(found.name[-8:])
            assert step in (last, last + 1), "the newest is the last good one, or the one that was being written"
            assert differing(values_of(found), values_of(expected[step])) == []
            last = step
        if last == 11 and kills < KILLS:
            runs += 1
            folder, last = tmp_path / str(runs), 0
    launch(launch_saving, folder, 12, (), 0, True, ranks=2, timeout=60)
    assert differing(values_of(folder / "step-00000012"), values_of(expected[12])) == []
    left = {path.name for path in folder.iterdir()} - {path.name for path in checkpoints_in(folder)}
    assert left == {".lock", "latest"}, "the next run takes away what killed ones left"


def save_again(comm: Collectives, folder: Path, kill_at: int) -> list[str]:
    """Step 2 is saved once more, as by a run that has gone on from step 1; killed at a call to the system, or not."""
    room, calls = Folder(folder), Calls(kill_at)
    draft = folder / draft_name(2, "0a0b0c0d")
    draft.mkdir()
    for file in sorted((folder / "step-00000002").iterdir()):
        (draft / file.name).write_bytes(file.read_bytes())
    room.commit(draft, 2, keep=1)
    for path in room.doomed:
        discard(path)
    calls.active = False
    return calls.noted


def test_a_kill_while_a_checkpoint_takes_the_place_of_another_leaves_one_of_the_two(
    expected: dict[int, Path], tmp_path: Path
) -> None:
    """Though there is no other: at each call from the first rename on."""

    def folder_of(kill_at: int) -> Path:
        shutil.copytree(expected[2], tmp_path / f"{kill_at}" / "step-00000002")
        return tmp_path / f"{kill_at}"

    calls = launch(save_again, folder_of(0), 0, ranks=1, timeout=60)[0]
    first = calls.index("os.rename") + 1
    assert calls.count("os.rename") == 3 and len(calls) - first > 10
    for kill_at in range(first, len(calls) + 1):
        folder = folder_of(kill_at)
        with pytest.raises(RankError, match="SIGKILL"):
            launch(save_again, folder, kill_at, ranks=1, timeout=60)
        for _ in range(2):
            found = find_latest(folder)
            assert found is not None and differing(values_of(found), values_of(expected[2])) == [], calls[kill_at - 1]
            # The next run takes away what is left of the other.
            Folder(folder).close()
        assert {path.name for path in folder.iterdir()} - {".lock", "latest"} == {"step-00000002"}


SCRIPT = """
import sys
sys.path.insert(0, {tests!r})
from pathlib import Path
from checkpoint_cases import launch_saving
from zerolab.ranks import launch
if __name__ == "__main__":
    print("begun", flush=True)
    while True:
        launch(launch_saving, Path({folder!r}), 12, (), 0, False, ranks=2)
"""


def test_a_killed_parent_leaves_the_last_good_checkpoint_and_no_rank(expected: dict[int, Path], tmp_path: Path) -> None:
    script = tmp_path / "script.py"
    folder = tmp_path / "run"
    script.write_text(SCRIPT.format(tests=str(Path(__file__).parent), folder=str(folder)))
    for moment in (0.05, 0.4):
        parent = born.python(script, stdout=subprocess.PIPE, text=True)
        try:
            assert parent.stdout is not None and parent.stdout.readline() == "begun\n"
            while find_latest(folder) is None:
                time.sleep(0.01)
            time.sleep(moment)
            family = psutil.Process(parent.pid).children(recursive=True)
        finally:
            os.kill(parent.pid, signal.SIGKILL)
            parent.wait()
        assert psutil.wait_procs(family, timeout=30)[1] == []
        found = find_latest(folder)
        assert found is not None
        assert differing(values_of(found), values_of(expected[int(found.name[-8:])])) == []


def test_the_kills_are_spread_over_all_calls_of_a_save(tmp_path: Path) -> None:
    """So that the numbers drawn above mean each moment: rank 0's calls in a save, by kind."""
    calls = launch(killed_at, tmp_path, ranks=2)
    assert 20 < len(calls[0]) < CALLS and 10 < len(calls[1]) < CALLS, [len(of_rank) for of_rank in calls]
    assert {"pwrite", "fsync", "open", "os.rename", "os.mkdir"} <= set(calls[0])
