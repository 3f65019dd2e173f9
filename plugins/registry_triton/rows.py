"""Bases for softmax, its gradient and rms_norm: whole rows in registers, and rows in passes."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from functools import lru_cache
from typing import Any

from registry import Config, Device, Launch, Problem, Space
from registry.backends.estimate import elements_per_thread, fits_shared, next_power_of_2, row_multiple, threads
from registry.backends.triton import TritonImplementation

from .support import KEPT, common_reasons, options

REGISTER_COLS = 65536
"""The longest row that 1024 threads hold in registers, at 64 elements a thread."""

_MAX_COLS = 2**31 - 2**17
WARPS = (1, 2, 4, 8, 16, 32)
_DEFAULT_PER_THREAD = 16


class RegisterRows(TritonImplementation):
    """One or several whole rows a program, read once and kept in registers.

    ``kernel`` takes ``operands`` (names of tensors and attributes), rows and columns, and holds ``held`` tensors.
    """

    kernel: Any
    operands: tuple[str, ...]
    held: int = 1

    def unsupported(self, problem: Problem, device: Device) -> Iterable[str]:
        yield from common_reasons(problem, device)
        if problem.cols > (limit := REGISTER_COLS // self.held):
            yield f"a row of {problem.cols} does not fit in registers (limit {limit})"

    def space(self, problem: Problem, device: Device) -> Space:
        """Warps, and rows a program where rows are short: between 2 and 64 elements a thread of all it holds."""
        block = next_power_of_2(problem.cols)
        most = min(32, max(1, 4096 // block), next_power_of_2(problem.rows))
        return _register_space(block, most, 64 // self.held, device)

    def default(self, problem: Problem, device: Device) -> Config:
        """About 16 elements a thread; short rows are gathered up to 1024 elements while SMs keep several programs."""
        block = next_power_of_2(problem.cols)
        rows = 1
        while rows * block < 1024 and rows < 32 and problem.rows >= 8 * rows * device.multiprocessors:
            rows *= 2
        return _nearest_registers(self.space(problem, device), block, rows, device)

    def launch(self, problem: Problem, config: Config, device: Device) -> Launch:
        count = config["rows_per_program"]
        multiple = row_multiple(problem.cols)
        return Launch(
            self.kernel,
            grid=(-(-problem.rows // count),),
            args=(*self.operands, problem.rows, problem.cols // multiple),
            constants={"MULTIPLE": multiple, "ROWS": count, "BLOCK": next_power_of_2(problem.cols)},
            options=options(config),
        )


@lru_cache(maxsize=KEPT)
def _register_space(block: int, most_rows: int, most_each: int, device: Device) -> Space:
    rows = [count for count in (1, 2, 4, 8, 16, 32) if count <= most_rows]
    warps = [count for count in WARPS if count <= max_warps(device)]

    def balanced(config: Config) -> bool:
        share = elements_per_thread(config["rows_per_program"] * block, config["num_warps"], device)
        return share <= most_each and (share >= 2 or config["num_warps"] == 1)

    return Space(rows_per_program=rows, num_warps=warps).require(f"2 to {most_each} elements a thread", balanced)


@lru_cache(maxsize=KEPT)
def _nearest_registers(space: Space, block: int, rows: int, device: Device) -> Config:
    def distance(config: Config) -> tuple[float, float]:
        share = elements_per_thread(config["rows_per_program"] * block, config["num_warps"], device)
        return abs(config["rows_per_program"] - rows), abs(share - _DEFAULT_PER_THREAD)

    return min(space.configs, key=distance)


class PassRows(TritonImplementation):
    """One row a program, read in two passes of BLOCK columns a step; for rows that do not fit in registers.

    ``kernel`` takes ``operands`` and columns; ``tensors`` are read in each step.
    """

    kernel: Any
    operands: tuple[str, ...]
    tensors: int

    def unsupported(self, problem: Problem, device: Device) -> Iterable[str]:
        yield from common_reasons(problem, device)
        yield from pass_reasons(problem)

    def space(self, problem: Problem, device: Device) -> Space:
        """BLOCK columns a step, warps, and how many steps are loaded ahead."""
        longest = max(1024, min(next_power_of_2(problem.cols), 32768))
        return _pass_space(longest, vector_of(problem), self.tensors, device)

    def default(self, problem: Problem, device: Device) -> Config:
        """16 warps and two vectors a thread where the row is long enough, no loading ahead."""
        return _nearest_pass(self.space(problem, device), 16 * 32 * 2 * vector_of(problem))

    def preference(self, problem: Problem, device: Device) -> float:
        """Right for long rows; a row that fits in registers need not be read twice."""
        return 1.5 if problem.cols > 2048 else 0.5

    def launch(self, problem: Problem, config: Config, device: Device) -> Launch:
        multiple = row_multiple(problem.cols)
        return Launch(
            self.kernel,
            grid=(problem.rows,),
            args=(*self.operands, problem.cols // multiple),
            constants={"MULTIPLE": multiple, **pass_constants(problem, config)},
            options=options(config),
        )


@lru_cache(maxsize=KEPT)
def _pass_space(longest: int, vector: int, tensors: int, device: Device) -> Space:
    blocks = [block for block in (1024, 2048, 4096, 8192, 16384, 32768) if block <= longest]
    warps = [count for count in (4, 8, 16, 32) if count <= max_warps(device)]

    def one_to_eight_vectors(config: Config) -> bool:
        share = elements_per_thread(config["BLOCK"], config["num_warps"], device)
        return share <= min(8 * vector, 32) and (share >= vector or config["num_warps"] == warps[0])

    def shared(config: Config) -> bool:
        held = tensors * config["num_stages"] * config["BLOCK"] * 16 // vector
        return config["num_stages"] == 1 or fits_shared(held, device)

    return (
        Space(BLOCK=blocks, num_warps=warps, num_stages=[1, 2, 3, 4])
        .require("one to eight 16-byte vectors a thread", one_to_eight_vectors)
        .require("the stages fit in shared memory", shared)
    )


@lru_cache(maxsize=KEPT)
def _nearest_pass(space: Space, block: int) -> Config:
    def distance(config: Config) -> tuple[int, int, int]:
        return abs(config["BLOCK"] - block), abs(config["num_warps"] - 16), config["num_stages"]

    return min(space.configs, key=distance)


def pass_reasons(problem: Problem) -> Iterator[str]:
    """Why a row cannot be read in passes: columns are counted in 32 bits."""
    if problem.cols > _MAX_COLS:
        yield f"a row of {problem.cols} is longer than {_MAX_COLS}"


def vector_of(problem: Problem) -> int:
    """Elements in 16 bytes."""
    return 16 // problem.torch_dtype.itemsize


def pass_constants(problem: Problem, config: Config) -> dict[str, int]:
    """LANES, VECTOR and STAGES of the kernels that read rows in passes."""
    vector = vector_of(problem)
    return {"LANES": config["BLOCK"] // vector, "VECTOR": vector, "STAGES": config["num_stages"]}


def max_warps(device: Device) -> int:
    """The most warps of a program, which has at most 1024 threads."""
    return 1024 // threads(1, device)
