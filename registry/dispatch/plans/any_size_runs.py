"""Runs of ``any_size`` implementations: bound once for all problems of an op that differ in dynamic dimensions only."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping
from typing import TYPE_CHECKING, Any

from ...contract import Op
from ...implementation import Run
from ...problem import Argument, Arguments, Problem, TensorSpec, Value, exact, getter

if TYPE_CHECKING:
    from .plan import Draft, Plan

MOST_RUNS = 1024
"""The most runs per op; the oldest is dropped, and bound again when it is needed."""


class _AnySizeRun:
    """A run, the arguments and the static dimensions that it was bound for, and the attributes that were read then.

    The implementation is held since a key contains its id.
    """

    def __init__(self, plan: Plan, arguments: Arguments, static: Callable[[Mapping[str, Value]], Any]) -> None:
        self.run = plan.run
        self.arguments = arguments
        self.read = plan.read
        self.implementation = plan.candidate.implementation
        self._static = static
        self._fixed = static(plan.problem.dims)
        self._kinds = [*map(type, self._fixed)]
        self._has_zero = 0 in self._fixed

    def serves(self, problem: Problem, arguments: Arguments) -> bool:
        """True if the run also serves a problem whose arguments are of the same kinds."""
        dims = self._static(problem.dims)
        # equal numbers of one type are identical, except for 0.0 and -0.0
        if dims != self._fixed or [*map(type, dims)] != self._kinds:
            return False
        if self._has_zero and exact(dims) != exact(self._fixed):
            return False
        return not self.read or self.bound_by(arguments)

    def bound_by(self, arguments: Arguments) -> bool:
        """True if the attributes that binding read are equal in ``arguments``, where they count as read."""
        own, given = self.arguments.unrecorded, arguments.values
        for name in self.read:  # noqa: SIM110 - a generator would double the time
            if not _same(given[name], own[name]):
                return False
        return True


class AnySizeRuns:
    """Runs of one op's ``any_size`` implementations, by configuration and everything of a problem except sizes."""

    def __init__(self, op: Op) -> None:
        self._dynamic = op.dynamic
        self._static = getter(sorted(op.static))
        self._runs: dict[Hashable, _AnySizeRun] = {}
        self._by_run: dict[int, _AnySizeRun] = {}

    def of(self, plan: Plan) -> _AnySizeRun | None:
        """The run of a plan, with what it was bound for; None if it is not kept."""
        return self._by_run.get(id(plan.run))

    def get(self, draft: Draft) -> Run | None:
        """The run that was bound for another size with equal attributes; None without one.

        The attributes that binding read count as read in the draft's arguments, too.
        """
        found = self._runs.get(self._key(draft))
        return found.run if found is not None and found.bound_by(draft.signature.arguments) else None

    def put(self, draft: Draft, plan: Plan) -> None:
        """Keep the run of a plan that was bound for a draft."""
        kept = _AnySizeRun(plan, draft.signature.arguments, self._static)
        self._runs[self._key(draft)] = self._by_run[id(plan.run)] = kept
        while len(self._runs) > MOST_RUNS:
            dropped = self._runs.pop(next(iter(list(self._runs))), None)
            if dropped is not None:
                self._by_run.pop(id(dropped.run), None)

    def _key(self, draft: Draft) -> Hashable:
        arguments = draft.signature.arguments
        return (
            id(draft.candidate.implementation),
            tuple([(name, exact(value)) for name, value in draft.candidate.config.items()]),
            tuple([exact(value) for name, value in draft.problem.dims.items() if name not in self._dynamic]),
            arguments.gradient,
            tuple([_kind(value) for value in arguments.unrecorded.values()]),
            draft.device.type,
            draft.device.index,
        )


def _kind(value: Argument) -> Hashable:
    """A key of an argument for everything but sizes, and for the strides that its sizes do not give."""
    if isinstance(value, TensorSpec):
        layout = value.layout
        return value.dtype, len(value.shape), layout, value.alignment, value.strides if layout == "other" else ()
    return tuple(map(_kind, value)) if isinstance(value, tuple) else type(value).__name__


def _same(value: Argument, was: Argument) -> bool:
    return value is was or exact(value) == exact(was)
