"""Bits in words: how a weight's integers are packed into int32, unpacked and dequantised.

``qweight`` is int32 ``[ceil(K / per_word), N]`` with ``per_word = 32 / bits``, bits along K: element ``k`` of a column
stands at bit ``bits * (k % per_word)`` of word ``k // per_word``. The bits after K in the last word are 0.
"""

from __future__ import annotations

import torch

from .codebooks import levels

BITS = (1, 2, 4, 8)
LAYOUT = "gptq"
ACT_ORDER = "gptq_act_order"
CHUNK = 2**24
"""The number of elements quantised or unpacked at a time, so that a large weight needs no complete float32 copy."""


def per_word(bits: int) -> int:
    """Elements in a word."""
    return 32 // bits


def words(k: int, bits: int) -> int:
    """Words of a column of ``k`` elements."""
    return -(-k // per_word(bits))


def groups(k: int, group_size: int) -> int:
    """Groups of a column of ``k`` elements; the last may be shorter."""
    return -(-k // group_size)


def symmetric_zero(bits: int) -> float:
    """The zero point of a weight without zero points: the middle of its levels, which of one bit are 0 and 1."""
    return 0.5 if bits == 1 else 2.0 ** (bits - 1)


def layout_name(codebook: str | None, act_order: bool) -> str:
    """The name of the layout: the codebook's name, "gptq", or "gptq_act_order" if ``g_idx`` gives the groups."""
    return codebook or (ACT_ORDER if act_order else LAYOUT)


def pack(q: torch.Tensor, bits: int = 4) -> torch.Tensor:
    """Integers 0 to ``2**bits - 1``, ``[K, N]``, as int32 words."""
    count = per_word(bits)
    packed = torch.zeros((words(q.shape[0], bits), q.shape[1]), dtype=torch.int32, device=q.device)
    for place in range(min(count, q.shape[0])):
        # of row-major parts the words' sizes are known without torch's compiler where there are no data
        elements = q[place::count].to(torch.int32).contiguous()
        packed[: elements.shape[0]] |= elements << (bits * place)
    return packed


def unpack(qweight: torch.Tensor, bits: int = 4, k: int | None = None) -> torch.Tensor:
    """Words as integers 0 to ``2**bits - 1``, int32 ``[K, N]``; without ``k`` all elements of the words."""
    shifts = torch.arange(0, 32, bits, dtype=torch.int32, device=qweight.device)
    # the shift is arithmetic: the mask also removes the sign that the highest element leaves
    elements: torch.Tensor = (qweight.unsqueeze(1) >> shifts[:, None]) & (2**bits - 1)
    return elements.flatten(0, 1)[:k]


def dequantized(  # noqa: PLR0913
    qweight: torch.Tensor,
    scales: torch.Tensor,
    zeros: torch.Tensor | None,
    group_size: int,
    dtype: torch.dtype,
    *,
    bits: int = 4,
    k: int | None = None,
    g_idx: torch.Tensor | None = None,
    codebook: str | None = None,
) -> torch.Tensor:
    """The weight ``[K, N]``, computed in ``dtype``; without ``k`` the words are full."""
    q, scales = unpack(qweight, bits, k), scales.to(dtype)
    count = q.shape[0]
    if codebook is not None:
        q, zero = levels(codebook, dtype, q.device)[q], None
    else:
        q, zero = q.to(dtype), symmetric_zero(bits) if zeros is None else zeros.to(dtype)
    if g_idx is None and count % group_size == 0:
        # the scales stay small beside the weight
        q, scales = q.unflatten(0, (-1, group_size)), scales.unsqueeze(1)
        zero = zero.unsqueeze(1) if isinstance(zero, torch.Tensor) else zero
    else:
        group = torch.arange(count, device=q.device) // group_size if g_idx is None else g_idx
        scales, zero = scales[group], zero[group] if isinstance(zero, torch.Tensor) else zero
    return ((q if zero is None else q - zero) * scales).flatten(0, -2)


def piece(length: int) -> int:
    """The number of rows or columns of ``length`` elements that are converted at a time."""
    return max(1, CHUNK // max(1, length))


def column_pieces(
    qweight: torch.Tensor, scales: torch.Tensor, zeros: torch.Tensor | None, bits: int = 4
) -> list[tuple[torch.Tensor, torch.Tensor, torch.Tensor | None]]:
    """The parts of a weight for a few columns at a time, about ``CHUNK`` elements each."""
    width = piece(per_word(bits) * qweight.shape[0])
    packed, parts = torch.split(qweight, width, 1), torch.split(scales, width, 1)
    zero_parts = [None] * len(packed) if zeros is None else torch.split(zeros, width, 1)
    return list(zip(packed, parts, zero_parts, strict=True))
