"""A plugin file of squares that are launched as dependent kernels: some wait too late for the kernel ahead of them.

Those that store too early would be right behind any kernel that writes no memory of theirs.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, ClassVar

import torch
import triton
import triton.language as tl

import registry
from registry.backends.cuda import CudaImplementation, CudaKernel
from registry.backends.triton import TritonImplementation
from registry.device import Device
from registry.implementation import Implementation, Launch
from registry.problem import Problem, TensorSpec
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
_ADDS = r"""
extern "C" __global__ void add_square(float *y, const float *x, float *total, long long n) {
  const long long item = blockIdx.x * (long long)blockDim.x + threadIdx.x;
  asm volatile("griddepcontrol.launch_dependents;" ::: "memory");
#if WAITS_FIRST
  asm volatile("griddepcontrol.wait;" ::: "memory");
#endif
  if (item < n) *(volatile float *)(total + item) = 0.0f;
#if !WAITS_FIRST
  asm volatile("griddepcontrol.wait;" ::: "memory");
#endif
  if (item >= n) return;
  const float value = *(const volatile float *)(x + item);
  atomicAdd(total + item, value * value);
  if (total != y) y[item] = atomicAdd(total + item, 0.0f);
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


@triton.jit(do_not_specialize=["n"])
def add_square(y, x, total, n, WAITS_FIRST: tl.constexpr, IN_SCRATCH: tl.constexpr, BLOCK: tl.constexpr):
    """Squares added to zeros in ``total``, output or scratch. Without WAITS_FIRST the zeros come before the wait."""
    item = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    tl.extra.cuda.gdc_launch_dependents()
    if WAITS_FIRST:
        tl.extra.cuda.gdc_wait()
    tl.store(total + item, tl.zeros((BLOCK,), tl.float32), mask=item < n)
    if not WAITS_FIRST:
        tl.extra.cuda.gdc_wait()
    value = tl.load(x + item, mask=item < n, volatile=True)
    # other threads of the block may have stored the zeros
    tl.debug_barrier()
    tl.atomic_add(total + item, value * value, mask=item < n)
    if IN_SCRATCH:
        tl.debug_barrier()
        tl.store(y + item, tl.atomic_add(total + item, tl.zeros((BLOCK,), tl.float32), mask=item < n), mask=item < n)


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


def _scratch(problem: Problem, in_scratch: bool) -> dict[str, TensorSpec]:
    return {"total": TensorSpec.contiguous((problem.n,), torch.float32)} if in_scratch else {}


class HonestSumCuda(HonestCuda):
    """Waits before it stores zeros, to which it adds."""

    name = "early.honest_sum_cuda"
    in_scratch: ClassVar[bool] = False

    def scratch(self, problem: Problem, config: Config, device: Device) -> Mapping[str, TensorSpec]:
        return _scratch(problem, self.in_scratch)

    def launch(self, problem: Problem, config: Config, device: Device) -> Launch:
        return Launch(
            CudaKernel(_ADDS, "add_square"),
            (-(-problem.n // BLOCK),),
            ("y", "x", "total" if self.in_scratch else "y", problem.n),
            {"WAITS_FIRST": self.waits_first},
            {"block": BLOCK, "launch_pdl": True},
        )


class StoresBeforeItWaits(HonestSumCuda):
    """Zeros the output while the kernel ahead still runs."""

    name, waits_first = "early.stores_cuda", False


class StoresScratchBeforeItWaits(StoresBeforeItWaits):
    """Zeros scratch, which the kernel ahead may still use."""

    name, in_scratch = "early.scratch_cuda", True


class HonestSumTriton(HonestTriton):
    """Waits before it stores zeros, to which it adds."""

    name = "early.honest_sum_triton"
    in_scratch: ClassVar[bool] = False

    def scratch(self, problem: Problem, config: Config, device: Device) -> Mapping[str, TensorSpec]:
        return _scratch(problem, self.in_scratch)

    def launch(self, problem: Problem, config: Config, device: Device) -> Launch:
        constants = {"WAITS_FIRST": self.waits_first, "IN_SCRATCH": self.in_scratch, "BLOCK": BLOCK}
        arguments = ("y", "x", "total" if self.in_scratch else "y", problem.n)
        return Launch(add_square, (-(-problem.n // BLOCK),), arguments, constants, {"num_warps": 4, "launch_pdl": True})


class StoresBeforeItWaitsInTriton(HonestSumTriton):
    name, waits_first = "early.stores_triton", False


class StoresScratchBeforeItWaitsInTriton(StoresBeforeItWaitsInTriton):
    name, in_scratch = "early.scratch_triton", True


@registry.implements("square")
def square_implementations() -> list[Implementation]:
    """The honest ones, those that read too early, and those that store too early."""
    return [
        HonestCuda(),
        HonestTriton(),
        HonestSumCuda(),
        HonestSumTriton(),
        ReadsBeforeItWaits(),
        ReadsBeforeItWaitsInTriton(),
        StoresBeforeItWaits(),
        StoresBeforeItWaitsInTriton(),
        StoresScratchBeforeItWaits(),
        StoresScratchBeforeItWaitsInTriton(),
    ]
