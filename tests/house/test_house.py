"""The house stands: floors, file sizes, pins, and the commands that the documents name."""

import ast
import os
import re
import runpy
import subprocess
import sys
import tomllib
from collections import Counter
from collections.abc import Iterable, Iterator
from graphlib import CycleError, TopologicalSorter
from pathlib import Path

import pytest
import yaml
from packaging.requirements import Requirement
from packaging.specifiers import SpecifierSet
from packaging.utils import canonicalize_name

from zerolab.course.exercises import LESSONS
from zerolab.course.judge.exercise import Exercise

ROOT = Path(__file__).resolve().parents[2]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
EXTRAS = PROJECT["optional-dependencies"]
SOURCES = sorted((ROOT / "zerolab").rglob("*.py"))
MAKEFILE = (ROOT / "Makefile").read_text()


def read_floors(text: str) -> tuple[dict[str, int], set[str]]:
    """The floor of each room, and the rooms beside them, from the tables in docs/design.md; a room of the course is
    "course.viz", one of the apps "apps.plan". Anyone may import what stands beside; that imports nothing of ours but
    errors, files and lazy (and its own)."""
    floors: dict[str, int] = {}
    beside: set[str] = set()
    wing = ""
    for line in text.splitlines():
        if found := re.match(r"    the (library|apps|course), zerolab/", line):
            wing = "" if found[1] == "library" else f"{found[1]}."
        elif found := re.match(r"    (?:floor (\d+)|beside) +(\w+(?:, \w+)*)  ", line):
            rooms = [name if name in WINGS else wing + name for name in found[2].split(", ")]
            if found[1]:
                floors |= dict.fromkeys(rooms, int(found[1]))
            else:
                beside |= set(rooms)
    return floors, beside


WINGS = ("apps", "course")
FLOORS, BESIDE = read_floors((ROOT / "docs" / "design.md").read_text(encoding="utf-8"))


def room_of(path: Path) -> str:
    """zerolab/flat/layout.py and zerolab/flat.py are both in the room `flat`; zerolab/course/viz/ring.py is in
    `course.viz`, and zerolab/course/__init__.py, the door of that wing, in `course`."""
    parts = path.relative_to(ROOT / "zerolab").with_suffix("").parts
    return named_room(part for part in parts if part != "__init__") if len(parts) > 1 else parts[0]


def named_room(parts: Iterable[str]) -> str:
    """The room of a module, by the parts of its name after `zerolab`."""
    first, *rest = [*parts, ""]
    return f"{first}.{rest[0]}" if first in WINGS and rest[0] else first


def absolute(node: ast.ImportFrom, path: Path) -> str:
    """The module that a `from` import names, with leading dots resolved against `path`."""
    if not node.level:
        return node.module or ""
    package = path.relative_to(ROOT).with_suffix("").parts[: -node.level]
    return ".".join([*package, *filter(None, [node.module])])


def rooms_imported(source: str, path: Path) -> Iterator[str]:
    """Rooms of zerolab that `source`, lying at `path`, imports; '' stands for the package itself."""
    for node in ast.walk(ast.parse(source)):
        names: list[str] = []
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            module = absolute(node, path)
            door = module in ("zerolab", *(f"zerolab.{wing}" for wing in WINGS))
            names = [f"{module}.{alias.name}" for alias in node.names] if door else [module]
        for name in names:
            parts = name.split(".")
            # The version is the package's own, and everybody may ask for it.
            if parts[0] == "zerolab" and parts[1:] != ["__version__"]:
                yield named_room(parts[1:])


def may_import(room: str, other: str) -> bool:
    """Whether a file in `room` may import from the room `other`."""
    if other == room or other in ("errors", "files", "lazy"):
        return True
    if room in BESIDE:
        return False
    return other in BESIDE or (other in FLOORS and FLOORS[other] <= FLOORS[room])


def pins(lines: list[str]) -> dict[str, str]:
    """`name==version` lines, comments left out, by canonical name."""
    found = [line.split("==") for line in lines if line and not line.startswith(("#", "-"))]
    return {canonicalize_name(name): version for name, version in found}


def requirements(extra: str | None = None) -> list[Requirement]:
    """What pyproject.toml asks for, at run time or in an extra, our own extras left out."""
    named = map(Requirement, EXTRAS[extra] if extra else PROJECT["dependencies"])
    return [requirement for requirement in named if requirement.name != "zerolab"]


def constraints() -> dict[str, str]:
    return pins((ROOT / "constraints.txt").read_text().splitlines())


def environment() -> dict:
    return yaml.safe_load((ROOT / "environment.yml").read_text())


def environment_pip() -> list[str]:
    return next(entry["pip"] for entry in environment()["dependencies"] if isinstance(entry, dict))


