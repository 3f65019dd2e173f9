"""The tree's layout: small folders, a layer for every sub-package, tests that mirror the packages."""

from __future__ import annotations

import ast
import re
from graphlib import TopologicalSorter
from pathlib import Path

import grimp
import pytest

from benchmarks.sizes import ROOT, TREES, files_per_folder, layers

MOST_FILES = 20
PACKAGES = [path.parent for path in sorted((ROOT / "registry").rglob("__init__.py"))]
ALL_PACKAGES = [
    path.parent for tree in ("registry", "tuning_db") for path in sorted((ROOT / tree).rglob("__init__.py"))
]
MIRRORED = {"tuning_db", "plugins", "benchmarks"}
"""Folders of tests/ that mirror a folder of the repository other than registry/."""
OTHER = {"gpu", "adversarial"}
"""Folders of tests/ that mirror none: tests that need a GPU, and implementations that cheat."""
TESTED_ELSEWHERE = {"dashboard", "shipped"}
"""Packages that are tested through their readers: the command that serves one, the resolution that reads the other."""


def _name(path: Path) -> str:
    return str(path.relative_to(ROOT))


@pytest.mark.parametrize("tree", TREES)
def test_no_folder_has_more_files_than_a_reader_can_survey(tree: str) -> None:
    counts = files_per_folder(tree)
    assert counts, "no file was found"
    assert {str(folder): count for folder, count in counts.items() if count > MOST_FILES} == {}


def test_every_folder_of_python_files_is_a_package() -> None:
    folders = {path.parent for path in (ROOT / "registry").rglob("*.py")}
    assert {_name(folder) for folder in folders} == {_name(package) for package in PACKAGES}


@pytest.mark.parametrize("package", PACKAGES, ids=_name)
def test_a_package_says_what_it_holds(package: Path) -> None:
    said = ast.get_docstring(ast.parse((package / "__init__.py").read_text(encoding="utf-8")))
    assert said
    assert said.splitlines()[0].endswith(".")


def test_every_sub_package_has_a_layer() -> None:
    placed = set()
    for contract in layers():
        for container in contract.get("containers", [""]):
            for layer in contract["layers"]:
                names = (part.strip(" ()") for part in re.split("[|:]", layer))
                placed |= {f"{container}.{name}" if container else name for name in names}
    found = {_name(package).replace("/", ".") for package in ALL_PACKAGES if package.parent in ALL_PACKAGES}
    assert {"registry.backends.triton", "registry.contracts.decoder", "tuning_db.database"} <= found
    # a package may be placed by its modules
    assert {name for name in found if not any(f"{each}.".startswith(f"{name}.") for each in placed)} == set()
    assert {each["containers"][0] for each in layers() if each.get("exhaustive")} >= {
        f"registry.{name}" for name in ("backends", "contracts", "dispatch", "discovery", "tuner", "tuner.search")
    }


def test_every_folder_of_tests_mirrors_a_package() -> None:
    tests = ROOT / "tests"
    for folder in sorted({path.parent for path in tests.rglob("test_*.py")} - {tests}):
        parts = folder.relative_to(tests).parts
        if parts[0] not in OTHER:
            mirrored = ROOT.joinpath(*(() if parts[0] in MIRRORED else ("registry",)), *parts)
            assert mirrored.is_dir(), f"{_name(folder)} mirrors {_name(mirrored)}, which is not there"


@pytest.mark.parametrize("package", [path for path in PACKAGES if path != ROOT / "registry"], ids=_name)
def test_every_package_has_a_folder_of_tests(package: Path) -> None:
    if package.name not in TESTED_ELSEWHERE:
        # what lies deeper than a sub-package is tested with it
        folder = ROOT.joinpath("tests", *package.relative_to(ROOT / "registry").parts[:2])
        assert list(folder.rglob("test_*.py")), f"{_name(package)} has no tests in {_name(folder)}"


def test_no_module_imports_itself_through_others() -> None:
    # contracts of layers hold packages apart, not the modules of one; imports within functions count, too
    graph = grimp.build_graph("registry", "tuning_db", exclude_type_checking_imports=True, cache_dir=None)
    # every module's package is imported with it: the names in __init__.py make nobody depend on them
    imported = {module: graph.find_modules_directly_imported_by(module) - {"registry"} for module in graph.modules}
    assert sum(map(len, imported.values())) > 3000
    TopologicalSorter(imported).prepare()  # raises CycleError with the circle
