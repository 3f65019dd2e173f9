"""Models of layers, which know of each other while the model's forward runs."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable
from typing import Any

import torch
from torch.compiler import is_dynamo_compiling

from ....tracing import constants_of
from ..swapping import Swapped, swap
from .cache_appends import APPENDS
from .counted_positions import POSITIONS, counts_positions
from .norms_ahead import AHEAD

_POSITIONS = "position_ids"


class LayerStack(Swapped):
    """A model of layers whose static caches count their tokens together, at its end.

    In one program of torch.compile a layer's last sum is also computed with the next layer's norm. Its class has the
    name and the signature of the model's own. Its constant: whether it counts positions itself where it gets none.
    """

    registry_prefix = ""

    def __init_subclass__(cls, **given: Any) -> None:
        super().__init_subclass__(**given)
        if "forward" in vars(cls):
            return
        cls.forward = _as_a_whole(cls.registry_class.forward)


def replace_stack(model: torch.nn.Module, layers: str) -> None:
    """Replace a model of ``layers``, unless it is replaced."""
    if not isinstance(model, Swapped):
        swap(model, LayerStack, (counts_positions(model, layers),))


def _as_a_whole(own: Callable[..., Any]) -> Callable[..., Any]:
    names = [*inspect.signature(own).parameters][1:]
    place = names.index(_POSITIONS) if _POSITIONS in names else 0

    @functools.wraps(own)
    def forward(self: Any, *args: Any, **kwargs: Any) -> Any:
        given = len(args) > place or kwargs.get(_POSITIONS) is not None
        counts = constants_of(self.registry_constants)[0] and not given
        before, POSITIONS.config = POSITIONS.config, self.config if counts else None
        try:
            return own(self, *args, **kwargs) if self.training else together(self, args, kwargs)
        finally:
            POSITIONS.config = before

    def together(self: Any, args: Any, kwargs: Any) -> Any:
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
