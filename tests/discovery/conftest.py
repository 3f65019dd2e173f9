"""Real distributions with real metadata in a folder on ``sys.path``."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Iterator, Mapping
from importlib import metadata
from pathlib import Path
from textwrap import dedent

import pytest

HEADER = """
from registry import defines, implements
from registry.implementation import Implementation
KERNEL_REGISTRY_API = 1

class Made(Implementation):
    device_types = frozenset({"cpu"})
    def __init__(self, op, name):
        self.op, self.name = op, name
    def bind(self, problem, config, device, built):
        raise NotImplementedError
"""

ROW_SUM = """
import torch
from registry.contract import Floor, Op, Tolerance
from registry.problem import Problem

def row_sum(name):
    return Op(
        name=name, schema=name + "(Tensor x) -> Tensor y", version=1,
        reference=lambda x: x.sum(-1),
        problem=lambda arguments: Problem(name, dict(zip(("rows", "cols"), arguments.tensor("x").shape))),
        inputs=lambda problem, kind, generator: (torch.ones(problem.rows, problem.cols),),
        floor=lambda problem: Floor(4 * problem.rows * problem.cols, problem.rows * problem.cols),
        tolerance=Tolerance({}, {}, lambda problem, reference: reference.abs()),
        static=frozenset({"cols"}), dynamic=frozenset({"rows"}),
    )
"""


class Site:
    """A site-packages folder."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.modules: list[str] = []

    def add(self, distribution: str, entry_points: Mapping[str, str], version: str = "1.0", **modules: str) -> None:
        """A distribution: its entry points (name -> module) and its modules (name -> source, after HEADER)."""
        info = self.folder / f"{distribution.replace('-', '_')}-{version}.dist-info"
        info.mkdir()
        (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {distribution}\nVersion: {version}\n")
        lines = "".join(f"{name} = {module}\n" for name, module in entry_points.items())
        (info / "entry_points.txt").write_text(f"[kernel_registry]\n{lines}")
        for name, source in modules.items():
            (self.folder / f"{name}.py").write_text(HEADER + dedent(source))
            self.modules.append(name)
        importlib.invalidate_caches()

    @property
    def entry_points(self) -> list[metadata.EntryPoint]:
        """All of them, as the interpreter's own machinery reads them."""
        found = metadata.distributions(path=[str(self.folder)])
        return [entry_point for distribution in found for entry_point in distribution.entry_points]

    def forget(self) -> None:
        """Remove its modules from this process."""
        for name in self.modules:
            sys.modules.pop(name, None)


@pytest.fixture
def site(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Site]:
    """An empty site-packages folder on ``sys.path``."""
    folder = tmp_path / "site"
    folder.mkdir()
    monkeypatch.syspath_prepend(str(folder))
    made = Site(folder)
    yield made
    made.forget()


@pytest.fixture
def header() -> str:
    """What every module of a plugin begins with: imports, the contract's version, an implementation ``Made``."""
    return HEADER


@pytest.fixture
def row_sum() -> str:
    """Source of a function that makes an op."""
    return ROW_SUM
