"""Candidates that should be fast at a size that was not tuned, by the times at the sizes around it.

A time is evidence for another size if the measured code runs there (``Implementation.transfers``): then the nearest
winner is taken. Otherwise, and if the winners on both sides of the problem differ, implementations are ranked by their
times on both sides, each divided by the winner's: the mean of logarithms, weighted by nearness.
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
from .answers_or_faults import asked, default_of
from .situation import Situation, Standing, moved_along, shown_near
from .standings import standing_of
from .winners import Near, Winner, WinnerSource, source_of

_MOST_ELSEWHERE = 8
"""The most expectations taken from the winners of one group of static dimensions."""


@dataclass(frozen=True)
class Expectation:
    """A candidate that is expected to be fast, and ``near``, the winner of another problem that it is taken from.

    over     its time over that winner's; None if this configuration was not measured there
    other    the winner on the other side of the problem, if the ranking used it
    nearest  True if ``near`` is the nearest of all winners
    default  True if the configuration is the implementation's default for the problem
    """

    candidate: Candidate
    near: Near
    over: float | None = 1.0
    other: Winner | None = None
    nearest: bool = True
    default: bool = False


def expected(
    situation: Situation, misses: list[str], spent: set[WinnerSource], *, own: bool = False
) -> Iterator[Expectation]:
    """Candidates for the problem from winners of other problems with the same static dimensions, best first.

    Candidates by the winners on both sides come first, then farther winners. Appends to ``misses`` why winners do not
    apply, and to ``spent`` the sources that hold for no size; the caller may add those that cannot run the problem.
    ``own``: winners of exactly the problem count, too.
    """
    op, problem, index = situation.op, situation.problem, situation.winners.index
    sides: list[Near] = []
    for near in index.nearest(op, problem, spent, own=own):
        standing = standing_of(near.decision, situation)
        if isinstance(standing, str):
            spent.add(source_of(near.decision))
            misses.append(f"{shown_near(situation, near.decision)}: {standing}")
        elif not sides:
            across = index.across(op, problem, near.decision, lambda one: _stands(one, situation) is not None)
            sides = [near] if across is None else [near, across]
            yield from _of_sides(situation, sides, misses)
        elif standing.implementation.transfers:
            candidate = Candidate(standing.implementation, standing.config)
            yield Expectation(candidate, near, standing.over, nearest=False)


def expected_elsewhere(
    situation: Situation, refused: list[Winner] | None = None
) -> Iterator[tuple[Expectation, Mapping[str, Value]]]:
    """Expectations from winners of similar static dimensions, and these dimensions, the nearest first.

    None in mode "verified", since they were not verified for the problem's static dimensions. Appends to ``refused``
    the winners that the tuner found not to transfer to the problem, where one of their expectations was passed over.
    """
    op, problem = situation.op, situation.problem
    waiting: list[tuple[float, int, Expectation, Mapping[str, Value]]] = []
    count, spent = itertools.count(), set[WinnerSource]()
    for similar in () if situation.verified else situation.winners.index.similar(op, problem):
        # winners of these and of later dimensions are at least as far away as the dimensions
        while waiting and waiting[0][0] < similar.octaves:
            yield heapq.heappop(waiting)[2:]
        like = situation.of(
            Problem(problem.op, {**problem.dims, **similar.static}, problem.traits), reads=situation.reads
        )
        for octaves, one in _of_static(situation, like, spent, [] if refused is None else refused):
            heapq.heappush(waiting, (similar.from_all(octaves), next(count), one, similar.static))
    while waiting:
        yield heapq.heappop(waiting)[2:]


def _of_static(
    situation: Situation, like: Situation, spent: set[WinnerSource], refused: list[Winner]
) -> list[tuple[float, Expectation]]:
    """Expectations at the static dimensions of ``like``, each with the distance of its winner along the others.

    Adds to ``spent`` the sources that hold for no size, and to ``refused`` the winners that do not transfer.
    """
    found: list[Expectation] = []
    for one in expected(like, [], spent, own=True):
        if _was_refused(situation, one):
            refused.append(one.near.decision)
        else:
            found.append(one)
        if len(found) == _MOST_ELSEWHERE:
            break
    # candidates by the winners on both sides have the distance of the nearest
    nearest = min((one.near.octaves for one in found), default=0.0)
    return [(nearest if one.nearest or one.other is not None else one.near.octaves, one) for one in found]


def _was_refused(situation: Situation, one: Expectation) -> bool:
    """True if the tuner has checked whether a winner transfers to the problem's range of sizes, and it does not."""
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
        standing = _stands(side.decision, situation)
        assert standing is not None
        implementation = standing.implementation
        if standing.instead_of:
            misses.append(f"{shown_near(situation, side.decision)}: {standing.instead_of}")
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
    """The logarithm of the implementation's expected time over the winners' times.

    At least that of the default's time if the implementation's best configuration is not known.
    """
    timed = any(one.over is not None for one in offered)
    total = sum(side.octaves for side in sides)
    near = 1.0 if len(sides) == 1 or not total else sides[1].octaves / total
    return sum(
        weight * math.log(max(_over(side.decision, name), 0.0 if timed else _default_over(side.decision)))
        for weight, side in zip((near, 1 - near), sides, strict=False)
    )


