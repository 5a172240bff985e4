"""An exercise: the cases that a function is run on, and the claims that what it did is held to."""

from __future__ import annotations

import ast
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import zip_longest
from random import Random
from typing import Any

from zerolab.grading.case import Case, Observation, Trouble

Test = Callable[[Case, Observation], str | None]
Run = Callable[..., Any]
"""How a learner's function is called on a rank: `run(fn, comm, *args)`."""


def with_comm(fn: Callable[..., Any], comm: Any, *args: Any) -> Any:
    """Call it as a rank function."""
    return fn(comm, *args)


def alone(fn: Callable[..., Any], comm: Any, *args: Any) -> Any:
    """Call it as a plain function, on each rank."""
    return fn(*args)


@dataclass(frozen=True)
class Claim:
    """Something that must hold in every case. `test` returns a hint where it does not: what was tried, what came out,
    what was expected. Its own `hints`, if it has some, are given in the place of the exercise's."""

    text: str
    test: Test
    hints: tuple[str, ...] = ()


@dataclass(frozen=True)
class Score:
    """A line of the scoreboard: `measure` of the case with `board`, which may be `target` at most, or, with `exactly`,
    neither more nor less. `look` says where the rest may be lost, if need be from what was seen."""

    text: str
    measure: Callable[[Case, Observation], int]
    target: Callable[[Case], int]
    look: str | Callable[[Case, Observation], str]
    exactly: bool = False


@dataclass(frozen=True)
class Exercise:
    """`cases` draws new data for each generator it is given; `claims` come in the order in which to mend them, and
    after them the `scores`. Whoever fails the same claim again is shown one more of the `hints`."""

    name: str
    cases: Callable[[Random], list[Case]]
    claims: tuple[Claim, ...]
    run: Run = with_comm
    scores: tuple[Score, ...] = ()
    hints: tuple[str, ...] = ()
    memory: bool = False
    """Whether `Record.peak` is measured, which slows the answer down."""


@dataclass(frozen=True)
class Finding:
    """What became of one claim: True, False with a hint, or None where it was not reached; a score's has numbers."""

    text: str
    holds: bool | None
    hint: str = ""
    yours: int | None = None
    target: int | None = None


RUNS, RUNS_ALONE = "it runs to the end on every rank", "it runs to the end"


def judge(exercise: Exercise, cases: Sequence[Case], seen: Sequence[Observation]) -> list[Finding]:
    """A finding for each claim, the first being that the function runs at all. Claims rest on those before them, so
    nothing is said of a claim after one that does not hold."""
    single = exercise.run is alone or all(case.ranks == 1 for case in cases)
    claims = [Claim(RUNS_ALONE if single else RUNS, runs), *exercise.claims]
    findings: list[Finding] = []
    hint = ""
    for claim in claims:
        if hint:
            findings.append(Finding(claim.text, None))
            continue
        hint = first_hint(claim, cases, seen)
        findings.append(Finding(claim.text, not hint, hint))
    right = not hint
    return [*findings, *(scored(score, cases, seen, right) for score in exercise.scores)]


def scored(score: Score, cases: Sequence[Case], seen: Sequence[Observation], right: bool) -> Finding:
    """A line of the scoreboard. Speed and size mean nothing while values are wrong, so then it is not reached."""
    case, observation = next((pair for pair in zip(cases, seen, strict=False) if pair[0].board), (None, None))
    if not right or case is None or observation is None:
        return Finding(score.text, None)
    yours, target = score.measure(case, observation), score.target(case)
    holds = yours == target if score.exactly else yours <= target
    bound = "exactly" if score.exactly else "at most"
    if holds:
        return Finding(score.text, True, "", yours, target)
    look = score.look if isinstance(score.look, str) else score.look(case, observation)
    hint = f"{case.about}: {score.text}: {yours:,}, and the target is {bound} {target:,}: {look}"
    return Finding(score.text, False, hint, yours, target)


def first_hint(claim: Claim, cases: Sequence[Case], seen: Sequence[Observation]) -> str:
    """The hint of the first case in which a claim does not hold, or ''."""
    for case, observation in zip_longest(cases, seen, fillvalue=None):
        if case is None or observation is None:
            return "it ended before every case had run: do not end the process or its threads"
        try:
            hint = claim.test(case, observation)
        except Exception as error:  # whatever an answer may return, judging it goes on
            hint = f"what it returned cannot be judged ({type(error).__name__}: {error}): return what the text asks for"
        if hint:
            return hint
    return ""


