"""Models of transformers that ``kernels.kernelize`` has given the registry's layers: equal logits and gradients."""

from __future__ import annotations

import copy
from pathlib import Path
from typing import Any

import pytest
import torch

from ..transformers.op_counts import OpCounts
from ..transformers.tiny_models import prompt
from .kernelized_models import called, kernelized, marked

pytestmark = pytest.mark.usefixtures("without_cpp_kernels")

CALLS = {
    "llama": {"rms_norm": 5, "rotary_embedding": 2},
    "gpt2": {"gelu": 2},
    "gemma": {"gelu": 2, "rotary_embedding": 2},
    "qwen3": {"rms_norm": 9, "rotary_embedding": 2},
    "mistral": {"rms_norm": 5, "rotary_embedding": 2},
    "phi3": {"rms_norm": 5},
    "mixtral": {"rms_norm": 5, "rotary_embedding": 2},
    "deepseek_v3": {"rms_norm": 9},
}
"""Calls of the registry's ops in one forward of each small model."""
QUICK = ("llama", "gpt2", "deepseek_v3")
FAMILIES = [pytest.param(family, marks=[] if family in QUICK else [pytest.mark.thorough]) for family in CALLS]


@pytest.mark.parametrize("family", FAMILIES)
def test_logits_are_the_models_and_the_ops_run(family: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    model, tokens = marked(monkeypatch, family), prompt()
    with torch.no_grad():
        expected = model(tokens).logits
        kernelized(model, "INFERENCE")
        assert called(lambda: model(tokens), tmp_path) == CALLS[family]
        assert (model(tokens).logits - expected).abs().max() < 1e-5
        assert (model(tokens, use_cache=False).logits - expected).abs().max() < 1e-5


def test_a_norm_with_an_offset_takes_float64() -> None:
    from transformers.models.qwen3_5.modeling_qwen3_5 import Qwen3_5RMSNorm

    from registry.integrations.hf_kernels.layers import RmsNormLayer

    norm: Any = Qwen3_5RMSNorm(16).double()
    generator = torch.Generator().manual_seed(1)
    norm.weight.data.normal_(generator=generator)
    x = torch.randn(4, 16, dtype=torch.float64, generator=generator)
    torch.testing.assert_close(RmsNormLayer.forward(norm, x), type(norm).forward(norm, x), atol=1e-6, rtol=0)


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.few(1)
def test_in_bfloat16_logits_are_the_models_but_for_rounding(family: str, monkeypatch: pytest.MonkeyPatch) -> None:
    model, tokens = marked(monkeypatch, family, torch.bfloat16), prompt()
    with torch.no_grad():
        expected = model(tokens).logits
        found = kernelized(model, "INFERENCE")(tokens).logits
    assert found.dtype is torch.bfloat16
    assert (found - expected).abs().max() < 3e-2 * expected.abs().max()


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.few(1)
def test_gradients_are_the_models_in_training(family: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    model, tokens = marked(monkeypatch, family, resid_pdrop=0.0, embd_pdrop=0.0, attn_pdrop=0.0).train(), prompt()
    plain = copy.deepcopy(model)
    plain(tokens, labels=tokens).loss.backward()
    kernelized(model, "TRAINING")

    def step() -> None:
        model(tokens, labels=tokens).loss.backward()

    calls = called(step, tmp_path)
    assert all(calls[op] == count for op, count in CALLS[family].items() if op != "rotary_embedding")
    rotations = CALLS[family].get("rotary_embedding", 0)
    assert (calls["apply_rotary"], calls["apply_rotary_backward"]) == (rotations, rotations)
    for (name, one), other in zip(model.named_parameters(), plain.parameters(), strict=True):
        assert one.grad is not None, name
        assert other.grad is not None, name
        assert (one.grad - other.grad).abs().max() < 1e-5 * max(1.0, float(other.grad.abs().max())), name


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.few(1)
def test_one_program_of_torch_compile_calls_the_norms(family: str, monkeypatch: pytest.MonkeyPatch) -> None:
    model, tokens = marked(monkeypatch, family, num_hidden_layers=1, n_layer=1), prompt()
    with torch.no_grad():
        expected = model(tokens).logits
        kernelized(model, "INFERENCE TORCH_COMPILE")
        torch._dynamo.reset()
        counts = OpCounts()
        found = torch.compile(model, backend=counts, fullgraph=True)(tokens).logits
    assert (found - expected).abs().max() < 1e-5
    norms = [one for one in model.modules() if type(one).__name__.endswith("RMSNorm")]
    assert [graph["rms_norm"] for graph in counts.graphs] == [0 if family == "gemma" else len(norms)]


@pytest.mark.thorough
def test_layers_in_training_and_compiled_have_gradients(monkeypatch: pytest.MonkeyPatch) -> None:
    model = marked(monkeypatch, "llama")
    norm, x = model.model.norm, torch.randn(3, 64, requires_grad=True)
    (expected,) = torch.autograd.grad(norm(x).square().sum(), x)
    kernelized(norm, "TRAINING TORCH_COMPILE")
    torch._dynamo.reset()
    (found,) = torch.autograd.grad(torch.compile(norm, backend="aot_eager", fullgraph=True)(x).square().sum(), x)
    assert torch.allclose(found, expected, atol=1e-5)


def test_a_first_call_in_a_transform_or_in_inference_mode_is_right(monkeypatch: pytest.MonkeyPatch) -> None:
    model, tokens = marked(monkeypatch, "llama"), prompt()
    norm, x = model.model.norm, torch.randn(4, 64)
    norm.variance_epsilon = 0.0123  # no proof was made of it yet
    with torch.no_grad():
        expected, rows = model(tokens).logits, norm(x)
        kernelized(model, "INFERENCE")
        assert torch.allclose(torch.func.vmap(norm)(x), rows, atol=1e-6)
    with torch.inference_mode():
        assert (model(tokens).logits - expected).abs().max() < 1e-5
