"""The identity of compiled code: it changes with the file that says how an op's outputs lie."""

from __future__ import annotations

import importlib.util
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from registry.contract import RowMajor
from registry.contracts import SQUARE
from registry.discovery.catalog import Catalog
from registry.dispatch.compiled.identity import identity_hash
from registry.dispatch.dispatcher import Dispatcher

CODE = "import torch\n\ndef fake(x):\n    return torch.empty({})\n\ndef rule(x):\n    return [(x.shape, x.dtype)]\n"


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


@pytest.mark.parametrize("made", [lambda module: module.fake, lambda module: RowMajor(module.rule)])
def test_an_edit_of_the_file_of_the_fake_is_another_identity(tmp_path: Path, made: Callable[[Any], Any]) -> None:
    file = tmp_path / "outputs_of_an_op.py"
    file.write_text(CODE.format("x.shape"))
    first = identity(file, made)
    assert identity(file, made) == first
    file.write_text(CODE.format("x.shape[::-1]).t("))
    assert identity(file, made) != first
