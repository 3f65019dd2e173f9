"""The logits of attention in pieces of some query rows: which keys a query sees, and how they are scored.

A call of 8192 queries and keys with 32 heads has 16 GiB of logits in float64: they are made and used piece by piece.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import torch

from ...problem import Problem

ENDLESS = 2**30
"""A window that no sequence fills: kernels count keys in 32 bits, and the end of a window behind them."""
_PIECE = 2**26
"""Logits of a piece: half a gigabyte in float64."""


class ScoredRows(NamedTuple):
    """Logits [batch, heads, rows, kv_len] of the query rows ``span``, -inf where a key is not seen.

    ``slope`` is the derivative of the soft cap at each of them, None without a cap.
    """

    span: slice
    logits: torch.Tensor
    slope: torch.Tensor | None


@dataclass(frozen=True)
class ScoredCall:
    """The tensors of one call, heads before rows and in ``wide``, and its attributes.

    q is [batch, heads, q_len, head_dim], k and v are [batch, kv_heads, kv_len, head_dim].
    """

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
        cls,
        heads: Sequence[torch.Tensor],
        mask: torch.Tensor | None,
        causal: bool,
        scale: float | None,
        softcap: float,
        window: int,
        wide: torch.dtype | None = None,
    ) -> ScoredCall:
        """The call with these arguments; ``heads``: q, k and v. ``wide``: float32, of float64 float64, if not given."""
        wide = wide or torch.promote_types(heads[0].dtype, torch.float32)
        factor = 1.0 / math.sqrt(heads[0].shape[-1]) if scale is None else scale
        q, k, v = (x.transpose(1, 2).to(wide) for x in heads)
        return cls(q, k, v, mask, causal, factor, softcap, window)

    @property
    def kv_len(self) -> int:
        """The number of keys."""
        return self.k.shape[2]

    def spans(self) -> list[slice]:
        """The query rows in pieces; one empty piece if there are none."""
        batch, heads, rows, _ = self.q.shape
        step = max(1, _PIECE // max(1, batch * heads * self.kv_len))
        return [slice(first, min(first + step, rows)) for first in range(0, max(rows, 1), step)]

    def scored(self, span: slice) -> ScoredRows:
        """The logits of some query rows: scaled, capped, and with the mask added."""
        logits = grouped_product(self.q[:, :, span], self.k.transpose(-1, -2)) * self.scale
        slope = None
        if self.softcap:
            capped = torch.tanh(logits / self.softcap)
            logits, slope = capped * self.softcap, 1.0 - capped * capped
        hidden = self._hidden(span)
        if self.mask is not None:
            mask = self.mask[:, :, span]
            if mask.dtype != torch.bool:
                logits = logits + mask.to(logits.dtype)
            else:
                hidden = ~mask if hidden is None else hidden | ~mask
        return ScoredRows(span, logits if hidden is None else logits.masked_fill(hidden, -math.inf), slope)

    def _hidden(self, span: slice) -> torch.Tensor | None:
        """True [rows, kv_len] where a key is not seen for its place; None if all are seen."""
        if not self.causal and self.window < 0:
            return None
        rows, kv_len, device = self.q.shape[2], self.kv_len, self.q.device
        own = torch.arange(span.start, span.stop, device=device)[:, None] + (kv_len - rows)
        after = torch.arange(kv_len, device=device)[None, :] - own
        hidden = after > (0 if self.causal else self.window)
        return hidden if self.window < 0 else hidden | (after < -self.window)


def grouped_product(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    """``x @ y``, [batch, heads, m, k] and [batch, kv_heads, k, n]: ``heads / kv_heads`` of x with each of y."""
    batch, heads, m, k = x.shape
    kv_heads = y.shape[1]
    return (x.reshape(batch, kv_heads, heads // kv_heads * m, k) @ y).view(batch, heads, m, y.shape[-1])


def group_sums(x: torch.Tensor, y: torch.Tensor, kv_heads: int) -> torch.Tensor:
    """``x.T @ y`` summed over the heads of each group: [batch, heads, m, k] and [batch, heads, m, n] to
    [batch, kv_heads, k, n]."""
    flat = [z.reshape(z.shape[0], kv_heads, z.shape[1] // kv_heads * z.shape[2], z.shape[3]) for z in (x, y)]
    return flat[0].transpose(-1, -2) @ flat[1]


def weights_of(logits: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """The softmax over keys, and the log-sum-exp [..., rows]; weights of 0 and -inf for a row that sees no key."""
    if not logits.shape[-1]:
        return logits, logits.new_full(logits.shape[:-1], -math.inf)
    top = logits.detach().amax(-1, keepdim=True)
    top = top.masked_fill(top == -math.inf, 0.0)
    weights = (logits - top).exp()
    total = weights.sum(-1, keepdim=True)
    return weights / total.masked_fill(total == 0.0, 1.0), (top + total.log())[..., 0]


def rounded_weights(weights: torch.Tensor, hidden: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    """Magnitudes that roundings of weights to ``dtype`` are relative to: each weight plus the least normal number.

    That of hidden weights is 0. Weights are rounded when the largest of a row is 1, before their sum divides them:
    below the normal numbers by as much as there.
    """
    least = torch.finfo(dtype).tiny
    return (weights + least * weights.amax(-1, keepdim=True)).masked_fill_(hidden, 0.0)


def seen_pairs(problem: Problem) -> int:
    """The number of pairs of a query and a key that it sees, of one head: what a mask hides counts as seen."""
    return pairs_within(problem.q_len, problem.kv_len, problem.causal, window_of(problem))


def pairs_within(rows: int, keys: int, causal: bool, window: int) -> int:
    """The number of pairs of a query and a key that it sees, of ``rows`` queries and ``keys`` keys of a sequence."""
    shift = keys - rows
    # keys up to the last seen one of each row, less those before its first
    last = 1 + shift if causal else keys if window < 0 else 1 + shift + window
    upto = rows * keys if not causal and window < 0 else _clamped_sum(rows, last, keys)
    return upto if window < 0 else upto - _clamped_sum(rows, shift - window, keys)


def window_of(problem: Problem) -> int:
    """The argument ``window`` of a problem's calls: one less than its span, -1 where there is none."""
    return -1 if problem.span is False else int(problem.span) - 1


def _clamped_sum(rows: int, first: int, most: int) -> int:
    """The sum over ``i`` in ``range(rows)`` of ``first + i``, none less than 0 or more than ``most``."""

    def above(start: int) -> int:
        return _triangle(start + rows - 1) - _triangle(start - 1)

    return above(first) - above(first - most)


def _triangle(n: int) -> int:
    return n * (n + 1) // 2 if n > 0 else 0
