"""The output layer and the loss of a causal language model as one op in training: no logits are made.

Between the output layer and the loss the model's own forward has nothing to do but to hand on the logits. The layer
hands on its input instead, and the loss multiplies by the layer's weight a part at a time.
"""

from __future__ import annotations

import functools
import threading
from collections.abc import Callable
from typing import Any

import torch

from ....errors import RegistryError
from ....tracing import refuse
from ..swapping import Swapped, swap
from .linears import LinearForward, is_bare

Forward = Callable[..., Any]


class _Deferral(threading.local):
    """The output layer of which this thread's running forward makes no logits, and the input that it handed on."""

    def __init__(self) -> None:
        # for each thread, so that torch.compile never sees these attributes come into being
        self.layer: torch.nn.Module | None = None
        self.hidden: torch.Tensor | None = None


_now = _Deferral()


class OutputForward(LinearForward):
    """An output layer that hands on its input while the loss of the same forward is to be fused with it."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if _now.layer is not self or not _one_dtype(x, self.weight):
            return super().forward(x)
        _now.hidden = x
        return x


class FusedLossModel(Swapped):
    """A causal language model whose ``logits`` are None in training with labels, where the loss is ``FusedOutput``'s.

    Its class has the name and the signature of the model's own, as ``save_pretrained`` and the Trainer read them.
    """

    registry_prefix = ""
    registry_output: str
    """The name of the output layer among the model's children."""

    def __init_subclass__(cls, **given: Any) -> None:
        super().__init_subclass__(**given)
        cls.forward = _deferring(cls.registry_class.forward)


class FusedOutput:
    """What a loss gets in the place of logits: ``hidden`` [..., k], and the output layer that makes logits of it."""

    def __init__(self, hidden: torch.Tensor, layer: Any) -> None:
        self.rows = hidden.reshape(-1, hidden.shape[-1])
        self.weight, self.bias = layer.weight, layer.bias
        kind = hidden.device.type
        if torch.is_autocast_enabled(kind):
            dtype = torch.get_autocast_dtype(kind)
            self.rows, self.weight = self.rows.to(dtype), self.weight.to(dtype)
            self.bias = None if self.bias is None else self.bias.to(dtype)

    def logits_of(self, classes: torch.Tensor) -> torch.Tensor:
        """The logit of one class for each row: [rows]."""
        found = torch.bmm(self.rows[:, None], self.weight[classes][..., None]).view(-1)
        return found if self.bias is None else found + self.bias[classes]


def fused_output(logits: torch.Tensor) -> FusedOutput | None:
    """What stands for ``logits`` in the forward that runs, if none were made; None for logits.

    Raises RegistryError for a tensor that was computed from the output layer's input as if that were logits.
    """
    if _now.hidden is None:
        return None
    if _now.hidden is not logits:
        refuse(
            "apply: the model changes its logits before the loss, which it did not do when it was applied",
            hint="apply(model, fused_loss=False)",
            kind=RegistryError,
        )
    return FusedOutput(_now.hidden, _now.layer)


def fuse_loss(model: torch.nn.Module, output: str) -> None:
    """Let a model's loss and its output layer, a child of that name, be one op in training."""
    layer = getattr(model, output)
    layer.__class__ = type(layer).registry_class
    swap(layer, OutputForward)
    swap(model, FusedLossModel, output=output)


def _deferring(own: Forward) -> Forward:
    """A model's forward that defers the product of its output layer, where labels and the layer allow for that."""

    @functools.wraps(own)
    def forward(self: Any, *args: Any, **kwargs: Any) -> Any:
        layer = getattr(self, self.registry_output, None)
        if not self.training or kwargs.get("labels") is None or not _defers(layer):
            return own(self, *args, **kwargs)
        asked = kwargs.get("return_dict")  # None is the config's, also where it is given
        as_tuple = not (self.config.return_dict if asked is None else asked)
        kwargs["return_dict"] = True
        before = _now.layer, _now.hidden
        _now.layer, _now.hidden = layer, None
        try:
            outputs = own(self, *args, **kwargs)
            if _now.hidden is not None:
                outputs = type(outputs)(**{name: value for name, value in outputs.items() if name != "logits"})
        finally:
            _now.layer, _now.hidden = before
        return outputs.to_tuple() if as_tuple else outputs

    return forward


def _defers(layer: Any) -> bool:
    """Whether a model's output layer is still the one that hands on its input."""
    return isinstance(layer, OutputForward) and is_bare(layer)


def _one_dtype(x: torch.Tensor, weight: torch.Tensor) -> bool:
    return x.dtype is weight.dtype or torch.is_autocast_enabled(x.device.type)
