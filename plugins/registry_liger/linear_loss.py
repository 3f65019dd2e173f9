"""Liger's loss of a linear layer with its gradients, by chunks of rows."""

from __future__ import annotations

import math
from collections.abc import Iterator
from functools import cache
from types import ModuleType
from typing import Any, ClassVar

import torch

from registry import Config, Device, Implementation, Problem, Space
from registry.artifact import Built
from registry.device import installed_version
from registry.implementation import Run, Tensors

from .rows import DEVICE_TYPES, LIBRARY, layout_reasons, library

OP = "fused_linear_cross_entropy_gradients"


class LigerLinearLoss(Implementation):
    """``fused_linear_cross_entropy_forward``.

    sums    dtype in which the gradients of weight and bias are added up over chunks: that of the weight, or float32;
            float32 alone with a bias, whose sums over many chunks of few rows err too much in halves
    budget  elements of a chunk's logits, in elements of x

    It counts the rows that are not ignored on the host, for which it waits, and so cannot be captured.
    """

    op = OP
    name = f"liger.{OP}"
    device_types: ClassVar[frozenset[str]] = frozenset(DEVICE_TYPES)
    capturable = False
    returns_outputs = True
    any_size = True

    def unsupported(self, problem: Problem, device: Device) -> Iterator[str]:
        if not installed_version(LIBRARY):
            yield f"{LIBRARY} is not installed (pip install {LIBRARY})"
        yield from layout_reasons(problem, device)

    def space(self, problem: Problem, device: Device) -> Space:
        return _space(problem.bias or problem.dtype == "float32")

    def preference(self, problem: Problem, device: Device) -> float:
        return -10.0

    def bind(self, problem: Problem, config: Config, device: Device, built: Built) -> Run:
        sums = torch.float32 if config["sums"] == "float32" else None
        budget = config["budget"]

        def run(_outputs: Tensors, arguments: tuple[Any, ...], _scratch: Tensors) -> Tensors:
            # where autograd records, the library's products make tensors of their own
            with torch.no_grad():
                return _loss_and_gradients(sums, budget, *arguments)

        return run

    def sources(self) -> Iterator[ModuleType | str]:
        yield f"{LIBRARY} {installed_version(LIBRARY)}"
        yield from super().sources()


@cache
def _space(in_float32: bool) -> Space:
    return Space(sums=["float32"] if in_float32 else ["weight", "float32"], budget=[1, 2, 4, 8])


def _loss_and_gradients(  # noqa: PLR0913, PLR0917  (a value of the schema each)
    sums: torch.dtype | None,
    budget: int,
    x: torch.Tensor,
    weight: torch.Tensor,
    target: torch.Tensor,
    bias: torch.Tensor | None,
    ignore_index: int,
    reduction: str,
    label_smoothing: float,
    need_x: bool,
    need_weight: bool,
    need_bias: bool,
) -> Tensors:
    """The op's loss and gradients.

    Liger reads memory outside of the logits for a target outside of the vocabulary, and has a part of an ignored row's
    x in the gradient of the weight where that is NaN. Such targets are ignored for it, and x is 0 in ignored rows;
    what follows from the targets is written afterwards.
    """
    ignored = target == ignore_index
    outside = ~ignored & ((target < 0) | (target >= weight.shape[0]))
    some_ignored, some_outside, none_counts = torch.stack(
        (ignored.any(), outside.any(), (ignored | outside).all())
    ).tolist()
    if some_ignored or some_outside:
        x = x.masked_fill((ignored | outside)[:, None], 0.0)
        target = torch.where(outside, ignore_index, target)
    loss, *_, grad_x, grad_weight, grad_bias = library(
        "fused_linear_cross_entropy"
    ).fused_linear_cross_entropy_forward(
        x, weight, target, bias=bias, ignore_index=ignore_index, label_smoothing=label_smoothing, reduction=reduction,
        accum_dtype=sums, compute_gradients=True, weight_requires_grad=need_weight, chunk_mem_const=budget,
    )  # fmt: skip
    if some_outside:
        loss.fill_(math.nan)
        grad_x[outside] = math.nan
        for gradient in (grad_weight, grad_bias):
            if gradient is not None:
                gradient.fill_(math.nan)
    elif none_counts and reduction == "mean":
        loss.fill_(math.nan)
    none = x.new_empty(0)
    return (
        loss,
        grad_x if need_x else none,
        grad_weight if need_weight else none.clone(),
        grad_bias if need_bias and bias is not None else none.clone(),
    )
