"""fused_linear_cross_entropy by chunks: the loss of some rows at a time, the gradients of some columns at a time.

The log-sum-exp of a row is known to the gradients, so that any columns of the logits have theirs by themselves. Those
of a chunk complete their rows of grad_weight, which are rounded once; only grad_x is summed over chunks, in float32.
Chunks of rows would sum the far larger grad_weight.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from functools import lru_cache
from typing import Any

import torch

from registry import TensorSpec
from registry.artifact import Built
from registry.backends.linear_products import add_product, adds_wide, linear_into
from registry.device import Device
from registry.implementation import Run, Tensors
from registry.problem import Problem
from registry.space import Config, Space

from ..native import Native
from .linear_room import chunks_preference
from .targets import accumulator, row_targets

_ROWS = (256, 512, 1024, 2048, 4096, 8192, 16384)
_MOST_BYTES = 2**29
"""Logits of a chunk of rows, for several rows."""
_USUAL_BYTES = 2**28
_COLUMNS = (1024, 2048, 4096, 8192, 16384, 32768)


class ChunkedLinearCrossEntropy(Native):
    """CHUNK rows at a time: the product into one buffer, then ``torch.log_softmax`` in float32 and a lookup."""

    op = "fused_linear_cross_entropy"
    name = "torch.chunked"

    def space(self, problem: Problem, device: Device) -> Space:
        """Rows of a chunk, whose logits take at most 512 MiB."""
        return _space(_row_counts(problem.cols * problem.torch_dtype.itemsize, _MOST_BYTES))

    def default(self, problem: Problem, device: Device) -> Config:
        """The chunk of rows whose logits take 256 MiB."""
        return _chunk_of(_row_counts(problem.cols * problem.torch_dtype.itemsize, _USUAL_BYTES)[-1])

    def preference(self, problem: Problem, device: Device) -> float:
        return chunks_preference(problem)

    def scratch(self, problem: Problem, config: Config, device: Device) -> Mapping[str, TensorSpec]:
        shape = (max(1, min(config["CHUNK"], problem.rows)), problem.cols)
        return {"logits": TensorSpec.contiguous(shape, problem.torch_dtype)}

    def bind(self, problem: Problem, config: Config, device: Device, built: Built) -> Run:
        """A chunk has as many rows as the scratch."""
        return _write_loss


class ChunkedLinearCrossEntropyBackward(Native):
    """CHUNK columns at a time: the product, its gradient in float32, and the products with that."""

    op = "fused_linear_cross_entropy_backward"
    name = "torch.chunked"

    def space(self, problem: Problem, device: Device) -> Space:
        """Columns of a chunk."""
        return _space(_COLUMNS)

    def default(self, problem: Problem, device: Device) -> Config:
        return _chunk_of(4096)

    def preference(self, problem: Problem, device: Device) -> float:
        return chunks_preference(problem)

    def scratch(self, problem: Problem, config: Config, device: Device) -> Mapping[str, TensorSpec]:
        rows, dtype = problem.rows, problem.torch_dtype
        logits = TensorSpec.contiguous((rows, min(config["CHUNK"], problem.cols)), dtype)
        total = {"total": TensorSpec.contiguous((rows, problem.k), torch.float32)} if dtype.itemsize == 2 else {}
        return {"logits": logits, **total}

    def bind(self, problem: Problem, config: Config, device: Device, built: Built) -> Run:
        """A chunk has as many columns as the scratch."""
        if device.type == "cuda" and problem.torch_dtype.itemsize == 2:
            adds_wide(device.torch, problem.torch_dtype)
        return _write_gradients


def _row_counts(each: int, most: int) -> tuple[int, ...]:
    """The counts of rows of ``each`` bytes that take ``most`` bytes at most."""
    return tuple([count for count in _ROWS if count * each <= most]) or _ROWS[:1]


@lru_cache(maxsize=64)
def _space(counts: tuple[int, ...]) -> Space:
    return Space(CHUNK=counts)


@lru_cache(maxsize=64)
def _chunk_of(count: int) -> Config:
    return {"CHUNK": count}


def _write_loss(outputs: Tensors, arguments: tuple[Any, ...], scratch: Tensors) -> None:
    x, weight, target, bias, ignore_index, reduction, smoothing = arguments
    (loss, lse), (held,) = outputs, scratch
    losses = torch.empty_like(lse)
    for start in range(0, x.shape[0], held.shape[0]):
        rows = slice(start, start + held.shape[0])
        # on a CPU oneDNN lets a NaN of one row of halves into the next one, where k is odd
        kept = x[rows].masked_fill((target[rows] == ignore_index)[:, None], 0.0)
        logits = linear_into(held[: kept.shape[0]], kept, weight, bias)
        _write_rows(losses[rows], lse[rows], logits, target[rows], ignore_index, smoothing)
    if reduction == "none":
        loss.copy_(losses)
        return
    total = losses.sum()
    if reduction == "mean":
        total /= ((target != ignore_index) & (target >= 0) & (target < weight.shape[0])).sum()
    loss.copy_(total)


def _write_rows(
    losses: torch.Tensor, lse: torch.Tensor, logits: torch.Tensor, target: torch.Tensor, ignore_index: int, by: float
) -> None:
    """Loss and log-sum-exp of a chunk's rows, in float32 or wider; smoothed ``by`` the mean over columns."""
    targets = row_targets(logits, target, None, ignore_index)
    logs = torch.log_softmax(logits, -1, dtype=accumulator(logits))
    found = logs.gather(-1, targets.place[:, None])[:, 0].neg()
    if by:
        found = (1.0 - by) * found - by * logs.mean(-1)
    losses.copy_(found.masked_fill_(~targets.kept, 0.0).masked_fill_(targets.outside, math.nan))
    lse.copy_((logits.amax(-1).to(logs.dtype) - logs.amax(-1)).masked_fill_(~targets.kept, 0.0))


