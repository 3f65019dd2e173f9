"""What the host needs to know about the GPU kernels. numba.cuda waits until it is asked for."""

from __future__ import annotations

import sys
from abc import abstractmethod
from collections.abc import Iterable, Iterator
from functools import lru_cache
from importlib import import_module, util
from pathlib import Path
from types import ModuleType
from typing import Any, ClassVar

import torch

from registry import CompileError, Config, Device, Implementation, Problem, Space
from registry.artifact import Built
from registry.implementation import Run, Tensors

KERNELS = Path(__file__).with_name("gpu_kernels.py")


@lru_cache(maxsize=1)
def fault() -> str:
    """Why numba.cuda cannot be used here; empty when it can."""
    if util.find_spec("numba.cuda") is None:
        return "numba.cuda is not installed (pip install numba-cuda)"
    cuda = import_module("numba.cuda")
    if cuda.is_available():
        return ""
    return f"numba.cuda finds no driver, or no NVVM of the CUDA toolkit: {cuda.cuda_error() or 'see `numba -s`'}"


class _OnGpu(Implementation):
    """A kernel ``(x, y)`` with a tunable number of threads a block."""

    device_types: ClassVar[frozenset[str]] = frozenset({"cuda"})
    capturable = False
    kernel: ClassVar[str]
    rank: ClassVar[int]

    @abstractmethod
    def shape(self, problem: Problem) -> tuple[int, ...]:
        """Shape of x and y as the kernel sees them."""

    @abstractmethod
    def grid(self, problem: Problem, config: Config, device: Device) -> int:
        """Blocks."""

    def unsupported(self, problem: Problem, device: Device) -> Iterator[str]:
        """Reasons that a person can act upon."""
        if problem.dtype != "float32":
            yield f"dtype is {problem.dtype}, only float32 is supported"
        if not problem.traits["contiguous"]:
            yield "a tensor is not row-major"
        if fault():
            yield fault()

    def space(self, problem: Problem, device: Device) -> Space:
        """Threads a block."""
        return Space(threads=[64, 128, 256, 512, 1024])

    def default(self, problem: Problem, device: Device) -> Config:
        """A middling block."""
        return {"threads": 256}

    def bind(self, problem: Problem, config: Config, device: Device, built: Built) -> Run:
        """Compile for the current GPU and launch on torch's current stream."""
        import numba

        from . import gpu_kernels

        cuda = import_module("numba.cuda")
        kernel = getattr(gpu_kernels, self.kernel)
        array = numba.types.Array(numba.float32, self.rank, "C")
        try:
            kernel.compile((array, array))
        except Exception as found:  # numba, NVVM and the driver each have an exception family of their own
            raise CompileError(f"{self.name}: {str(found).splitlines()[0]}") from found
        shape, grid, threads = self.shape(problem), self.grid(problem, config, device), config["threads"]

        def run(outputs: Tensors, arguments: tuple[Any, ...], _scratch: Tensors) -> None:
            stream = cuda.external_stream(torch.cuda.current_stream(device.torch).cuda_stream)
            x, y = arguments[0].detach().view(shape), outputs[0].view(shape)
            kernel[grid, threads, stream](cuda.as_cuda_array(x, sync=False), cuda.as_cuda_array(y, sync=False))

        return run

    def sources(self) -> Iterable[ModuleType | str]:
        """The kernels' text too: their module may not be importable here."""
        return (sys.modules[__name__], KERNELS.read_text())


class GpuSquare(_OnGpu):
    """A loop over the grid."""

    op = "square"
    name = "numba.cuda"
    kernel = "square"
    rank = 1

    def shape(self, problem: Problem) -> tuple[int, ...]:
        """Flat."""
        return (problem.n,)

    def grid(self, problem: Problem, config: Config, device: Device) -> int:
        """Enough to fill the GPU a few times over."""
        threads = int(config["threads"])
        return min((int(problem.n) + threads - 1) // threads, 32 * device.multiprocessors)


class GpuSoftmax(_OnGpu):
    """A block a row."""

    op = "softmax"
    name = "numba.cuda"
    kernel = "softmax"
    rank = 2

    def shape(self, problem: Problem) -> tuple[int, ...]:
        """Rows and columns."""
        return problem.rows, problem.cols

    def grid(self, problem: Problem, config: Config, device: Device) -> int:
        """As many blocks as rows."""
        return int(problem.rows)
