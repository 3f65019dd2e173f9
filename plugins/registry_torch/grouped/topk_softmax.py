"""topk_softmax and its gradient: torch's softmax and top-k, and Inductor's."""

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


def _chosen(logits: torch.Tensor, top_k: int, renormalize: bool, scoring: str) -> tuple[torch.Tensor, torch.Tensor]:
    """Weights and experts ``[tokens, top_k]``, in float32 or wider."""
    wide = logits.to(torch.promote_types(logits.dtype, torch.float32))
    values, experts = wide.topk(top_k, -1)
    # exp(values - logsumexp) would round the sum's logarithm at the size of the logits: 2e-6 of a weight at 40
    weights = values.sigmoid() if scoring == "sigmoid" else wide.softmax(-1).gather(-1, experts)
    if renormalize:
        weights = weights / weights.sum(-1, keepdim=True)
    return weights, experts.to(torch.int32)


def _gradient(
    grad_weights: torch.Tensor,
    logits: torch.Tensor,
    experts: torch.Tensor,
    _top_k: int,
    renormalize: bool,
    scoring: str,
) -> torch.Tensor:
    """``[tokens, experts]``, in float32 or wider, and rounded once."""
    wide = logits.to(torch.promote_types(logits.dtype, torch.float32))
    places = experts.long()
    values, slopes = wide.gather(-1, places), torch.zeros_like(wide)
    if scoring == "sigmoid":
        scores = values.sigmoid()
        by_score = grad_weights
        if renormalize:
            total = scores.sum(-1, keepdim=True)
            by_score = (by_score - (by_score * scores).sum(-1, keepdim=True) / total) / total
        return slopes.scatter(-1, places, by_score * scores * (1.0 - scores)).to(logits.dtype)
    if renormalize:
        shares = values.softmax(-1)
        slopes = slopes.scatter(-1, places, shares * (grad_weights - (grad_weights * shares).sum(-1, keepdim=True)))
        return (slopes + torch.where(wide.isnan().any(-1, keepdim=True), math.nan, 0.0)).to(logits.dtype)
    scores = wide.softmax(-1)
    mean = (grad_weights * scores.gather(-1, places)).sum(-1, keepdim=True)
    return (scores * (slopes.scatter(-1, places, grad_weights) - mean)).to(logits.dtype)


class TopkSoftmax(Native):
    """``torch.topk`` of the logits, and the scores of those."""

    op = "topk_softmax"
    returns_outputs = True

    def bind(self, problem: Problem, config: Config, device: Device, built: Built) -> Run:
        """The run for any layout and size."""

        def run(_outputs: Tensors, arguments: tuple[Any, ...], _scratch: Tensors) -> Tensors:
            return _chosen(*arguments)

        return run


class CompiledTopkSoftmax(InductorImplementation):
    """``torch.topk``, with what is around it fused by Inductor."""

    op = "topk_softmax"
    name = "torch.compile"

    def function(self, *values: Any) -> tuple[torch.Tensor, torch.Tensor]:
        """Takes ``[tokens, experts]`` and the attributes."""
        return _chosen(*values)


class TopkSoftmaxBackward(Native):
    """The formula by torch's operators."""

    op = "topk_softmax_backward"
    returns_outputs = True

    def bind(self, problem: Problem, config: Config, device: Device, built: Built) -> Run:
        """The run for any layout and size."""

        def run(_outputs: Tensors, arguments: tuple[Any, ...], _scratch: Tensors) -> torch.Tensor:
            return _gradient(*arguments).contiguous()

        return run


class CompiledTopkSoftmaxBackward(InductorImplementation):
    """The formula, fused by Inductor."""

    op = "topk_softmax_backward"
    name = "torch.compile"

    def function(self, *values: Any) -> torch.Tensor:
        """Takes ``[tokens, top_k]``, ``[tokens, experts]``, ``[tokens, top_k]`` and the attributes."""
        return _gradient(*values).contiguous()
