"""Which candidates should be fast at a size that nobody tuned, for what was measured at the sizes around it.

A time speaks for another size where the code that was measured runs there (``Implementation.transfers``). The nearest
winner is followed where it does. Else, and where winners on both sides of the problem differ, implementations are
ranked by the times that they took on both sides, each over the best one's there: logarithms, weighted by nearness.
"""

from __future__ import annotations

import heapq
import itertools
import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from tuning_db import Decision

from ...implementation import Implementation
from ...problem import Problem, Value
from ..plans.plan import Candidate
from .op_winners import Near, Source, Winner, source_of
from .questions import asked, default_of
from .situation import Situation, moved_along, shown_near, standing_of

_MOST_ELSEWHERE = 8
"""Expectations that are taken from the winners of one group of static dimensions."""


@dataclass(frozen=True)
class Expectation:
    """A candidate that is expected to be fast, and the tuned problem from which it is taken.

    over     its time over the time of the winner there; None where this configuration was not measured there
    other    the winner on the other side of the problem, against which it was weighed
    nearest  whether ``near`` is the nearest of all
    """

    candidate: Candidate
    near: Near
    over: float | None = 1.0
    other: Winner | None = None
    nearest: bool = True


def expected(
    situation: Situation, misses: list[str], spent: set[Source], *, own: bool = False
) -> Iterator[Expectation]:
    """Candidates for the problem from winners of other problems with the same static dimensions, best first.

    Those that the winners on both sides suggest come first, then winners that are farther. Appends to ``misses`` why
    winners say nothing here, and to ``spent`` the sources that hold for no size; the caller may add to it those that
    cannot run here. ``own``: winners of exactly the problem count, too.
    """
    op, problem, winners = situation.op, situation.problem, situation.winners
    sides: list[Near] = []
    for near in winners.nearest(op, problem, spent, own=own):
        implementation = standing_of(near.decision, situation)
        if isinstance(implementation, str):
            spent.add(source_of(near.decision))
            misses.append(f"{shown_near(situation, near.decision)}: {implementation}")
        elif not sides:
            across = winners.across(op, problem, near.decision, lambda one: _stands(one, situation) is not None)
            sides = [near] if across is None else [near, across]
            yield from _of_sides(situation, sides, misses)
        elif implementation.transfers:
            yield Expectation(Candidate(implementation, near.decision.candidate.config), near, nearest=False)


def expected_elsewhere(situation: Situation) -> Iterator[tuple[Expectation, Mapping[str, Value]]]:
    """What should be fast at similar static dimensions, whose winners hold, the nearest first, each with these.

    Nothing where only what was verified may run: nobody verified it for the problem's own.
    """
    op, problem = situation.op, situation.problem
    waiting: list[tuple[float, int, Expectation, Mapping[str, Value]]] = []
    count, spent = itertools.count(), set[Source]()
    for similar in () if situation.verified else situation.winners.similar(op, problem):
        # none of these dimensions or of later ones is nearer than they are themselves
        while waiting and waiting[0][0] < similar.octaves:
            yield heapq.heappop(waiting)[2:]
        like = situation.of(
            Problem(problem.op, {**problem.dims, **similar.static}, problem.traits), reads=situation.reads
        )
        for octaves, one in _of_static(situation, like, spent):
            heapq.heappush(waiting, (similar.from_all(octaves), next(count), one, similar.static))
    while waiting:
        yield heapq.heappop(waiting)[2:]


def _of_static(situation: Situation, like: Situation, spent: set[Source]) -> list[tuple[float, Expectation]]:
    """What is expected to be fast at the static dimensions of ``like``, and how far its winner is along the others.

    Adds to ``spent`` the sources that hold for no size.
    """
    every = (one for one in expected(like, [], spent, own=True) if not _was_refused(situation, one))
    found = list(itertools.islice(every, _MOST_ELSEWHERE))
    # what the winners on both sides suggest is ranked by both
    nearest = min((one.near.octaves for one in found), default=0.0)
    return [(nearest if one.nearest or one.other is not None else one.near.octaves, one) for one in found]


