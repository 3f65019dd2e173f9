"""One name names one thing: no two classes of the tree share a name, and no module has a name that tells nothing."""

from __future__ import annotations

import ast
import collections
from pathlib import Path

ROOT = Path(__file__).parents[1]
FOLDERS = ("registry", "tuning_db", "plugins", "kernel_registry")
TELL_NOTHING = {"utils", "util", "common", "manager", "helpers", "misc", "aside", "apart", "unmade", "smaller", "turns",
                "copying", "watching", "surroundings"}  # fmt: skip


def files() -> list[Path]:
    return sorted(path for folder in FOLDERS for path in (ROOT / folder).rglob("*.py"))


def test_no_two_classes_share_a_name() -> None:
    places: dict[str, list[str]] = collections.defaultdict(list)
    for path in files():
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.ClassDef):
                places[node.name].append(f"{path.relative_to(ROOT)}:{node.lineno}")
    assert len(places) > 300
    assert {name: where for name, where in places.items() if len(where) > 1} == {}


def test_a_modules_name_says_what_it_holds() -> None:
    assert [str(path) for path in files() if path.stem in TELL_NOTHING] == []
