"""attention_decode: attention of each sequence's last tokens to its keys and values in a cache, in rows or in pages.

The cache is vLLM's, as ``kv_cache_append`` writes it. It has no gradient. Lengths and the table of pages are on the
device and are not read by the host: with a length beyond the room of its sequence, or a page that the cache lacks,
memory beside it is read. ``KERNEL_REGISTRY_CHECK=1`` finds such a call.
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
from ..rounding import FLOAT32_UNIT, fp32_weight, underflow, unit_roundoff, units
from .attention import attention_outputs
from .decode_checks import KV_DTYPES, check_decode, check_decode_data, decode_problem
from .decode_inputs import INT8, KINDS, decode_inputs
from .decode_lengths import LENGTHS, keys_read, pairs_seen
from .logits import rounded_weights
from .weighed_rows import logit_errors, of_groups, weighed_rows, weighted_means


def attention_decode_reference(  # noqa: PLR0913, PLR0917 - the schema's arguments in order
    q: torch.Tensor,
    k_cache: torch.Tensor,
    v_cache: torch.Tensor,
    kv_lens: torch.Tensor,
    block_table: torch.Tensor | None = None,
    k_scale: torch.Tensor | None = None,
    v_scale: torch.Tensor | None = None,
    scale: float | None = None,
    softcap: float = 0.0,
    window: int = -1,
) -> tuple[torch.Tensor, torch.Tensor]:
    """``out`` [batch, q_len, heads, head_dim], ``softmax(logits) @ v``, and ``lse`` [batch, heads, q_len].

    q is ``[batch, q_len, heads, head_dim]``; the caches are ``[batch, kv_len, kv_heads, head_dim]``, or with a
    block_table ``[blocks, page, kv_heads, head_dim]``: key ``j`` of sequence ``b`` is in slot ``j % page`` of block
    ``block_table[b, j // page]``. kv_lens ``[batch]`` and block_table ``[batch, max_blocks]`` are int32. Heads of q in
    groups of ``heads / kv_heads`` share a head of the cache. Caches are in the dtype of q, or float8_e4m3fn or int8,
    and then times k_scale or v_scale, float32 of one element: one scale for all tokens and heads, without a zero point.

    The q_len tokens are the last of the kv_lens[b] of their sequence: token ``i`` is at ``p = kv_lens[b] - q_len + i``
    and sees keys 0 to ``p``, with a ``window`` of at least 0 only ``p - window`` to ``p``. Logits are
    ``scale * (q @ k)``, by default ``head_dim ** -0.5``; with a softcap above 0 ``softcap * tanh(logits / softcap)``.

    lse is the natural logarithm of the sum of exponentials of a row's logits, float32, of float64 q float64. A token
    that sees no key, such as all of an empty sequence, has the output 0 and the lse -inf. Nothing behind a sequence's
    length matters, whatever is there. Halves are computed in fp32 and rounded once.
    """
    rows = weighed_rows(q, k_cache, v_cache, kv_lens, block_table, k_scale, v_scale, scale, softcap, window)
    out = of_groups(rows.weights, rows.values).permute(0, 3, 1, 2, 4).flatten(2, 3)
    return out.to(q.dtype).contiguous(), rows.lse.flatten(1, 2)


def _floor(problem: Problem) -> Floor:
    size = problem.torch_dtype.itemsize
    cell = size if problem.kv_dtype == "auto" else 1
    keys, rows = keys_read(problem), problem.batch * problem.q_len * problem.heads
    pages = -(-keys // problem.page) if problem.page else 0
    moved = 2 * keys * problem.kv_heads * problem.head_dim * cell
    moved += rows * (2 * problem.head_dim * size + max(4, size)) + 4 * (problem.batch + pages)
    return Floor(bytes=moved, flop=4 * pairs_seen(problem) * problem.heads * problem.head_dim)


def weighing_scale(
    problem: Problem, values: Mapping[str, Any], of_logits: torch.Tensor, dtype: torch.dtype
) -> torch.Tensor:
    """The weighted mean of the magnitudes of the values, times the errors of weights and sums in roundings.

    ``of_logits``: the errors of logits, [batch, heads, q_len].

    Weights of halves are rounded to ``dtype`` before their product with the values, below the normal numbers by as much
    as there; each errs by as much as its logit, which also cancels in part in the quotient by their sum. In fp32 also
    the roundings of the sum.
    """
    wide = {**values, "q": values["q"].double(), "k_cache": values["k_cache"].double()}
    wide["v_cache"] = values["v_cache"].double().abs()
    rows = weighed_rows(**wide)
    roundings = 16.0 + math.sqrt(problem.kv_len) + 2.0 * of_logits.transpose(1, 2)[..., None]
    scale = weighted_means(rows.weights, rows) * (fp32_weight(problem) * roundings)
    if problem.torch_dtype.itemsize > 2:
        return scale
    return scale + weighted_means(rounded_weights(rows.weights, ~rows.seen, dtype), rows)


def _out_scale(problem: Problem, reference: torch.Tensor, values: Mapping[str, Any]) -> torch.Tensor:
    # float8 and int8 are exact in float16, to which they are converted fast
    dtype = problem.torch_dtype if problem.kv_dtype == "auto" else torch.float16
    return reference.abs() + weighing_scale(problem, values, logit_errors(values), dtype)


def _lse_scale(problem: Problem, reference: torch.Tensor, values: Mapping[str, Any]) -> torch.Tensor:
    """Relative to the output, and absolute: the relative error of a sum is the absolute one of its logarithm."""
    return reference.abs() + 16.0 + math.sqrt(problem.kv_len) + logit_errors(values)


def _examples() -> tuple[Mapping[str, Value], ...]:
    """Small problems, most of them odd, and one in float64."""
    names = ("batch", "heads", "kv_heads", "q_len", "kv_len", "head_dim", "page", "span", "softcap", "lengths")
    shapes = (
        (2, 4, 2, 1, 72, 16, False, False, False, "full"),
        (3, 6, 2, 3, 160, 20, 16, False, True, "uniform"),
        (5, 3, 3, 1, 96, 32, 4, 41, False, "skewed"),
        (1, 8, 1, 2, 131, 64, False, 1, False, "full"),
    )
    every = [*itertools.product(FLOATS, KV_DTYPES, shapes), (torch.float64, "auto", shapes[1])]
    return tuple(
        {**dict(zip(names, each, strict=True)), "kv_dtype": kind, "dtype": dtype_name(dtype)}
        for dtype, kind, each in every
    )


ATTENTION_DECODE = Op(
    name="attention_decode",
    schema=(
        "attention_decode(Tensor q, Tensor k_cache, Tensor v_cache, Tensor kv_lens, Tensor? block_table=None,"
        " Tensor? k_scale=None, Tensor? v_scale=None, float? scale=None, float softcap=0.0, int window=-1)"
        " -> (Tensor out, Tensor lse)"
    ),
    version=1,
    reference=attention_decode_reference,
    fake=RowMajor(attention_outputs),
    problem=decode_problem,
    inputs=decode_inputs,
    floor=_floor,
    tolerance=Tolerance(units(float32=2.0, half=1.1), underflow(4), _out_scale),
    tolerances={
        "lse": Tolerance(
            {"float32": 2 * FLOAT32_UNIT, "float64": 2 * unit_roundoff(torch.float64)}, underflow(), _lse_scale
        )
    },
    static=frozenset({"heads", "kv_heads", "q_len", "head_dim", "page", "span", "dtype"}),
    dynamic=frozenset({"batch", "kv_len"}),
    choices={"kv_dtype": KV_DTYPES, "softcap": (False, True)},
    added={"kv_dtype": (INT8,)},
    independent=frozenset({"k_cache", "v_cache"}),
    numbers=frozenset({"scale", "softcap"}),
    distributions={"lengths": LENGTHS},
    kinds=KINDS,
    examples=_examples(),
    check=check_decode,
    check_data=check_decode_data,
)
