"""The layer with the registry inside is right in every form that a CPU has, and a wrong one is told."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

import registry
from benchmarks import llama_block

from ..tiers import one_of_each

OPTIONS = ["--device", "cpu", "--small", "--calls", "1", "--backend", "aot_eager"]


@pytest.mark.thorough
def test_a_layer_is_right_in_every_form(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert llama_block.main([*OPTIONS, "--tokens", "1", "5", "--write", str(tmp_path)]) == 0
    said = capsys.readouterr()
    assert said.err == ""
    assert (tmp_path / "llama_block.md").read_text() in said.out
    for tokens in (1, 5):
        for form in ("eager", "compiled"):
            assert f"| {tokens} | {form} |" in said.out


@pytest.mark.parametrize("op", one_of_each(["rms_norm", "softmax", "gemm_int4"]))
@pytest.mark.thorough
def test_an_op_that_is_a_little_wrong_is_noticed(op: str, monkeypatch: pytest.MonkeyPatch) -> None:
    right = registry.call

    def call(name: str, *args: Any, **attributes: Any) -> Any:
        y = right(name, *args, **attributes)
        return y * 1.05 if name == op else y

    monkeypatch.setattr(registry, "call", call)
    with torch.no_grad():
        layers = llama_block.make(llama_block.SMALL, "cpu")
        lines = llama_block.measure(layers, 3, "eager", 1)
    assert [line.form for line in lines] == ["eager", "compiled"]
    assert all(line.faults for line in lines)
