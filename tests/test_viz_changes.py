"""What changes from stage to stage: real lines of the library, marked by kind, each diff under a screen."""

from pathlib import Path

import pytest
from zerolab.zero.stage0 import Stage0
from zerolab.zero.stage1 import Stage1ReduceScatter
from zerolab.zero.stage2 import Stage2
from zerolab.zero.stage3 import Stage3

from zerolab.course.grade.cells import read_notebook
from zerolab.course.viz import Changes
from zerolab.errors import InputError

LESSONS = Path(__file__).resolve().parent.parent / "notebooks"
SCREEN = 58


class Before:
    number = 0

    def kept(self) -> int:
        return 1

    def moved(self, row: list[int]) -> list[int]:
        """Words that no diff shows."""
        return row

    def gone(self) -> None: ...


class After(Before):
    number = 1

    def moved(self, row: list[int]) -> list[int]:
        """Other words."""
        return row.new_empty(len(row))

    def publish(self, comm, row):
        return comm.all_gather_async(row)


def test_lines_come_and_go_with_their_kind_and_without_docstrings() -> None:
    shown = [(line.sign, line.kind, line.text.strip()) for line in Changes(Before, After).lines]
    assert shown == [
        ("-", "", "number = 0"),
        ("+", "", "number = 1"),
        (" ", "", "def moved(self, row: list[int]) -> list[int]:"),
        ("-", "", "return row"),
        ("+", "memory", "return row.new_empty(len(row))"),
        ("+", "", "def publish(self, comm, row):"),
        ("+", "call", "return comm.all_gather_async(row)"),
    ]


def test_what_is_inherited_counts_as_the_classes_own_and_what_stays_is_named() -> None:
    changes = Changes(Before, After, elsewhere=("publish",))
    assert changes.same == ["kept", "gone"] and not any("publish" in line.text for line in changes.lines)
    assert changes.notes()[1:] == ["Changed as well: publish.", "The same: kept, gone."]


def test_a_method_that_calls_the_one_before_it_adds_to_it() -> None:
    signs = [line.sign for part in Changes(Stage2, Stage3).parts for line in part if "flatten" in part[0].text]
    assert signs and set(signs) == {"+"}


def test_a_name_that_did_not_change_is_refused() -> None:
    with pytest.raises(InputError, match=r"'kept' is no method that changes from Before .*; name one of"):
        Changes(Before, After, elsewhere=("kept",))


@pytest.mark.parametrize(
    ("before", "after", "calls"),
    [
        (Stage0, Stage1ReduceScatter, ["+all_gather", "-all_reduce", "+reduce_scatter"]),
        (Stage1ReduceScatter, Stage2, ["-reduce_scatter", "+reduce_scatter"]),
        (Stage2, Stage3, ["+all_gather"]),
    ],
)
def test_the_calls_of_a_stage_are_those_that_the_lessons_name(before: type, after: type, calls: list[str]) -> None:
    marked = [line for line in Changes(before, after).lines if line.kind == "call"]
    assert [line.sign + line.text.partition("comm.")[2].partition("_async")[0] for line in marked] == calls


def test_as_html_each_line_has_its_sign_and_its_kind_in_letters_and_nothing_is_markup() -> None:
    html = Changes(Before, After)._repr_mimebundle_()["text/html"]
    assert "+ <b>memory</b>      return row.new_empty(len(row))" in html and "-&gt; list[int]" in html


@pytest.mark.parametrize("lesson", ["02", "03", "04", "05"])
def test_a_lesson_of_a_stage_ends_with_what_changed_on_a_screen_each(lesson: str) -> None:
    (path,) = LESSONS.glob(f"{lesson}_*.ipynb")
    cells = read_notebook(path).cells
    shown = [cell for cell in cells if cell.source.startswith("viz.Changes(")]
    assert shown and cells[-1] is shown[-1]
    for cell in shown:
        (output,) = cell.outputs
        assert output.data["text/plain"].count("\n") < SCREEN and "<pre" in output.data["text/html"]
