"""Inputs of a check, always equal ones, in poisoned surroundings."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from typing import Any

import torch

from ..arguments.schema import Parameter, tensors_in, with_tensors
from ..contract import Op
from ..correctness.bits import as_bits
from ..correctness.poisoned_layouts import Layout, Surrounded, laid_out_within
from ..device import Device
from ..problem import Problem

SEED = 1234


class GivenInputs:
    """Inputs of a kind, laid out so in poisoned surroundings. ``values`` are the schema's in order."""

    def __init__(
        self, op: Op, problem: Problem, kind: str, device: Device, layout: Layout, *, nan_beside: bool = False
    ) -> None:
        self._draw = partial(_drawn, op, problem, kind, device)
        self._tensors: list[tuple[Parameter, Surrounded, torch.Tensor]] = []
        self.values = tuple(
            with_tensors((value,), partial(self._lay_out, parameter, layout, nan_beside))[0]
            for parameter, value in zip(op.parsed.parameters, self._draw(SEED), strict=True)
        )

    def _lay_out(self, parameter: Parameter, layout: Layout, nan_beside: bool, tensor: torch.Tensor) -> torch.Tensor:
        # who reads what is beside an input is to find NaN there; what is mutated may also be changed beside
        beside = nan_beside or not parameter.mutated
        found = laid_out_within(tensor, layout, len(self._tensors), nan_beside=beside)
        self._tensors.append((parameter, found, tensor))
        return found.tensor

    def restore(self) -> None:
        """Give each mutated tensor its first contents again, at the same address."""
        for parameter, found, drawn in self._tensors:
            if parameter.mutated:
                found.tensor.copy_(drawn)

    def draw_again(self) -> bool:
        """Give each tensor the contents of another draw, at the same address; no version counter moves.

        False, and nothing is done, where the other draw is not of the same form.
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
        """Every change of an input, and every write outside an argument."""
        for parameter, found, drawn in self._tensors:
            if not parameter.mutated and not _unchanged(found.tensor, drawn):
                yield f"it changes its input {parameter.name}"
            if not bool(found.untouched()):
                yield f"it writes outside its argument {parameter.name}"


def _drawn(op: Op, problem: Problem, kind: str, device: Device, seed: int) -> tuple[Any, ...]:
    return op.draw(problem, kind, torch.Generator(device.torch).manual_seed(seed))


def _unchanged(tensor: torch.Tensor, drawn: torch.Tensor) -> bool:
    """True for equal bits, and for one NaN in place of another: Triton's interpreter writes its own back."""
    same = as_bits(tensor) == as_bits(drawn)
    return bool((same if not drawn.is_floating_point() else same | (tensor.isnan() & drawn.isnan())).all())
