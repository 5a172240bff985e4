"""Exercise of lesson 08: a save that may be killed at any moment. A kill is tried after and within every call."""

from __future__ import annotations

from collections.abc import Callable
from random import Random
from typing import Any, NamedTuple

from zerolab.course.exercises.checkpoints.disk import Disk, Moment, State, Written, below, moments, powerless
from zerolab.course.judge.case import Case, Record, plural
from zerolab.course.judge.claims import each_rank
from zerolab.course.judge.exercise import Claim, Exercise, Test

TEXT = '''
Whole, or not at all

Save a checkpoint so that whoever loads finds one that is whole, whatever happens in between: a kill, or a failure of
power. You get a disk. Its paths are texts such as `"latest"` and `"step-7/model"`; a folder is there as long as a
file is in it.

| call | what it does |
| --- | --- |
| `disk.write(path, data)` | the file holds these bytes, whether it was there before or not |
| `disk.sync(path)` | returns when what the file holds is on the disk; a folder needs none |
| `disk.rename(old, new)` | another name, whole or not at all; replaces a file, refuses a folder (`FileExistsError`) |
| `disk.remove(path)` | removes a file, or a folder with all that is in it |
| `disk.read(path)` | the bytes that a file holds |
| `disk.listdir(path)` | the names in a folder, or, without a path, on the top; none if there is no such folder |

To read, sync, rename or remove what is not there is a `FileNotFoundError`.

A *kill* may come between two calls and within one. Within a `write` a part of the bytes is there, within the `remove`
of a folder some of its files are gone. A *failure of power* takes, besides, all bytes that no `sync` followed. (Names
are on this disk at once, in the order of your calls. On a real one you sync the folder for that.) Whoever loads does
it so:

```{code-cell}
:name: load

from zerolab.course.exercises.checkpoints.disk import Disk


def load(disk) -> dict[str, bytes]:
    """The files of the newest checkpoint. Raises a FileNotFoundError if there is no `latest`."""
    folder = disk.read("latest").decode()
    return {name: disk.read(f"{folder}/{name}") for name in disk.listdir(folder)}
```

```{code-cell}
:name: shown_disk

disk = Disk()
disk.write("step-1/model", b"all numbers")
disk.write("latest", b"step-1")
disk.sync("latest")
load(disk), load(disk.after_power_failure())
```

Write `atomic_save(disk, step, files)`; `files` are the bytes of at least one file, by name, without folders.

- When it has returned, `load` gives `files`, also if the power fails then. All else is gone, but `latest` and the
  folder that it names.
- Before, at any moment, `load` gives what it gave before the save, or `files`. If there was no checkpoint before,
  there is no `latest`, or `load` gives `files`.
- A save that was killed may have left anything else behind. Later saves work all the same, and clear it away.
- A step may be saved again, with other files, also right after itself.

`latest` is the only name that is given; how the folder is called is up to you. The check draws several saves of 1 to
4 files and of other steps each time, kills each after and within every call, and has another save follow each kill.
About fifteen lines.
'''


def atomic_save(disk, step: int, files: dict[str, bytes]) -> None:
    """Make `files` the newest checkpoint, whole or not at all."""
    ### BEGIN SOLUTION
    there = disk.listdir()
    newest = disk.read("latest").decode() if "latest" in there else ""
    for name in there:
        if name not in ("latest", newest):
            disk.remove(name)
    folder = f"step-{step}" if newest != f"step-{step}" else f"step-{step}-again"
    for name, data in files.items():
        disk.write(f"{folder}/{name}", data)
        disk.sync(f"{folder}/{name}")
    disk.write("latest.new", folder.encode())
    disk.sync("latest.new")
    disk.rename("latest.new", "latest")
    if newest:
        disk.remove(newest)
    ### END SOLUTION


Files = dict[str, bytes]
LATEST = "latest"
KILLS = {"killed": "it is killed", "power": "the power fails"}


