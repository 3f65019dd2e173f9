"""Floors, the least work of an op, and tolerances, the allowed distance of a result from its float64 reference."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import torch

from ..author_code import at
from ..errors import InvalidDefinitionError
from ..problem import Problem


@dataclass(frozen=True)
class Floor:
    """The least work: ``bytes`` that must cross device memory (inputs read once, outputs written once), ``flop``."""

    bytes: int
    flop: int


@dataclass(frozen=True)
class Tolerance:
    """The allowed distance of a result from the float64 reference: ``|out - ref| <= rtol * scale + atol``.

    ``rtol`` and ``atol`` are per dtype name. ``scale(problem, reference)`` returns a float64 tensor that broadcasts
    against the reference: the magnitude that errors are relative to, which grows with the reduction's length. An
    argument that the op mutates is a result like an output, also for ``scale``, and may have another shape. For a large
    result ``scale`` is called with some whole rows at a time. Results that are not floating must equal the reference.

    ``scale(problem, reference, values)`` also gets the call's arguments, by name, and the whole reference at once.
    """

    rtol: Mapping[str, float]
    atol: Mapping[str, float]
    scale: Callable[..., torch.Tensor]

    def scaled(self, problem: Problem, reference: torch.Tensor, *values: Mapping[str, Any]) -> torch.Tensor:
        """``scale`` of a result. Raises InvalidDefinitionError unless that is a tensor that broadcasts against it."""
        given: Any = self.scale(problem, reference, *values)
        if isinstance(given, torch.Tensor) and _broadcasts(given.shape, reference.shape):
            return given
        what = f"shape {tuple(given.shape)}" if isinstance(given, torch.Tensor) else f"{given!r:.80}"
        raise InvalidDefinitionError(
            f"op {problem.op!r}: scale of a tolerance returned {what} for a result of shape {tuple(reference.shape)}"
            f"{at(self.scale)}",
            hint="return a tensor that broadcasts against the result, e.g. reference.abs() + 1",
        )

    @cached_property
    def by_values(self) -> bool:
        """Whether ``scale`` takes the call's arguments."""
        parameters = inspect.signature(self.scale).parameters.values()
        return sum(one.kind in {one.POSITIONAL_ONLY, one.POSITIONAL_OR_KEYWORD} for one in parameters) > 2


def _broadcasts(shape: tuple[int, ...], wanted: tuple[int, ...]) -> bool:
    """True if a tensor of ``shape`` can be expanded to ``wanted``."""
    pairs = zip(reversed(shape), reversed(wanted), strict=False)
    return len(shape) <= len(wanted) and all(size in {1, whole} for size, whole in pairs)


NamedTensors = Mapping[str, torch.Tensor]

Comparator = Callable[[Problem, Mapping[str, Any], NamedTensors, NamedTensors], Iterable[str] | None]
"""``compare(problem, values, results, references)``: every fault of one result, in words; none or None if it is right.

All mappings are by the schema's names; ``references`` are float64 where they are floating. For results that may rightly
differ from the reference's, such as indices where values tie.
"""
