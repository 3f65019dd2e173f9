"""silu_and_mul, gelu_and_mul and their gradients by blocks of a row's columns."""

from __future__ import annotations

from collections.abc import Iterable
from functools import lru_cache
from typing import Any

from registry import Config, Device, Launch, Problem, Space
from registry.backends.estimate import elements_per_thread, next_power_of_2
from registry.backends.programmatic_launch import pdl_options
from registry.backends.triton import TritonImplementation

from ..support import KEPT, common_reasons, options
from .dependents import is_dependent
from .kernels import gated as kernels

_VECTOR_BYTES = 16
_MOST_BLOCK = 8192
_LEAST_BLOCK = 64


class BlockGated(TritonImplementation):
    """One program a block of columns; both halves are read once, in fp32, and the result is rounded once."""

    name = "triton.block"
    kernel: Any = kernels.gated
    tensors: tuple[str, ...] = ("y", "x")

    def __init__(self, op: str) -> None:
        self.op = op

    def unsupported(self, problem: Problem, device: Device) -> Iterable[str]:
        yield from common_reasons(problem, device)

    def space(self, problem: Problem, device: Device) -> Space:
        """BLOCK columns a program; a thread has between one and four 16-byte vectors of each half."""
        largest = min(max(next_power_of_2(problem.cols), _LEAST_BLOCK), _MOST_BLOCK)
        return _space(largest, _VECTOR_BYTES // problem.torch_dtype.itemsize, device)

    def default(self, problem: Problem, device: Device) -> Config:
        """One vector of each half a thread: three or five tensors are in flight at once."""
        return _nearest(self.space(problem, device), 4 * 32 * _VECTOR_BYTES // problem.torch_dtype.itemsize)

    def preference(self, problem: Problem, device: Device) -> float:
        """torch's operators one after the other move five or more tensors where three are needed."""
        return 1.0

    def launch(self, problem: Problem, config: Config, device: Device) -> Launch:
        cols, block, dependent = problem.cols, config["BLOCK"], is_dependent(device)
        function = problem.dims.get("approximate", "silu")
        return Launch(
            self.kernel,
            grid=(problem.rows * -(-cols // block),),
            args=self.tensors,
            constants={"FUNCTION": function, "COLS": cols, "BLOCK": block, "DEPENDENT": dependent},
            options={**options(config), **pdl_options(dependent)},
        )


class BlockGatedBackward(BlockGated):
    """One program a block of columns of the gradient of both halves."""

    kernel = kernels.gated_backward
    tensors = ("grad_x", "grad_y", "x")


@lru_cache(maxsize=KEPT)
def _space(largest: int, vector: int, device: Device) -> Space:
    blocks = [1 << power for power in range(6, 14) if 1 << power <= largest]

    def one_to_four_vectors(config: Config) -> bool:
        share = elements_per_thread(config["BLOCK"], config["num_warps"], device)
        return share <= 4 * vector and (share >= vector or config["num_warps"] == 1)

    return Space(BLOCK=blocks, num_warps=[1, 2, 4, 8, 16]).require(
        "one to four 16-byte vectors a thread", one_to_four_vectors
    )


@lru_cache(maxsize=KEPT)
def _nearest(space: Space, block: int) -> Config:
    return min(space.configs, key=lambda config: (abs(config["BLOCK"] - block), abs(config["num_warps"] - 4)))
