"""attention_varlen on Hopper's warpgroup tensor cores: packed sequences, found by the offsets on the device."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

from registry import Config, Device, Launch, Problem

from .head_tiles import HeadTiles, packed_head_tiles, packed_lengths
from .wgmma import WARPGROUP_ROWS, WgmmaForward, counting_reasons, logit_arguments, rows_of, source_of, together

_MOST_SORTED = 192
"""Tiles of a head that a block of threads puts in order: those with the most keys run first."""


class PackedWgmmaAttention(WgmmaForward):
    """Attention of sequences of unlike lengths: a tile's queries are of one, found by the offsets.

    The host reads no offset, so that a call can be captured. Keys and values behind a sequence's end, which come with
    its last tile, are hidden: another sequence's NaN does not reach it.
    """

    op = "attention_varlen"
    source = source_of("packed")
    function = "attention_varlen_forward"

    def unsupported(self, problem: Problem, device: Device) -> Iterable[str]:
        yield from super().unsupported(problem, device)
        if not problem.total_q or not problem.total_k:
            yield "there is no query or no key"
        for name in ("cu_seqlens_q", "cu_seqlens_k"):
            if not problem.traits.contiguous(name):
                yield f"{name} is not contiguous"
        tiles = problem.heads * _shares(problem, WARPGROUP_ROWS)
        yield from counting_reasons(tiles, problem.total_q, problem.total_k)

    def preference(self, problem: Problem, device: Device) -> float:
        """On an H200 it takes 0.69 to 0.75 of Triton's time for 8 causal sequences; short ones leave rows empty."""
        return 2.0 if self.lengths(problem)[0] >= WARPGROUP_ROWS else 0.7

    def tiles(self, problem: Problem, name: str, height: int) -> HeadTiles | None:
        """Tensors ``[tokens, heads, head_dim]``."""
        return packed_head_tiles(problem, name, height)

    def lengths(self, problem: Problem) -> tuple[int, int]:
        """Queries and keys of a sequence, in the mean."""
        return packed_lengths(problem)

    def launch(self, problem: Problem, config: Config, device: Device) -> Launch:
        shares = _shares(problem, rows_of(config))
        at_once = problem.heads if shares <= _MOST_SORTED else together(problem, problem.heads, problem.total_k)
        totals = (problem.sequences, problem.total_q, problem.total_k)
        sizes = ("cu_seqlens_q", "cu_seqlens_k", *logit_arguments(problem), *totals, shares, at_once)
        launch = self.launch_of(problem, config, device, problem.heads * shares, sizes)
        return replace(launch, constants={**launch.constants, "MOST_SORTED": _MOST_SORTED})


def _shares(problem: Problem, rows: int) -> int:
    """Tiles of ``rows`` queries of a head for any lengths: each sequence may begin one that it does not fill."""
    return int(problem.total_q // rows + problem.sequences)
