"""Checks of packed weights: formats, and shapes and dtypes of their parts."""

from __future__ import annotations

from typing import Literal

import torch
from torch.compiler import is_dynamo_compiling

from ..errors import InvalidArgumentError
from ..problem import TensorSpec, dtype_name
from .codebooks import CODEBOOKS
from .layout import ACT_ORDER, BITS, LAYOUT, groups, words

GROUP_SIZES = (16, 32, 64, 128, 256)
SCALE_DTYPES = (torch.float32, torch.float16, torch.bfloat16)
LAYOUTS = (LAYOUT, ACT_ORDER, *CODEBOOKS)

Shaped = torch.Tensor | TensorSpec
"""A tensor or its spec."""

ZeroKind = Literal["none", "integer", "float"]


def zero_kind(zeros: Shaped | None) -> ZeroKind:
    """Kind of zero points: none, integers (in half precision, exact), or any numbers (in float32)."""
    if zeros is None:
        return "none"
    return "float" if zeros.dtype == torch.float32 else "integer"


def check_format(what: str, bits: int, group_size: int, k: int, layout: str) -> None:
    """Raise InvalidArgumentError for an unknown format."""
    if bits not in BITS:
        raise InvalidArgumentError(f"{what}: bits={bits}", hint=f"expected one of {', '.join(map(str, BITS))}")
    if layout not in LAYOUTS:
        raise InvalidArgumentError(
            f"{what}: layout {layout!r}, only {', '.join(map(repr, LAYOUTS))} are supported",
            hint="tensors of another format: PackedWeight.from_awq, from_gptq and the others",
        )
    if layout in CODEBOOKS and bits != 4:
        raise InvalidArgumentError(f"{what}: bits={bits}, but the codebook {layout} has levels for 4 bits")
    if k < 1:
        raise InvalidArgumentError(f"{what}: K={k}, expected a positive integer")
    if group_size != k and group_size not in GROUP_SIZES:
        raise InvalidArgumentError(
            f"{what}: group_size={group_size}", hint=f"expected {', '.join(map(str, GROUP_SIZES))} or K={k}"
        )


def check_parts(  # noqa: PLR0913
    what: str,
    qweight: Shaped,
    scales: Shaped,
    zeros: Shaped | None,
    group_size: int,
    shape: tuple[int, int],
    *,
    bits: int = 4,
    layout: str = LAYOUT,
    g_idx: Shaped | None = None,
) -> None:
    """Raise InvalidArgumentError for tensors that do not make a weight of that logical shape ``(N, K)``."""
    n, k = shape
    count = groups(k, group_size)
    _check_part(what, "qweight", qweight, (words(k, bits), n), (torch.int32,))
    _check_part(what, "scales", scales, (count, n), SCALE_DTYPES)
    if zeros is not None:
        if layout in CODEBOOKS:
            raise InvalidArgumentError(f"{what}: zeros beside the codebook {layout}", hint="pass zeros=None")
        _check_part(what, "zeros", zeros, (count, n), tuple(dict.fromkeys((scales.dtype, torch.float32))))
    if (g_idx is not None) != (layout == ACT_ORDER):
        given = "no g_idx" if g_idx is None else "a g_idx"
        raise InvalidArgumentError(f"{what}: {given} beside layout {layout!r}", hint=f"g_idx is {ACT_ORDER}'s")
    if g_idx is not None:
        _check_part(what, "g_idx", g_idx, (k,), (torch.int32,))
    devices = {part.device for part in (qweight, scales, zeros, g_idx) if part is not None}
    if len(devices) > 1:
        raise InvalidArgumentError(f"{what}: its tensors are on several devices: {', '.join(map(str, devices))}")


def _check_part(what: str, name: str, part: Shaped, shape: tuple[int, ...], dtypes: tuple[torch.dtype, ...]) -> None:
    if tuple(part.shape) != shape or part.dtype not in dtypes:
        raise InvalidArgumentError(
            f"{what}: {name} is {dtype_name(part.dtype)} of shape {tuple(part.shape)}",
            hint=f"expected {' or '.join(map(dtype_name, dtypes))} of shape {shape}",
        )


def check_order(what: str, g_idx: torch.Tensor, group_size: int) -> None:
    """Raise InvalidArgumentError unless ``g_idx`` is a permutation of full groups, of which only the last is shorter.

    This reads the values, which waits for a GPU; values that are not in memory (meta, traced) are not checked.
    """
    if is_dynamo_compiling() or g_idx.device.type == "meta" or type(g_idx) not in (torch.Tensor, torch.nn.Parameter):
        return
    count = groups(len(g_idx), group_size)
    low, high = (int(value) for value in torch.aminmax(g_idx))
    if low < 0 or high >= count:
        raise InvalidArgumentError(f"{what}: g_idx has groups {low} to {high}", hint=f"expected 0 to {count - 1}")
    sizes = torch.bincount(g_idx, minlength=count)
    if (largest := int(sizes.max())) > group_size:
        raise InvalidArgumentError(
            f"{what}: g_idx has {largest} elements in group {int(sizes.argmax())}",
            hint=f"at most group_size={group_size} are one group's",
        )
    if count > 1 and int((short := sizes[: count - 1]).min()) < group_size:
        raise InvalidArgumentError(
            f"{what}: g_idx has {int(short.min())} elements in group {int(short.argmin())}",
            hint=f"only the last group may have fewer than group_size={group_size}",
        )


def check_tensor(what: str, value: object) -> None:
    """Raise InvalidArgumentError unless ``value`` is a dense tensor."""
    if not isinstance(value, torch.Tensor):
        raise InvalidArgumentError(f"{what} is a {type(value).__name__}, expected a Tensor")
    if value.layout != torch.strided:
        raise InvalidArgumentError(f"{what} is {value.layout}, expected torch.strided", hint="use to_dense()")
    refuse_nested(what, value)


def refuse_nested(what: str, value: object) -> None:
    """Raise InvalidArgumentError for a nested tensor: torch's guard ends the process when it is given one."""
    if isinstance(value, torch.Tensor) and value.is_nested:
        raise InvalidArgumentError(f"{what} is a nested tensor, expected a dense one", hint="use to_padded_tensor(0.0)")


def check_integers(what: str, **values: object) -> None:
    """Raise InvalidArgumentError unless all values are integers; True and False are none."""
    for name, value in values.items():
        if isinstance(value, bool) or not isinstance(value, int):
            raise InvalidArgumentError(f"{what}: {name} must be an integer, got {value!r}")


def check_codebook(what: str, codebook: object) -> None:
    """Raise InvalidArgumentError unless ``codebook`` is None or a codebook's name."""
    if codebook is not None and codebook not in CODEBOOKS:
        raise InvalidArgumentError(f"{what}: codebook={codebook!r}", hint=f"expected None or {', '.join(CODEBOOKS)}")
