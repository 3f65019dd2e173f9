"""cross_entropy over rows that are no whole number of 16 bytes, as of a vocabulary of 50257."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from functools import lru_cache

from registry import Config, Device, Launch, Problem, Space

from .. import rows
from ..support import KEPT
from .cross_entropy import OnlineCrossEntropy
from .kernels import ragged_cross_entropy as kernels


def whole_reasons(problem: Problem) -> Iterator[str]:
    """Why a row is not for the kernels of this form."""
    if problem.cols < rows.vector_of(problem):
        yield f"a row of {problem.cols} {problem.dtype} may end before the first multiple of 16 bytes"
    elif problem.cols % rows.vector_of(problem) == 0:
        yield f"a row of {problem.cols} {problem.dtype} is a whole number of 16 bytes: the other kernels are for these"


class RaggedCrossEntropy(OnlineCrossEntropy):
    """One row a program, read once from the first multiple of 16 bytes on; the few elements around are read apart."""

    name = "triton.ragged"
    kernel = kernels.ragged_cross_entropy

    def unsupported(self, problem: Problem, device: Device) -> Iterable[str]:
        yield from super().unsupported(problem, device)
        yield from whole_reasons(problem)

    def default(self, problem: Problem, device: Device) -> Config:
        """8 warps and two vectors a thread where the row is long enough, no loading ahead."""
        return _nearest(self.space(problem, device), 8 * 32 * 2 * rows.vector_of(problem))

    def preference(self, problem: Problem, device: Device) -> float:
        """Loads of 16 bytes, where the other forms load an element at a time."""
        return 2.5 if problem.cols > 8192 else 0.8

    def launch(self, problem: Problem, config: Config, device: Device) -> Sequence[Launch]:  # type: ignore[override]
        first, *sums = super().launch(problem, config, device)
        constants = rows.pass_constants(problem, config)
        return [
            replace(first, kernel=self.kernel, args=(*first.args[:-1], problem.cols), constants=constants),
            *sums,
        ]


@lru_cache(maxsize=KEPT)
def _nearest(space: Space, block: int) -> Config:
    def distance(config: Config) -> tuple[int, int, int]:
        return abs(config["BLOCK"] - block), abs(config["num_warps"] - 8), config["num_stages"]

    return min(space.configs, key=distance)
