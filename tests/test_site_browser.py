"""The site in a real browser: no page is wider than its window, scenes move, and nothing asks another host.

`make site-test` builds the site and runs this; without a built site it is skipped.
"""

import functools
import shutil
import threading
from collections.abc import Iterator
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).resolve().parent.parent
SITE = ROOT / "build" / "site"
CHROMIUM = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
pytestmark = [
    pytest.mark.browser,
    pytest.mark.timeout(300),
    pytest.mark.skipif(CHROMIUM is None, reason="no Chromium on this machine"),
    pytest.mark.skipif(not (SITE / "index.html").exists(), reason="no site is built: make site-test builds one"),
]
PAGES = ["index", *(f"notebooks/{file.stem}" for file in sorted((ROOT / "notebooks").glob("*.ipynb")))]
PAGES += ["exercises/05_zero_3", "glossary", "api/zerolab.ranks", "docs/design", "benchmarks/README", "CHANGELOG"]
WIDTHS = [390, 820, 1440]


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


@pytest.mark.parametrize("width", WIDTHS)
def test_no_page_is_wider_than_its_window_and_none_asks_another_host(browser: Any, address: str, width: int) -> None:
    context = browser.new_context(viewport={"width": width, "height": 900})
    tab = context.new_page()
    asked: list[str] = []
    tab.on("request", lambda request: asked.append(request.url))
    wide = {}
    for name in PAGES:
        tab.goto(f"{address}/{name}.html")
        if (got := tab.evaluate("document.documentElement.scrollWidth")) > width:
            wide[name] = got
    context.close()
    assert wide == {}
    assert [url for url in asked if not url.startswith((address, "data:", "blob:"))] == []


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
    assert "over 5 ranks, after 0 of 4 steps" in verdict.inner_text()
    assert scene.locator("svg.ring .room").count() == 5
    scene.get_by_label("collective").select_option("all_reduce")
    assert "all_reduce over 5 ranks, after 0 of 8 steps" in verdict.inner_text()
    tab.close()


def test_a_reader_who_wants_little_motion_sees_moments_only(browser: Any, address: str) -> None:
    context = browser.new_context(reduced_motion="reduce")
    tab = context.new_page()
    tab.goto(f"{address}/notebooks/01_ring_collectives.html")
    scene = tab.locator('[data-scene="ring"]').first
    scene.scroll_into_view_if_needed()
    tab.wait_for_selector('[data-scene="ring"] .message')
    where = "[...document.querySelectorAll('.message')].map(one => one.parentNode.getAttribute('transform')).join()"
    places = {tab.evaluate(where)}
    scene.get_by_label("play").click()
    for _ in range(10):
        places.add(tab.evaluate(where))
        tab.wait_for_timeout(30)
    context.close()
    assert len(places) <= 2
