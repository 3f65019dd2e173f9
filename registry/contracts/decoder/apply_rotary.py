"""apply_rotary: rotates the heads of queries and keys by angles of their positions (Su et al., 2021), into new tensors.

Its arguments are those of ``rotary_embedding``, of vLLM, and of FlashInfer's ``apply_rope_with_cos_sin_cache``. Queries
and keys are not written to, and have a gradient: the rotation by the opposite angles. The table has none.

A position must be one of the table's rows. Positions are on the device and are not read: with one outside of the table,
memory outside of it is read. ``KERNEL_REGISTRY_CHECK=1`` finds such a call.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import Any

import torch

from ...contract import Backward, Floor, Op, RowMajor, Tolerance
from ...problem import Arguments, Problem, Value
from ..rounding import underflow, units
from .rotary_embedding import (
    KINDS,
    STYLES,
    check_positions,
    check_rotation,
    cosines_and_sines,
    heads_of,
    pair_scale,
    rotary_examples,
    rotary_inputs,
    rotation_dims,
    table_elements,
)

_NAME = "apply_rotary"
_BACKWARD = "apply_rotary_backward"
_GRADIENTS = ("grad_rotated_query", "grad_rotated_key")


def apply_rotary_reference(
    positions: torch.Tensor,
    query: torch.Tensor,
    key: torch.Tensor,
    head_size: int,
    cos_sin_cache: torch.Tensor,
    is_neox: bool = True,
) -> tuple[torch.Tensor, torch.Tensor]:
    """``(a cos - b sin, b cos + a sin)`` for all pairs ``(a, b)`` of the first ``rotary_dim`` elements of each head.

    positions is int64 or int32 ``[...]``, such as ``[tokens]`` or ``[batch, seq]``; query is ``[..., heads *
    head_size]`` or ``[..., heads, head_size]``, key likewise with ``kv_heads``, which may be 0; of tensors with heads
    before tokens give a view, ``query.transpose(1, 2)``. cos_sin_cache is ``[max_position, rotary_dim]``: the cosines
    of a position's angles, then their sines, in the dtype of query or in float32. Elements from ``rotary_dim`` on are
    copied. The results are row-major, in the shapes of query and key. Halves are rotated in fp32, each result rounded
    once.
    """
    cos, sin = cosines_and_sines(positions, cos_sin_cache, torch.promote_types(query.dtype, torch.float32))
    rotated = [_turned(x, heads_of(x, positions, head_size), cos, sin, is_neox) for x in (query, key)]
    return rotated[0], rotated[1]


def apply_rotary_backward_reference(
    grad_rotated_query: torch.Tensor,
    grad_rotated_key: torch.Tensor,
    positions: torch.Tensor,
    cos_sin_cache: torch.Tensor,
    head_size: int,
    is_neox: bool = True,
    need_query: bool = True,
    need_key: bool = True,
) -> tuple[torch.Tensor, torch.Tensor]:
    """The gradients of query and key from those of the rotated ones: ``(a cos + b sin, b cos - a sin)``.

    Shapes are those of ``apply_rotary``. A gradient that is not needed is an empty tensor.
    """
    wide = torch.promote_types(grad_rotated_query.dtype, torch.float32)
    cos, sin = cosines_and_sines(positions, cos_sin_cache, wide)
    given = ((grad_rotated_query, need_query), (grad_rotated_key, need_key))
    made = [
        _turned(x, heads_of(x, positions, head_size), cos, -sin, is_neox) if needed else x.new_empty(0)
        for x, needed in given
    ]
    return made[0], made[1]


def _turned(x: torch.Tensor, heads: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor, is_neox: bool) -> torch.Tensor:
    """A row-major tensor with the shape of ``x``: its ``heads`` rotated."""
    half = cos.shape[-1]
    part, rest = heads[..., : 2 * half].to(cos.dtype), heads[..., 2 * half :]
    a, b = part.chunk(2, -1) if is_neox else (part[..., ::2], part[..., 1::2])
    pairs = (a * cos - b * sin, b * cos + a * sin)
    turned = torch.cat(pairs, -1) if is_neox else torch.stack(pairs, -1).flatten(-2)
    return torch.cat((turned.to(x.dtype), rest), -1).reshape(x.shape).contiguous()


def _outputs(_positions: Any, query: Any, key: Any, *_: Any) -> list[Any]:
    return [(query.shape, query.dtype), (key.shape, key.dtype)]


def _backward_outputs(
    query: Any, key: Any, _positions: Any, _table: Any, _size: Any, _neox: Any = True, need_query: bool = True,
    need_key: bool = True,
) -> list[Any]:  # fmt: skip
    given = ((query, need_query), (key, need_key))
    return [(x.shape if needed else (0,), x.dtype) for x, needed in given]


def _backward_problem(arguments: Arguments) -> Mapping[str, Value]:
    return rotation_dims(arguments, *_GRADIENTS)


def _backward_inputs(problem: Problem, kind: str, generator: torch.Generator) -> tuple[Any, ...]:
    positions, query, key, head_size, table, is_neox = rotary_inputs(problem, kind, generator)
    return query, key, positions, table, head_size, is_neox, True, True


def _floor(problem: Problem) -> Floor:
    tokens, size, heads = problem.tokens, problem.torch_dtype.itemsize, problem.heads + problem.kv_heads
    moved = 2 * tokens * heads * problem.head_dim + table_elements(problem)
    return Floor(bytes=moved * size + 8 * tokens, flop=3 * tokens * heads * problem.rotary_dim)


_FIELDS: Mapping[str, Any] = {
    "version": 1,
    "floor": _floor,
    "tolerance": Tolerance(units(float32=1.1, half=1.1), underflow(4), pair_scale),
    "static": frozenset({"heads", "kv_heads", "head_dim", "rotary_dim", "dtype"}),
    "dynamic": frozenset({"tokens"}),
    "choices": {"style": STYLES},
    "kinds": KINDS,
    "examples": rotary_examples(),
    "check": check_rotation,
    "independent": frozenset({"positions"}),
    "weights": frozenset({"cos_sin_cache"}),
}

APPLY_ROTARY = Op(
    name=_NAME,
    schema=f"{_NAME}(Tensor positions, Tensor query, Tensor key, int head_size, Tensor cos_sin_cache,"
    " bool is_neox=True) -> (Tensor rotated_query, Tensor rotated_key)",
    reference=apply_rotary_reference,
    fake=RowMajor(_outputs),
    problem=rotation_dims,
    inputs=rotary_inputs,
    check_data=partial(check_positions, _NAME),
    alike={"cos_sin_cache": "query"},
    backward=Backward(op=_BACKWARD, saved=("positions", "cos_sin_cache")),
    **_FIELDS,
)

APPLY_ROTARY_BACKWARD = Op(
    name=_BACKWARD,
    schema=f"{_BACKWARD}(Tensor grad_rotated_query, Tensor grad_rotated_key, Tensor positions,"
    " Tensor cos_sin_cache, int head_size, bool is_neox=True, bool need_query=True, bool need_key=True)"
    " -> (Tensor grad_query, Tensor grad_key)",
    reference=apply_rotary_backward_reference,
    fake=RowMajor(_backward_outputs),
    problem=_backward_problem,
    inputs=_backward_inputs,
    check_data=partial(check_positions, _BACKWARD),
    alike={"cos_sin_cache": "grad_rotated_query"},
    **_FIELDS,
)
