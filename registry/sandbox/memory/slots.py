"""Slots: a sandbox's inputs and outputs, one set for each call of a request, side by side in shared memory."""

from __future__ import annotations

import secrets
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import accumulate
from typing import Any

import torch

from ...problem import Arguments, TensorSpec, dtype_name, torch_dtype

_ALIGNMENT = 512
_WIDEST = 16
"""Bytes of the widest load: what a tensor's spec tells of its alignment goes up to it."""
BESIDE = 512
"""Bytes before and after each tensor of a probe that must stay as they are."""
_SPOILT = (0xFF, 0x7F)
"""Bytes of NaN, or of the least and the greatest numbers."""


@dataclass(frozen=True)
class SlotLayout:
    """Places of ``count`` slots. ``tensors``: the specs of a slot's arguments, then of its outputs.

    ``beside``: bytes before and after each tensor that are no tensor's.
    """

    tensors: tuple[TensorSpec, ...]
    count: int
    beside: int = 0

    @cached_property
    def offsets(self) -> tuple[int, ...]:
        """Bytes from the start of a slot to the room of each of its tensors, and to the next slot."""
        sizes = (self._lead(spec) + _nbytes(spec) + self.beside for spec in self.tensors)
        return tuple(accumulate((-(-size // _ALIGNMENT) * _ALIGNMENT for size in sizes), initial=0))

    def place(self, slot: int, place: int) -> tuple[int, int]:
        """The first byte of a slot's tensor in the memory of all slots, and the one after its last."""
        spec = self.tensors[place]
        start = slot * self.offsets[-1] + self.offsets[place] + self._lead(spec)
        return start, start + _nbytes(spec)

    def _lead(self, spec: TensorSpec) -> int:
        """Bytes from the start of a tensor's room to the tensor, which has the alignment of its spec."""
        return self.beside + (spec.alignment if spec.alignment < _WIDEST else 0)

    @property
    def nbytes(self) -> int:
        """Bytes of all slots, one at least."""
        return max(self.count * self.offsets[-1], _ALIGNMENT)

    def as_data(self) -> dict[str, Any]:
        """The layout as plain data."""
        listed = [
            [list(each.shape), dtype_name(each.dtype), list(each.strides), each.alignment] for each in self.tensors
        ]
        return {"tensors": listed, "count": self.count, "beside": self.beside}

    @classmethod
    def of_data(cls, data: Mapping[str, Any]) -> SlotLayout:
        """The layout that ``as_data`` wrote."""
        specs = tuple(
            TensorSpec(tuple(shape), torch_dtype(dtype), tuple(strides), alignment=alignment)
            for shape, dtype, strides, alignment in data["tensors"]
        )
        return cls(specs, data["count"], data["beside"])


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
        start, end = self.layout.place(slot, place)
        return self._memory[start:end].view(self.layout.tensors[place].dtype)

    def spoil(self, slot: int, first: int) -> int:
        """Overwrite a slot's tensors from place ``first`` on, and what is beside them; returns the byte.

        No result consists of it.
        """
        offsets, byte = self.layout.offsets, secrets.choice(_SPOILT)
        start = slot * offsets[-1]
        self._memory[start + offsets[first] : start + offsets[-1]].fill_(byte)
        for place, spec in enumerate(self.layout.tensors[first:], first):
            if spec.dtype == torch.bool:
                self.flat(slot, place).fill_(bool(secrets.randbelow(2)))
        return byte

    def is_kept_beside(self, slot: int, byte: int) -> bool:
        """Whether all bytes of a slot that are no tensor's are ``byte``."""
        size = self.layout.offsets[-1]
        edges = [slot * size]
        for place in range(len(self.layout.tensors)):
            edges += self.layout.place(slot, place)
        gaps = zip(edges[::2], [*edges[1::2], (slot + 1) * size], strict=True)
        return all(bool((self._memory[start:end] == byte).all()) for start, end in gaps)

    def _strided(self, slot: int, place: int) -> torch.Tensor:
        spec = self.layout.tensors[place]
        # data: each tensor has a version counter of its own
        return self.flat(slot, place).as_strided(spec.shape, spec.strides).data


def spanned(spec: TensorSpec) -> int:
    """Elements from a tensor's first to its last."""
    steps = zip(spec.shape, spec.strides, strict=True)
    return sum((size - 1) * stride for size, stride in steps) + 1 if spec.numel else 0


def _nbytes(spec: TensorSpec) -> int:
    return spanned(spec) * spec.dtype.itemsize


def specs_in(arguments: Arguments) -> list[tuple[str, TensorSpec]]:
    """The specs of all tensors among arguments, those of lists too, each with its argument's name."""
    listed = ((name, value if isinstance(value, tuple) else (value,)) for name, value in arguments.unrecorded.items())
    return [(name, one) for name, values in listed for one in values if isinstance(one, TensorSpec)]


def described(values: Iterable[Any]) -> list[Any]:
    """Arguments as plain data: tensors become ``{"tensor": true}``, in the order in which a slot holds them."""
    return [_described(value) for value in values]


def _described(value: Any) -> Any:
    if isinstance(value, torch.Tensor | TensorSpec):
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
