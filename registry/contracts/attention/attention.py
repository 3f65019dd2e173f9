"""attention of queries over keys and values, as FlashAttention 2 has it: for prefill and for training.

It takes float32, float16, bfloat16 and float64, heads beside each other in a row (``[batch, length, heads, head_dim]``,
the layout of a projection's output), with any strides. Beside the output it returns the log-sum-exp of each row, from
which its gradient is computed, and by which outputs over parts of the keys are combined.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import torch

from ...contract import Backward, Floor, Op, RowMajor, Tolerance
from ...problem import Problem
from ..rounding import FLOAT32_UNIT, fp32_weight, underflow, unit_roundoff, units
from .arguments import (
    CHOICES,
    DYNAMIC,
    KINDS,
    STATIC,
    attention_examples,
    attention_problem,
    check_attention,
    drawn,
)
from .logits import ScoredCall, grouped_product, rounded_weights, seen_pairs, weights_of

_FAR = 1e4
"""The largest logit whose rounding counts. A mask's lowest number is larger: beside it a logit vanishes."""

OF_ROUNDINGS = 4.5
"""Times the root of squares by which a sum of rounded terms may err, in roundings: each errs by 0.58 of one in the root
of the mean square, and the largest of 30 million sums by 6 times that; exponentials of halves add to it."""

_OF_EXPONENTIALS = 2.0**10
"""Roundings of fp32 by which exponentials of halves may err: a quarter of the rounding of float16."""


def attention_reference(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    mask: torch.Tensor | None = None,
    causal: bool = False,
    scale: float | None = None,
    softcap: float = 0.0,
    window: int = -1,
) -> tuple[torch.Tensor, torch.Tensor]:
    """``softmax(cap(q @ k.T * scale) + mask) @ v`` of each head: ``out`` like q, and ``lse`` [batch, heads, q_len].

    q is [batch, q_len, heads, head_dim]; k and v are [batch, kv_len, kv_heads, head_dim], and ``heads / kv_heads``
    neighbouring heads of q share one of theirs. ``scale`` is ``1 / sqrt(head_dim)`` when not given. ``cap(x)`` is
    ``softcap * tanh(x / softcap)``, Gemma 2's; ``x`` itself for a softcap of 0.

    The own key of query ``i`` is key ``i + kv_len - q_len``: the last query's is the last key, as in FlashAttention.
    With ``causal`` a query sees no key after its own. With a ``window`` of 0 or more it sees that many keys before its
    own, and, if not causal, as many after it; -1 is no limit. ``mask``, [batch or 1, heads or 1, q_len, kv_len], is
    bool, True where a key is seen, or has q's dtype and is added to the logits. It has no gradient.

    A row that sees no key has the output 0 and the lse -inf. lse, of the masked logits, is float32, of float64 inputs
    float64; it has no gradient. Halves are computed in fp32, and rounded once.
    """
    call = ScoredCall.of((q, k, v), mask, causal, scale, softcap, window)
    outs, lses = [], []
    for span in call.spans():
        weights, lse = weights_of(call.scored(span).logits)
        outs.append(grouped_product(weights, call.v))
        lses.append(lse)
    return torch.cat(outs, 2).transpose(1, 2).to(q.dtype).contiguous(), torch.cat(lses, 2).contiguous()


def attention_outputs(q: Any, *_: Any) -> list[Any]:
    """Shapes and dtypes of ``out``, as q's, and of ``lse`` [batch, heads, q_len]."""
    batch, rows, heads, _width = q.shape
    return [(q.shape, q.dtype), ((batch, heads, rows), torch.promote_types(q.dtype, torch.float32))]


def of_sum(terms: int) -> float:
    """Roundings of a sum of so many terms, and of their exponentials."""
    return 8.0 + math.sqrt(terms)


