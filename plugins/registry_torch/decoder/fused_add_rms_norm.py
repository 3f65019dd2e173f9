"""fused_add_rms_norm: torch's sum in place and its norm.

Not compiled: for a sum that is kept and reduced, too, Inductor of torch 2.15 fails on a CPU (KeyError: 'buf1').
"""

from __future__ import annotations

from typing import Any

import torch

from registry.artifact import Built
from registry.device import Device
from registry.implementation import Run, Tensors
from registry.problem import Problem
from registry.space import Config

from ..native import Native


def _add_and_norm(
    x: torch.Tensor, residual: torch.Tensor, weight: torch.Tensor | None, eps: float, offset: float
) -> None:
    """Add ``x`` into ``residual``, then norm the rounded sum into ``x``, as vLLM's kernel does."""
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
        """The run in place, for any layout and size."""

        def run(_outputs: Tensors, arguments: tuple[Any, ...], _scratch: Tensors) -> None:
            _add_and_norm(*arguments)

        return run
