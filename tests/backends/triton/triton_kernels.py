"""A kernel and implementations that the backend's tests launch; a module, because a kernel must be importable."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
import triton
import triton.language as tl

from registry.backends.triton import TritonImplementation
from registry.device import Device
from registry.implementation import Launch
from registry.problem import Problem, TensorSpec
from registry.space import Config, Space


@triton.jit(do_not_specialize=["n"])
def scaled(y, x, zeros, factor, n, width, BLOCK: tl.constexpr):
    place = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    value = tl.load(x + place, mask=place < n).to(tl.float32) * factor
    if zeros is None:
        value += width
    tl.store(y + place, value.to(y.dtype.element_ty), mask=place < n)


@triton.jit
def refuses(y, x, SIZE: tl.constexpr):
    tl.static_assert(SIZE > 64, "SIZE must exceed 64")
    tl.store(y, tl.load(x))


@triton.jit
def product(y, x, SIZE: tl.constexpr, STAGES: tl.constexpr):
    row = tl.arange(0, SIZE)
    acc = tl.zeros([SIZE, SIZE], tl.float32)
    for k in tl.range(0, 4096, SIZE, num_stages=STAGES):
        place = row[:, None] * 4096 + k + row[None, :]
        acc = tl.dot(tl.load(x + place), tl.trans(tl.load(x + place)), acc)
    tl.store(y + row[:, None] * SIZE + row[None, :], acc.to(y.dtype.element_ty))


class Scaled(TritonImplementation):
    """Any op of (x, factor): one launch, or two with scratch between them."""

    op = "test"
    name = "test.scaled"

    def __init__(self, twice: bool = False, grid: tuple[int, ...] | None = None, **options: Any) -> None:
        self.twice = twice
        self.grid = grid
        self.options = options

    def space(self, problem: Problem, device: Device) -> Space:
        return Space(BLOCK=[64, 128], num_warps=[1, 4])

    def scratch(self, problem: Problem, config: Config, device: Device) -> Mapping[str, TensorSpec]:
        return {"half": TensorSpec.contiguous((problem.n,), torch.float32)} if self.twice else {}

    def launch(self, problem: Problem, config: Config, device: Device) -> Sequence[Launch]:
        def one(target: str, source: str) -> Launch:
            return Launch(
                scaled,
                self.grid or (-(-problem.n // config["BLOCK"]),),
                (target, source, "zeros", "factor", problem.n, 32),
                {"BLOCK": config["BLOCK"]},
                {**config, **self.options},
            )

        return [one("half", "x"), one("y", "half")] if self.twice else [one("y", "x")]