def _write_gradients(outputs: Tensors, arguments: tuple[Any, ...], scratch: Tensors) -> None:
    grad_loss, x, weight, target, bias, lse, ignore_index, reduction, by, need_x, need_weight, need_bias = arguments
    rows, columns = (
        _GradientRows(grad_loss, weight.shape[0], target, lse, ignore_index, reduction, by),
        scratch[0].shape[1],
    )
    kept_x = x.masked_fill(~rows.kept, 0.0)
    total = scratch[1] if len(scratch) > 1 else outputs[0]
    if need_x:
        total.zero_()
    for start in range(0, weight.shape[0], columns):
        part = slice(start, start + columns)
        piece = weight[part]
        held = scratch[0].view(-1)[: x.shape[0] * piece.shape[0]].view(x.shape[0], piece.shape[0])
        gradient = rows.gradient(linear_into(held, kept_x, piece, None if bias is None else bias[part]), start)
        if need_x:
            add_product(total, gradient, piece)
        if need_weight:
            torch.mm(gradient.t(), kept_x, out=outputs[1][part])
        if need_bias and bias is not None:
            torch.sum(gradient, 0, out=outputs[2][part])
    if need_x and total is not outputs[0]:
        outputs[0].copy_(total)


class _GradientRows:
    """What the logits' gradient needs of each row, as columns [rows, 1]."""

    def __init__(
        self, grad_loss: torch.Tensor, cols: int, target: torch.Tensor, lse: torch.Tensor, ignore_index: int,
        reduction: str, by: float,
    ) -> None:  # fmt: skip
        self.kept = (target != ignore_index)[:, None]
        counts = self.kept[:, 0] & (target >= 0) & (target < cols)
        factor = grad_loss.to(lse.dtype)
        if reduction == "mean":
            factor = factor / counts.sum()
        self._factor = factor.expand(target.shape).masked_fill(~counts, math.nan)[:, None]
        self._target = target.masked_fill(~counts, -1)[:, None]
        self._lse, self._by, self._even = lse[:, None], by, by / cols

    def gradient(self, logits: torch.Tensor, start: int) -> torch.Tensor:
        """Make of logits, columns from ``start`` on, their gradient in place."""
        wide = torch.sub(logits, self._lse).exp_()
        if self._by:
            wide.sub_(self._even)
        place = self._target - start
        here = (place >= 0) & (place < logits.shape[1])
        place = torch.where(here, place, 0)
        wide.scatter_(-1, place, wide.gather(-1, place) - (1.0 - self._by) * here.to(wide.dtype))
        wide.mul_(self._factor).masked_fill_(~self.kept, 0.0)
        return logits.copy_(wide)
