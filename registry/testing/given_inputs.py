"""Inputs of a check, equal in every run, inside poisoned allocations."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from typing import Any

import torch

from ..arguments.schema import Parameter, tensors_in, with_tensors
from ..contract import Op
from ..correctness.bits import as_bits
from ..correctness.expanded import EXPANDED, expanded_inputs
from ..correctness.other_forms import AS_GIVEN
from ..correctness.other_numbers import renumbered
from ..correctness.poisoned_layouts import PoisonedLayout, Surrounded, as_given, laid_out_within
from ..device import Device
from ..problem import Problem

SEED = 1234


class GivenInputs:
    """Inputs of a kind in a layout, inside poisoned allocations. ``values`` are the schema's in order.

    ``numbers``: with other numbers than the kind has, where the op allows it, see ``Op.numbers``. ``call``: name and
    values of one of ``other_views``, ``other_forms`` and ``zeroed``, which are taken instead of a draw.
    """

    def __init__(
        self, op: Op, problem: Problem, kind: str, device: Device, layout: PoisonedLayout, *, nan_beside: bool = False,
        numbers: bool = False, call: tuple[str, tuple[Any, ...]] | None = None,
    ) -> None:  # fmt: skip
        self._draw = partial(_drawn, op, problem, kind, device, layout, numbers=numbers)
        self._is_expanded, self._is_as_given = layout in EXPANDED, call is not None and call[0] in AS_GIVEN
        self._draw_dense = partial(_drawn, op, problem, kind, device, "contiguous", SEED)
        self._tensors: list[tuple[Parameter, Surrounded, torch.Tensor]] = []
        self.values = tuple(
            with_tensors((value,), partial(self._lay_out, parameter, layout, nan_beside))[0]
            for parameter, value in zip(op.parsed.parameters, call[1] if call else self._draw(SEED), strict=True)
        )

    def _lay_out(
        self, parameter: Parameter, layout: PoisonedLayout, nan_beside: bool, tensor: torch.Tensor
    ) -> torch.Tensor:
        # NaN beside an input reveals reads; beside a mutated tensor a number also reveals changes
        beside = nan_beside or not parameter.mutated
        if self._is_as_given:
            found, tensor = as_given(tensor), tensor.clone()
        else:
            found = laid_out_within(tensor, layout, len(self._tensors), nan_beside=beside)
        self._tensors.append((parameter, found, tensor))
        return found.tensor

    @property
    def dense(self) -> tuple[Any, ...] | None:
        """The values before the layout expanded some of them; None for a layout that expands nothing."""
        return self._draw_dense() if self._is_expanded else None

    def restore(self) -> None:
        """Write the first contents into each mutated tensor again, in its memory."""
        for parameter, found, drawn in self._tensors:
            if parameter.mutated:
                found.tensor.copy_(drawn)

    def draw_again(self) -> bool:
        """Write another draw into the tensors' memory without moving their version counters.

        Returns False, and changes nothing, if the other draw has other shapes.
        """
        again = self._draw(SEED + 1)
        drawn = tensors_in(again)
        if [tensor.shape for tensor in drawn] != [tensor.shape for *_, tensor in self._tensors]:
            return False
        self._tensors = [
            (parameter, found, tensor) for (parameter, found, _), tensor in zip(self._tensors, drawn, strict=True)
        ]
        for _, found, tensor in self._tensors:
            found.tensor.data.copy_(tensor)
        held = iter(self._tensors)
        self.values = with_tensors(again, lambda _: next(held)[1].tensor)
        return True

    def faults(self) -> Iterator[str]:
        """Faults, in words: changes of inputs, and writes outside of arguments."""
        for parameter, found, drawn in self._tensors:
            if not parameter.mutated and not _unchanged(found.tensor, drawn):
                yield f"it changes its input {parameter.name}"
            if not bool(found.untouched()):
                yield f"it writes outside its argument {parameter.name}"


def _drawn(
    op: Op, problem: Problem, kind: str, device: Device, layout: PoisonedLayout, seed: int, numbers: bool = False
) -> tuple[Any, ...]:
    values = op.draw(problem, kind, torch.Generator(device.torch).manual_seed(seed))
    if numbers and (found := renumbered(op, problem, values, seed)) is not None:
        values, _ = found
    return expanded_inputs(op, values, layout)


def _unchanged(tensor: torch.Tensor, drawn: torch.Tensor) -> bool:
    """True if the bits are equal, or both elements are NaN: Triton's interpreter may change the bits of a NaN."""
    same = as_bits(tensor) == as_bits(drawn)
    return bool((same if not drawn.is_floating_point() else same | (tensor.isnan() & drawn.isnan())).all())