def _was_refused(situation: Situation, one: Expectation) -> bool:
    """Whether the tuner has looked if a winner transfers to sizes such as the problem's, and it does not."""
    op, decision, problem = situation.op, one.near.decision, situation.problem
    name = moved_along(op, decision, problem)
    looked = decision.transfers.get(name)
    if looked is None or decision.candidate.implementation != one.candidate.implementation.name:
        return False
    size, declared = problem.dims[name], op.transfers[name]
    return not looked.codes or (isinstance(size, int) and declared(size) == declared(looked.low))


def _of_sides(situation: Situation, sides: list[Near], misses: list[str]) -> Iterator[Expectation]:
    names: dict[str, Implementation] = {}
    for side in sides:
        implementation = _stands(side.decision, situation)
        assert implementation is not None
        if implementation.transfers:
            names[implementation.name] = implementation
            continue
        told = f"{implementation.name} is made for each size, so that its time there says nothing about this one"
        misses.append(f"{shown_near(situation, side.decision)}: {told}")
        for name in side.decision.baselines:
            found = situation.named(name)
            if found is not None and found.transfers:
                names.setdefault(name, found)
    offers = {name: list(_candidates(situation, each, sides)) for name, each in names.items()}
    for name in sorted(names, key=lambda name: _score(name, sides, offers[name])):
        yield from offers[name]


def _score(name: str, sides: list[Near], offered: list[Expectation]) -> float:
    """The logarithm of the time that the implementation is expected to take over the winners' times.

    Of an implementation whose best configuration is not known it is at least the time that a default took.
    """
    timed = any(one.over is not None for one in offered)
    total = sum(side.octaves for side in sides)
    near = 1.0 if len(sides) == 1 or not total else sides[1].octaves / total
    return sum(
        weight * math.log(max(_over(side.decision, name), 0.0 if timed else _default_over(side.decision)))
        for weight, side in zip((near, 1 - near), sides, strict=False)
    )


def _over(decision: Winner, name: str) -> float:
    """An implementation's time over the winner's; where it has none, that of the slowest that has."""
    if name == decision.candidate.implementation:
        return 1.0
    return decision.baselines.get(name) or max([1.0, *decision.baselines.values()])


def _default_over(decision: Winner) -> float:
    """The time of the declared default over the winner's, 0 where it is not known."""
    ratio = decision.default_ratio if isinstance(decision, Decision) else None
    return 0.0 if ratio is None else ratio.value


def _candidates(situation: Situation, implementation: Implementation, sides: list[Near]) -> Iterator[Expectation]:
    """The implementation's candidates on the sides: as winners, else as measured against them, else another config."""
    name, found = implementation.name, False
    for side in sides:
        decision, nearest = side.decision, side is sides[0]
        other = next((one.decision for one in sides if one is not side), None)
        key, over = decision.candidate, decision.baselines.get(name)
        if key.implementation == name:
            over = 1.0
        elif over is None or (holder := _stands(decision, situation)) is None or holder.transfers:
            continue
        else:
            runner = situation.winners.runners(decision, read=situation.reads).get(name)
            own = asked(implementation, "fingerprint", implementation.fingerprint)
            if runner is None or runner.fingerprint != own:
                continue
            key = runner
        found = True
        yield Expectation(Candidate(implementation, key.config), side, over, other, nearest)
    if not found:
        config = _config(situation, implementation)
        if not isinstance(config, str):
            other = sides[1].decision if len(sides) > 1 else None
            # without a parameter there is no other configuration than the one that was timed
            over = None if config else sides[0].decision.baselines.get(name)
            yield Expectation(Candidate(implementation, config), sides[0], over, other)


def _config(situation: Situation, implementation: Implementation) -> dict[str, object] | str:
    """The configuration with which the implementation won nearest to the problem, else its default."""
    for near in situation.winners.nearest(situation.op, situation.problem):
        if near.decision.candidate.implementation == implementation.name and _stands(near.decision, situation):
            return dict(near.decision.candidate.config)
    if situation.verified:
        return f"no configuration of {implementation.name} was verified here"
    config = default_of(implementation, situation.problem, situation.device)
    return config if isinstance(config, str) else dict(config)


def _stands(decision: Winner, situation: Situation) -> Implementation | None:
    found = standing_of(decision, situation)
    return None if isinstance(found, str) else found
