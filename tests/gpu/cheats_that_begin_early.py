"""A plugin file of squares that are launched as dependent kernels: some wait too late for the kernel ahead of them."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, ClassVar

import triton
import triton.language as tl

import registry
from registry.backends.cuda import CudaImplementation, CudaKernel
from registry.backends.triton import TritonImplementation
from registry.device import Device
from registry.implementation import Implementation, Launch
from registry.problem import Problem
from registry.space import Config

KERNEL_REGISTRY_API = 1

BLOCK = 1024
_TEXT = r"""
extern "C" __global__ void square(float *y, const float *x, long long n) {
  const long long item = blockIdx.x * (long long)blockDim.x + threadIdx.x;
  asm volatile("griddepcontrol.launch_dependents;" ::: "memory");
#if WAITS_FIRST
  asm volatile("griddepcontrol.wait;" ::: "memory");
#endif
  const float value = item < n ? *(const volatile float *)(x + item) : 0.0f;
#if !WAITS_FIRST
  asm volatile("griddepcontrol.wait;" ::: "memory");
#endif
  if (item < n) y[item] = value * value;
}
"""


@triton.jit(do_not_specialize=["n"])
def square(y, x, n, WAITS_FIRST: tl.constexpr, BLOCK: tl.constexpr):
    """Without WAITS_FIRST the wait stands behind the load."""
    item = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    tl.extra.cuda.gdc_launch_dependents()
    if WAITS_FIRST:
        tl.extra.cuda.gdc_wait()
    value = tl.load(x + item, mask=item < n, volatile=True)
    if not WAITS_FIRST:
        tl.extra.cuda.gdc_wait()
    tl.store(y + item, value * value, mask=item < n)


def _reasons(problem: Problem, device: Device) -> Iterable[str]:
    if problem.dtype != "float32" or not problem.traits["contiguous"]:
        yield "contiguous float32"
    if device.type == "cuda" and device.capability < (9, 0):
        yield "dependent launches"


class HonestCuda(CudaImplementation):
    """Waits before it reads."""

    op, name = "square", "early.honest_cuda"
    waits_first: ClassVar[bool] = True

    def unsupported(self, problem: Problem, device: Device) -> Iterable[str]:
        yield from super().unsupported(problem, device)
        yield from _reasons(problem, device)

    def launch(self, problem: Problem, config: Config, device: Device) -> Launch:
        return Launch(
            CudaKernel(_TEXT, "square"),
            (-(-problem.n // BLOCK),),
            ("y", "x", problem.n),
            {"WAITS_FIRST": self.waits_first},
            {"block": BLOCK, "launch_pdl": True},
        )


class ReadsBeforeItWaits(HonestCuda):
    """Right behind every kernel that lets nobody begin early."""

    name, waits_first = "early.cuda", False


class HonestTriton(TritonImplementation):
    """Waits before it reads."""

    op, name = "square", "early.honest_triton"
    waits_first: ClassVar[bool] = True

    def unsupported(self, problem: Problem, device: Device) -> Iterable[str]:
        yield from _reasons(problem, device)

    def launch(self, problem: Problem, config: Config, device: Device) -> Launch:
        constants: dict[str, Any] = {"WAITS_FIRST": self.waits_first, "BLOCK": BLOCK}
        options = {"num_warps": 4, "launch_pdl": True}
        return Launch(square, (-(-problem.n // BLOCK),), ("y", "x", problem.n), constants, options)


class ReadsBeforeItWaitsInTriton(HonestTriton):
    name, waits_first = "early.triton", False


@registry.implements("square")
def square_implementations() -> list[Implementation]:
    """All four."""
    return [HonestCuda(), ReadsBeforeItWaits(), HonestTriton(), ReadsBeforeItWaitsInTriton()]
