"""What the host needs to know about the CPU kernels: what they can run, what to tune, how to launch."""

from __future__ import annotations

import sys
from abc import abstractmethod
from collections.abc import Iterable, Iterator
from types import ModuleType
from typing import Any, ClassVar

import numba

from registry import Config, Device, Implementation, Problem, Space
from registry.artifact import Artifact, Built, Signature, Target, Variant
from registry.implementation import Run, Tensors

from . import cpu_kernels

MAX_THREADS: int = vars(numba.config)["NUMBA_NUM_THREADS"]
ELEMENTS = {"float32": numba.float32}


class _OnCpu(Implementation):
    """A kernel ``(x, y, block)`` over flat elements or rows, run by a tunable number of threads."""

    device_types: ClassVar[frozenset[str]] = frozenset({"cpu"})
    preloads: ClassVar[tuple[str, ...]] = ("numba",)
    capturable = False
    kernel: ClassVar[str]
    ranks: ClassVar[tuple[int, int]]
    """Dimensions of x and y as the kernel sees them."""

    @abstractmethod
    def blocks(self, problem: Problem) -> list[int]:
        """Sizes of a task worth trying."""

    @abstractmethod
    def shapes(self, problem: Problem) -> tuple[tuple[int, ...], tuple[int, ...]]:
        """Shapes of x and y as the kernel sees them."""

    def unsupported(self, problem: Problem, device: Device) -> Iterator[str]:
        """Reasons that a person can act upon."""
        if problem.dtype not in ELEMENTS:
            yield f"dtype is {problem.dtype}; these kernels are for {', '.join(ELEMENTS)}"
        if not problem.traits["contiguous"]:
            yield "a tensor is not row-major"

    def space(self, problem: Problem, device: Device) -> Space:
        """Threads up to the cores there are, and the size of a task."""
        cores = min(device.multiprocessors, MAX_THREADS)
        threads = sorted({count for count in (1, 2, 4, 8, 16, 32, 64) if count < cores} | {cores})
        return Space(threads=threads, block=self.blocks(problem))

    def default(self, problem: Problem, device: Device) -> Config:
        """All cores, the smallest task."""
        space = self.space(problem, device)
        return {"threads": space.domains["threads"][-1], "block": space.domains["block"][0]}

    def variants(self, problem: Problem, config: Config, device: Device, signature: Signature) -> tuple[Variant, ...]:
        """Threads and block are arguments: one variant serves every configuration and shape of a dtype."""
        return (Variant("numba", self.kernel, {"dtype": problem.dtype}, self.fingerprint()),)

    def compile(self, variant: Variant, target: Target) -> Artifact:
        """numba's own cache on disk keeps what was compiled, for every process."""
        element = ELEMENTS[variant.spec["dtype"]]
        x, y = (numba.types.Array(element, rank, "C") for rank in self.ranks)
        getattr(cpu_kernels, self.kernel).compile((x, y, numba.int64))
        return Artifact(variant)

    def bind(self, problem: Problem, config: Config, device: Device, built: Built) -> Run:
        """Reads the cache that ``compile`` filled; a call wraps the tensors' memory and copies nothing."""
        for artifact in built.artifacts:
            self.compile(artifact.variant, device.target)
        kernel, threads, block = getattr(cpu_kernels, self.kernel), config["threads"], config["block"]
        x_shape, y_shape = self.shapes(problem)

        def run(outputs: Tensors, arguments: tuple[Any, ...], _scratch: Tensors) -> None:
            x, y = arguments[0].detach().view(x_shape), outputs[0].view(y_shape)
            numba.set_num_threads(threads)
            kernel(x.numpy(), y.numpy(), block)

        return run

    def sources(self) -> Iterable[ModuleType | str]:
        """When either file changes, what was measured with it is out of date."""
        return (sys.modules[__name__], cpu_kernels)


class Square(_OnCpu):
    """Blocks of elements."""

    op = "square"
    name = "numba.flat"
    kernel = "square"
    ranks = (1, 1)

    def blocks(self, problem: Problem) -> list[int]:
        """Elements: from what fits the first cache to what fits the last."""
        return [1024, 8192, 65536]

    def shapes(self, problem: Problem) -> tuple[tuple[int, ...], tuple[int, ...]]:
        """Flat."""
        return (problem.n,), (problem.n,)


class Softmax(_OnCpu):
    """Blocks of rows, three passes over each."""

    op = "softmax"
    name = "numba.rows"
    kernel = "softmax"
    ranks = (2, 2)

    def blocks(self, problem: Problem) -> list[int]:
        """Rows."""
        return [block for block in (1, 4, 16, 64) if block == 1 or block <= problem.rows]

    def shapes(self, problem: Problem) -> tuple[tuple[int, ...], tuple[int, ...]]:
        """Rows and columns."""
        return (problem.rows, problem.cols), (problem.rows, problem.cols)


class RowSum(_OnCpu):
    """Blocks of rows, accumulated in float64."""

    op = "numba::row_sum"
    name = "numba.rows"
    kernel = "row_sum"
    ranks = (2, 1)

    def blocks(self, problem: Problem) -> list[int]:
        """Rows."""
        return [block for block in (1, 4, 16, 64) if block == 1 or block <= problem.rows]

    def shapes(self, problem: Problem) -> tuple[tuple[int, ...], tuple[int, ...]]:
        """Rows and columns to rows."""
        return (problem.rows, problem.cols), (problem.rows,)
