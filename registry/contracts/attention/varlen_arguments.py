"""Arguments of attention over packed sequences: their checks, their dimensions, and random ones of every kind."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import torch

from ...errors import InvalidArgumentError
from ...problem import Arguments, Problem, Value, dtype_name
from .. import fills
from ..checks import FLOATS, check_values, positive, shape_text
from ..segments import check_number_of
from .arguments import CAP, check_scoring, checked_heads, scoring_dims
from .logits import window_of
from .packed_lengths import drawn_lengths, offsets_of

KINDS = ("normal", "outliers", "edges", "spike_last", "constant", "empty", "beside")
"""Kinds of inputs, as of attention; empty: sequences without queries, keys, or both.

beside: the keys of the first of several sequences are NaN, and its values large, which no other sequence may read.
"""

_OFFSETS = (("cu_seqlens_q", "q"), ("cu_seqlens_k", "k"))
_MOST_TOKENS = 2**31 - 1


def varlen_problem(arguments: Arguments) -> Mapping[str, Value]:
    """The dimensions of a call. Raises InvalidArgumentError for tensors that do not go together."""
    q, k = checked_heads(
        arguments,
        ("tokens",),
        ("[total_q, heads, head_dim]", "[total_k, kv_heads, head_dim]"),
        "the tokens of all sequences one after another: {}.flatten(0, 1) of sequences of one length",
    )
    return {
        "sequences": _sequences(arguments),
        "heads": q.shape[1],
        "kv_heads": k.shape[1],
        "total_q": q.shape[0],
        "total_k": k.shape[0],
        "head_dim": q.shape[2],
        **scoring_dims(arguments),
        "dtype": dtype_name(q.dtype),
    }


def _sequences(arguments: Arguments) -> int:
    """The number of sequences. The offsets themselves, which are on the device, are not read."""
    op, first = arguments.op, arguments.tensor("cu_seqlens_q")
    for name, tokens in _OFFSETS:
        spec, total = arguments.tensor(name), arguments.tensor(tokens).shape[0]
        if spec.dtype != torch.int32:
            raise InvalidArgumentError(
                f"{op}: {name} is {dtype_name(spec.dtype)}, expected int32",
                hint=f"convert it: {name}.to(torch.int32)",
            )
        if len(spec.shape) != 1 or spec.shape[0] < 2:
            raise InvalidArgumentError(
                f"{op}: {name} has shape {shape_text(spec.shape)}, expected [sequences + 1]",
                hint="the first token of each sequence and the end of the last: of lengths [sequences],"
                " torch.nn.functional.pad(lengths.cumsum(0, dtype=torch.int32), (1, 0))",
            )
        if spec.shape != first.shape:
            raise InvalidArgumentError(
                f"{op}: cu_seqlens_q is of {first.shape[0] - 1} sequences but {name} of {spec.shape[0] - 1}",
                hint="each sequence has queries and keys, perhaps 0 of them",
            )
        if total > _MOST_TOKENS:
            raise InvalidArgumentError(
                f"{op}: {tokens} has {total} tokens", hint=f"offsets are int32: at most {_MOST_TOKENS} tokens"
            )
    return first.shape[0] - 1


def check_varlen(problem: Problem) -> None:
    """Raise InvalidArgumentError for dimensions that no call has."""
    positive(problem, "sequences", "total_q", "total_k")
    check_number_of(problem, "sequences")
    check_scoring(problem)


def check_varlen_data(op: str, values: Mapping[str, Any]) -> None:
    """Raise OutOfRangeError unless offsets go from 0 to the number of tokens without decreasing. Reads them."""
    for name, tokens in _OFFSETS:
        offsets, total = values[name], values[tokens].shape[0]
        least = offsets.roll(1)
        least[0] = 0
        wrong = offsets < least
        wrong[0] |= offsets[0] != 0
        wrong[-1] |= offsets[-1] != total
        check_values(
            op,
            name,
            offsets,
            wrong,
            f"0 at first, none less than the one before it, at last {total}, the tokens of {tokens}",
            f"tokens {name}[i] to {name}[i + 1] belong to sequence i: pass cumulated lengths, a 0 before them",
        )


def varlen_inputs(problem: Problem, kind: str, generator: torch.Generator) -> tuple[Any, ...]:
    """The schema's arguments in order."""
    dtype, width = problem.torch_dtype, problem.head_dim
    q = fills.normal((problem.total_q, problem.heads, width), dtype, generator)
    k, v = (fills.normal((problem.total_k, problem.kv_heads, width), dtype, generator) for _ in range(2))
    queries, keys = drawn_lengths(problem, generator, kind == "empty")
    offsets = offsets_of(queries, generator.device), offsets_of(keys, generator.device)
    # a number as for calls without a scale, or another one: one plan answers both
    scale = width**-0.5
    if kind == "outliers":
        # logits of thousands, whose exponentials overflow, and large values
        for x, magnitude in ((q, 200.0), (k, 200.0), (v, 1000.0)):
            fills.plant_outliers(x, magnitude, generator)
        scale = 0.11
    elif kind == "edges":
        _aim_within(problem, q, k, offsets)
    elif kind == "spike_last":
        # the last key of a sequence has most of the weight of every query that sees it
        last = (offsets[1][1:].long() - 1).clamp_min(0)
        q[..., 0], k[last, :, 0] = 4.0, 2.0 * math.sqrt(width)
        v[last] = 8.0
    elif kind == "constant":
        # exp(-64) of equal logits: without the maximum subtracted a half is lost, and every key weighs the same
        q.fill_(4.0)
        k.fill_(-16.0 / math.sqrt(width))
    elif kind == "beside" and problem.sequences > 1:
        first = (torch.arange(problem.total_k, device=k.device) < offsets[1][1])[:, None, None]
        k.masked_fill_(first, math.nan)
        v.masked_fill_(first, 1000.0)
    softcap = CAP if problem.softcap else 0.0
    return q, k, v, *offsets, problem.causal, scale, softcap, window_of(problem)


