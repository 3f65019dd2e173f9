"""rotary_kv_append: rotates a step's queries and keys, and writes its keys and values to a cache in rows.

It is rotary_embedding and the append of ``flash_attn_with_kvcache`` in one pass: it writes to two arguments, returns
rotated queries and the new lengths, as attention_decode takes them, and has no gradient. Positions and lengths are on
the device and are not read by the host: with a position outside of the table, memory beside it is read; a token that
has no room in the cache is not written, or raises. ``KERNEL_REGISTRY_CHECK=1`` finds such calls.
"""

from __future__ import annotations

import itertools
from collections.abc import Mapping
from typing import Any

import torch

from ...contract import Floor, Op, RowMajor, Tolerance
from ...errors import InvalidArgumentError
from ...problem import Arguments, Problem, TensorSpec, Value, dtype_name
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
from .rotary_embedding import STYLES, cos_sin_table, rotary_embedding_reference

KINDS = ("normal", "outliers", "constant", "first_and_last", "special")
_NAME = "rotary_kv_append"
_ROWS = 4096


def rotary_kv_append_reference(  # noqa: PLR0913, PLR0917 - the schema's arguments in order
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    cos_sin_cache: torch.Tensor,
    k_cache: torch.Tensor,
    v_cache: torch.Tensor,
    cache_seqlens: torch.Tensor,
    positions: torch.Tensor | None = None,
    is_neox: bool = True,
) -> tuple[torch.Tensor, torch.Tensor]:
    """``rotated`` queries, and ``k_cache[b, cache_seqlens[b] + i] = rotated key[b, i]``, v_cache by value alike.

    query is ``[batch, q_len, heads, head_dim]``, key and value likewise with kv_heads, the caches ``[batch, kv_len,
    kv_heads, head_dim]``, all of one dtype, and in any order in memory. cache_seqlens ``[batch]``, int64 or int32, are
    the lengths before the new tokens. cos_sin_cache is ``[batch, q_len, rotary_dim]``, each token's cosines and then
    its sines; or with positions, int64 or int32 ``[batch, q_len]``, ``[max_position, rotary_dim]``, as rotary_embedding
    has it. It is in the dtype of query or in float32. Elements of a head from ``rotary_dim`` on are not rotated.
    ``kv_lens``, int32 ``[batch]``, are the lengths with the new tokens.
    """
    rotated, new = (x.clone(memory_format=torch.contiguous_format) for x in (query, key))
    batch, q_len = query.shape[:2]
    if positions is None:
        positions = torch.arange(batch * q_len, device=query.device).view(batch, q_len)
    table = cos_sin_cache.reshape(-1, cos_sin_cache.shape[-1])
    rotary_embedding_reference(positions, rotated, new, query.shape[-1], table, is_neox)
    sequence = torch.arange(batch, device=query.device)[:, None]
    place = cache_seqlens.long()[:, None] + torch.arange(q_len, device=query.device)
    k_cache[sequence, place], v_cache[sequence, place] = new, value
    return rotated, (cache_seqlens + q_len).to(torch.int32)


def _problem(arguments: Arguments) -> Mapping[str, Value]:
    op, query = arguments.op, float_tensor(arguments, "query")
    if len(query.shape) != 4 or 0 in query.shape[2:]:
        raise InvalidArgumentError(
            f"{op}: query has shape {shape_text(query.shape)}", hint="expected [batch, q_len, heads, head_dim]"
        )
    batch, q_len, heads, head_dim = query.shape
    given = arguments["positions"] is not None
    if given:
        _check_shape(op, "positions", index_tensor(arguments, "positions"), (batch, q_len), "[batch, q_len]")
    _check_shape(op, "cache_seqlens", index_tensor(arguments, "cache_seqlens"), (batch,), "[batch]")
    kv_heads, kv_len = _check_keys_and_caches(arguments, query)
    if kv_len < q_len:
        raise InvalidArgumentError(
            f"{op}: k_cache has room for {kv_len} tokens of a sequence, {q_len} are new", hint="make a longer cache"
        )
    return {
        "batch": batch,
        "heads": heads,
        "kv_heads": kv_heads,
        "q_len": q_len,
        "kv_len": kv_len,
        "head_dim": head_dim,
        "rotary_dim": _rotary_dim(op, float_tensor(arguments, "cos_sin_cache"), query, given),
        "positions": given,
        "style": "neox" if arguments.flag("is_neox") else "gptj",
        "dtype": dtype_name(query.dtype),
    }


