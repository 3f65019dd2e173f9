"""The gradient of an embedding from rows in the order of their indices: the weight's gradient is written once."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from functools import lru_cache

import torch

from registry import Config, Device, Launch, Problem, Space, TensorSpec
from registry.backends.estimate import elements_per_thread, next_power_of_2
from registry.backends.triton import TritonImplementation

from ..support import KEPT, common_reasons, options
from .kernels import embedding_sorted as kernels

_MOST_ROWS = 65_536
"""The rank of a row is found by comparing it with all rows."""
_RANKED, _SCANNED, _FOUND = 16, 128, 1024
"""Rows that a program ranks, rows that it compares them with at once, and entries whose first row a program finds."""
_CHUNK = 32
"""Rows of one entry that are summed ahead: of a language's most frequent token a sixteenth of all rows are."""


class SortedEmbeddingBackward(TritonImplementation):
    """Rows are ranked by index, without a sort; then a program writes a block of the weight's gradient, in one pass.

    Entries without rows, of a large vocabulary nearly all, cost a write. Of entries with many rows, chunks are summed
    before by programs of their own. The order of additions is fixed, so that results do not change from call to call.
    """

    op = "embedding_backward"
    name = "triton.sorted"

    def unsupported(self, problem: Problem, device: Device) -> Iterable[str]:
        yield from common_reasons(problem, device)
        if problem.rows > _MOST_ROWS:
            yield f"{problem.rows} rows (at most {_MOST_ROWS}: each is compared with all)"

    def space(self, problem: Problem, device: Device) -> Space:
        """Entries and columns a program, rows that are added at once, and warps."""
        return _space(next_power_of_2(max(problem.cols, 64)), device)

    def default(self, problem: Problem, device: Device) -> Config:
        """Eight entries, four rows and about 32 sums a thread, as the fastest on an H200 have."""
        return _usual(next_power_of_2(max(problem.cols, 64)), device)

    def preference(self, problem: Problem, device: Device) -> float:
        """Expected ahead of all: its code before the latest change was up to 4.7 times as fast as torch on an H200."""
        return 2.0

    def scratch(self, problem: Problem, config: Config, device: Device) -> Mapping[str, TensorSpec]:
        """The rows in order, their indices, the place of each entry's first row, and the sums of chunks."""
        rows, entries = (problem.rows,), (problem.vocabulary + 1,)
        chunks = max(1, problem.rows // _CHUNK), problem.cols
        return {
            "order": TensorSpec.contiguous(rows, torch.int32),
            "sorted_indices": TensorSpec.contiguous(rows, torch.int32),
            "first": TensorSpec.contiguous(entries, torch.int32),
            "chunk_sums": TensorSpec.contiguous(chunks, torch.float32),
        }

    def launch(self, problem: Problem, config: Config, device: Device) -> Sequence[Launch]:
        vocabulary, rows = problem.vocabulary, problem.rows
        blocks = -(-problem.cols // config["BLOCK"])
        sizes = {"COLS": problem.cols, "CHUNK": _CHUNK, "ROWS": config["ROWS"], "BLOCK": config["BLOCK"]}
        return [
            Launch(
                kernels.rank_rows,
                grid=(-(-rows // _RANKED),),
                args=("order", "sorted_indices", "indices", rows),
                constants={"VOCABULARY": vocabulary, "ROWS": _RANKED, "SCAN": _SCANNED},
                options={"num_warps": 4},
            ),
            Launch(
                kernels.find_entries,
                grid=(-(-(vocabulary + 1) // _FOUND),),
                args=("first", "sorted_indices", rows),
                constants={"VOCABULARY": vocabulary, "BLOCK": _FOUND},
                options={"num_warps": 4},
            ),
            Launch(
                kernels.sum_chunks,
                grid=(max(1, rows // _CHUNK) * blocks,),
                args=("chunk_sums", "grad_y", "order", "sorted_indices", rows),
                constants=sizes,
                options=options(config),
            ),
            Launch(
                kernels.sum_entries,
                grid=(-(-vocabulary // config["ENTRIES"]) * blocks,),
                args=("grad_weight", "grad_y", "order", "first", "chunk_sums", _padding(problem)),
                constants={"VOCABULARY": vocabulary, "ENTRIES": config["ENTRIES"], **sizes},
                options=options(config),
            ),
        ]


def _padding(problem: Problem) -> str | int:
    """The call's padding, else an index of no entry, so that both run one compiled kernel."""
    arguments = problem.traits.arguments
    given = arguments is not None and arguments["padding_idx"] is not None
    return "padding_idx" if given else int(problem.vocabulary)


@lru_cache(maxsize=KEPT)
def _space(span: int, device: Device) -> Space:
    def share(config: Config) -> bool:
        sums = elements_per_thread(config["ROWS"] * config["BLOCK"], config["num_warps"], device)
        zeros = elements_per_thread(config["ENTRIES"] * config["BLOCK"], config["num_warps"], device)
        return sums <= 64 and (sums >= 16 or config["num_warps"] == 4) and zeros <= 128

    blocks = [size for size in (256, 512, 1024) if size <= span] or [span]
    return Space(ENTRIES=[2, 8, 16], ROWS=[4, 8, 16, 32], BLOCK=blocks, num_warps=[4, 8]).require(
        "16 to 64 sums and at most 128 zeros a thread", share
    )


@lru_cache(maxsize=KEPT)
def _usual(span: int, device: Device) -> Config:
    def distance(config: Config) -> tuple[float, ...]:
        sums = elements_per_thread(config["ROWS"] * config["BLOCK"], config["num_warps"], device)
        return abs(config["ENTRIES"] - 8), config["ROWS"], abs(sums - 32), config["num_warps"]

    return min(_space(span, device).configs, key=distance)
