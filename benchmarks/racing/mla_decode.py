"""FlashInfer's latent attention, called on the values of the registry's op.

    python -m benchmarks.against_peers --shapes benchmarks/shapes/latents.yaml --op mla_decode

What to expect of an H200, written before anything was measured. A token of the cache, 1152 bytes, takes 278528 FLOP
with 128 heads: 242 for each byte, where the device has about 200. So with 128 heads the products bound it: 64
sequences of 8192 tokens are 146 GFLOP, 221 µs at the 660 TFLOP/s that FlashMLA reports of an H800, and Triton's tiles
of 64 heads should take 300 to 400; the copy of their 604 MB takes about 145. With the 16 heads of one of eight GPUs
the cache bounds it: about 0.8 of the copy. One sequence of 8192 tokens is two launches of 10 to 15 µs together, where
the copy of its 9.4 MB takes 4.

What an H200 took: 526 µs for those 64 sequences, and the compiled kernel says why. Triton gives all warps of a
product whose result another product takes to its rows. A tile has 64 rows, which are one warpgroup's, so that both
warpgroups of a program multiply the same queries and latents: of 278528 FLOP a token of the cache 147456 are done
twice. They are instructions of 64 by 16 by 16 (of 32 columns with steps of 64 tokens), which read 2.5 KB of shared
memory at 128 bytes a cycle: 20 cycles, for 8 of the tensor cores. A step of 32 tokens is 72 of these in each
warpgroup, 2880 cycles, and 490 for the weighted sum: 256 steps take 490 µs at 1.76 GHz.

No form in Triton's language was found that does better than the steps of 64 tokens, by the same count 325 µs and the
softmax: one warpgroup has no registers for 64 rows of 512 sums; 128 rows with half of the columns multiply the
queries as often; logits that are carried to the next iteration, so that no product takes them where they are made,
need the latents loaded twice, and two tiles of 64 heads read them twice from L2 already. What is needed is one set of
logits, in shared memory, that two warpgroups take for 256 columns each, as FlashMLA has it: a kernel in CUDA C++.
"""

from __future__ import annotations

import importlib
from typing import Any

import torch

from registry import Problem

from .device_timing import Call


def flashinfer(problem: Problem, values: tuple[Any, ...]) -> Call:
    """FlashInfer's kernel for pages, planned for these lengths before anything is timed.

    It takes latents and rotated parts as tensors of their own, which are made at the first call of each copy.
    """
    if not problem.page:
        raise ValueError("FlashInfer's latent attention takes pages")
    q, _, lengths, rank, scale, table = values
    pages = torch.div(lengths + problem.page - 1, problem.page, rounding_mode="floor")
    ends = torch.nn.functional.pad(pages.cumsum(0), (1, 0)).to(torch.int32)
    begun = torch.arange(table.shape[1], device=table.device) < pages[:, None]
    rows = torch.arange(problem.batch + 1, dtype=torch.int32, device=q.device)
    workspace = torch.empty(2**28, dtype=torch.uint8, device=q.device)
    wrapper = importlib.import_module("flashinfer").mla.BatchMLAPagedAttentionWrapper(workspace)
    sizes = (problem.heads, rank, problem.rope_dim, problem.page)
    wrapper.plan(rows, ends, table[begun], lengths, *sizes, False, scale, q.dtype, q.dtype)
    apart: dict[int, tuple[torch.Tensor, ...]] = {}

    def call(q: torch.Tensor, cache: torch.Tensor, *_: object) -> Any:
        if cache.data_ptr() not in apart:
            parts = (q[..., :rank], q[..., rank:], cache[..., :rank], cache[..., rank:])
            apart[cache.data_ptr()] = tuple(part.contiguous() for part in parts)
        return wrapper.run(*apart[cache.data_ptr()], return_lse=True)

    return call
