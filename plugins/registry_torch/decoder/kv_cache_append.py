"""kv_cache_append: torch's indexed copies."""

from __future__ import annotations

from typing import Any

import torch

from registry.artifact import Built
from registry.device import Device
from registry.implementation import Run, Tensors
from registry.problem import Problem
from registry.space import Config

from ..native import Native

_ADDED = {"kv_dtype": ("int8",)}
_MOST = {torch.float8_e4m3fn: 448.0, torch.int8: 127.0}


def _append(
    key: torch.Tensor, value: torch.Tensor, key_cache: torch.Tensor, value_cache: torch.Tensor, slots: torch.Tensor,
    k_scale: torch.Tensor | None, v_scale: torch.Tensor | None,
) -> None:  # fmt: skip
    """Write without waiting for the slots: a skipped token repeats the write of one that is not, if there is one."""
    written = slots >= 0
    tokens = torch.where(written, torch.arange(len(slots), device=slots.device), written.to(torch.int32).argmax())
    slots, some = slots[tokens].clamp_min(0), written.any()
    for x, cache, scale in ((key, key_cache, k_scale), (value, value_cache, v_scale)):
        new, held = x[tokens], cache
        if scale is not None:
            # torch's own conversion would make NaN of what is too large, and any integer of NaN
            most = _MOST[cache.dtype]
            new = (new.float() / scale).clamp_(-most, most)
            new = new.round_().nan_to_num_(0.0) if cache.dtype == torch.int8 else new
            new = new.to(cache.dtype).view(torch.uint8)
            held = cache.view(torch.uint8)
        place = (slots // cache.shape[1], slots % cache.shape[1])
        held[place] = torch.where(some, new, held[place])


class KvCacheAppend(Native):
    """The tokens that are written, gathered, and an indexed copy into each cache."""

    op = "kv_cache_append"
    added = _ADDED

    def bind(self, problem: Problem, config: Config, device: Device, built: Built) -> Run:
        """The run in place, for any layout and size."""

        def run(_outputs: Tensors, arguments: tuple[Any, ...], _scratch: Tensors) -> None:
            _append(*arguments)

        return run
