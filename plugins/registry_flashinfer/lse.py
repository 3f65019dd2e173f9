"""FlashInfer's log-sum-exps, which are logarithms to the base 2 with the heads last."""

from __future__ import annotations

import math

import torch


def natural(lse: torch.Tensor, batch: int) -> torch.Tensor:
    """``[batch, heads, q_len]``, to the base e, of ``[batch * q_len, heads]`` to the base 2."""
    turned = lse.view(batch, -1, lse.shape[-1]).transpose(1, 2)
    return torch.mul(turned, math.log(2.0), out=torch.empty(turned.shape, dtype=lse.dtype, device=lse.device))
