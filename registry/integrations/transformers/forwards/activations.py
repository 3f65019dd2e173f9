"""ActivationKind functions by name, found by what they compute."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Literal

import torch

from ....api import call
from ....tracing import constants_of
from ..proofs import disagreement
from ..swapping import Swapped, has_hooks

ActivationKind = Literal["silu", "gelu", "gelu_tanh"]

_FUNCTIONS: Mapping[ActivationKind, Callable[[torch.Tensor], torch.Tensor]] = {
    "silu": torch.nn.functional.silu,
    "gelu": torch.nn.functional.gelu,
    "gelu_tanh": lambda x: torch.nn.functional.gelu(x, approximate="tanh"),
}

_WIDE = torch.empty(0, dtype=torch.float64)
"""In float64 the two forms of gelu differ by far more than roundings."""


class ActivatedForward(Swapped):
    """The base of forwards of MLPs whose activation is a part of an op, and is not called itself.

    Their constants are the kind of the activation, and the function's name in the module.
    """

    registry_activation: object
    """The activation function that the op stands for."""


def kind_now(module: ActivatedForward) -> ActivationKind | None:
    """The kind of a module's activation; None if another function is in its place, or hooks would miss its call."""
    kind: ActivationKind
    kind, name = constants_of(module.registry_constants)
    found = getattr(module, name, None)
    hooked = isinstance(found, torch.nn.Module) and has_hooks(found)
    return kind if found is module.registry_activation and not hooked else None


def activation_kind(function: object) -> ActivationKind | None:
    """Which of the known activations a function or module computes; None for another one."""
    if not callable(function):
        return None
    for kind, known in _FUNCTIONS.items():
        if not disagreement(function, known, 64, _WIDE):
            return kind
    return None


def gated_backward(gradient: torch.Tensor | None, both: torch.Tensor, kind: ActivationKind) -> torch.Tensor:
    """The gradient of ``both`` by that of ``gated(both, kind)``."""
    found: torch.Tensor
    if kind == "silu":
        found = call("silu_and_mul_backward", gradient, both)
    else:
        found = call("gelu_and_mul_backward", gradient, both, _approximation(kind))
    return found


def gated(both: torch.Tensor, kind: ActivationKind) -> torch.Tensor:
    """``act(gate) * up`` of ``[..., 2 * d]``, gate first."""
    y: torch.Tensor
    y = call("silu_and_mul", both) if kind == "silu" else call("gelu_and_mul", both, approximate=_approximation(kind))
    return y


def _approximation(kind: ActivationKind) -> str:
    return "tanh" if kind == "gelu_tanh" else "none"