def runs(case: Case, seen: Observation) -> str | None:
    """A hint unless every rank has come to its end."""
    if seen.trouble:
        return hint_for(seen.trouble, case)
    return None if len(seen.records) == case.ranks else f"{len(seen.records)} of {case.ranks} ranks came to their end"


def hint_for(trouble: Trouble, case: Case) -> str:
    """What to do about code that did not come to its end."""
    kind, said = trouble.kind, trouble.message
    at = f" ({trouble.where})" if trouble.where else ""
    # What befell a rank befell it in a case; a cell that does not even load has none.
    head = f"{case.about}: " if case.about and re.match(r"(the ranks|rank \d+) ", said) else ""
    if kind == "NotImplementedError":
        return "not written yet: put your code where it says YOUR CODE HERE"
    if kind == "DeadlockError":
        return f"{head}deadlock: {said}. {way_out(said)}"
    if kind == "MismatchError" and " is in #" in said:
        return f"{head}the ranks part ways: {said}"
    if kind == "MismatchError":
        return f"{head}two ranks met with different messages: {said}. {alike(said)}"
    if kind == "TimeOut":
        return f"{head}it takes too long, or does not end: {said}. Look for a loop that counts far, or has no end"
    if kind == "SystemExit":
        return "it calls exit: return a value instead, the grade comes from what your function does"
    if kind in ("Shortcut", "Tampered", "Missing"):
        return said
    if kind == "NameError":
        return f"{head}{said}{at}: only answer cells are graded, so keep helpers and imports inside the answer cell"
    if kind == "died":
        return "the process that ran your code ended at once: look for what ends it, and at the memory it takes"
    if kind == "MemoryError" or "can't allocate memory" in said:
        return f"{head}it needs more memory than the limit{at}: look for what grows"
    if "message with itself" in said and case.ranks == 1:
        return f"{head}it sends to itself{at}: there is no neighbour, and a ring of one sends nothing"
    return f"{head}{said}{at}"


def way_out(said: str) -> str:
    """What to do about a deadlock, from its report."""
    if re.search(r"in #\d+ ", said) and "has returned" in said:
        return "A collective needs every rank: which one does not call it?"
    if len(set(re.findall(r"in #(\d+) broadcast", said))) == 1 and said.count("waits to send") > 1:
        return "In a broadcast one rank sends and the others receive: all ranks must name the same src"
    for rank, verb, peer in re.findall(r"rank (\d+) (?:[^;]*? )?waits to (send to|receive from) rank (\d+)", said):
        if re.search(rf"rank {peer} has (?:already )?returned", said):
            if verb == "send to":
                return f"Rank {rank} sends to a rank that has already finished: who should not send?"
            return f"Rank {rank} waits to receive from a rank that has already finished: who has nothing to receive?"
    if "waits to send" not in said:
        return "Everybody waits to receive: who has nothing to receive, and sends first?"
    return "Post a receive before you wait for a send: irecv, isend, then both wait()"


def alike(said: str) -> str:
    """What to do about messages of two sizes, from the report."""
    chunk = "ask which chunk the left neighbour sends in this step"
    found = re.search(r"sends (\d+) bytes.* receives (\d+)", said)
    sizes = sorted(int(size) for size in found.groups()) if found else []
    if sizes and sizes[0] and sizes[1] % sizes[0] == 0:
        dtype = "If both have the same number of elements, the dtypes differ"
        return f"{dtype}: new tensors take the input's dtype (empty_like, new_empty). Else {chunk}"
    return chunk.capitalize()


# What an answer may use. The point of an exercise is to build a thing, so the built thing is out of reach.

