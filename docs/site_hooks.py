"""What the site has besides the pages' own text: docstrings, a report of the winners in the package, outer links.

mkdocs calls these functions while it builds, see mkdocs.yml.
"""

from __future__ import annotations

import inspect
import os
import pkgutil
import posixpath
import re
import tempfile
from collections.abc import Iterator
from datetime import UTC, datetime
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

from mkdocs.structure.files import File, Files

if TYPE_CHECKING:
    from mkdocs.config.defaults import MkDocsConfig
    from mkdocs.structure.pages import Page

ROOT = Path(__file__).parents[1]
SHIPPED = ROOT / "registry" / "shipped"
REPORT = "report-shipped.html"
RESULTS, REFERENCE = "results-h200.md", "reference.md"
WITHOUT_REPORT = "SITE_WITHOUT_REPORT"
"""The environment variable by which a build leaves the report out, which takes most of its time."""

_LINK = re.compile(r"\[([^\]]*)\]\((\.\.?/[^)\s#]*)(#[^)\s]*)?\)")
_ENTRY = re.compile(r"^::: (\S+)$", re.MULTILINE)
_FIELD = re.compile(r"([\w*.]+(?:, [\w*.]+)*) {2,}(\S.*)")
_ROLE = re.compile(r":\w+:`([^`]+)`")
_QUOTED = re.compile(r"(: |-> )'([^']*)'")
_H200 = re.compile(r'<a href="#(s\d+)">([a-z0-9_]+)</a></td>\s*<td class="quiet">NVIDIA H200')
_LONGEST = 100
_OP = re.compile(r"^\*\*([a-z0-9_]+)\*\*$", re.MULTILINE)


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Add the report of the winners in the package."""
    if not os.environ.get(WITHOUT_REPORT):
        files.append(File.generated(config, REPORT, content=report()))
    return files


def on_page_markdown(markdown: str, page: Page, config: MkDocsConfig, files: Files) -> str:  # noqa: ARG001
    """Put docstrings into the reference, lead from results to their charts, resolve links that leave the docs."""
    if page.file.src_uri == REFERENCE:
        markdown = with_docstrings(markdown)
    if page.file.src_uri == RESULTS and not os.environ.get(WITHOUT_REPORT):
        markdown = with_charts(markdown)
    return with_outer_links(markdown, page.file.src_uri, config.repo_url or "")


def with_outer_links(markdown: str, page: str, repository: str) -> str:
    """The page's text with links to files of the repository that are no pages: to its address, or as paths without one.

    page        path of the page below docs/
    repository  the address of the repository, "" if there is none
    """

    def outer(link: re.Match[str]) -> str:
        text, target, anchor = link[1], link[2], link[3] or ""
        path = posixpath.normpath(posixpath.join("docs", posixpath.dirname(page), target))
        if path.startswith("docs/"):
            return link[0]
        if repository:
            return f"[{text}]({repository.rstrip('/')}/blob/main/{path}{anchor})"
        return text if text in {path, f"`{path}`"} else f"{text} (`{path}`)"

    return _LINK.sub(outer, markdown)


def with_charts(markdown: str) -> str:
    """The page of results with links to the charts, at its beginning and below the heading of each op."""
    anchors = {op: anchor for anchor, op in _H200.findall(report())}

    def charted(heading: re.Match[str]) -> str:
        anchor = anchors.get(heading[1])
        return f"{heading[0]}\n\n[Leaderboard and charts]({REPORT}#{anchor})" if anchor else heading[0]

    title, rest = markdown.split("\n", 1)
    button = f"[Leaderboards, rooflines and pages of kernels]({REPORT}){{ .md-button }}"
    led = f"{title}\n\n{button}\n\nThe report also has the other GPUs with winners in the package.\n{rest}"
    return _OP.sub(charted, led)


def with_docstrings(markdown: str) -> str:
    """The reference with what each line ``::: name`` names: its signature and docstring, and its members'."""
    return _ENTRY.sub(lambda entry: "\n".join(_entry(entry[1])), markdown)


