"""fused_linear_cross_entropy_gradients by torch: all logits at once, by Inductor, and a chunk of rows at a time."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from functools import lru_cache
from typing import Any

import torch

from registry import TensorSpec
from registry.artifact import Built
from registry.backends.inductor import InductorImplementation
from registry.backends.linear_gradients import LinearGradients
from registry.backends.linear_products import linear_into
from registry.device import Device
from registry.implementation import Run, Tensors
from registry.problem import Problem
from registry.space import Config, Space

from ..native import Native
from .cross_entropy import by_formula
from .cross_entropy_backward import fused
from .linear_room import chunks_preference, room_reasons
from .targets import accumulator, row_targets

_ROWS = (256, 512, 1024, 2048, 4096)
_MOST_BYTES = 2**29
"""Logits of a chunk, for several rows. Beside halves there are as many in float32."""
_USUAL_BYTES = 2**27


class LinearCrossEntropyGradients(Native):
    """``torch.nn.functional.linear``, the loss and its gradient operator by operator in float32, and two products."""

    op = "fused_linear_cross_entropy_gradients"

    def unsupported(self, problem: Problem, device: Device) -> Iterator[str]:
        yield from room_reasons(problem, device)

    def scratch(self, problem: Problem, config: Config, device: Device) -> Mapping[str, TensorSpec]:
        return _scratch(problem, max(1, int(problem.rows)))

    def bind(self, problem: Problem, config: Config, device: Device, built: Built) -> Run:
        """The run for any layout and size."""
        return _run


class ChunkedLinearCrossEntropyGradients(Native):
    """CHUNK rows at a time: their logits, loss and gradient, operator by operator in float32, and two products."""

    op = "fused_linear_cross_entropy_gradients"
    name = "torch.chunked"

    def space(self, problem: Problem, device: Device) -> Space:
        """Rows of a chunk, whose logits take at most 512 MiB."""
        return _space(_row_counts(problem, _MOST_BYTES))

    def default(self, problem: Problem, device: Device) -> Config:
        """The chunk of rows whose logits take 128 MiB."""
        return {"CHUNK": _row_counts(problem, _USUAL_BYTES)[-1]}

    def preference(self, problem: Problem, device: Device) -> float:
        return chunks_preference(problem)

    def scratch(self, problem: Problem, config: Config, device: Device) -> Mapping[str, TensorSpec]:
        return _scratch(problem, max(1, min(config["CHUNK"], problem.rows)))

    def bind(self, problem: Problem, config: Config, device: Device, built: Built) -> Run:
        """A chunk has as many rows as the scratch."""
        return _run


class CompiledLinearCrossEntropyGradients(InductorImplementation):
    """The products, and the loss and the logits' gradient in passes that Inductor fuses."""

    op = "fused_linear_cross_entropy_gradients"
    name = "torch.compile"

    def unsupported(self, problem: Problem, device: Device) -> Iterator[str]:
        yield from super().unsupported(problem, device)
        yield from room_reasons(problem, device)

    def function(self, *values: Any) -> tuple[torch.Tensor, ...]:
        """Takes ``[rows, k]``, ``[cols, k]``, ``[rows]``, ``[cols]`` or None, the loss's attributes, and which
        gradients are needed."""
        x, weight, target, bias, *how, need_x, need_weight, need_bias = values
        kept = x.masked_fill((target == how[0])[:, None], 0.0)
        logits = torch.nn.functional.linear(kept, weight, bias)
        wide = logits.to(accumulator(logits))
        loss, lse = by_formula((wide, target, None, *how))
        gradient = fused(torch.ones_like(loss), wide, target, None, lse, *how).to(x.dtype)
        none = x.new_empty(0)
        return (
            loss,
            _product(gradient, weight) if need_x else none,
            (gradient.t() @ kept).contiguous() if need_weight else none.clone(),
            gradient.sum(0) if need_bias and bias is not None else none.clone(),
        )


def _product(gradient: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
    """``gradient @ weight``; on a CPU in float32: oneDNN lets a NaN of one row of halves into the next one."""
    if gradient.device.type == "cpu" and gradient.dtype.itemsize == 2:
        return (gradient.float() @ weight.float()).to(weight.dtype)
    return (gradient @ weight).contiguous()


@lru_cache(maxsize=64)
def _space(counts: tuple[int, ...]) -> Space:
    return Space(CHUNK=counts)


def _row_counts(problem: Problem, most: int) -> tuple[int, ...]:
    each = problem.cols * problem.torch_dtype.itemsize
    return tuple([count for count in _ROWS if count * each <= most]) or _ROWS[:1]


def _scratch(problem: Problem, chunk: int) -> dict[str, TensorSpec]:
    logits = TensorSpec.contiguous((chunk, problem.cols), problem.torch_dtype)
    return {"logits": logits, **LinearGradients.scratch(problem, chunk)}


def _run(outputs: Tensors, arguments: tuple[Any, ...], scratch: Tensors) -> None:
    """Chunks of as many rows as the scratch has."""
    x, weight, target, bias, ignore_index, reduction, by = arguments[:7]
    held, chunk = scratch[0], scratch[0].shape[0]
    sums = LinearGradients(outputs[1:], arguments, scratch[1:])
    losses = torch.empty(x.shape[0], dtype=accumulator(x), device=x.device)
    for start in range(0, x.shape[0], chunk):
        rows = slice(start, start + chunk)
        kept = sums.kept_rows(rows)
        logits = linear_into(held[: kept.shape[0]], kept, weight, bias)
        losses[rows] = _into_gradient(logits, target[rows], sums.factor, ignore_index, by)
        sums.add(rows, kept, logits)
    sums.finish()
    torch.sum(losses, 0, out=outputs[0])
    if reduction == "mean":
        outputs[0].mul_(sums.factor[0])


def _into_gradient(
    logits: torch.Tensor, target: torch.Tensor, factor: torch.Tensor, ignore_index: int, by: float
) -> torch.Tensor:
    """The losses of rows, smoothed ``by`` the mean over columns; logits become their gradient times ``factor``."""
    targets = row_targets(logits, target, None, ignore_index)
    logs, place = torch.log_softmax(logits, -1, dtype=accumulator(logits)), targets.place[:, None]
    losses = logs.gather(-1, place)[:, 0].neg()
    if by:
        losses = (1.0 - by) * losses - by * logs.mean(-1)
    losses.masked_fill_(~targets.kept, 0.0).masked_fill_(targets.outside, math.nan)
    gradient = logs.exp_()
    if by:
        gradient.sub_(by / logits.shape[-1])
    gradient.scatter_(-1, place, gradient.gather(-1, place) - (1.0 - by))
    gradient.mul_(factor).masked_fill_(~targets.kept[:, None], 0.0)
    logits.copy_(gradient.masked_fill_(targets.outside[:, None], math.nan))
    return losses
