"""Equal tensors in one allocation, so that all of them are filled, poisoned or compared by one operation."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import cached_property

import torch

from ...arguments.expansion import without_repeats
from ...correctness.bits import WORD, as_bits, as_words
from ...correctness.poisoned_layouts import Poison
from ...problem import TensorSpec
from .rolled import roll, write_rolled

_MARGIN_BYTES = 512
"""Bytes of margin before, between and after the tensors; torch's allocator aligns to as much."""
_PART = 1 << 24
"""Elements whose bits are flipped at once."""


class Stack:
    """``count`` tensors like ``spec``, poisoned, with poisoned margins.

    Poison is NaN and a number alternately (see ``Poison``), written by one fill; elements that are whole words hold one
    or the other. The two change places every time: after a tensor there is NaN at first, which shows a kernel that
    reads it, then the number, which shows one that reads, changes and writes it.

    ``tensors`` have version counters of their own: a cache that goes by versions does not notice writes to the stack.
    """

    def __init__(self, spec: TensorSpec, count: int) -> None:
        itemsize = spec.dtype.itemsize
        # complex numbers are compared as two real ones, and poisoned by their bytes
        self._margin = _MARGIN_BYTES // itemsize
        steps = zip(spec.shape, spec.strides, strict=True)
        self._span = 0 if spec.numel == 0 else sum((size - 1) * stride for size, stride in steps) + 1
        self._pitch = math.ceil(self._span / self._margin) * self._margin + self._margin
        self._spec = spec
        self._base = torch.empty(count * self._pitch + self._margin, dtype=spec.dtype, device=spec.device)
        self._count = count
        self._all = self._base.as_strided((count, *spec.shape), (self._pitch, *spec.strides), self._margin)
        self._bits = as_bits(self._base)
        # margins are whole words, and so are the tensors between them with their padding
        self._words = self._bits.view(-1).view(torch.int64)
        self._rows = self._rows_of_words(spec)
        self._poisons = self._by_what_comes_after()
        self.poison()
        self.tensors: list[torch.Tensor] = [tensor.data for tensor in self._all]

    def poison(self) -> None:
        """Fill tensors and margins with poison that no right output holds: NaN where the number was, and vice versa."""
        self._poisons.reverse()
        word, _ = self._poisons[0]
        self._words.fill_(word)

    @property
    def dtype(self) -> torch.dtype:
        return self._base.dtype

    @property
    def numel(self) -> int:
        return self._spec.numel

    @property
    def bits(self) -> torch.Tensor:
        """The allocation as one row of integers: a complex number is two. Writing to it moves no tensor's version."""
        return self._bits.view(-1)

    def starts(self, numbers: Sequence[int]) -> torch.Tensor:
        """Places in ``bits`` of the first elements of these tensors, on the host."""
        found = torch.tensor(numbers).mul_(self._pitch).add_(self._margin)
        return found.mul_(self._bits.numel() // self._base.numel())

    def places(self, steps: int, generator: torch.Generator) -> torch.Tensor:
        """Places in ``bits``, drawn at random: ``steps`` times one element of each tensor, of shape (steps, count)."""
        found = self._firsts.repeat(steps, 1)
        for size, stride in self._runs:
            drawn = torch.randint(size, found.shape, generator=generator, device=found.device)
            found.add_(drawn, alpha=stride)
        return found.mul_(2) if self.dtype.is_complex else found

    @cached_property
    def _firsts(self) -> torch.Tensor:
        """Places of the first elements of the tensors in the allocation, on the device."""
        return torch.arange(self._count, device=self._base.device).mul_(self._pitch).add_(self._margin)

    @cached_property
    def _runs(self) -> list[tuple[int, int]]:
        """(size, stride) of dimensions that reach each address of a tensor once: one if it is contiguous."""
        found: list[tuple[int, int]] = []
        for size, stride in zip(reversed(self._spec.shape), reversed(self._spec.strides), strict=True):
            if size == 1 or stride == 0:
                continue
            if found and stride == math.prod(found[-1]):
                found[-1] = found[-1][0] * size, found[-1][1]
            else:
                found.append((size, stride))
        return found

    def some(self, most: int) -> torch.Tensor:
        """``bits`` of at most that many elements, evenly spread over the first tensor."""
        first = self.bits[self._margin : self._margin + self._span]
        return first[:: max(1, -(-self._span // most))]

    def write(self, value: torch.Tensor) -> None:
        """Copy ``value``, of the stack's shape and dtype, into every tensor."""
        words = self._words_of(value)
        if self._rows is not None and words is not None:
            self._rows.copy_(words)
        else:
            without_repeats(self._all).copy_(without_repeats(value))

    def write_moved(self, value: torch.Tensor, steps: Mapping[int, int], mask: int = 0) -> None:
        """Copy ``value`` into some tensors: number -> places by which its elements are moved; the last come first.

        ``mask``: bits that are flipped in each number, see ``flip``.
        """
        source, rows = as_bits(without_repeats(value)), self._rows_of_bits
        if mask:
            source = flipped(source, self.dtype, mask)
        if rows is not None and source.is_contiguous():
            write_rolled([rows[number] for number in steps], source.view(-1), list(steps.values()))
            return
        for number, count in steps.items():
            as_bits(without_repeats(self._all[number])).copy_(source.roll(count))

    def flip(self, masks: Mapping[int, int]) -> None:
        """Flip the bits of a mask in each number of some tensors: number -> mask; twice, and all is as it was.

        Zeros, the smallest numbers, infinities and NaN stay as they are.
        """
        bits = as_bits(without_repeats(self._all))
        for mask in dict.fromkeys(masks.values()):
            for first, end in _stretches(number for number, wanted in masks.items() if wanted == mask):
                _flip(bits[first:end], self.dtype, mask)

    def roll(self, steps: Mapping[int, int]) -> None:
        """Move the elements of some tensors: number -> places, in their order; the last ones come first."""
        rows = self._rows_of_bits
        if rows is not None:
            roll([rows[number] for number in steps], list(steps.values()))
            return
        for number, count in steps.items():
            bits = as_bits(without_repeats(self._all[number]))
            bits.copy_(bits.roll(count))

    @cached_property
    def _rows_of_bits(self) -> list[torch.Tensor] | None:
        """Each tensor's elements as a row of integers; None where they have holes."""
        bits = as_bits(without_repeats(self._all))
        return [row.view(-1) for row in bits] if bits[0].is_contiguous() else None

    def holds(self, value: torch.Tensor, count: int | None = None) -> torch.Tensor:
        """Whether every tensor equals ``value``, of the stack's shape and dtype, bit by bit: a tensor on the device.

        Only the first ``count`` are compared, where that is given.
        """
        words = self._words_of(value)
        if self._rows is not None and words is not None:
            return (self._rows[:count] == words).all()
        return (as_bits(without_repeats(self._all[:count])) == as_bits(without_repeats(value))).all()

    def _words_of(self, value: torch.Tensor) -> torch.Tensor | None:
        alike = value.shape == self._all.shape[1:] and value.dtype == self._base.dtype
        return as_words(value) if alike and self._rows is not None else None

    def _rows_of_words(self, spec: TensorSpec) -> torch.Tensor | None:
        """Every tensor's memory as a row of words; None where they have holes, or are not made of whole words."""
        itemsize = spec.dtype.itemsize
        if spec.dtype.is_complex or not spec.numel or spec.nbytes % WORD or not self._all[0].is_contiguous():
            return None
        margin, pitch = (elements * itemsize // WORD for elements in (self._margin, self._pitch))
        return self._words.as_strided((self._count, spec.nbytes // WORD), (pitch, 1), margin)

    def agrees(self, count: int | None = None) -> torch.Tensor:
        """Whether all tensors, or the first ``count``, are equal bit by bit, as a tensor on the device."""
        if 1 in {count, self._count}:
            return torch.ones((), dtype=torch.bool, device=self._base.device)
        return self.holds(self._all[0], count)

    def margins_untouched(self) -> torch.Tensor:
        """Whether nothing was written before, between or after the tensors since ``poison``."""
        flat, margin, pitch, span = self._in_bits()
        gaps = flat.as_strided((self._count, pitch - span), (pitch, 1), margin + span)
        _, pristine = self._poisons[0]
        after = pristine[span % 2 :][: pitch - span]
        return (gaps == after).all() & (flat[:margin] == pristine[:margin]).all()

    def _in_bits(self) -> tuple[torch.Tensor, int, int, int]:
        """The allocation, margin, pitch and span in integers: a complex number is two."""
        each = self._bits.numel() // self._base.numel()
        return self._bits.view(-1), self._margin * each, self._pitch * each, self._span * each

    def _by_what_comes_after(self) -> list[tuple[int, torch.Tensor]]:
        """The two words of poison with the margins that each makes; with the second, NaN follows each tensor."""
        flat, margin, _, span = self._in_bits()
        poison = Poison.of(self._base.dtype)
        found = []
        for pair in ((poison.number, poison.nan), (poison.nan, poison.number)):
            # margins are an even number of integers: after an odd span comes the second of a pair
            word = poison.word(*(pair[::-1] if span % 2 and poison.itemsize < WORD else pair))
            held = torch.full((3 * margin * poison.itemsize // WORD,), word, dtype=torch.int64, device=flat.device)
            found.append((word, held.view(flat.dtype)))
        return found

    @property
    def nbytes(self) -> int:
        return self._base.nbytes


def last_bits(dtype: torch.dtype) -> int:
    """The last half of the mantissa's bits as a mask: with others a number is another one of about the same size."""
    return (1 << round(-math.log2(torch.finfo(dtype).eps)) // 2) - 1


def flipped(bits: torch.Tensor, dtype: torch.dtype, mask: int) -> torch.Tensor:
    """Numbers of a floating dtype, given and returned as integers, with the bits of ``mask`` flipped."""
    found = bits.clone(memory_format=torch.contiguous_format)
    _flip(found, dtype, mask)
    return found


def _flip(bits: torch.Tensor, dtype: torch.dtype, mask: int) -> None:
    """Flip the bits of ``mask``, which are bits of the mantissa, in numbers that are given as integers.

    Those whose exponent is zero, or has all bits set, stay as they are. Few operations, since there may be many small
    tensors: the exponent plus one, without its lowest bit, is zero for both of these, and larger than a mantissa for
    all other numbers.
    """
    # all but the sign and the mantissa
    one = 1 << round(-math.log2(torch.finfo(dtype).eps))
    exponent = torch.iinfo(bits.dtype).max & ~(one - 1) & ((1 << 8 * dtype.itemsize - 1) - 1)
    for part in _parts(bits):
        ours = part & exponent
        part.bitwise_xor_(ours.add_(one).bitwise_and_(exponent ^ one).clamp_(max=mask))


def _parts(bits: torch.Tensor) -> Iterator[torch.Tensor]:
    """Parts of a tensor, of ``_PART`` elements at most: what is computed on the way takes as much memory again."""
    if bits.numel() <= _PART:
        yield bits
    elif len(bits) == 1:
        yield from _parts(bits[0])
    else:
        for piece in bits.split(max(1, _PART * len(bits) // bits.numel())):
            yield from _parts(piece)


def _stretches(numbers: Iterable[int]) -> Iterator[tuple[int, int]]:
    """(first, end) of the longest rows of numbers that follow each other."""
    for _, row in itertools.groupby(enumerate(sorted(numbers)), lambda each: each[1] - each[0]):
        found = [number for _, number in row]
        yield found[0], found[-1] + 1
