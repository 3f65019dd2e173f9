"""embedding by blocks of rows, and its gradient by blocks of the vocabulary."""

from __future__ import annotations

from collections.abc import Iterable
from functools import lru_cache

from registry import Config, Device, Launch, Problem, Space
from registry.backends.estimate import elements_per_thread, next_power_of_2
from registry.backends.triton import TritonImplementation

from ..support import KEPT, common_reasons, options
from .kernels import embedding as kernels


class BlockEmbedding(TritonImplementation):
    """One program a block of columns of a few rows."""

    op = "embedding"
    name = "triton.block"

    def unsupported(self, problem: Problem, device: Device) -> Iterable[str]:
        return common_reasons(problem, device)

    def space(self, problem: Problem, device: Device) -> Space:
        """Rows and columns a program, and warps: between 8 and 64 elements a thread."""
        return _copy_space(next_power_of_2(problem.cols), device)

    def default(self, problem: Problem, device: Device) -> Config:
        """One row a program and about 16 elements a thread."""
        return _usual_copy(next_power_of_2(problem.cols), device)

    def preference(self, problem: Problem, device: Device) -> float:
        """Above torch's operator: one launch with the widest loads."""
        return 1.0

    def launch(self, problem: Problem, config: Config, device: Device) -> Launch:
        tokens, block = config["tokens_per_program"], config["BLOCK"]
        return Launch(
            kernels.embedding,
            grid=(-(-problem.rows // tokens) * -(-problem.cols // block),),
            args=("y", "indices", "weight", problem.rows),
            constants={"COLS": problem.cols, "TOKENS": tokens, "BLOCK": block},
            options=options(config),
        )


class EntriesEmbeddingBackward(TritonImplementation):
    """One program a block of the vocabulary, which looks for its indices: neither sorted, nor with atomic additions."""

    op = "embedding_backward"
    name = "triton.entries"

    def unsupported(self, problem: Problem, device: Device) -> Iterable[str]:
        return common_reasons(problem, device)

    def space(self, problem: Problem, device: Device) -> Space:
        """Entries and columns a program, indices a look, and warps."""
        return _sum_space(next_power_of_2(max(problem.cols, 64)), problem.torch_dtype.itemsize, device)

    def default(self, problem: Problem, device: Device) -> Config:
        """The fewest looks at the indices: 64 entries, and about 32 sums a thread."""
        return _usual_sum(next_power_of_2(max(problem.cols, 64)), problem.torch_dtype.itemsize, device)

    def preference(self, problem: Problem, device: Device) -> float:
        """The weight's gradient is written once, in its own dtype."""
        return 1.0

    def launch(self, problem: Problem, config: Config, device: Device) -> Launch:
        entries, block = config["ENTRIES"], config["BLOCK"]
        return Launch(
            kernels.embedding_backward,
            grid=(-(-problem.vocabulary // entries) * -(-problem.cols // block),),
            args=("grad_weight", "grad_y", "indices", _padding_of(problem), problem.rows),
            constants={
                "VOCABULARY": problem.vocabulary,
                "COLS": problem.cols,
                "ENTRIES": entries,
                "SCAN": config["SCAN"],
                "TOKENS": 32,
                "BLOCK": block,
            },
            options=options(config),
        )


def _padding_of(problem: Problem) -> str | int:
    """The kernel's padding: the call's argument, or for none an index of no row, to the same compiled kernel."""
    arguments = problem.traits.arguments
    given = arguments is not None and arguments["padding_idx"] is not None
    return "padding_idx" if given else int(problem.vocabulary)


@lru_cache(maxsize=KEPT)
def _copy_space(span: int, device: Device) -> Space:
    def share(config: Config) -> bool:
        block = config["tokens_per_program"] * config["BLOCK"]
        each = elements_per_thread(block, config["num_warps"], device)
        return each <= 64 and (each >= 8 or config["num_warps"] == 1)

    blocks = [size for size in (256, 512, 1024, 2048, 4096) if size <= span] or [span]
    return Space(tokens_per_program=[1, 2, 4], BLOCK=blocks, num_warps=[1, 2, 4, 8]).require(
        "8 to 64 elements a thread", share
    )


@lru_cache(maxsize=KEPT)
def _usual_copy(span: int, device: Device) -> Config:
    def distance(config: Config) -> tuple[float, ...]:
        each = elements_per_thread(config["tokens_per_program"] * config["BLOCK"], config["num_warps"], device)
        return config["tokens_per_program"], abs(config["BLOCK"] - 1024), abs(each - 16)

    return min(_copy_space(span, device).configs, key=distance)


@lru_cache(maxsize=KEPT)
def _sum_space(span: int, size: int, device: Device) -> Space:
    def share(config: Config) -> bool:
        each = elements_per_thread(config["ENTRIES"] * config["BLOCK"], config["num_warps"], device)
        # float32 is multiplied without tensor cores
        return each <= (64 if size == 2 else 32) and (each >= 16 or config["num_warps"] == 4)

    blocks = [size for size in (64, 128, 256) if size <= span]
    return Space(ENTRIES=[16, 32, 64], BLOCK=blocks, SCAN=[512, 1024, 2048], num_warps=[4, 8]).require(
        "16 to 64 sums a thread", share
    )


@lru_cache(maxsize=KEPT)
def _usual_sum(span: int, size: int, device: Device) -> Config:
    def distance(config: Config) -> tuple[float, ...]:
        each = elements_per_thread(config["ENTRIES"] * config["BLOCK"], config["num_warps"], device)
        return -config["ENTRIES"], abs(each - 32), abs(config["SCAN"] - 1024), config["num_warps"]

    return min(_sum_space(span, size, device).configs, key=distance)
