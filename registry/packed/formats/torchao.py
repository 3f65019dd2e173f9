"""torchao's tensor subclasses of weight-only quantisation (0.18): Int4Tensor, Int4TilePackedTo4dTensor, Int8Tensor,
IntxUnpackedToInt8Tensor, NF4Tensor. They are known by the names of their classes and attributes."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from ...errors import InvalidArgumentError
from ..layout import pack
from .bitsandbytes import nf4_parts
from .parts import expect, parts

WHAT = "from_torchao"


def torchao_parts(tensor: Any) -> dict[str, Any]:
    """Arguments of PackedWeight for a tensor of torchao, as ``PackedWeight.from_torchao`` describes them."""
    tensor = getattr(tensor, "data", tensor) if type(tensor) is torch.nn.Parameter else tensor
    name = type(tensor).__name__
    if name not in _KINDS:
        raise InvalidArgumentError(
            f"{WHAT}: {name} is not supported",
            hint=f"expected {', '.join(_KINDS)}; quantise the weight from which it was made, by registry.quantize",
        )
    if tensor.dim() != 2:
        raise InvalidArgumentError(f"{WHAT}: shape {tuple(tensor.shape)}, expected [N, K]")
    if getattr(tensor, "act_pre_scale", None) is not None:
        raise InvalidArgumentError(
            f"{WHAT}: act_pre_scale scales the activations, which a PackedWeight does not", hint="scale them before"
        )
    return _KINDS[name](tensor)


def _int4(tensor: Any) -> dict[str, Any]:
    """Int4Tensor: a byte holds two neighbours along K, -8 to 7, the first in its lower half; q * scale + zero_point."""
    n, k = tensor.shape
    expect(WHAT, "qdata", tensor.qdata, (n, k // 2), (torch.int8, torch.uint8))
    bytes_ = tensor.qdata.view(torch.uint8)
    q = torch.stack((bytes_ & 15, bytes_ >> 4), 2).reshape(n, k) ^ 8
    return _from_shift(q, tensor.scale, tensor.zero_point, tensor.block_size[1])


def _tiles(tensor: Any) -> dict[str, Any]:
    """Int4TilePackedTo4dTensor: tinygemm's tiles, words [N / 8, K / 128, 32 lanes, 4]; weights as in ``_int4``."""
    n, k = tensor.shape
    tiles_n, tiles_k, lanes, words = tensor.qdata.shape
    if (lanes, words) != (32, 4):
        raise InvalidArgumentError(f"{WHAT}: qdata has shape {tuple(tensor.qdata.shape)}", hint="expected 8 k-tiles")
    # a word has 8 nibbles of two k-tiles of 16: k at 0, 1, 8 and 9 of both for a lane
    shifts = torch.tensor((0, 16, 4, 20, 8, 24, 12, 28), dtype=torch.int32, device=tensor.qdata.device)
    nibbles = (tensor.qdata.unsqueeze(-1) >> shifts) & 15
    # [tile n, tile k, row, quarter, pair of k-tiles, k-tile, half, element], of which tile n and row are n
    nibbles = nibbles.view(tiles_n, tiles_k, 8, 4, 4, 2, 2, 2).permute(0, 2, 1, 4, 5, 6, 3, 7)
    q = nibbles.reshape(tiles_n * 8, tiles_k * 128)[:n, :k]
    size = tensor.block_size[1]
    both = tensor.scale_and_zero[: -(-k // size), :n]
    return _from_shift(q, both[..., 0], both[..., 1], size)


def _from_shift(q: torch.Tensor, scale: torch.Tensor, shift: torch.Tensor, group_size: int) -> dict[str, Any]:
    """The parts of weights ``(q - 8) * scale + shift``, with scales and shifts [groups, N]."""
    n, k = q.shape
    for name, value in (("scale", scale), ("zero_point", shift)):
        expect(WHAT, name, value, (-(-k // group_size), n))
    return parts(pack(q.T), scale, 8 - shift.float() / scale.float(), 4, group_size, (n, k))


def _int8(tensor: Any) -> dict[str, Any]:
    return _signed(tensor, 8)


def _intx(tensor: Any) -> dict[str, Any]:
    """IntxUnpackedToInt8Tensor: elements of 1 to 8 bits in int8; 3 bits are converted to 4, and 5, 6 and 7 to 8."""
    bits = int(str(tensor.target_dtype).removeprefix("torch.int"))
    return _signed(tensor, next(held for held in (1, 2, 4, 8) if held >= bits))


def _signed(tensor: Any, bits: int) -> dict[str, Any]:
    """The parts of int8 elements [N, K] around 0, with scales [N, groups] or one scale for all."""
    n, k = tensor.qdata.shape
    rows, size = tensor.block_size
    expect(WHAT, "qdata", tensor.qdata, (n, k), (torch.int8,))
    if rows not in (1, n):
        raise InvalidArgumentError(f"{WHAT}: block_size {tuple(tensor.block_size)}", hint="expected (1, group_size)")
    middle = 2 ** (bits - 1)
    zero = torch.zeros_like(tensor.scale) if tensor.zero_point is None else tensor.zero_point
    scales, zeros = (value.reshape(n // rows, -1).expand(n, -1).T for value in (tensor.scale, zero))
    expect(WHAT, "scale", scales, (-(-k // size), n))
    q = pack(tensor.qdata.T.int() + middle, bits)
    return parts(q, scales, zeros.float() + middle, bits, size, (n, k))


def _nf4(tensor: Any) -> dict[str, Any]:
    factors = tensor.quantization_factor.repeat_interleave(tensor.scaler_block_size)
    scales = (tensor.quantized_scalers / factors).to(tensor.dtype) + tensor.scaler_mean
    return nf4_parts(WHAT, tensor.quantized_data, scales, tensor.block_size, tuple(tensor.shape))


_KINDS: dict[str, Callable[[Any], dict[str, Any]]] = {
    "Int4Tensor": _int4,
    "Int4TilePackedTo4dTensor": _tiles,
    "Int8Tensor": _int8,
    "IntxUnpackedToInt8Tensor": _intx,
    "NF4Tensor": _nf4,
}
