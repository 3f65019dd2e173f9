"""Experts of a mixture as one op, or where gradients are needed as two grouped products of all experts' rows."""

from __future__ import annotations

from typing import Any

import torch
from torch.compiler import is_dynamo_compiling

from ....api import call
from ....nn import PackedExpertsMlp, ScaledExpertsMlp
from ....nn.expert_rows import ExpertRows
from ..swapping import other_forward, swap
from .activations import ActivatedForward, activation_kind, gated, kind_now


class ExpertsForward(ActivatedForward):
    """``down(act(gate(x)) * up(x))`` of each token's experts, summed with the router's weights.

    By fused_moe; where a gradient is needed by grouped_gemm, whose gradients have kernels of their own. Once
    ``set_experts_implementation`` has asked for another of transformers' implementations, these compute.
    """

    gate_up_proj: torch.nn.Parameter
    down_proj: torch.nn.Parameter
    registry_replaced: str | None

    def forward(
        self, hidden_states: torch.Tensor, top_k_index: torch.Tensor, top_k_weights: torch.Tensor
    ) -> torch.Tensor:
        gate_up, down = self.gate_up_proj, self.down_proj
        otherwise = hidden_states.dtype is not gate_up.dtype or torch.is_autocast_enabled(hidden_states.device.type)
        kind = kind_now(self)
        if otherwise or self._is_asked_for_another() or kind is None:
            plain: torch.Tensor = super().forward(hidden_states, top_k_index, top_k_weights)
            return plain
        given = (hidden_states, gate_up, down, top_k_weights)
        learning = torch.is_grad_enabled() and any(tensor.requires_grad for tensor in given)
        if not learning and top_k_weights.dtype in (torch.float32, hidden_states.dtype):
            found: torch.Tensor = call("fused_moe", *given, top_k_index, kind)
            return found
        rows = ExpertRows.of(top_k_index, len(gate_up))
        inner = gated(call("grouped_gemm", rows.gathered(hidden_states), gate_up, rows.offsets), kind)
        y: torch.Tensor = call("grouped_gemm", inner, down, rows.offsets)
        return rows.summed(y, top_k_weights, hidden_states.dtype)

    def _is_asked_for_another(self) -> bool:
        """True from the first call on at which the model's configuration names another implementation than before."""
        if _implementation(self) == self.registry_replaced:
            return False
        if not is_dynamo_compiling():
            # a way back to the name that stood there before is a choice, too
            self.__dict__["registry_replaced"] = "another"
        return True


class PackedExpertsForward(ActivatedForward):
    """Packed experts whose activation and product with up are one op."""

    def gated(self, both: torch.Tensor) -> torch.Tensor:
        """``activation(gate) * up`` of ``both``: by one op if it has the activation, else by transformers."""
        kind = kind_now(self)
        if kind is not None:
            return gated(both, kind)
        plain: torch.Tensor = super().gated(both)  # type: ignore[misc]
        return plain


def _implementation(module: torch.nn.Module) -> str | None:
    """The name of transformers' implementation that the module's configuration asks for, None without one."""
    config: Any = getattr(module, "config", None)
    name: str | None = getattr(config, "_experts_implementation", None)
    return name


def replace_experts(module: torch.nn.Module) -> str:
    """Replace the forward of experts that compute what packed ones would, or the activation of packed ones.

    Returns why not, "" if it is replaced.
    """
    if told := other_forward(module):
        return told
    activation = getattr(module, "act_fn", None)
    kind = activation_kind(activation)
    if kind is None:
        return "their activation function is neither silu nor gelu"
    if isinstance(module, PackedExpertsMlp | ScaledExpertsMlp):
        swap(module, PackedExpertsForward, (kind, "act_fn"), activation=activation)
    else:
        swap(module, ExpertsForward, (kind, "act_fn"), activation=activation, replaced=_implementation(module))
    return ""
