"""Pages in a real browser: the keyboard, narrow screens, light and dark. Skipped where there is no Chromium."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from registry.report.comparison import compare_winners, stored_winners
from registry.report.comparison_page import render_comparison
from registry.report.facts import read
from registry.report.page import render
from tuning_db import Store

from .measured import TILE, fill_measured
from .records import H200, decision, softmax

CHROMIUM = shutil.which("chromium")
PHONE, DESKTOP = {"width": 375, "height": 700}, {"width": 1280, "height": 900}

pytestmark = [
    pytest.mark.thorough,
    pytest.mark.skipif(CHROMIUM is None, reason="there is no chromium on the PATH"),
]


@pytest.fixture(scope="module")
def address(tmp_path_factory: pytest.TempPathFactory) -> str:
    folder = tmp_path_factory.mktemp("pages")
    with Store.open(fill_measured(folder / "a.db")) as store:
        text = render(read(store), version="1", created=datetime(2026, 1, 1, tzinfo=UTC))
    (folder / "report.html").write_text(text)
    return (folder / "report.html").as_uri()


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    sync_api = pytest.importorskip("playwright.sync_api")
    with sync_api.sync_playwright() as playwright:
        opened = playwright.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        yield opened
        opened.close()


@pytest.fixture
def faults() -> list[str]:
    return []


@pytest.fixture
def open_page(browser: Any, address: str, faults: list[str]) -> Iterator[Any]:
    opened: list[Any] = []

    def opening(size: dict[str, int], place: str = "", scheme: str = "light") -> Any:
        page = browser.new_page(viewport=size, color_scheme=scheme)
        opened.append(page)
        page.on("console", lambda message: faults.append(message.text))
        page.on("pageerror", lambda error: faults.append(str(error)))
        page.on("request", lambda request: None if request.url.startswith("file:") else faults.append(request.url))
        page.goto(address + place)
        return page

    yield opening
    for page in opened:
        page.close()
    assert faults == []


@pytest.mark.parametrize("size", [PHONE, DESKTOP])
@pytest.mark.parametrize("place", ["", "#s0-k1"])
def test_a_page_is_no_wider_than_its_screen(open_page: Any, size: dict[str, int], place: str) -> None:
    page = open_page(size, place)
    assert page.evaluate("document.documentElement.scrollWidth") <= size["width"]


def test_a_name_opens_the_page_of_its_kernel_and_back_returns(open_page: Any) -> None:
    page = open_page(DESKTOP)
    assert not page.locator("#s0-k1").is_visible()
    page.locator(".board").get_by_role("link", name="triton.tile").click()
    assert page.locator("#s0-k1").is_visible()
    assert not page.locator("#s0").is_visible()
    page.go_back()
    assert page.locator("#s0").is_visible()


def test_a_chart_is_read_with_the_arrow_keys(open_page: Any) -> None:
    page = open_page(DESKTOP)
    page.locator(".chart svg").first.focus()
    page.keyboard.press("ArrowRight")
    assert page.locator("#tip").inner_text().startswith("m=1\n")
    page.keyboard.press("End")
    assert page.locator("#tip").inner_text().startswith("m=1024\n")
    page.keyboard.press("Escape")
    assert not page.locator("#tip").is_visible()


def test_a_table_is_sorted_with_the_keyboard(open_page: Any) -> None:
    page = open_page(DESKTOP)
    names = page.locator(".board tbody td.name")
    before = names.all_inner_texts()
    page.locator(".board th").first.focus()
    for key in ("Enter", "Space"):
        page.keyboard.press(key)
    assert names.all_inner_texts() == before[::-1]
    assert page.locator(".board th").first.get_attribute("aria-sort") == "descending"


def test_the_first_tab_skips_to_the_content(open_page: Any) -> None:
    page = open_page(DESKTOP)
    page.keyboard.press("Tab")
    page.keyboard.press("Enter")
    assert page.evaluate("document.activeElement.id") == "content"


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_text_stands_out_in_both_schemes(open_page: Any, scheme: str) -> None:
    page = open_page(DESKTOP, scheme=scheme)
    contrast = """() => {
      const channel = (byte) => {
        const value = byte / 255;
        return value <= 0.03928 ? value / 12.92 : ((value + 0.055) / 1.055) ** 2.4;
      };
      const luminance = (color) => {
        const [r, g, b] = color.match(/[0-9.]+/g).map(Number).map(channel);
        return 0.2126 * r + 0.7152 * g + 0.0722 * b;
      };
      const ground = luminance(getComputedStyle(document.querySelector(".op")).backgroundColor);
      return [".op h2", ".op .note", ".op td a", ".op .sub"].map((place) => {
        const text = luminance(getComputedStyle(document.querySelector(place)).color);
        return (Math.max(text, ground) + 0.05) / (Math.min(text, ground) + 0.05);
      });
    }"""
    assert min(page.evaluate(contrast)) >= 4.5, "WCAG 2.2, level AA"


def test_kinds_of_changes_are_shown_and_hidden(browser: Any, tmp_path: Path) -> None:
    paths = [fill_measured(tmp_path / name) for name in ("a.db", "b.db")]
    with Store.open(paths[1]) as store:
        store.publish(store.start_run(H200), decision(softmax(1), TILE, 4.0))
    sides = []
    for path in paths:
        with Store.open(path) as store:
            sides.append(stored_winners(store))
    text = render_comparison(compare_winners(*sides), "a", "b", version="1", created=datetime(2026, 1, 1, tzinfo=UTC))
    (tmp_path / "changes.html").write_text(text)
    page = browser.new_page(viewport=PHONE)
    page.goto((tmp_path / "changes.html").as_uri())
    rows = page.locator("#problems tbody tr")
    assert [row.is_visible() for row in rows.all()] == [True, False, False], "what is the same is hidden at first"
    page.get_by_role("button", name="same 2").press("Enter")
    assert [row.is_visible() for row in rows.all()] == [True, True, True]
    assert page.evaluate("document.documentElement.scrollWidth") <= PHONE["width"]
    page.close()