def run_saves(fn: Callable[..., Any], comm: Any, saves: list[tuple[int, Files]]) -> dict[str, Any]:
    """All saves but the last, undisturbed; of each, what a kill would leave; and from all that, the last."""
    found: dict[str, Any] = {"wrong": None, "left": None, "changed": False, "later": None}
    found |= dict.fromkeys(KILLS)
    state, before = State(), Saved(None, None)
    *first, last = saves
    for number, (step, files) in enumerate(first, 1):
        given = dict(files)
        disk = Disk(state)
        fn(disk, step, given)
        found["changed"] |= given != files
        note(found, disk, before, files, f"save {number}", "wrong", "left", *KILLS)
        if found["wrong"]:
            return found
        kept, state, before = [*left_by(disk)], disk._state, Saved(files, disk._state[LATEST].data)
        if not any(found[kill] for kill in KILLS):
            for moment, killed in kept:
                if found["later"] is None:
                    found["later"] = later(fn, killed, last, f"the save after a kill {place(disk, moment)}")
    return found


class Saved(NamedTuple):
    """A checkpoint, or None, and what `latest` says where it is the newest."""

    files: Files | None
    latest: bytes | None


def left_by(disk: Disk) -> list[tuple[Moment, State]]:
    """What a kill at any moment leaves, each once."""
    known: list[State] = []
    found = []
    for moment in moments(disk):
        for state in (moment.state, powerless(moment.state)):
            durable = {path: Written(data, True) for path, (data, _) in state.items()}
            if durable not in known:
                known.append(durable)
                found.append((moment, durable))
    return found


def later(fn: Callable[..., Any], state: State, save: tuple[int, Files], called: str) -> str | None:
    """What is wrong with a save to a disk on which another was killed."""
    step, files = save
    latest = state[LATEST].data if LATEST in state else None
    disk, found = Disk(state), dict[str, Any]()
    try:
        fn(disk, step, dict(files))
    except Exception as error:
        return f"{called} raises {type(error).__name__}: {error}; what was left behind is in its way"
    note(found, disk, Saved(loaded(state), latest), files, called, "wrong", "left", *KILLS)
    return next(filter(None, found.values()), None)


def note(found: dict[str, Any], disk: Disk, before: Saved, files: Files, called: str, *names: str) -> None:
    """Under each name the first that is wrong with a save."""
    said: dict[str, str | None] = {}
    got = loaded(disk._state)
    if got != files:
        said["wrong"] = f"after {called} load() gives {shown(got)}, and {shown(files)} was saved"
    newest = disk._state[LATEST].data.decode(errors="replace") if LATEST in disk._state else ""
    others = sorted({*disk._state} - {LATEST, *below(disk._state, newest)})
    if others:
        top = others[0].partition("/")[0]
        left = others[0] if newest.startswith(f"{top}/") else top
        said["left"] = f"after {called} {left} is still there, and only the newest checkpoint is to stay"
    for moment in moments(disk):
        for kill, state in zip(KILLS, (moment.state, powerless(moment.state)), strict=True):
            if kill not in said and (why := broken(disk, moment, state, before, files)):
                said[kill] = f"in {called}, {KILLS[kill]} {place(disk, moment)}: {why}"
    for name in names:
        found[name] = found.get(name) or said.get(name)


def place(disk: Disk, moment: Moment) -> str:
    """Such as "after call 3, rename(a, b)"."""
    if not moment.calls and not moment.within:
        return "before its first call"
    number = moment.calls + moment.within
    what, *paths = disk._calls[number - 1]
    return f"{'within' if moment.within else 'after'} call {number}, {what}({', '.join(paths)})"


def loaded(state: State) -> Files | None:
    """What `load` gives, None where it raises an error."""
    if LATEST not in state:
        return None
    folder = state[LATEST].data.decode(errors="replace")
    inside = {path.removeprefix(f"{folder}/"): state[path].data for path in below(state, folder)}
    return inside or None


def shown(files: Files | None) -> str:
    return "nothing" if files is None else plural(len(files), "file") + f" ({', '.join(sorted(files)[:3])})"


