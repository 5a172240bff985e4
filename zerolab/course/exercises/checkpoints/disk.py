"""A disk that notes what is done to it, and shows what a kill or a failure of power leaves at any call."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple


class Written(NamedTuple):
    """What a file holds, and whether it is sure to be there when the power has failed."""

    data: bytes
    synced: bool


State = dict[str, Written]
"""The files of a disk by path. A folder is there as long as a file is in it."""
Call = tuple[str, ...]


class Disk:
    """Files by path, such as "latest" and "step-7/model". Names are on the disk at once; bytes are when they are
    synced. `calls` are those that changed something, and `before` is what the disk held before each."""

    def __init__(self, state: State | None = None) -> None:
        self._state: State = dict(state or {})
        self._calls: list[Call] = []
        self._before: list[State] = []

    def write(self, path: str, data: bytes) -> None:
        """Make `data` what the file holds, whether it was there or not."""
        if below(self._state, path):
            raise IsADirectoryError(f"{path} is a folder")
        self._note("write", path)
        self._state[path] = Written(bytes(memoryview(data)), False)

    def sync(self, path: str) -> None:
        """Return when what the file holds is on the disk. A folder needs none."""
        self._find(path)
        self._note("sync", path)
        if path in self._state:
            self._state[path] = self._state[path]._replace(synced=True)

    def rename(self, old: str, new: str) -> None:
        """Give a file or a folder another name, whole or not at all. A file that has that name is replaced."""
        self._find(old)
        if below(self._state, new) or (old not in self._state and new in self._state):
            raise FileExistsError(f"{new} is there already")
        self._note("rename", old, new)
        moved = {new + path.removeprefix(old): self._state.pop(path) for path in [*below(self._state, old)]}
        self._state.update(moved or {new: self._state.pop(old)} if old != new else {})

    def remove(self, path: str) -> None:
        """Remove a file, or a folder with all that is in it, one file after the other."""
        self._find(path)
        self._note("remove", path)
        for one in [*below(self._state, path)] or [path]:
            del self._state[one]

    def read(self, path: str) -> bytes:
        """What the file holds."""
        if path not in self._state:
            raise FileNotFoundError(f"there is no file {path}")
        return self._state[path].data

    def listdir(self, path: str = "") -> list[str]:
        """The names of files and folders in a folder; none if it is not there."""
        inside = [one.removeprefix(f"{path}/") for one in (below(self._state, path) if path else self._state)]
        return sorted({one.partition("/")[0] for one in inside})

    def after_power_failure(self) -> Disk:
        """What is on the disk when the power fails now: bytes that were not synced are gone."""
        return Disk(powerless(self._state))

    def _find(self, path: str) -> None:
        if path not in self._state and not below(self._state, path):
            raise FileNotFoundError(f"there is no {path}")

    def _note(self, *call: str) -> None:
        self._calls.append(call)
        self._before.append(dict(self._state))


def below(state: State, folder: str) -> list[str]:
    """The files in a folder."""
    return [path for path in state if path.startswith(f"{folder}/")]


def powerless(state: State) -> State:
    return {path: Written(data if synced else b"", True) for path, (data, synced) in state.items()}


class Moment(NamedTuple):
    """A moment of a save: behind so many of its calls, or within the next one."""

    calls: int
    within: bool
    state: State


def moments(disk: Disk) -> Iterator[Moment]:
    """Every moment of what was done to a disk, with what is there then."""
    states = [*disk._before, disk._state]
    for number, state in enumerate(states):
        yield Moment(number, False, state)
        if number < len(disk._calls):
            what, path, *_ = disk._calls[number]
            half = dict(state)
            if what == "write":
                data = states[number + 1][path].data
                half[path] = Written(data[: len(data) // 2], False)
                yield Moment(number, True, half)
            elif what == "remove" and len(gone := below(state, path)) > 1:
                yield Moment(number, True, {one: file for one, file in half.items() if one not in gone[::2]})