def _check_keys_and_caches(arguments: Arguments, query: TensorSpec) -> tuple[int, int]:
    """Heads of the keys, and the length of the caches. Raises InvalidArgumentError for tensors that do not fit."""
    op = arguments.op
    batch, q_len, _, head_dim = query.shape
    key, cache = float_tensor(arguments, "key"), float_tensor(arguments, "k_cache")
    kv_heads = key.shape[-2] if len(key.shape) == 4 else 0
    kv_len = cache.shape[1] if len(cache.shape) == 4 else 0
    for name, shape, told in (
        ("key", (batch, q_len, kv_heads, head_dim), "[batch, q_len, kv_heads, head_dim]"),
        ("value", (batch, q_len, kv_heads, head_dim), "key's"),
        ("k_cache", (batch, kv_len, kv_heads, head_dim), "[batch, kv_len, kv_heads, head_dim]"),
        ("v_cache", (batch, kv_len, kv_heads, head_dim), "k_cache's"),
    ):
        spec = float_tensor(arguments, name)
        same_dtype(op, ("query", query), (name, spec))
        _check_shape(op, name, spec, shape, told)
        if name.endswith("cache"):
            check_writable(op, name, spec)
    return kv_heads, kv_len


def _check_shape(op: str, name: str, spec: TensorSpec, shape: tuple[int, ...], told: str) -> None:
    if spec.shape != shape or 0 in shape[2:]:
        sizes = "" if 0 in shape else f": {shape_text(shape)} beside the other arguments"
        raise InvalidArgumentError(f"{op}: {name} has shape {shape_text(spec.shape)}", hint=f"expected {told}{sizes}")


def _rotary_dim(op: str, table: TensorSpec, query: TensorSpec, positions: bool) -> int:
    most, width = query.shape[-1], table.shape[-1] if table.shape else 0
    fits = len(table.shape) == 2 and table.shape[0] if positions else table.shape[:-1] == query.shape[:2]
    if not fits or width % 2 or not 0 < width <= most:
        given = "positions are given" if positions else f"query has shape {shape_text(query.shape)}, and no positions"
        expected = "[max_position, rotary_dim]" if positions else "[batch, q_len, rotary_dim]"
        raise InvalidArgumentError(
            f"{op}: cos_sin_cache has shape {shape_text(table.shape)} but {given}",
            hint=f"expected {expected}: cosines, then as many sines, at most {most} in all;"
            " torch.cat((angles.cos(), angles.sin()), -1)",
        )
    if table.dtype != torch.float32 or query.dtype not in HALVES:
        same_dtype(op, ("query", query), ("cos_sin_cache", table))
    return width


def _check(problem: Problem) -> None:
    positive(problem, "batch", "heads", "kv_heads", "q_len", "kv_len", "head_dim", "rotary_dim")
    float_dtype(problem)
    if problem.rotary_dim % 2 or problem.rotary_dim > problem.head_dim:
        raise InvalidArgumentError(
            f"{_NAME}: rotary_dim={problem.rotary_dim} but head_dim={problem.head_dim}",
            hint="expected an even number of at most head_dim: equal to it where whole heads are rotated",
        )
    if problem.q_len > problem.kv_len:
        raise InvalidArgumentError(
            f"{_NAME}: q_len={problem.q_len} but kv_len={problem.kv_len}",
            hint="kv_len is the room of a sequence in the cache, at least its q_len new tokens",
        )


def _check_data(values: Mapping[str, Any]) -> None:
    positions, rows, q_len = values["positions"], values["cos_sin_cache"].shape[0], values["query"].shape[1]
    if positions is not None:
        outside = (positions < 0) | (positions >= rows)
        allowed = f"0 to {rows - 1}, a row of cos_sin_cache"
        check_values(_NAME, "positions", positions, outside, allowed, "make the table as long as the longest sequence")
    lengths, most = values["cache_seqlens"], values["k_cache"].shape[1] - q_len
    outside = (lengths < 0) | (lengths > most)
    allowed = f"0 to {most}, so that {q_len} new tokens have room"
    check_values(_NAME, "cache_seqlens", lengths, outside, allowed, "lengths are those before the new tokens")


def _inputs(problem: Problem, kind: str, generator: torch.Generator) -> tuple[Any, ...]:
    dtype, device, new = problem.torch_dtype, generator.device, (problem.batch, problem.q_len)
    shapes = [(*new, count, problem.head_dim) for count in (problem.heads, problem.kv_heads, problem.kv_heads)]
    if kind == "constant":
        tensors = [fills.constant(shape, dtype, generator, 1.5) for shape in shapes]
    else:
        tensors = [fills.normal(shape, dtype, generator) for shape in shapes]
    room = (problem.batch, problem.kv_len, problem.kv_heads, problem.head_dim)
    caches = [fills.normal(room, dtype, generator) for _ in range(2)]
    rows = min(max(2 * problem.q_len, 64), _ROWS)
    positions = torch.randint(rows, new, device=device, generator=generator) if problem.positions else None
    free = problem.kv_len - problem.q_len
    lengths = torch.randint(free + 1, new[:1], dtype=torch.int32, device=device, generator=generator)
    if kind == "outliers":
        for x in tensors:
            fills.plant_outliers(x, 1000.0, generator)
    elif kind == "first_and_last":
        if positions is not None:
            positions.remainder_(2).mul_(rows - 1)
        lengths.remainder_(2).mul_(free)
    elif kind == "special":
        for x in tensors:
            fills.plant_special(x, [torch.nan, 0.0, -0.0])
    angles = (rows,) if problem.positions else new
    table = cos_sin_table(angles, problem.rotary_dim, problem.torch_dtype, generator)
    return *tensors, table, *caches, lengths, positions, problem.style == "neox"


