"""HQQ's tensors: ``W_q`` and its ``meta``, whose scales and zero points may be quantised themselves."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch

from ...errors import InvalidArgumentError
from ..checks import check_integers
from ..layout import pack
from .parts import check_given, expect, parts

WHAT = "from_hqq"
# bits of an element and elements of a word, of which the first is in the highest bits
PACKINGS = {"8bit_u8": (8, 1), "4bit_u8": (4, 2), "3bit_32": (3, 10), "2bit_u8": (2, 4), "1bit_u8": (1, 8)}
HELD_IN = {8: 8, 4: 4, 3: 4, 2: 2, 1: 1}


def hqq_parts(packed: torch.Tensor, meta: Mapping[str, Any]) -> dict[str, Any]:
    """Arguments of PackedWeight for HQQ's tensors, as ``PackedWeight.from_hqq`` describes them."""
    check_given(WHAT, W_q=packed)
    meta = _checked(meta)
    n, k = meta["shape"]
    size = meta["group_size"] or k
    if meta["axis"] != 1:
        raise InvalidArgumentError(
            f"{WHAT}: axis={meta['axis']}, so groups run along N: each row of K has scales of its own, which a"
            " PackedWeight, whose groups run along K, cannot hold",
            hint="quantise with HQQ's axis=1",
        )
    if k % size:
        raise InvalidArgumentError(
            f"{WHAT}: group_size={size} does not divide K={k}, so that a group is in two rows of the weight",
            hint="quantise with a group size that divides K",
        )
    bits = HELD_IN[PACKINGS[meta["packing"]][0]]
    q = _elements(packed, meta, n * k // size)
    scale, zero = _numbers("scale", meta), _numbers("zero", meta)
    for name, value in (("scale", scale), ("zero", zero)):
        if value.numel() not in (1, n * k // size):
            expect(WHAT, name, value, (n * k // size, 1))
    scales, zeros = (value.expand(n * k // size, 1).reshape(n, k // size).T for value in (scale, zero))
    return parts(pack(q.reshape(n, k).T, bits), scales, zeros, bits, size, (n, k))


def _checked(meta: Mapping[str, Any]) -> Mapping[str, Any]:
    needed = ("shape", "group_size", "axis", "packing")
    if not isinstance(meta, Mapping) or any(name not in meta for name in needed):
        raise InvalidArgumentError(f"{WHAT}: meta lacks one of {', '.join(needed)}", hint="expected HQQLinear.meta")
    if meta["packing"] not in PACKINGS:
        raise InvalidArgumentError(
            f"{WHAT}: packing {meta['packing']!r}", hint=f"expected one of {', '.join(PACKINGS)}"
        )
    shape, size = meta["shape"], meta["group_size"]
    if not isinstance(shape, tuple | list) or len(shape) != 2:
        raise InvalidArgumentError(f"{WHAT}: shape {shape!r}, expected (N, K)")
    if size is not None:
        check_integers(WHAT, group_size=size)
    return meta


def _elements(packed: torch.Tensor, meta: Mapping[str, Any], rows: int | None = None) -> torch.Tensor:
    """Integers [rows, columns]: a word holds one element of each of several equal parts of the rows."""
    bits, count = PACKINGS[meta["packing"]]
    dtype = torch.int32 if meta["packing"] == "3bit_32" else torch.uint8
    words = packed.view(dtype) if meta.get("view_as_float") else packed
    size = meta["group_size"] or meta["shape"][1]
    if rows is not None:
        expect(WHAT, "W_q", words, (-(-rows // count), size), (dtype,), f"for {meta['packing']} and this group_size")
    elements = [(words >> (bits * place)) & (2**bits - 1) for place in reversed(range(count))]
    return torch.cat(elements)[:rows].int()


def _numbers(name: str, meta: Mapping[str, Any]) -> torch.Tensor:
    """Scales or zero points, in the dtype and by the steps of HQQ's own dequantisation."""
    if meta.get("zero_scale") is not None:
        # both in one tensor, as HQQ keeps them when it offloads them
        stored = meta["zero_scale"][0 if name == "zero" else 1]
    else:
        stored = meta.get(f"{name}_q" if meta.get(f"quant_{name}") else name)
    inner = meta.get(f"meta_{name}") if meta.get(f"quant_{name}") else None
    if stored is None:
        raise InvalidArgumentError(f"{WHAT}: meta has no {name}", hint="expected HQQLinear.meta")
    if inner is None:
        return torch.as_tensor(stored).reshape(-1, 1)
    dtype = inner.get("compute_dtype", torch.float16)
    elements = _elements(stored, _checked(inner)).to(dtype)
    numbers: torch.Tensor = (elements - inner["zero"]) * inner["scale"]
    return numbers.reshape(-1, 1)