def _entry(name: str) -> Iterator[str]:
    found = pkgutil.resolve_name(name)
    if inspect.ismodule(found):
        yield described(found)
        for member in found.__all__:
            yield from _entry(f"{name}.{member}")
        return
    short = name.rpartition(".")[2]
    yield f"\n### {short}\n\n{signature(short, found)}\n\n{described(found)}\n"
    if inspect.isclass(found):
        for member, value in _members(found):
            yield f"\n#### {short}.{member}\n\n{signature(member, value)}\n\n{described(value)}\n"


def _members(owner: type) -> Iterator[tuple[str, Any]]:
    """Public methods and properties with a docstring, those of bases of ours too, in the order of definition."""
    seen: set[str] = set()
    for base in owner.__mro__:
        if base.__module__.partition(".")[0] not in {"registry", "tuning_db"}:
            continue
        for name, value in vars(base).items():
            value = value.__func__ if isinstance(value, classmethod | staticmethod) else value  # noqa: PLW2901
            is_member = inspect.isfunction(value) or isinstance(value, property)
            if is_member and not name.startswith("_") and name not in seen and inspect.getdoc(value):
                seen.add(name)
                yield name, value


def signature(name: str, found: Any) -> str:
    """The signature as a block of Python, a parameter a line if it is long; "" where there is none to tell."""
    if not callable(found) or (inspect.isclass(found) and issubclass(found, BaseException)):
        return ""
    try:
        parameters = inspect.signature(found)
    except (TypeError, ValueError):
        return ""
    kind = "class " if inspect.isclass(found) else ""
    returned = parameters.return_annotation
    end = "" if kind or returned is inspect.Signature.empty else f" -> {returned}"
    told = f"({', '.join(map(str, parameters.parameters.values()))})" if kind else str(parameters)
    if len(kind + name + told) > _LONGEST:
        told = "(\n" + "".join(f"    {one},\n" for one in parameters.parameters.values()) + f"){end}"
    plain = _QUOTED.sub(r"\1\2", told)  # an annotation is a text where its evaluation is postponed
    return f"```python\n{kind}{name}{plain}\n```"


def described(found: Any) -> str:
    """The docstring as Markdown: aligned fields become a list, and text in angle brackets stays text."""
    doc = inspect.getdoc(found) or ""
    if inspect.isclass(found) and doc.startswith(f"{found.__name__}("):
        return ""  # what dataclasses make where there is none
    doc = _ROLE.sub(r"`\1`", doc)
    pieces = re.split(r"(``.*?``|`[^`]*`)", doc)
    doc = "".join(piece if piece.startswith("`") else piece.replace("<", "&lt;") for piece in pieces)
    return "\n\n".join(_listed(paragraph) for paragraph in doc.split("\n\n"))


def _listed(paragraph: str) -> str:
    lines = paragraph.split("\n")
    if not _FIELD.fullmatch(lines[0]):
        return paragraph
    told: list[str] = []
    for line in lines:
        field = _FIELD.fullmatch(line)
        told.append(f"- `{field[1]}`: {field[2]}" if field else f"  {line.strip()}")
    return "\n".join(told)


@cache
def report() -> str:
    """The report of the winners in the package, with the work of their problems counted by the contracts."""
    from registry import __version__
    from registry.cli.pages.installed import counted_work
    from registry.report.facts import read
    from registry.report.page import render
    from tuning_db import Store

    with tempfile.TemporaryDirectory() as folder, Store.open(Path(folder) / "shipped.db") as store:
        for path in sorted(SHIPPED.glob("*.jsonl")):
            with path.open(encoding="utf-8") as stream:
                store.load(stream)
        return render(read(store, counted=counted_work), version=__version__, created=datetime.now(UTC))
