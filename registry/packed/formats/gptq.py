"""GPTQ checkpoints (AutoGPTQ, GPTQModel): words along K as PackedWeight's, zero points packed along N."""

from __future__ import annotations

from typing import Any

import torch

from ...errors import InvalidArgumentError
from ..layout import groups, per_word, unpack, words
from .parts import check_bits, check_given, expect, parts, size_of_groups

BITS = (2, 4, 8)
FORMATS = ("gptq", "gptq_v2")


def gptq_parts(
    qweight: torch.Tensor,
    qzeros: torch.Tensor | None,
    scales: torch.Tensor,
    g_idx: torch.Tensor | None,
    bits: int,
    group_size: int,
    checkpoint_format: str,
) -> dict[str, Any]:
    """Arguments of PackedWeight for GPTQ's tensors, as ``PackedWeight.from_gptq`` describes them."""
    what = "from_gptq"
    optional = {name: value for name, value in (("qzeros", qzeros), ("g_idx", g_idx)) if value is not None}
    check_given(what, qweight=qweight, scales=scales, **optional)
    check_bits(what, bits, BITS, "GPTQ's words of 3 bits hold parts of elements, which a PackedWeight does not")
    if checkpoint_format not in FORMATS:
        raise InvalidArgumentError(
            f"{what}: checkpoint_format={checkpoint_format!r}",
            hint=f"expected {' or '.join(FORMATS)}, as the checkpoint's quantization_config says (gptq if nothing)",
        )
    if qweight.dim() != 2 or scales.dim() != 2:
        shapes = f"qweight has shape {tuple(qweight.shape)} and scales {tuple(scales.shape)}"
        raise InvalidArgumentError(f"{what}: {shapes}", hint="expected [K / elements in a word, N] and [groups, N]")
    n, hint = scales.shape[1], ""
    if qweight.shape[1] * per_word(bits) == n:
        hint = "packed along N, so an AWQ checkpoint: use PackedWeight.from_awq"
    k = qweight.shape[0] * per_word(bits) if g_idx is None else g_idx.numel()
    size = size_of_groups(what, group_size, k)
    expect(what, "qweight", qweight, (words(k, bits), n), (torch.int32,), hint)
    expect(what, "scales", scales, (groups(k, size), n), hint=f"for K={k} and group_size={group_size}")
    if g_idx is not None:
        expect(what, "g_idx", g_idx, (k,), (torch.int32, torch.int64))
    zeros = None
    if qzeros is not None:
        expect(what, "qzeros", qzeros, (groups(k, size), words(n, bits)), (torch.int32,))
        zeros = unpack(_version_2(qzeros, bits, checkpoint_format).T, bits, n).T
    return parts(qweight, scales, zeros, bits, size, (n, k), g_idx)


def _version_2(qzeros: torch.Tensor, bits: int, checkpoint_format: str) -> torch.Tensor:
    """The words of zero points without the older format's offset: it stores them minus 1, subtracted from whole words.

    A zero point of 0 has borrowed from its neighbour, so 1 must be added to whole words, as GPTQModel does.
    """
    if checkpoint_format == "gptq_v2":
        return qzeros
    ones = sum(1 << place for place in range(0, 32, bits))
    return qzeros + ones
