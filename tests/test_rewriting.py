"""Processes of a test run share the work of rewriting assertions."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path

import pytest

from .rewriting import rewrite_a_share


def test_a_share_is_what_pytest_would_have_written(
    pytestconfig: pytest.Config, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from _pytest.assertion import rewrite

    monkeypatch.setattr(sys, "dont_write_bytecode", False)
    for name in "abc":
        (tmp_path / f"test_{name}.py").write_text(f"def told():\n    assert {name!r} == 'nothing'\n")
    rewrite_a_share(pytestconfig, tmp_path, 1, 2)
    assert [path.name.partition(".")[0] for path in (tmp_path / "__pycache__").iterdir()] == ["test_b"]
    rewrite_a_share(pytestconfig, tmp_path, 0, 1)
    assert len(list((tmp_path / "__pycache__").iterdir())) == 3

    def fail(*given: object) -> None:
        raise AssertionError("it is rewritten again")

    monkeypatch.setattr(rewrite, "_rewrite_test", fail)
    hook = rewrite.AssertionRewritingHook(pytestconfig)
    spec = importlib.util.spec_from_file_location("test_b", tmp_path / "test_b.py", loader=hook)
    assert spec is not None
    module = importlib.util.module_from_spec(spec)
    hook.exec_module(module)
    with pytest.raises(AssertionError, match="assert 'b' == 'nothing'"):
        module.told()
