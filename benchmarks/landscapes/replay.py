"""A landscape as a problem to be searched: implementations that only have a space, and times that are looked up."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch

from registry.artifact import Built
from registry.contract import Floor, Op, Tolerance
from registry.device import Device
from registry.dispatch.plans.plan import Candidate
from registry.implementation import Implementation, Run
from registry.problem import Arguments, Problem, canonical_json
from registry.space import Config, Space
from registry.tuner.planning.problems import ImplementationPlan, ProblemPlan

from .format import Landscape, Measured, Point

_DEVICE = Device("cuda", 0, "replayed", "", 1, 2**40, 2**20)


class Replayed(Implementation):
    """An implementation whose times on one problem were measured; it cannot run."""

    def __init__(self, op: str, measured: Measured) -> None:
        self.op = op
        self.name = measured.implementation
        self._preference = measured.preference
        self._default = measured.config(measured.default)
        valid = {canonical_json(measured.config(point.places)) for point in measured.points}
        self._space = Space(**measured.domains)
        if len(valid) < self._space.product:
            self._space = self._space.require("it was measured", lambda config: canonical_json(dict(config)) in valid)

    def space(self, problem: Problem, device: Device) -> Space:
        return self._space

    def default(self, problem: Problem, device: Device) -> Config:
        return self._default

    def preference(self, problem: Problem, device: Device) -> float:
        return self._preference

    def bind(self, problem: Problem, config: Config, device: Device, built: Built) -> Run:
        raise NotImplementedError(f"{self.name} is replayed: its times are known, its kernel is not here")


class Replay:
    """One landscape, ready for a searcher: its plan, and the outcome of every candidate by key."""

    def __init__(self, landscape: Landscape) -> None:
        self.landscape = landscape
        self.plan = _plan(landscape)
        self._points: dict[str, Point] = {}
        self._served: dict[tuple[str, tuple[int, ...]], Candidate] = {}
        for choice, measured in zip(self.plan.choices, landscape.choices, strict=True):
            for point in measured.points:
                candidate = Candidate(choice.implementation, measured.config(point.places))
                self._points[candidate.key] = point
                if point.variants:
                    self._served[measured.implementation, point.variants] = candidate

    def point(self, candidate: Candidate) -> Point:
        """The measured outcome of the candidate."""
        return self._points[candidate.key]

    def served(self, name: str, variants: tuple[int, ...]) -> Candidate | None:
        """The candidate that runs from these compiled variants, if there is one here."""
        return self._served.get((name, variants))

    def own(self, candidate: Candidate) -> Candidate | None:
        """This problem's candidate of the same implementation and configuration; None where they are not valid here."""
        for choice in self.plan.choices:
            own = Candidate(choice.implementation, candidate.config)
            if choice.implementation.name == candidate.implementation.name and own.key in self._points:
                return own
        return None

    def regret(self, best_us: float | None) -> float:
        """How much slower than the optimum, relative; 0 within the landscape's noise, infinite when nothing ran."""
        if best_us is None:
            return float("inf")
        regret = best_us / self.landscape.best_us - 1.0
        return 0.0 if regret <= self.landscape.noise else regret


def _plan(landscape: Landscape) -> ProblemPlan:
    problem = Problem(landscape.op, dict(landscape.dims))
    choices = tuple(_choice(landscape.op, problem, measured) for measured in landscape.choices)
    return ProblemPlan(problem, _op(landscape), _DEVICE, choices)


def _choice(op: str, problem: Problem, measured: Measured) -> ImplementationPlan:
    implementation = Replayed(op, measured)
    space = implementation.space(problem, _DEVICE)
    return ImplementationPlan(implementation, space, implementation.default(problem, _DEVICE))


def _op(landscape: Landscape) -> Op:
    """A contract with the landscape's name and dimensions and nothing that could be called."""

    def refuse(*_: Any, **__: Any) -> Any:
        raise NotImplementedError(f"{landscape.op} is replayed: it has no semantics here")

    def floor(_: Problem) -> Floor:
        return Floor(0, 0)

    def scale(_: Problem, reference: torch.Tensor) -> torch.Tensor:
        return reference

    none: Mapping[str, float] = {}
    return Op(
        name=landscape.op,
        schema=f"{landscape.op}(Tensor x) -> Tensor y",
        version=1,
        reference=refuse,
        problem=_no_problem,
        inputs=refuse,
        floor=floor,
        tolerance=Tolerance(none, none, scale),
        static=frozenset(landscape.static),
        dynamic=frozenset(landscape.dynamic),
    )


def _no_problem(arguments: Arguments) -> Problem:
    raise NotImplementedError("a replayed op takes no arguments")
