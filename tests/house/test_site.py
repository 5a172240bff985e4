"""The site: what its pages are made of, what it refuses, and, where Sphinx is installed, that it builds."""

import base64
import re
import sys
from io import BytesIO
from pathlib import Path

import nbformat
import pytest
from PIL import Image

ROOT = Path(__file__).resolve().parents[2]
sys.path.append(str(ROOT / "docs" / "site"))

from icons import without  # noqa: E402
from lesson import PageError, check_alt, page  # noqa: E402
from links import broken  # noqa: E402
from reference import prose, read_library, room_page, source_page  # noqa: E402

DOT = base64.b64encode(b"a picture").decode()


def a_lesson(folder: Path, html: str = "", **cell: object) -> Path:
    """A notebook with one cell of code that shows `html`."""
    output = nbformat.v4.new_output("display_data", {"text/html": html})
    source = str(cell.pop("source", "show()"))
    code = nbformat.v4.new_code_cell(source, **{"execution_count": 1, "outputs": [output], **cell})
    file = folder / "00_lesson.ipynb"
    nbformat.write(nbformat.v4.new_notebook(cells=[nbformat.v4.new_markdown_cell("# Lesson"), code]), file)
    return file


def texts(lesson: Path) -> list[str]:
    return [cell.source for cell in nbformat.read(lesson, 4).cells if cell.cell_type == "markdown"]


def test_a_picture_of_a_lesson_becomes_a_file_that_is_loaded_when_it_is_seen(tmp_path: Path) -> None:
    lesson = a_lesson(tmp_path, f'<img alt="two bars" width="3" src="data:image/png;base64,{DOT}">')
    html = page(lesson, tmp_path, "../pictures").cells[1].outputs[0].data["text/html"]
    assert html == '<img loading="lazy" alt="two bars" width="3" src="../pictures/00_lesson-2-0-0.png">'
    assert (tmp_path / "00_lesson-2-0-0.png").read_bytes() == b"a picture"


def test_a_picture_without_words_is_refused_by_page_and_cell(tmp_path: Path) -> None:
    lesson = a_lesson(tmp_path, f'<img width="3" src="data:image/png;base64,{DOT}">')
    with pytest.raises(PageError, match=r"00_lesson\.ipynb, cell 2: its picture has no alt text"):
        page(lesson, tmp_path, "")


def test_a_cell_that_was_not_run_is_refused_in_a_lesson_and_taken_in_an_exercise(tmp_path: Path) -> None:
    lesson = a_lesson(tmp_path, execution_count=None, outputs=[])
    with pytest.raises(PageError, match=r"00_lesson\.ipynb, cell 2: it was not run"):
        page(lesson, tmp_path, "")
    assert page(lesson, tmp_path, "", outputs=False).cells[1].source == "show()"


@pytest.mark.parametrize("source", ["print(1)", "x = 1\nviz.bars()", "{'a': 1}", "f'{x}'"])
def test_a_cell_whose_output_is_missing_is_refused(tmp_path: Path, source: str) -> None:
    lesson = a_lesson(tmp_path, outputs=[], source=source)
    with pytest.raises(PageError, match=r"00_lesson\.ipynb, cell 2: it shows something, and its output is missing"):
        page(lesson, tmp_path, "")


@pytest.mark.parametrize("source", ["x = 1", "def f(): ...", "x.wait()", "# nothing", "x;", "%pip install y"])
def test_a_cell_that_shows_nothing_is_taken(tmp_path: Path, source: str) -> None:
    assert page(a_lesson(tmp_path, outputs=[], source=source), tmp_path, "")


def test_a_picture_of_a_text_without_words_is_refused_by_page_and_cell(tmp_path: Path) -> None:
    lesson = a_lesson(tmp_path)
    lesson.write_text(lesson.read_text().replace("# Lesson", "# Lesson ![](a.png)"))
    with pytest.raises(PageError, match=r"cell 1: its picture a\.png has no alt text"):
        page(lesson, tmp_path, "")
    check_alt("![a picture](a.png)", "docs/a.md")


