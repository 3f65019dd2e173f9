"""The gradient of cross_entropy by tiles: the logits are read once, their gradient written once."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from functools import lru_cache

import torch

from registry import Config, Device, Launch, Problem, Space, TensorSpec
from registry.backends.estimate import elements_per_thread, next_power_of_2, row_multiple
from registry.backends.triton import TritonImplementation

from .. import rows
from ..support import KEPT, common_reasons, options
from .kernels import cross_entropy_backward as kernels

_MOST_PROGRAMS = 2**31 - 1
_LONGEST, _SHORTEST = 16384, 128
_TOTALS_BLOCK, _TOTALS_WARPS = 2048, 8


class TileCrossEntropyBackward(TritonImplementation):
    """A tile a program: BLOCK columns of one row, or several whole rows where these are short."""

    op = "cross_entropy_backward"
    name = "triton.tile"

    def unsupported(self, problem: Problem, device: Device) -> Iterable[str]:
        yield from common_reasons(problem, device)
        yield from rows.pass_reasons(problem)
        if (programs := problem.rows * -(-problem.cols // _SHORTEST)) > _MOST_PROGRAMS:
            yield f"{problem.rows} rows of {problem.cols} need up to {programs} programs (limit {_MOST_PROGRAMS})"

    def space(self, problem: Problem, device: Device) -> Space:
        """Columns and rows of a tile, and warps: one to eight 16-byte vectors a thread."""
        longest = max(_SHORTEST, min(next_power_of_2(problem.cols), _LONGEST))
        whole = longest >= problem.cols
        return _space(longest, next_power_of_2(problem.rows) if whole else 1, rows.vector_of(problem), device)

    def default(self, problem: Problem, device: Device) -> Config:
        """Two 16-byte vectors a thread of 8 warps, less where a row is shorter or SMs would idle."""
        vector = rows.vector_of(problem)
        wanted = 8 * 32 * 2 * vector
        while wanted > 1024 and problem.rows * problem.cols < wanted * device.multiprocessors:
            wanted //= 2
        return _nearest(self.space(problem, device), wanted, 2 * vector, device)

    def preference(self, problem: Problem, device: Device) -> float:
        """Above torch's operators, which pass over the logits five times: this kernel passes once."""
        return 2.0

    def scratch(self, problem: Problem, config: Config, device: Device) -> Mapping[str, TensorSpec]:
        return {"totals": TensorSpec.contiguous((2,), torch.float32)} if _has_totals(problem) else {}

    def launch(self, problem: Problem, config: Config, device: Device) -> Sequence[Launch]:
        multiple = row_multiple(problem.cols)
        sizes = (problem.rows, problem.cols // multiple)
        # a tensor that the kernel does not touch, where there are no totals
        totals = "totals" if _has_totals(problem) else "lse"
        tile = Launch(
            kernels.tile_cross_entropy_backward,
            grid=(-(-problem.rows // config["rows_per_program"]) * -(-problem.cols // config["BLOCK"]),),
            args=(
                "grad_logits", "grad_loss", "logits", "target", "weight", "lse", totals, "ignore_index",
                "label_smoothing", *sizes,
            ),
            constants={
                "MULTIPLE": multiple,
                "ROWS": config["rows_per_program"],
                "BLOCK": config["BLOCK"],
                "PER_ROW": problem.reduction == "none",
                "MEAN": problem.reduction == "mean",
            },
            options=options(config),
        )  # fmt: skip
        return [*_totals_launches(problem, multiple), tile]


def _has_totals(problem: Problem) -> bool:
    return bool(problem.reduction == "mean" or problem.weight)


def _totals_launches(problem: Problem, multiple: int) -> list[Launch]:
    """The first launch, if the sum of the rows' weights or of the classes' is needed."""
    if not _has_totals(problem):
        return []
    return [
        Launch(
            kernels.cross_entropy_totals,
            grid=(1,),
            args=("totals", "target", "weight", "ignore_index", problem.rows, problem.cols // multiple),
            constants={"MULTIPLE": multiple, "BLOCK": _TOTALS_BLOCK},
            options={"num_warps": _TOTALS_WARPS},
        )
    ]


@lru_cache(maxsize=KEPT)
def _space(longest: int, most_rows: int, vector: int, device: Device) -> Space:
    """``longest``: the most columns of a tile. With several rows a tile has whole ones, and ``most_rows`` at most."""
    blocks = [block for block in (128, 256, 512, 1024, 2048, 4096, 8192, 16384) if longest // 16 <= block <= longest]
    counts = [count for count in (1, 2, 4, 8, 16, 32) if count <= most_rows]
    warps = [count for count in rows.WARPS if count <= min(16, rows.max_warps(device))]

    def vectors(config: Config) -> bool:
        share = elements_per_thread(config["rows_per_program"] * config["BLOCK"], config["num_warps"], device)
        return share <= min(8 * vector, 32) and (share >= vector or config["num_warps"] == 1)

    def whole_rows(config: Config) -> bool:
        count = config["rows_per_program"]
        return count == 1 or bool(config["BLOCK"] == longest and count * longest <= 4096)

    def wide(config: Config) -> bool:
        return bool(config["BLOCK"] >= min(longest, 1024))

    return (
        Space(rows_per_program=counts, BLOCK=blocks, num_warps=warps)
        .require("one to eight 16-byte vectors a thread", vectors)
        .require("several rows only where they are whole, up to 4096 elements", whole_rows)
        .require("1024 columns, or all", wide)
    )


@lru_cache(maxsize=KEPT)
def _nearest(space: Space, elements: int, each: int, device: Device) -> Config:
    def distance(config: Config) -> tuple[float, float]:
        held = config["rows_per_program"] * config["BLOCK"]
        return abs(held - elements), abs(elements_per_thread(held, config["num_warps"], device) - each)

    return min(space.configs, key=distance)
