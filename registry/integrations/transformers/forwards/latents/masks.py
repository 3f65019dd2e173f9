"""Which latents a new token sees, as lengths and, where they are not the first ones, a table of pages."""

from __future__ import annotations

import threading
from typing import NamedTuple

import torch
from torch.compiler import is_dynamo_compiling

from ..full_lengths import full_lengths

_MOST = 2**31
"""Latents of a table are counted by int32."""


class SeenLatents(NamedTuple):
    """``lengths`` of sequences, int32 [batch], and their latents' places among those of all, int32 [batch, kv_len].

    Without a table a sequence's latents are its first ones. Latents of a table are pages of one token.
    """

    lengths: torch.Tensor
    table: torch.Tensor | None


class LastMask(threading.local):
    """The mask of this thread's latest call, with what it shows: the layers of a model get one mask."""

    def __init__(self) -> None:
        self.mask: torch.Tensor | None = None
        self.key: tuple[int, ...] = ()
        self.seen: SeenLatents | None = None


_LAST = LastMask()


def seen_latents(mask: torch.Tensor | None, latent: torch.Tensor) -> SeenLatents | None:
    """What ``mask`` shows of latents [batch, 1, kv_len, width]; None for a mask of another kind.

    ``mask`` is None for all of them, int32 [batch, 1, 1, 1] for so many of the first, or bool [batch or 1, 1, 1, at
    least kv_len].
    """
    batch, _, kv_len, _ = latent.shape
    if mask is None:
        return SeenLatents(full_lengths(batch, kv_len, latent.device), None)
    if mask.dtype == torch.int32:
        return SeenLatents(mask.reshape(-1), None)
    fits = mask.dim() == 4 and mask.shape[1:3] == (1, 1) and mask.shape[0] in {1, batch} and mask.shape[3] >= kv_len
    if mask.dtype != torch.bool or not fits or batch * kv_len >= _MOST:
        return None
    if is_dynamo_compiling() or mask.is_inference() or _capturing(mask):
        return _listed(mask, batch, kv_len)
    key = mask._version, batch, kv_len
    if _LAST.mask is not mask or _LAST.key != key:
        _LAST.mask, _LAST.key, _LAST.seen = mask, key, _listed(mask, batch, kv_len)
    return _LAST.seen


def _listed(mask: torch.Tensor, batch: int, kv_len: int) -> SeenLatents:
    seen = mask[:, 0, 0, :kv_len].expand(batch, kv_len)
    counts = seen.cumsum(-1)
    place = torch.where(seen, counts - 1, kv_len)
    own = torch.arange(batch * kv_len, dtype=torch.int32, device=mask.device).view(batch, kv_len)
    table = own.new_zeros(batch, kv_len + 1).scatter_(1, place, own)
    return SeenLatents(counts[:, -1].to(torch.int32), table[:, :kv_len].contiguous())


def _capturing(tensor: torch.Tensor) -> bool:
    return tensor.device.type == "cuda" and torch.cuda.is_current_stream_capturing()
