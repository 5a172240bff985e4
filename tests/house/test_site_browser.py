"""The site in a real browser: no page is wider than its window, scenes move, and nothing asks another host.

`make site-test` builds the site and runs this; without a built site it is skipped.
"""

import functools
import gzip
import re
import shutil
import threading
from collections.abc import Iterator
from dataclasses import replace
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest
from overlaps import OVERLAPS, STRUCK

from zerolab.apps.plan import SHAPES
from zerolab.course.living import scenes
from zerolab.course.viz.calculator import memory_calculator
from zerolab.course.viz.reshard import reshard_map
from zerolab.course.viz.shards import shard_text
from zerolab.course.viz.skyline import step_frames
from zerolab.course.viz.stages import TOP
from zerolab.course.viz.step import StepRun
from zerolab.flat import lay_out
from zerolab.run import RunSpec

ROOT = Path(__file__).resolve().parents[2]
SITE = ROOT / "build" / "site"
CHROMIUM = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
pytestmark = [
    pytest.mark.browser,
    pytest.mark.timeout(300),
    pytest.mark.skipif(CHROMIUM is None, reason="no Chromium on this machine"),
    pytest.mark.skipif(not (SITE / "index.html").exists(), reason="no site is built: make site-test builds one"),
]
LEFT_OUT = ("_static", "source")
"""Folders of the site without pages of ours: templates of the theme, and files of the library as they are."""
PAGES = sorted(
    str(file.relative_to(SITE)) for file in SITE.rglob("*.html") if file.parts[len(SITE.parts)] not in LEFT_OUT
)
WINDOWS = [(390, "light"), (390, "dark"), (820, "light"), (1440, "dark")]


class Quiet(SimpleHTTPRequestHandler):
    """Serves files and says nothing of it."""

    def log_message(self, *_: Any) -> None:
        pass


