"""Logits of attention for some query rows at a time, in fp32 or wider."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass

import torch

_PIECE_BYTES = 2**30


@dataclass(frozen=True)
class RowsOfAttention:
    """Tensors of one call with heads before rows, in fp32 or wider; ``mask``: the call's."""

    q: torch.Tensor
    k: torch.Tensor
    v: torch.Tensor
    mask: torch.Tensor | None
    causal: bool
    scale: float
    softcap: float
    window: int

    @classmethod
    def of(
        cls, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, mask: torch.Tensor | None, causal: bool,
        scale: float | None, softcap: float, window: int,
    ) -> RowsOfAttention:  # fmt: skip
        """``q`` [batch, q_len, heads, head_dim], ``k`` and ``v`` [batch, kv_len, kv_heads, head_dim]."""
        wide = torch.promote_types(q.dtype, torch.float32)
        q, k, v = (x.transpose(1, 2).to(wide) for x in (q, k, v))
        return cls(q, k, v, mask, causal, q.shape[-1] ** -0.5 if scale is None else scale, softcap, window)

    @property
    def groups(self) -> int:
        """Heads of keys and values."""
        return self.k.shape[1]

    def spans(self) -> Iterator[slice]:
        """The rows in pieces of a gigabyte of logits."""
        batch, heads, rows, _ = self.q.shape
        row = max(1, batch * heads * self.k.shape[2] * self.q.element_size())
        step = max(1, _PIECE_BYTES // row)
        return (slice(first, min(first + step, rows)) for first in range(0, rows, step))

    def by_group(self, x: torch.Tensor) -> torch.Tensor:
        """[batch, heads, rows, ...] as [batch, kv_heads, heads of a group * rows, ...]."""
        return x.reshape(x.shape[0], self.groups, -1, x.shape[-1])

    def logits(self, span: slice) -> tuple[torch.Tensor, torch.Tensor | None]:
        """Logits [batch, heads, rows, kv_len], -inf where a key is not seen, and the slope of a soft cap."""
        q = self.q[:, :, span]
        found = (self.by_group(q) @ self.k.transpose(-1, -2)).mul_(self.scale)
        found = found.view(*q.shape[:3], self.k.shape[2])
        slope = None
        if self.softcap:
            found.div_(self.softcap).tanh_()
            slope = 1.0 - found.square()
            found.mul_(self.softcap)
        self._add_mask(found, span)
        return found, slope

    def _add_mask(self, logits: torch.Tensor, span: slice) -> None:
        if self.mask is not None and self.mask.dtype == torch.bool:
            logits.masked_fill_(~self.mask[:, :, span], -math.inf)
        elif self.mask is not None:
            logits.add_(self.mask[:, :, span])
        if not self.causal and self.window < 0:
            return
        keys, device = self.k.shape[2], logits.device
        own = torch.arange(span.start, span.stop, device=device)[:, None] + (keys - self.q.shape[2])
        after = torch.arange(keys, device=device) - own
        logits.masked_fill_(after > (0 if self.causal else self.window), -math.inf)
        if self.window >= 0:
            logits.masked_fill_(after < -self.window, -math.inf)
