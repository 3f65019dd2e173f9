"""PackedExpertsMlp: the gated MLPs of a layer's experts, with packed weights."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, ClassVar

import torch

from ..api import call, weights_changed
from ..errors import InvalidArgumentError
from ..packed import PackedExperts
from .exact_zeros import ExactZeros
from .expert_rows import ExpertRows

_PARTS = ("qweight", "scales", "zeros")


class PackedExpertsMlp(ExactZeros):
    """``down(act(gate(x)) * up(x))`` of each token's experts, summed with the router's weights, by grouped_gemm_int4.

    gate_up  each expert's gate and up projections in one weight, ``(2 * intermediate, hidden)``
    down     ``(hidden, intermediate)``
    act      the activation, elementwise
    The weights' tensors are buffers: gate_up_qweight, gate_up_scales, gate_up_zeros (None where there are none), and
    those of down. A conversion of the dtype converts the scales and integer zero points, but not float32 zero points.
    """

    zeros_beside: ClassVar[Mapping[str, str]] = {"gate_up_zeros": "gate_up_scales", "down_zeros": "down_scales"}

    def __init__(
        self, gate_up: PackedExperts, down: PackedExperts, act: Callable[[torch.Tensor], torch.Tensor]
    ) -> None:
        super().__init__()
        hidden, intermediate = down.shape
        if gate_up.shape != (2 * intermediate, hidden) or len(gate_up) != len(down):
            raise InvalidArgumentError(
                f"PackedExpertsMlp: {len(gate_up)} gate_up of {gate_up.shape}, {len(down)} down of {down.shape}",
                hint="expected as many of (2 * intermediate, hidden) as of (hidden, intermediate)",
            )
        self.act_fn, self.num_experts = act, len(down)
        self._numbers = {"gate_up": _numbers(gate_up), "down": _numbers(down)}
        for name, experts in (("gate_up", gate_up), ("down", down)):
            for part in _PARTS:
                self.register_buffer(f"{name}_{part}", getattr(experts, part))

    @property
    def gate_up(self) -> PackedExperts:
        """The experts' gate and up projections, which share the module's tensors."""
        return self._experts("gate_up")

    @property
    def down(self) -> PackedExperts:
        """The experts' down projections, which share the module's tensors."""
        return self._experts("down")

    def forward(
        self, hidden_states: torch.Tensor, top_k_index: torch.Tensor, top_k_weights: torch.Tensor
    ) -> torch.Tensor:
        """Tokens ``[tokens, hidden]`` to ``[tokens, hidden]``.

        top_k_index    each token's experts ``[tokens, top_k]``; ``num_experts`` is none, whose output is 0
        top_k_weights  their weights, ``[tokens, top_k]``
        """
        rows = ExpertRows.of(top_k_index, self.num_experts)
        inner = self.gated(self._product("gate_up", rows.gathered(hidden_states), rows.offsets))
        y = self._product("down", inner, rows.offsets)
        return rows.summed(y, top_k_weights, hidden_states.dtype)

    def gated(self, both: torch.Tensor) -> torch.Tensor:
        """``act(gate) * up``, contiguous, of ``[rows, 2 * intermediate]``, gate first."""
        gate, up = both.chunk(2, dim=-1)
        return (self.act_fn(gate) * up).contiguous()

    def extra_repr(self) -> str:
        (_, _, gate_up), (bits, size, down) = self._numbers["gate_up"], self._numbers["down"]
        return f"num_experts={self.num_experts}, gate_up={gate_up}, down={down}, bits={bits}, group_size={size}"

    def _load_from_state_dict(self, state_dict: Mapping[str, Any], prefix: str, *rest: Any) -> None:
        errors: list[str] = rest[-1]
        for name in (f"{prefix}{weight}_qweight" for weight in self._numbers):
            # torch would convert these silently
            if isinstance(given := state_dict.get(name), torch.Tensor) and given.dtype != torch.int32:
                errors.append(f"{name} is {given.dtype}, expected torch.int32")
        super()._load_from_state_dict(state_dict, prefix, *rest)
        if not errors:
            # a captured CUDA graph reads prepared forms, and perhaps no further call makes them again
            weights_changed(*(tensor for tensor in self._buffers.values() if tensor is not None))

    def _tensors(self, name: str) -> list[Any]:
        return [self._buffers[f"{name}_{part}"] for part in _PARTS]

    def _experts(self, name: str) -> PackedExperts:
        qweight, scales, zeros = self._tensors(name)
        return PackedExperts(qweight, scales, zeros, *self._numbers[name])

    def _product(self, name: str, rows: torch.Tensor, offsets: torch.Tensor) -> torch.Tensor:
        # by the op's plain tensors, which need no check at each call and are traced
        bits, group_size, (_, k) = self._numbers[name]
        y = call("grouped_gemm_int4", rows, *self._tensors(name), bits, group_size, k, offsets)
        assert isinstance(y, torch.Tensor)
        return y


def _numbers(experts: PackedExperts) -> tuple[int, int, tuple[int, int]]:
    return experts.bits, experts.group_size, experts.shape
