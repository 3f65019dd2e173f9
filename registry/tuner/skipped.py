"""SkippedProblems: an observer of a run that tells afterwards which problems could not be tuned, and why."""

from __future__ import annotations

from collections.abc import Iterator

from ..problem import Problem
from .events import Event, ProblemSkipped


class SkippedProblems:
    """The problems that a run has skipped, by op and reason."""

    def __init__(self) -> None:
        self._found: dict[tuple[str, str], list[Problem]] = {}

    def __call__(self, event: Event) -> None:
        """Note a skipped problem; other events are nothing to it."""
        if isinstance(event, ProblemSkipped):
            self._found.setdefault((event.problem.op, event.reason), []).append(event.problem)

    def texts(self) -> Iterator[str]:
        """A text for each reason, with a problem as an example."""
        for (op, reason), problems in self._found.items():
            others = f", and {len(problems) - 1} more of {op}," if len(problems) > 1 else ""
            yield f"tune: {problems[0]}{others} skipped: {reason}"
