"""The gradient of cross_entropy over rows that are no whole number of 16 bytes, as of a vocabulary of 50257."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace
from functools import lru_cache

from registry import Config, Device, Launch, Problem, Space
from registry.backends.estimate import elements_per_thread

from .. import rows
from ..support import KEPT, options
from .cross_entropy_backward import TileCrossEntropyBackward
from .kernels import ragged_cross_entropy_backward as kernels
from .ragged_cross_entropy import whole_reasons

_BLOCKS = (1024, 2048, 4096, 8192, 16384)


class RaggedCrossEntropyBackward(TileCrossEntropyBackward):
    """BLOCK elements a program, of all rows as if they were one."""

    name = "triton.ragged"

    def unsupported(self, problem: Problem, device: Device) -> Iterable[str]:
        yield from super().unsupported(problem, device)
        yield from whole_reasons(problem)
        if problem.cols < _BLOCKS[0]:
            yield f"a row of {problem.cols} is shorter than {_BLOCKS[0]}"

    def space(self, problem: Problem, device: Device) -> Space:
        """Elements of a program, and warps: one to eight 16-byte vectors a thread."""
        return _space(min(problem.cols, _BLOCKS[-1]), rows.vector_of(problem), device)

    def default(self, problem: Problem, device: Device) -> Config:
        """Two 16-byte vectors a thread of 8 warps, where a row is that long."""
        vector = rows.vector_of(problem)
        return _nearest(self.space(problem, device), 8 * 32 * 2 * vector, 2 * vector, device)

    def preference(self, problem: Problem, device: Device) -> float:
        """Behind ``triton.tile``, of whose time a first form took 1.37 on an H200; this one waits for a measurement."""
        return 1.0

    def launch(self, problem: Problem, config: Config, device: Device) -> Sequence[Launch]:
        *totals, tile = super().launch(problem, {**config, "rows_per_program": 1}, device)
        flags = {name: tile.constants[name] for name in ("PER_ROW", "MEAN")}
        return [
            *totals,
            replace(
                tile,
                kernel=kernels.ragged_cross_entropy_backward,
                grid=(-(-problem.rows * problem.cols // config["BLOCK"]),),
                args=(*tile.args[:-2], problem.rows, problem.cols),
                constants={"BLOCK": config["BLOCK"], "VECTOR": rows.vector_of(problem), **flags},
                options=options(config),
            ),
        ]


@lru_cache(maxsize=KEPT)
def _space(longest: int, vector: int, device: Device) -> Space:
    def vectors(config: Config) -> bool:
        return vector <= elements_per_thread(config["BLOCK"], config["num_warps"], device) <= min(8 * vector, 32)

    warps = [count for count in (4, 8, 16) if count <= rows.max_warps(device)]
    space = Space(BLOCK=[block for block in _BLOCKS if block <= longest], num_warps=warps)
    return space.require("one to eight 16-byte vectors a thread", vectors)


@lru_cache(maxsize=KEPT)
def _nearest(space: Space, block: int, each: int, device: Device) -> Config:
    def distance(config: Config) -> tuple[float, float]:
        share = elements_per_thread(config["BLOCK"], config["num_warps"], device)
        return abs(config["BLOCK"] - block), abs(share - each)

    return min(space.configs, key=distance)
