"""docs/edge_cases.md maps each edge case to tests: those that it names are there, and no case is left out."""

import ast
import re
from functools import cache
from pathlib import Path

import pytest

TESTS = Path(__file__).parents[1]
PAGE = (TESTS.parent / "docs" / "edge_cases.md").read_text(encoding="utf-8")
ITEMS = 24
ROW = re.compile(r"\| (\d+)([a-z]) \| ([^|]+) \| ([^|]+) \|")
NAMED = re.compile(r"`tests/([\w/]*test_\w+\.py)::(test_\w+)(?:\[([^\]`]+)\])?`")


def rows() -> list[tuple[int, str, str, str]]:
    """Item, letter, what happens, and the tests, of each row; heads and the lines below them are left out."""
    lines = [line for line in PAGE.splitlines() if line.startswith("|") and not re.match(r"\| (clause|---)", line)]
    found = [ROW.fullmatch(line) for line in lines]
    assert all(found), [line for line, row in zip(lines, found, strict=True) if not row]
    return [(int(row[1]), row[2], row[3].strip(), row[4].strip()) for row in found if row]


@cache
def tree(path: Path) -> ast.Module:
    return ast.parse(path.read_text(encoding="utf-8"))


@cache
def claims_in(file: str) -> frozenset[str]:
    found = (node.name for node in ast.walk(tree(TESTS / file)) if isinstance(node, ast.FunctionDef))
    return frozenset(name for name in found if name.startswith("test_"))


@cache
def words_in(file: str) -> frozenset[str]:
    """The texts in a file of tests, and in the modules and packages beside it that it imports from."""
    of_file = tree(TESTS / file)
    modules = {node.module or "" for node in ast.walk(of_file) if isinstance(node, ast.ImportFrom)}
    beside = [path for module in modules - {""} for path in TESTS.rglob(f"{module}.py")]
    packages = [TESTS / module for module in modules if module and (TESTS / module / "__init__.py").exists()]
    trees = [of_file, *map(tree, beside), *(tree(path) for folder in packages for path in folder.rglob("*.py"))]
    constants = (node.value for one in trees for node in ast.walk(one) if isinstance(node, ast.Constant))
    return frozenset(value for value in constants if isinstance(value, str))


def is_case(file: str, case: str) -> bool:
    """Whether a case such as "used twice" is a text of the tests, or one such as "01_ring_collectives-calls exit" one
    of the answers to that lesson."""
    lesson, _, answer = case.partition("-")
    return case in words_in(file) or (bool(answer) and answer in answers_of(lesson))


@cache
def answers_of(lesson: str) -> frozenset[str]:
    files = (TESTS / "zoo" / "wrong" / re.sub(r"^\d+[a-z]?_", "", lesson)).glob("*.txt")
    return frozenset(name for file in files for name in re.findall("^=== (.*)", file.read_text(), re.MULTILINE))


@pytest.mark.parametrize(("item", "letter", "happens", "tests"), rows(), ids=lambda value: str(value)[:20])
def test_a_row_names_tests_and_cases_that_exist(item: int, letter: str, happens: str, tests: str) -> None:
    named = NAMED.findall(tests)
    assert named and NAMED.sub("", tests).strip() == "", (
        f"{item}{letter}: write `tests/test_x.py::test_name`, one or several"
    )
    assert happens
    for file, name, case in named:
        assert (TESTS / file).is_file(), f"{item}{letter}: there is no {file}"
        assert name in claims_in(file), f"{item}{letter}: {file} has no {name}"
        assert not case or is_case(file, case), f"{item}{letter}: neither {file} nor what it imports has {case!r}"


def test_every_item_has_rows_in_order_and_none_twice() -> None:
    found = [(item, letter) for item, letter, _, _ in rows()]
    assert {item for item, _ in found} == set(range(1, ITEMS + 1))
    for item in range(1, ITEMS + 1):
        letters = [letter for at, letter in found if at == item]
        assert letters == [chr(ord("a") + at) for at in range(len(letters))], f"the rows of item {item}"
    assert found == sorted(found)


def test_a_name_that_is_misspelt_or_a_case_that_is_gone_is_seen() -> None:
    said = "`tests/flat/test_flat.py::test_one` `tests/zero/test_zero_parameters.py::test_none[used twice]`"
    named = [
        ("flat/test_flat.py", "test_one", ""),
        ("zero/test_zero_parameters.py", "test_none", "used twice"),
    ]
    assert NAMED.findall(said) == named
    claims = claims_in("flat/test_flat.py")
    assert "test_chunks_follow_tensor_split" in claims and "test_one" not in claims
    assert is_case("zero/test_zero_parameters.py", "used twice") and not is_case(
        "zero/test_zero_parameters.py", "used thrice"
    )
    assert is_case("course/grade/test_grading_zoo.py", "01_ring_collectives-calls exit")
    assert not is_case("course/grade/test_grading_zoo.py", "03_zero_1-calls exit")
