"""The identity of compiled code: it changes with the file that says how an op's outputs lie."""

from __future__ import annotations

import importlib.util
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch

from registry.contract import RowMajor
from registry.contracts import SQUARE
from registry.discovery.catalog import Catalog
from registry.dispatch.compiled.identity import identity_hash
from registry.dispatch.dispatcher import Dispatcher

CODE = """import torch

def fake(x):
    return torch.empty({})

def rule(x):
    return [(x.shape, x.dtype)]

class Outputs:
    def __call__(self, x):
        return fake(x)

    def of(self, x):
        return fake(x)
"""
MADE: dict[str, Callable[[Any], Any]] = {
    "function": lambda module: module.fake,
    "rule": lambda module: RowMajor(module.rule),
    "otherwise": lambda module: RowMajor(rule_elsewhere, otherwise=module.fake),
    "partial": lambda module: partial(partial(module.fake)),
    "partial rule": lambda module: RowMajor(partial(module.rule)),
    "callable object": lambda module: module.Outputs(),
    "method": lambda module: module.Outputs().of,
}


def rule_elsewhere(x: torch.Tensor) -> list[Any]:
    return [(x.shape, x.dtype)]


def identity(file: Path, made: Callable[[Any], Any]) -> str:
    """That of a program with an op whose fake is ``made`` of the file's module."""
    spec = importlib.util.spec_from_file_location("outputs_of_an_op", file)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    dispatcher = Dispatcher(Catalog(entry_points=()))
    dispatcher.catalog.define(
        replace(SQUARE, name="acme::told", schema="acme::told(Tensor x) -> Tensor y", fake=made(module), backward=None)
    )
    return identity_hash(["acme::told", "acme::unknown"], dispatcher.bound, ())


@pytest.mark.parametrize("made", MADE.values(), ids=MADE)
def test_an_edit_of_the_file_of_the_fake_is_another_identity(tmp_path: Path, made: Callable[[Any], Any]) -> None:
    file = tmp_path / "outputs_of_an_op.py"
    file.write_text(CODE.format("x.shape"))
    first = identity(file, made)
    assert identity(file, made) == first
    file.write_text(CODE.format("x.shape[::-1]).t("))
    assert identity(file, made) != first


def test_a_fake_without_a_file_has_an_identity(tmp_path: Path) -> None:
    file = tmp_path / "outputs_of_an_op.py"
    file.write_text(CODE.format("x.shape"))
    assert identity(file, lambda _: torch.empty_like) == identity(file, lambda _: partial(torch.empty_like))
