"""How large the code is: files per folder, the longest files and functions, lines per package, import-linter's layers.

python -m benchmarks.sizes
"""

from __future__ import annotations

import ast
import tomllib
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
TREES = ("registry", "plugins", "tuning_db", "benchmarks")


def python_files(tree: str) -> list[Path]:
    """Every Python file under the folder ``tree`` of the repository."""
    return sorted((ROOT / tree).rglob("*.py"))


def files_per_folder(tree: str) -> Counter[Path]:
    """Folder -> its number of files, without ``__init__.py`` and compiled files, for every folder under ``tree``."""
    found = (path for path in (ROOT / tree).rglob("*") if path.is_file() and "__pycache__" not in path.parts)
    return Counter(path.parent.relative_to(ROOT) for path in found if path.name != "__init__.py")


def functions(path: Path) -> Iterator[tuple[int, str]]:
    """(lines, place) of every function in a file, the place as ``registry/api.py:12 call``."""
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            yield (
                (node.end_lineno or node.lineno) - node.lineno + 1,
                f"{path.relative_to(ROOT)}:{node.lineno} {node.name}",
            )


def layers() -> list[dict[str, Any]]:
    """import-linter's contracts of the kind ``layers``, as pyproject.toml states them."""
    settings = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    return [one for one in settings["tool"]["importlinter"]["contracts"] if one["type"] == "layers"]


def main() -> None:
    """Prints everything, the largest first."""
    for contract in layers():
        print(contract["name"], *(f"    {layer}" for layer in contract["layers"]), sep="\n")
    counts = sum((files_per_folder(tree) for tree in TREES), Counter[Path]())
    _table("files per folder", [(count, str(folder)) for folder, count in counts.items()])
    lengths = {
        path: len(path.read_text(encoding="utf-8").splitlines()) for tree in TREES for path in python_files(tree)
    }
    _table("longest files", [(lines, str(path.relative_to(ROOT))) for path, lines in lengths.items()], 10)
    _table("longest functions", [found for path in lengths for found in functions(path)], 10)
    _table("lines", [(sum(lengths[path] for path in python_files(tree)), tree) for tree in TREES])


def _table(title: str, rows: list[tuple[int, str]], most: int | None = None) -> None:
    print(f"\n{title}", *(f"{number:6}  {name}" for number, name in sorted(rows, reverse=True)[:most]), sep="\n")


if __name__ == "__main__":
    main()
