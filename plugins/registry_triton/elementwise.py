"""vector_add, square, gelu and their gradients by blocks of consecutive elements."""

from __future__ import annotations

from collections.abc import Iterable
from functools import lru_cache
from typing import Any

from registry import Config, Device, Launch, Problem, Space
from registry.backends.estimate import elements_per_thread, next_power_of_2
from registry.backends.triton import TritonImplementation

from .kernels import elementwise as kernels
from .support import KEPT, common_reasons, options

_DEFAULT_BYTES_PER_THREAD = 32


class _Block(TritonImplementation):
    """One program a block; loads of 16 bytes a thread; fp32 arithmetic, rounded once."""

    name = "triton.block"
    kernel: Any
    tensors: tuple[str, ...]

    def unsupported(self, problem: Problem, device: Device) -> Iterable[str]:
        yield from common_reasons(problem, device)

    def space(self, problem: Problem, device: Device) -> Space:
        """BLOCK elements a program; a thread has between one and eight 16-byte vectors of each tensor."""
        largest = min(max(next_power_of_2(problem.n), 256), 16384)
        return _space(largest, 16 // problem.torch_dtype.itemsize, device)

    def default(self, problem: Problem, device: Device) -> Config:
        """4 warps and two 16-byte vectors a thread, less where that would leave SMs idle."""
        block = 4 * 32 * _DEFAULT_BYTES_PER_THREAD // problem.torch_dtype.itemsize
        while block > 256 and problem.n < block * device.multiprocessors:
            block //= 2
        return _nearest(self.space(problem, device), block)

    def preference(self, problem: Problem, device: Device) -> float:
        """Torch's own elementwise kernels are as fast: nothing is gained untuned."""
        return -0.5

    def launch(self, problem: Problem, config: Config, device: Device) -> Launch:
        block = config["BLOCK"]
        return Launch(
            self.kernel,
            grid=(-(-problem.n // block),),
            args=(*self.tensors, problem.n),
            constants={**self.constants(problem), "BLOCK": block},
            options=options(config),
        )

    def constants(self, problem: Problem) -> dict[str, Any]:
        """The constants of the kernel beside BLOCK, by name."""
        return {}


@lru_cache(maxsize=KEPT)
def _space(largest: int, vector: int, device: Device) -> Space:
    blocks = [block for block in (256, 512, 1024, 2048, 4096, 8192, 16384) if block <= largest]

    def one_to_eight_vectors(config: Config) -> bool:
        share = elements_per_thread(config["BLOCK"], config["num_warps"], device)
        return share <= 8 * vector and (share >= vector or config["num_warps"] == 1)

    return Space(BLOCK=blocks, num_warps=[1, 2, 4, 8, 16]).require(
        "one to eight 16-byte vectors a thread", one_to_eight_vectors
    )


@lru_cache(maxsize=KEPT)
def _nearest(space: Space, block: int) -> Config:
    return min(space.configs, key=lambda config: (abs(config["BLOCK"] - block), abs(config["num_warps"] - 4)))


class BlockVectorAdd(_Block):
    """out = x + y."""

    op = "vector_add"
    mixed = True
    kernel = kernels.vector_add
    tensors = ("out", "x", "y")


class BlockSquare(_Block):
    """y = x²."""

    op = "square"
    kernel = kernels.square
    tensors = ("y", "x")


class BlockGelu(_Block):
    """y = gelu(x), by tanh or erf."""

    op = "gelu"
    kernel = kernels.gelu
    tensors = ("y", "x")

    def constants(self, problem: Problem) -> dict[str, Any]:
        return {"TANH": problem.approximate == "tanh"}


class BlockSquareBackward(_Block):
    """grad_x = 2 x grad_y."""

    op = "square_backward"
    kernel = kernels.square_backward
    tensors = ("grad_x", "grad_y", "x")


class BlockGeluBackward(BlockGelu):
    """grad_x = grad_y gelu'(x), by tanh or erf."""

    op = "gelu_backward"
    kernel = kernels.gelu_backward
    tensors = ("grad_x", "grad_y", "x")  # type: ignore[assignment]  # mypy takes BlockGelu's for its type
