"""attention_backward on Hopper's warpgroup tensor cores: a batch of sequences of one length."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

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
from .head_tiles import HeadTiles, head_tiles
from .wgmma import logit_arguments, together

_SHORT_HEAD, _LONG = 64, 4096
"""Elements of a head and tokens of a sequence beyond and from which cuDNN's gradients are expected to be faster."""


class WgmmaAttentionBackward(WgmmaBackward):
    """The gradients of attention of a batch of sequences of one length."""

    op = "attention_backward"
    passes = passes_source("batch")
    function = "attention_gradient"
    terms = CudaKernel(terms_source("batch"), "row_terms")
    source = passes + terms.source

    def unsupported(self, problem: Problem, device: Device) -> Iterable[str]:
        yield from super().unsupported(problem, device)
        if problem.mask != "none":
            yield "it takes no mask"
        if not problem.batch * problem.q_len * problem.kv_len:
            yield "there is no query or no key"
        longest = -(-max(problem.q_len, problem.kv_len) // LEAST_ROWS)
        yield from counting_reasons(problem.batch * problem.heads * longest, problem.q_len, problem.kv_len)

    def preference(self, problem: Problem, device: Device) -> float:
        """Behind cuDNN for long sequences of long heads: of 8192 tokens 3 to 9% on an H200, of 2048 8% ahead."""
        is_behind = problem.head_dim > _SHORT_HEAD and min(self.lengths(problem)) >= _LONG
        return 1.4 if is_behind else super().preference(problem, device)

    def lengths(self, problem: Problem) -> tuple[int, int]:
        """Queries and keys of a sequence."""
        return problem.q_len, problem.kv_len

    def tiles(self, problem: Problem, name: str, height: int) -> HeadTiles | None:
        """Tensors ``[batch, length, heads, head_dim]``."""
        return head_tiles(problem, name, height)

    def scratch(self, problem: Problem, config: Config, device: Device) -> Mapping[str, TensorSpec]:
        """Two numbers of each row of queries, in blocks of as many as stream at once."""
        shape = (problem.batch * problem.heads * _term_blocks(problem, config), 2, config["queries"])
        return {"terms": TensorSpec.contiguous(shape, torch.float32)}

    def launch(self, problem: Problem, config: Config, device: Device) -> Sequence[Launch]:
        heads, blocks = problem.batch * problem.heads, _term_blocks(problem, config)
        strides = [(rows.batch_stride, rows.token_stride, rows.head_stride) for rows in self.outputs(problem)]
        sizes = (*strides[0], *strides[1], problem.q_len, blocks, heads)
        terms = self.terms_launch(problem, config, heads * blocks * config["queries"], sizes)
        return [terms, *(self._of_pass(problem, one, config, device) for one in passes_of(problem, config))]

    def _of_pass(self, problem: Problem, one: Pass, config: Config, device: Device) -> Launch:
        lengths, heads = self.lengths(problem), problem.batch * problem.heads
        at_once = together(problem, heads, problem.kv_len)
        if one.by_keys:
            lengths, heads = lengths[::-1], problem.batch * problem.kv_heads
            at_once = heads
        blocks = -(-lengths[0] // one.rows)
        terms = config["queries"], _term_blocks(problem, config)
        sizes = (*logit_arguments(problem), *lengths, blocks, *terms, heads, at_once)
        return self.pass_launch(problem, one, device, heads * blocks, sizes)


def _term_blocks(problem: Problem, config: Config) -> int:
    """Blocks of terms of a head's rows."""
    return -(-int(problem.q_len) // int(config["queries"]))
