"""docs/reading.md: each file and name of the walk through the core is there, and takes the minutes that it says."""

import re
from pathlib import Path

import pytest

DOCS = Path(__file__).resolve().parents[2] / "docs"
TEXT = (DOCS / "reading.md").read_text()
STOPS = re.findall(
    r"^## (\d+)\. \[([\w/.]+)\]\(\.\./zerolab/([\w/.]+)\), (\d+) minutes?\n(.*?)(?=^## |^The walk is over)",
    TEXT,
    re.M | re.S,
)
LINK = re.compile(r"\]\((\.\.[^)]*)\)")
LINES = 33
"""That are read in a minute."""


def missing(section: str, files: list[Path]) -> list[str]:
    """The names in backticks that none of the files has as a word. (A path with a slash is of a folder.)"""
    words = {word for file in files for word in re.findall(r"\w+", file.read_text())}
    return [name for name in re.findall(r"`([\w.]+)`", section) if not set(name.split(".")) <= words]


def test_the_walk_takes_less_than_two_hours_in_order() -> None:
    assert [int(number) for number, *_ in STOPS] == list(range(1, TEXT.count("\n## ") + 1))
    assert 100 < sum(int(minutes) for *_, minutes, _ in STOPS) < 120


@pytest.mark.parametrize(("name", "path", "minutes", "section"), [stop[1:] for stop in STOPS])
def test_each_stop_names_a_file_its_minutes_and_what_is_in_it(name: str, path: str, minutes: str, section: str) -> None:
    assert name == path
    files = [DOCS.parent / "zerolab" / path, *((DOCS / link).resolve() for link in LINK.findall(section))]
    assert all(file.is_file() for file in files) and missing(section, files) == []
    assert len(re.findall(r"`\w+`", section)) >= 2, "what to notice"
    assert abs(int(minutes) - len(files[0].read_text().splitlines()) / LINES) <= 2
    assert all((DOCS.parent / "zerolab" / folder).is_dir() for folder in re.findall(r"`([\w/]+/)`", section))


def test_a_name_that_went_is_named(tmp_path: Path) -> None:
    (tmp_path / "a.py").write_text("def lay_out(): ...")
    assert missing("`lay_out` and `lay_in`", [tmp_path / "a.py"]) == ["lay_in"]


def test_the_rooms_for_later_are_there() -> None:
    rooms = re.findall(r"`([\w/]+)` for", TEXT)
    assert len(rooms) == 7 and all((DOCS.parent / "zerolab" / room / "__init__.py").is_file() for room in rooms)