def logit_size(call: ScoredCall, logits: torch.Tensor, span: slice) -> torch.Tensor:
    """Magnitudes that the errors of logits are relative to, [batch, heads, rows, 1]: bounds of products and sums."""
    keys = call.k.norm(dim=-1).amax(-1) if call.kv_len else call.k.new_zeros(call.k.shape[:2])
    keys = keys.repeat_interleave(call.q.shape[1] // call.k.shape[1], 1)[..., None, None]
    products = call.q[:, :, span].norm(dim=-1, keepdim=True) * keys * abs(call.scale)
    top = logits.amax(-1, keepdim=True) if call.kv_len else torch.zeros_like(products)
    size: torch.Tensor = products + top.abs().nan_to_num(0.0, 0.0, 0.0).clamp(max=_FAR) + 2.0 * call.softcap
    return size


def scored_call(values: Mapping[str, Any]) -> ScoredCall:
    """The call with these arguments, by name, in float64."""
    heads = [values[name] for name in ("q", "k", "v")]
    mask, causal, scale, softcap = (values[name] for name in ("mask", "causal", "scale", "softcap"))
    return ScoredCall.of(heads, mask, causal, scale, softcap, values["window"], torch.float64)


def spread_scale(problem: Problem, reference: torch.Tensor, call: ScoredCall) -> torch.Tensor:
    """Relative to each output [batch, q_len, heads, head_dim] and to the root of its summands' squares.

    Weights of halves, of which the largest is 1 until their sum divides them, are rounded before they are multiplied
    with v, each by itself; below the normal numbers by as much as there. In fp32 a weight errs as its logit does, and a
    sum as its length.
    """
    if not call.kv_len:
        return reference.abs()
    weight, parts = fp32_weight(problem), []
    sums = of_sum(call.kv_len)
    for span in call.spans():
        logits = call.scored(span).logits
        size = logit_size(call, logits, span)
        weights, _ = weights_of(logits)
        weights = rounded_weights(weights, logits == -math.inf, problem.torch_dtype)
        spread = grouped_product(weights.square(), call.v.square()).sqrt_()
        parts.append(spread * (OF_ROUNDINGS * (1.0 - weight) + weight * (sums + 4.0 * size)))
    spread = torch.cat(parts, 2).transpose(1, 2).nan_to_num_(0.0, 0.0, 0.0)
    return reference.abs() * (2.0 - weight + weight * sums) + spread


def lse_scale(problem: Problem, reference: torch.Tensor, call: ScoredCall) -> torch.Tensor:
    """Relative to the output [batch, heads, q_len], and absolute: errors of the logits, and the relative one of a sum.

    Of halves exponentials may be approximate: torch's on CPUs err by 2**-15 of a sum.
    """
    sizes = [logit_size(call, call.scored(span).logits, span)[..., 0] for span in call.spans()]
    size = torch.cat(sizes, 2).nan_to_num_(0.0, 0.0, 0.0)
    exponentials = 0.0 if fp32_weight(problem) == 1.0 else _OF_EXPONENTIALS
    return reference.abs() + of_sum(call.kv_len) + 4.0 * size + exponentials


def _scale(problem: Problem, reference: torch.Tensor, values: Mapping[str, Any]) -> torch.Tensor:
    return spread_scale(problem, reference, scored_call(values))


def _lse_scale(problem: Problem, reference: torch.Tensor, values: Mapping[str, Any]) -> torch.Tensor:
    return lse_scale(problem, reference, scored_call(values))


def mask_bytes(problem: Problem) -> int:
    """Bytes of the inputs' mask, which has no heads."""
    each = {"none": 0, "bool": 1}.get(problem.mask, problem.torch_dtype.itemsize)
    return int(each * problem.batch * problem.q_len * problem.kv_len)


def _floor(problem: Problem) -> Floor:
    size, rows = problem.torch_dtype.itemsize, problem.batch * problem.heads * problem.q_len
    queries = rows * problem.head_dim
    keys = problem.batch * problem.kv_heads * problem.kv_len * problem.head_dim
    moved = (2 * queries + 2 * keys) * size + rows * max(4, size) + mask_bytes(problem)
    return Floor(bytes=moved, flop=4 * problem.batch * problem.heads * problem.head_dim * seen_pairs(problem))


ATTENTION = Op(
    name="attention",
    schema=(
        "attention(Tensor q, Tensor k, Tensor v, Tensor? mask=None, bool causal=False, float? scale=None,"
        " float softcap=0.0, int window=-1) -> (Tensor out, Tensor lse)"
    ),
    version=1,
    reference=attention_reference,
    fake=RowMajor(attention_outputs),
    problem=attention_problem,
    inputs=drawn,
    floor=_floor,
    tolerance=Tolerance(units(float32=2.0, half=1.1), underflow(4), _scale),
    tolerances={
        "lse": Tolerance(
            {"float32": 2 * FLOAT32_UNIT, "float64": 2 * unit_roundoff(torch.float64)}, underflow(), _lse_scale
        )
    },
    static=STATIC,
    dynamic=DYNAMIC,
    choices=CHOICES,
    kinds=KINDS,
    examples=attention_examples(),
    check=check_attention,
    independent=frozenset({"mask"}),
    numbers=frozenset({"scale", "softcap"}),
    backward=Backward(op="attention_backward", saved=("q", "k", "v", "mask", "out", "lse")),
)
