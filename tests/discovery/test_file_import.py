"""A file that is imported again is what it is now, whatever bytecode of it was kept."""

from __future__ import annotations

import importlib.util
import os
import sys
from collections.abc import Callable
from importlib.machinery import ModuleSpec
from pathlib import Path

import pytest

from registry.discovery.file_import import spec_of_file


def python_own(name: str, file: Path) -> ModuleSpec:
    spec = importlib.util.spec_from_file_location(name, file)
    assert spec is not None
    return spec


@pytest.mark.parametrize(("spec_of", "expected"), [(spec_of_file, [1, 2]), (python_own, [1, 1])])
def test_a_file_of_the_same_size_and_second_is_read(
    spec_of: Callable[[str, Path], ModuleSpec], expected: list[int], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Python's own loader shows that the test would find a file that is not read."""
    monkeypatch.setattr(sys, "dont_write_bytecode", False)
    file, found = tmp_path / "kernels.py", []
    for number in (1, 2):
        file.write_text(f"answer = {number}\n")
        os.utime(file, (1e9, 1e9))
        spec = spec_of("kernels", file)
        module = importlib.util.module_from_spec(spec)
        assert spec.loader is not None
        spec.loader.exec_module(module)
        found.append(module.answer)
    assert found == expected
    assert str(file) in str(module.__file__)
