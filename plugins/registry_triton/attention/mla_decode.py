"""mla_decode in two forms: a sequence's tile of heads a program, and its tokens split over programs."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import torch

from registry import Config, Device, Launch, Problem, Space, TensorSpec
from registry.backends.estimate import next_power_of_2
from registry.backends.head_strides import outer_strides
from registry.backends.triton import TritonImplementation

from ..decoder.heads import type_reasons
from ..support import options
from .decode import LEAST_KEYS, MOST_PARTS, _launches_dependents
from .kernels import decode as decode_kernels
from .kernels import mla_decode as kernels
from .latent_tiles import LatentTile, nearest_split, padded, split_space, usual_walk, walk_space

MOST_RANK, MOST_ROPE = 512, 128
"""The longest latent: 64 rows of its sums in fp32 are half of an SM's registers."""

_COMBINE_WARPS = 4
_COMBINED_ELEMENTS = 8192
"""Elements of parts that a step of the second launch takes: 64 a thread, all on the way at once."""
_LONGEST_STEP = 64
"""The most latents of a step, whose places, as those of a page, are counted in 32 bits."""
_OPERANDS = ("q", "kv_cache", "kv_lens", "block_table", "scale")


class _MlaDecode(TritonImplementation):
    """Heads are the rows of a tile; a latent comes from memory once a tile, and is both key and value."""

    op = "mla_decode"

    def unsupported(self, problem: Problem, device: Device) -> Iterable[str]:
        yield from type_reasons(problem, device)
        for name in ("q", "kv_cache"):
            if _strides(problem, name) is None:
                yield f"the elements of a row of {name} are not neighbours"
        if not problem.traits.contiguous("kv_lens"):
            yield "kv_lens is not contiguous"
        if problem.page and _table_row(problem) is None:
            yield "the pages of a sequence are not neighbours in block_table"
        strides, together = _strides(problem, "kv_cache"), max(_LONGEST_STEP, problem.page)
        if strides and strides[-1] * together >= 2**31:
            yield f"latents are {strides[-1]} elements apart (limit {2**31 // together - 1})"
        rank, rope = problem.kv_lora_rank, problem.rope_dim
        if rank > MOST_RANK or rope > MOST_ROPE:
            yield f"latents of {rank} and {rope} elements (limits {MOST_RANK} and {MOST_ROPE})"
        elif self.space(problem, device).is_empty:
            yield f"latents of {rank} and {rope} elements: {self.space(problem, device).why_empty()}"

    def of_walk(self, problem: Problem, config: Config) -> dict[str, Any]:
        """What the kernels that read latents are compiled for."""
        return {
            "HEADS": problem.heads,
            "RANK": problem.kv_lora_rank,
            "SPAN": padded(problem.kv_lora_rank),
            "ROPE": problem.rope_dim,
            "ROPE_SPAN": padded(problem.rope_dim),
            "PAGE": int(problem.page),
            "ROWS": config["ROWS"],
            "BLOCK": config["BLOCK"],
        }


