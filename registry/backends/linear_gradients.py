"""Gradients of a linear layer's x, weight and bias, by the gradient of its outputs a chunk of rows at a time."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from ..problem import Problem, TensorSpec
from .linear_products import add_product

_PART = 512
"""Rows of a chunk whose sum may be rounded to the dtype of halves: more of them cost less of their bits."""
_PARTS = 16
"""Chunks up to which such sums are added in that dtype."""


class LinearGradients:
    """grad_x, grad_weight and grad_bias of fused_linear_cross_entropy_gradients, chunk by chunk.

    Rows of grad_x are complete in their chunk. grad_weight, as large as the weight, is summed in its own dtype over few
    large chunks, and over others in float32; grad_bias is summed in float32. ``factor`` [1], in float32 or wider, is
    the gradient of each row's loss: one, or for a mean one divided by the number of rows that count.
    """

    @staticmethod
    def scratch(problem: Problem, chunk: int) -> dict[str, TensorSpec]:
        """The scratch tensors of a computation in chunks of ``chunk`` rows, in order."""
        wide = torch.promote_types(problem.torch_dtype, torch.float32)
        found = {
            "factor": TensorSpec.contiguous((1,), wide),
            "kept": TensorSpec.contiguous((chunk, problem.k), problem.torch_dtype),
            "bias_total": TensorSpec.contiguous((problem.cols if problem.bias else 0,), wide),
        }
        if LinearGradients.sums_in_float32(problem, chunk):
            found["weight_total"] = TensorSpec.contiguous((problem.cols, problem.k), torch.float32)
        return found

    @staticmethod
    def sums_in_float32(problem: Problem, chunk: int) -> bool:
        """Whether grad_weight of halves is summed in a float32 tensor over chunks of so many rows."""
        several = problem.torch_dtype.itemsize == 2 and problem.rows > chunk
        return bool(several and (chunk < _PART or problem.rows > _PARTS * chunk))

    def __init__(
        self, outputs: Sequence[torch.Tensor], arguments: tuple[Any, ...], scratch: Sequence[torch.Tensor]
    ) -> None:
        x, self._weight, target, bias, ignore_index, reduction = arguments[:6]
        self._need_x, self._need_weight, self._need_bias = arguments[7:]
        self._need_bias = self._need_bias and bias is not None
        self._x, self._kept_rows = x, (target != ignore_index)[:, None]
        self._grad_x, self._grad_weight, self._grad_bias = outputs
        self.factor, self._kept, self._bias_total = scratch[:3]
        self._total = scratch[3] if len(scratch) > 3 else self._grad_weight
        self._first, self._zero = True, x.new_zeros(())
        if reduction == "mean":
            counts = self._kept_rows[:, 0] & (target >= 0) & (target < self._weight.shape[0])
            torch.reciprocal(counts.sum().to(self.factor.dtype), out=self.factor[0])
        else:
            self.factor.fill_(1.0)
        if self._need_bias:
            self._bias_total.zero_()
        if not x.shape[0]:
            for each in outputs:
                each.zero_()

    def kept_rows(self, rows: slice) -> torch.Tensor:
        """The chunk's rows of x in scratch, 0 where they are ignored: 0 times a NaN of theirs would be NaN."""
        part = self._x[rows]
        return torch.where(self._kept_rows[rows], part, self._zero, out=self._kept[: part.shape[0]])

    def add(self, rows: slice, kept: torch.Tensor, gradient: torch.Tensor) -> None:
        """What the gradient of a chunk's outputs, [rows, cols], gives."""
        if self._need_x:
            _product_into(self._grad_x[rows], gradient, self._weight)
        if self._need_weight:
            self._add_to_weight(gradient.t(), kept)
        if self._need_bias:
            self._bias_total.add_(gradient.sum(0, dtype=self._bias_total.dtype))
        self._first = False

    def _add_to_weight(self, gradient: torch.Tensor, kept: torch.Tensor) -> None:
        if self._first and self._total is self._grad_weight:
            torch.mm(gradient, kept, out=self._total)
            return
        if self._first:
            self._total.zero_()
        add_product(self._total, gradient, kept)

    def finish(self) -> None:
        """Round what was summed in float32."""
        if self._need_weight and self._total is not self._grad_weight and not self._first:
            self._grad_weight.copy_(self._total)
        if self._need_bias:
            self._grad_bias.copy_(self._bias_total)


def _product_into(into: torch.Tensor, gradient: torch.Tensor, weight: torch.Tensor) -> None:
    """Write ``gradient @ weight``; on a CPU in float32: oneDNN lets a NaN of one row of halves into the next one."""
    if gradient.device.type == "cpu" and gradient.dtype.itemsize == 2:
        into.copy_(gradient.float() @ weight.float())
    else:
        torch.mm(gradient, weight, out=into)
