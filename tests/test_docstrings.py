"""A docstring stands alone: it begins with its subject, not with a word that points at something else."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
FOLDERS = ("registry", "kernel_registry", "tuning_db", "plugins", "benchmarks")
POINTS_ELSEWHERE = re.compile(
    r'^[ \t]*"""(?:(?:The same|Those|That of|As for|As of|Of|By|In the place of|Whoever|Who|Its|It|End it)\b|As ``).*',
    re.MULTILINE,
)
"""The first line of a docstring whose subject a reader would have to find. It is far quicker than a look at syntax."""


MEASURED = ("plugins/", "registry/backends/inductor/")
"""Folders whose texts behind constants stay: other ones would part shipped winners from what was measured."""


def riddles(text: str, *, of_constants: bool = True) -> Iterator[tuple[int, str]]:
    """Line and first words of each docstring that begins with what it does not say."""
    for found in POINTS_ELSEWHERE.finditer(text):
        before = text[: found.start()].rstrip()
        if not of_constants and before and not before.endswith(":"):
            continue
        yield text.count("\n", 0, found.start()) + 1, found.group().strip()


def test_a_docstring_begins_with_its_subject() -> None:
    paths = sorted(path for folder in FOLDERS for path in (ROOT / folder).rglob("*.py"))
    assert len(paths) > 500
    texts = {str(path.relative_to(ROOT)): path.read_text(encoding="utf-8") for path in paths}
    found = {file: list(riddles(text, of_constants=not file.startswith(MEASURED))) for file, text in texts.items()}
    assert {file: lines for file, lines in found.items() if lines} == {}


@pytest.mark.parametrize(
    "first", ["The same, and more.", "Those of a thread.", "That of x.", "As for the forward pass.", "As ``bind``.",
              "End it. Raises.", "It keeps no logits.", "Of a warp, for what it stores.", "By place and candidate key.",
              "Whoever is wrong is out.", "In the place of a module: it notes its name."],
)  # fmt: skip
def test_a_docstring_that_points_elsewhere_is_found(first: str) -> None:
    assert list(riddles(f'def f():\n    """{first}"""\n')) == [(2, f'"""{first}"""')]


@pytest.mark.parametrize("first", ["Threads of a block.", "Registers of a thread.", "As many rows as 512 MiB hold."])
def test_a_docstring_that_names_its_subject_is_not(first: str) -> None:
    assert list(riddles(f'def f():\n    """{first}"""\n')) == []
