"""attention_varlen: attention within each of several sequences of unlike lengths, packed one after another.

It takes what FlashAttention's functions for variable lengths take: a prefill or a training step without padding. The
offsets are on the device and are not read by the host, so that its kernels can be captured.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from typing import Any

import torch

from ...contract import Backward, Floor, Op, RowMajor, Tolerance
from ...problem import Problem
from ..rounding import FLOAT32_UNIT, underflow, unit_roundoff, units
from ..segments import spans
from .attention import attention_reference, lse_scale, spread_scale
from .logits import ScoredCall
from .packed_lengths import PACKED_LENGTHS, packed_pairs
from .varlen_arguments import KINDS, check_varlen, check_varlen_data, varlen_examples, varlen_inputs, varlen_problem


def attention_varlen_reference(  # noqa: PLR0913, PLR0917 - the schema's arguments in order
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    cu_seqlens_q: torch.Tensor,
    cu_seqlens_k: torch.Tensor,
    causal: bool = False,
    scale: float | None = None,
    softcap: float = 0.0,
    window: int = -1,
) -> tuple[torch.Tensor, torch.Tensor]:
    """``attention`` of each sequence by itself: ``out`` [total_q, heads, head_dim] and ``lse`` [heads, total_q].

    q is [total_q, heads, head_dim]; k and v are [total_k, kv_heads, head_dim]. Queries ``cu_seqlens_q[i]`` to
    ``cu_seqlens_q[i + 1]`` and keys ``cu_seqlens_k[i]`` to ``cu_seqlens_k[i + 1]`` are those of sequence i; both
    offsets are int32 [sequences + 1]. A sequence may have no queries, no keys, or neither.

    Within a sequence, ``causal``, ``scale``, ``softcap`` and ``window`` are attention's: the own key of a sequence's
    last query is the sequence's last key. A row that sees no key has the output 0 and the lse -inf. lse is float32, of
    float64 inputs float64, and has no gradient.

    Offsets begin with 0, do not decrease and end with the number of tokens. Of others the result is unspecified, but
    nothing outside of the tensors is read or written.
    """
    return attended(q, k, v, list(sequence_bounds(q, k, cu_seqlens_q, cu_seqlens_k)), causal, scale, softcap, window)


def attended(
    q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, bounds: Sequence[tuple[slice, slice]], *attributes: Any
) -> tuple[torch.Tensor, torch.Tensor]:
    """Output and log-sum-exp of sequences with these tokens; ``attributes``: causal, scale, softcap and window."""
    parts = [
        attention_reference(q[None, rows], k[None, keys], v[None, keys], None, *attributes) for rows, keys in bounds
    ]
    before, after = bounds[0][0].start, q.shape[0] - bounds[-1][0].stop
    lses = [lse[0] for _, lse in parts]
    blank = [lses[0].new_full((q.shape[1], count), -math.inf) for count in (before, after)]
    # not written into one tensor, so that torch.func can differentiate it
    out = torch.cat(
        [q.new_zeros(before, *q.shape[1:]), *(out[0] for out, _ in parts), q.new_zeros(after, *q.shape[1:])]
    )
    return out, torch.cat([blank[0], *lses, blank[1]], 1)


def sequence_bounds(
    q: torch.Tensor, k: torch.Tensor, cu_seqlens_q: torch.Tensor, cu_seqlens_k: torch.Tensor
) -> Iterator[tuple[slice, slice]]:
    """The queries and the keys of each sequence."""
    rows, keys = spans(cu_seqlens_q, q.shape[0]), spans(cu_seqlens_k, k.shape[0])
    return ((slice(*one), slice(*other)) for one, other in zip(rows, keys, strict=True))


def _calls(values: Mapping[str, Any]) -> Iterator[tuple[slice, ScoredCall]]:
    """The queries of each sequence that has some, and its call of attention in float64."""
    q, k, v = (values[name] for name in ("q", "k", "v"))
    causal, scale, softcap, window = (values[name] for name in ("causal", "scale", "softcap", "window"))
    for rows, keys in sequence_bounds(q, k, values["cu_seqlens_q"], values["cu_seqlens_k"]):
        if rows.stop > rows.start:
            heads = q[None, rows], k[None, keys], v[None, keys]
            yield rows, ScoredCall.of(heads, None, causal, scale, softcap, window, torch.float64)


def _scale(problem: Problem, reference: torch.Tensor, values: Mapping[str, Any]) -> torch.Tensor:
    """The scale of attention's output, sequence by sequence."""
    parts = [spread_scale(problem, reference[None, rows], call)[0] for rows, call in _calls(values)]
    return torch.cat(parts)


def _lse_scale(problem: Problem, reference: torch.Tensor, values: Mapping[str, Any]) -> torch.Tensor:
    """The scale of attention's log-sum-exp, sequence by sequence."""
    parts = [lse_scale(problem, reference[None, :, rows], call)[0] for rows, call in _calls(values)]
    return torch.cat(parts, 1)


def _outputs(q: Any, *_: Any) -> list[Any]:
    rows, heads, _width = q.shape
    return [(q.shape, q.dtype), ((heads, rows), torch.promote_types(q.dtype, torch.float32))]


def _floor(problem: Problem) -> Floor:
    size, rows = problem.torch_dtype.itemsize, problem.total_q * problem.heads
    elements = 2 * (rows + problem.total_k * problem.kv_heads) * problem.head_dim
    moved = elements * size + rows * max(4, size) + 8 * (problem.sequences + 1)
    return Floor(bytes=moved, flop=4 * problem.heads * problem.head_dim * packed_pairs(problem))


ATTENTION_VARLEN = Op(
    name="attention_varlen",
    schema=(
        "attention_varlen(Tensor q, Tensor k, Tensor v, Tensor cu_seqlens_q, Tensor cu_seqlens_k, bool causal=False,"
        " float? scale=None, float softcap=0.0, int window=-1) -> (Tensor out, Tensor lse)"
    ),
    version=1,
    reference=attention_varlen_reference,
    fake=RowMajor(_outputs),
    problem=varlen_problem,
    inputs=varlen_inputs,
    floor=_floor,
    tolerance=Tolerance(units(float32=2.0, half=1.1), underflow(4), _scale),
    tolerances={
        "lse": Tolerance(
            {"float32": 2 * FLOAT32_UNIT, "float64": 2 * unit_roundoff(torch.float64)}, underflow(), _lse_scale
        )
    },
    static=frozenset({"heads", "kv_heads", "head_dim", "span", "dtype"}),
    dynamic=frozenset({"sequences", "total_q", "total_k"}),
    choices={"causal": (False, True), "softcap": (False, True)},
    distributions={"lengths": PACKED_LENGTHS},
    kinds=KINDS,
    numbers=frozenset({"scale", "softcap"}),
    examples=varlen_examples(),
    check=check_varlen,
    check_data=partial(check_varlen_data, "attention_varlen"),
    backward=Backward(
        op="attention_varlen_backward", saved=("q", "k", "v", "cu_seqlens_q", "cu_seqlens_k", "out", "lse")
    ),
)
