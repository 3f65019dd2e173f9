"""Attention's weights: whether the forward of a model that runs is asked for them, by transformers' own account."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from torch.compiler import is_dynamo_compiling

try:
    from transformers.utils.output_capturing import _active_collector
except ImportError:
    _active_collector = None
# of other versions of transformers the argument alone counts
_collector = _active_collector if hasattr(_active_collector, "compiling") else None

_WEIGHTS = "output_attentions"
_COLLECTED = "attentions"
"""How the names of a forward's outputs end that are attention's weights."""


def asked_for_weights(given: Mapping[str, Any]) -> bool:
    """Whether the forward that runs returns attention's weights; ``given`` are arguments of its attention function.

    A model may keep the argument to itself (GPT-2), or have it from its configuration.
    """
    return bool(given.get(_WEIGHTS)) or any(name.endswith(_COLLECTED) for name in _collected())


def _collected() -> Mapping[str, Any]:
    """Names of the outputs that the forward collects by hooks."""
    if _collector is None:
        return {}
    # torch.compile traces no context variable: transformers then has an attribute, while it traces a whole model
    if is_dynamo_compiling():
        return (_collector.global_var or {}) if _collector.compiling else {}
    return _collector.get() or {}
