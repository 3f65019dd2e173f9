"""fused_add_rms_norm: torch's sum in place and its norm, and the formula compiled."""

from __future__ import annotations

from collections.abc import Hashable
from typing import Any, ClassVar

import torch

from registry.artifact import Built, Signature
from registry.backends.inductor import InductorImplementation
from registry.device import Device
from registry.implementation import Run, Tensors
from registry.problem import Problem
from registry.space import Config

from ..native import Native


def _add_and_norm(
    x: torch.Tensor, residual: torch.Tensor, weight: torch.Tensor | None, eps: float, offset: float
) -> None:
    """The norm is of the rounded sum, as in vLLM's kernel."""
    torch.add(x, residual, out=residual)
    plain = weight is not None and weight.dtype == x.dtype and not offset
    normed = torch.nn.functional.rms_norm(residual, x.shape[-1:], weight if plain else None, eps)
    if plain or weight is None:
        x.copy_(normed)
    else:
        # 1 + weight in half would be one rounding more
        gain = weight.to(torch.promote_types(weight.dtype, torch.float32))
        torch.mul(normed, gain + offset if offset else gain, out=x)


class FusedAddRmsNorm(Native):
    """``torch.add`` into the residual, ``torch.nn.functional.rms_norm`` of it, and a copy, or a product, into x."""

    op = "fused_add_rms_norm"
    mixed = True

    def bind(self, problem: Problem, config: Config, device: Device, built: Built) -> Run:
        """In place, at any size and for any layout."""

        def run(_outputs: Tensors, arguments: tuple[Any, ...], _scratch: Tensors) -> None:
            _add_and_norm(*arguments)

        return run


class CompiledFusedAddRmsNorm(InductorImplementation):
    """One pass in fp32, which writes to its arguments.

    On a CPU Inductor of torch 2.11 fails for a sum that is kept and reduced, too (KeyError: 'buf1').
    """

    op = "fused_add_rms_norm"
    name = "torch.compile"
    device_types: ClassVar[frozenset[str]] = frozenset({"cuda"})
    # it returns nothing
    returns_outputs = False
    mixed = True

    def function(self, *values: Any) -> tuple[torch.Tensor, ...]:
        """``[..., cols]`` twice, ``[cols]`` or None, epsilon and the offset."""
        x, residual, weight, eps, offset = values
        wide = torch.promote_types(x.dtype, torch.float32)
        total = x.to(wide) + residual.to(wide)
        normed = total * torch.rsqrt(total.square().mean(-1, keepdim=True) + eps)
        residual.copy_(total)
        x.copy_(normed if weight is None else normed * (weight.to(wide) + offset))
        return ()

    def bind(self, problem: Problem, config: Config, device: Device, built: Built) -> Run:
        """Run the compiled code, and return nothing."""
        return _in_place(super().bind(problem, config, device, built))

    def bind_untuned(
        self, problem: Problem, config: Config, device: Device, signature: Signature, family: Hashable
    ) -> Run | None:
        """As ``bind``, by one compilation with varying sizes."""
        run = super().bind_untuned(problem, config, device, signature, family)
        return None if run is None else _in_place(run)


def _in_place(run: Run) -> Run:
    def discarding(outputs: Tensors, arguments: tuple[Any, ...], scratch: Tensors) -> None:
        run(outputs, arguments, scratch)

    return discarding
