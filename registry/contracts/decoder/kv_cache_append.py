"""kv_cache_append: writes new keys and values to their slots of a paged cache, vLLM's reshape_and_cache_flash.

It writes to two arguments, returns nothing and has no gradient. Slots are on the device and are not read by the host:
with one beyond the end of the cache, memory behind it is written to. ``KERNEL_REGISTRY_CHECK=1`` finds such a call. Of
two tokens with one slot either may be kept, in parts of both.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping
from typing import Any

import torch

from ...contract import Floor, Op, Tolerance
from ...errors import InvalidArgumentError
from ...problem import Arguments, Problem, TensorSpec, Value, dtype_name, torch_dtype
from .. import fills
from ..checks import (
    FLOATS,
    check_values,
    check_writable,
    float_dtype,
    float_tensor,
    index_tensor,
    positive,
    same_dtype,
    shape_text,
)
from ..quantize_per_token import LARGEST
from ..rounding import FLOAT32_UNIT, units

KINDS = ("normal", "outliers", "skipped", "special")
FLOAT8, INT8 = "float8_e4m3fn", "int8"
KV_DTYPES = ("auto", FLOAT8, INT8)
"""Dtypes of a cache: that of keys and values, or one with a scale."""

_NAME = "kv_cache_append"
_SCALES: Mapping[str, tuple[float, float]] = {FLOAT8: (0.75, 1.5), INT8: (0.25, 0.03)}
_SPECIAL: Mapping[str, list[float]] = {
    FLOAT8: [torch.nan, 0.0, -0.0, 2.0**-9, 3.0 * 2.0**-10],
    # halves of the scale 0.25, and what saturates
    INT8: [torch.nan, 0.0, -0.0, 0.125, -0.375, 0.625, 31.625, -31.875, 32.0, -32.0, torch.inf, -torch.inf],
}
_PAIRS = (("key", "key_cache", "k_scale"), ("value", "value_cache", "v_scale"))


def kv_cache_append_reference(
    key: torch.Tensor,
    value: torch.Tensor,
    key_cache: torch.Tensor,
    value_cache: torch.Tensor,
    slot_mapping: torch.Tensor,
    k_scale: torch.Tensor | None = None,
    v_scale: torch.Tensor | None = None,
) -> None:
    """``cache[slot // block_size, slot % block_size] = x[token]`` for each token whose slot is not negative.

    key and value are ``[tokens, kv_heads, head_dim]``, slot_mapping int64 or int32 ``[tokens]``; keys and values may
    have more tokens, which are padding. A slot of -1 skips its token. Caches are ``[num_blocks, block_size, kv_heads,
    head_dim]`` in the dtype of key, or float8_e4m3fn or int8: then ``x / scale``, in fp32 and clamped to -448 to 448,
    of int8 to -127 to 127, is rounded to the nearest number, halfway to the even one, by float32 scales of one element.
    NaN stays NaN in float8, and is 0 in int8. Nothing is written to a cache without blocks.
    """
    if not slot_mapping.numel() or not key_cache.shape[0]:
        return
    slots = slot_mapping.long()
    written = slots >= 0
    # without reading the slots: a skipped token repeats the writes of one that is not, if there is one
    tokens = torch.where(written, torch.arange(len(slots), device=slots.device), written.to(torch.int32).argmax())
    slots = slots[tokens].clamp_min(0)
    for x, cache, scale in ((key, key_cache, k_scale), (value, value_cache, v_scale)):
        new = x[tokens]
        if scale is not None:
            wide = torch.promote_types(x.dtype, torch.float32)
            most = LARGEST[INT8 if cache.dtype == torch.int8 else FLOAT8]
            new = (new.to(wide) / scale.to(wide)).clamp(-most, most)
            new = new.round().nan_to_num(0.0) if cache.dtype == torch.int8 else new
        # bytes, which every device copies
        held = cache.view(torch.uint8) if cache.dtype.itemsize == 1 else cache
        new = new.to(cache.dtype).view(held.dtype) if held is not cache else new.to(cache.dtype)
        place = (slots // cache.shape[1], slots % cache.shape[1])
        held[place] = torch.where(written.any(), new, held[place])


def _problem(arguments: Arguments) -> Mapping[str, Value]:
    op = arguments.op
    key, slots = float_tensor(arguments, "key"), index_tensor(arguments, "slot_mapping")
    if len(slots.shape) != 1:
        raise InvalidArgumentError(
            f"{op}: slot_mapping has shape {shape_text(slots.shape)}", hint="expected [tokens]: slot_mapping.flatten()"
        )
    cache = float_tensor(arguments, "key_cache", (*FLOATS, torch.float64, torch.float8_e4m3fn, torch.int8))
    if len(cache.shape) != 4 or not cache.shape[1]:
        raise InvalidArgumentError(
            f"{op}: key_cache has shape {shape_text(cache.shape)}",
            hint="expected [num_blocks, block_size, kv_heads, head_dim]",
        )
    for name, cache_name, scale_name in _PAIRS:
        x = float_tensor(arguments, name)
        same_dtype(op, ("key", key), (name, x))
        if len(x.shape) != 3 or x.shape[0] < slots.shape[0] or x.shape[1:] != cache.shape[2:]:
            raise InvalidArgumentError(
                f"{op}: {name} has shape {shape_text(x.shape)} but slot_mapping has {slots.shape[0]} tokens and"
                f" key_cache is {shape_text(cache.shape)}",
                hint=f"expected [{slots.shape[0]}, {cache.shape[2]}, {cache.shape[3]}], tokens of padding may follow",
            )
        _check_cache(arguments, x, cache, (name, cache_name, scale_name))
    return {
        "tokens": slots.shape[0],
        "kv_heads": cache.shape[2],
        "head_dim": cache.shape[3],
        "block_size": cache.shape[1],
        "kv_dtype": name if (name := dtype_name(cache.dtype)) in LARGEST else "auto",
        "dtype": dtype_name(key.dtype),
    }


def _check_cache(arguments: Arguments, x: TensorSpec, like: TensorSpec, names: tuple[str, str, str]) -> None:
    op, (name, cache_name, scale_name) = arguments.op, names
    cache, scale = arguments.tensor(cache_name), arguments.optional_tensor(scale_name)
    if cache.shape != like.shape or cache.dtype != like.dtype:
        raise InvalidArgumentError(
            f"{op}: {cache_name} is {dtype_name(cache.dtype)} {shape_text(cache.shape)} but key_cache is"
            f" {dtype_name(like.dtype)} {shape_text(like.shape)}",
            hint="both caches have one shape and one dtype",
        )
    check_writable(op, cache_name, cache)
    kind = dtype_name(cache.dtype)
    if kind not in LARGEST:
        same_dtype(op, (name, x), (cache_name, cache))
        if scale is not None:
            raise InvalidArgumentError(
                f"{op}: {scale_name} is given but {cache_name} is {kind}",
                hint=f"scales are for caches of {FLOAT8} and {INT8}: leave it out",
            )
        return
    if scale is None or scale.numel != 1 or scale.dtype != torch.float32:
        given = "None" if scale is None else f"{dtype_name(scale.dtype)} {shape_text(scale.shape)}"
        raise InvalidArgumentError(
            f"{op}: {scale_name} is {given} but {cache_name} is {kind}",
            hint="expected float32 of one element on the device of the cache, e.g. torch.full((1,), x.abs().max() /"
            f" {LARGEST[kind]:.0f}, device=cache.device) of the largest x",
        )


def _check(problem: Problem) -> None:
    positive(problem, "tokens", "kv_heads", "head_dim", "block_size")
    float_dtype(problem)


def _check_data(values: Mapping[str, Any]) -> None:
    slots, cache = values["slot_mapping"], values["key_cache"]
    end = cache.shape[0] * cache.shape[1]
    check_values(
        _NAME,
        "slot_mapping",
        slots,
        slots >= end,
        f"less than {end}, {cache.shape[0]} blocks of {cache.shape[1]}, or -1 to skip the token",
        "a slot is block * block_size + place in the block",
    )


def _inputs(problem: Problem, kind: str, generator: torch.Generator) -> tuple[Any, ...]:
    tokens, size, dtype, device = problem.tokens, problem.block_size, problem.torch_dtype, generator.device
    shape = (tokens, problem.kv_heads, problem.head_dim)
    key, value = fills.normal(shape, dtype, generator), fills.normal(shape, dtype, generator)
    if kind == "outliers":
        for x in (key, value):
            fills.plant_outliers(x, 3000.0, generator)
    elif kind == "special":
        for x in (key, value):
            fills.plant_special(x, _SPECIAL.get(problem.kv_dtype, _SPECIAL[FLOAT8]))
    blocks = 2 * -(-tokens // size) + 1
    held = dtype if problem.kv_dtype == "auto" else torch_dtype(problem.kv_dtype)
    caches = [fills.normal((blocks, size, *shape[1:]), held, generator) for _ in range(2)]
    slots = torch.randperm(blocks * size, device=device, generator=generator)[:tokens]
    if kind == "skipped":
        slots[::3] = -1
    own = _SCALES.get(problem.kv_dtype, (None, None))
    scales = [None if scale is None else torch.full((1,), scale, device=device) for scale in own]
    return key, value, *caches, slots, *scales


def _floor(problem: Problem) -> Floor:
    elements = 2 * problem.tokens * problem.kv_heads * problem.head_dim
    size = problem.torch_dtype.itemsize
    plain = problem.kv_dtype == "auto"
    return Floor(bytes=elements * (size + (size if plain else 1)) + 8 * problem.tokens, flop=0 if plain else elements)


def _wrong(name: str) -> Any:
    def compare(
        problem: Problem,
        values: Mapping[str, Any],
        results: Mapping[str, torch.Tensor],
        references: Mapping[str, torch.Tensor],
    ) -> Iterator[str]:
        """A fault if an element is neither the right one, nor the nearest float8 or int8 to the right quotient."""
        found, right = results[name].to(torch.float64), references[name].to(torch.float64)
        wrong = _not_nearest(found, right) if problem.kv_dtype == FLOAT8 else found != right
        wrong &= ~(found.isnan() & right.isnan())
        if problem.kv_dtype == INT8:
            wrong &= ~_halfway(found, values, name)
        places = wrong.nonzero()
        if places.shape[0]:
            place = tuple(places[0].tolist())
            shown = ", ".join(map(str, place))
            yield f"{name}[{shown}] is {found[place].item():.9g}, expected {right[place].item():.9g}"

    return compare


def _not_nearest(found: torch.Tensor, right: torch.Tensor) -> torch.Tensor:
    """fp32 may round a quotient across the middle of two numbers; three bits of mantissa, subnormals below 2**-6."""
    half = 2.0 ** (torch.frexp(right).exponent.clamp_min(-5) - 5).double()
    return ~((found - right).abs() <= half + 4 * FLOAT32_UNIT * right.abs())


def _halfway(found: torch.Tensor, values: Mapping[str, Any], cache_name: str) -> torch.Tensor:
    """True where two int8 are about equally near to the quotient, which fp32 may round across their middle.

    By a scale that is a power of two the quotient is exact, and the even one is right.
    """
    name, scale_name = next((x, scale) for x, cache, scale in _PAIRS if cache == cache_name)
    scale, slots = values[scale_name].double(), values["slot_mapping"].long()
    quotients = torch.full_like(found, torch.nan)
    written = (slots >= 0).nonzero().flatten()
    quotients.flatten(0, 1)[slots[written]] = values[name][written].double() / scale
    clamped = quotients.clamp(-LARGEST[INT8], LARGEST[INT8])
    near = (found - clamped).abs() <= 0.5 + 4 * FLOAT32_UNIT * clamped.abs()
    return near & (torch.frexp(scale).mantissa != 0.5)


def _examples() -> tuple[Mapping[str, Value], ...]:
    """Small problems, most of them odd, and one in float64."""
    sizes = ((1, 2, 64, 16), (7, 3, 20, 4), (33, 1, 128, 16), (5, 8, 7, 1))
    every = [*itertools.product(FLOATS, KV_DTYPES, sizes), (torch.float64, "auto", (3, 3, 10, 2))]
    names = ("tokens", "kv_heads", "head_dim", "block_size")
    return tuple(
        {**dict(zip(names, each, strict=True)), "kv_dtype": kind, "dtype": dtype_name(dtype)}
        for dtype, kind, each in every
    )


KV_CACHE_APPEND = Op(
    name=_NAME,
    schema=f"{_NAME}(Tensor key, Tensor value, Tensor(a!) key_cache, Tensor(b!) value_cache, Tensor slot_mapping,"
    " Tensor? k_scale=None, Tensor? v_scale=None) -> ()",
    version=1,
    reference=kv_cache_append_reference,
    problem=_problem,
    inputs=_inputs,
    floor=_floor,
    # not used: both results have a comparison
    tolerance=Tolerance(units(float32=0.0, half=0.0), units(float32=0.0, half=0.0), lambda _, reference: reference),
    compare={name: _wrong(name) for name in ("key_cache", "value_cache")},
    static=frozenset({"kv_heads", "head_dim", "block_size", "dtype"}),
    dynamic=frozenset({"tokens"}),
    choices={"kv_dtype": KV_DTYPES},
    added={"kv_dtype": (INT8,)},
    independent=frozenset({"key_cache", "value_cache"}),
    kinds=KINDS,
    examples=_examples(),
    check=_check,
    check_data=_check_data,
)
