"""Selects one problem to tune for many problems of one range of sizes, within which a winner transfers."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field

from ...contract import Op, checked_range
from ...correctness.range_ends import divisibility
from ...problem import Problem

FEW = 4
"""Up to this many sizes of one range are all tuned: so few were chosen by hand, more come from a cache that grows."""


@dataclass(frozen=True)
class Represented:
    """The problems to tune, with their counts; ``notes`` tell the user which of them represent others."""

    problems: tuple[Problem, ...]
    counts: Mapping[Problem, int] = field(default_factory=dict)
    notes: tuple[str, ...] = ()


def represented(
    problems: Iterable[Problem], counts: Mapping[Problem, int], op_of: Callable[[str], Op], *, every: bool = False
) -> Represented:
    """One problem for each range of a static dimension along which winners transfer, if more than ``FEW`` are in it.

    The representative is the largest size with the divisibility by powers of two that most calls have; it takes the
    call counts of its whole range. The other problems keep their order. ``every``: keep all problems.
    """
    left, counted, notes = list(dict.fromkeys(problems)), dict(counts), list[str]()
    if every:
        return Represented(tuple(left), counted)
    ops = list(map(op_of, dict.fromkeys(problem.op for problem in left)))
    for op, name in [(each, name) for each in ops for name in each.transfers]:
        groups: dict[tuple[object, ...], list[Problem]] = {}
        for problem in left:
            size = problem.dims[name] if problem.op == op.name else None
            if isinstance(size, int):
                others = tuple((other, value) for other, value in problem.dims.items() if other != name)
                groups.setdefault((others, checked_range(name, op.transfers[name], size)), []).append(problem)
        for group in groups.values():
            if len(group) > FEW:
                chosen = _chosen(group, name, counted)
                if counted:
                    counted[chosen] = sum(counted.pop(problem, 1) for problem in group)
                gone = set(group) - {chosen}
                left = [problem for problem in left if problem not in gone]
                notes.append(_told(group, name, chosen))
    return Represented(tuple(left), counted, tuple(notes))


def _chosen(group: list[Problem], name: str, counts: Mapping[Problem, int]) -> Problem:
    calls: Counter[int] = Counter()
    for problem in group:
        calls[divisibility(int(problem.dims[name]))] += counts.get(problem, 1)
    most = max(calls, key=lambda power: (calls[power], -power))
    alike = (problem for problem in group if divisibility(int(problem.dims[name])) == most)
    return max(alike, key=lambda problem: int(problem.dims[name]))


def _told(group: list[Problem], name: str, chosen: Problem) -> str:
    sizes = [int(problem.dims[name]) for problem in group]
    return (
        f"{chosen} is tuned for {len(group)} problems with {name} from {min(sizes)} to {max(sizes)}, which its winner"
        " answers where it is verified; --all-sizes tunes each"
    )