def tracked() -> list[Path]:
    """Files that git tracks; the test is skipped in a copy that is not a checkout."""
    listed = subprocess.run(["git", "ls-files", "-z"], cwd=ROOT, capture_output=True, text=True, timeout=30)
    if listed.returncode:
        pytest.skip("not a git checkout, so there is no list of tracked files")
    return [ROOT / name for name in listed.stdout.split("\0") if name and (ROOT / name).is_file()]


def make_targets() -> set[str]:
    return set(re.findall(r"^([a-z][a-z-]*):", MAKEFILE, flags=re.MULTILINE))


def dry_run(target: str) -> str:
    """What `make target` would run, line by line; nothing is run."""
    # Under `make test` the outer make's flags are in the environment, where they would leak into this one.
    outer = {"MAKEFLAGS", "MFLAGS", "MAKELEVEL", "MAKEOVERRIDES"}
    bare = {name: value for name, value in os.environ.items() if name not in outer}
    command = ["make", "--dry-run", target]
    return subprocess.run(command, cwd=ROOT, env=bare, capture_output=True, text=True, timeout=30).stdout


# Floors and sizes


@pytest.mark.parametrize("path", SOURCES, ids=lambda path: str(path.relative_to(ROOT)))
def test_a_file_imports_only_from_its_own_floor_or_lower(path: Path) -> None:
    room = room_of(path)
    if room == "__init__":  # the front door names what the rooms hold
        return
    assert room in FLOORS or room in BESIDE, f"give {room} a floor in the tables of docs/design.md"
    upward = {other for other in rooms_imported(path.read_text(), path) if not may_import(room, other)}
    assert not upward, f"{path.relative_to(ROOT)} imports upward, from {sorted(upward)}"


def test_every_room_on_paper_is_there_and_every_room_there_is_on_paper() -> None:
    assert FLOORS.keys() | BESIDE == {room_of(path) for path in SOURCES} - {"__init__"}


def test_a_name_of_a_class_stands_for_one_thing() -> None:
    """But for what each exercise calls its own, and the parts that both architectures have."""
    own = ("zerolab/course/exercises/", "zerolab/models/")
    paths = [path for path in SOURCES if not path.relative_to(ROOT).as_posix().startswith(own)]
    found = Counter(name for path in paths for name in re.findall(r"^class ([A-Z]\w*)", path.read_text(), re.MULTILINE))
    assert len(found) > 100 and [name for name, count in found.items() if count > 1] == []


def test_the_floor_check_sees_every_form_of_import() -> None:
    at = ROOT / "zerolab" / "flat" / "layout.py"
    forms = {
        "import zerolab.zero.stage": "zero",
        "from zerolab.zero import Stage": "zero",
        "from zerolab import zero": "zero",
        "from ..zero import Stage": "zero",
        "from ..zero.stage import Stage": "zero",
        "from .. import zero": "zero",
        "from .slots import Slot": "flat",
        "def f():\n    from zerolab.zero import Stage": "zero",
        "import zerolab": "",
        "from zerolab.course import viz": "course.viz",
        "import zerolab.course.judge.case": "course.judge",
    }
    assert {form: list(rooms_imported(form, at)) for form in forms} == {form: [room] for form, room in forms.items()}
    assert not may_import("flat", "zero") and not may_import("flat", "") and not may_import("models", "flat")
    assert not may_import("apps.cli", "course") and not may_import("preload", "course.grade")
    assert may_import("course.viz", "zero") and not may_import("course.viz", "course.widgets")
    assert may_import("zero", "flat") and may_import("zero", "models") and may_import("data", "errors")


WITHOUT_COURSE = """
import sys

class Refused:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[2].startswith("course"):
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)

sys.meta_path.insert(0, Refused())
import torch
from zerolab import ZeroEngine, launch
from zerolab.apps.cli import main

def train(comm):
    engine = ZeroEngine(torch.nn.Linear(4, 4), comm, stage=3, lr=0.1)
    engine.backward(engine(torch.ones(2, 4)).sum())
    engine.step()
    return comm.size

print(launch(train, ranks=2, world="lockstep"))
print(main(["grade", "nothing.ipynb"]))
"""


def test_the_library_trains_without_the_course_and_grade_says_what_is_missing() -> None:
    ran = subprocess.run([sys.executable, "-c", WITHOUT_COURSE], cwd=ROOT, capture_output=True, text=True, timeout=100)
    assert ran.stdout.split("\n")[:2] == ["[2, 2]", "2"], ran.stderr
    missing = "zerolab.course is not installed; 'pip install \"zerolab[course]\"' brings what it needs"
    assert ran.stderr.strip() == f"zerolab grade: {missing}"