class WholeMlaDecode(_MlaDecode):
    """A program walks all tokens of a sequence for a tile of heads: nothing is combined; for many sequences."""

    name = "triton.whole"

    def space(self, problem: Problem, device: Device) -> Space:
        """Heads of a tile, tokens a step, warps, and steps that are loaded ahead."""
        return walk_space(LatentTile.of(problem), device)

    def default(self, problem: Problem, device: Device) -> Config:
        """Tiles of as many heads as there are, up to 64, and steps of 32 tokens."""
        return usual_walk(LatentTile.of(problem), device)

    def preference(self, problem: Problem, device: Device) -> float:
        """Where sequences keep every SM busy."""
        tiles = problem.batch * -(-problem.heads // self.default(problem, device)["ROWS"])
        return 2.0 if tiles >= 2 * device.multiprocessors else 1.0

    def launch(self, problem: Problem, config: Config, device: Device) -> Launch:
        return Launch(
            kernels.whole_mla_decode,
            grid=(problem.batch * -(-problem.heads // config["ROWS"]),),
            args=("out", "lse", *_OPERANDS, *_all_strides(problem)),
            constants=self.of_walk(problem, config),
            options=options(config),
        )


class SplitMlaDecode(_MlaDecode):
    """A sequence's tokens over several programs, and a second launch that combines their fp32 partial results.

    From Hopper on the second is launched while the first runs, and waits on the device. Each sequence is split by its
    own length, which the host does not read: a part has at least ``keys`` tokens, and programs without a part end.
    """

    name = "triton.split_kv"

    def unsupported(self, problem: Problem, device: Device) -> Iterable[str]:
        yield from super().unsupported(problem, device)
        if problem.kv_len <= LEAST_KEYS:
            yield f"{problem.kv_len} tokens are too few to split (from {LEAST_KEYS + 1})"

    def space(self, problem: Problem, device: Device) -> Space:
        """Least tokens a part, heads of a tile, tokens a step, warps, and steps that are loaded ahead."""
        return split_space(_most_keys(problem), LatentTile.of(problem), device)

    def default(self, problem: Problem, device: Device) -> Config:
        """About a program an SM, if sequences fill their room: one of 64 heads takes most of the shared memory."""
        tile = LatentTile.of(problem)
        programs = problem.batch * -(-problem.heads // usual_walk(tile, device)["ROWS"])
        parts = max(1.0, device.multiprocessors / max(programs, 1))
        keys = 1 << max(0, round(math.log2(max(problem.kv_len, 1) / parts)))
        return nearest_split(_most_keys(problem), keys, tile, device)

    def preference(self, problem: Problem, device: Device) -> float:
        """Before a sequence a program where these leave SMs without work."""
        return 1.5

    def scratch(self, problem: Problem, config: Config, device: Device) -> Mapping[str, TensorSpec]:
        parts = (problem.batch * problem.heads, _splits(problem, config))
        return {
            "parts": TensorSpec.contiguous((*parts, padded(problem.kv_lora_rank)), torch.float32),
            **{name: TensorSpec.contiguous(parts, torch.float32) for name in ("tops", "totals")},
        }

    def launch(self, problem: Problem, config: Config, device: Device) -> Sequence[Launch]:
        partial, span = ("parts", "tops", "totals"), padded(problem.kv_lora_rank)
        numbers, dependent = (_splits(problem, config), config["keys"]), _launches_dependents(device)
        combined = {
            "KV_HEADS": 1,
            "GROUP": problem.heads,
            "TOKENS": 1,
            "DIM": problem.kv_lora_rank,
            "SPAN": span,
            "WINDOW": -1,
            "PARTS": min(MOST_PARTS, max(16, _COMBINED_ELEMENTS // span)),
            "v_scale": None,
        }
        return [
            Launch(
                kernels.partial_mla_decode,
                grid=(problem.batch * -(-problem.heads // config["ROWS"]) * numbers[0],),
                args=(*partial, *_OPERANDS, *_all_strides(problem), *numbers),
                constants={**self.of_walk(problem, config), "DEPENDENT": dependent},
                options=options(config),
            ),
            Launch(
                decode_kernels.combine_decode,
                grid=(problem.batch * problem.heads,),
                args=("out", "lse", *partial, "kv_lens", *numbers),
                constants={**combined, "DEPENDENT": dependent},
                options={"num_warps": _COMBINE_WARPS, **({"launch_pdl": True} if dependent else {})},
            ),
        ]


def _splits(problem: Problem, config: Config) -> int:
    """Parts of a sequence that fills its room."""
    return max(1, min(MOST_PARTS, -(-int(problem.kv_len) // int(config["keys"]))))


def _most_keys(problem: Problem) -> int:
    """The most tokens that a part may have at least: of a whole sequence half, rounded up to a power of two."""
    return min(4096, max(LEAST_KEYS, next_power_of_2(problem.kv_len) // 2))


def _strides(problem: Problem, name: str) -> tuple[int, ...] | None:
    rows = problem.heads if name == "q" else problem.page or problem.kv_len
    return outer_strides(problem, name, (rows, problem.kv_lora_rank + problem.rope_dim))


def _table_row(problem: Problem) -> int | None:
    """Elements of the table from a sequence to the next; 0 without a table, None unless a row's are neighbours."""
    if not problem.page:
        return 0
    found = outer_strides(problem, "block_table", (problem.kv_len // problem.page,))
    return None if found is None else found[0]


def _all_strides(problem: Problem) -> tuple[int, ...]:
    """The strides that the kernels take, in their order."""
    each = [stride for name in ("q", "kv_cache") for stride in _strides(problem, name) or ()]
    return (*each, _table_row(problem) or 0)
