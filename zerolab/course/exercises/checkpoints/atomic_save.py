"""Exercise of lesson 08: a save that may be killed at any moment. A kill is tried after and within every call."""

from __future__ import annotations

from random import Random
from typing import Any

from zerolab.course.exercises.checkpoints.disk import Disk, Moment, State, Written, below, moments, powerless
from zerolab.course.judge.case import Case, plural
from zerolab.course.judge.claims import never
from zerolab.course.judge.exercise import Claim, Exercise

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
CLAIMS = {
    "wrong": "load() gives what was saved last",
    "killed": "a kill at any moment leaves the checkpoint before or the new one",
    "power": "a failure of power does, too",
    "left": "only the newest checkpoint stays",
    "later": "a save after a kill is as good, and clears up",
    "changed": "the files that it is given stay as they were",
}
KILLS = {"killed": "it is killed", "power": "the power fails"}


def run_saves(fn: Any, comm: Any, saves: list[tuple[int, Files]]) -> dict[str, str]:
    """The first fault of each kind in all saves but the last, undisturbed; of each, in what a kill would leave; and in
    the last save, from all that."""
    found = dict.fromkeys(CLAIMS, "")
    state = State()
    *first, (last, newest) = saves
    for number, (step, files) in enumerate(first, 1):
        disk, given = Disk(state), dict(files)
        fn(disk, step, given)
        if given != files:
            found["changed"] = "it changed `files`, which belongs to the caller: work on a copy"
        found = faults(disk, state, files, f"save {number}") | {kind: said for kind, said in found.items() if said}
        if found["wrong"]:
            break
        state = disk._state
        if any(found[kill] for kill in KILLS):
            continue
        for where, killed in left_by(disk):
            if found["later"]:
                break
            after, called = Disk(killed), f"the save after a kill {where}"
            try:
                fn(after, last, dict(newest))
            except Exception as error:
                why = f"raises {type(error).__name__}: {error}; what was left behind is in its way"
                found["later"] = f"{called} {why}"
            else:
                found["later"] = next(filter(None, faults(after, killed, newest, called).values()), "")
    return found


def left_by(disk: Disk) -> list[tuple[str, State]]:
    """What a kill at any moment leaves, each once."""
    found: list[tuple[str, State]] = []
    for moment in moments(disk):
        for state in (moment.state, powerless(moment.state)):
            durable = {path: Written(data, True) for path, (data, _) in state.items()}
            if all(durable != known for _, known in found):
                found.append((place(disk, moment), durable))
    return found


def faults(disk: Disk, begun: State, files: Files, called: str) -> dict[str, str]:
    """What is wrong with a save to a disk that held `begun`, of each kind the first; '' where nothing is."""
    said = dict.fromkeys(CLAIMS, "")
    if loaded(disk._state) != files:
        said["wrong"] = f"after {called} load() gives {shown(loaded(disk._state))}, and {shown(files)} was saved"
    newest = named(disk._state) or ""
    for path in sorted({*disk._state} - {"latest", *below(disk._state, newest)})[:1]:
        top = path.partition("/")[0]
        left = path if newest.startswith(f"{top}/") else top
        said["left"] = f"after {called} {left} is still there, and only the newest checkpoint is to stay"
    for moment in moments(disk):
        for kill, state in zip(KILLS, (moment.state, powerless(moment.state)), strict=True):
            if not said[kill] and (why := broken(disk, moment, state, begun, files)):
                said[kill] = f"in {called}, {KILLS[kill]} {place(disk, moment)}: {why}"
    return said


def place(disk: Disk, moment: Moment) -> str:
    """Such as "after call 3, rename(a, b)"."""
    number = moment.calls + moment.within
    if not number:
        return "before its first call"
    what, *paths = disk._calls[number - 1]
    return f"{'within' if moment.within else 'after'} call {number}, {what}({', '.join(paths)})"


def named(state: State) -> str | None:
    """The folder that `latest` names."""
    return state["latest"].data.decode(errors="replace") if "latest" in state else None


def loaded(state: State) -> Files | None:
    """What `load` gives, None where it raises an error or finds nothing."""
    folder = named(state)
    return {path.removeprefix(f"{folder}/"): state[path].data for path in below(state, str(folder))} or None


def shown(files: Files | None) -> str:
    return f"{plural(len(files), 'file')} ({', '.join(sorted(files)[:3])})" if files else "nothing"


def broken(disk: Disk, moment: Moment, state: State, begun: State, files: Files) -> str:
    """Why what is found at this moment is neither the old checkpoint nor the new one."""
    old, got, done = loaded(begun), loaded(state), moment.calls == len(disk._calls)
    if got == files or (got == old and not done and ("latest" in state) == (old is not None)):
        return ""
    if "latest" not in state:
        return "`latest` is gone; a rename replaces what has that name, so nothing must be removed before"
    names, newest = named(state), named(disk._state)
    if names not in (named(begun), newest):
        return "`latest` is half written or empty: write a file of another name, sync it, and rename it"
    if old is not None and names == named(begun):
        own = "the new one needs a folder of its own, and the old one goes when `latest` has changed"
        return f"the checkpoint that `latest` still names is not what it was: {own}"
    for name in sorted({*files, *(got or {})}):
        if name not in files:
            return f"the new checkpoint has a file {name}, which is none of it: what was there before it?"
        if (got or {}).get(name) != files[name]:
            return f"`latest` names the new checkpoint, and {name} is not whole: sync a file before a name leads to it"
    return ""


SHARDS = ("model_rank0", "model_rank1", "optimizer_rank0", "manifest.json")


def cases(rng: Random) -> list[Case]:
    def case(about: str, *saves: tuple[int, int]) -> Case:
        """(step, number of files) of each save."""
        steps = ", ".join(str(step) for step, _ in saves)
        drawn = []
        for step, count in saves:
            names = SHARDS[:count] if count > 1 else SHARDS[-1:]
            drawn.append((step, {name: rng.randbytes(rng.randint(4, 20)) for name in names}))
        return Case([(drawn,)], about=f"{about} (steps {steps})")

    step = rng.randint(1, 50)
    return [
        case("the first save", (step, 2), (step + 1, 3)),
        case("one save after the other", (step, 3), (step + 10, 3), (step + 20, 3)),
        case("fewer files than before", (0, 4), (rng.randint(1, 9), 2), (10, 1)),
        case("more files than before", (step, 1), (100, 4), (101, 4)),
        case("a step that is saved again", (step, 3), (step, 4), (step, 2)),
        case("a step that is saved again after a later one", (step, 2), (step + 5, 2), (step, 4), (step + 5, 3)),
    ]


EXERCISE = Exercise(
    "atomic_save",
    cases,
    tuple(Claim(text, never(kind, "{it}")) for kind, text in CLAIMS.items()),
    run=run_saves,
    hints=(
        "One call makes the new checkpoint the newest. All that it leads to must be on the disk before it.",
        "Write and sync all files in a folder of its own; write and sync `latest` under another name; rename it.",
        "At the beginning, whatever `latest` does not name is left from a kill. At the end the old folder goes.",
    ),
    # A file's bytes are no data that a judge is shown.
    without=frozenset({"inputs"}),
    text=TEXT,
    answer=(atomic_save,),
    points=3,
)
