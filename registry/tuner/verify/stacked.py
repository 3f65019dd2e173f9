"""Results of several calls, stacked so that they are compared at once: dozens one by one take ms."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from ...implementation import Tensors

_STACKED_BYTES = 64 << 20
"""Results of calls: larger ones are not copied to be compared at once."""


def stacked(calls: Sequence[Tensors]) -> Sequence[Tensors]:
    """The results of several calls as those of one, each result stacked; as they are where they are large or differ."""
    everything = [result for results in calls for result in results]
    forms = {tuple((result.shape, result.dtype, result.device) for result in results) for results in calls}
    # other classes of tensors may compute when they are looked at, as they like
    plain = all(type(result) is torch.Tensor for result in everything)
    if not plain or len(forms) > 1 or sum(result.nbytes for result in everything) > _STACKED_BYTES:
        return calls
    return [tuple(map(torch.stack, zip(*calls, strict=True)))]
