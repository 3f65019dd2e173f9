"""The documentation as a site: built strictly, complete, its links lead somewhere, it loads nothing from elsewhere."""

from __future__ import annotations

import importlib.util
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Mapping
from html.parser import HTMLParser
from pathlib import Path
from types import ModuleType
from typing import Any
from urllib.parse import unquote, urldefrag

import pytest

import registry

ROOT = Path(__file__).parents[1]
DOCS = ROOT / "docs"
CHROMIUM = shutil.which("chromium")


def built(folder: Path, **variables: str) -> Path:
    """The site in a folder; warnings of mkdocs are errors."""
    paths = os.pathsep.join([str(ROOT), str(ROOT / "plugins")])
    environment = {**os.environ, "PYTHONPATH": paths, "NO_MKDOCS_2_WARNING": "1", **variables}
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "--quiet", "--site-dir", str(folder)]
    done = subprocess.run(
        command, cwd=ROOT, env=environment, capture_output=True, text=True, check=False, timeout=240
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    return folder


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return built(tmp_path_factory.mktemp("site"), SITE_WITHOUT_REPORT="1")


@pytest.fixture(scope="module")
def hooks() -> ModuleType:
    spec = importlib.util.spec_from_file_location("site_hooks", DOCS / "site_hooks.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


class SitePage(HTMLParser):
    """Links, anchors and resources of a page."""

    def __init__(self, path: Path) -> None:
        super().__init__()
        self.links: set[str] = set()
        self.anchors: set[str] = set()
        self.resources: set[str] = set()
        self.feed(path.read_text(encoding="utf-8"))

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        found: Mapping[str, str | None] = dict(attrs)
        self.anchors |= {name for key in ("id", "name") if (name := found.get(key))}
        if tag == "a" and (link := found.get("href")):
            self.links.add(link)
        if tag in {"script", "img", "iframe"} and (source := found.get("src")):
            self.resources.add(source)
        if tag == "link" and found.get("rel") != "canonical" and (source := found.get("href")):
            self.resources.add(source)


def pages_of(site: Path) -> dict[Path, SitePage]:
    # the page that a server shows for any missing one has links from the server's root
    return {path: SitePage(path) for path in sorted(site.rglob("*.html")) if path.name != "404.html"}


@pytest.mark.thorough
def test_links_and_resources_lead_to_files_and_anchors_of_the_site(site: Path) -> None:
    pages = pages_of(site)
    assert len(pages) > 20
    for path, page in pages.items():
        for link in page.links | page.resources:
            if link.startswith(("https:", "mailto:")):
                assert link not in page.resources, f"{path.name} loads {link}"
                continue
            target, anchor = urldefrag(link)
            file = (path.parent / unquote(target)).resolve() if target else path
            assert file.is_file(), f"{path.name}: {link}"
            if anchor and file.suffix == ".html":
                assert unquote(anchor) in pages[file].anchors, f"{path.name}: {link}"


def test_every_page_of_the_documentation_is_in_the_navigation() -> None:
    config = (ROOT / "mkdocs.yml").read_text()
    named = set(re.findall(r"[\w/-]+\.md", config[config.index("\nnav:") :]))
    assert named == {str(path.relative_to(DOCS)) for path in DOCS.rglob("*.md")}, "see nav in mkdocs.yml"


@pytest.mark.thorough
def test_every_public_name_is_in_the_reference(site: Path) -> None:
    named = re.findall(r"^::: registry\.(\w+)$", (DOCS / "reference.md").read_text(), re.MULTILINE)
    assert sorted(named) == sorted([*registry.__all__, "testing"])
    text = (site / "reference.html").read_text()
    assert "Run <code>op</code> on these arguments by the fastest known implementation." in text
    assert ":::" not in text


def test_links_out_of_the_documentation_become_paths_or_addresses(hooks: ModuleType) -> None:
    text = "[the file](../../configs/llm.yaml) and [`configs/llm.yaml`](../../configs/llm.yaml), [shapes](../shapes.md)"
    assert hooks.with_outer_links(text, "guides/a.md", "") == (
        "the file (`configs/llm.yaml`) and `configs/llm.yaml`, [shapes](../shapes.md)"
    )
    assert hooks.with_outer_links("[a](../README.md#results)", "b.md", "https://example.org/r/") == (
        "[a](https://example.org/r/blob/main/README.md#results)"
    )


def annotated(first: int, *, second: str | None = None) -> bool:
    """First line.

    first   how many, of <these>
            at most
    second  a name, see :func:`other`
    """
    return bool(first and second)


def test_docstrings_become_markdown(hooks: ModuleType) -> None:
    assert hooks.signature("annotated", annotated) == (
        "```python\nannotated(first: int, *, second: str | None = None) -> bool\n```"
    )
    assert hooks.described(annotated) == (
        "First line.\n\n- `first`: how many, of &lt;these>\n  at most\n- `second`: a name, see `other`"
    )
    assert hooks.signature("KeyError", KeyError) == ""


@pytest.fixture(scope="module")
def whole_site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return built(tmp_path_factory.mktemp("whole"))


@pytest.mark.thorough
def test_each_op_of_the_results_leads_to_its_charts(whole_site: Path) -> None:
    results = SitePage(whole_site / "results-h200.html")
    charts = {urldefrag(link)[1] for link in results.links if link.startswith("report-shipped.html#")}
    assert len(charts) > 30
    assert charts <= SitePage(whole_site / "report-shipped.html").anchors
    assert "<h3>Roofline</h3>" in (whole_site / "report-shipped.html").read_text()


@pytest.mark.thorough
@pytest.mark.skipif(CHROMIUM is None, reason="there is no chromium on the PATH")
@pytest.mark.parametrize(("width", "scheme"), [(375, "dark"), (1280, "light")])
def test_pages_fit_a_phone_and_a_desktop_and_load_nothing_from_elsewhere(
    whole_site: Path, width: int, scheme: Any
) -> None:
    sync_api = pytest.importorskip("playwright.sync_api")
    faults: list[str] = []
    asked: list[str] = []
    with sync_api.sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        for path in pages_of(whole_site):
            page = browser.new_page(viewport={"width": width, "height": 800}, color_scheme=scheme)
            page.on("pageerror", lambda error, path=path: faults.append(f"{path.name}: {error}"))
            page.on("request", lambda request: asked.append(request.url))
            page.goto(path.as_uri())
            if page.evaluate("document.documentElement.scrollWidth") > width:
                faults.append(f"{path.name} is wider than {width}")
            page.close()
        browser.close()
    assert faults == []
    assert asked
    assert [url for url in asked if not url.startswith(("file:", "data:"))] == []
