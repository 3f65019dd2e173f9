"""Strides of tensors of heads, by which kernels read queries and keys that are parts of a fused tensor."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from typing import NamedTuple

from ..problem import Problem, TensorSpec


def head_strides(problem: Problem, name: str, heads: int, tokens: str) -> tuple[int, int] | None:
    """Elements from a token to the next, and from a head to the next, of tensor ``name`` of a problem.

    Its dimensions are those of tensor ``tokens``, then ``heads * head_dim`` as one or two. None unless tokens are
    evenly spaced and the elements of a head are neighbours.
    """
    head_dim = problem.head_dim
    traits = problem.traits
    # arguments are not read for the usual layout: a reader of them is asked anew for each size
    if traits.contiguous(name) or (arguments := traits.arguments) is None:
        return heads * head_dim, head_dim
    spec, leading = arguments.tensor(name), len(arguments.tensor(tokens).shape)
    token = _stride_of(spec, leading, heads * head_dim)
    if len(spec.shape) == leading + 1:
        return None if token is None or (spec.strides[-1] != 1 and spec.shape[-1] > 1) else (token, head_dim)
    head = spec.strides[-2] if heads > 1 else head_dim
    return None if token is None or (spec.strides[-1] != 1 and head_dim > 1) else (token, head)


def head_reasons(problem: Problem, tokens: str, heads: Mapping[str, int]) -> Iterator[str]:
    """Why a kernel cannot read tensors of so many ``heads`` each, by name, beside a tensor of one element a token."""
    if not problem.traits.contiguous(tokens):
        yield f"{tokens} is not contiguous"
    for name, count in heads.items():
        if head_strides(problem, name, count, tokens) is None:
            yield f"the tokens of {name} are not evenly spaced, or the elements of its heads are not neighbours"


def row_stride(problem: Problem, name: str, cols: int) -> int | None:
    """Elements from a row of matrix ``name`` to the next; None unless the elements of a row are neighbours."""
    traits = problem.traits
    if traits.contiguous(name) or (arguments := traits.arguments) is None:
        return cols
    spec = arguments.tensor(name)
    return spec.strides[0] if spec.strides[1] == 1 or cols == 1 else None


def outer_strides(problem: Problem, name: str, inner: Sequence[int]) -> tuple[int, ...] | None:
    """Strides of tensor ``name``, of any size times ``inner``, without the last; None unless that is 1."""
    traits = problem.traits
    if traits.contiguous(name) or (arguments := traits.arguments) is None:
        return tuple(math.prod(inner[place:]) for place in range(len(inner)))
    strides = arguments.tensor(name).strides
    return strides[:-1] if strides[-1] == 1 or inner[-1] == 1 else None


def _stride_of(spec: TensorSpec, leading: int, row: int) -> int | None:
    """The stride of the first ``leading`` dimensions as one; None if they have no single one."""
    found, reach = None, 0
    for size, stride in zip(reversed(spec.shape[:leading]), reversed(spec.strides[:leading]), strict=True):
        if size == 1:
            continue
        if found is not None and stride != reach:
            return None
        found = stride if found is None else found
        reach = stride * size
    return row if found is None else found


class TokenStrides(NamedTuple):
    """How tokens lie in tensors of heads, in sequences of ``length`` tokens; of contiguous tensors one has them all.

    places  elements from a sequence, and from a token of it, to the next, of the tensor of one element a token
    heads   by name, elements from a sequence, a token of it and a head to the next
    """

    length: int
    places: tuple[int, int]
    heads: Mapping[str, tuple[int, int, int]]


def token_strides(problem: Problem, tokens: str, heads: Mapping[str, int]) -> TokenStrides | str:
    """The strides of tensors of so many ``heads`` each, by name, beside tensor ``tokens`` of one element a token.

    Tokens of the last of their dimensions are a sequence, so that heads may lie before tokens: ``[batch, heads, seq,
    head_dim]``, transposed. The reason if a tensor has no such strides.
    """
    traits, head_dim = problem.traits, problem.head_dim
    arguments = traits.arguments
    # arguments are not read for the usual layout: a reader of them is asked anew for each size
    if arguments is None or all(traits.contiguous(name) for name in (tokens, *heads)):
        return TokenStrides(
            problem.tokens, (0, 1), {name: (0, count * head_dim, head_dim) for name, count in heads.items()}
        )
    index = arguments.tensor(tokens)
    leading, found = len(index.shape), {}
    length = index.shape[-1] if leading else 1
    of_index = _sequence_strides(index, leading, length, 1)
    if of_index is None:
        return f"the sequences of {tokens} are not evenly spaced"
    for name, count in heads.items():
        spec = arguments.tensor(name)
        strides = _sequence_strides(spec, leading, length, count * head_dim)
        if strides is None or (spec.strides[-1] != 1 and spec.shape[-1] > 1):
            return f"the sequences of {name} are not evenly spaced, or the elements of its heads are not neighbours"
        found[name] = (*strides, spec.strides[-2] if len(spec.shape) == leading + 2 else head_dim)
    return TokenStrides(length, of_index, found)


def _sequence_strides(spec: TensorSpec, leading: int, length: int, row: int) -> tuple[int, int] | None:
    """The stride of all but the last of ``leading`` dimensions as one, and that of the last."""
    if not leading:
        return 0, row
    outer = _stride_of(spec, leading - 1, length * row)
    return None if outer is None else (outer, spec.strides[leading - 1])
