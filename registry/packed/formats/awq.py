"""AWQ checkpoints (AutoAWQ's "gemm" version): 4 bits, packed along N in the order 0 2 4 6 1 3 5 7."""

from __future__ import annotations

from typing import Any

import torch

from ...errors import InvalidArgumentError
from ..layout import groups, pack, unpack, words
from .parts import check_bits, check_given, expect, parts, size_of_groups

# place of column 0, 1, 2 ... in a word: the inverse of the order in which the words are filled
_PLACES = (0, 4, 1, 5, 2, 6, 3, 7)


def awq_parts(
    qweight: torch.Tensor, qzeros: torch.Tensor | None, scales: torch.Tensor, bits: int, group_size: int
) -> dict[str, Any]:
    """Arguments of PackedWeight for AWQ's tensors, as ``PackedWeight.from_awq`` describes them."""
    what = "from_awq"
    check_given(what, qweight=qweight, scales=scales, **({} if qzeros is None else {"qzeros": qzeros}))
    check_bits(what, bits, (4,))
    if qweight.dim() != 2 or scales.dim() != 2:
        shapes = f"qweight has shape {tuple(qweight.shape)} and scales {tuple(scales.shape)}"
        raise InvalidArgumentError(f"{what}: {shapes}", hint="expected [K, N / 8] and [groups, N]")
    k, n = qweight.shape[0], scales.shape[1]
    hint = ""
    if qweight.shape[1] == n:
        hint = "packed along K, so a GPTQ checkpoint: use PackedWeight.from_gptq"
    size = size_of_groups(what, group_size, k)
    expect(what, "qweight", qweight, (k, words(n, 4)), (torch.int32,), hint)
    expect(what, "scales", scales, (groups(k, size), n), hint=f"for K={k} and group_size={group_size}")
    zeros = None
    if qzeros is not None:
        expect(what, "qzeros", qzeros, (groups(k, size), words(n, 4)), (torch.int32,))
        zeros = _columns(qzeros)
    return parts(pack(_columns(qweight)), scales, zeros, 4, size, (n, k))


def _columns(packed: torch.Tensor) -> torch.Tensor:
    """Words ``[rows, N / 8]`` as integers ``[rows, N]``."""
    elements: torch.Tensor = unpack(packed.T).T.unflatten(1, (-1, 8))
    return elements[:, :, list(_PLACES)].flatten(1)