def _over(decision: Winner, name: str) -> float:
    """An implementation's time over the winner's; if it has none, that of the slowest implementation with a time."""
    if name == decision.candidate.implementation:
        return 1.0
    return decision.baselines.get(name) or max([1.0, *decision.baselines.values()])


def _default_over(decision: Winner) -> float:
    """The time of the declared default over the winner's, 0 where it is not known."""
    ratio = decision.default_ratio if isinstance(decision, Decision) else None
    return 0.0 if ratio is None else ratio.value


def _candidates(situation: Situation, implementation: Implementation, sides: list[Near]) -> Iterator[Expectation]:
    """The implementation's candidates on both sides: as winners, as measured against these, or with another config."""
    name, found = implementation.name, False
    for side in sides:
        decision, nearest = side.decision, side is sides[0]
        other = next((one.decision for one in sides if one is not side), None)
        standing, over = _stands(decision, situation), decision.baselines.get(name)
        if standing is None:
            continue
        config: Mapping[str, object] = standing.config
        if standing.implementation.name == name:
            over = standing.over
        elif over is None or standing.implementation.transfers:
            continue
        else:
            runner = situation.winners.evidence.runners(decision, read=situation.reads).get(name)
            own = asked(implementation, "fingerprint", implementation.fingerprint)
            if runner is None or runner.fingerprint != own:
                continue
            config = runner.config
        found = True
        yield Expectation(Candidate(implementation, config), side, over, other, nearest)
    if not found:
        won = _won(situation, implementation)
        default = _default(situation, implementation) if won is None else won
        if not isinstance(default, str):
            other = sides[1].decision if len(sides) > 1 else None
            # without a parameter there is no other configuration than the one that was timed
            over = None if default else sides[0].decision.baselines.get(name)
            yield Expectation(Candidate(implementation, default), sides[0], over, other, default=won is None)


def _won(situation: Situation, implementation: Implementation) -> dict[str, object] | None:
    """The configuration with which the implementation won nearest to the problem, if it won."""
    for near in situation.winners.index.nearest(situation.op, situation.problem):
        standing = _stands(near.decision, situation)
        if standing is not None and standing.implementation is implementation:
            return dict(standing.config)
    return None


def _default(situation: Situation, implementation: Implementation) -> dict[str, object] | str:
    """The default configuration of the implementation, or why it has none."""
    if situation.verified:
        return f"no configuration of {implementation.name} was verified here"
    config = default_of(implementation, situation.problem, situation.device)
    return config if isinstance(config, str) else dict(config)


def _stands(decision: Winner, situation: Situation) -> Standing | None:
    found = standing_of(decision, situation)
    return None if isinstance(found, str) else found
