"""vector_add, square and gelu: blocks of the flat tensor, taken by the threads in turn."""

from __future__ import annotations

from abc import abstractmethod
from functools import lru_cache
from typing import ClassVar

from registry.backends.cpp import CppKernel
from registry.device import Device
from registry.implementation import Launch
from registry.problem import Problem
from registry.space import Config, Space

from .base import ELEMENT_TYPES, DenseImplementation, kernel, thread_counts

UNARY = kernel("unary", "elementwise.cpp")
BINARY = kernel("binary", "elementwise.cpp")

BLOCKS = (8_192, 32_768, 131_072)

# an operation this small is done before a second thread has started
ELEMENTS_PER_THREAD = 16_384


class _Elementwise(DenseImplementation):
    """Base: blocks of ``block`` elements are taken by the threads in turn; ``stream`` stores past the caches."""

    name = "cpp.blocks"
    kernel: ClassVar[CppKernel] = UNARY
    inputs: ClassVar[tuple[str, ...]] = ("x",)
    output: ClassVar[str] = "y"
    elements_per_thread: ClassVar[int] = ELEMENTS_PER_THREAD

    @abstractmethod
    def operation(self, problem: Problem) -> str:
        """The struct of elementwise.cpp that computes one vector."""

    def space(self, problem: Problem, device: Device) -> Space:
        return _space(device)

    def default(self, problem: Problem, device: Device) -> Config:
        bytes_moved = problem.n * problem.torch_dtype.itemsize * (len(self.inputs) + 1)
        wanted = max(1, problem.n // self.elements_per_thread)
        threads = max(count for count in thread_counts(device) if count <= wanted)
        block = 8_192 if problem.n < 8 * 32_768 * threads else 32_768
        return {"block": block, "stream": bytes_moved > 2 * device.l2_bytes, "threads": threads}

    def launch(self, problem: Problem, config: Config, device: Device) -> Launch:
        return Launch(
            self.kernel,
            grid=(1,),
            args=(self.output, *self.inputs, problem.n, config["block"], config["stream"], config["threads"]),
            constants={"ELEMENT": ELEMENT_TYPES[problem.dtype], "OP": self.operation(problem)},
        )


@lru_cache(maxsize=8)
def _space(device: Device) -> Space:
    return Space(block=BLOCKS, stream=[False, True], threads=thread_counts(device))


class CppVectorAdd(_Elementwise):
    """``x + y``."""

    op = "vector_add"
    kernel = BINARY
    inputs = ("x", "y")
    output = "out"

    def operation(self, problem: Problem) -> str:
        return "Add"


class CppSquare(_Elementwise):
    """``x * x``."""

    op = "square"

    def operation(self, problem: Problem) -> str:
        return "Square"


class CppGelu(_Elementwise):
    """Both approximations of gelu, through one exponential: as exact for negative x as for positive."""

    op = "gelu"
    elements_per_thread = 4_096

    def operation(self, problem: Problem) -> str:
        return "GeluTanh" if problem.approximate == "tanh" else "GeluErf"
