"""rotary_embedding: rotates the heads of queries and keys by angles of their positions (Su et al., 2021), in place.

It is vLLM's op: it writes to two arguments and returns nothing. It is for inference and has no gradient;
``apply_rotary`` returns new tensors, with a gradient.

A position must be one of the table's rows. Positions are on the device and are not read: with one outside of the table,
memory outside of it is read. ``KERNEL_REGISTRY_CHECK=1`` finds such a call.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping
from functools import partial
from typing import Any

import torch

from ...contract import Floor, Op, Tolerance
from ...errors import InvalidArgumentError
from ...problem import Arguments, Problem, TensorSpec, Value, check_positive, dtype_name
from .. import fills
from ..checks import (
    FLOATS,
    HALVES,
    check_values,
    check_writable,
    float_dtype,
    float_tensor,
    index_tensor,
    positive,
    same_dtype,
    shape_text,
)
from ..rounding import underflow, units

KINDS = ("normal", "outliers", "constant", "first_and_last", "special")
STYLES = ("neox", "gptj")
"""Pairs of elements that are rotated: neox, as Llama has it, ``i`` and ``i + rotary_dim / 2``; gptj ``2 i`` and
``2 i + 1``."""

_MOST_POSITIONS = 4096

_NAME = "rotary_embedding"


def rotary_embedding_reference(
    positions: torch.Tensor,
    query: torch.Tensor,
    key: torch.Tensor,
    head_size: int,
    cos_sin_cache: torch.Tensor,
    is_neox: bool,
) -> None:
    """``(a, b) = (a cos - b sin, b cos + a sin)`` for all pairs of the first ``rotary_dim`` elements of each head.

    positions is int64 or int32 ``[...]``, usually ``[tokens]``; query is ``[..., heads * head_size]`` or ``[..., heads,
    head_size]``, key likewise with ``kv_heads``, which may be 0. cos_sin_cache is ``[max_position, rotary_dim]``: the
    cosines of a position's angles, then their sines, in the dtype of query or in float32. Elements from ``rotary_dim``
    on are left as they are. Halves are rotated in fp32, each result rounded once.
    """
    cos, sin = cosines_and_sines(positions, cos_sin_cache, torch.promote_types(query.dtype, torch.float32))
    for x in (query, key):
        heads = heads_of(x, positions, head_size)
        rotated = heads[..., : cos_sin_cache.shape[1]]
        one, other = rotated.chunk(2, -1) if is_neox else (rotated[..., ::2], rotated[..., 1::2])
        a, b = one.to(cos.dtype), other.to(cos.dtype)
        # both before either is written: without a conversion a and b are views
        first, second = a * cos - b * sin, b * cos + a * sin
        one.copy_(first)
        other.copy_(second)


def cosines_and_sines(
    positions: torch.Tensor, table: torch.Tensor, dtype: torch.dtype
) -> tuple[torch.Tensor, torch.Tensor]:
    """Cosines and sines ``[..., 1, rotary_dim / 2]`` of positions ``[...]``."""
    # not table[positions], which waits for the device where positions have no dimension
    cos, sin = torch.nn.functional.embedding(positions, table).to(dtype).unsqueeze(-2).chunk(2, -1)
    return cos, sin


def heads_of(x: torch.Tensor, positions: torch.Tensor, head_size: int) -> torch.Tensor:
    """A view ``[..., heads, head_size]`` of query or key, for positions ``[...]``."""
    return x if x.dim() == positions.dim() + 2 else x.unflatten(-1, (x.shape[-1] // head_size, head_size))


def rotary_problem(arguments: Arguments) -> Mapping[str, Value]:
    """The dimensions of a rotation in place."""
    dims = rotation_dims(arguments)
    for name in ("query", "key"):
        check_writable(arguments.op, name, arguments.tensor(name))
    return dims


def rotation_dims(arguments: Arguments, query: str = "query", key: str = "key") -> Mapping[str, Value]:
    """The dimensions of a rotation of the heads of two tensors by these names."""
    op = arguments.op
    head_size, positions = arguments.integer("head_size"), index_tensor(arguments, "positions")
    check_positive(op, "head_size", head_size)
    rotated = (query, float_tensor(arguments, query)), (key, float_tensor(arguments, key))
    same_dtype(op, *rotated)
    heads, kv_heads = (_heads(op, name, x, positions, head_size) for name, x in rotated)
    first = rotated[0][1]
    if not heads:
        raise InvalidArgumentError(f"{op}: {query} has shape {shape_text(first.shape)}, without a head")
    rotary_dim = _rotary_dim(op, float_tensor(arguments, "cos_sin_cache"), *rotated[0], head_size)
    return {
        "tokens": positions.numel,
        "heads": heads,
        "kv_heads": kv_heads,
        "head_dim": head_size,
        "rotary_dim": rotary_dim,
        "style": "neox" if arguments.flag("is_neox") else "gptj",
        "dtype": dtype_name(first.dtype),
    }


def _heads(op: str, name: str, x: TensorSpec, positions: TensorSpec, head_size: int) -> int:
    """The number of heads of query or key. Raises InvalidArgumentError if its shape does not fit."""
    leading, rest = x.shape[: len(positions.shape)], x.shape[len(positions.shape) :]
    whole = (len(rest) == 1 and rest[0] % head_size == 0) or (len(rest) == 2 and rest[1] == head_size)
    if leading != positions.shape or not whole:
        before = "".join(f"{size}, " for size in positions.shape)
        raise InvalidArgumentError(
            f"{op}: {name} has shape {shape_text(x.shape)} but positions have {shape_text(positions.shape)} and"
            f" head_size is {head_size}",
            hint=f"expected [{before}heads * {head_size}] or [{before}heads, {head_size}]",
        )
    return math.prod(rest) // head_size


def _rotary_dim(op: str, table: TensorSpec, name: str, query: TensorSpec, head_size: int) -> int:
    if len(table.shape) != 2 or not table.shape[0] or table.shape[1] % 2 or not 0 < table.shape[1] <= head_size:
        raise InvalidArgumentError(
            f"{op}: cos_sin_cache has shape {shape_text(table.shape)} but head_size is {head_size}",
            hint=f"expected [max_position, rotary_dim]: cosines, then as many sines, at most {head_size} in all;"
            " torch.cat((angles.cos(), angles.sin()), -1)",
        )
    if table.dtype != torch.float32 or query.dtype not in HALVES:
        same_dtype(op, (name, query), ("cos_sin_cache", table))
    return table.shape[1]


def check_rotation(problem: Problem) -> None:
    """Raise InvalidArgumentError for dimensions that no rotation has."""
    positive(problem, "tokens", "heads", "head_dim", "rotary_dim")
    float_dtype(problem)
    kv_heads, rotary_dim = problem.kv_heads, problem.rotary_dim
    if isinstance(kv_heads, bool) or not isinstance(kv_heads, int) or kv_heads < 0:
        raise InvalidArgumentError(f"{problem.op}: kv_heads must be an integer of at least 0, got {kv_heads!r:.80}")
    if (elements := max(problem.heads, kv_heads) * problem.head_dim) >= 2**63:
        raise InvalidArgumentError(
            f"{problem.op}: a token of {elements} elements",
            hint="no tensor has that many: heads * head_dim is below 2**63",
        )
    if rotary_dim % 2 or rotary_dim > problem.head_dim:
        raise InvalidArgumentError(
            f"{problem.op}: rotary_dim={rotary_dim} but head_dim={problem.head_dim}",
            hint="expected an even number of at most head_dim: equal to it where whole heads are rotated",
        )


def check_positions(op: str, values: Mapping[str, Any]) -> None:
    """Raise OutOfRangeError for a position that is no row of the table."""
    positions, rows = values["positions"], values["cos_sin_cache"].shape[0]
    check_values(
        op,
        "positions",
        positions,
        (positions < 0) | (positions >= rows),
        f"0 to {rows - 1}, a row of cos_sin_cache",
        "make the table as long as the longest sequence, and give padding the position 0",
    )


def _rows(problem: Problem) -> int:
    """Rows of the table that ``inputs`` makes; a call's table may have any number."""
    return min(max(4 * int(problem.tokens), 64), _MOST_POSITIONS)


