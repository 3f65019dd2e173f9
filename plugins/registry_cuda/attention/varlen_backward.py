"""attention_varlen_backward on Hopper's warpgroup tensor cores: packed sequences, found by offsets on the device."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace

import torch

from registry import Config, Device, Launch, Problem, TensorSpec
from registry.backends.cuda import CudaKernel

from .gradient import (
    LEAST_ROWS,
    Pass,
    WgmmaBackward,
    counting_reasons,
    passes_of,
    passes_source,
    terms_source,
)
from .head_tiles import HeadTiles, packed_head_tiles, packed_lengths
from .wgmma import logit_arguments, together

_MOST_SORTED = 192
"""Tiles of a head that a block of threads puts in order: those with the most blocks run first."""


class PackedWgmmaAttentionBackward(WgmmaBackward):
    """The gradients of attention of sequences of unlike lengths: a held tile's rows are of one, found by the offsets.

    The host reads no offset, so that a call can be captured. Rows behind a sequence's end, which come with its last
    block, are hidden: another sequence's NaN does not reach it.
    """

    op = "attention_varlen_backward"
    passes = passes_source("packed")
    function = "attention_varlen_gradient"
    terms = CudaKernel(terms_source("packed"), "varlen_row_terms")
    source = passes + terms.source

    def unsupported(self, problem: Problem, device: Device) -> Iterable[str]:
        yield from super().unsupported(problem, device)
        if not problem.sequences * problem.total_q * problem.total_k:
            yield "there is no query, no key or no sequence"
        for name in ("cu_seqlens_q", "cu_seqlens_k"):
            if not problem.traits.contiguous(name):
                yield f"{name} is not contiguous"
        most = _blocks(max(problem.total_q, problem.total_k), problem.sequences, LEAST_ROWS)
        yield from counting_reasons(problem.heads * most, problem.total_q, problem.total_k)

    def lengths(self, problem: Problem) -> tuple[int, int]:
        """Queries and keys of a sequence, in the mean."""
        return packed_lengths(problem)

    def tiles(self, problem: Problem, name: str, height: int) -> HeadTiles | None:
        """Tensors ``[tokens, heads, head_dim]``."""
        return packed_head_tiles(problem, name, height)

    def scratch(self, problem: Problem, config: Config, device: Device) -> Mapping[str, TensorSpec]:
        """Two numbers of each row of queries, in blocks of one sequence, of as many rows as stream at once."""
        shape = (problem.heads * _term_blocks(problem, config), 2, config["queries"])
        return {"terms": TensorSpec.contiguous(shape, torch.float32)}

    def launch(self, problem: Problem, config: Config, device: Device) -> Sequence[Launch]:
        blocks = _term_blocks(problem, config)
        strides = [(rows.token_stride, rows.head_stride) for rows in self.outputs(problem)]
        sizes = ("cu_seqlens_q", *strides[0], *strides[1], problem.sequences, problem.total_q, blocks)
        terms = self.terms_launch(problem, config, problem.heads * blocks * config["queries"], sizes)
        return [terms, *(self._of_pass(problem, one, config, device) for one in passes_of(problem, config))]

    def _of_pass(self, problem: Problem, one: Pass, config: Config, device: Device) -> Launch:
        offsets, totals = ("cu_seqlens_q", "cu_seqlens_k"), (problem.total_q, problem.total_k)
        if one.by_keys:
            offsets, totals = offsets[::-1], totals[::-1]
        heads = problem.kv_heads if one.by_keys else problem.heads
        tiles = _blocks(totals[0], problem.sequences, one.rows)
        all_at_once = one.by_keys or tiles <= _MOST_SORTED
        at_once = heads if all_at_once else together(problem, heads, problem.total_k)
        numbers = (problem.sequences, *totals, tiles, config["queries"], _term_blocks(problem, config), at_once)
        sizes = (*offsets, *logit_arguments(problem), *numbers)
        launch = self.pass_launch(problem, one, device, heads * tiles, sizes)
        return replace(launch, constants={**launch.constants, "MOST_SORTED": _MOST_SORTED})


def _blocks(total: int, sequences: int, size: int) -> int:
    """Blocks of ``size`` tokens for any lengths: each sequence may begin one that it does not fill."""
    return int(total // size + sequences)


def _term_blocks(problem: Problem, config: Config) -> int:
    """Blocks of terms of a head's rows."""
    return _blocks(problem.total_q, problem.sequences, config["queries"])
