"""Attention over a static cache whose rotation and append are one op while torch.compile traces the model."""

from __future__ import annotations

import inspect
import sys
from typing import Any

import torch
from torch.compiler import is_dynamo_compiling
from transformers.cache_utils import StaticLayer

from ..report import ApplyReport
from ..swapping import Swapped, swap
from .cache_appends import APPENDS, AppendProbe, AppendStep
from .layer_stacks import LayerStack, replace_stack
from .rotary import FUNCTION, RotaryForward

PART = "rotary positions with the append to a static cache"
_CACHES = ("cache", "past_key_values")
"""Names of attention's parameter for the cache, which differ from version to version."""
_TOKENS = 2


class AppendingAttention(Swapped):
    """Attention that gives its own forward an ``AppendStep`` in the place of a filled static cache."""

    layer_idx: int
    config: Any
    registry_cache: str
    """The name of its parameter for the cache."""
    registry_attention: str
    """The attention function that takes rotated queries of the step."""

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        cache = kwargs.get(self.registry_cache)
        if cache is None or not is_dynamo_compiling() or self.training or APPENDS.tables is None:
            return super().forward(*args, **kwargs)
        layers = getattr(cache, "layers", ())
        held = layers[self.layer_idx] if self.layer_idx < len(layers) else None
        ours = self.config._attn_implementation == self.registry_attention
        if not ours or not _is_filled(held) or getattr(cache, "offloading", False):
            return super().forward(*args, **kwargs)
        before = APPENDS.step
        step = APPENDS.step = AppendStep(cache, held)
        try:
            found = super().forward(*args, **{**kwargs, self.registry_cache: step})
            step.finish()
        finally:
            APPENDS.step = before
        return found


def _is_filled(held: Any) -> bool:
    """Whether a cache's layer keeps all keys in rows, counts its tokens on the device, and has its memory."""
    counted = isinstance(getattr(held, "cumulative_length", None), torch.Tensor)
    return counted and type(held) is StaticLayer and held.is_initialized


def replace_appends(model: torch.nn.Module, attention: str, report: ApplyReport) -> None:
    """Replace the attention modules of a model's layers that hand rotated queries and keys on as they are.

    ``attention`` is the name of the attention function that takes queries of a step.
    """
    rotary = next((one for one in model.modules() if isinstance(one, RotaryForward)), None)
    for name, parent in list(model.named_modules()):
        for child, layers in parent.named_children():
            if rotary is None or not isinstance(layers, torch.nn.ModuleList):
                continue
            if isinstance(parent, Swapped) and not isinstance(parent, LayerStack):
                continue
            # from the inside: what holds an attention may look like one
            for inner, module in reversed(list(layers.named_modules())):
                cache = _appends(module, rotary)
                if cache:
                    swap(module, AppendingAttention, cache=cache, attention=attention)
                    report.add(PART, ".".join(filter(None, (name, child, inner))))
                    replace_stack(parent)


def _appends(module: Any, rotary: Any) -> str:
    """The name of attention's parameter for the cache, if its own forward rotates, appends and attends; else ""."""
    parameters = inspect.signature(type(module).forward).parameters
    cache = next((name for name in _CACHES if name in parameters), "")
    rotation = getattr(sys.modules.get(type(module).__module__), FUNCTION, None)
    known = hasattr(rotation, "registry_own") and {"hidden_states", "position_embeddings"} <= parameters.keys()
    if not cache or not known or not hasattr(module, "layer_idx"):
        return ""
    if isinstance(module, Swapped) or any(isinstance(one, AppendingAttention) for one in module.modules()):
        return ""
    probe, before = AppendProbe(), APPENDS.step
    like = next((one for one in (*module.parameters(), *module.buffers()) if one.dtype.is_floating_point), None)
    if like is None or like.is_meta:
        return ""
    x = torch.zeros(1, _TOKENS, module.config.hidden_size, dtype=like.dtype, device=like.device)
    positions = torch.arange(_TOKENS, device=like.device)[None]
    kinds = getattr(rotary, "layer_types", None)
    given = {"attention_mask": None, cache: probe}
    APPENDS.step = probe
    try:
        with torch.no_grad():
            angles = rotary(x, positions, **({"layer_type": next(iter(kinds))} if kinds else {}))
            type(module).forward(module, hidden_states=x, position_embeddings=angles, **given)
    except Exception:  # a model's code may raise anything for arguments that it does not expect
        return ""
    finally:
        APPENDS.step = before
    return cache if probe.holds else ""
