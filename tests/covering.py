"""Few of many problems, with every value of every dimension among them."""

from __future__ import annotations

from collections.abc import Iterable

from registry.problem import Problem


def covering(problems: Iterable[Problem]) -> list[Problem]:
    """Problems taken one after another, each with the most values that none before has, until all values are met."""
    taken: list[Problem] = []
    seen: set[tuple[str, object]] = set()
    left = list(problems)
    while left:
        best = max(left, key=lambda problem: len(problem.dims.items() - seen))
        if not best.dims.items() - seen:
            break
        taken.append(best)
        seen |= best.dims.items()
        left.remove(best)
    return taken
