"""Attention over a static cache whose rotation and append are one op."""

from __future__ import annotations

import inspect
import sys
from typing import Any

import torch
from torch.compiler import is_dynamo_compiling

from ....contracts.checks import WIDE
from ....dispatch.torch_side.states import differentiating_otherwise
from ....tracing import constants_of
from ..proofs import SPREAD, is_spread
from ..report import ApplyReport
from ..swapping import Swapped, swap
from .cache_appends import APPENDS, AppendProbe, AppendStep, filled_layer
from .layer_stacks import LayerStack, replace_stack
from .rotary import RotaryForward
from .rotary_forms import BY_HALVES

PART = "rotary positions with the append to a static cache"
_CACHES = ("cache", "past_key_values")
"""Names of attention's parameter for the cache, which differ from version to version."""
_TOKENS = 2


class AppendingAttention(Swapped):
    """Attention that gives its own forward an ``AppendStep`` in the place of a filled static cache.

    Its constants are the name of its parameter for the cache, and the attention function that takes rotated queries of
    the step.
    """

    layer_idx: int
    config: Any

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        name, attention = constants_of(self.registry_constants)
        cache = kwargs.get(name)
        transformed = not is_dynamo_compiling() and differentiating_otherwise()
        if cache is None or self.training or not APPENDS.active or transformed:
            return super().forward(*args, **kwargs)
        held = filled_layer(cache, self.layer_idx)
        ours = self.config._attn_implementation == attention
        if not ours or held is None or getattr(cache, "offloading", False):
            return super().forward(*args, **kwargs)
        before = APPENDS.step
        step = APPENDS.step = AppendStep(cache, held.keys.dtype)
        try:
            found = super().forward(*args, **{**kwargs, name: step})
            step.finish()
        finally:
            APPENDS.step = before
        return found


def replace_appends(model: torch.nn.Module, attention: str, report: ApplyReport) -> None:
    """Replace the attention modules of a model's layers that hand rotated queries and keys on as they are.

    ``attention`` is the name of the attention function that takes queries of a step.
    """
    rotary = next((one for one in model.modules() if isinstance(one, RotaryForward)), None)
    dtype = next((one.dtype for one in model.parameters() if one.dtype in WIDE), None)
    if rotary is None or dtype is None:
        return
    for name, parent in list(model.named_modules()):
        for child, layers in parent.named_children():
            free = not isinstance(parent, Swapped) or isinstance(parent, LayerStack)
            # from the inside: what holds an attention may look like one
            inside = reversed(list(layers.named_modules())) if free and isinstance(layers, torch.nn.ModuleList) else ()
            for inner, module in inside:
                cache, path = _cache_name(module), ".".join(filter(None, (name, child, inner)))
                spread = bool(cache) and any(is_spread(one) for one in module.parameters())
                if spread:
                    report.leave(f"{PART}: {SPREAD}", path)
                elif cache and _hands_on(module, cache, rotary, dtype):
                    swap(module, AppendingAttention, (cache, attention))
                    report.add(PART, path)
                    replace_stack(parent, child)
                elif cache:
                    report.leave(f"{PART}: it does not hand on what was rotated as it is", path)


def _cache_name(module: Any) -> str:
    """The name of the parameter for the cache of an attention module that rotates by the op; "" for another module."""
    parameters = inspect.signature(type(module).forward).parameters
    rotation = getattr(sys.modules.get(type(module).__module__), BY_HALVES.function, None)
    if not hasattr(rotation, "registry_own") or not {"hidden_states", "position_embeddings"} <= parameters.keys():
        return ""
    if isinstance(module, Swapped) or any(isinstance(one, AppendingAttention) for one in module.modules()):
        return ""
    return next((name for name in _CACHES if name in parameters and hasattr(module, "layer_idx")), "")


def _hands_on(module: Any, cache: str, rotary: Any, dtype: torch.dtype) -> bool:
    """Whether attention's own forward rotates, appends keys and attends, each with what the one before returned."""
    own = next((one for one in (*module.parameters(), *module.buffers()) if not one.is_meta), None)
    if own is None:
        return False
    positions = torch.arange(_TOKENS, device=own.device)[None]
    kinds = getattr(rotary, "layer_types", None)
    probe, before = AppendProbe(), APPENDS.step
    APPENDS.step = probe
    try:
        x = torch.zeros(1, _TOKENS, module.config.hidden_size, dtype=dtype, device=own.device)
        given = {"hidden_states": x, "attention_mask": None, cache: probe}
        with torch.no_grad():
            angles = rotary(x, positions, **({"layer_type": next(iter(kinds))} if kinds else {}))
            type(module).forward(module, position_embeddings=angles, **given)
    except Exception:  # a model's code may raise anything for arguments that it does not expect
        return False
    finally:
        APPENDS.step = before
    return probe.holds
