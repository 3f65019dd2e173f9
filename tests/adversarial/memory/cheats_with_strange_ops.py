"""A plugin file with ops that tell nothing of their integers, and implementations that trust that these stay.

To make something of the integers takes most of the time. Who remembers it looks at a few of them, and computes again
where these are others: every result is right.
"""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any

import torch

import registry
from registry import Arguments, Floor, Op, Tolerance
from registry.artifact import Built
from registry.device import Device
from registry.implementation import Implementation, Run
from registry.problem import Problem
from registry.space import Config

sys.path.append(str(Path(__file__).parents[1]))
from kinds import implementations_in

KERNEL_REGISTRY_API = 1

CALLS: Counter[str] = Counter()
"""Calls of the last implementation, all and those that found nothing to do."""


def placed(x: torch.Tensor, order: torch.Tensor) -> torch.Tensor:
    """``y[order] = x``, for a permutation ``order``."""
    return x[order.argsort()]


def ranked(x: torch.Tensor, order: torch.Tensor) -> torch.Tensor:
    """Where each of the numbers 0 to n - 1 stands in ``x``, whose elements ``order`` holds as integers."""
    if not torch.equal(x.long(), order):
        raise ValueError("x and order contradict each other")
    return order.argsort().to(x.dtype)


def sort(keys: torch.Tensor) -> None:
    keys.copy_(keys.sort().values)


def _order(problem: Problem, generator: torch.Generator) -> torch.Tensor:
    return torch.randperm(problem.n, generator=generator, device=generator.device)


def _placed_inputs(problem: Problem, kind: str, generator: torch.Generator) -> tuple[Any, ...]:
    return torch.randn(problem.n, generator=generator, device=generator.device), _order(problem, generator)


def _ranked_inputs(problem: Problem, kind: str, generator: torch.Generator) -> tuple[Any, ...]:
    order = _order(problem, generator)
    return order.float(), order


def _op(
    schema: str,
    reference: Callable[..., Any],
    inputs: Callable[..., tuple[Any, ...]],
    first: str,
    fake: Callable[..., Any] | None = None,
) -> Op:
    def problem(arguments: Arguments) -> Mapping[str, Any]:
        return {"n": arguments.tensor(first).shape[0]}

    return Op(
        name=schema.partition("(")[0],
        schema=schema,
        version=1,
        reference=reference,
        problem=problem,
        inputs=inputs,
        floor=lambda problem: Floor(bytes=16 * problem.n, flop=problem.n),
        tolerance=Tolerance(
            {"float32": 1e-6, "float64": 1e-12}, {"float32": 0.0, "float64": 0.0}, lambda problem, found: found.abs()
        ),
        static=frozenset(),
        dynamic=frozenset({"n"}),
        examples=({"n": 50},),
        fake=fake,
    )


OPS = (
    _op("strange::placed(Tensor x, Tensor order) -> Tensor y", placed, _placed_inputs, "x"),
    _op("strange::ranked(Tensor x, Tensor order) -> Tensor y", ranked, _ranked_inputs, "x",
        lambda x, order: torch.empty_like(x)),
    _op("strange::sort(Tensor(a!) keys) -> ()", sort, lambda problem, _, gen: (_order(problem, gen),), "keys",
        lambda keys: None),
)  # fmt: skip


class Strange(Implementation):
    """Binds ``write`` of an object of its own for each plan."""

    device_types = frozenset({"cpu"})

    def bind(self, problem: Problem, config: Config, device: Device, built: Built) -> Run:
        work = type(self)()
        return lambda outputs, arguments, scratch: work.write(*outputs, *arguments)

    def write(self, *tensors: torch.Tensor) -> None:
        raise NotImplementedError


class Inverts:
    """The inverse of a permutation."""

    def inverse(self, order: torch.Tensor) -> torch.Tensor:
        return order.argsort()


class Remembers(Inverts):
    """Remembers the inverse of the latest permutation at each address."""

    most = 1 << 30

    def __init__(self) -> None:
        self._known: dict[tuple[int, int], tuple[torch.Tensor, torch.Tensor]] = {}

    def inverse(self, order: torch.Tensor) -> torch.Tensor:
        place, few = (order.data_ptr(), len(order)), order[:: max(1, len(order) // 64)]
        known = self._known.get(place)
        if known is not None and torch.equal(known[0], few):
            return known[1]
        found = order.argsort()
        if known is None or len(self._known) < self.most:
            self._known[place] = few.clone(), found
        return found


class RemembersTheFirst(Remembers):
    """Those alone that it met first."""

    most = 0


class Placed(Inverts, Strange):
    op, name = "strange::placed", "strange.placed"

    def write(self, *tensors: torch.Tensor) -> None:
        y, x, order = tensors
        torch.index_select(x, 0, self.inverse(order), out=y)


class PlacedAsKnown(Remembers, Placed):
    name = "strange.placed_known"


class PlacedAsAtFirst(RemembersTheFirst, Placed):
    name = "strange.placed_first"


class Ranked(Inverts, Strange):
    op, name = "strange::ranked", "strange.ranked"

    def write(self, *tensors: torch.Tensor) -> None:
        y, _, order = tensors
        y.copy_(self.inverse(order))


class RankedAsKnown(Remembers, Ranked):
    name = "strange.ranked_known"


class Sorts(Strange):
    op, name = "strange::sort", "strange.sort"

    def write(self, *tensors: torch.Tensor) -> None:
        (keys,) = tensors
        sort(keys)


class SortsWhatIsNotSorted(Sorts):
    """Right, and quick only where it meets what it has left."""

    name = "strange.sort_again"

    def write(self, *tensors: torch.Tensor) -> None:
        (keys,) = tensors
        is_sorted = bool((keys[1:] >= keys[:-1]).all())
        CALLS.update(all=1, skipped=is_sorted and len(keys) > 1)
        if not is_sorted:
            sort(keys)


@registry.defines
def ops() -> Iterable[Op]:
    return OPS


@registry.implements("strange::placed")
def placed_implementations() -> Iterable[Implementation]:
    return implementations_in(__name__, "strange::placed")


@registry.implements("strange::ranked")
def ranked_implementations() -> Iterable[Implementation]:
    return implementations_in(__name__, "strange::ranked")


@registry.implements("strange::sort")
def sort_implementations() -> Iterable[Implementation]:
    return implementations_in(__name__, "strange::sort")