@pytest.mark.parametrize(("lesson", "exercises"), LESSONS.items())
def test_each_exercise_has_a_file_named_as_it(lesson: str, exercises: tuple[Exercise, ...]) -> None:
    folder = ROOT / "zerolab" / "course" / "exercises" / re.sub(r"^\d+[a-z]?_", "", lesson)
    named = {re.sub(r"(?<=[a-z])(?=[A-Z])", "_", exercise.name).lower() for exercise in exercises}
    assert named == {
        path.stem for path in folder.glob("*.py") if re.search("^EXERCISE\\b", path.read_text(), re.MULTILINE)
    }


def test_the_map_is_what_the_imports_draw() -> None:
    drawn = runpy.run_path(str(ROOT / "tools" / "map.py"))
    assert (ROOT / "docs" / "map.md").read_text(encoding="utf-8") == drawn["page"](), "run `python tools/map.py`"


BUDGETS = {
    "flat": 300,
    "collectives": 2_430,
    "zero": 4_070,
    "parallel": 2_200,
    "ranks": 2_900,
    "checkpoint": 1_710,
    "memory": 820,
    "offload": 950,
    "precision": 620,
    "run": 640,
    "train": 1_680,
    "models": 610,
    "data": 560,
    "apps.plan": 1_480,
    "apps.cost": 600,
    "apps.dialects": 1_750,
    "apps.cli": 1_780,
    "apps.sweep": 930,
    "apps.interop": 1_100,
}
"""Lines of a room at most. They go down: collectives are to have 2,200, zero 2,900, ranks 2,300, checkpoint 1,650, run
300, plan with cost 1,850, dialects 1,650, cli 1,350, sweep and interop 850 each."""
LIBRARY = 28_750
"""Lines of the library, the apps counted."""
WIDTH = 53
"""Characters of a line of the library that is not blank, on average: rooms shrink by deleting, not by denser lines."""


def test_each_room_keeps_to_its_budget_of_lines() -> None:
    lines: Counter[str] = Counter()
    for path in SOURCES:
        lines[room_of(path)] += len(path.read_text(encoding="utf-8").splitlines())
    assert {room: lines[room] for room, most in BUDGETS.items() if not 0 < lines[room] <= most} == {}
    assert sum(of_room for room, of_room in lines.items() if not room.startswith("course")) <= LIBRARY


