"""Settings that every test shares."""

import inherited  # noqa: F401, I001 (before torch)

import gc
import os
import sys
from collections.abc import Iterator
from contextlib import suppress
from importlib import import_module
from pathlib import Path

import pace
import pytest
import torch
from cover import NIGHTLY
from hypothesis import settings

from zerolab.ranks import forkserver

TESTS = Path(__file__).parent
# A room's tests share modules with those of another: all rooms are on the path.
sys.path += sorted({str(path.parent) for path in TESTS.glob("*/**/test_*.py")})

# Small tensors: a second thread only waits, and for long where other tests use the cores.
torch.set_num_threads(1)

# The same examples every run, so that green stays green, and more of them nightly; `explore` looks for new ones.
settings.register_profile("same", derandomize=True, deadline=None, max_examples=100 if NIGHTLY else 30)
settings.register_profile("explore", deadline=None, max_examples=500)
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "same"))

pace.stretch()

# Tests hold on a machine with a GPU, too: those of a GPU name it.
os.environ.setdefault("ZEROLAB_DEVICE", "cpu")

# A rank imports the file of the function that it runs, and so pytest, which takes it five times what its birth takes.
forkserver.PRELOAD[:0] = ["pytest", "hypothesis"]

# It parses a grammar for seconds, in each process that imports nbformat, for a format that no notebook asks for.
sys.modules.setdefault("rfc3987_syntax", None)  # type: ignore[arg-type]


def pytest_collection(session: pytest.Session) -> None:
    """Processes that share all tests import a part of them first, each another: pytest rewrites the asserts of a file
    in the first process that imports it, for seconds in all, and the others find that done."""
    shared = getattr(session.config, "workerinput", None)
    if shared and all(os.path.isdir(place) for place in session.config.args):
        files = sorted(TESTS.rglob("test_*.py"), key=lambda path: path.name)
        for path in files[int(shared["workerid"].removeprefix("gw")) :: shared["workercount"]]:
            # Collecting says what is wrong with it.
            with suppress(Exception, pytest.skip.Exception):
                import_module(path.stem)


@pytest.hookimpl(trylast=True)
def pytest_collection_finish() -> None:
    """What was imported and collected is no garbage: nobody looks for any in it again."""
    gc.collect()
    gc.freeze()


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_runtest_protocol(item: pytest.Item, nextitem: pytest.Item | None) -> Iterator[None]:
    """Each test has time by the machine's speed when it begins. And what a file leaves is no garbage: answers that are
    judged have all looked through for garbage again and again, for half a second each late in a run."""
    if limit := pace.limit_of(item):
        item.add_marker(pytest.mark.timeout(pace.seconds(limit)), append=False)
    result = yield
    if nextitem is not None and nextitem.path != item.path:
        gc.collect()
        gc.freeze()
    return result


@pytest.fixture
def undrawn(monkeypatch: pytest.MonkeyPatch) -> None:
    """Pictures have their words and numbers, and nobody takes the time to draw them, where a test looks at no pixel."""
    from zerolab.course.viz.picture import Picture

    monkeypatch.setattr(Picture, "_drawn", lambda picture: b"")


FIRST = (
    "test_grading_hostile.py", "test_zero_equal.py", "test_browser.py", "test_nbgrader.py",
    "test_blank_exercises_score_nothing_", "test_benchmarks.py", "test_outside.py", "test_plan_peak.py",
    "test_zero_states.py", "test_zero_compile.py", "test_zero_resident.py", "test_readme_commands.py",
)  # fmt: skip
"""What takes longest, by a part of its name: begun last, it would bound the end."""


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Processes that share the tests, each beginning with an equal part of the list, begin with the longest."""
    if hasattr(config, "workerinput"):
        items[:] = longest_first(items, config.workerinput["workercount"])


def longest_first(items: list[pytest.Item], parts: int) -> list[pytest.Item]:
    """The same items, those of FIRST dealt out to the beginnings of so many parts; a file's stay together, since they
    share what they start."""
    heads: list[list[pytest.Item]] = [[] for _ in range(parts)]
    for place, name in enumerate(FIRST):
        heads[place % parts] += [item for item in items if name in item.nodeid]
    others = [item for item in items if not any(name in item.nodeid for name in FIRST)]
    ends = [
        min(max(len(items) * (part + 1) // parts - sum(map(len, heads[: part + 1])), 0), len(others))
        for part in range(parts)
    ]
    ordered: list[pytest.Item] = []
    for head, begin, end in zip(heads, [0, *ends], ends, strict=False):
        ordered += [*head, *others[begin:end]]
    return ordered
