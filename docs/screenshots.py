"""Takes the pictures of docs/report.md in a real browser.

    python docs/screenshots.py DATABASE [STUDY]

Needs playwright, which the group dev brings, and a Chromium: the system's, or what `playwright install chromium`
fetches. STUDY is part of the name of the study to open in the dashboard, which is left out without it.
"""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import sys
import tempfile
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from playwright.sync_api import Browser, Page, sync_playwright

IMAGES = Path(__file__).with_name("images")
WIDTH = 1280
CHARTS_MS = 6000
"""Milliseconds to wait for the dashboard's charts: it draws in the browser, and nothing says when it is done."""


def main(database: str, study: str | None = None) -> None:
    """The report in light and dark, the page of the best kernel of its first op, and a study in the dashboard."""
    IMAGES.mkdir(exist_ok=True)
    with sync_playwright() as playwright, tempfile.TemporaryDirectory() as folder:
        browser = playwright.chromium.launch(executable_path=shutil.which("chromium"), args=["--no-sandbox"])
        report = Path(folder) / "report.html"
        registry("report", "--source", "--db", database, "--out", str(report)).wait()
        opened(browser, report.as_uri(), "light", 1380).screenshot(path=IMAGES / "report.png")
        page = opened(browser, report.as_uri(), "dark", 1080)
        page.locator("h3", has_text="Winners").first.evaluate("heading => heading.scrollIntoView()")
        page.screenshot(path=IMAGES / "report-dark.png")
        page = opened(browser, report.as_uri(), "light", 1080)
        page.locator(".board tbody a").first.click()
        page.screenshot(path=IMAGES / "report-kernel.png")
        if study is not None:
            take_dashboard(browser, database, study)
        browser.close()


def take_dashboard(browser: Browser, database: str, study: str) -> None:
    with dashboard(database) as address:
        page = opened(browser, f"{address}dashboard/studies/{study_id(address, study)}", "light", 1190)
        page.get_by_label("Log y scale").click()
        page.wait_for_timeout(CHARTS_MS)
        page.screenshot(path=IMAGES / "dashboard.png")


def opened(browser: Browser, address: str, scheme: str, height: int) -> Page:
    page = browser.new_page(viewport={"width": WIDTH, "height": height}, color_scheme=scheme)
    page.goto(address)
    return page


def registry(*arguments: str) -> subprocess.Popen[str]:
    command = [sys.executable, "-m", "registry.cli.main", *arguments]
    return subprocess.Popen(command, stdout=subprocess.PIPE, text=True)


@contextmanager
def dashboard(database: str) -> Iterator[str]:
    process = registry("dashboard", "--db", database, "--port", "0")
    try:
        assert process.stdout is not None
        found = re.search(r"http://\S+/", process.stdout.readline())
        assert found is not None
        yield found.group()
    finally:
        process.terminate()
        process.wait()


def study_id(address: str, name: str) -> int:
    with urllib.request.urlopen(f"{address}api/studies") as answer:
        studies = json.load(answer)["study_summaries"]
    return next(int(study["study_id"]) for study in studies if name in study["study_name"])


if __name__ == "__main__":
    main(*sys.argv[1:])