def _floor(problem: Problem) -> Floor:
    tokens, size = problem.batch * problem.q_len, problem.torch_dtype.itemsize
    moved = 2 * tokens * (problem.heads + 2 * problem.kv_heads) * problem.head_dim
    angles = (min(tokens, _ROWS) if problem.positions else tokens) * problem.rotary_dim
    rotated = tokens * (problem.heads + problem.kv_heads) * problem.rotary_dim
    return Floor(bytes=(moved + angles) * size + 8 * tokens * problem.positions + 8 * problem.batch, flop=3 * rotated)


def _scale(problem: Problem, reference: torch.Tensor) -> torch.Tensor:
    """Relative to each output and to the length of its pair, as for rotary_embedding; 0 where nothing is rotated."""
    half, neox = problem.rotary_dim // 2, problem.style == "neox"
    scale = torch.zeros_like(reference)
    pairs = reference[..., : 2 * half].unflatten(-1, (2, half) if neox else (half, 2))
    length = pairs.square().sum(-2 if neox else -1, keepdim=True).sqrt_()
    scale[..., : 2 * half] = (pairs.abs() + length).flatten(-2)
    return scale


def _key_scale(problem: Problem, reference: torch.Tensor, values: Mapping[str, Any]) -> torch.Tensor:
    """The scale of the key cache's errors: ``_scale`` where new keys are written, 0 where the cache keeps its keys."""
    begin = values["cache_seqlens"].long()[:, None]
    place = torch.arange(problem.kv_len, device=reference.device)
    written = (place >= begin) & (place < begin + problem.q_len)
    return _scale(problem, reference).where(written[..., None, None], 0.0)


def _examples() -> tuple[Mapping[str, Value], ...]:
    """Small problems, most of them odd: parts of heads, one head, many queries to a key, several new tokens."""
    names = ("batch", "heads", "kv_heads", "q_len", "kv_len", "head_dim", "rotary_dim", "positions")
    sizes = (
        (1, 4, 2, 1, 72, 64, 64, False),
        (3, 6, 1, 3, 9, 80, 20, True),
        (2, 3, 3, 5, 5, 20, 10, False),
        (5, 8, 2, 1, 33, 6, 2, True),
    )
    every = [*itertools.product(FLOATS, STYLES, sizes), (torch.float64, "neox", (3, 3, 1, 2, 7, 20, 14, False))]
    return tuple(
        {**dict(zip(names, each, strict=True)), "style": style, "dtype": dtype_name(dtype)}
        for dtype, style, each in every
    )


_EXACT = Tolerance(units(float32=0.0, half=0.0), units(float32=0.0, half=0.0), lambda _, reference: reference)
_ROTATED = (units(float32=1.1, half=1.1), underflow(4))

ROTARY_KV_APPEND = Op(
    name=_NAME,
    schema=f"{_NAME}(Tensor query, Tensor key, Tensor value, Tensor cos_sin_cache, Tensor(a!) k_cache,"
    " Tensor(b!) v_cache, Tensor cache_seqlens, Tensor? positions=None, bool is_neox=True)"
    " -> (Tensor rotated, Tensor kv_lens)",
    version=1,
    reference=rotary_kv_append_reference,
    fake=RowMajor(lambda query, *_: [(query.shape, query.dtype), (query.shape[:1], torch.int32)]),
    problem=_problem,
    inputs=_inputs,
    floor=_floor,
    # two products and a sum, each rounded; what one rounding of fp32 loses to another is below both
    tolerance=Tolerance(*_ROTATED, _scale),
    tolerances={"k_cache": Tolerance(*_ROTATED, _key_scale), "v_cache": _EXACT},
    static=frozenset({"heads", "kv_heads", "head_dim", "rotary_dim", "dtype"}),
    dynamic=frozenset({"batch", "q_len", "kv_len"}),
    choices={"style": STYLES, "positions": (False, True)},
    kinds=KINDS,
    examples=_examples(),
    check=_check,
    check_data=_check_data,
    independent=frozenset({"positions"}),
    alike={"cos_sin_cache": "query"},
)
