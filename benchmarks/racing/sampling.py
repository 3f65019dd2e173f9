"""Samplers of other projects, called on the values of the registry's op: they draw by random numbers of their own.

    python -m benchmarks.racing.implementations --op top_k_top_p_sampling
    python -m benchmarks.against_peers --shapes benchmarks/shapes/latents.yaml --op top_k_top_p_sampling

What an H200 was seen to take with top_k and top_p, in float32: one row of 128256 77 µs in Triton's parts, 64 rows 202
µs in Triton's loop, where torch sorts in 84 and more. The logits of 64 rows are 33 MB, a copy of 12 µs. A row a
program reads its row, or copies of its keys, from L2 six times or more, at the 60 GB/s to 100 GB/s of one SM, and
each round of its search waits for memory that it has just written. In parts, a search of up to eight rounds of 16
buckets was followed by one program that joined 64 lists one after the other, a microsecond each, and searches again;
it now takes some of each list at a time, which should leave 40 of the 77.

What to expect of cuda.cluster, written before it was measured: a row is read once, to the shared memory of 8 or 16
blocks, and a histogram of 512 bins over the 32 below the greatest logit leaves a short list; four or five meetings of
the blocks at about 0.5 µs, steps of 0.3 to 1 µs between them. In µs, tuned, float32 with both filters, for 1, 16, 64
and 256 rows of 32000: 8, 8, 10, 20; of 128256: 11, 13, 25, 75; of 151936: 12, 14, 28, 90. 64 rows of 128256 in
bfloat16: 18. With top_p alone, where hundreds of logits or more are kept: 5 more for one row and 15 for 64. Without
filters: 8 and 18. FlashInfer's, which rejects and draws again, takes 20 to 40 by what others report.
"""

from __future__ import annotations

import importlib
from typing import Any

import torch

from registry import Problem

from .device_timing import Call


def flashinfer(problem: Problem, _: tuple[Any, ...]) -> Call:
    """FlashInfer's filters one after the other, as the op has them: for both, a mask and a softmax come first."""
    sampling = importlib.import_module("flashinfer").sampling
    if problem.top_k and problem.top_p:
        return lambda logits, _, top_k, top_p: sampling.top_k_top_p_sampling_from_logits(logits, top_k, top_p)
    if problem.top_k or problem.top_p:
        draw = sampling.top_k_sampling_from_probs if problem.top_k else sampling.top_p_sampling_from_probs
        return lambda logits, _, top_k, top_p: draw(logits.float().softmax(-1), top_k if problem.top_k else top_p)
    return lambda logits, *_: sampling.sampling_from_logits(logits)


def exponential_race(problem: Problem, _: tuple[Any, ...]) -> Call:
    """The largest quotient of a probability and an exponential number, as vLLM draws without filters."""
    if problem.top_k or problem.top_p:
        raise ValueError("with filters it sorts, as torch.native does")

    def call(logits: torch.Tensor, *_: object) -> torch.Tensor:
        probabilities = logits.float().softmax(-1)
        return probabilities.div_(torch.empty_like(probabilities).exponential_()).argmax(-1)

    return call
