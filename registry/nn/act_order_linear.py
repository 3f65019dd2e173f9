"""ActOrderLinear: PackedLinear for a weight whose groups are not neighbours along K (GPTQ's act-order)."""

from __future__ import annotations

from dataclasses import replace
from typing import Any, Self

import torch

from ..contracts.checks import shape_text
from ..errors import InvalidArgumentError
from ..packed import PackedWeight, pack, unpack
from .packed_linear import PackedLinear


class ActOrderLinear(PackedLinear):
    """``x @ weight.T + bias``, by the ops for weights without act-order.

    The weight is held with its columns in the order of their groups, and the activations are brought into that order
    first. ``order`` is a buffer, int32 ``[K]``: the column of the weight that stands at each place.
    """

    order: torch.Tensor

    def __init__(self, held: PackedWeight, order: torch.Tensor, bias: torch.Tensor | None = None) -> None:
        super().__init__(held, bias)
        if held.g_idx is not None or tuple(order.shape) != (held.shape[1],) or order.dtype != torch.int32:
            raise InvalidArgumentError(
                f"ActOrderLinear: order is {order.dtype} of shape {tuple(order.shape)}",
                hint=f"expected torch.int32 of shape ({held.shape[1]},), and a weight without g_idx",
            )
        self.register_buffer("order", order)

    @classmethod
    def from_weight(cls, weight: PackedWeight, bias: torch.Tensor | None = None) -> Self:
        """The layer of a weight with a ``g_idx``, whose groups are sorted."""
        if weight.g_idx is None:
            raise InvalidArgumentError("ActOrderLinear: weight has no g_idx", hint="use PackedLinear(weight, bias)")
        order = torch.argsort(weight.g_idx, stable=True)
        held = replace(weight, qweight=_columns(weight, order), g_idx=None, layout="gptq")
        return cls(held, order.to(torch.int32), bias)

    @property
    def weight(self) -> PackedWeight:
        """The weight with its columns as the activations have them, and a ``g_idx``; made anew at each access."""
        held = self.held
        place = torch.argsort(self.order)
        groups = (place // held.group_size).to(torch.int32)
        return replace(held, qweight=_columns(held, place), g_idx=groups, layout="gptq")

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """``[..., in_features]`` to ``[..., out_features]``, as PackedLinear."""
        # of longer rows the order would take the first columns; a proxy of torch.fx.symbolic_trace has no shape
        if isinstance(x, torch.Tensor) and tuple(x.shape[-1:]) != (self.in_features,):
            raise InvalidArgumentError(
                f"ActOrderLinear: x has shape {shape_text(x.shape)} but the weight has K={self.in_features}",
                hint=f"expected x of shape [..., {self.in_features}]",
            )
        return super().forward(x.index_select(-1, self.order))

    def extra_repr(self) -> str:
        return f"{super().extra_repr()}, act-order"


def _columns(weight: PackedWeight, order: torch.Tensor) -> Any:
    """The words of a weight with columns of K taken in an order."""
    q = unpack(weight.qweight, weight.bits, weight.shape[1])
    return pack(q.index_select(0, order), weight.bits)
