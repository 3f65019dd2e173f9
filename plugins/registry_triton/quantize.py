"""Quantisation of activations in Triton: a row a program, or a piece of one."""

from __future__ import annotations

from collections.abc import Iterable
from functools import lru_cache

from registry import Config, Device, Launch, Problem, Space
from registry.backends.estimate import elements_per_thread, next_power_of_2
from registry.backends.triton import INTERPRETED, TritonImplementation

from .kernels import quantize as kernels
from .support import KEPT, common_reasons, options

_LARGEST = {"int8": 127.0, "float8_e4m3fn": 448.0}
_LONGEST = 65_536


def float8_reasons(dtype: str, device: Device) -> Iterable[str]:
    """Why the device has no numbers of the dtype, if it is float8_e4m3fn."""
    if dtype != "float8_e4m3fn" or device.type != "cuda":
        return
    if device.architecture.startswith("gfx"):
        yield f"float8_e4m3fn on {device.architecture} (NVIDIA's compute capability 8.9 has it)"
    elif (0, 0) < device.capability < (8, 9):
        major, minor = device.capability
        yield f"float8_e4m3fn on compute capability {major}.{minor} (needs 8.9)"


class RowQuantize(TritonImplementation):
    """One program a row, which stays in registers between its maximum and its levels."""

    op = "quantize_per_token"
    name = "triton.row"

    def unsupported(self, problem: Problem, device: Device) -> Iterable[str]:
        yield from common_reasons(problem, device)
        yield from float8_reasons(problem.out_dtype, device)
        if problem.k > _LONGEST:
            yield f"a row of {problem.k} does not fit in registers (limit {_LONGEST})"

    def space(self, problem: Problem, device: Device) -> Space:
        """The number of warps, the only parameter."""
        return _space(self.block(problem), device)

    def default(self, problem: Problem, device: Device) -> Config:
        """About 16 elements a thread."""
        return _nearest(self.block(problem), device)

    def preference(self, problem: Problem, device: Device) -> float:
        """Above torch's five operators: this kernel passes over the rows once."""
        return 1.0

    def block(self, problem: Problem) -> int:
        """Columns of a program: the row, which is longer than a group."""
        return next_power_of_2(max(problem.k, 16))

    def launch(self, problem: Problem, config: Config, device: Device) -> Launch:
        group_size = problem.group_size if problem.group_size < problem.k else 0
        return Launch(
            kernels.quantize,
            grid=(problem.m,),
            args=("q", "scales", "x", "scale", problem.k, -(-problem.k // group_size) if group_size else 1),
            constants={"GROUP": group_size, "BLOCK": self.block(problem), **_levels(problem)},
            options=options(config),
        )


class PieceQuantize(TritonImplementation):
    """One program a piece of a row, where no scale is of a whole row: no power of two has to hold a row."""

    op = "quantize_per_token"
    name = "triton.pieces"

    def unsupported(self, problem: Problem, device: Device) -> Iterable[str]:
        yield from common_reasons(problem, device)
        yield from float8_reasons(problem.out_dtype, device)
        if not problem.scale and problem.group_size == problem.k:
            yield "a scale is of a whole row"

    def space(self, problem: Problem, device: Device) -> Space:
        """Columns of a piece (whole groups), and warps."""
        return _pieces(_group(problem), next_power_of_2(problem.k), device)

    def default(self, problem: Problem, device: Device) -> Config:
        """About 16 elements a thread of 4 warps."""
        return min(self.space(problem, device).configs, key=lambda one: (abs(one["BLOCK"] - 2048), -one["num_warps"]))

    def preference(self, problem: Problem, device: Device) -> float:
        """Ahead of the form of one program a row where a row is mostly padding, or too long for a program."""
        return 1.1 if problem.k > 8192 else 0.9

    def launch(self, problem: Problem, config: Config, device: Device) -> Launch:
        group, pieces = _group(problem), -(-problem.k // config["BLOCK"])
        return Launch(
            kernels.quantize_pieces,
            grid=(problem.m * pieces,),
            args=("q", "scales", "x", "scale", problem.k, -(-problem.k // group) if group else 1, pieces),
            constants={"GROUP": group, "BLOCK": config["BLOCK"], **_levels(problem)},
            options=options(config),
        )


def _group(problem: Problem) -> int:
    """Columns of a scale; 0 where there is one for the whole tensor."""
    return 0 if problem.scale else int(problem.group_size)


def _levels(problem: Problem) -> dict[str, float | bool]:
    """The constants that tell the kernels about the levels."""
    return {
        "MOST": _LARGEST[problem.out_dtype],
        "INTEGER": problem.out_dtype == "int8",
        # the interpreter's own conversion (Triton 3.9) loses the carry, -126 becomes -64, and NaN
        "ROUND": INTERPRETED,
    }


@lru_cache(maxsize=KEPT)
def _pieces(group: int, row: int, device: Device) -> Space:
    def share(config: Config) -> bool:
        each = elements_per_thread(config["BLOCK"], config["num_warps"], device)
        return 2 <= each <= 64 or config["num_warps"] == 1

    sizes = [size for size in (512, 1024, 2048, 4096, 8192) if group <= size <= max(row, 512)]
    return Space(BLOCK=sizes, num_warps=[1, 2, 4, 8]).require("2 to 64 elements a thread", share)


@lru_cache(maxsize=KEPT)
def _space(block: int, device: Device) -> Space:
    def share(config: Config) -> bool:
        each = elements_per_thread(block, config["num_warps"], device)
        return each <= 128 and (each >= 1 or config["num_warps"] == 1)

    return Space(num_warps=[1, 2, 4, 8, 16]).require("1 to 128 elements a thread", share)


@lru_cache(maxsize=KEPT)
def _nearest(block: int, device: Device) -> Config:
    def distance(config: Config) -> float:
        return abs(elements_per_thread(block, config["num_warps"], device) - 16)

    return min(_space(block, device).configs, key=distance)
