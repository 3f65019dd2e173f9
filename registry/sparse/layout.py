"""The layout of a 2:4 sparse weight.

``values`` is ``[N, K / 2]``: of each four elements along K the two kept, the lower place first. ``meta`` is int32
``[N, ceil(K / 32)]``: the four bits of group ``g`` of a row are at bit ``4 * (g % 8)`` of word ``g // 8``, the lower
place in their low two bits, the higher one in the others, as the sparse tensor cores number them. The bits after K in
the last word are 0, and must not be read.
"""

from __future__ import annotations

import torch

from ..packed.layout import pack, unpack

CODES = (4, 8, 12, 9, 13, 14)
"""The four bits of the places 0 and 1, 0 and 2, 0 and 3, 1 and 2, 1 and 3, 2 and 3."""


def meta_words(k: int) -> int:
    """Words of a row of ``k`` elements."""
    return -(-k // 32)


def pack_codes(codes: torch.Tensor) -> torch.Tensor:
    """Codes ``[N, groups]`` as ``meta``."""
    return pack(codes.T, 4).T.contiguous()


def dense(values: torch.Tensor, meta: torch.Tensor) -> torch.Tensor:
    """The weight ``[N, K]`` in the values' dtype, 0 where nothing was kept."""
    pairs = values.unflatten(1, (-1, 2))
    codes = unpack(meta.T, 4, pairs.shape[1]).T
    places = torch.stack((codes & 3, codes >> 2), -1).long()
    spread: torch.Tensor = pairs.new_zeros((*pairs.shape[:2], 4)).scatter(2, places, pairs)
    return spread.flatten(1)


def greatest(sizes: torch.Tensor) -> torch.Tensor:
    """A mask of the two greatest of each four, ``[..., 4]``; of equal ones the first."""
    place = torch.arange(4, device=sizes.device)
    mine, others = sizes.unsqueeze(-1), sizes.unsqueeze(-2)
    before = (others > mine) | ((others == mine) & (place < place[:, None]))
    kept: torch.Tensor = before.sum(-1) < 2
    return kept


def compressed(weight: torch.Tensor, kept: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """``values`` and ``meta`` of a weight ``[N, K]`` of which ``kept``, ``[N, K / 4, 4]``, has two of each four."""
    values = weight.unflatten(1, (-1, 4))[kept].view(weight.shape[0], -1)
    table = torch.zeros(16, dtype=torch.int32, device=weight.device)
    table[torch.tensor([1 << (code & 3) | 1 << (code >> 2) for code in CODES], device=weight.device)] = torch.tensor(
        CODES, dtype=torch.int32, device=weight.device
    )
    bits = (kept << torch.arange(4, device=kept.device)).sum(-1)
    return values, pack_codes(table[bits])
