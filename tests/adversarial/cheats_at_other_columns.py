"""A plugin file of softmaxes that are right for the columns that are tuned, and what each does at others."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, ClassVar

import torch

import registry
from registry.artifact import Built, Signature, Variant
from registry.device import Device
from registry.implementation import Implementation, Run, Tensors
from registry.problem import Problem
from registry.space import Config

KERNEL_REGISTRY_API = 1


class Softmax(Implementation):
    """torch's; ``rows`` are those of the problem that is meant for it alone, None runs any."""

    op = "softmax"
    name = "columns.plain"
    device_types = frozenset({"cpu", "cuda"})
    rows: ClassVar[int | None] = None

    def unsupported(self, problem: Problem, device: Device) -> Iterable[str]:
        if self.rows is not None and problem.rows != self.rows:
            yield f"it is tried with {self.rows} rows"

    def bind(self, problem: Problem, config: Config, device: Device, built: Built) -> Run:
        def run(outputs: Tensors, arguments: tuple[Any, ...], scratch: Tensors) -> None:
            outputs[0].copy_(torch.softmax(*arguments))
            self.spoil(outputs[0])

        return run

    def spoil(self, y: torch.Tensor) -> None:
        """Right as it is."""


class Honest(Softmax):
    name = "columns.honest"
    rows = 3


class WrongAtTheOtherEnd(Softmax):
    """Leaves the last column of rows that are shorter than a block."""

    name = "columns.short"
    rows = 4

    def spoil(self, y: torch.Tensor) -> None:
        if y.shape[-1] < 520:
            y[..., -1] = 0.0


class WrongWhereNothingDivides(Softmax):
    """Right for columns that a vector divides, as the tuned ones are, and takes others for such."""

    name = "columns.vectors"
    rows = 5

    def spoil(self, y: torch.Tensor) -> None:
        if y.shape[-1] % 8:
            y[..., -1] = 0.0


class OfItsOwnColumns(Softmax):
    """Compiles its columns in: each size has code of its own."""

    name = "columns.constant"
    rows = 6

    def variants(self, problem: Problem, config: Config, device: Device, signature: Signature) -> tuple[Variant, ...]:
        return (Variant("none", "softmax", {"COLS": problem.cols}),)


class RaisesElsewhere(Softmax):
    """Ends the run at rows that it says it supports."""

    name = "columns.raises"
    rows = 7

    def spoil(self, y: torch.Tensor) -> None:
        if y.shape[-1] < 1000:
            raise RuntimeError("these columns were not thought of")


@registry.implements("softmax")
def softmax_implementations() -> list[Implementation]:
    kinds = Softmax, Honest, WrongAtTheOtherEnd, WrongWhereNothingDivides, OfItsOwnColumns, RaisesElsewhere
    return [kind() for kind in kinds]