ALLOWED_IMPORTS = {
    "__future__",
    "bisect",
    "collections",
    "contextlib",
    "copy",
    "dataclasses",
    "fractions",
    "functools",
    "heapq",
    "itertools",
    "math",
    "operator",
    "statistics",
    "torch",
    "typing",
    "weakref",
}
_INSIDE = ("sys", "inspect", "gc", "builtins", "vars", "globals", "locals", "compile", "methodcaller")
_FRAMES = ("f_back", "f_globals", "f_locals", "f_builtins", "gi_frame", "cr_frame", "ag_frame", "tb_frame")
OFF_LIMITS = {
    "distributed": "torch.distributed has the finished collective",
    "transport": "comm.transport is below the contract; comm.isend and comm.irecv are all you need",
    "meter": "comm.meter is what the check reads",
    **dict.fromkeys(("open", "save", "load", "from_file", "tofile"), "a file has no place in this answer"),
    **dict.fromkeys((*_INSIDE, *_FRAMES), "work with what you are given, not from inside Python"),
    **dict.fromkeys(("getattr", "setattr", "delattr", "attrgetter"), "write the attribute's name in the code itself"),
    **dict.fromkeys(("importlib", "import_module"), "the answer has no need of it: build it from what you are given"),
    "get_ipython": "an answer runs as plain Python, so delete lines that begin with % or !",
    "exit": "a function that ends the process returns nothing",
    "_exit": "a function that ends the process returns nothing",
}
OFF_LIMITS_ALONE = dict.fromkeys(("exec", "eval"), "write the code itself, not a text of it")
"""Names that are off limits by themselves. As a method, such as `module.eval()`, they are something else."""

_ARITHMETIC = "add sub mul matmul truediv floordiv mod divmod pow and or xor lshift rshift"
_VERBS = (
    "init post_init name slots call enter exit repr str bool int float index hash eq ne lt le gt ge neg pos abs invert "
    "len iter next reversed contains getitem setitem delitem"
)
ORDINARY = {f"__{verb}__" for verb in _VERBS.split()}
ORDINARY |= {f"__{side}{verb}__" for verb in _ARITHMETIC.split() for side in ("", "r", "i")}
"""What operators and statements call anyway. All else with such a name reaches into Python."""


def shortcut(source: str) -> Trouble | None:
    """The first thing in an answer that goes around the exercise, or the line that is not Python."""
    try:
        tree = ast.parse(source)
    except SyntaxError as error:
        return Trouble("SyntaxError", not_python(source, error))
    for node in ast.walk(tree):
        for name in imported(node):
            first, *rest = name.split(".")
            if first not in ALLOWED_IMPORTS or "distributed" in name:
                return Trouble(
                    "Shortcut", f"it imports {name}, which the answer has no need of: build it from what you are given"
                )
            for part in rest:
                if part in OFF_LIMITS:
                    return Trouble("Shortcut", f"it uses {part}: {OFF_LIMITS[part]}")
        for name in names_in(node):
            if why := why_not(name, isinstance(node, ast.Name)):
                return Trouble("Shortcut", f"it uses {name}: {why}")
    return None


def names_in(node: ast.AST) -> list[str]:
    """The names by which a node reaches for something. A class pattern reads attributes, too."""
    if isinstance(node, ast.Attribute):
        return [node.attr]
    if isinstance(node, ast.Name):
        return [node.id]
    return node.kwd_attrs if isinstance(node, ast.MatchClass) else []


def why_not(name: str, alone: bool) -> str | None:
    """Why an answer may not use a name, if it may not; `alone`, if it is no attribute of something."""
    if alone and name in OFF_LIMITS_ALONE:
        return OFF_LIMITS_ALONE[name]
    if name.startswith("__") and name not in ORDINARY:
        return "what has such a name is Python's own"
    return OFF_LIMITS.get(name)


def not_python(source: str, error: SyntaxError) -> str:
    """What is wrong with a line; a notebook lets some lines pass that are no Python."""
    line = "".join(source.splitlines()[(error.lineno or 0) - 1 : error.lineno]).strip()
    if re.match(r"[%!?]|\w+ *= *[%!]", line) or line.endswith("?"):
        shown = line if len(line) <= 40 else line[:37] + "..."
        return f"line {error.lineno} is a command to IPython ({shown}): an answer runs as plain Python, so delete it"
    return f"line {error.lineno} is not Python: {error.msg}"


def imported(node: ast.AST) -> list[str]:
    if isinstance(node, ast.Import):
        return [alias.name for alias in node.names]
    if isinstance(node, ast.ImportFrom):
        return [f"{node.module or '.'}.{alias.name}" for alias in node.names]
    return []
