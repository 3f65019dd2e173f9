"""Logits of applied models in bfloat16 err no more than the plain models', against float64, of each kind of weights."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any

import pytest
import torch

from registry.nn import PackedExpertsMlp, PackedLinear, ScaledLinear

from .tiny_models import CONFIGS, prompt, tiny

pytestmark = pytest.mark.usefixtures("without_cpp_kernels")

SIZES = {"hidden_size": 64, "intermediate_size": 128, "moe_intermediate_size": 32}
MODES = ("int8", "int4", "int2", "int1", "nf4", "fp8", "w8a8", "w4a8")
ROUTED = ("mixtral", "deepseek_v3")
"""Families in which a rounding error may send a token to another expert."""
ACTIVATIONS: Mapping[str, str] = {"fp8": "float8_e4m3fn", "w8a8": "int8", "w4a8": "int8"}
CELLS = [(family, mode) for family in CONFIGS for mode in (None, *MODES)]
QUICK = {("gemma2", None), ("mixtral", "int4"), *(("llama", mode) for mode in ("int4", "fp8", "w4a8"))}


def of_family(family: str, dtype: torch.dtype) -> Any:
    known = CONFIGS[family][1]
    sizes = {} if family == "gpt2" else {name: size for name, size in SIZES.items() if name in known or name[0] != "m"}
    return tiny(family, dtype, **sizes)


def logits(model: Any) -> torch.Tensor:
    with torch.no_grad():
        found: torch.Tensor = model(prompt().to(model.device)).logits.double()
    return found


def weights_of(applied: Any) -> Iterator[tuple[str, torch.Tensor]]:
    """Names and dequantised weights of all that is packed."""
    for name, module in applied.named_modules():
        if isinstance(module, PackedExpertsMlp):
            yield f"{name}.gate_up_proj", module.gate_up.dequantize()
            yield f"{name}.down_proj", module.down.dequantize()
        elif isinstance(module, ScaledLinear):
            yield f"{name}.weight", module.dequantize(torch.float64)
        elif isinstance(module, PackedLinear):
            yield f"{name}.weight", module.weight.dequantize()


def rounding(to: str) -> Callable[[torch.nn.Module, tuple[torch.Tensor]], tuple[torch.Tensor]]:
    """A hook that rounds a layer's input to 8 bits with a scale for each token, and back."""
    dtype = getattr(torch, to)
    greatest = 127.0 if dtype == torch.int8 else torch.finfo(dtype).max

    def hook(_layer: torch.nn.Module, given: tuple[torch.Tensor]) -> tuple[torch.Tensor]:
        x = given[0].float()
        scale = x.abs().amax(-1, keepdim=True).clamp(min=1e-12) / greatest
        levels = x / scale
        levels = (levels.round() if dtype == torch.int8 else levels).to(dtype).float()
        return ((levels * scale).to(given[0].dtype),)

    return hook


def errors(family: str, mode: Any, device: str) -> tuple[float, float]:
    """Errors of the plain model's and the applied one's logits, as parts of the exact logits' length.

    The plain model has the packed weights' numbers; where activations are rounded, its layers round them, too.
    """
    from registry.integrations.transformers import apply

    applied = of_family(family, torch.bfloat16).to(device)
    grouped = mode is not None and mode not in {"fp8", "w8a8"}
    apply(applied, quantize=mode, **({"group_size": 32} if grouped else {}))
    exact, plain = of_family(family, torch.bfloat16).double().to(device), of_family(family, torch.bfloat16).to(device)
    if hasattr(exact, "set_experts_implementation"):
        exact.set_experts_implementation("eager")  # torch's grouped products have no float64
    packed = dict(weights_of(applied))
    assert bool(packed) is (mode is not None)
    for model in (exact, plain):
        with torch.no_grad():
            for name, weight in packed.items():
                layer = model.get_submodule(name.rpartition(".")[0])
                model.get_parameter(name).copy_(weight.T if type(layer).__name__ == "Conv1D" else weight)
    if mode in ACTIVATIONS:
        for name in packed:
            if name.endswith(".weight"):
                plain.get_submodule(name.removesuffix(".weight")).register_forward_pre_hook(rounding(ACTIVATIONS[mode]))
    right, share = logits(exact), 0.8 if family in ROUTED else 1.0
    own, other = (error(logits(model), right, share) for model in (plain, applied))
    return own, other


def error(found: torch.Tensor, right: torch.Tensor, share: float) -> float:
    """The distance from the right logits over their length, of the best ``share`` of the tokens."""
    distances, lengths = (each.flatten(0, -2).norm(dim=-1) for each in (found - right, right))
    kept = (distances / lengths).argsort()[: round(share * len(lengths))]
    return float(distances[kept].norm() / lengths[kept].norm())


@pytest.mark.parametrize(
    ("family", "mode"),
    [pytest.param(*cell, marks=() if cell in QUICK else (pytest.mark.thorough,)) for cell in CELLS],
)
@pytest.mark.few(2)
def test_logits_err_no_more_than_the_plain_models_of_the_same_weights(family: str, mode: Any) -> None:
    own, other = errors(family, mode, "cpu")
    assert other < 1.5 * own + 1e-3
    assert own < 0.2
