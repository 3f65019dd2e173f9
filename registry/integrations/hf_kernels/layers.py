"""Layers whose forwards ``kernels.kernelize`` binds to modules of other classes.

They follow its rules: no constructor, no members but ``forward``, and a forward that takes what that of the marked
class does. Classes with one mark compute different things, so that each forward asks a proof for its module's class.
``self`` is a module of that class, and ``type(self).forward`` its own forward.
"""

from __future__ import annotations

from typing import Any

import torch
from torch.compiler import is_dynamo_compiling

from ...api import call
from ..transformers.forwards.norms import EPS_NAMES, shifted
from ..transformers.forwards.rotary import rotated_by_table
from ..transformers.forwards.rotary_forms import BY_HALVES
from ..transformers.swapping import as_layer
from .angles import tables_for
from .proved_forms import GATES, gates_norm, gelu_approximation, norm_offset, rotates_halves

_PLAIN = {torch.Tensor, torch.nn.Parameter}


class RmsNormLayer(torch.nn.Module):
    """``rms_norm`` for classes that are marked RMSNorm or RMSNormZeroCentered.

    For activations of another dtype than the weight's the module's own forward computes.
    """

    can_torch_compile = True
    has_backward = True

    @as_layer
    def forward(self, hidden_states: torch.Tensor) -> torch.Tensor:
        weight, eps_name = _weight_and_eps(self, hidden_states)
        offset = norm_offset(type(self), eps_name, len(weight)) if eps_name else None
        y: torch.Tensor
        if offset is None:
            y = type(self).forward(self, hidden_states)
        else:
            added = shifted(weight, offset) if offset else weight
            y = call("rms_norm", hidden_states, added, eps=getattr(self, eps_name))
        return y


class RmsNormGatedLayer(torch.nn.Module):
    """``rms_norm`` times an activation of the gate in fp32, for classes that are marked RMSNormGated."""

    can_torch_compile = True
    has_backward = True

    @as_layer
    def forward(self, hidden_states: torch.Tensor, gate: torch.Tensor | None = None) -> torch.Tensor:
        weight, eps_name = _weight_and_eps(self, hidden_states)
        activation = getattr(self, "activation", None)
        y: torch.Tensor
        if gate is None or not eps_name or not gates_norm(type(self), eps_name, len(weight), activation):
            y = type(self).forward(self, hidden_states, gate)
        else:
            normed = call("rms_norm", hidden_states, weight, eps=getattr(self, eps_name))
            y = (normed * GATES[activation](gate.float())).to(hidden_states.dtype)
        return y


class GeluLayer(torch.nn.Module):
    """``gelu`` for modules that are marked GeLU, GeluTanh, NewGELU or FastGELU.

    Under torch.compile the module's own forward computes, which Inductor fuses with what stands around it.
    """

    can_torch_compile = True
    has_backward = True

    @as_layer
    def forward(self, input: torch.Tensor) -> torch.Tensor:  # noqa: A002  # the name that marked classes give it
        approximate = None if is_dynamo_compiling() else gelu_approximation(self)
        y: torch.Tensor
        y = type(self).forward(self, input) if approximate is None else call("gelu", input, approximate=approximate)
        return y


class RotaryLayer(torch.nn.Module):
    """``rotary_embedding`` or ``apply_rotary`` for functions that are marked rotary_pos_emb, whose halves are equal.

    The function itself computes under torch.compile, as Inductor fuses it, while a CUDA graph is captured unless the
    cosines were seen before, and of tensors of inference mode.
    """

    can_torch_compile = True
    has_backward = True

    @as_layer
    def forward(
        self, q: torch.Tensor, k: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor, unsqueeze_dim: int = 1
    ) -> tuple[torch.Tensor, torch.Tensor]:
        held = None
        if not is_dynamo_compiling() and unsqueeze_dim == 1 and rotates_halves(type(self)):
            held = tables_for(q, cos, sin)
        y: tuple[torch.Tensor, torch.Tensor]
        if held is None:
            y = type(self).forward(self, q, k, cos, sin, unsqueeze_dim)
        else:
            y = rotated_by_table(type(self).forward.__get__(self), BY_HALVES, q, k, (cos, sin), held)
        return y


def _weight_and_eps(module: torch.nn.Module, x: torch.Tensor) -> tuple[Any, str]:
    """The weight of a norm and the name of its epsilon, "" where the op cannot compute rows like those of x."""
    weight: Any = getattr(module, "weight", None)
    if type(weight) in _PLAIN and weight.dtype is x.dtype and weight.dim() == 1:
        for name in EPS_NAMES:
            if isinstance(getattr(module, name, None), float):
                return weight, name
    return weight, ""
