"""apply and kernelize on one model, in either order: results are right, and a report tells what really runs."""

from __future__ import annotations

import copy
import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
import torch

from ..transformers.op_counts import OpCounts
from ..transformers.tiny_models import prompt
from .kernelized_models import called, kernelized, marked

if TYPE_CHECKING:  # see late_imports
    from kernels import LocalLayerRepository

    from registry.integrations.hf_kernels import kernel_mapping
    from registry.integrations.transformers import apply, restore

pytestmark = pytest.mark.usefixtures("late_imports", "without_cpp_kernels")

OTHERS = """
import torch

CALLS = []

class layers:
    class Norm(torch.nn.Module):
        can_torch_compile = True

        def forward(self, hidden_states):
            CALLS.append("norm")
            shape = hidden_states.shape[-1:]
            return torch.nn.functional.rms_norm(hidden_states, shape, self.weight, self.variance_epsilon)

    class Rotation(torch.nn.Module):
        can_torch_compile = True

        def forward(self, q, k, cos, sin, unsqueeze_dim=1):
            CALLS.append("rotation")
            return type(self).forward(self, q, k, cos, sin, unsqueeze_dim)

    class Silu(torch.nn.Module):
        can_torch_compile = True

        def forward(self, input):
            CALLS.append("silu")
            return torch.nn.functional.silu(input)
"""
"""A kernel of another author, which notes its calls."""


@pytest.fixture
def others(tmp_path: Path) -> dict[str, Any]:
    """The mapping of another author's kernel."""
    folder = tmp_path / "others"
    folder.mkdir()
    metadata = {"id": "others_kernel", "name": "others-kernel", "version": 1, "license": "MIT"}
    (folder / "metadata.json").write_text(json.dumps({**metadata, "python-depends": [], "backend": {"type": "cpu"}}))
    (folder / "__init__.py").write_text(OTHERS)
    layers = {"RMSNorm": "Norm", "rotary_pos_emb": "Rotation", "SiLU": "Silu"}
    return {mark: {"cpu": LocalLayerRepository(folder, layer_name=layer)} for mark, layer in layers.items()}


def calls_of_others() -> list[str]:
    """The calls of that kernel since this was last asked for."""
    module = sys.modules["others_kernel"]
    noted: list[str] = list(module.CALLS)
    module.CALLS.clear()
    return noted


def logits(model: Any) -> torch.Tensor:
    with torch.no_grad():
        found: torch.Tensor = model(prompt()).logits
    return found


@pytest.mark.parametrize("ours", [False, True], ids=["no kernel", "ours"])
@pytest.mark.parametrize("first", ["kernelize", "apply"])
@pytest.mark.few(2)
def test_what_kernelize_leaves_to_the_registry_runs_by_apply(
    first: str, ours: bool, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """kernelize binds a forward to each marked module, also where it has no kernel for it."""
    model = marked(monkeypatch, "llama")
    expected, mapping = logits(model), kernel_mapping() if ours else {}
    plain = apply(copy.deepcopy(model))
    if first == "kernelize":
        kernelized(model, "INFERENCE", mapping)
    report = apply(model)
    if first == "apply":
        kernelized(model, "INFERENCE", mapping)
    assert report == plain
    calls = called(lambda: logits(model), tmp_path)
    assert (calls["rms_norm"], calls["silu_and_mul"], calls["rotary_embedding"]) == (5, 2, 2)
    assert (logits(model) - expected).abs().max() < 1e-5
    restore(model)
    assert (logits(model) - expected).abs().max() < 1e-5
    if ours:
        # what kernelize has put there stays
        assert called(lambda: logits(model), tmp_path) == {"rms_norm": 5, "rotary_embedding": 2}


@pytest.mark.thorough
@pytest.mark.parametrize("first", ["kernelize", "apply"])
def test_programs_of_both_still_take_sums_together_with_norms(first: str, monkeypatch: pytest.MonkeyPatch) -> None:
    model = marked(monkeypatch, "llama")
    expected = logits(model)
    steps = [lambda: kernelized(model, "INFERENCE"), lambda: apply(model)]
    for step in steps if first == "kernelize" else reversed(steps):
        step()
    torch._dynamo.reset()
    counts = OpCounts()
    with torch.no_grad():
        found = torch.compile(model, backend=counts, fullgraph=True)(prompt()).logits
    assert (found - expected).abs().max() < 1e-5
    assert [graph["fused_add_rms_norm"] for graph in counts.graphs] == [4]


def test_what_another_kernel_computes_is_left_and_the_report_says_so(
    others: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    model = marked(monkeypatch, "llama")
    expected = logits(model)
    kernelized(model, "INFERENCE", others)
    report = apply(model)
    told = "a kernel of others_kernel computes it"
    assert len(report.left[f"norm: {told}"]) == 5
    assert len(report.left[f"gated MLP: its activation function: {told}"]) == 2
    assert report.left[f"rotary positions: {told}"] == ["model.rotary_emb"]
    assert not {"norm", "gated MLP", "rotary positions"} & report.replaced.keys()
    calls_of_others()
    assert (logits(model) - expected).abs().max() < 1e-5
    assert sorted(calls_of_others()) == ["norm"] * 5 + ["rotation"] * 2 + ["silu"] * 2
    restore(model)
    assert (logits(model) - expected).abs().max() < 1e-5
    assert len(calls_of_others()) == 9


def test_another_kernel_that_comes_after_apply_computes(
    others: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    model = marked(monkeypatch, "llama")
    expected = logits(model)
    apply(model)
    kernelized(model, "INFERENCE", others)
    calls_of_others()
    assert (logits(model) - expected).abs().max() < 1e-5
    assert calls_of_others().count("norm") == 5
    restore(model)
    assert (logits(model) - expected).abs().max() < 1e-5
    assert calls_of_others().count("norm") == 5


def test_linear_layers_that_another_program_computes_are_left() -> None:
    layers = torch.nn.ModuleDict({name: torch.nn.Linear(8, 8) for name in ("q_proj", "k_proj", "v_proj", "o_proj")})
    for layer in (layers["k_proj"], layers["o_proj"]):
        layer.forward = lambda x, own=layer: torch.nn.Linear.forward(own, x)  # type: ignore[method-assign]
    report = apply(layers)
    assert report.left["linear: another program computes it"] == ["k_proj", "o_proj"]
    assert report.replaced == {"linear": ["q_proj", "v_proj"]}