def broken(disk: Disk, moment: Moment, state: State, before: Saved, files: Files) -> str | None:
    """Why what is found at this moment is neither the old checkpoint nor the new one."""
    got = loaded(state)
    done = moment.calls == len(disk._calls)
    if got == files or (got == before.files and not done and (LATEST in state) == (before.files is not None)):
        return None
    if LATEST not in state:
        return "`latest` is gone; a rename replaces what has that name, so nothing must be removed before"
    latest, newest = state[LATEST].data, disk._state[LATEST].data if LATEST in disk._state else None
    if latest not in (before.latest, newest):
        return "`latest` is half written or empty: write a file of another name, sync it, and rename it"
    folder = latest.decode(errors="replace")
    if before.files is not None and latest == before.latest:
        if latest != newest and all(state[path].data == before.files.get(name) for name, path in inside(state, folder)):
            return (
                "`latest` still names the old checkpoint, which is gone or half gone: remove it when that has changed"
            )
        return "the checkpoint that `latest` names is written over: a new one needs a folder of its own"
    there = dict(inside(state, folder))
    lacking = [name for name in files if name not in there]
    if lacking:
        return f"`latest` names the new checkpoint, and {lacking[0]} is not there yet: it comes last"
    odd = sorted(name for name in there if name not in files)
    if odd:
        return f"the new checkpoint has a file {odd[0]}, which is none of it: what was there before it?"
    name = next(name for name in files if state[there[name]].data != files[name])
    return f"`latest` names the new checkpoint, and {name} is not whole: sync a file before a name leads to it"


def inside(state: State, folder: str) -> list[tuple[str, str]]:
    return [(path.removeprefix(f"{folder}/"), path) for path in below(state, folder)]


# Claims.


def nothing_noted(name: str) -> Test:
    @each_rank
    def test(case: Case, rank: int, record: Record) -> str | None:
        said: str | None = record.value[name]
        return said

    return test


@each_rank
def files_stay(case: Case, rank: int, record: Record) -> str | None:
    return "it changed `files`, which belongs to the caller: work on a copy" if record.value["changed"] else None


# Cases.


def files_of(rng: Random, names: tuple[str, ...]) -> Files:
    return {name: rng.randbytes(rng.randint(4, 20)) for name in names}


SHARDS = ("model_rank0", "model_rank1", "optimizer_rank0", "manifest.json")


def case_of(rng: Random, about: str, *saves: tuple[int, int]) -> Case:
    """(step, number of files) of each save."""
    drawn = [(step, files_of(rng, SHARDS[:count] if count > 1 else SHARDS[-1:])) for step, count in saves]
    steps = ", ".join(str(step) for step, _ in saves)
    return Case([(drawn,)], about=f"{about} (steps {steps})")


def cases(rng: Random) -> list[Case]:
    step = rng.randint(1, 50)
    return [
        case_of(rng, "the first save", (step, 2), (step + 1, 3)),
        case_of(rng, "one save after the other", (step, 3), (step + 10, 3), (step + 20, 3)),
        case_of(rng, "fewer files than before", (0, 4), (rng.randint(1, 9), 2), (10, 1)),
        case_of(rng, "more files than before", (step, 1), (100, 4), (101, 4)),
        case_of(rng, "a step that is saved again", (step, 3), (step, 4), (step, 2)),
        case_of(
            rng, "a step that is saved again after a later one", (step, 2), (step + 5, 2), (step, 4), (step + 5, 3)
        ),
    ]


EXERCISE = Exercise(
    "atomic_save",
    cases,
    (
        Claim("load() gives what was saved last", nothing_noted("wrong")),
        Claim("a kill at any moment leaves the checkpoint before or the new one", nothing_noted("killed")),
        Claim("a failure of power does, too", nothing_noted("power")),
        Claim("only the newest checkpoint stays", nothing_noted("left")),
        Claim("a save after a kill is as good, and clears up", nothing_noted("later")),
        Claim("the files that it is given stay as they were", files_stay),
    ),
    run=run_saves,
    hints=(
        "One call makes the new checkpoint the newest. All that it leads to must be on the disk before it.",
        "Write and sync all files in a folder of its own; write and sync `latest` under another name; rename it.",
        "At the beginning, whatever `latest` does not name is left from a kill. At the end the old folder goes.",
    ),
    text=TEXT,
    answer=(atomic_save,),
    points=3,
)
