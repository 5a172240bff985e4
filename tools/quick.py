"""`make quick`: the tests that a change touches, the nearest by imports first, for so many seconds.

The change is what differs from the branch `main`, committed or not. A test file is as far from a changed file as there
are imports between them. Of the zoo the answers to changed exercises are judged. What was left out is said at the end:
`make test` runs it.
"""

from __future__ import annotations

import argparse
import ast
import os
import re
import subprocess
import sys
import time
from collections.abc import Iterable, Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
ALWAYS = "tests/house/test_house.py"
# What is no Python file stands behind these.
BESIDE = (
    (
        r"(notebooks|solutions|exercises)/.*\.ipynb",
        ("tests/course/notebooks/test_notebooks.py", "tests/course/grade/test_grading.py"),
    ),
    (r"README.md", ("tests/house/test_readme.py", "tests/house/test_readme_commands.py")),
    (r"benchmarks/.*", ("tests/house/test_benchmarks.py",)),
)  # fmt: skip
ZOO = ("tests/course/grade/test_grading_zoo.py", "tests/course/grade/test_grading_right.py")
OF_AN_EXERCISE = re.compile(r"(?:zerolab/course/exercises|tests/zoo|tests/zoo/wrong)/(\w+)/(\w+)\.(?:py|txt)")


def changed() -> set[str]:
    """Files that differ from `main`, relative to the checkout; without such a branch, from the last commit."""
    base = git("merge-base", "HEAD", "main") or ["HEAD"]
    return {*git("diff", "--name-only", base[0]), *git("ls-files", "--others", "--exclude-standard")}


def git(*words: str) -> list[str]:
    """The lines that git says; none where it cannot."""
    done = subprocess.run(["git", *words], cwd=ROOT, capture_output=True, text=True, check=False)
    return done.stdout.split("\n")[:-1] if done.returncode == 0 else []


def modules(root: Path = ROOT) -> dict[str, str]:
    """Files by the names under which they are imported: without the folders that are no packages."""
    found = {}
    for folder in ("zerolab", "benchmarks", "tests", "tools"):
        for path in sorted((root / folder).rglob("*.py")):
            top = path.parent
            while (top / "__init__.py").exists():
                top = top.parent
            name = path.relative_to(top).with_suffix("").parts
            found[".".join(name[:-1] if name[-1] == "__init__" else name)] = str(path.relative_to(root))
    return found


def imports(text: str) -> Iterator[tuple[str, str]]:
    """(module, name) of each import; without a name where it is the module itself."""
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.Import):
            yield from ((alias.name, "") for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
            yield from ((node.module, alias.name) for alias in node.names)


def graph(root: Path = ROOT) -> dict[str, set[str]]:
    """The files that each file imports. Who imports a name from a package imports the file that defines it, not all
    that the package hands on."""
    known = modules(root)
    said = {path: list(imports((root / path).read_text(encoding="utf-8"))) for path in known.values()}

    def files(module: str, name: str) -> set[str]:
        if f"{module}.{name}" in known:
            return {known[f"{module}.{name}"]}
        path = known.get(module)
        if path is None:
            return set()
        handed_on = {end: start for start, end in said[path] if start != module} if is_package(path) else {}
        return {path} | (files(handed_on[name], name) if name in handed_on else set())

    return {
        path: set().union(*(files(*one) for one in those)) if those and not is_package(path) else set()
        for path, those in said.items()
    }


def is_package(path: str) -> bool:
    return path.endswith("__init__.py")


def distances(files: Iterable[str], house: dict[str, set[str]]) -> dict[str, int]:
    """How many imports each file is away from the nearest of `files`."""
    far = dict.fromkeys(files, 0)
    ring, steps = set(far), 0
    while ring:
        steps += 1
        ring = {path for path, those in house.items() if those & ring and path not in far}
        far |= dict.fromkeys(ring, steps)
    return far


def tests_for(files: set[str], house: dict[str, set[str]]) -> list[str]:
    """The house's own, then test files, the nearest first, and of those as near small ones; the longest, where they are
    not changed themselves, last."""
    far = distances(files, house)
    for path in files:
        far |= {test: 0 for pattern, tests in BESIDE if re.fullmatch(pattern, path) for test in tests}
    if exercises_in(files):
        far |= dict.fromkeys(ZOO, 0)
    tests = [path for path in far if re.fullmatch(r"tests/([\w/]+/)?test_\w+\.py", path) and (ROOT / path).is_file()]
    late = longest()
    tests.sort(key=lambda path: (far[path] > 0 and Path(path).name in late, far[path], (ROOT / path).stat().st_size))
    return [ALWAYS, *(path for path in tests if path != ALWAYS)]


def longest() -> tuple[str, ...]:
    """What tests/conftest.py names as what takes longest."""
    lines = ast.parse((ROOT / "tests" / "conftest.py").read_text(encoding="utf-8")).body
    (value,) = (
        line.value for line in lines if isinstance(line, ast.Assign) and ast.unparse(line.targets[0]) == "FIRST"
    )
    found: tuple[str, ...] = ast.literal_eval(value)
    return found


def exercises_in(files: Iterable[str]) -> set[str]:
    """Exercises whose checks or answers changed, by the names of their files."""
    found = filter(None, (OF_AN_EXERCISE.fullmatch(path) for path in files))
    return {match[2] for match in found if match[2] != "__init__"}


class Quick:
    """A pytest plugin that runs for so many seconds and keeps to some exercises' answers in the zoo."""

    def __init__(self, seconds: float, exercises: set[str]) -> None:
        self.until = time.monotonic() + seconds
        self.exercises = exercises
        self.left_out = 0

    def pytest_collection_modifyitems(self, config: pytest.Config, items: list[pytest.Item]) -> None:
        away = [item for item in items if not self.concerns(item)]
        items[:] = [item for item in items if item not in set(away)]
        config.hook.pytest_deselected(items=away)

    def concerns(self, item: pytest.Item) -> bool:
        """Whether it is no answer in the zoo, or one to an exercise that changed."""
        values = getattr(getattr(item, "callspec", None), "params", {}).values()
        answers = [value.exercise for value in values if hasattr(value, "exercise")]
        return not answers or as_file(answers[0]) in self.exercises

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtest_protocol(self) -> bool | None:
        if time.monotonic() < self.until:
            return None
        self.left_out += 1
        return True

    def pytest_terminal_summary(self, terminalreporter: pytest.TerminalReporter) -> None:
        if self.left_out:
            terminalreporter.write_line(f"quick: the time is over; {self.left_out} tests are left for `make test`.")


def as_file(exercise: str) -> str:
    return re.sub(r"(?<=[a-z])(?=[A-Z])", "_", exercise).lower()


def main(words: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=float, default=50.0, help="for the tests; lint and types come before")
    parser.add_argument("--list", action="store_true", help="only name the test files, the nearest first")
    asked = parser.parse_args(words)
    files = changed()
    tests = tests_for(files, graph())
    print(f"quick: {len(files)} changed files, {len(tests)} test files, the nearest first", flush=True)
    if asked.list:
        print("\n".join(tests))
        return 0
    if exercises_in(files):
        os.environ["ZEROLAB_EVERY_ANSWER"] = "1"  # tests/cover.py
    where = ["--rootdir", str(ROOT), *(str(ROOT / path) for path in tests)]
    return int(pytest.main(["-q", "-x", *where], plugins=[Quick(asked.seconds, exercises_in(files))]))


if __name__ == "__main__":
    sys.exit(main())
