"""Gated MLPs: gate and up as one product, and the activation with the multiplication as one pass."""

from __future__ import annotations

from typing import Any

import torch

from ....nn import PackedLinear
from ..proofs import disagreement
from ..swapping import has_hooks, other_forward, swap, unswap
from .activations import ActivatedForward, activation_kind, kind_now
from .gated_gradients import down_of_gated
from .linears import AnyLinear, LinearGroup, is_joinable

_ACTIVATIONS = ("act_fn", "activation_fn", "act")
_JOINT = ("gate_up_proj",)


class GatedForward(ActivatedForward):
    """``down(act(gate(x)) * up(x))`` where gate and up are a group of linear layers.

    The module's own forward computes if its parts have hooks, or if others are in their place, e.g. adapters.
    """

    down_proj: torch.nn.Module
    registry_gate_up: LinearGroup

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        kind = kind_now(self) if _has_its_layers(self) else None
        both = None if kind is None else self.registry_gate_up.product(x)
        if kind is None or both is None:
            plain: torch.Tensor = super().forward(x)
            return plain
        y: torch.Tensor = down_of_gated(self.down_proj, both, kind)
        return y


class JointGatedForward(ActivatedForward):
    """``down(act(gate) * up)`` where gate and up come out of one linear layer of the model's own."""

    down_proj: torch.nn.Module
    gate_up_proj: torch.nn.Module

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        kind = kind_now(self)
        if kind is None:
            plain: torch.Tensor = super().forward(x)
            return plain
        y: torch.Tensor = down_of_gated(self.down_proj, self.gate_up_proj(x), kind)
        return y


def _has_its_layers(module: GatedForward) -> bool:
    # a replica of torch.nn.DataParallel has other tensors than the group's layers
    gate, up = module.registry_gate_up.layers
    found = module._modules
    own = found.get("gate_proj") is gate and found.get("up_proj") is up
    return own and not has_hooks(gate) and not has_hooks(up)


def gate_and_up(module: torch.nn.Module) -> tuple[AnyLinear, AnyLinear] | None:
    """The two linear layers of a gated MLP; None for another module."""
    gate, up, down = (getattr(module, name, None) for name in ("gate_proj", "up_proj", "down_proj"))
    if not isinstance(gate, AnyLinear) or not isinstance(up, AnyLinear) or not isinstance(down, torch.nn.Module):
        return None
    if not is_joinable(gate) or not is_joinable(up):
        return None
    return (gate, up) if (gate.in_features, gate.out_features) == (up.in_features, up.out_features) else None


def replace_gated(module: torch.nn.Module, group: LinearGroup | None) -> str | None:
    """Replace a gated MLP's forward; ``group``: of its gate and up, if these are two layers.

    Returns why not, "" if it is replaced, and None for another module.
    """
    joint = next((layer for name in _JOINT if isinstance(layer := getattr(module, name, None), AnyLinear)), None)
    if (group is None and joint is None) or not hasattr(module, "down_proj"):
        return None
    functions = [(name, getattr(module, name)) for name in _ACTIVATIONS if getattr(module, name, None) is not None]
    name, activation = next(iter(functions), ("", None))
    if told := other_forward(module):
        return told
    if isinstance(activation, torch.nn.Module) and (told := other_forward(activation)):
        return f"its activation function: {told}"
    kind = activation_kind(activation)
    if kind is None:
        return "its activation function is neither silu nor gelu"
    made: Any = GatedForward if group is not None else JointGatedForward
    before = type(module).forward
    like, cols = _like(group, joint)
    own = before.__get__(module)
    swap(module, made, (kind, name), activation=activation, **({} if group is None else {"gate_up": group}))
    told = disagreement(own, module.forward, cols, like)
    if told:
        unswap(module)
    return told


def _like(group: LinearGroup | None, joint: AnyLinear | None) -> tuple[torch.Tensor, int]:
    """A tensor with the dtype and device of the activations, and their columns."""
    layer = group.layers[0] if group is not None else joint
    assert layer is not None
    return (layer.scales if isinstance(layer, PackedLinear) else layer.weight), layer.in_features
