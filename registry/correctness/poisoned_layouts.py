"""Tensors inside larger allocations filled with poison, which reveals reads and writes outside of the tensor."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from functools import cached_property, lru_cache
from itertools import count
from typing import Any, Literal, get_args

import torch
from torch.utils._python_dispatch import is_in_torch_dispatch_mode

from ..arguments.expansion import strides_with_repeats, without_repeats
from ..arguments.schema import with_tensors
from ..problem import TensorSpec
from .batched import copy_each
from .bits import WORD, as_bits
from .expanded import EXPANDED, ExpandedLayout

PoisonedLayout = Literal[
    "contiguous",
    "unaligned",
    "sliced",
    "transposed",
    "strided",
    "strided-dense",
    "dense-strided",
    "unlike",
    ExpandedLayout,
]
LAYOUTS: tuple[PoisonedLayout, ...] = get_args(PoisonedLayout)
"""contiguous: row-major, at a multiple of 16 bytes. unaligned: row-major, one element further. sliced: the first
columns of a wider tensor, so that rows are not aligned. transposed: row-major with the last two dimensions exchanged.
strided: one unused element after each, rows still further apart.
strided-dense and dense-strided, for several tensors: every other one is strided, from the first or from the
second on; the rest are row-major.
unlike, for several tensors: rows are dense and aligned, but they lie in another order and further apart in each tensor,
so that the strides of one are wrong for every other.
Layouts of ``ExpandedLayout``: row-major, but elements that the given tensors repeat lie at one address; see
``expanded_inputs``."""


def layouts_on(device_type: str) -> tuple[PoisonedLayout, ...]:
    """The layouts that are probed on a type of device: all on a CPU; on a GPU, where no library's kernels have been
    tried with them, no expanded ones."""
    return LAYOUTS if device_type == "cpu" else tuple([one for one in LAYOUTS if one not in EXPANDED])


MARGIN = 64
"""Elements before and after: a multiple of 16 bytes for every dtype, and more than a vector load."""

_ALIGNED = 16
"""Elements that are a multiple of 16 bytes in every dtype."""

_SMALL = 1 << 15
"""The most elements of a tensor whose poison is remembered: 64 of them are 20 MB."""

_GAPS: dict[PoisonedLayout, tuple[int, int]] = {"sliced": (1, 1), "strided": (2, 3)}
"""The stride within a row, and the number of elements added to the other strides; (1, 0) for other layouts."""

_STRIDED_FROM: dict[PoisonedLayout, int] = {"strided-dense": 0, "dense-strided": 1}
"""Layouts in which every other tensor is strided, with the index of the first strided tensor."""

_INTEGERS = {
    1: (0x7E, 0x82),
    2: (0x7FE5, 0xF755),
    4: (0x7FE5A5A5, 0xF755A5A5),
    8: (0x7FFDA5A5A5A5A5A5, 0xF755A5A5A5A5A5A5),
}
"""A large and a negative number by bytes per element; the large one is NaN in floating dtypes of two bytes or more."""
_FLOATS = {1: 0xD3, 2: 0xC9B5, 4: 0xC136A5A5, 8: 0xC026D5A5A5A5A5A5}
"""The bits of about -11.4 by bytes per element (one byte: -11 or -56)."""
_BFLOAT16 = 0xC137
_FLOAT8_NAN = 0x7F


@dataclass(frozen=True)
class Poison:
    """The bits of two elements with which margins are filled alternately; no right output is likely to hold them.

    ``nan`` reveals a read. It may not reveal a change, since arithmetic on a CPU keeps the bits of NaN. ``number``
    reveals a change: relu changes it since it is negative, adding one since it is small. Dtypes that are not floating
    have a large number instead of NaN; those of one byte have even numbers, which or-ing with true changes.
    """

    nan: int
    number: int
    itemsize: int

    @classmethod
    def of(cls, dtype: torch.dtype) -> Poison:
        """The poison for elements of a dtype; for a complex dtype the poison of its real parts."""
        dtype = dtype.to_real() if dtype.is_complex else dtype
        nan, number = _INTEGERS[dtype.itemsize]
        if dtype.is_floating_point:
            nan = _FLOAT8_NAN if dtype.itemsize == 1 else nan
            number = _BFLOAT16 if dtype == torch.bfloat16 else _FLOATS[dtype.itemsize]
        return cls(nan, number, dtype.itemsize)

    def word(self, first: int, second: int) -> int:
        """An 8-byte integer in which elements with these bits alternate; only ``first`` if an element has 8 bytes."""
        pair = b"".join(bits.to_bytes(self.itemsize, "little") for bits in (first, second))
        return int.from_bytes((pair * WORD)[:WORD], "little", signed=True)

    def filled(self, bits: torch.Tensor, is_number: torch.Tensor) -> torch.Tensor:
        """A tensor like ``bits`` that holds nothing but poison."""
        words = torch.empty(2, dtype=torch.int64, device=bits.device)
        for place, element in enumerate((self.nan, self.number)):
            words[place].fill_(self.word(element, element))
        nan, number = words.view(bits.dtype).view(2, -1)[:, 0]
        return torch.where(_each(is_number, bits), number, nan).expand_as(bits).contiguous()


@dataclass(frozen=True)
class Surrounded:
    """``tensor`` is a view into ``base``, whose other elements are poisoned.

    Of a large tensor without gaps only the margins are remembered and compared: masks would take as much as it again.
    """

    tensor: torch.Tensor
    base: torch.Tensor
    inside: torch.Tensor | None
    """A mask of the elements of ``base`` that are the tensor's; None for a large tensor without gaps."""
    pristine: torch.Tensor
    """The bits of the fully poisoned ``base``; those of the tensor are NaN or a large integer. Without ``inside`` the
    bits of the margins alone, of the one before the tensor first."""

    def poison(self) -> None:
        """Fill the whole base with poison again, the tensor too."""
        if self.inside is not None:
            self._bits.copy_(self.pristine)
            return
        self._bits.fill_(Poison.of(self.base.dtype).nan)
        copy_each(*map(list, zip(*self._margins, strict=True)))

    @property
    def nbytes(self) -> int:
        return self.base.nbytes + (0 if self.inside is None else self.inside.nbytes) + self.pristine.nbytes

    def untouched(self) -> torch.Tensor:
        """A boolean tensor on the device: True if nothing but the tensor's own elements was written."""
        if self.inside is not None:
            return (self._bits == self.pristine).logical_or_(_each(self.inside, self.pristine)).all()
        return (torch.cat([margin for margin, _ in self._margins]) == self.pristine).all()

    @cached_property
    def _bits(self) -> torch.Tensor:
        return as_bits(self.base)

    @cached_property
    def _margins(self) -> tuple[tuple[torch.Tensor, torch.Tensor], ...]:
        """(bits, poisoned bits) of the elements before the tensor and of those after it."""
        bits, before = self._bits, int(self.tensor.storage_offset())
        after = len(bits) - (len(self.pristine) - before)
        return (bits[:before], self.pristine[:before]), (bits[after:], self.pristine[before:])


