"""top_k_top_p_sampling by torch's sort and running sums, and what Inductor makes of them."""

from __future__ import annotations

import math
from typing import Any

import torch

from registry.artifact import Built
from registry.backends.inductor import InductorImplementation
from registry.device import Device
from registry.implementation import Run, Tensors
from registry.problem import Problem
from registry.space import Config

from ..native import Native

SamplingValues = tuple[torch.Tensor, torch.Tensor, torch.Tensor | None, torch.Tensor | None]
"""The op's values in the schema's order."""


def drawn(call: SamplingValues) -> torch.Tensor:
    """Samples of rows. Without filters nothing is sorted."""
    logits, uniform, top_k, top_p = call
    wide = logits.to(torch.promote_types(logits.dtype, torch.float32))
    if top_k is not None or top_p is not None:
        wide = wide.masked_fill(wide < _least_kept(wide, top_k, top_p), -math.inf)
    masses = (wide - wide.amax(-1, keepdim=True)).exp().cumsum(-1)
    passed = (masses <= uniform.to(wide.dtype)[:, None] * masses[:, -1:]).sum(-1)
    # where rounding leaves no token behind the mass: the last that adds to it
    last = (masses < masses[:, -1:]).sum(-1)
    return torch.minimum(passed, last).clamp(0, logits.shape[1] - 1).to(torch.int32)


def _least_kept(wide: torch.Tensor, top_k: torch.Tensor | None, top_p: torch.Tensor | None) -> torch.Tensor:
    """The least logit ``[rows, 1]`` that the filters keep."""
    ordered = wide.sort(-1, descending=True).values
    least = ordered[:, -1:]
    if top_k is not None:
        least = ordered.gather(-1, (top_k.long().clamp(1, wide.shape[1]) - 1)[:, None])
    if top_p is not None:
        weights = (ordered - ordered[:, :1]).exp().masked_fill(ordered < least, 0.0)
        masses, share = weights.cumsum(-1), top_p.to(wide.dtype)[:, None]
        needed = (masses - weights < share * masses[:, -1:]).sum(-1, keepdim=True).clamp_min(1)
        least = torch.where(share < 1.0, torch.maximum(least, ordered.gather(-1, needed - 1)), least)
    return least


class TopKTopPSampling(Native):
    """A sort of each row, and two running sums."""

    op = "top_k_top_p_sampling"
    returns_outputs = True

    def bind(self, problem: Problem, config: Config, device: Device, built: Built) -> Run:
        """The run for any layout and size."""

        def run(_outputs: Tensors, arguments: tuple[Any, ...], _scratch: Tensors) -> torch.Tensor:
            return drawn(arguments)

        return run


class CompiledTopKTopPSampling(InductorImplementation):
    """torch's sort, with what is around it fused by Inductor."""

    op = "top_k_top_p_sampling"
    name = "torch.compile"

    def function(self, *values: Any) -> torch.Tensor:
        """Takes the op's values in the schema's order."""
        return drawn(values)
