"""Slots: a sandbox's inputs and outputs, one set for each call of a request, side by side in shared memory."""

from __future__ import annotations

import secrets
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import accumulate
from typing import Any

import torch

from ..problem import TensorSpec, dtype_name, torch_dtype

_ALIGNMENT = 512
_SPOILT = (0xFF, 0x7F)
"""Bytes of NaN, or of the least and the greatest numbers."""


@dataclass(frozen=True)
class SlotLayout:
    """Places of ``count`` slots. ``tensors``: the specs of a slot's arguments, then of its outputs."""

    tensors: tuple[TensorSpec, ...]
    count: int

    @cached_property
    def offsets(self) -> tuple[int, ...]:
        """Bytes from the start of a slot to each of its tensors, and to the next slot."""
        sizes = (-(-spanned(spec) * spec.dtype.itemsize // _ALIGNMENT) * _ALIGNMENT for spec in self.tensors)
        return tuple(accumulate(sizes, initial=0))

    @property
    def nbytes(self) -> int:
        """Bytes of all slots, one at least."""
        return max(self.count * self.offsets[-1], _ALIGNMENT)

    def as_data(self) -> dict[str, Any]:
        """The layout as plain data."""
        listed = [[list(each.shape), dtype_name(each.dtype), list(each.strides)] for each in self.tensors]
        return {"tensors": listed, "count": self.count}

    @classmethod
    def of_data(cls, data: Mapping[str, Any]) -> SlotLayout:
        """The layout that ``as_data`` wrote."""
        specs = tuple(
            TensorSpec(tuple(shape), torch_dtype(dtype), tuple(strides)) for shape, dtype, strides in data["tensors"]
        )
        return cls(specs, data["count"])


class Slots:
    """The tensors of a layout in some memory, ``bytes``: a row of uint8."""

    def __init__(self, layout: SlotLayout, memory: torch.Tensor) -> None:
        self.layout = layout
        self._memory = memory
        self.tensors = [[self._strided(slot, place) for place in range(len(layout.tensors))] for slot in self._numbers]

    @property
    def _numbers(self) -> range:
        return range(self.layout.count)

    def flat(self, slot: int, place: int) -> torch.Tensor:
        """A tensor's memory as one row of its elements, with the holes that its strides leave."""
        spec, offsets = self.layout.tensors[place], self.layout.offsets
        start = slot * offsets[-1] + offsets[place]
        return self._memory[start : start + spanned(spec) * spec.dtype.itemsize].view(spec.dtype)

    def spoil(self, slot: int, first: int) -> None:
        """Overwrite a slot's tensors from place ``first`` on with bytes that no result consists of."""
        offsets = self.layout.offsets
        start = slot * offsets[-1]
        self._memory[start + offsets[first] : start + offsets[-1]].fill_(secrets.choice(_SPOILT))
        for place, spec in enumerate(self.layout.tensors[first:], first):
            if spec.dtype == torch.bool:
                self.flat(slot, place).fill_(bool(secrets.randbelow(2)))

    def _strided(self, slot: int, place: int) -> torch.Tensor:
        spec = self.layout.tensors[place]
        # data: each tensor has a version counter of its own
        return self.flat(slot, place).as_strided(spec.shape, spec.strides).data


def spanned(spec: TensorSpec) -> int:
    """Elements from a tensor's first to its last."""
    steps = zip(spec.shape, spec.strides, strict=True)
    return sum((size - 1) * stride for size, stride in steps) + 1 if spec.numel else 0


def described(values: Sequence[Any]) -> list[Any]:
    """Arguments as plain data: tensors become ``{"tensor": true}``, in the order in which a slot holds them."""
    return [_described(value) for value in values]


def _described(value: Any) -> Any:
    if isinstance(value, torch.Tensor):
        return {"tensor": True}
    if isinstance(value, torch.dtype):
        return {"dtype": dtype_name(value)}
    return list(map(_described, value)) if isinstance(value, list | tuple) else value


def filled(description: Sequence[Any], tensors: Sequence[torch.Tensor]) -> tuple[Any, ...]:
    """The arguments that ``described`` told of, with these tensors."""
    left = iter(tensors)

    def value_of(told: Any) -> Any:
        if isinstance(told, dict):
            return torch_dtype(told["dtype"]) if "dtype" in told else next(left)
        return tuple(map(value_of, told)) if isinstance(told, list) else told

    return tuple(map(value_of, description))
