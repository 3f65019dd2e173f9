"""Models of layers, which know of each other while the model's forward runs."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import torch
from torch.compiler import is_dynamo_compiling

from ..swapping import Swapped, swap
from .cache_appends import APPENDS
from .norms_ahead import AHEAD


class LayerStack(Swapped):
    """A model of layers whose static caches count their tokens together, at its end.

    In one program of torch.compile a layer's last sum is also computed with the next layer's norm. Its class has the
    name and the signature of the model's own.
    """

    registry_prefix = ""

    def __init_subclass__(cls, **given: Any) -> None:
        super().__init_subclass__(**given)
        cls.forward = _as_a_whole(cls.registry_class.forward)


def replace_stack(model: torch.nn.Module) -> None:
    """Replace a model of layers, unless it is replaced."""
    if not isinstance(model, Swapped):
        swap(model, LayerStack)


def _as_a_whole(own: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(own)
    def forward(self: Any, *args: Any, **kwargs: Any) -> Any:
        if self.training:
            return own(self, *args, **kwargs)
        # a model may run within another: a part of it, or in its hooks
        before = AHEAD.whole, APPENDS.tables, APPENDS.counts, APPENDS.traced
        AHEAD.whole = is_dynamo_compiling()
        APPENDS.begin()
        try:
            return own(self, *args, **kwargs)
        finally:
            AHEAD.clear()
            APPENDS.settle()
            AHEAD.whole, APPENDS.tables, APPENDS.counts, APPENDS.traced = before

    return forward
