"""mla_decode: DeepSeek's latent attention of each sequence's last token to a cache of latent vectors.

The absorbed form: the projection of keys is multiplied into the queries, that of values follows the op, and all heads
share one latent vector a token. Its cache is FlashMLA's and vLLM's: the normalised latent and, behind it, the rotated
part of the key. It has no gradient. Lengths and the table of pages are on the device and are not read by the host:
with a length beyond the room of its sequence, or a page that the cache lacks, memory beside it is read.
``KERNEL_REGISTRY_CHECK=1`` finds such a call.
Source: DeepSeek-AI, "DeepSeek-V2: A Strong, Economical, and Efficient Mixture-of-Experts Language Model" (2024), 2.1.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping
from typing import Any

import torch

from ...contract import Floor, Op, RowMajor, Tolerance
from ...problem import Problem, Value, dtype_name
from ..checks import FLOATS
from ..rounding import FLOAT32_UNIT, underflow, unit_roundoff, units
from .decode import weighing_scale
from .decode_lengths import LENGTHS, lengths_of
from .mla_arguments import KINDS, check_mla, check_mla_data, mla_inputs, mla_problem
from .weighed_rows import logit_errors, of_groups, weighed_rows


def mla_decode_reference(
    q: torch.Tensor,
    kv_cache: torch.Tensor,
    kv_lens: torch.Tensor,
    kv_lora_rank: int,
    scale: float,
    block_table: torch.Tensor | None = None,
) -> tuple[torch.Tensor, torch.Tensor]:
    """``out`` [batch, heads, kv_lora_rank], ``softmax(scale * q @ keys) @ keys[:, :kv_lora_rank]``, and ``lse``.

    q is ``[batch, heads, kv_lora_rank + rope_dim]``: what is multiplied with the latent, then the rotated part. The
    cache is ``[batch, kv_len, kv_lora_rank + rope_dim]``, or with a block_table
    ``[blocks, page, kv_lora_rank + rope_dim]``: token ``j`` of sequence ``b`` is in slot ``j % page`` of block
    ``block_table[b, j // page]``. Its first kv_lora_rank elements are the values. kv_lens ``[batch]`` and block_table
    ``[batch, max_blocks]`` are int32; q and cache have one dtype. The scale has no default: a model's is that of its
    heads before absorption, ``(qk_nope_head_dim + qk_rope_head_dim) ** -0.5``, DeepSeek-V3's 192 ** -0.5 times the
    square of its YaRN factor, and neither follows from the shapes.

    lse ``[batch, heads]`` is the natural logarithm of the sum of exponentials of a row's logits, float32, of float64
    float64. An empty sequence has the output 0 and the lse -inf. Nothing behind a sequence's length matters, whatever
    is there. Halves are computed in fp32 and rounded once.
    """
    rows = weighed_rows(**_as_decode(q, kv_cache, kv_lens, kv_lora_rank, scale, block_table))
    out = of_groups(rows.weights, rows.values).flatten(1, 3)
    return out.to(q.dtype).contiguous(), rows.lse.flatten(1)


def _as_decode(
    q: torch.Tensor,
    kv_cache: torch.Tensor,
    kv_lens: torch.Tensor,
    kv_lora_rank: int,
    scale: float,
    block_table: torch.Tensor | None,
) -> dict[str, Any]:
    """attention_decode's arguments by name: one token, one head of keys, and values that are a part of the keys."""
    cache = kv_cache.unsqueeze(2)
    return {
        "q": q.unsqueeze(1),
        "k_cache": cache,
        "v_cache": cache[..., :kv_lora_rank],
        "kv_lens": kv_lens,
        "block_table": block_table,
        "k_scale": None,
        "v_scale": None,
        "scale": scale,
        "softcap": 0.0,
        "window": -1,
    }


def _outputs(q: Any, _cache: Any, _lens: Any, kv_lora_rank: int, *_: Any) -> list[Any]:
    batch, heads, _width = q.shape
    return [((batch, heads, kv_lora_rank), q.dtype), ((batch, heads), torch.promote_types(q.dtype, torch.float32))]


def _floor(problem: Problem) -> Floor:
    size, rank, width = problem.torch_dtype.itemsize, problem.kv_lora_rank, problem.kv_lora_rank + problem.rope_dim
    lengths = lengths_of(problem)
    pages = sum(-(-length // problem.page) for length in lengths) if problem.page else 0
    rows = problem.batch * problem.heads
    moved = (sum(lengths) * width + rows * (width + rank)) * size + rows * max(4, size) + 4 * (problem.batch + pages)
    return Floor(bytes=moved, flop=2 * sum(lengths) * problem.heads * (width + rank))


def _out_scale(problem: Problem, reference: torch.Tensor, values: Mapping[str, Any]) -> torch.Tensor:
    named = _as_decode(**values)
    return reference.abs() + weighing_scale(problem, named, _logit_errors(named), problem.torch_dtype).squeeze(1)


def _logit_errors(named: Mapping[str, Any]) -> torch.Tensor:
    """``logit_errors`` of rows that are long: of halves tensor cores add 16 products at a time and cut off.

    Instead of rounding, which errs both ways: products of one sign lose up to a unit in the last place, two roundings,
    a step.
    """
    q = named["q"]
    rounded = math.sqrt(q.shape[-1]) / 2
    return logit_errors(named, max(rounded, q.shape[-1] / 8) if q.dtype.itemsize == 2 else rounded)


def _lse_scale(problem: Problem, reference: torch.Tensor, values: Mapping[str, Any]) -> torch.Tensor:
    """Relative to the output, and absolute: the relative error of a sum is the absolute one of its logarithm."""
    return reference.abs() + 16.0 + math.sqrt(problem.kv_len) + _logit_errors(_as_decode(**values)).squeeze(-1)


def _examples() -> tuple[Mapping[str, Value], ...]:
    """Small problems, most of them odd, and one in float64."""
    names = ("batch", "heads", "kv_len", "kv_lora_rank", "rope_dim", "page", "lengths")
    shapes = (
        (2, 4, 72, 32, 16, False, "full"),
        (3, 6, 160, 40, 8, 16, "uniform"),
        (5, 17, 96, 16, 4, 4, "skewed"),
        (1, 3, 131, 24, 20, False, "full"),
    )
    every = [*itertools.product(FLOATS, shapes), (torch.float64, shapes[1])]
    return tuple({**dict(zip(names, each, strict=True)), "dtype": dtype_name(dtype)} for dtype, each in every)


MLA_DECODE = Op(
    name="mla_decode",
    schema=(
        "mla_decode(Tensor q, Tensor kv_cache, Tensor kv_lens, int kv_lora_rank, float scale,"
        " Tensor? block_table=None) -> (Tensor out, Tensor lse)"
    ),
    version=1,
    reference=mla_decode_reference,
    fake=RowMajor(_outputs),
    problem=mla_problem,
    inputs=mla_inputs,
    floor=_floor,
    tolerance=Tolerance(units(float32=2.0, half=1.1), underflow(4), _out_scale),
    tolerances={
        "lse": Tolerance(
            {"float32": 2 * FLOAT32_UNIT, "float64": 2 * unit_roundoff(torch.float64)}, underflow(), _lse_scale
        )
    },
    static=frozenset({"heads", "kv_lora_rank", "rope_dim", "page", "dtype"}),
    dynamic=frozenset({"batch", "kv_len"}),
    distributions={"lengths": LENGTHS},
    kinds=KINDS,
    numbers=frozenset({"scale"}),
    examples=_examples(),
    check=check_mla,
    check_data=check_mla_data,
)
