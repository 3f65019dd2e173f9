"""fused_linear_cross_entropy_gradients by chunks of rows: products by cuBLAS, loss and gradient by Triton."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from functools import lru_cache
from typing import Any

import torch

from registry import Config, Device, Launch, Problem, Space, TensorSpec
from registry.artifact import Built, Signature
from registry.backends.estimate import elements_per_thread, row_multiple
from registry.backends.linear_gradients import LinearGradients
from registry.backends.linear_products import adds_wide, linear_into
from registry.backends.triton import TritonImplementation
from registry.implementation import Run, Tensors

from .. import rows
from ..support import KEPT, common_reasons, options
from .kernels.linear_gradients import loss_into_gradient

_ROWS = (256, 512, 1024, 2048, 4096)
_MOST_BYTES = 2**29
"""Logits of a chunk, for several rows: what a training step needs beside its activations."""
_MULTIPLE = 16
"""Of the rows of a chunk, so that every chunk's targets start at a multiple of 16 bytes."""


class LossIntoGradient(TritonImplementation):
    """Triton's part of a chunk: the loss of its rows, and the gradient over their logits in scratch.

    It is bound by itself, so that its run for tensors that are not aligned is that of a chunk, too.
    """

    op = "fused_linear_cross_entropy_gradients"
    name = "triton.chunked"

    def launch(self, problem: Problem, config: Config, device: Device) -> Launch:
        """The launch of a chunk's gradients: a program for each row."""
        multiple, how = row_multiple(problem.cols), {**config, "num_stages": 1}
        return Launch(
            loss_into_gradient,
            grid=(_chunk(problem, config),),
            args=(
                "losses", "logits", "target", "factor", "ignore_index", "label_smoothing", problem.cols // multiple,
            ),
            constants={"MULTIPLE": multiple, **rows.pass_constants(problem, how)},
            options=options(how),
        )  # fmt: skip


_GRADIENT = LossIntoGradient()


class ChunkedLinearLossGradients(LossIntoGradient):
    """CHUNK rows at a time, or fewer so that chunks are alike: three products by ``torch.mm`` and one kernel between.

    The kernel reads a row twice, the second time from the L2 cache, and writes it once.
    """

    def unsupported(self, problem: Problem, device: Device) -> Iterable[str]:
        yield from common_reasons(problem, device)
        yield from rows.pass_reasons(problem)

    def space(self, problem: Problem, device: Device) -> Space:
        """The most rows of a chunk, whose logits take at most 512 MiB; columns a step of the kernel, and its warps."""
        each = problem.cols * problem.torch_dtype.itemsize
        counts = tuple([count for count in _ROWS if count * each <= _MOST_BYTES]) or _ROWS[:1]
        return _space(counts, rows.vector_of(problem), device)

    def default(self, problem: Problem, device: Device) -> Config:
        """The chunk of rows whose logits take 512 MiB, and two 16-byte vectors a thread of 32 warps."""
        return _nearest(self.space(problem, device), 1024 * 2 * rows.vector_of(problem))

    def preference(self, problem: Problem, device: Device) -> float:
        """Each logit is written and read once between the products; torch's operators do so five times."""
        return 2.0

    def scratch(self, problem: Problem, config: Config, device: Device) -> Mapping[str, TensorSpec]:
        chunk = _chunk(problem, config)
        return {
            "logits": TensorSpec.contiguous((chunk, problem.cols), problem.torch_dtype),
            "losses": TensorSpec.contiguous((problem.rows,), torch.float32),
            **LinearGradients.scratch(problem, chunk),
        }

    def bind(self, problem: Problem, config: Config, device: Device, built: Built) -> Run:
        if device.type == "cuda" and problem.torch_dtype.itemsize == 2:
            adds_wide(device.torch, problem.torch_dtype)
        chunk = _chunk(problem, config)
        first, last = (_GRADIENT.bind(each, config, device, built) for each in _parts(problem, chunk))
        return _ChunkedLossGradients(first, last, chunk)

    def bind_loaded(
        self, problem: Problem, config: Config, device: Device, signature: Signature, like: Run | None = None
    ) -> Run | None:
        chunk = _chunk(problem, config)
        known = (like.whole, like.rest) if isinstance(like, _ChunkedLossGradients) else (None, None)
        first, last = (
            _GRADIENT.bind_loaded(each, config, device, signature, run)
            for each, run in zip(_parts(problem, chunk), known, strict=True)
        )
        return None if first is None or last is None else _ChunkedLossGradients(first, last, chunk)


class _ChunkedLossGradients:
    """The products and gradients of chunks of ``chunk`` rows by ``whole``, of the last rows by ``rest``; then sums."""

    def __init__(self, whole: Run, rest: Run, chunk: int) -> None:
        self.whole, self.rest = whole, rest
        self._chunk = chunk

    def __call__(self, outputs: Tensors, arguments: tuple[Any, ...], scratch: Tensors) -> None:
        x, weight, target, bias = arguments[:4]
        held, losses = scratch[:2]
        sums = LinearGradients(outputs[1:], arguments, scratch[2:])
        count, chunk = x.shape[0], self._chunk
        for start in range(0, count, chunk):
            part = slice(start, min(start + chunk, count))
            kept = sums.kept_rows(part)
            logits = linear_into(held[: part.stop - start], kept, weight, bias)
            run = self.whole if part.stop - start == chunk else self.rest
            run(outputs, (x, weight, target[part], *arguments[3:]), (logits, losses[part], *scratch[2:]))
            sums.add(part, kept, logits)
        sums.finish()
        torch.sum(losses, 0, out=outputs[0])
        if arguments[5] == "mean":
            outputs[0].mul_(sums.factor[0])


def _chunk(problem: Problem, config: Config) -> int:
    """Rows of each chunk but the last: CHUNK, or less so that the last one has about as many."""
    count, most = int(problem.rows), int(config["CHUNK"])
    if count <= most:
        return max(count, 1)
    each = -(-count // -(-count // most))
    return -(-each // _MULTIPLE) * _MULTIPLE


def _parts(problem: Problem, chunk: int) -> list[Problem]:
    """The problems of a whole chunk and of the last one."""
    last = int(problem.rows) % chunk or chunk
    return [Problem(problem.op, {**problem.dims, "rows": count}, problem.traits) for count in (chunk, last)]


@lru_cache(maxsize=KEPT)
def _space(counts: tuple[int, ...], vector: int, device: Device) -> Space:
    warps = [count for count in (8, 16, 32) if count <= rows.max_warps(device)]

    def vectors(config: Config) -> bool:
        share = elements_per_thread(config["BLOCK"], config["num_warps"], device)
        return vector <= share <= min(4 * vector, 32)

    space = Space(CHUNK=counts, BLOCK=(2048, 4096, 8192, 16384, 32768), num_warps=warps)
    return space.require("one to four 16-byte vectors a thread", vectors)


@lru_cache(maxsize=KEPT)
def _nearest(space: Space, block: int) -> Config:
    def distance(config: Config) -> tuple[int, int, int]:
        return -config["CHUNK"], abs(config["BLOCK"] - block), -config["num_warps"]

    return min(space.configs, key=distance)
