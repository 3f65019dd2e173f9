"""ScaledExpertsMlp: the gated MLPs of a layer's experts, with weights and activations in float8 or int8."""

from __future__ import annotations

from collections.abc import Callable

import torch

from ..api import call
from ..errors import InvalidArgumentError
from .exact_buffers import ExactBuffers
from .expert_rows import ExpertRows
from .scaled_experts import ScaledExperts
from .scaled_linear import OUT_DTYPES, product_dtype


class ScaledExpertsMlp(ExactBuffers):
    """``down(act(gate(x)) * up(x))`` of each token's experts, summed with the router's weights.

    By quantize_per_token and grouped_scaled_mm: a scale for each output of an expert, and for each row of activations.

    gate_up  each expert's gate and up projections in one weight, ``(2 * intermediate, hidden)``
    down     ``(hidden, intermediate)``
    act      the activation, elementwise
    The weights' tensors are buffers: gate_up_levels, gate_up_scales, down_levels, down_scales; frozen, and unchanged by
    a conversion of the dtype. Where tokens need a gradient, activations are not rounded: the products are grouped_gemm
    with the dequantised weights.
    """

    gate_up_levels: torch.Tensor
    gate_up_scales: torch.Tensor
    down_levels: torch.Tensor
    down_scales: torch.Tensor

    def __init__(
        self, gate_up: ScaledExperts, down: ScaledExperts, act: Callable[[torch.Tensor], torch.Tensor]
    ) -> None:
        super().__init__()
        hidden, intermediate = down.shape
        if gate_up.shape != (2 * intermediate, hidden) or len(gate_up) != len(down) or gate_up.dtype != down.dtype:
            shown = (f"{len(one)} {name} of {one.shape} in {one.dtype}" for name, one in _pairs(gate_up, down))
            raise InvalidArgumentError(
                f"ScaledExpertsMlp: {', '.join(shown)}",
                hint="expected as many of (2 * intermediate, hidden) as of (hidden, intermediate), in one dtype",
            )
        self.act_fn, self.num_experts, self._dtype = act, len(down), down.dtype
        for name, experts in _pairs(gate_up, down):
            self.register_buffer(f"{name}_levels", experts.levels.contiguous())
            self.register_buffer(f"{name}_scales", experts.scales.contiguous())

    @property
    def gate_up(self) -> ScaledExperts:
        """The experts' gate and up projections, which share the module's tensors."""
        return ScaledExperts(self.gate_up_levels, self.gate_up_scales)

    @property
    def down(self) -> ScaledExperts:
        """The experts' down projections, which share the module's tensors."""
        return ScaledExperts(self.down_levels, self.down_scales)

    def forward(
        self, hidden_states: torch.Tensor, top_k_index: torch.Tensor, top_k_weights: torch.Tensor
    ) -> torch.Tensor:
        """Tokens ``[tokens, hidden]`` to ``[tokens, hidden]``.

        top_k_index    each token's experts ``[tokens, top_k]``; ``num_experts`` is none, whose output is 0
        top_k_weights  their weights, ``[tokens, top_k]``
        """
        rows = ExpertRows.of(top_k_index, self.num_experts)
        if torch.is_grad_enabled() and hidden_states.requires_grad:
            y = self._dequantized(hidden_states, rows)
        else:
            y = self._scaled(hidden_states, rows)
        return rows.summed(y, top_k_weights, hidden_states.dtype)

    def gated(self, both: torch.Tensor) -> torch.Tensor:
        """``act(gate) * up``, contiguous, of ``[rows, 2 * intermediate]``, gate first."""
        gate, up = both.chunk(2, dim=-1)
        return (self.act_fn(gate) * up).contiguous()

    def extra_repr(self) -> str:
        gate_up, down = self.gate_up.shape, self.down.shape
        return f"num_experts={self.num_experts}, gate_up={gate_up}, down={down}, {self._dtype}"

    def _scaled(self, hidden_states: torch.Tensor, rows: ExpertRows) -> torch.Tensor:
        """The outputs of all rows, of rounded activations."""
        # a token is rounded once, whatever the number of its experts
        levels, scales = call("quantize_per_token", hidden_states, self._dtype)
        # a dtype that this call has taken is one of them
        out_dtype = OUT_DTYPES[product_dtype(hidden_states)]
        gathered = rows.gathered(levels.view(torch.uint8)).view(levels.dtype)
        weight = (self.gate_up_levels, rows.offsets, rows.gathered(scales), self.gate_up_scales)
        inner = self.gated(call("grouped_scaled_mm", gathered, *weight, out_dtype))
        levels, scales = call("quantize_per_token", inner, self._dtype)
        y = call("grouped_scaled_mm", levels, self.down_levels, rows.offsets, scales, self.down_scales, out_dtype)
        assert isinstance(y, torch.Tensor)
        return y

    def _dequantized(self, hidden_states: torch.Tensor, rows: ExpertRows) -> torch.Tensor:
        """The outputs of all rows, of whole activations, with gradients of these."""
        dtype = product_dtype(hidden_states)
        gathered = rows.gathered(hidden_states).to(dtype)
        inner = self.gated(call("grouped_gemm", gathered, self.gate_up.dequantize(dtype), rows.offsets))
        y = call("grouped_gemm", inner, self.down.dequantize(dtype), rows.offsets)
        assert isinstance(y, torch.Tensor)
        return y


def _pairs(gate_up: ScaledExperts, down: ScaledExperts) -> tuple[tuple[str, ScaledExperts], ...]:
    return ("gate_up", gate_up), ("down", down)
