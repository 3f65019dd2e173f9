"""fused_linear_cross_entropy by chunks of rows: cuBLAS's product, then Triton's loss of one row a program."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from functools import lru_cache
from typing import Any

import torch

from registry import Config, Device, Launch, Problem, Space, TensorSpec
from registry.artifact import Built, Signature
from registry.backends.estimate import elements_per_thread, row_multiple
from registry.backends.linear_products import linear_into
from registry.backends.triton import TritonImplementation
from registry.implementation import Run, Tensors

from .. import rows
from ..support import KEPT, common_reasons, options
from .kernels.cross_entropy import online_cross_entropy

_ROWS = (512, 1024, 2048, 4096, 8192, 16384)
_MOST_BYTES = 2**29
"""Logits of a chunk, for several rows."""
_USUAL_BYTES = 2**29
_MULTIPLE = 16
"""Of the rows of a chunk, so that every chunk's targets start at a multiple of 16 bytes."""


class LossOfRows(TritonImplementation):
    """Triton's part of a chunk: the loss of its rows, whose logits are in scratch.

    It is bound by itself, so that its run for tensors that are not aligned is that of a chunk, too.
    """

    op = "fused_linear_cross_entropy"
    name = "triton.chunked"

    def launch(self, problem: Problem, config: Config, device: Device) -> Launch:
        """The launch of a chunk's loss: a program for each row."""
        multiple = row_multiple(problem.cols)
        return Launch(
            online_cross_entropy,
            grid=(_chunk(problem, config),),
            args=("losses", "lse", "logits", "target", "ignore_index", "label_smoothing", problem.cols // multiple),
            # there are no class weights
            constants={"weight": None, "MULTIPLE": multiple, **rows.pass_constants(problem, {**config, **_STAGES})},
            options=options({**config, **_STAGES}),
        )


_STAGES = {"num_stages": 1}
_LOSS = LossOfRows()


class ChunkedLinearLoss(LossOfRows):
    """CHUNK rows at a time, or fewer so that chunks are alike: their logits by ``torch.mm``, read once for the loss."""

    def unsupported(self, problem: Problem, device: Device) -> Iterable[str]:
        yield from common_reasons(problem, device)
        yield from rows.pass_reasons(problem)

    def space(self, problem: Problem, device: Device) -> Space:
        """The most rows of a chunk, whose logits take at most 512 MiB; columns a step of the loss, and its warps."""
        counts = _row_counts(problem.cols, problem.torch_dtype.itemsize, _MOST_BYTES)
        return _space(counts, rows.vector_of(problem), device)

    def default(self, problem: Problem, device: Device) -> Config:
        """The chunk of rows whose logits take 512 MiB, and two 16-byte vectors a thread."""
        count = _row_counts(problem.cols, problem.torch_dtype.itemsize, _USUAL_BYTES)[-1]
        return _nearest(self.space(problem, device), count, 512 * 2 * rows.vector_of(problem))

    def preference(self, problem: Problem, device: Device) -> float:
        """Each logit is written and read once; torch's loss makes float32 of it besides."""
        return 2.0

    def scratch(self, problem: Problem, config: Config, device: Device) -> Mapping[str, TensorSpec]:
        return {
            "logits": TensorSpec.contiguous((_chunk(problem, config), problem.cols), problem.torch_dtype),
            "losses": TensorSpec.contiguous((problem.rows,), torch.float32),
        }

    def bind(self, problem: Problem, config: Config, device: Device, built: Built) -> Run:
        chunk = _chunk(problem, config)
        bind, (first, last) = _LOSS.bind, _parts(problem, chunk)
        return _ChunkedLoss(bind(first, config, device, built), bind(last, config, device, built), chunk)

    def bind_loaded(
        self, problem: Problem, config: Config, device: Device, signature: Signature, like: Run | None = None
    ) -> Run | None:
        chunk = _chunk(problem, config)
        bind, (first, last) = _LOSS.bind_loaded, _parts(problem, chunk)
        known = (like.whole, like.rest) if isinstance(like, _ChunkedLoss) else (None, None)
        whole = bind(first, config, device, signature, known[0])
        rest = bind(last, config, device, signature, known[1])
        return None if whole is None or rest is None else _ChunkedLoss(whole, rest, chunk)


class _ChunkedLoss:
    """The products and losses of chunks of ``chunk`` rows by ``whole``, of the last rows by ``rest``; then the sum."""

    def __init__(self, whole: Run, rest: Run, chunk: int) -> None:
        self.whole, self.rest = whole, rest
        self._chunk = chunk

    def __call__(self, outputs: Tensors, arguments: tuple[Any, ...], scratch: Tensors) -> None:
        x, weight, target, bias, ignore_index, reduction, _ = arguments
        (loss, lse), (held, losses) = outputs, scratch
        count, chunk = x.shape[0], self._chunk
        for start in range(0, count, chunk):
            part = slice(start, min(start + chunk, count))
            logits = linear_into(held[: part.stop - start], x[part], weight, bias)
            run = self.whole if part.stop - start == chunk else self.rest
            run((loss, lse[part]), (x, weight, target[part], *arguments[3:]), (logits, losses[part]))
        if reduction == "none":
            loss.copy_(losses)
            return
        total = losses.sum()
        if reduction == "mean":
            total /= ((target != ignore_index) & (target >= 0) & (target < weight.shape[0])).sum()
        loss.copy_(total)


def _chunk(problem: Problem, config: Config) -> int:
    """Rows of each chunk but the last: CHUNK, or less so that the last one has about as many."""
    count, most = int(problem.rows), int(config["CHUNK"])
    if count <= most:
        return max(count, 1)
    each = -(-count // -(-count // most))
    return -(-each // _MULTIPLE) * _MULTIPLE


def _parts(problem: Problem, chunk: int) -> Sequence[Problem]:
    """The problems of a whole chunk and of the last one."""
    last = int(problem.rows) % chunk or chunk
    return [Problem(problem.op, {**problem.dims, "rows": count}, problem.traits) for count in (chunk, last)]


@lru_cache(maxsize=KEPT)
def _row_counts(cols: int, itemsize: int, most: int) -> tuple[int, ...]:
    return tuple(count for count in _ROWS if count * cols * itemsize <= most) or _ROWS[:1]


@lru_cache(maxsize=KEPT)
def _space(counts: tuple[int, ...], vector: int, device: Device) -> Space:
    warps = [count for count in (8, 16, 32) if count <= rows.max_warps(device)]

    def vectors(config: Config) -> bool:
        share = elements_per_thread(config["BLOCK"], config["num_warps"], device)
        return vector <= share <= min(4 * vector, 32)

    space = Space(CHUNK=counts, BLOCK=(2048, 4096, 8192, 16384), num_warps=warps)
    return space.require("one to four 16-byte vectors a thread", vectors)


@lru_cache(maxsize=KEPT)
def _nearest(space: Space, count: int, block: int) -> Config:
    def distance(config: Config) -> tuple[int, int, int]:
        return abs(config["CHUNK"] - count), abs(config["BLOCK"] - block), abs(config["num_warps"] - 16)

    return min(space.configs, key=distance)