def rotary_inputs(problem: Problem, kind: str, generator: torch.Generator) -> tuple[Any, ...]:
    """Positions, queries, keys, the size of a head, the table and the style, of every kind."""
    tokens, width, dtype, device = problem.tokens, problem.head_dim, problem.torch_dtype, generator.device
    of_query, of_key = ((tokens, count * width) for count in (problem.heads, problem.kv_heads))
    if kind == "constant":
        query, key = fills.constant(of_query, dtype, generator, 1.5), fills.constant(of_key, dtype, generator, 0.5)
    else:
        query, key = fills.normal(of_query, dtype, generator), fills.normal(of_key, dtype, generator)
    positions = torch.randint(_rows(problem), (tokens,), device=device, generator=generator)
    if kind == "outliers":
        for x in (query, key):
            fills.plant_outliers(x, 1000.0, generator)
    elif kind == "first_and_last":
        positions.remainder_(2).mul_(_rows(problem) - 1)
    elif kind == "special":
        for x in (query, key):
            fills.plant_special(x, [torch.nan, 0.0, -0.0])
    table = cos_sin_table((_rows(problem),), problem.rotary_dim, problem.torch_dtype, generator)
    return positions, query, key, width, table, problem.style == "neox"


def cos_sin_table(
    rows: tuple[int, ...], rotary_dim: int, dtype: torch.dtype, generator: torch.Generator
) -> torch.Tensor:
    """Cosines and sines of random angles, ``[*rows, rotary_dim]``: points of the circle by tangents of half the angles.

    Not by cos, sin and cat, for which torch imports its compiler where a problem is planned with meta tensors.
    """
    half = rotary_dim // 2
    tangent = fills.normal((*rows, half), torch.float32, generator)
    square = tangent * tangent
    table = torch.empty((*rows, rotary_dim), dtype=dtype, device=generator.device)
    table[..., :half], table[..., half:] = (1 - square) / (1 + square), 2 * tangent / (1 + square)
    return table


