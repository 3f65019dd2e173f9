"""Proof that a model's forward hands the output layer's logits to its loss as they are, before the two are fused."""

from __future__ import annotations

import copy
import inspect
from typing import Any

import torch

_TOKENS = 2


class _Base(torch.nn.Module):
    """A stand-in for a model's layers, which has a tensor to return, and None for everything else."""

    def __init__(self, hidden: torch.Tensor) -> None:
        super().__init__()
        self._hidden = hidden

    def forward(self, *_: Any, **__: Any) -> _BaseOutput:
        return _BaseOutput(self._hidden)


class _BaseOutput:
    def __init__(self, hidden: torch.Tensor) -> None:
        self.last_hidden_state = hidden

    def __getitem__(self, place: int) -> torch.Tensor:
        if place:
            raise IndexError(place)
        return self.last_hidden_state

    def __getattr__(self, name: str) -> None:
        if name.startswith("__"):
            raise AttributeError(name)


class _Output(torch.nn.Module):
    """A stand-in for an output layer, which returns its input, and keeps what it returned."""

    def __init__(self, like: torch.nn.Linear, weight: torch.Tensor) -> None:
        super().__init__()
        self.in_features, self.out_features = like.in_features, like.out_features
        self.weight, self.bias = weight, None
        self.returned: list[torch.Tensor] = []

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.returned.append(x)
        return x


def output_layer(model: Any) -> str:
    """The name of the output layer among a model's children; "" if it is none of them, or no linear layer."""
    try:
        layer = model.get_output_embeddings()
    except Exception:  # a model answers in its own way that it has none
        return ""
    found = (name for name, child in model.named_children() if child is layer and isinstance(child, torch.nn.Linear))
    return next(found, "")


def between_output_and_loss(model: Any, output: str) -> str:
    """Why a model's loss cannot be fused with its output layer, the child of that name; "" if it can.

    The model's own forward runs, of two tokens, with tensors that no layer has computed: what the output layer returns
    must be the very tensor that the loss gets, beside the labels and the layer's width. The tensor is of bfloat16 and
    not contiguous, so that a conversion or a copy between the two makes another one.
    """
    layer = getattr(model, output)
    if "forward" in vars(model) or "forward" in vars(layer):
        return "another program has replaced its forward, or that of its output layer"
    hidden = torch.zeros(layer.in_features, _TOKENS, dtype=torch.bfloat16).t()[None]
    labels = torch.zeros(1, _TOKENS, dtype=torch.int64)
    head, calls = _Output(layer, hidden.new_empty(0)), []

    def loss(logits: Any, labels: Any, vocab_size: Any, **_: Any) -> torch.Tensor:
        calls.append((logits, labels, vocab_size))
        return torch.zeros(())

    try:
        shell = _shell(model, {model.base_model_prefix: _Base(hidden), output: head}, loss)
        given = {"output_router_logits": False} if _takes(model, "output_router_logits") else {}
        with torch.no_grad():
            type(model).forward(shell, input_ids=labels, labels=labels, **given)
    except Exception as fault:  # a model's code may raise anything for an output that its layers do not make
        return f"its forward was not understood: {type(fault).__name__}: {fault}"
    if len(calls) != 1 or len(head.returned) != 1:
        return f"its forward calls the output layer {len(head.returned)} times and the loss {len(calls)} times"
    logits, got, classes = calls[0]
    changed = [name for name, same in (("logits", logits is head.returned[0]), ("labels", got is labels)) if not same]
    if changed:
        return f"its forward changes the {' and the '.join(changed)} before the loss"
    if classes != layer.out_features:
        return f"its loss is of {classes} classes, its output layer of {layer.out_features}"
    return ""


def _shell(model: Any, children: dict[str, torch.nn.Module], loss: Any) -> Any:
    """A model in training of the same class and attributes, with some other children and another loss."""
    missing = [name for name in children if name not in model._modules]
    if missing:
        raise LookupError(f"it has no {missing[0]!r}")
    shell = copy.copy(model)
    shell.__dict__.update(_modules={**model._modules, **children}, _loss_function=loss, training=True)
    return shell


def _takes(model: Any, name: str) -> bool:
    return name in inspect.signature(type(model).forward).parameters