def surrounded(spec: TensorSpec, offset: int = MARGIN, *, nan_beside: bool = False, room: int = 0) -> Surrounded:
    """A poisoned tensor of that shape, dtype and strides, ``offset`` elements into a poisoned allocation.

    Outside of the tensor NaN and a number alternate. The elements directly before and after it are the number, which
    reveals reads, changes and writes; with ``nan_beside`` they are NaN, which reveals reads. ``room``:
    the elements from the tensor's first to the margin after it, if the tensor takes less.
    """
    span = max(sum((size - 1) * stride for size, stride in zip(spec.shape, spec.strides, strict=True)) + 1, 0)
    room = max(span, room)
    inside: torch.Tensor | None = None
    if span > _SMALL and _has_no_gaps(spec):
        pristine = _poisoned_margins(spec, offset, nan_beside)
    else:
        remembered = spec.device.type == "cpu" and room <= _SMALL and not is_in_torch_dispatch_mode()
        inside, pristine = (_remembered_poison if remembered else _poison)(spec, span, room, offset, nan_beside)
    base = torch.empty(room + 2 * MARGIN, dtype=spec.dtype, device=spec.device)
    found = Surrounded(base.as_strided(spec.shape, spec.strides, offset), base, inside, pristine)
    found.poison()
    return found


def _has_no_gaps(spec: TensorSpec) -> bool:
    """Whether the elements lie one behind another, in some order of the dimensions, and none twice."""
    step = 1
    for stride, size in sorted((stride, size) for size, stride in zip(spec.shape, spec.strides, strict=True)):
        if size != 1 and stride != step:
            return False
        step *= size
    return True


def _poisoned_margins(spec: TensorSpec, offset: int, nan_beside: bool) -> torch.Tensor:
    """``pristine`` of a tensor without gaps: both margins in a row, ``offset`` elements of it before the tensor."""
    margins = torch.empty(2 * MARGIN, dtype=spec.dtype, device=spec.device)
    is_number = torch.arange(2 * MARGIN, device=spec.device) % 2 == 1
    is_number[offset - 1 : offset + 1] = not nan_beside
    return Poison.of(spec.dtype).filled(as_bits(margins), is_number)


def _poison(spec: TensorSpec, span: int, room: int, offset: int, nan_beside: bool) -> tuple[torch.Tensor, torch.Tensor]:
    """``inside`` and ``pristine`` of a surrounded tensor, ``span`` elements of the ``room`` between two margins."""
    base = torch.empty(room + 2 * MARGIN, dtype=spec.dtype, device=spec.device)
    inside = torch.zeros(base.shape, dtype=torch.bool, device=spec.device)
    inside.as_strided(spec.shape, spec.strides, offset).fill_(True)
    is_number = (~inside).cumsum(0, dtype=torch.int32) % 2 == 0
    for beside in (offset - 1, offset + span):
        is_number[beside].fill_(not nan_beside)
    return inside, Poison.of(spec.dtype).filled(as_bits(base), is_number & ~inside)


