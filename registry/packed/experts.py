"""PackedExperts: the packed weights of the experts of one layer, stacked."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch.utils import _pytree as pytree

from ..errors import InvalidArgumentError
from ..problem import dtype_name
from .checks import check_format, check_integers, check_parts, check_tensor, zero_kind
from .layout import LAYOUT
from .weight import PackedWeight

_TENSORS = ("qweight", "scales", "zeros")


@dataclass(frozen=True, eq=False, repr=False)
class PackedExperts:
    """One weight per expert, of one shape, bits, group size and kind of zero points; ``shape`` is ``(N, K)`` of each.

    qweight     int32 ``[experts, ceil(K / per_word), N]``
    scales      ``[experts, ceil(K / group_size), N]``, float16, bfloat16 or float32
    zeros       None, or as ``PackedWeight`` has them, ``[experts, ceil(K / group_size), N]``
    bits, group_size   as ``PackedWeight`` has them; no act-order and no codebook
    """

    qweight: torch.Tensor
    scales: torch.Tensor
    zeros: torch.Tensor | None
    bits: int
    group_size: int
    shape: tuple[int, int]

    def __post_init__(self) -> None:
        object.__setattr__(self, "shape", tuple(self.shape))
        given = [(name, part) for name in _TENSORS if (part := getattr(self, name)) is not None]
        for name, part in given:
            check_tensor(f"PackedExperts: {name}", part)
            if part.dim() != 3 or not 0 < part.shape[0] == self.qweight.shape[0]:
                raise InvalidArgumentError(
                    f"PackedExperts: {name} has shape {tuple(part.shape)}",
                    hint="expected a part of each expert, stacked",
                )
        check_integers("PackedExperts", bits=self.bits, group_size=self.group_size)
        check_format("PackedExperts", self.bits, self.group_size, self.shape[1], LAYOUT)
        zeros = None if self.zeros is None else self.zeros[0]
        check_parts(
            "PackedExperts", self.qweight[0], self.scales[0], zeros, self.group_size, self.shape, bits=self.bits
        )

    @classmethod
    def stack(cls, weights: Sequence[PackedWeight]) -> PackedExperts:
        """The experts' weights in one. Raises InvalidArgumentError for weights that differ in kind."""
        weights = list(weights)
        kinds = {_kind(weight): place for place, weight in reversed(list(enumerate(weights)))}
        if len(kinds) != 1:
            shown = "; ".join(
                f"{place}: {', '.join(map(str, kind))}" for kind, place in sorted(kinds.items(), key=_place)
            )
            raise InvalidArgumentError(
                f"PackedExperts: {len(kinds) or 'no'} kinds of weights{': ' * bool(kinds)}{shown}",
                hint="all experts must have one shape, bits, group_size, dtype, kind of zero points and device",
            )
        first = weights[0]
        if first.layout != LAYOUT:
            raise InvalidArgumentError(
                f"PackedExperts: weights of layout {first.layout!r}, expected {LAYOUT!r}",
                hint="quantize without a codebook and without act-order",
            )
        zeros = [weight.zeros for weight in weights if weight.zeros is not None]
        return cls(
            torch.stack([weight.qweight for weight in weights]),
            torch.stack([weight.scales for weight in weights]),
            torch.stack(zeros) if zeros else None,
            first.bits,
            first.group_size,
            first.shape,
        )

    def __len__(self) -> int:
        """The number of experts."""
        return self.qweight.shape[0]

    def __getitem__(self, expert: int) -> PackedWeight:
        """One expert's weight, whose tensors are views."""
        zeros = None if self.zeros is None else self.zeros[expert]
        return PackedWeight(self.qweight[expert], self.scales[expert], zeros, self.bits, self.group_size, self.shape)

    @property
    def dtype(self) -> torch.dtype:
        """The dtype of the scales, which activations must have."""
        return self.scales.dtype

    @property
    def nbytes(self) -> int:
        return sum(tensor.nbytes for tensor in (self.qweight, self.scales, self.zeros) if tensor is not None)

    def dequantize(self) -> torch.Tensor:
        """The weights ``[experts, N, K]`` in the scales' dtype, computed in float32 and rounded once."""
        return torch.stack([self[expert].dequantize() for expert in range(len(self))])

    def to(self, device: torch.device | str | None = None, dtype: torch.dtype | None = None) -> PackedExperts:
        """A copy on another device, or with scales in another dtype; zero points as ``PackedWeight.to`` has them."""
        return PackedExperts.stack([self[expert].to(device, dtype) for expert in range(len(self))])

    def __repr__(self) -> str:
        return (
            f"PackedExperts({len(self)} of {self.shape[0]}x{self.shape[1]}, bits={self.bits},"
            f" group_size={self.group_size}, zeros={zero_kind(self.zeros)!r}, {dtype_name(self.dtype)},"
            f" {self.qweight.device}, {self.nbytes} bytes)"
        )


def _kind(weight: PackedWeight) -> tuple[Any, ...]:
    if not isinstance(weight, PackedWeight):
        raise InvalidArgumentError(
            f"PackedExperts: a {type(weight).__name__} among the weights, expected PackedWeights"
        )
    zeros = f"zeros {zero_kind(weight.zeros)}"
    shape = "x".join(map(str, weight.shape))
    return (
        shape, f"{weight.bits} bits", f"group_size {weight.group_size}", dtype_name(weight.dtype), zeros, weight.layout,
        str(weight.device),
    )  # fmt: skip


def _place(item: tuple[Any, int]) -> int:
    return item[1]


def _flatten(experts: PackedExperts) -> tuple[list[Any], list[Any]]:
    given = [name for name in _TENSORS if getattr(experts, name) is not None]
    return [getattr(experts, name) for name in given], [given, experts.bits, experts.group_size, list(experts.shape)]


def _unflatten(tensors: Iterable[Any], context: Sequence[Any]) -> PackedExperts:
    # unchecked: a map over a tree may put anything in the tensors' places
    experts = object.__new__(PackedExperts)
    given, bits, group_size, shape = context
    parts: dict[str, Any] = dict.fromkeys(_TENSORS) | dict(zip(given, tensors, strict=True))
    for name, value in {**parts, "bits": bits, "group_size": group_size, "shape": tuple(shape)}.items():
        object.__setattr__(experts, name, value)
    return experts


pytree.register_pytree_node(
    PackedExperts,
    _flatten,
    _unflatten,
    serialized_type_name="registry.PackedExperts",
    to_dumpable_context=list,
    from_dumpable_context=list,
)
# tensors and numbers: as safe to unpickle as a state dict
torch.serialization.add_safe_globals([PackedExperts])
