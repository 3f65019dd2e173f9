"""Models of layers that torch.compile traces in one program."""

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
    """A model of layers, which know of each other while torch.compile traces them in one program.

    A layer's last sum is then computed with the next layer's norm, and caches count their tokens together. Its class
    has the name and the signature of the model's own.
    """

    registry_prefix = ""

    def __init_subclass__(cls, **given: Any) -> None:
        super().__init_subclass__(**given)
        cls.forward = _in_one_program(cls.registry_class.forward)


def replace_stack(model: torch.nn.Module) -> None:
    """Replace a model of layers, unless it is replaced."""
    if not isinstance(model, Swapped):
        swap(model, LayerStack)


def _in_one_program(own: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(own)
    def forward(self: Any, *args: Any, **kwargs: Any) -> Any:
        if not is_dynamo_compiling() or self.training or AHEAD.whole:
            return own(self, *args, **kwargs)
        AHEAD.whole = True
        APPENDS.begin()
        try:
            return own(self, *args, **kwargs)
        finally:
            AHEAD.whole = False
            AHEAD.clear()
            APPENDS.end()

    return forward