_remembered_poison = lru_cache(maxsize=64)(_poison)
"""A check lays out tensors of the same few shapes again and again; nobody writes to what is returned."""


def laid_out(tensor: torch.Tensor, layout: PoisonedLayout, place: int = 0) -> torch.Tensor:
    """A copy of a tensor in that layout, inside a poisoned allocation that reveals reads outside of it.

    ``place`` is its index among the tensors of a call.
    """
    return laid_out_within(tensor, layout, place, nan_beside=True).tensor


def laid_out_within(
    tensor: torch.Tensor, layout: PoisonedLayout, place: int = 0, *, nan_beside: bool = False
) -> Surrounded:
    """A copy of a tensor in that layout, with its poisoned allocation, which reveals reads, changes and writes."""
    if layout in EXPANDED:
        return _laid_out_expanded(tensor, nan_beside)
    strides = _strides(tuple(tensor.shape), layout, place)
    spec = TensorSpec(tuple(tensor.shape), tensor.dtype, strides, tensor.device)
    copy = surrounded(spec, MARGIN + 1 if layout == "unaligned" else MARGIN, nan_beside=nan_beside)
    copy.tensor.copy_(tensor)
    return copy


def as_given(tensor: torch.Tensor) -> Surrounded:
    """The tensor itself, with nothing around it that could be touched."""
    return Surrounded(tensor, tensor.new_empty(0), None, as_bits(tensor.new_empty(0)))


def _laid_out_expanded(tensor: torch.Tensor, nan_beside: bool) -> Surrounded:
    spec = TensorSpec(tuple(tensor.shape), tensor.dtype, strides_with_repeats(tensor), tensor.device)
    # who reads elements as if none were repeated reads poison, and no memory of others
    copy = surrounded(spec, nan_beside=nan_beside, room=spec.numel)
    without_repeats(copy.tensor).copy_(without_repeats(tensor))
    return copy


def all_laid_out(values: tuple[Any, ...], layout: PoisonedLayout) -> tuple[Any, ...]:
    """A call's values with every tensor as ``laid_out`` makes it."""
    place = count()
    return with_tensors(values, lambda tensor: laid_out(tensor, layout, next(place)))


def adds_nothing(layout: PoisonedLayout, tensors: Collection[TensorSpec]) -> bool:
    """True if the layout gives these tensors the strides that another layout gives them.

    Tensors without rows have no distance between rows, and a single tensor has no others to differ from.
    """
    if layout in EXPANDED:
        return not any(spec.is_expanded for spec in tensors)
    if layout in _STRIDED_FROM:
        return len(tensors) < 2
    if layout == "unlike":
        # the first tensor is row-major, and so is every one without rows
        return all(len(tensor.shape) < 2 for tensor in list(tensors)[1:])
    return layout in {"sliced", "transposed"} and all(len(tensor.shape) < 2 for tensor in tensors)


def _gaps(layout: PoisonedLayout, place: int) -> tuple[int, int]:
    if layout not in _STRIDED_FROM:
        return _GAPS.get(layout, (1, 0))
    return (1, 0) if (place - _STRIDED_FROM[layout]) % 2 else (2 + place, 3)


def _strides(shape: tuple[int, ...], layout: PoisonedLayout, place: int) -> tuple[int, ...]:
    if layout == "transposed" and len(shape) >= 2:
        *outer, last, first = _strides((*shape[:-2], shape[-1], shape[-2]), "contiguous", place)
        return (*outer, first, last)
    if layout == "unlike":
        return _unlike(shape, place)
    step, more = _gaps(layout, place)
    strides = [step]
    for size in reversed(shape[1:]):
        strides.append(max(size, 1) * strides[-1] + more)
    return tuple(reversed(strides[: len(shape)]))


def _unlike(shape: tuple[int, ...], place: int) -> tuple[int, ...]:
    """Strides of dense rows: dimensions before the last are rotated by ``place``, with so many gaps after each row."""
    if not shape:
        return ()
    outer = range(len(shape) - 1)
    turn = place % max(len(outer), 1)
    strides, step = {len(outer): 1}, max(shape[-1], 1) + _ALIGNED * place
    for dimension in reversed([*outer[turn:], *outer[:turn]]):
        strides[dimension] = step
        step *= max(shape[dimension], 1)
    return tuple(strides[dimension] for dimension in range(len(shape)))


def _each(elements: torch.Tensor, bits: torch.Tensor) -> torch.Tensor:
    """A mask of elements as a mask of the integers, in ``bits``, that they consist of."""
    return elements.view(-1, *[1] * (bits.dim() - 1))
