"""Experts of a mixture after ``apply``: one op in inference, grouped products with gradients, nobody's ids."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
import torch

import registry
from registry.nn import ScaledExpertsMlp

from .tiny_models import tiny

if TYPE_CHECKING:  # see late_imports
    import transformers

    from registry.integrations.transformers import apply, restore
    from registry.integrations.transformers.swapping import unswap

pytestmark = pytest.mark.usefixtures("late_imports", "without_cpp_kernels")


def experts_of(model: Any) -> torch.nn.Module:
    (first, *_) = (one for name, one in model.named_modules() if name.endswith("experts"))
    assert isinstance(first, torch.nn.Module)
    return first


def routed(tokens: int = 9) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Hidden states, ids of distinct experts, and their weights."""
    generator = torch.Generator().manual_seed(3)
    hidden = torch.randn(tokens, 64, generator=generator)
    weights, ids = torch.rand(tokens, 4, generator=generator).topk(2)
    return hidden, ids, weights


@pytest.mark.parametrize("learning", [False, True])
def test_inference_calls_one_op_and_training_grouped_products(tmp_path: Path, learning: bool) -> None:
    model = tiny("mixtral")
    hidden, ids, weights = routed()

    def computed() -> tuple[torch.Tensor, torch.Tensor]:
        given = hidden.clone().requires_grad_(learning)
        with torch.set_grad_enabled(learning):
            y: torch.Tensor = experts_of(model)(given, ids, weights)
        return y, torch.autograd.grad(y.square().sum(), given)[0] if learning else y

    plain = computed()
    apply(model)
    with registry.record(tmp_path / "calls.yaml"):
        found = computed()
    for one, other in zip(plain, found, strict=True):
        torch.testing.assert_close(one, other, atol=1e-5, rtol=1e-4)
    called = (tmp_path / "calls.yaml").read_text()
    assert ("fused_moe:" in called, "grouped_gemm:" in called) == (not learning, learning)


def test_experts_of_other_devices_add_nothing() -> None:
    model = tiny("mixtral")
    apply(model)
    hidden, ids, weights = routed()
    mine = ids < 2
    with torch.no_grad():
        whole, parts = experts_of(model)(hidden, ids, weights), []
        for kept in (mine, ~mine):
            parts.append(experts_of(model)(hidden, ids.masked_fill(~kept, 4), weights))
    torch.testing.assert_close(parts[0] + parts[1], whole, atol=1e-5, rtol=1e-4)


@pytest.mark.filterwarnings("ignore:nothing was recorded")
def test_an_implementation_that_is_asked_for_afterwards_is_transformers(tmp_path: Path) -> None:
    model = tiny("mixtral")
    before = model.config._experts_implementation
    apply(model)

    def called() -> tuple[bool, torch.Tensor]:
        calls = tmp_path / "calls.yaml"
        calls.write_text("")
        with torch.no_grad(), registry.record(calls):
            y: torch.Tensor = experts_of(model)(*routed())
        return "fused_moe:" in calls.read_text(), y

    own, expected = called()
    assert own
    for name in ("eager", "batched_mm", before):
        model.set_experts_implementation(name)
        own, y = called()
        assert not own
        torch.testing.assert_close(y, expected, atol=1e-5, rtol=1e-4)
    restore(model)
    apply(model)
    assert called()[0]


def test_experts_of_another_form_are_left_with_the_reason() -> None:
    sizes = {"hidden_size": 32, "intermediate_size": 32, "num_hidden_layers": 1, "vocab_size": 64}
    heads = {"num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 8}
    config = transformers.GptOssConfig(**sizes, **heads, num_local_experts=4)
    report = apply(transformers.AutoModelForCausalLM.from_config(config))
    assert report.left["experts: they compute something else than sums of down(act(gate(x)) * up(x))"] == [
        "model.layers.0.mlp.experts"
    ]
    assert "experts" not in report.replaced


@pytest.mark.parametrize(
    ("family", "quantize", "most"),
    [
        ("mixtral", "fp8", 0.08),
        pytest.param("deepseek_v3", "fp8", 0.08, marks=pytest.mark.thorough),
        pytest.param("mixtral", "w8a8", 0.02, marks=pytest.mark.thorough),
    ],
)
def test_experts_of_8_bits_are_near_the_plain_ones_and_learn_no_more(family: str, quantize: Any, most: float) -> None:
    model = tiny(family, torch.bfloat16)
    hidden, ids, weights = routed()
    given = (hidden.bfloat16(), ids, weights.bfloat16())
    with torch.no_grad():
        expected = experts_of(model)(*given).double()
    report = apply(model, quantize=quantize)
    experts = experts_of(model)
    assert isinstance(experts, ScaledExpertsMlp)
    assert "experts packed in 8 bits" in report.replaced
    assert not any("expert" in reason for reason in report.left)
    assert not list(experts.parameters())
    with torch.no_grad():
        error = experts(*given).double() - expected
    assert error.square().mean() < most**2 * expected.square().mean()
    learning = hidden.bfloat16().requires_grad_()
    (gradient,) = torch.autograd.grad(experts(learning, *given[1:]).sum(), learning)
    assert gradient.isfinite().all()
    assert apply(model, quantize=quantize).replaced == {}
    with pytest.raises(registry.InvalidArgumentError, match="quantised, and its weights in full precision are gone"):
        restore(model)


@pytest.mark.parametrize(
    ("settings", "op"),
    [({"quantize": "int4", "group_size": 32}, "grouped_gemm_int4:"), ({"quantize": "fp8"}, "grouped_scaled_mm:")],
    ids=["int4", "fp8"],
)
def test_packed_experts_gate_by_one_op(tmp_path: Path, settings: Any, op: str) -> None:
    model = tiny("mixtral", torch.bfloat16)
    apply(model, **settings)
    hidden, ids, weights = routed()
    given, results = (hidden.bfloat16(), ids, weights.bfloat16()), []
    with torch.no_grad():
        with registry.record(tmp_path / "calls.yaml"):
            results.append(experts_of(model)(*given))
        unswap(experts_of(model))
        results.append(experts_of(model)(*given))
    called = (tmp_path / "calls.yaml").read_text()
    assert {name in called for name in ("silu_and_mul:", op)} == {True}
    torch.testing.assert_close(*results, atol=1e-3, rtol=2e-2)


def test_packed_experts_keep_hooks_and_those_of_another_forward_are_left() -> None:
    model, seen = tiny("mixtral", torch.bfloat16), []
    first, second = (layer.mlp.experts for layer in model.model.layers)
    handle = first.register_forward_hook(lambda _, args, y: seen.append(y.shape))
    own = second.forward
    second.forward = lambda *given: own(*given) * 2
    report = apply(model, quantize="fp8")
    assert model.model.layers[1].mlp.experts is second
    assert "not packed: another program computes it" in report.left
    given = [one.bfloat16() if one.is_floating_point() else one for one in routed()]
    assert isinstance(experts_of(model), ScaledExpertsMlp)
    seen.clear()  # of the proofs that apply makes
    with torch.no_grad():
        experts_of(model)(*given)
        handle.remove()
        experts_of(model)(*given)
    assert seen == [(9, 64)]