@pytest.fixture(scope="module")
def address(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The site under a base path, as a host of pages serves it."""
    above = tmp_path_factory.mktemp("host")
    (above / "course").symlink_to(SITE)
    server = ThreadingHTTPServer(("127.0.0.1", 0), functools.partial(Quiet, directory=str(above)))
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield f"http://127.0.0.1:{server.server_port}/course"
    server.shutdown()


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    sync_api = pytest.importorskip("playwright.sync_api", reason="playwright is not installed")
    with sync_api.sync_playwright() as playwright:
        started = playwright.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        yield started
        started.close()


@pytest.mark.parametrize(("width", "theme"), WINDOWS)
def test_no_page_is_wider_than_its_window_has_text_over_text_or_asks_another_host(
    browser: Any, address: str, width: int, theme: str
) -> None:
    context = browser.new_context(viewport={"width": width, "height": 900}, color_scheme=theme)
    tab = context.new_page()
    asked: list[str] = []
    tab.on("request", lambda request: asked.append(request.url))
    wide, over = {}, {}
    for name in PAGES:
        tab.goto(f"{address}/{name}")
        if (got := tab.evaluate("document.documentElement.scrollWidth")) > width:
            wide[name] = got
        if found := tab.evaluate(OVERLAPS):
            over[name] = found
    context.close()
    assert (wide, over) == ({}, {})
    assert [url for url in asked if not url.startswith((address, "data:", "blob:"))] == []


def test_text_over_text_is_seen(browser: Any) -> None:
    tab = browser.new_page()
    apart = "<main><p>one</p><div style='height: 9px; overflow: hidden'>two<br>hidden</div><p>three</p></main>"
    tab.set_content(apart)
    assert tab.evaluate(OVERLAPS) == []
    tab.set_content(apart.replace("<p>three", "<p style='margin-top: -40px'>three"))
    assert tab.evaluate(OVERLAPS) != []
    tab.close()


def test_each_file_that_a_page_asks_for_is_there(browser: Any, address: str) -> None:
    context = browser.new_context(viewport={"width": 1440, "height": 900})
    tab, missing = context.new_page(), []
    tab.on("response", lambda one: one.status < 400 or missing.append(one.url))
    for name in ("index.html", "notebooks/00_start_here.html", "exercises/00_start_here.html", "docs/reading.html"):
        tab.goto(f"{address}/{name}", wait_until="networkidle")
    assert tab.evaluate("document.querySelector('link[rel*=icon]')?.href ?? ''").startswith(address)
    context.close()
    assert missing == []


def test_each_page_loads_less_than_a_megabyte_before_its_pictures(browser: Any, address: str) -> None:
    """As hosts of pages send what they have: packed. Pictures come when they are seen."""
    context = browser.new_context(viewport={"width": 390, "height": 900})
    tab = context.new_page()
    sizes: dict[str, int] = {}
    loaded: list[str] = []
    tab.on("response", lambda one: one.request.resource_type == "image" or loaded.append(one.url))
    heavy = {}
    for name in PAGES:
        loaded.clear()
        tab.goto(f"{address}/{name}", wait_until="networkidle")
        for url in loaded:
            file = SITE / urlsplit(url).path.removeprefix("/course/")
            sizes.setdefault(url, len(gzip.compress(file.read_bytes(), 6)))
        if (total := sum(sizes[url] for url in set(loaded))) > 1_000_000:
            heavy[name] = total
    context.close()
    assert loaded and heavy == {}


def test_the_ring_moves_by_its_buttons_its_sliders_and_the_keyboard(browser: Any, address: str) -> None:
    tab = browser.new_page()
    tab.goto(f"{address}/notebooks/01_ring_collectives.html")
    scene = tab.locator('[data-scene="ring"]').first
    scene.scroll_into_view_if_needed()
    verdict = scene.locator(".verdict")
    tab.wait_for_selector('[data-scene="ring"] .verdict')
    before = verdict.inner_text()
    scene.get_by_label("one step on").click()
    assert verdict.inner_text() != before
    scene.get_by_label("one step back").click()
    assert verdict.inner_text() == before
    scene.get_by_role("slider", name="ranks").focus()
    tab.keyboard.press("ArrowRight")
    assert "over 5 ranks, after 1 of 4 steps" in verdict.inner_text()
    assert all(f"rank {rank}" in scene.locator(".picture").text_content() for rank in range(5))
    scene.get_by_label("collective").select_option("all_reduce")
    assert "all_reduce over 5 ranks, after 1 of 8 steps" in verdict.inner_text()
    tab.close()


def test_a_reader_who_wants_little_motion_sees_moments_only(browser: Any, address: str) -> None:
    context = browser.new_context(reduced_motion="reduce")
    tab = context.new_page()
    tab.goto(f"{address}/notebooks/01_ring_collectives.html")
    scene = tab.locator('[data-scene="ring"]').first
    scene.scroll_into_view_if_needed()
    tab.wait_for_selector('[data-scene="ring"] circle')
    where = "[...document.querySelectorAll('circle')].map((one) => one.outerHTML).join()"
    places = {tab.evaluate(where)}
    scene.get_by_label("play").click()
    for _ in range(10):
        places.add(tab.evaluate(where))
        tab.wait_for_timeout(30)
    context.close()
    assert len(places) <= 2


def scene_of(tab: Any, address: str, lesson: str, name: str) -> Any:
    """The first scene of this name in a lesson, once it has begun."""
    tab.goto(f"{address}/notebooks/{lesson}.html")
    # A predicted answer is folded until somebody asks.
    tab.evaluate("document.querySelectorAll('details').forEach(one => { one.open = true; })")
    scene = tab.locator(f'[data-scene="{name}"]').first
    scene.scroll_into_view_if_needed()
    scene.locator(".verdict").wait_for()
    return scene


def shown(scene: Any) -> tuple[str, str, str]:
    """The verdict of a scene, the words for its picture, and its numbers."""
    words = scene.locator(".picture").get_attribute("aria-label")
    return scene.locator(".verdict").inner_text(), words, scene.locator("pre").text_content()


def test_the_calculator_says_by_keyboard_what_the_planner_says(browser: Any, address: str) -> None:
    tab = browser.new_page()
    scene = scene_of(tab, address, "00_start_here", "memory")

    def computed(model: str, **run: Any) -> tuple[str, str, str]:
        picture = memory_calculator(RunSpec(SHAPES[model], **run), "80 GB")
        return picture.verdict, picture.alt, picture.numbers

    assert shown(scene) == computed("GPT-3 175B", ranks=8, stage=3, seq_len=2048)
    scene.get_by_role("slider", name="stage").focus()
    tab.keyboard.press("ArrowLeft")
    scene.get_by_role("slider", name="ranks").focus()
    tab.keyboard.press("ArrowRight")
    scene.get_by_role("checkbox").focus()
    tab.keyboard.press("Space")
    assert shown(scene) == computed("GPT-3 175B", ranks=64, stage=2, seq_len=2048, checkpoint_activations=True)
    scene.get_by_role("combobox", name="on the host").select_option("optimizer")
    scene.get_by_role("combobox", name="model").select_option("GPT-2 124M")
    run = {"checkpoint_activations": True, "offload": "optimizer"}
    assert shown(scene) == computed("GPT-2 124M", ranks=64, stage=2, seq_len=1024, **run)
    assert "zerolab plan --model" in scene.locator(".about").inner_text()
    tab.close()


@pytest.mark.parametrize("lesson", ["00_start_here", "01_ring_collectives"])
def test_the_verdict_stays_in_sight_while_a_phones_page_scrolls(browser: Any, address: str, lesson: str) -> None:
    tab = browser.new_page(viewport={"width": 390, "height": 700})
    scene = scene_of(tab, address, lesson, next(name for name in SCENES if SCENES[name] == lesson))
    scene.locator(".picture").evaluate("one => window.scrollBy(0, one.getBoundingClientRect().top - 150)")
    shown = """one => {
        const { left, top, bottom } = one.getBoundingClientRect();
        return [top + 3, bottom - 3].every((y) => document.elementFromPoint(left + 20, y) === one);
    }"""
    assert scene.locator(".verdict").evaluate(shown)
    tab.close()


def test_the_shard_map_and_resharding_answer_the_keyboard_in_the_words_of_python(browser: Any, address: str) -> None:
    tab = browser.new_page()
    scene = scene_of(tab, address, "02_flat_buffers", "shards")
    shapes = scenes.block("llama")

    def said() -> str:
        return scene.locator(".verdict").inner_text()

    assert said() == shard_text(lay_out(shapes, 3, 16))[0]
    scene.get_by_role("slider", name="ranks").focus()
    tab.keyboard.press("ArrowRight")
    scene.get_by_role("slider", name="slots start at").focus()
    tab.keyboard.press("End")
    assert (said(), scene.locator("pre").text_content()) == shard_text(lay_out(shapes, 4, 64))
    scene.get_by_role("button", name="one step back").press("Enter")
    assert "end to end in a flat buffer" in scene.locator(".picture").text_content()
    scene.get_by_role("button", name="one step back").press("Enter")
    assert "attention_norm.weight" in scene.locator(".picture").text_content()
    scene = scene_of(tab, address, "08_checkpoints", "reshard")
    assert said().startswith("Saved by 4 ranks, loaded by 3 ranks at stages 1 to 3: a rank reads at most 6,720 bytes")
    scene.get_by_role("slider", name="ranks that load").focus()
    tab.keyboard.press("ArrowLeft")
    scene.get_by_role("slider", name="stage that loads").focus()
    tab.keyboard.press("Home")
    picture = reshard_map(scenes.NET, 4, 2, stage=0, align=32)
    assert (said(), scene.locator("pre").text_content()) == (picture.verdict, picture.numbers)
    tab.close()


def test_the_first_page_says_shows_and_offers_all_in_the_first_screen_of_a_laptop(browser: Any, address: str) -> None:
    tab = browser.new_page(viewport={"width": 1440, "height": 900})
    scene = scene_of(tab, address, "../index", "stages")
    tab.evaluate("window.scrollTo(0, 0)")
    shown = [scene.locator(".picture"), *tab.locator(".ways .sd-card").all()]
    assert len(shown) == 4
    for one in shown:
        box = one.bounding_box()
        assert box["y"] + box["height"] <= 900 and box["x"] + box["width"] <= 1440
    tab.close()


SCENES = {
    "memory": "00_start_here",
    "reshard": "08_checkpoints",
    "ring": "01_ring_collectives",
    "shards": "02_flat_buffers",
    "stages": "03_zero_1",
    "timeline": "05_zero_3",
}
"""Each scene, and a lesson that has it."""
FAULTS = """scene => {
    const luminance = (text) => {
        const [r, g, b] = text.match(/[\\d.]+/g).slice(0, 3).map((one) => {
            const part = one / 255;
            return part <= 0.04045 ? part / 12.92 : ((part + 0.055) / 1.055) ** 2.4;
        });
        return 0.2126 * r + 0.7152 * g + 0.0722 * b;
    };
    const ground = (one) => {
        for (; one; one = one.parentElement) {
            const colour = getComputedStyle(one).backgroundColor;
            if (!/, 0\\)$|transparent/.test(colour)) return colour;
        }
        return "rgb(255, 255, 255)";
    };
    const found = [];
    for (const one of scene.querySelectorAll("input, select, button")) {
        const name = one.getAttribute("aria-label") ?? one.labels?.[0]?.textContent ?? "";
        if (!name.trim()) found.push(`${one.tagName} has no name`);
        if (!one.hasAttribute("data-lm-suppress-shortcuts")) found.push(`${name} has no keys in JupyterLab`);
        if (one.tabIndex < 0) found.push(`${name} is not reached by keyboard`);
        const { width, height } = one.getBoundingClientRect();
        if (width < 24 || height < 24) found.push(`${name} is ${width} x ${height}`);
    }
    const { height: thumb } = scene.querySelector("summary").getBoundingClientRect();
    if (thumb < 24) found.push(`the line that opens the numbers is ${thumb} px high`);
    const ids = [...document.querySelectorAll(".zerolab-living [id]")].map((one) => one.id);
    if (new Set(ids).size < ids.length) found.push("two elements have one id");
    const picture = scene.querySelector(".picture");
    if (picture.getAttribute("role") !== "img") found.push("the picture has no role");
    if (!picture.getAttribute("aria-label")) found.push("the picture has no words");
    if (scene.querySelector(".verdict").getAttribute("role") !== "status") found.push("the verdict is not read out");
    for (const one of scene.querySelectorAll(".verdict, label, summary, pre, li")) {
        const [low, high] = [getComputedStyle(one).color, ground(one)].map(luminance).sort((a, b) => a - b);
        if ((high + 0.05) / (low + 0.05) < 4.5) found.push(`${one.tagName} ${one.textContent} is hard to read`);
    }
    for (const one of scene.querySelectorAll("svg text")) {
        const size = parseFloat(getComputedStyle(one).fontSize) * one.getScreenCTM().a;
        if (size < 9) found.push(`${one.textContent} is ${size} px high`);
        const box = one.getBoundingClientRect(), room = one.ownerSVGElement.getBoundingClientRect();
        if (box.left < room.left - 1 || box.right > room.right + 1) found.push(`${one.textContent} is cut`);
    }
    return found;
}"""
"""What keeps one from using a scene: names, keyboard, sizes, contrast, words for a picture, labels cut or small."""
DRAG = """scene => {
    const times = [];
    for (const one of scene.querySelectorAll("input[type=range]")) {
        for (let at = 0; at <= Math.min(one.max, 10); at += 1) {
            one.value = at;
            const began = performance.now();
            one.dispatchEvent(new Event("input", { bubbles: true }));
            scene.getBoundingClientRect();
            times.push(performance.now() - began);
        }
    }
    return times.sort((a, b) => a - b);
}"""


SETTINGS = """
    const found = new Set(), note = () => struck(scene).forEach((one) => found.add(one));
    const boxes = scene.querySelectorAll("input[type=checkbox]");
    const walk = () => {
        note();
        for (const one of scene.querySelectorAll("input[type=range]")) {
            for (let at = 0; at <= Math.min(one.max, 20); at += 1) {
                one.value = at;
                one.dispatchEvent(new Event("input", { bubbles: true }));
                note();
            }
        }
        for (const one of boxes) { one.click(); note(); }
    };
    walk();
    return [...found];
}"""
"""Goes through what a scene can be set to, and gathers what `struck` finds in each picture."""


@pytest.mark.parametrize("theme", ["light", "dark"])
@pytest.mark.parametrize("name", SCENES)
def test_a_scene_has_names_words_and_contrast_and_no_label_is_small_or_cut_on_a_phone(
    browser: Any, address: str, name: str, theme: str
) -> None:
    context = browser.new_context(viewport={"width": 390, "height": 844}, color_scheme=theme)
    tab = context.new_page()
    scene = scene_of(tab, address, SCENES[name], name)
    assert tab.evaluate("document.documentElement.dataset.theme") == theme
    assert scene.evaluate(FAULTS) == []
    if theme == "light":
        times = scene.evaluate(DRAG) or [0.0]
        print(f"{name}: a move of a slider takes {times[len(times) // 2]:.1f} ms, at most {times[-1]:.1f} ms")
        assert scene.evaluate(FAULTS) == []
    context.close()


@pytest.mark.parametrize("name", ["memory", "stages", "timeline"])
def test_no_word_of_a_picture_is_struck_by_a_line_or_a_neighbour_at_any_stage(
    browser: Any, address: str, name: str
) -> None:
    tab = browser.new_page(viewport={"width": 390, "height": 844})
    scene = scene_of(tab, address, SCENES[name], name)
    found = scene.evaluate("scene => { const struck = " + STRUCK + ";" + SETTINGS)
    assert found == []
    tab.close()


def test_a_word_struck_by_a_line_or_beside_a_black_ground_is_seen(browser: Any) -> None:
    tab = browser.new_page()
    words = '<text x="20" y="20">one</text><text x="60" y="20">two</text>'
    page = '<div class="picture"><svg width="200" height="40">{}</svg></div>'
    for more, struck in (
        ('<path d="M5 4V16" stroke-dasharray="3 3"/>', []),
        ('<path d="M30 4V16" stroke-dasharray="3 3"/>', ["one is crossed by a line"]),
        ('<text x="30" y="20">three</text>', ["one | three", "two | three"]),
        ('<rect x="48" y="5" width="11.5" height="20" fill="black"/>', ["two touches a black ground"]),
    ):
        tab.set_content(page.format(words + more))
        assert tab.locator("body").evaluate(STRUCK) == struck
    tab.close()


@pytest.mark.parametrize(("name", "width"), [("ring", 390), ("stages", 390), ("stages", 1440)])
def test_a_picture_stays_where_it_is_while_its_moments_go_by(browser: Any, address: str, name: str, width: int) -> None:
    tab = browser.new_page(viewport={"width": width, "height": 900})
    scene = scene_of(tab, address, SCENES[name], name)
    slider = scene.get_by_role("slider", name={"ring": "steps done", "stages": "moment"}[name])
    if name == "ring":
        scene.get_by_label("collective").select_option("all_reduce")
    slider.focus()
    picture = "one => one.getBoundingClientRect().top - one.closest('.zerolab-living').getBoundingClientRect().top"
    places = []
    for key in ("End", "Home"):  # each verdict once, and then again
        tab.keyboard.press(key)
        for _ in range(int(slider.get_attribute("max"))):
            tab.keyboard.press("ArrowLeft" if key == "End" else "ArrowRight")
            places.append(scene.locator(".picture").evaluate(picture))
    again = places[len(places) // 2 :]
    assert max(again) - min(again) < 0.5
    tab.close()


@pytest.mark.parametrize("width", [390, 820, 1440])
def test_the_stages_step_says_what_python_says_and_is_gone_through_by_keyboard(
    browser: Any, address: str, width: int
) -> None:
    tab = browser.new_page(viewport={"width": width, "height": 900})
    scene = scene_of(tab, address, "../index", "stages")
    scene.get_by_role("slider", name="stage").press("End")
    slider = scene.get_by_role("slider", name="moment")
    said = [frame.words for frame in scenes.STEP.film(stage=3) if frame.words]
    for number in (0, 1, 2):
        slider.press("ArrowRight" if number else "Home")
        assert shown(scene) == said[number]
    tab.close()


def test_the_stages_step_plays_and_messages_fly(browser: Any, address: str) -> None:
    tab = browser.new_page()
    scene = scene_of(tab, address, "../index", "stages")
    scene.get_by_role("slider", name="stage").press("End")
    scene.get_by_role("slider", name="moment").press("Home")
    scene.get_by_label("play").click()
    times, flying = set(), set()
    for _ in range(8):
        drawn = scene.locator(".picture").inner_html()
        times.add(re.findall(rf"M([\d.]+) {TOP - 4} ", drawn)[0])
        flying |= {*re.findall(r'x="([\d.]+)"[^>]*stroke="white"|stroke="white"[^>]* x="([\d.]+)"', drawn)}
        tab.wait_for_timeout(60)
    scene.get_by_label("pause").click()
    assert len(times) > 2 and len(flying) > 2
    tab.close()


def test_the_timelines_axes_stay_while_its_settings_change(browser: Any, address: str) -> None:
    tab = browser.new_page(viewport={"width": 390, "height": 900})
    scene = scene_of(tab, address, "05_zero_3", "timeline")
    run, axes = StepRun(), set()
    for box, change in {
        "": {},
        "gather ahead": {"prefetch": False},
        "reduce during": {"overlap": False},
        "on the host": {"offload": True},
    }.items():
        if box:
            scene.get_by_label(box).click()
        run = replace(run, **change)
        axes.add(tuple(scene.locator("svg text[text-anchor=end]").all_text_contents()))
        assert shown(scene) == step_frames(run)[0].words
    assert len(axes) == 1
    tab.close()
