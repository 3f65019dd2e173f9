"""What is told of a call that missed: its problem to a recording, and to the user that the reference runs."""

from __future__ import annotations

from collections.abc import Callable

from ..contract import Op
from ..problem import Problem
from .call_answers import Asked
from .mode import Mode
from .recording import recorder
from .resolve.candidates import Plans
from .resolve.resolved import Resolved
from .torch_side.states import nothing_to_launch, strange_class
from .warning import tell_caller

_CHOSEN = frozenset({"exact", "forced"})
"""Steps of answers that tuning a problem would not change."""


class MissReports:
    """Tells of the calls of one op that were answered by its Miss."""

    def __init__(self, op: Op, plans: Plans, watch: recorder.Recorder, mode: Callable[[], Mode]) -> None:
        self._op = op
        self._plans = plans
        self._watch = watch
        self._mode = mode

    def warn(self, resolved: Resolved, asked: Asked) -> None:
        """Warn that the reference runs, if the user can change that."""
        if not self._plans.implementations:
            if resolved.place is not None:
                tell_caller(self._plans, "no implementation", f"torch's reference runs: {resolved.choice.reason}")
        elif self._mode() != "reference" and (name := strange_class(asked.tensors)):
            remedy = "its to_local() is a plain one" if name == "DTensor" else "pass the plain tensor that it holds"
            tell_caller(
                self._plans,
                f"class {name}",
                f"{self._op.name}: torch's reference runs, not a kernel, since {name} is a tensor subclass with a"
                f" behaviour of its own; {remedy}",
            )

    def report(self, asked: Asked, missed: Resolved | None = None) -> None:
        """Record the call's problem, if recording is on and there was anything to launch; note an answer to a miss."""
        watch = self._watch
        if not (watch.active or watch.misses.active) or nothing_to_launch(asked.tensors):
            return
        if watch.active and self._is_tunable(asked.problem):
            watch.seen(asked.problem)
        if missed is not None:
            self.note(missed)

    def note(self, resolved: Resolved) -> None:
        """Count the calls that ``resolved`` answers as missed, unless a winner of their problem or a user chose it."""
        misses, problem = self._watch.misses, resolved.problem
        if (
            misses.active
            and problem is not None
            and resolved.choice.step not in _CHOSEN
            and self._mode() != "reference"
            and self._is_tunable(problem)
        ):
            misses.note(problem, resolved.calls)

    def _is_tunable(self, problem: Problem) -> bool:
        """False for a problem with an empty tensor, which has nothing to tune, and which no shapes file may hold."""
        sizes = [value for name, value in problem.dims.items() if name not in self._op.integers]
        return not any(type(size) is int and size < 1 for size in sizes)
