"""Inputs of a check, always equal ones, in poisoned surroundings."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial

import torch

from ..arguments.schema import Parameter, with_tensors
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
        generator = torch.Generator(device.torch).manual_seed(SEED)
        drawn = op.draw(problem, kind, generator)
        self._tensors: list[tuple[Parameter, Surrounded, torch.Tensor]] = []
        self.values = tuple(
            with_tensors((value,), partial(self._lay_out, parameter, layout, nan_beside))[0]
            for parameter, value in zip(op.parsed.parameters, drawn, strict=True)
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

    def faults(self) -> Iterator[str]:
        """Every change of an input, and every write outside an argument."""
        for parameter, found, drawn in self._tensors:
            if not parameter.mutated and not _unchanged(found.tensor, drawn):
                yield f"it changes its input {parameter.name}"
            if not bool(found.untouched()):
                yield f"it writes outside its argument {parameter.name}"


def _unchanged(tensor: torch.Tensor, drawn: torch.Tensor) -> bool:
    """True for equal bits, and for one NaN in place of another: Triton's interpreter writes its own back."""
    same = as_bits(tensor) == as_bits(drawn)
    return bool((same if not drawn.is_floating_point() else same | (tensor.isnan() & drawn.isnan())).all())
