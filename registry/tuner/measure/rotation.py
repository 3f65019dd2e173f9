"""The rotating copies of a problem's inputs: launches on them are timed, and they are overwritten for verification."""

from __future__ import annotations

import itertools
import secrets
from collections.abc import Iterable, Iterator, Mapping
from random import Random
from typing import Any

import torch

from ...arguments.schema import tensors_in, with_tensors
from ...problem import TensorSpec
from .secret_elements import SecretElements
from .stack import Stack, last_bits

_FARTHEST = 1 << 40
"""The most places by which elements are moved; from the end they go on at the beginning."""


class Rotation:
    """``count`` copies of a problem's arguments at different addresses; values that are no tensors are shared.

    ``independent``: places of tensors that ``change`` and ``move`` treat as floating ones, see ``Op.independent``.
    """

    def __init__(self, values: tuple[Any, ...], count: int, independent: Iterable[int] = ()) -> None:
        # a list's tensors have a stack each
        self._stacks = {
            place: [Stack(TensorSpec.of(tensor), count) for tensor in tensors]
            for place, value in enumerate(values)
            if (tensors := tensors_in((value,)))
        }
        self.copies: list[tuple[Any, ...]] = [self._copy(values, number) for number in range(count)]
        self._shown = self._announced = ""
        self.writes = 0
        """How often the copies were written to: several plans may be timed on them in turn."""
        # a draw from the system takes 1 µs, for each copy before each sample
        self._drawn = Random(secrets.randbits(64)).randrange
        self._moved: dict[tuple[Stack, int], int] = {}
        """Stack and copy -> the places by which its elements are moved."""
        self._masks: dict[tuple[Stack, int], int] = {}
        """Stack and copy, of those that are moved -> the last bits that are flipped in each of its numbers."""
        self._complete: Iterable[int] | None = None
        """The copies given to the last ``move``, if all of them are moved."""
        device = next((stack.bits.device for stack in self._all), None)
        # a generator of its own: a candidate may seed torch's
        generator = None if device is None else torch.Generator(device).manual_seed(secrets.randbits(60))
        told = {stack for place in independent for stack in self._stacks.get(place, ())}
        self._changeable = told | {stack for stack in self._all if stack.dtype.is_floating_point}
        self._secret = {
            stack: SecretElements(stack, generator, independent=stack in told)
            for stack in self._all
            if generator is not None
        }

    def _copy(self, values: tuple[Any, ...], number: int) -> tuple[Any, ...]:
        stacks = iter(self._all)
        return with_tensors(values, lambda _: next(stacks).tensors[number])

    @property
    def _all(self) -> list[Stack]:
        return [stack for place in sorted(self._stacks) for stack in self._stacks[place]]

    def show(self, name: str, values: tuple[Any, ...]) -> None:
        """Overwrite every copy in place with ``values``, unless the copies hold those of this ``name`` already.

        No version counter moves: an implementation that remembers results by address and version must not notice.
        """
        if name == self._shown:
            self.restore()
            return
        self._forget(name)
        for stack, tensor in zip(self._all, tensors_in(values), strict=True):
            stack.write(tensor)

    def change(self, places: Iterable[int]) -> None:
        """Change one element of every changeable tensor at these places, in each copy another, chosen at random.

        The elements of the change before are put back first. No version counter moves.
        """
        self._put_back()
        for place in places:
            for stack in self._stacks.get(place, ()):
                self._secret[stack].change()

    def move(self, copies: Iterable[int], values: Mapping[int, Any], *, again: bool = True) -> None:
        """Let changeable tensors of some copies hold the elements of ``values``, by place, but at other places.

        The elements of each tensor are moved by a random number of places, so that hardly one stays where it was, and
        some of the last bits of floating numbers are flipped: remembered results of the elements are wrong
        for these.
        Without ``again``, tensors that are moved already stay as they are. No version counter moves.
        """
        if not again and copies == self._complete:
            return
        wanted = [each for each in self._each(copies, values) if again or each not in self._moved]
        masks = {stack: last_bits(stack.dtype) if stack.dtype.is_floating_point else 0 for stack, _ in wanted}
        masks = {stack: 1 + self._drawn(most) if most else 0 for stack, most in masks.items()}
        steps = {each: 1 + self._drawn(_FARTHEST) for each in wanted}
        self._write(values, steps, {each: masks[each[0]] for each in wanted})
        self._complete = copies

    def rewrite(self, copies: Iterable[int], values: Mapping[int, Any]) -> None:
        """Write as much memory as ``move`` does; only elements that ``change`` changed are put back."""
        self._write(values, {each: self._moved.get(each, 0) for each in self._each(copies, values)}, self._masks)

    def put_back(self, copies: Iterable[int], values: Mapping[int, Any]) -> None:
        """Let changeable tensors of some copies hold ``values``, by place, and put elements back everywhere."""
        self._write(values, {each: 0 for each in self._each(copies, values) if each in self._moved}, {})

    def exchange(self, values: Mapping[int, Any]) -> None:
        """Let all tensors of every copy at some places hold ``values``, by place. No version counter moves."""
        if not values:
            return
        self._put_back()
        for place, value in values.items():
            for stack, tensor in zip(self._stacks[place], tensors_in((value,)), strict=True):
                stack.write(tensor)
                self._secret[stack].forget()
                self._moved = {each: count for each, count in self._moved.items() if each[0] is not stack}
                self._masks = {each: mask for each, mask in self._masks.items() if each[0] is not stack}
        self._complete = None

    def restore(self) -> None:
        """Put back what ``change`` and ``move`` have changed. What a candidate has written stays."""
        self._put_back()
        for stack, steps in _by_stack(self._moved).items():
            self._secret[stack].forget()
            stack.flip({copy: mask for copy in steps if (mask := self._masks.get((stack, copy), 0))})
            stack.roll({copy: -count for copy, count in steps.items()})
        self._moved, self._masks, self._complete = {}, {}, None

    def _each(self, copies: Iterable[int], values: Mapping[int, Any]) -> Iterator[tuple[Stack, int]]:
        stacks = [stack for place in values for stack in self._stacks[place] if stack in self._changeable]
        return itertools.product(stacks, dict.fromkeys(copies))

    def _write(
        self,
        values: Mapping[int, Any],
        steps: Mapping[tuple[Stack, int], int],
        masks: Mapping[tuple[Stack, int], int],
    ) -> None:
        self._put_back()
        for stack in {stack for (stack, copy), count in steps.items() if self._moved.get((stack, copy), 0) != count}:
            self._secret[stack].forget()
        tensors = {
            stack: tensor
            for place, value in values.items()
            for stack, tensor in zip(self._stacks[place], tensors_in((value,)), strict=True)
        }
        alike: dict[tuple[Stack, int], dict[int, int]] = {}
        for (stack, copy), count in steps.items():
            alike.setdefault((stack, masks.get((stack, copy), 0)), {})[copy] = count
        for (stack, mask), each in alike.items():
            stack.write_moved(tensors[stack], each, mask)
        written = {each: masks.get(each, 0) for each in steps}
        self._masks = {each: mask for each, mask in {**self._masks, **written}.items() if mask}
        self._moved = {each: count for each, count in {**self._moved, **steps}.items() if count}
        self._complete = None

    def _put_back(self) -> None:
        self.writes += 1
        for elements in self._secret.values():
            elements.restore()

    def _forget(self, shown: str) -> None:
        """Forget changes and moves, since all copies are overwritten by values of that name."""
        self.writes += 1
        self._shown = shown
        for elements in self._secret.values():
            elements.show(shown)
        self._moved, self._masks, self._complete = {}, {}, None

    def spoil(self) -> None:
        """Overwrite every copy with values that give wrong results: NaN, and 0 where a number may be an index."""
        self._forget("")
        for stack in self._all:
            tensor = stack.tensors[0]
            stack.write(torch.full_like(tensor, torch.nan if tensor.is_floating_point() else 0))

    def announce(self) -> None:
        """Advance the version counters after a change: the host finds prepared tensors by them."""
        if self._announced == self._shown:
            return
        self._announced = self._shown
        for stack in self._all:
            torch.autograd.graph.increment_version(stack.tensors)

    def unchanged(self, values: tuple[Any, ...], places: Iterable[int]) -> dict[int, torch.Tensor]:
        """Place -> whether every copy still holds ``values`` there, as a tensor on the device."""
        return {
            place: torch.stack(list(map(Stack.holds, self._stacks[place], tensors_in((values[place],))))).all()
            for place in places
            if place in self._stacks
        }

    def agree(self, places: Iterable[int], count: int) -> list[torch.Tensor]:
        """For each place whether the first ``count`` copies are equal bit by bit, as a tensor on the device."""
        return [stack.agrees(count) for place in places for stack in self._stacks[place]]

    def poison(self, places: Iterable[int]) -> None:
        """Poison the tensors at these places, which are no lists, and the margins beside them."""
        self._forget("")
        for place in places:
            self._stacks[place][0].poison()

    def margins_untouched(self, places: Iterable[int]) -> dict[int, torch.Tensor]:
        """Place -> whether nothing was written beside the copies since ``poison``, as a tensor on the device."""
        return {place: self._stacks[place][0].margins_untouched() for place in places}

    @property
    def nbytes(self) -> int:
        return sum(stack.nbytes for stack in self._all)


def _by_stack(steps: Mapping[tuple[Stack, int], int]) -> dict[Stack, dict[int, int]]:
    """Stack -> copy -> steps, given these by stack and copy."""
    found: dict[Stack, dict[int, int]] = {}
    for (stack, copy), count in steps.items():
        found.setdefault(stack, {})[copy] = count
    return found
