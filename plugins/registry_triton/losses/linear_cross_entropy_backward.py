"""The gradients of fused_linear_cross_entropy by chunks of columns: cuBLAS's products, and Triton's gradient in place.

Since a row's log-sum-exp is known, a chunk of the vocabulary completes its rows of grad_weight, which are rounded once;
only grad_x is summed over chunks, in float32.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from functools import lru_cache
from typing import Any

import torch

from registry import Config, Device, Launch, Problem, Space, TensorSpec
from registry.artifact import Built, Signature
from registry.backends.estimate import elements_per_thread
from registry.backends.linear_products import add_product, adds_wide, linear_into
from registry.backends.triton import TritonImplementation
from registry.implementation import Run, Tensors

from .. import rows
from ..support import KEPT, common_reasons, options
from .kernels.linear_cross_entropy import gradient_of_columns

_COLUMNS = (2048, 4096, 8192, 16384, 32768)
_MOST_PROGRAMS = 2**31 - 1
_MULTIPLE = 16
"""Of the columns of a chunk, so that every row of it starts at a multiple of 16 bytes."""


class GradientOfColumns(TritonImplementation):
    """Triton's part of a chunk: the gradient of its logits, in scratch, in their place.

    It is bound by itself, so that its run for tensors that are not aligned is that of a chunk, too.
    """

    op = "fused_linear_cross_entropy_backward"
    name = "triton.chunked"

    def launch(self, problem: Problem, config: Config, device: Device) -> Launch:
        """The launch of a chunk's gradients: a program for BLOCK columns of a row."""
        columns, block = _columns(problem, config), config["BLOCK"]
        blocks = -(-columns // block)
        return Launch(
            gradient_of_columns,
            grid=(problem.rows * blocks,),
            args=("logits", "factors", "lse", "target", "first", "ignore_index", "label_smoothing", problem.cols),
            constants={"COLUMNS": columns, "BLOCKS": blocks, "BLOCK": block},
            options=options(config),
        )


_GRADIENT = GradientOfColumns()


class ChunkedLinearLossBackward(GradientOfColumns):
    """CHUNK columns at a time: their logits by ``torch.mm``, the gradient in their place, and the products with it."""

    def unsupported(self, problem: Problem, device: Device) -> Iterable[str]:
        yield from common_reasons(problem, device)
        yield from rows.pass_reasons(problem)
        if (programs := problem.rows * 32) > _MOST_PROGRAMS:
            yield f"{problem.rows} rows need up to {programs} programs (limit {_MOST_PROGRAMS})"

    def space(self, problem: Problem, device: Device) -> Space:
        """Columns of a chunk, columns of a program, and its warps."""
        return _space(rows.vector_of(problem), device)

    def default(self, problem: Problem, device: Device) -> Config:
        """8192 columns; one or two 16-byte vectors a thread."""
        return _nearest(self.space(problem, device))

    def preference(self, problem: Problem, device: Device) -> float:
        """Each logit is read and written once between the products; torch's operators do so five times."""
        return 2.0

    def scratch(self, problem: Problem, config: Config, device: Device) -> Mapping[str, TensorSpec]:
        columns, dtype = _columns(problem, config), problem.torch_dtype
        found = {
            "logits": TensorSpec.contiguous((problem.rows, columns), dtype),
            "factors": TensorSpec.contiguous((problem.rows,), torch.float32),
            "first": TensorSpec.contiguous((-(-problem.cols // columns), 2), torch.int64),
            "kept_x": TensorSpec.contiguous((problem.rows, problem.k), dtype),
        }
        if dtype.itemsize == 2:
            found["total"] = TensorSpec.contiguous((problem.rows, problem.k), torch.float32)
        return found

    def bind(self, problem: Problem, config: Config, device: Device, built: Built) -> Run:
        if device.type == "cuda" and problem.torch_dtype.itemsize == 2:
            adds_wide(device.torch, problem.torch_dtype)
        return _ChunkedGradients(_GRADIENT.bind(problem, config, device, built))

    def bind_loaded(
        self, problem: Problem, config: Config, device: Device, signature: Signature, like: Run | None = None
    ) -> Run | None:
        known = like.gradient if isinstance(like, _ChunkedGradients) else None
        found = _GRADIENT.bind_loaded(problem, config, device, signature, known)
        return None if found is None else _ChunkedGradients(found)


class _ChunkedGradients:
    """Chunks of columns one after another: their logits, their ``gradient`` in place, and the products with it."""

    def __init__(self, gradient: Run) -> None:
        self.gradient = gradient

    def __call__(self, outputs: Tensors, arguments: tuple[Any, ...], scratch: Tensors) -> None:
        grad_loss, x, weight, target, bias, _lse, ignore_index, reduction, _by, *needs = arguments
        logits, factors, first, kept_x = scratch[:4]
        columns = logits.shape[1]
        # two numbers a chunk, so that each starts at a multiple of 16 bytes
        torch.arange(0, first.numel() * columns // 2, columns // 2, out=first.view(-1))
        _write_factors(factors, grad_loss, target, weight.shape[0], ignore_index, reduction)
        # 0 times NaN is NaN: what an ignored row has in x must not be read
        torch.where((target != ignore_index)[:, None], x, x.new_zeros(()), out=kept_x)
        total = scratch[4] if len(scratch) > 4 else outputs[0]
        if needs[0]:
            total.zero_()
        for number, start in enumerate(range(0, weight.shape[0], columns)):
            part = slice(start, start + columns)
            piece = weight[part]
            held = logits[:, : piece.shape[0]]
            linear_into(held, kept_x, piece, None if bias is None else bias[part])
            self.gradient(outputs, arguments, (logits, factors, first[number], *scratch[3:]))
            if needs[0]:
                add_product(total, held, piece)
            if needs[1]:
                torch.mm(held.t(), kept_x, out=outputs[1][part])
            if needs[2] and bias is not None:
                torch.sum(held, 0, out=outputs[2][part])
        if needs[0] and total is not outputs[0]:
            outputs[0].copy_(total)


def _write_factors(
    factors: torch.Tensor, grad_loss: torch.Tensor, target: torch.Tensor, cols: int, ignore_index: int, reduction: str
) -> None:
    """The gradient of each row's loss; NaN where the target is outside of the vocabulary, or is ignored."""
    counts = (target != ignore_index) & (target >= 0) & (target < cols)
    factors.copy_(grad_loss)
    if reduction == "mean":
        factors.div_(counts.sum())
    factors.masked_fill_(~counts, math.nan)


def _columns(problem: Problem, config: Config) -> int:
    """Columns of a chunk: CHUNK, or all of a smaller vocabulary."""
    return min(int(config["CHUNK"]), -(-int(problem.cols) // _MULTIPLE) * _MULTIPLE)


@lru_cache(maxsize=KEPT)
def _space(vector: int, device: Device) -> Space:
    warps = [count for count in (4, 8) if count <= rows.max_warps(device)]

    def vectors(config: Config) -> bool:
        share = elements_per_thread(config["BLOCK"], config["num_warps"], device)
        return vector <= share <= 4 * vector

    space = Space(CHUNK=_COLUMNS, BLOCK=(1024, 2048, 4096), num_warps=warps)
    return space.require("one to four 16-byte vectors a thread", vectors)


@lru_cache(maxsize=KEPT)
def _nearest(space: Space) -> Config:
    def distance(config: Config) -> tuple[int, int, int]:
        return abs(config["CHUNK"] - 8192), abs(config["BLOCK"] - 2048), abs(config["num_warps"] - 8)

    return min(space.configs, key=distance)
