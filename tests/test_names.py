"""One name names one thing: no two types of the tree share a name, and no module has a name that tells nothing."""

from __future__ import annotations

import ast
import collections
import re
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).parents[1]
FOLDERS = ("registry", "tuning_db", "plugins", "kernel_registry")
TELL_NOTHING = {"utils", "util", "common", "manager", "helpers", "misc", "aside", "apart", "unmade", "smaller", "turns",
                "copying", "watching", "surroundings"}  # fmt: skip


MEASURED = {"_TileShape": 2}
"""Private types of as many plugin modules: another name would part shipped winners from the text that was measured."""


def files() -> list[Path]:
    return sorted(path for folder in FOLDERS for path in (ROOT / folder).rglob("*.py"))


def types_of(tree: ast.Module) -> Iterator[tuple[str, int]]:
    """Name and line of every class, and of every public alias of a type, NewType or TypeVar of a module."""
    left: list[ast.AST] = [tree]
    while left:  # classes are statements: ``ast.walk`` goes through expressions, too, in five times as long
        node = left.pop()
        if isinstance(node, ast.ClassDef):
            yield node.name, node.lineno
        for part in ("body", "orelse", "finalbody", "handlers", "cases"):
            inner = getattr(node, part, None)
            left += inner if isinstance(inner, list) else []
    conditional = [each for node in tree.body if isinstance(node, ast.If) for each in (*node.body, *node.orelse)]
    for node in [*tree.body, *conditional]:
        targets = node.targets if isinstance(node, ast.Assign) else [getattr(node, "target", None)]
        name = targets[0].id if isinstance(targets[0], ast.Name) else ""
        # of what a module holds types alone are in capitals and small letters
        if re.fullmatch(r"[A-Z]\w*[a-z]\w*", name):
            yield name, node.lineno


def test_no_two_types_share_a_name() -> None:
    places: dict[str, list[str]] = collections.defaultdict(list)
    for path in files():
        for name, line in types_of(ast.parse(path.read_text())):
            places[name].append(f"{path.relative_to(ROOT)}:{line}")
    assert len(places) > 300
    assert {name: where for name, where in places.items() if len(where) > MEASURED.get(name, 1)} == {}


def test_aliases_and_new_types_are_seen_and_private_ones_are_not() -> None:
    text = "Id = NewType('Id', int)\nGrid: TypeAlias = tuple[int]\nMost = int | str\n_T = TypeVar('_T')\nN = 3\nf.X = 4"
    assert [name for name, _ in types_of(ast.parse(text))] == ["Id", "Grid", "Most"]


def test_a_modules_name_says_what_it_holds() -> None:
    assert [str(path) for path in files() if path.stem in TELL_NOTHING] == []
