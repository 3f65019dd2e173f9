"""What transformers initialises after loading, with packed layers left alone.

``_init_weights`` of some models, GPT-2 and Mamba-2 among them, sets the weights of a module's children, too.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch

from .replacing import packed_layers

_NAME = "initialize_weights"
_MARK = "_is_hf_initialized"
"""What transformers sets on modules and tensors that it need not initialise."""


def guard_packed_layers(model: Any) -> None:
    """Let ``initialize_weights`` see layers that count as initialised in the place of packed ones."""

    def initialize_weights() -> None:
        with _stand_ins(model):
            type(model).initialize_weights(model)

    model.__dict__[_NAME] = initialize_weights


def unguard(model: Any) -> None:
    """Undo ``guard_packed_layers``."""
    model.__dict__.pop(_NAME, None)


@contextmanager
def _stand_ins(model: torch.nn.Module) -> Iterator[None]:
    layers = dict(packed_layers(model))
    try:
        for name, layer in layers.items():
            with torch.device("meta"):
                dense = torch.nn.Linear(layer.in_features, layer.out_features, layer.bias is not None)
            for each in (dense, *dense.parameters()):
                setattr(each, _MARK, True)
            model.set_submodule(name, dense)
        yield
    finally:
        for name, layer in layers.items():
            model.set_submodule(name, layer)
