"""The parts of a PackedWeight, from integers, scales and zero points in any dtype; and the checks all formats share."""

from __future__ import annotations

from typing import Any

import torch

from ...errors import InvalidArgumentError
from ...problem import dtype_name
from ..checks import GROUP_SIZES, SCALE_DTYPES, check_integers, check_order, check_tensor
from ..layout import groups, symmetric_zero

LARGEST_ZERO = 256
"""The greatest zero point stored as an integer: integers up to it are exact in bfloat16."""


def parts(
    qweight: torch.Tensor,
    scales: torch.Tensor,
    zeros: torch.Tensor | None,
    bits: int,
    group_size: int,
    shape: tuple[int, int],
    g_idx: torch.Tensor | None = None,
) -> dict[str, Any]:
    """The arguments of PackedWeight.

    Zero points become None if all are the symmetric one, the scales' dtype if all are integers, else float32. A
    ``g_idx`` equal to ``k // group_size`` is left out. Groups of a size that PackedWeight does not have are divided
    into smaller groups, which repeat the scale and zero point.
    """
    if zeros is not None:
        zeros = _zeros(zeros.float(), scales.dtype, bits)
    if g_idx is not None:
        k = torch.arange(shape[1], device=g_idx.device)
        g_idx = None if torch.equal(g_idx.long(), k // group_size) else g_idx.to(torch.int32)
    if group_size < shape[1] and group_size not in GROUP_SIZES:
        smaller = _size_that_divides(group_size)
        count = groups(shape[1], smaller)
        if g_idx is not None:
            check_order("PackedWeight", g_idx, group_size)
            g_idx = _in_smaller_groups(g_idx, smaller)
        scales = scales.repeat_interleave(group_size // smaller, 0)[:count]
        zeros = None if zeros is None else zeros.repeat_interleave(group_size // smaller, 0)[:count]
        group_size = smaller
    return {
        "qweight": qweight.contiguous(),
        "scales": scales.contiguous(),
        "zeros": None if zeros is None else zeros.contiguous(),
        "bits": bits,
        "group_size": min(group_size, shape[1]),
        "shape": shape,
        "g_idx": g_idx,
    }


def _size_that_divides(group_size: int) -> int:
    """The largest of a PackedWeight's group sizes that divides one. Raises InvalidArgumentError if none does."""
    found = next((size for size in reversed(GROUP_SIZES) if group_size % size == 0), None)
    if found is None:
        raise InvalidArgumentError(
            f"PackedWeight: groups of {group_size} columns, expected a multiple of {GROUP_SIZES[0]}",
            hint=f"quantise with group_size={GROUP_SIZES[0]} or a multiple of it, or with one scale a row",
        )
    return found


def _in_smaller_groups(g_idx: torch.Tensor, size: int) -> torch.Tensor:
    """Each element's group, where groups are divided into groups of ``size``, which divides theirs."""
    place = torch.empty_like(g_idx)
    place[torch.argsort(g_idx, stable=True)] = torch.arange(len(g_idx), dtype=g_idx.dtype, device=g_idx.device)
    return place // size


def _zeros(zeros: torch.Tensor, dtype: torch.dtype, bits: int) -> torch.Tensor | None:
    if (zeros == symmetric_zero(bits)).all():
        return None
    integers = ((zeros == zeros.round()) & (zeros >= 0) & (zeros <= LARGEST_ZERO)).all()
    return zeros.to(dtype) if integers else zeros


def check_given(what: str, **tensors: object) -> None:
    """Raise InvalidArgumentError unless all are dense tensors with values in memory."""
    for name, value in tensors.items():
        check_tensor(f"{what}: {name}", value)
        if isinstance(value, torch.Tensor) and value.device.type == "meta":
            raise InvalidArgumentError(f"{what}: {name} is on meta, so it has no values", hint="load the weight first")


def check_bits(what: str, bits: object, supported: tuple[int, ...], hint: str = "") -> None:
    """Raise InvalidArgumentError unless ``bits`` is one of the supported."""
    check_integers(what, bits=bits)
    if bits not in supported:
        raise InvalidArgumentError(
            f"{what}: bits={bits}, expected {' or '.join(map(str, supported))}", hint=hint or "see quantization_config"
        )


def size_of_groups(what: str, group_size: object, k: int) -> int:
    """``group_size``, and K for None and -1, which mean one scale per column."""
    if group_size is None or group_size == -1:
        return k
    check_integers(what, group_size=group_size)
    assert isinstance(group_size, int)
    if group_size < 1:
        raise InvalidArgumentError(f"{what}: group_size={group_size}, expected a positive integer or -1")
    return group_size


def expect(
    what: str,
    name: str,
    tensor: torch.Tensor,
    shape: tuple[int, ...],
    dtypes: tuple[torch.dtype, ...] = SCALE_DTYPES,
    hint: str = "",
) -> None:
    """Raise InvalidArgumentError for a tensor of another shape or dtype, with the expected ones and a hint."""
    if tuple(tensor.shape) != shape or tensor.dtype not in dtypes:
        expected = f"expected {' or '.join(map(dtype_name, dtypes))} of shape {shape}"
        raise InvalidArgumentError(
            f"{what}: {name} is {dtype_name(tensor.dtype)} of shape {tuple(tensor.shape)}",
            hint=f"{expected}; {hint}" if hint else expected,
        )