def test_a_build_that_is_refused_says_one_sentence_and_leaves_no_site(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    pytest.importorskip("sphinx", reason="the site extra is not installed: make site")
    import build

    def refused(_: Path) -> None:
        raise PageError("notebooks/00_lesson.ipynb, cell 2: it was not run")

    monkeypatch.setattr(build, "stage", refused)
    assert build.main(tmp_path / "source", tmp_path / "site") == 1 and not (tmp_path / "site").exists()
    assert capsys.readouterr().err == "site: notebooks/00_lesson.ipynb, cell 2: it was not run.\n"


def test_icons_that_nobody_uses_are_left_out_and_others_stay_by_each_of_their_names() -> None:
    bars, group = 'bars:[512,512,[],"f001","M1 2"]', '"42-group":[512,512,[],"f002",["M1","M2"]]'
    moon = 'moon:[512,512,[9680,"night"],"f003","M3"]'
    script = f"p={{{bars},{group},{moon}}};run()"
    assert without(script, {"bars"}) == f"p={{{bars},}};run()"
    assert without(script, {"night"}) == f"p={{{moon}}};run()"
    assert without(script, {"bars", "moon", "42-group"}) == script


def test_a_card_has_the_size_that_services_show_and_its_picture_in_it() -> None:
    social = pytest.importorskip("social", reason="the site extra is not installed: make site")
    red = BytesIO()
    Image.new("RGB", (3000, 50), "red").save(red, "png")
    drawn = Image.open(BytesIO(social.card("A title", "What it is. " * 40, red.getvalue()))).convert("RGB")
    assert drawn.size == (1200, 630)
    colours = {colour for _, colour in drawn.getcolors(10**6)}
    assert (255, 0, 0) in colours and (0, 0, 0) in colours and drawn.getpixel((1199, 629)) == (255, 255, 255)


def test_a_page_names_its_card_by_a_whole_address_and_none_where_that_is_not_known() -> None:
    social = pytest.importorskip("social", reason="the site extra is not installed: make site")
    made = social.tags('05 "ZeRO-3"', "Less.", "https://x.org/course", "notebooks/05", {"notebooks-05"})
    assert 'property="og:image" content="https://x.org/course/_static/social/notebooks-05.png"' in made
    assert 'property="og:title" content="05 &quot;ZeRO-3&quot;"' in made
    assert "social/index.png" in social.tags("Map", "", "https://x.org", "docs/map", set())
    assert "og:image" not in social.tags("Map", "", "", "docs/map", set())


def test_a_cell_that_failed_is_refused(tmp_path: Path) -> None:
    failed = nbformat.v4.new_output("error", ename="ValueError", evalue="", traceback=[])
    with pytest.raises(PageError, match="cell 2: it ends with ValueError"):
        page(a_lesson(tmp_path, outputs=[failed]), tmp_path, "")


@pytest.mark.parametrize("tag", ["answer", "afterwards"])
def test_an_answer_waits_behind_a_click(tmp_path: Path, tag: str) -> None:
    folded = {"outputs_hidden": True, **({"source_hidden": True} if tag == "afterwards" else {})}
    lesson = a_lesson(tmp_path, metadata={"tags": [tag], "jupyter": folded})
    cell = page(lesson, tmp_path, "").cells[1]
    said = {"answer": ("hide-output", "Show the answer"), "afterwards": ("hide-cell", "Show the library's own")}
    folds = [one for one in cell.metadata.tags if one.startswith("hide-")]
    assert ([said[tag][0]], said[tag][1]) == (folds, cell.metadata.mystnb.code_prompt_show)


def test_the_name_of_a_shown_source_leads_to_its_file(tmp_path: Path) -> None:
    shown = nbformat.v4.new_output("display_data", {"text/markdown": "`zerolab.zero.engine.ZeroEngine.step`\n\ncode"})
    lesson = a_lesson(tmp_path, outputs=[shown])
    made = page(lesson, tmp_path, "", modules={"zerolab.zero", "zerolab.zero.engine"}).cells[1].outputs[0]
    assert '<a href="../source/zerolab.zero.engine.html#ZeroEngine">' in made.data["text/markdown"]


def test_the_first_lesson_leads_to_each_of_the_others() -> None:
    lessons = sorted(file.name for file in (ROOT / "notebooks").glob("*.ipynb"))
    table = re.findall(r"^\| \[[^\]]+\]\(([^)]+)\) \|", "\n".join(texts(ROOT / "notebooks" / lessons[0])), re.MULTILINE)
    assert table == lessons[1:]


@pytest.mark.parametrize("lesson", sorted((ROOT / "notebooks").glob("*.ipynb")), ids=lambda path: path.stem)
def test_each_lesson_is_a_page_of_less_than_a_megabyte_before_its_pictures(lesson: Path, tmp_path: Path) -> None:
    made = page(lesson, tmp_path, "../pictures")
    assert len(nbformat.writes(made)) < 500_000, "the theme adds some 200 kB"


def test_links_that_lead_nowhere_and_what_needs_a_network_are_named(tmp_path: Path) -> None:
    (tmp_path / "a.html").write_text('<a href="b.html#here">b</a><a href="c.html">c</a><img src="https://x.org/i.png">')
    (tmp_path / "b.html").write_text('<p id="there">b</p><a href="https://x.org">x</a>')
    assert broken(tmp_path) == [
        "a.html leads to b.html#here, and there is no here in that page",
        "a.html leads to c.html, which is not there",
        "a.html loads https://x.org/i.png, which needs a network",
    ]


def test_the_reference_has_every_public_name_of_every_room_with_its_words() -> None:
    modules = read_library(ROOT)
    for room in (module for module in modules.values() if module.is_room):
        text = "\n".join(room_page(room, modules))
        assert [name for name in room.public() if f"## {name}\n" not in text] == [], room.name


def test_a_docstrings_list_of_arguments_is_a_list() -> None:
    doc = "Adds.\n\nfirst   a number\n        of ranks\nlast    *another*\n\nRaises nothing."
    assert "\n".join(prose(doc)) == (
        "Adds.\n\n- `first`: a number of ranks\n- `last`: \\*another\\*\n\nRaises nothing.\n"
    )


def test_a_page_of_source_has_a_name_for_each_definition() -> None:
    module = read_library(ROOT)["zerolab.zero.zero_engine"]
    assert 'id="ZeroEngine"' in source_page(module)


def test_the_whole_site_builds_without_a_warning_and_no_link_is_broken(
    tmp_path: Path, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("sphinx_book_theme", reason="the site extra is not installed: make site")
    from build import main

    monkeypatch.setenv("ZEROLAB_REPOSITORY", "https://github.com/OWNER/NAME")
    monkeypatch.setenv("ZEROLAB_SITE", "https://x.org/course/")
    site = tmp_path / "site"
    assert main(tmp_path / "source", site) == 0
    assert capfd.readouterr().err == ""
    for name in ("index", *(f"notebooks/{file.stem}" for file in (ROOT / "notebooks").glob("*.ipynb"))):
        text = (site / f"{name}.html").read_text()
        assert 'href="https://codespaces.new/OWNER/NAME?quickstart=1"' in text, name
        (card,) = re.findall(r'property="og:image" content="https://x.org/course/([^"]+)"', text)
        assert card == f"_static/social/{name.replace('/', '-')}.png", name
        assert 5_000 < (site / card).stat().st_size < 200_000, name