def _aim_within(problem: Problem, q: torch.Tensor, k: torch.Tensor, offsets: tuple[torch.Tensor, torch.Tensor]) -> None:
    """Make queries in turn attend to keys at the ends of what they see, or just beyond, also of another sequence."""
    window, heads = max(window_of(problem), 0), problem.heads // problem.kv_heads
    row = torch.arange(problem.total_q, device=q.device)
    # the last key of a query's sequence is the own key of the sequence's last query
    sequence = torch.searchsorted(offsets[0][1:].contiguous(), row, right=True, out_int32=True)
    ends = [each.long()[sequence.long() + 1] for each in offsets]
    around = torch.tensor((0, 1, -window, -window - 1, window, window + 1), device=q.device)
    place = (row - ends[0] + ends[1] + around[row % 6]).clamp(0, problem.total_k - 1)
    q.copy_(3.0 * k[place].repeat_interleave(heads, 1))


_SIZES = (
    # sequences, heads, kv_heads, total_q, total_k, head_dim, lengths
    (1, 1, 1, 1, 1, 8, "uniform"),
    (3, 4, 2, 75, 75, 16, "uniform"),
    (4, 3, 1, 29, 170, 20, "skewed"),
    (2, 2, 2, 82, 34, 64, "uniform"),
    (5, 6, 3, 130, 200, 40, "skewed"),
    (9, 2, 1, 5, 300, 32, "skewed"),
)
_FORMS = (
    # causal, softcap, span
    (True, False, False),
    (False, False, False),
    (True, True, 12),
    (False, False, 9),
    (False, True, 30),
)


def varlen_examples() -> tuple[Mapping[str, Value], ...]:
    """Small problems, most sizes odd, each in every dtype and in three of the forms; one in float64."""
    names = ("sequences", "heads", "kv_heads", "total_q", "total_k", "head_dim", "lengths")
    chosen = [
        (FLOATS[turn], size, _FORMS[(place + turn) % len(_FORMS)])
        for turn in range(len(FLOATS))
        for place, size in enumerate(_SIZES)
    ]
    chosen.append((torch.float64, _SIZES[1], _FORMS[0]))
    return tuple(
        {
            **dict(zip(names, size, strict=True)),
            **dict(zip(("causal", "softcap", "span"), form, strict=True)),
            "dtype": dtype_name(dtype),
        }
        for dtype, size, form in chosen
    )
