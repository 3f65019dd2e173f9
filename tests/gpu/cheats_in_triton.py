"""A plugin file of Triton squares by way of scratch: one that stays inside, and one that writes an element beyond."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, ClassVar

import torch
import triton
import triton.language as tl

import registry
from registry.backends.triton import TritonImplementation
from registry.device import Device
from registry.implementation import Implementation, Launch
from registry.problem import Problem, TensorSpec
from registry.space import Config

KERNEL_REGISTRY_API = 1

BLOCK = 1024


@triton.jit(do_not_specialize=["n"])
def by_scratch(y, x, work, n, BLOCK: tl.constexpr):
    """Each thread reads what it wrote itself."""
    item = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    value = tl.load(x + item, mask=item < n)
    tl.store(work + item, value * value, mask=item < n)
    tl.store(y + item, tl.load(work + item, mask=item < n), mask=item < n)


@triton.jit(do_not_specialize=["n"])
def past_scratch(y, x, work, n, BLOCK: tl.constexpr):
    """The last mask is one too long."""
    item = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    value = tl.load(x + item, mask=item < n, other=0.0)
    tl.store(work + item, value * value, mask=item <= n)
    tl.store(y + item, tl.load(work + item, mask=item < n), mask=item < n)


class Honest(TritonImplementation):
    """Squares in scratch, and copies that."""

    op, name = "square", "scratch.honest"
    kernel: ClassVar[Any] = by_scratch

    def unsupported(self, problem: Problem, device: Device) -> Iterable[str]:
        if problem.dtype != "float32" or not problem.traits["contiguous"]:
            yield "contiguous float32"

    def scratch(self, problem: Problem, config: Config, device: Device) -> Mapping[str, TensorSpec]:
        return {"work": TensorSpec.contiguous((problem.n,), torch.float32)}

    def launch(self, problem: Problem, config: Config, device: Device) -> Launch:
        # one program more than the last element asks for, so that there is one for the element beyond it
        grid = (problem.n // BLOCK + 1,)
        return Launch(self.kernel, grid, ("y", "x", "work", problem.n), {"BLOCK": BLOCK}, {"num_warps": 4})


class WritesPastItsScratch(Honest):
    name = "scratch.past"
    kernel = past_scratch


@registry.implements("square")
def square_implementations() -> list[Implementation]:
    """Both."""
    return [Honest(), WritesPastItsScratch()]