def _floor(problem: Problem) -> Floor:
    tokens, rotary_dim, size = problem.tokens, problem.rotary_dim, problem.torch_dtype.itemsize
    rotated = tokens * (problem.heads + problem.kv_heads) * rotary_dim
    return Floor(bytes=(2 * rotated + table_elements(problem)) * size + 8 * tokens, flop=3 * rotated)


def table_elements(problem: Problem) -> int:
    """The elements of the table that tokens of ``rotary_inputs`` need at least."""
    return min(int(problem.tokens), _rows(problem)) * int(problem.rotary_dim)


def pair_scale(problem: Problem, reference: torch.Tensor) -> torch.Tensor:
    """Relative to each output and to the length of its pair, which is that of both products; 0 where none is rotated.

    vLLM's kernel and most models' own code round both products, and then their sum, to half.
    """
    half = problem.rotary_dim // 2
    heads = reference.reshape(-1, problem.head_dim)
    scale = torch.zeros_like(heads)
    rotated = slice(0, 2 * half)
    pairs = heads[:, rotated].unflatten(-1, (2, half) if problem.style == "neox" else (half, 2))
    along = -2 if problem.style == "neox" else -1
    length = pairs.square().sum(along, keepdim=True).sqrt_()
    scale[:, rotated] = (pairs.abs() + length).flatten(-2)
    return scale.reshape(reference.shape)


def rotary_examples() -> tuple[Mapping[str, Value], ...]:
    """Small problems, most of them odd: parts of heads, one head, many queries to a key, one token."""
    sizes = ((1, 4, 2, 64, 64), (3, 6, 1, 80, 20), (7, 3, 3, 20, 10), (5, 1, 1, 128, 128), (33, 8, 2, 6, 2))
    every = itertools.product(FLOATS, STYLES, sizes)
    points = [*every, (torch.float64, "neox", (3, 3, 1, 20, 14))]
    names = ("tokens", "heads", "kv_heads", "head_dim", "rotary_dim")
    return tuple(
        {**dict(zip(names, each, strict=True)), "style": style, "dtype": dtype_name(dtype)}
        for dtype, style, each in points
    )


ROTARY_EMBEDDING = Op(
    name=_NAME,
    schema=f"{_NAME}(Tensor positions, Tensor(a!) query, Tensor(b!) key, int head_size, Tensor cos_sin_cache,"
    " bool is_neox) -> ()",
    version=1,
    reference=rotary_embedding_reference,
    problem=rotary_problem,
    inputs=rotary_inputs,
    floor=_floor,
    # two products and a sum, each rounded; what one rounding of fp32 loses to another is below both
    tolerance=Tolerance(units(float32=1.1, half=1.1), underflow(4), pair_scale),
    static=frozenset({"heads", "kv_heads", "head_dim", "rotary_dim", "dtype"}),
    dynamic=frozenset({"tokens"}),
    choices={"style": STYLES},
    kinds=KINDS,
    examples=rotary_examples(),
    check=check_rotation,
    check_data=partial(check_positions, _NAME),
    independent=frozenset({"positions"}),
    alike={"cos_sin_cache": "query"},
    weights=frozenset({"cos_sin_cache"}),
)
