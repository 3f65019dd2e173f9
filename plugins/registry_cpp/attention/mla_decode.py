"""mla_decode over sequences and tiles of heads."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from functools import lru_cache
from pathlib import Path

from registry.backends.cpp import CppImplementation, CppKernel
from registry.backends.head_strides import outer_strides
from registry.device import Device
from registry.implementation import Launch
from registry.problem import Problem
from registry.space import Config, Space

from ..base import ELEMENT_TYPES, thread_counts

MLA_DECODE = CppKernel.read(
    "mla_decode",
    Path(__file__).parents[1] / "kernels" / "simd.hpp",
    Path(__file__).parent / "kernels" / "mla_decode.cpp",
)

# shorter pieces take less time than starting a thread
_PRODUCTS_PER_THREAD = 65_536
_TILES = (4, 16, 64)


class CppMlaDecode(CppImplementation):
    """Each latent is converted once for all heads of a tile, ``step`` tokens at a time."""

    op = "mla_decode"
    name = "cpp.tiles"

    def unsupported(self, problem: Problem, device: Device) -> Iterator[str]:
        yield from super().unsupported(problem, device)
        if problem.dtype not in ELEMENT_TYPES:
            yield f"{problem.dtype} is none of {', '.join(ELEMENT_TYPES)}"
        if not problem.traits.contiguous("kv_lens"):
            yield "kv_lens is not contiguous"
        if problem.page and _table_strides(problem) is None:
            yield "the pages of a sequence are not neighbours in block_table"
        for name in ("q", "kv_cache"):
            if _strides(problem, name) is None:
                yield f"the elements of a row of {name} are not neighbours"

    def space(self, problem: Problem, device: Device) -> Space:
        """Heads of a tile, tokens a step, and threads."""
        return _space(problem.heads, device)

    def default(self, problem: Problem, device: Device) -> Config:
        """Tiles of 16 heads, and a thread for each 65536 products of one element, no more than there are tiles."""
        heads = 16 if problem.heads > _TILES[0] else _TILES[0]
        tiles = problem.batch * -(-problem.heads // heads)
        work = problem.batch * problem.heads * problem.kv_len * (problem.kv_lora_rank + problem.rope_dim)
        wanted = max(1, min(tiles, work // _PRODUCTS_PER_THREAD))
        return {
            "heads": heads,
            "step": 64,
            "threads": max(count for count in thread_counts(device) if count <= wanted),
        }

    def launch(self, problem: Problem, config: Config, device: Device) -> Launch:
        """The launch of the kernel; a table that is not given is a null pointer."""
        strides = [stride for name in ("q", "kv_cache") for stride in _strides(problem, name) or ()]
        table = _table_strides(problem) or (0,)
        return Launch(
            MLA_DECODE,
            grid=(1,),
            args=(
                *("out", "lse", "q", "kv_cache", "kv_lens", "block_table", "scale"),
                *(problem.batch, *strides, *table, config["threads"]),
            ),
            constants={
                "ELEMENT": ELEMENT_TYPES[problem.dtype],
                "HEADS": problem.heads,
                "TILE": config["heads"],
                "RANK": problem.kv_lora_rank,
                "WIDTH": problem.kv_lora_rank + problem.rope_dim,
                "PAGE": int(problem.page),
                "STEP": config["step"],
            },
        )


def _strides(problem: Problem, name: str) -> tuple[int, ...] | None:
    rows = problem.heads if name == "q" else problem.page or problem.kv_len
    return outer_strides(problem, name, (rows, problem.kv_lora_rank + problem.rope_dim))


def _table_strides(problem: Problem) -> tuple[int, ...] | None:
    """Elements of the table from a sequence to the next, () without a table; None unless a row's are neighbours."""
    return outer_strides(problem, "block_table", (problem.kv_len // problem.page,)) if problem.page else ()


@lru_cache(maxsize=64)
def _space(heads: int, device: Device) -> Space:
    tiles = [_TILES[0], *(tile for smaller, tile in itertools.pairwise(_TILES) if smaller < heads)]
    return Space(heads=tiles, step=[16, 64, 256], threads=thread_counts(device))
