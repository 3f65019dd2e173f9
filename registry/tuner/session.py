"""What a worker keeps of one problem between trials: inputs, references, and the rotating copies that are timed."""

from __future__ import annotations

import collections
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import torch

from ..contract import Op
from ..device import Device
from ..dispatch.plan import Plan
from ..implementation import Tensors
from ..numerics import Bounds, bounds_of, compare, own_error, reference64
from ..problem import Arguments, Problem
from .protocol import Protocol
from .samplers import Enqueue, copies_of

_CACHE_SHARE = 0.35
"""Part of the device's memory that the cases of one problem may keep between trials."""


@dataclass(frozen=True)
class Case:
    """One kind of inputs, and the bounds within which an answer is right."""

    kind: str
    values: tuple[Any, ...]
    bounds: tuple[Bounds, ...]


class Session:
    """One problem on one device. Cases are drawn from ``seed`` and kept while they are small enough."""

    def __init__(self, op: Op, problem: Problem, device: Device, protocol: Protocol, seed: int) -> None:
        self.op = op
        self.problem = problem
        self.device = device
        self.protocol = protocol
        self._seed = seed
        self._cases: dict[str, Case] = {}

    def case(self, kind: str) -> Case:
        """Inputs of that kind and their reference; the same at every call."""
        if kind in self._cases:
            return self._cases[kind]
        values = self._usual if kind == self.op.kinds[0] else self._drawn(kind)
        reference = reference64(self.op, values)
        error = own_error(self.op, self.problem, values, reference)
        case = Case(kind, values, bounds_of(self.op, self.problem, values, reference, error))
        if self._nbytes(case) * len(self.op.kinds) <= _CACHE_SHARE * self.device.memory_bytes:
            self._cases[kind] = case
        return case

    def judge(self, case: Case, outputs: Tensors) -> str:
        """What is wrong with the outputs of a case, "" when nothing is."""
        if all(bounds.hold(output) for bounds, output in zip(case.bounds, outputs, strict=True)):
            return ""
        reference = reference64(self.op, case.values)
        error = own_error(self.op, self.problem, case.values, reference)
        return compare(self.op, self.problem, outputs, reference, error).message

    def _drawn(self, kind: str) -> tuple[Any, ...]:
        generator = torch.Generator(device=self.device.torch)
        generator.manual_seed(self._seed + self.op.kinds.index(kind))
        return self.op.inputs(self.problem, kind, generator)

    @cached_property
    def _usual(self) -> tuple[Any, ...]:
        """Inputs of the first kind: what is timed, whether or not anybody needs their reference."""
        return self._drawn(self.op.kinds[0])

    @cached_property
    def arguments(self) -> Arguments:
        """Specs of the inputs."""
        return self.op.arguments(self._usual)

    @cached_property
    def copies(self) -> list[tuple[Any, ...]]:
        """The rotating copies: the same values at other addresses, so that one reference serves all."""
        _ = self.pristine
        return [self._usual, *(clone(self._usual) for _ in range(copies_of(self.working_set, self.protocol) - 1))]

    @cached_property
    def pristine(self) -> tuple[Any, ...]:
        """What the timed inputs were before anybody could write to them."""
        return clone(self._usual)

    @property
    def nbytes(self) -> int:
        """Bytes that its cases hold."""
        return sum(self._nbytes(case) for case in self._cases.values())

    @cached_property
    def working_set(self) -> int:
        """Bytes of one copy's arguments and outputs."""
        outputs = self.op.output_specs(self.arguments, self.device.torch)
        return sum(spec.nbytes for spec in [*self.arguments.tensors.values(), *outputs.values()])

    @staticmethod
    def _nbytes(case: Case) -> int:
        tensors = [value for value in case.values if isinstance(value, torch.Tensor)]
        return sum(tensor.nbytes for tensor in tensors) + sum(bounds.nbytes for bounds in case.bounds)


class Sessions:
    """The latest few sessions of a worker; older ones are dropped, with their tensors."""

    # a problem whose tensors take more than this part of the memory has the device for itself: its float64
    # references take another four times as much
    _huge_share = 0.02

    def __init__(self, catalog_op: Callable[[str], Op], device: Device, most: int = 8) -> None:
        self._op = catalog_op
        self._device = device
        self._most = most
        self._sessions: collections.OrderedDict[tuple[str, int], Session] = collections.OrderedDict()

    def get(self, op: str, dims: dict[str, Any], protocol: Protocol, seed: int) -> Session:
        """The session of a problem, made when it is new. A huge problem drops all others first."""
        found = self._op(op)
        problem = found.problem_of(dims)
        key = (problem.key, seed)
        if key not in self._sessions:
            if found.floor(problem).bytes > self._huge_share * self._device.memory_bytes:
                self.clear()
            while len(self._sessions) >= self._most or (self._sessions and self._is_full()):
                self._sessions.popitem(last=False)
            self._sessions[key] = Session(found, problem, self._device, protocol, seed)
        self._sessions.move_to_end(key)
        return self._sessions[key]

    def _is_full(self) -> bool:
        held = sum(session.nbytes for session in self._sessions.values())
        return held > _CACHE_SHARE * self._device.memory_bytes

    def drop(self, problem: Problem) -> None:
        """Forget one problem's tensors, e.g. because a candidate may have written to them."""
        for key in [key for key in self._sessions if key[0] == problem.key]:
            del self._sessions[key]

    def clear(self) -> None:
        """Drop all, e.g. after the device ran out of memory."""
        self._sessions.clear()


class TimedPlan:
    """A plan on the rotating copies: what is launched, and the outputs that the timed launches left."""

    def __init__(self, plan: Plan, session: Session) -> None:
        self._functional = plan.candidate.implementation.returns_outputs
        self._outputs: list[Tensors] = [() if self._functional else plan.allocate() for _ in session.copies]
        self.launches: list[Enqueue] = [
            self._launch(plan, place, values) for place, values in enumerate(session.copies)
        ]

    @property
    def outputs(self) -> list[Tensors]:
        """What the latest launch on each copy wrote; empty where a copy was not launched."""
        return self._outputs

    def _launch(self, plan: Plan, place: int, values: tuple[Any, ...]) -> Enqueue:
        scratch = tuple(spec.empty() for spec in plan.signature.scratch.values())
        extended = plan.prepared.extend(values)
        run, outputs = plan.run, self._outputs

        def write() -> None:
            run(outputs[place], extended, scratch)

        def keep() -> None:
            # kept, so that the allocator gives every copy its own output and the rotation stays cold
            returned = run((), extended, scratch)
            outputs[place] = returned if isinstance(returned, tuple) else (returned,)

        return keep if self._functional else write


def clone(values: tuple[Any, ...]) -> tuple[Any, ...]:
    """The same arguments at other addresses."""
    return tuple(value.clone() if isinstance(value, torch.Tensor) else value for value in values)
