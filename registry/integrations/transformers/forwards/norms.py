"""Norms over the last dimension by rms_norm and layer_norm."""

from __future__ import annotations

from typing import Any

import torch
from torch.compiler import is_dynamo_compiling

from ....api import call
from ....tracing import constants_of
from ..proofs import disagreement
from ..swapping import Swapped, other_forward, swap
from .norms_ahead import AHEAD

EPS_NAMES = ("variance_epsilon", "eps", "epsilon", "norm_eps", "layer_norm_epsilon")
"""Names under which norms keep their epsilon."""
OFFSETS = (0.0, 1.0)
"""What a norm adds to its weight: 1 in Gemma's form."""


class RmsNormForward(Swapped):
    """``rms_norm(x, weight + offset)``; for activations of another dtype than the weight's the module's own forward.

    Its constants are eps and the offset.
    """

    weight: torch.nn.Parameter
    registry_shifted: tuple[int, int, torch.Tensor] | None

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        ahead = AHEAD.take(self, x) if is_dynamo_compiling() else None
        if ahead is not None:
            return ahead
        weight: torch.Tensor = self.weight
        if x.dtype is not weight.dtype:
            plain: torch.Tensor = super().forward(x)
            return plain
        eps, offset = constants_of(self.registry_constants)
        if offset:
            weight = self._shifted(weight, offset)
        y: torch.Tensor = call("rms_norm", x, weight, eps=eps)
        return y

    def _shifted(self, weight: torch.Tensor, offset: float) -> torch.Tensor:
        """The weight plus the offset in fp32 or wider, made once while nothing records its gradient."""
        if is_dynamo_compiling() or torch.is_grad_enabled() or weight.is_inference():
            return shifted(weight, offset)
        if type(weight) not in {torch.nn.Parameter, torch.Tensor}:
            return shifted(weight, offset)  # torch.export has tensors without memory
        known, now = self.registry_shifted, (weight.data_ptr(), weight._version)
        if known is None or known[:2] != now:
            known = *now, shifted(weight, offset)
            object.__setattr__(self, "registry_shifted", known)
        return known[2]


class LayerNormForward(Swapped):
    """``layer_norm`` over the last dimension."""

    weight: torch.nn.Parameter | None
    bias: torch.nn.Parameter | None
    eps: float

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        weight, bias = self.weight, self.bias
        if weight is not None and x.dtype is not weight.dtype:
            plain: torch.Tensor = super().forward(x)
            return plain
        y: torch.Tensor = call("layer_norm", x, weight, bias, eps=self.eps)
        return y


def replace_norm(module: torch.nn.Module) -> str | None:
    """Replace a norm's forward. Returns why not, "" if it is replaced, and None for what is no norm."""
    if isinstance(module, torch.nn.LayerNorm):
        if type(module).forward is not torch.nn.LayerNorm.forward:
            return "a layer norm with a forward of its own"
        if len(module.normalized_shape) != 1:
            return "a layer norm over several dimensions"
        told = other_forward(module)
        if not told:
            swap(module, LayerNormForward)
        return told
    weight = _only_weight(module)
    eps = next(
        (float(getattr(module, name)) for name in EPS_NAMES if isinstance(getattr(module, name, None), float)), None
    )
    if weight is None or eps is None:
        return None
    reasons: dict[str, str] = {}
    for offset in OFFSETS:
        told = disagreement(module.forward, lambda x, by=offset: normed(x, weight, eps, by), len(weight), weight)  # type: ignore[misc]
        if not told:
            told = other_forward(module)
            if not told:
                swap(module, RmsNormForward, (eps, offset), shifted=None)
            return told
        # an error of one form tells nothing of a norm that is nearly the other
        reasons.setdefault(told, f"with {offset:g} + its weight " if offset else "")
    return "; ".join(f"{form}{reason}" for reason, form in reasons.items())


def _only_weight(module: torch.nn.Module) -> torch.Tensor | None:
    parameters: dict[str, Any] = dict(module.named_parameters())
    weight = parameters.get("weight")
    alone = len(parameters) == 1 and not any(True for _ in module.children())
    return weight if alone and weight is not None and weight.dim() == 1 else None


def shifted(weight: torch.Tensor, offset: float) -> torch.Tensor:
    """A norm's weight plus its offset, in fp32 or, of a float64 weight, in float64, as rms_norm takes it."""
    return weight.to(torch.promote_types(weight.dtype, torch.float32)) + offset


def normed(x: torch.Tensor, weight: torch.Tensor, eps: float, offset: float) -> torch.Tensor:
    """``x`` over its root mean square, times the weight plus the offset, by torch's operations in fp32 or wider."""
    wide = x.to(torch.promote_types(x.dtype, torch.float32))
    scaled = wide * torch.rsqrt(wide.square().mean(-1, keepdim=True) + eps)
    return (scaled * (weight.to(wide.dtype) + offset)).to(x.dtype)
