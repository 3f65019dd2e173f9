"""Samplers of other projects, called on the values of the registry's op: they draw by random numbers of their own.

    python -m benchmarks.against_peers --shapes benchmarks/shapes/latents.yaml --op top_k_top_p_sampling

What to expect of an H200, written before anything was measured. The logits of 64 rows of 128256 in float32 are 33 MB, a
copy of 12 µs; a row a program reads its row from L2 about six times, at the 60 GB/s to 100 GB/s of one SM: 60 to 90 µs
for one row and for 132 alike. One row split over 64 programs, of which each keeps the 100 largest logits at most,
should take 25 to 35. torch sorts: about 150 µs for one row and 2 ms for 64, so that the registry's forms should be 5
and 20 times as fast. FlashInfer's, which rejects and draws again, should be near for batches, ahead without top_k.
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
