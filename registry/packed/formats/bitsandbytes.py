"""bitsandbytes' nf4: two elements a byte, the first in the upper half, in blocks of the flattened weight."""

from __future__ import annotations

from typing import Any

import torch

from ...errors import InvalidArgumentError
from ..layout import pack
from .parts import check_given, expect, parts

WHAT = "from_bitsandbytes"
_STATE = ("absmax", "quant_type", "blocksize", "shape")
_ROWS = 32
"""Rows of the weight whose elements stand together in the order for the CPU."""


def bitsandbytes_parts(packed: torch.Tensor, quant_state: Any) -> dict[str, Any]:
    """Arguments of PackedWeight for bitsandbytes' nf4, as ``PackedWeight.from_bitsandbytes`` describes them."""
    if not all(hasattr(quant_state, name) for name in _STATE):
        raise InvalidArgumentError(
            f"{WHAT}: quant_state is a {type(quant_state).__name__} without one of {', '.join(_STATE)}",
            hint="expected Params4bit.quant_state, which bitsandbytes makes when it quantises the weight",
        )
    check_given(WHAT, packed=packed, absmax=quant_state.absmax)
    if quant_state.quant_type != "nf4":
        raise InvalidArgumentError(f"{WHAT}: quant_type={quant_state.quant_type!r}", hint="only nf4 is supported")
    if getattr(quant_state, "packing_format_for_cpu", False):
        return _of_cpu_order(packed, quant_state.absmax, quant_state.blocksize, tuple(quant_state.shape))
    scales = quant_state.absmax
    inner = getattr(quant_state, "state2", None)
    if inner is not None:
        # double quantisation: the scales count the levels of a table, in blocks of their own
        blocks = inner.absmax.repeat_interleave(inner.blocksize)[: scales.numel()]
        scales = inner.code[scales.long()] * blocks + quant_state.offset
    # quant_storage, as FSDP wants it: the same bytes in another dtype
    stored = packed if packed.dtype == torch.uint8 else packed.reshape(-1).view(torch.uint8)
    return nf4_parts(WHAT, stored, scales.float(), quant_state.blocksize, tuple(quant_state.shape))


def _of_cpu_order(
    packed: torch.Tensor, scales: torch.Tensor, block_size: int, shape: tuple[int, ...]
) -> dict[str, Any]:
    """The arguments for a weight that bitsandbytes has multiplied by on a CPU with AVX-512, which reorders it.

    Bytes are ``[N / 32, K / 2, 32]``: an even and the next column of 32 rows, as 64 elements of which the first 32 are
    in the lower halves. Scales are bfloat16 ``[K / block_size, N]``; double quantisation has been undone.
    """
    n, k = shape if len(shape) == 2 else (0, 0)
    if not n or n % _ROWS or k % block_size:
        raise InvalidArgumentError(
            f"{WHAT}: blocks of {block_size} in a weight of shape {shape}, in the order for the CPU",
            hint=f"expected [N, K], of which {_ROWS} divides N and the blocks divide K",
        )
    expect(WHAT, "packed", packed, (n, k // 2), (torch.uint8,))
    expect(WHAT, "absmax", scales, (k // block_size, n))
    pairs = packed.reshape(n // _ROWS, k // 2, _ROWS)
    elements = torch.cat((pairs & 15, pairs >> 4), -1).unflatten(-1, (_ROWS, 2))
    q = elements.permute(1, 3, 0, 2).reshape(k, n)
    return parts(pack(q), scales.float(), None, 4, block_size, (n, k)) | {"codebook": "nf4"}


def nf4_parts(
    what: str, packed: torch.Tensor, scales: torch.Tensor, block_size: int, shape: tuple[int, ...]
) -> dict[str, Any]:
    """PackedWeight's arguments of nf4 in blocks of the flattened weight, with one scale each."""
    if len(shape) != 2 or shape[1] % block_size:
        raise InvalidArgumentError(
            f"{what}: blocks of {block_size} in a weight of shape {shape}",
            hint="expected [N, K] and blocks that divide K, so that none is in two rows",
        )
    n, k = shape
    expect(what, "packed", packed.reshape(-1), (n * k // 2,), (torch.uint8,))
    expect(what, "scales", scales.reshape(-1), (n * k // block_size,))
    q = torch.stack((packed.reshape(-1) >> 4, packed.reshape(-1) & 15), 1).reshape(n, k)
    scales = scales.reshape(n, k // block_size).T
    return parts(pack(q.T), scales, None, 4, block_size, (n, k)) | {"codebook": "nf4"}
