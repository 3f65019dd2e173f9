"""The best choice for a call of one family, where nothing speaks against it.

What implementations answer is remembered by what they looked at, and which winner is near by the sizes between which
it is, so that another size asks little of either.
"""

from __future__ import annotations

import math
from collections.abc import Hashable
from typing import Literal, NamedTuple

from ...device import Device
from ...discovery import answers
from ...implementation import Implementation
from ...problem import Problem, getter
from ..plans.plan import Candidate, changed
from .expected import Expectation, expected, expected_elsewhere
from .neighbours import octaves_between, sizes_of
from .op_winners import Source, Winner
from .questions import preference_of, refusals
from .remembered import Remembered
from .resolution import Choice, default_choice, exact_choice, learnt_config, nearest_choice, similar_choice
from .situation import Situation, shown_exact, standing_of
from .spans import Spans


class Found(NamedTuple):
    """A choice; whether it demands tensors that start at a multiple of 16 bytes; why winners were passed over."""

    choice: Choice
    narrow: bool
    misses: tuple[str, ...] = ()


class Undoubted:
    """Finds what ``resolution.choices`` begins with, for problems of one family of calls.

    ``situation`` is that of any of them: another one's differs in the problem alone.
    """

    def __init__(self, situation: Situation) -> None:
        op = situation.op
        self._situation = situation
        self._untuned = situation.winners.is_empty
        self._defaults = [_Default(each, situation) for each in situation.implementations]
        self._default = Remembered(self._best_default, op.dynamic)
        self._usable: dict[int, _Usable] = {}
        self._nearest: dict[Hashable, _Usable] = {}
        self._spans: Spans[_Usable] = Spans(op)
        self._fixed = getter(sorted(op.static))
        self._unanswered: dict[Hashable, tuple[str, ...]] = {}
        self._similar_spans: Spans[_Usable] = Spans(op)
        self._alone: set[Hashable] = set()

    def choice(self, problem: Problem) -> Found | None:
        """The first of ``choices``; None where a winner's candidate refuses the problem. Raises what asking raises."""
        if self._untuned:
            return self._default.of(problem)
        usable = self._spans.find(problem.dims)
        if usable is not None:
            octaves = octaves_between(sizes_of(self._situation.op, problem.dims), usable.sizes)
            # of its own size there may be several, and one that does not hold is told as this problem's own
            own = octaves == 0 or (usable.stale and self._situation.winners.exact(self._situation.op, problem))
            if not own:
                return usable.found(problem, octaves)
        fixed = self._fixed(problem.dims)
        key = *fixed, *map(type, fixed)
        if key not in self._unanswered:
            misses: list[str] = []
            found = self._winner(problem, misses)
            if not isinstance(found, str):
                return found
            self._unanswered[key] = tuple(misses)
        default = self._similar(problem, key)
        return default and default._replace(misses=(*self._unanswered[key], *default.misses))

    def _similar(self, problem: Problem, key: Hashable) -> Found | None:
        """The default by winners of other static dimensions, else the best of all; None where it cannot run."""
        usable = self._similar_spans.find(problem.dims)
        if usable is None and key not in self._alone:
            usable = self._expected_elsewhere(problem)
            if usable is None:
                self._alone.add(key)
            else:
                self._similar_spans.add(problem.dims, usable)
        return self._default.of(problem) if usable is None else usable.found(problem, 0.0)

    def _expected_elsewhere(self, problem: Problem) -> _Usable | None:
        situation = self._situation.of(problem)
        found = next(expected_elsewhere(situation), None)
        if found is None:
            return None
        one, static = found
        place = "similar", *self._place(problem, one), one.candidate.implementation.name, one.over
        if place not in self._nearest:
            choice = similar_choice(situation, one, static)
            self._nearest[place] = _Usable(one.near.decision, one.candidate, situation, choice)
        return self._nearest[place]

    def _winner(self, problem: Problem, misses: list[str]) -> Found | Literal["none"] | None:
        """The choice of the first winner that holds at all; "none" where none of any size does.

        Appends to ``misses`` why winners hold for no size.
        """
        situation = self._situation.of(problem)
        for decision in situation.winners.exact(situation.op, problem):
            found = self._standing(decision, situation)
            if isinstance(found, _Usable):
                choice = exact_choice(situation, found.candidate, decision)
                narrow = found.narrow.of(problem)
                return None if narrow is None else Found(choice, narrow, tuple(misses))
            misses.append(f"{shown_exact(situation, decision)}: {found}")
        alone = not misses
        expectation = self._expected(situation, misses)
        if expectation is None:
            return "none"
        usable, octaves = expectation
        if alone:
            self._spans.add(problem.dims, usable)
            self._look_ahead(problem, usable)
        found_near = usable.found(problem, octaves)
        return found_near and found_near._replace(misses=tuple(misses))

    def _expected(self, situation: Situation, misses: list[str]) -> tuple[_Usable, float] | None:
        """The candidate that is expected to be the fastest, whether or not it can run here, and how far it is tuned.

        Appends to ``misses`` why winners say nothing here, which is told at every size of a span: which winners are
        nearer than another one is the same between two sizes where it is.
        """
        told, stale = list[str](), set[Source]()
        one = next(expected(situation, told, stale), None)
        misses += told
        if one is None:
            return None
        key = self._place(situation.problem, one), one.candidate.implementation.name, one.over, *told
        found = self._nearest.get(key)
        if found is None:
            choice = nearest_choice(situation, one)
            found = self._nearest[key] = _Usable(one.near.decision, one.candidate, situation, choice)
            found.misses, found.stale = tuple(told), bool(stale)
        return found, one.near.octaves

    def _place(self, problem: Problem, one: Expectation) -> tuple[Hashable, ...]:
        """The winners on both sides, and the side: between them a candidate is the best at neighbouring sizes."""
        near = one.near.decision
        here, there = (sizes_of(self._situation.op, dims) for dims in (problem.dims, near.problem.dims))
        sides = [(size > far) - (size < far) for size, far in zip(here, there, strict=True)]
        return id(near), id(one.other), one.nearest, *sides

    def _look_ahead(self, problem: Problem, usable: _Usable) -> None:
        """Tell the spans how far beyond a size ``usable`` is the best, too: a context grows token by token."""
        op, winners = self._situation.op, self._situation.winners
        for name in op.dynamic:
            size = problem.dims[name]
            for further_size in (size * 2, size * 5 // 4) if isinstance(size, int) else ():
                further = Problem(op.name, {**problem.dims, name: further_size}, problem.traits)
                if not winners.exact(op, further):
                    expectation = self._expected(self._situation.of(further), [])
                    if expectation is not None and expectation[0] is usable:
                        self._spans.add(further.dims, usable)
                        break

    def _standing(self, decision: Winner, situation: Situation) -> _Usable | str:
        """The decision's candidate as it is today, or why the decision holds for no size."""
        implementation = standing_of(decision, situation)
        if isinstance(implementation, str):
            return implementation
        found = self._usable.get(id(decision))
        if found is None:
            candidate = Candidate(implementation, decision.candidate.config)
            found = self._usable[id(decision)] = _Usable(decision, candidate, situation)
        return found

    def _best_default(self, problem: Problem) -> Found | None:
        """The first of ``default_choices``; None where an implementation fails to answer."""
        learnt = self._situation.winners.learnt
        rank = {} if learnt is None else learnt.rank(problem.dims)
        best: _Default | None = None
        least = math.inf, math.inf
        for default in self._defaults:
            if not default.refused.of(problem):
                preference = default.preference.of(problem)
                if isinstance(preference, str):
                    return None
                place = rank.get(default.implementation.name, len(rank)), -preference
                if best is None or place < least:
                    best, least = default, place
        config = "nothing can run it" if best is None else best.config.of(problem)
        if best is None or isinstance(config, str):
            return None
        choice = default_choice(self._situation.of(problem), -least[1], Candidate(best.implementation, config))
        return Found(choice, best.narrow.of(problem))


class _Default:
    """What one implementation answers about problems."""

    def __init__(self, implementation: Implementation, situation: Situation) -> None:
        device, learnt, dynamic = situation.device, situation.winners.learnt, situation.op.dynamic
        self.implementation = implementation
        self.refused = Remembered(lambda problem: bool(refusals(implementation, problem, device)), dynamic)
        self.preference = Remembered(lambda problem: preference_of(implementation, problem, device), dynamic)
        self.config = Remembered(lambda problem: learnt_config(learnt, implementation, problem, device), dynamic)
        self.narrow = Remembered(lambda problem: _is_narrow(implementation, problem, device), dynamic)


class _Usable:
    """A candidate and where it can run: a winner's own, or the one of ``choice``, expected to be fast near a winner."""

    def __init__(
        self, decision: Winner, candidate: Candidate, situation: Situation, choice: Choice | None = None
    ) -> None:
        self.candidate = candidate
        self.sizes = sizes_of(situation.op, decision.problem.dims)
        self.misses: tuple[str, ...] = ()
        """Why nearer winners say nothing."""
        self.stale = False
        """Whether some of them hold for no size."""
        self._choice = choice
        implementation, config = candidate.implementation, candidate.config
        device, dynamic = situation.device, situation.op.dynamic
        self._runs = Remembered(lambda problem: not answers.refusals(implementation, problem, device), dynamic)
        self._fits = Remembered(lambda problem: not implementation.space(problem, device).violations(config), dynamic)
        self._narrow = Remembered(lambda problem: _is_narrow(implementation, problem, device), dynamic)
        self.narrow = Remembered(self._standing, dynamic)
        """None where it cannot run (``resolution.usable``), else whether it refuses tensors that are not aligned."""

    def _standing(self, problem: Problem) -> bool | None:
        return self._narrow.of(problem) if self._runs.of(problem) and self._fits.of(problem) else None

    def found(self, problem: Problem, octaves: float) -> Found | None:
        """The choice for a problem that is so far from the decision's; None where the candidate cannot run it."""
        narrow = self.narrow.of(problem)
        if self._choice is None or narrow is None:
            return None
        return Found(changed(self._choice, octaves=octaves), narrow, self.misses)


def _is_narrow(implementation: Implementation, problem: Problem, device: Device) -> bool:
    return bool(answers.refusals(implementation, problem.misaligned(), device))