def modules_imported(path: Path, names: Iterable[str]) -> set[str]:
    """Of these modules, those that a file imports, also for types alone."""
    found = set()
    for node in ast.walk(ast.parse(path.read_text())):
        whole = [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
        if isinstance(node, ast.ImportFrom):
            whole = [f"{absolute(node, path)}.{alias.name}" for alias in node.names]
        for name in whole:
            while name and name not in names:
                name = name.rpartition(".")[0]
            found.add(name)
    return found - {""}


def test_no_files_of_the_library_import_each_other_in_a_circle() -> None:
    paths = [path for path in SOURCES if "course" not in path.relative_to(ROOT).parts]
    modules = {".".join(path.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__"): path for path in paths}
    # The front door names what the rooms hold.
    del modules["zerolab"]
    graph = {name: modules_imported(path, modules) - {name} for name, path in modules.items()}
    assert len([*TopologicalSorter(graph).static_order()]) == len(modules) > 150
    with pytest.raises(CycleError):
        TopologicalSorter({"a": {"b"}, "b": {"a"}}).prepare()


def test_the_library_knows_nothing_of_the_apps() -> None:
    """But for the command line, which is one. The course may use them."""
    library = [path for path in SOURCES if not room_of(path).startswith(("apps", "course", "__main__"))]
    found = {
        str(path.relative_to(ROOT)): other
        for path in library
        for other in rooms_imported(path.read_text(), path)
        if other.startswith("apps")
    }
    assert len(library) > 100 and found == {}


def test_lines_of_the_library_are_no_denser_than_they_were() -> None:
    course = ROOT / "zerolab" / "course"
    texts = [path.read_text(encoding="utf-8") for path in SOURCES if not path.is_relative_to(course)]
    lengths = [len(line) for text in texts for line in text.splitlines() if line.strip()]
    assert 30 < sum(lengths) / len(lengths) <= WIDTH


def test_no_tool_has_the_name_of_a_file_of_the_tests() -> None:
    """Tests import tools by name, too: of two files of one name, which comes would depend on who imports first."""
    tests, tools = (
        {path.stem for path in (ROOT / folder).rglob("*.py")} - {"__init__", "__main__"}
        for folder in ("tests", "tools")
    )
    assert tests and tools and not tests & tools


# Pins


@pytest.mark.parametrize("extra", [None, *EXTRAS])
def test_constraints_pin_what_pyproject_asks_for(extra: str | None) -> None:
    pinned = constraints()
    for requirement in requirements(extra):
        version = pinned.get(canonicalize_name(requirement.name))
        assert version, f"{requirement.name} is not in constraints.txt: run `make lock`"
        assert requirement.specifier.contains(version), f"{requirement} does not allow {version}"


def test_constraints_fit_any_build_of_a_version() -> None:
    lines = (ROOT / "constraints.txt").read_text().splitlines()
    odd = [line for line in lines if not re.fullmatch(r"#.*|[A-Za-z0-9._-]+==[0-9][A-Za-z0-9.!]*", line)]
    assert not odd, "a local label or a path would tie the pins to one machine"
    assert constraints()["torch"].startswith("2.13.")


def test_environment_yml_ends_where_pyproject_and_constraints_do() -> None:
    asked = [*requirements(), *(r for extra in ("course", "dev", "instructor") for r in requirements(extra))]
    pinned, listed = constraints(), pins(environment_pip())
    assert listed == {name: pinned[name] for name in (canonicalize_name(r.name) for r in asked)}
    assert "-c constraints.txt" in environment_pip()


def test_environment_yml_has_a_python_that_pyproject_allows() -> None:
    (python,) = (entry for entry in environment()["dependencies"] if str(entry).startswith("python="))
    assert SpecifierSet(PROJECT["requires-python"]).contains(python.removeprefix("python="))


def test_every_extra_is_where_people_look_for_it() -> None:
    assert set(EXTRAS) == {"course", "dev", "instructor", "site", "bench"}
    text, guide = (ROOT / "environment.yml").read_text(), (ROOT / "CONTRIBUTING.md").read_text()
    for extra in EXTRAS:
        assert re.search(rf"^ +# {extra}\b", text, flags=re.MULTILINE), f"environment.yml does not list {extra}"
        assert f"| `{extra}` |" in guide, f"CONTRIBUTING.md does not say what {extra} adds"


# Commands


def test_ci_calls_make_test_and_nothing_else() -> None:
    script = ROOT / ".ci" / "run"
    lines = [line for line in script.read_text().splitlines() if line and not line.startswith("#")]
    assert lines == ["set -euo pipefail", 'cd "$(dirname "$0")/.."', "make test"]
    assert os.access(script, os.X_OK)


def test_the_workflow_calls_the_ci_script() -> None:
    workflow = yaml.safe_load((ROOT / ".github" / "workflows" / "ci.yml").read_text())
    runs = [step["run"] for job in workflow["jobs"].values() for step in job["steps"] if "run" in step]
    assert runs == [".ci/run"]


@pytest.mark.parametrize("document", ["README.md", "CONTRIBUTING.md"])
def test_every_make_command_in_the_documents_exists(document: str) -> None:
    named = set(re.findall(r"(?:^|`)make ([a-z][a-z-]*)", (ROOT / document).read_text(), flags=re.MULTILINE))
    assert named and named <= make_targets()


def test_readme_has_the_two_commands() -> None:
    readme = (ROOT / "README.md").read_text()
    assert re.search(r"^make lab\b", readme, flags=re.MULTILINE)
    assert re.search(r"^make test\b", readme, flags=re.MULTILINE)


def test_make_test_runs_lint_types_units_and_notebooks() -> None:
    plan = dry_run("test")
    steps = ["ruff check .", "ruff format --check .", "mypy zerolab", "worksteal tests", "--nbval --nbval-current-env"]
    places = [plan.find(step) for step in steps]
    assert -1 not in places and places == sorted(places), dict(zip(steps, places, strict=True))


def test_make_lab_opens_the_first_lesson() -> None:
    lessons = sorted((ROOT / "notebooks").glob("*.ipynb"))
    assert not lessons or lessons[0].name in dry_run("lab")


# What must not travel


def test_no_tracked_file_knows_one_machine_or_one_registry() -> None:
    # Spelled in pieces, so that this file passes its own test.
    folders = "|".join(["wo" + "rk", "ro" + "ot", "tmp/br" + "ief", "opt/py" + "pi", "opt/whe" + "els"])
    hosts = "|".join(
        ["py" + "pi.org", "python" + "hosted", "download.py" + "torch", "registry.np" + "mjs", "conda.ana" + "conda"]
    )
    forbidden = re.compile(rf"(?<![\w.])/(?:{folders})/|{hosts}".encode())
    found = {
        str(path.relative_to(ROOT)): match[0].decode()
        for path in tracked()
        if (match := forbidden.search(path.read_bytes()))
    }
    assert not found
