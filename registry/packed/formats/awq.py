"""AWQ checkpoints: 4 bits, of AutoAWQ's version "gemm" packed along N in the order 0 2 4 6 1 3 5 7, of its version
"gemv" along K as a PackedWeight's."""

from __future__ import annotations

from typing import Any

import torch

from ...errors import InvalidArgumentError
from ..layout import groups, pack, per_word, unpack, words
from .parts import check_bits, check_given, expect, parts, size_of_groups

WHAT = "from_awq"
# place of column 0, 1, 2 ... in a word: the inverse of the order in which the words are filled
_PLACES = (0, 4, 1, 5, 2, 6, 3, 7)


VERSIONS = ("gemm", "gemv")


def awq_parts(
    qweight: torch.Tensor,
    qzeros: torch.Tensor | None,
    scales: torch.Tensor,
    bits: int,
    group_size: int,
    version: str,
) -> dict[str, Any]:
    """Arguments of PackedWeight for AWQ's tensors, as ``PackedWeight.from_awq`` describes them."""
    check_given(WHAT, qweight=qweight, scales=scales, **({} if qzeros is None else {"qzeros": qzeros}))
    check_bits(WHAT, bits, (4,))
    if version not in VERSIONS:
        raise InvalidArgumentError(
            f"{WHAT}: version={version!r}",
            hint=f"expected {' or '.join(VERSIONS)}, as the checkpoint's quantization_config says (gemm if nothing);"
            " other versions are packed in other orders",
        )
    if qweight.dim() != 2 or scales.dim() != 2:
        shapes = f"qweight has shape {tuple(qweight.shape)} and scales {tuple(scales.shape)}"
        raise InvalidArgumentError(f"{WHAT}: {shapes}", hint="expected [K, N / 8] and [groups, N]")
    return (_gemv if version == "gemv" else _gemm)(qweight, qzeros, scales, group_size)


def _gemm(qweight: torch.Tensor, qzeros: torch.Tensor | None, scales: torch.Tensor, group_size: int) -> dict[str, Any]:
    k, n = qweight.shape[0], scales.shape[1]
    hint = ""
    if qweight.shape[1] == n:
        hint = "packed along K, so a GPTQ checkpoint: use PackedWeight.from_gptq"
    elif qweight.shape[0] == scales.shape[0]:
        hint = 'a row of words for each row of scales, so packed along K: version="gemv"'
    size = size_of_groups(WHAT, group_size, k)
    expect(WHAT, "qweight", qweight, (k, words(n, 4)), (torch.int32,), hint)
    expect(WHAT, "scales", scales, (groups(k, size), n), hint=f"for K={k} and group_size={group_size}")
    zeros = None
    if qzeros is not None:
        expect(WHAT, "qzeros", qzeros, (groups(k, size), words(n, 4)), (torch.int32,))
        zeros = _columns(qzeros)
    return parts(pack(_columns(qweight)), scales, zeros, 4, size, (n, k))


def _gemv(qweight: torch.Tensor, qzeros: torch.Tensor | None, scales: torch.Tensor, group_size: int) -> dict[str, Any]:
    """Words ``[N, K / 8]`` in the order of K; scales and words of zero points are filled up along the groups."""
    n, k = qweight.shape[0], qweight.shape[1] * per_word(4)
    size = size_of_groups(WHAT, group_size, k)
    count, width = groups(k, size), scales.shape[1]
    expect(WHAT, "qweight", qweight, (n, words(k, 4)), (torch.int32,))
    if width < count or width % per_word(4):
        expect(
            WHAT, "scales", scales, (n, words(count, 4) * per_word(4)), hint=f"for K={k} and group_size={group_size}"
        )
    expect(WHAT, "scales", scales, (n, width))
    zeros = None
    if qzeros is not None:
        expect(WHAT, "qzeros", qzeros, (n, words(width, 4)), (torch.int32,))
        zeros = unpack(qzeros.T)[:count]
    return parts(qweight.T, scales[:, :count].T, zeros, 4, size, (n, k))


def _columns(packed: torch.Tensor) -> torch.Tensor:
    """Words ``[rows, N / 8]`` as integers ``[rows, N]``."""
    elements: torch.Tensor = unpack(packed.T).T.unflatten(1, (-1, 8))
    return elements[:, :, list(_PLACES)].flatten(1)
