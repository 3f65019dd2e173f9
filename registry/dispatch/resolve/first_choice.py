"""The first choice for calls of one family, if its candidate can run.

The answers of implementations are remembered by the dimensions that they read, and the nearest winners by spans of
sizes, so that a new size needs little work.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping
from dataclasses import replace
from functools import partial
from typing import Literal

from ...arguments.traits import FamilyTraits
from ...discovery import answers
from ...problem import Problem, Value, exact_items, getter
from ...space import Space
from ..plans.plan import Candidate
from .best_default import BestDefault, Found, demand
from .expectations import Expectation, expected, expected_elsewhere
from .remembered_answers import Remembered
from .resolution import Choice, exact_choice, nearest_choice, similar_choice
from .situation import Situation, Standing, moved_along, shown_exact
from .spans import FoundSpan, Spans
from .standings import standing_of
from .winners import Winner, WinnerSource
from .winners.neighbours import octaves_between, sizes_of


class FirstChoice:
    """Finds the first of ``resolution.choices``, for problems of one family of calls.

    ``situation`` may be that of any of these problems: they differ in the problem alone.
    """

    def __init__(self, situation: Situation) -> None:
        op = situation.op
        self._situation = situation
        self._untuned = situation.winners.is_empty
        self._default = BestDefault(situation)
        self._usable: dict[int, _Usable] = {}
        self._nearest: dict[Hashable, _Usable] = {}
        self._spans: Spans[_Usable] = Spans(op, partial(situation.winners.index.stretch, op))
        self._fixed = getter(sorted(op.static))
        self._unanswered: dict[Hashable, tuple[str, ...]] = {}
        self._similar_spans: Spans[_Usable] = Spans(op)
        self._alone: set[Hashable] = set()
        self._seen_similar: set[Hashable] = set()
        self._latest: tuple[Found, tuple[str, ...], Found] | None = None
        """The latest default, why winners were passed over, and both in one choice."""

    def choice(self, problem: Problem) -> Found | None:
        """The first of ``choices``; None if a winner's candidate cannot run it. Raises what implementations raise."""
        if self._untuned:
            return self._default.of(problem)
        dims = problem.dims
        span = self._spans.span(dims) if self._spans.known else None
        if span is not None:
            usable = span[-1]
            if (
                # a winner of exactly this size has other reasons, also if it does not hold
                usable.sizes(dims) != usable.own
                and not (usable.stale and self._has_own(problem))
                and (usable.default is None or usable.has_default(problem))
            ):
                return usable.found(problem, span)
        fixed = self._fixed(dims)
        key = *fixed, *map(type, fixed)
        misses = self._unanswered.get(key)
        if misses is None:
            told: list[str] = []
            found = self._winner(problem, told)
            if not isinstance(found, str):
                return found
            misses = tuple(told)
            if not self._any_depends_on_size(problem, dims):
                self._unanswered[key] = misses
        is_alone = key in self._alone and not self._similar_spans.known
        default = self._default.of(problem) if is_alone else self._similar(problem, key)
        if default is None or not misses:
            return default
        latest = self._latest
        if latest is None or latest[0] is not default or latest[1] is not misses:
            latest = self._latest = default, misses, default.after(misses)
        return latest[2]

    def _any_depends_on_size(self, problem: Problem, dims: Mapping[str, Value]) -> bool:
        """True if winners for static dimensions answer some sizes only: their code is made for each size.

        Then the next best may answer, which differs from winner to winner.
        """
        situation = self._situation.of(problem)
        winners = situation.winners.index.one_of_each_source(situation.op, dims)
        standings = [standing_of(winner, situation) for winner in winners]
        return any(isinstance(one, Standing) and not one.implementation.transfers for one in standings)

    def _has_own(self, problem: Problem) -> bool:
        """True if a winner of exactly this problem is known, whether or not it holds."""
        return bool(self._situation.winners.index.exact(self._situation.op, problem))

    def _similar(self, problem: Problem, key: Hashable) -> Found | None:
        """The default by winners of other static dimensions, else the best default; None if it cannot run."""
        usable = self._similar_spans.find(problem.dims)
        if usable is not None and usable.default is not None and not usable.has_default(problem):
            usable = self._expected_elsewhere(problem.dims, problem)
        elif usable is None and key not in self._alone:
            refused: list[Winner] = []
            usable = self._expected_elsewhere(problem.dims, problem, refused)
            if usable is None:
                similar = self._situation.winners.index.similar(self._situation.op, problem)
                if not refused and not any(
                    self._any_depends_on_size(problem, {**problem.dims, **one.static}) for one in similar
                ):
                    self._alone.add(key)
            elif key in self._seen_similar:
                self._similar_spans.add_ahead(
                    problem.dims, usable, lambda dims: self._expected_elsewhere(dims, problem)
                )
            else:
                # larger sizes are looked up at the second size, since many weights are called with one size only
                self._seen_similar.add(key)
                self._similar_spans.add(problem.dims, usable)
        return self._default.of(problem) if usable is None else usable.found(problem)

    def _expected_elsewhere(
        self, dims: Mapping[str, Value], like: Problem, refused: list[Winner] | None = None
    ) -> _Usable | None:
        """The candidate that winners of similar static dimensions suggest for other dimensions.

        Appends to ``refused`` the winners that do not transfer to these, as ``expected_elsewhere`` does.
        """
        situation = self._situation.of(Problem(like.op, dims, like.traits))
        refused = [] if refused is None else refused
        found = next(expected_elsewhere(situation, refused), None)
        if found is None:
            return None
        one, static = found
        # a refused winner stands before farther winners of its candidate, at these sizes alone
        place = *self._place(situation.problem, one), *static.items(), frozenset(map(id, refused))
        if place not in self._nearest:
            choice = similar_choice(situation, one, static)
            self._nearest[place] = _Usable(one.near.decision, one.candidate, situation, choice, default=one.default)
        return self._nearest[place]

    def _winner(self, problem: Problem, misses: list[str]) -> Found | Literal["none"] | None:
        """The choice of the first winner that holds, None if it cannot run; "none" if no winner of any size holds.

        Appends to ``misses`` why winners do not hold.
        """
        situation = self._situation.of(problem)
        for decision in situation.winners.index.exact(situation.op, problem):
            standing = standing_of(decision, situation)
            why = standing if isinstance(standing, str) else standing.instead_of
            if why:
                misses.append(f"{shown_exact(situation, decision)}: {why}")
            if isinstance(standing, Standing):
                found = self._exact(decision, standing, situation)
                make = partial(exact_choice, situation, found.candidate, decision, standing.over)
                narrow = found.narrow(problem)
                return None if narrow is None else Found(found.candidate, narrow, make, decision, tuple(misses))
        alone = not misses
        own = tuple(misses)
        usable = self._expected(situation, misses)
        if usable is None:
            return "none"
        if alone:
            self._spans.add_ahead(problem.dims, usable, lambda dims: self._further(dims, problem))
        near = usable.found(problem)
        return near and near.after(own)

    def _expected(self, situation: Situation, misses: list[str]) -> _Usable | None:
        """The candidate that is expected to be the fastest, even if it cannot run.

        Appends to ``misses`` why nearer winners do not apply; these are the same for all sizes of a span.
        """
        told, stale = list[str](), set[WinnerSource]()
        one = next(expected(situation, told, stale), None)
        misses += told
        if one is None:
            return None
        key = self._place(situation.problem, one), *told
        found = self._nearest.get(key)
        if found is None:
            choice = nearest_choice(situation, one)
            found = self._nearest[key] = _Usable(
                one.near.decision, one.candidate, situation, choice, default=one.default
            )
            found.misses, found.stale, found.octaves = tuple(told), bool(stale), self._octaves
        return found

    def _place(self, problem: Problem, one: Expectation) -> tuple[Hashable, ...]:
        """A key of the winners on both sides of a problem, of the expectation's side, and of its candidate."""
        near = one.near.decision
        here, there = (sizes_of(self._situation.op, dims) for dims in (problem.dims, near.problem.dims))
        sides = [(size > far) - (size < far) for size, far in zip(here, there, strict=True)]
        candidate = one.candidate.implementation.name, exact_items(one.candidate.config)
        return id(near), id(one.other), one.nearest, *sides, *candidate, one.over

    def _further(self, dims: Mapping[str, Value], like: Problem) -> _Usable | None:
        """The candidate that is expected to be the fastest at ``dims``; None if these have a winner of their own."""
        further = Problem(like.op, dims, like.traits)
        if self._situation.winners.index.exact(self._situation.op, further):
            return None
        return self._expected(self._situation.of(further), [])

    def _octaves(self, dims: Mapping[str, Value], decision: Winner) -> float:
        """The distance of a decision from a problem with these dimensions."""
        op = self._situation.op
        return octaves_between(sizes_of(op, dims), sizes_of(op, decision.problem.dims))

    def _exact(self, decision: Winner, standing: Standing, situation: Situation) -> _Usable:
        """The candidate by which a decision answers calls of its own size."""
        found = self._usable.get(id(decision))
        if found is None:
            candidate = Candidate(standing.implementation, standing.config)
            found = self._usable[id(decision)] = _Usable(decision, candidate, situation)
        return found


class _Usable:
    """A candidate and the problems that it can run: a winner's, or that of ``choice``, expected to be fast near it."""

    def __init__(
        self,
        decision: Winner,
        candidate: Candidate,
        situation: Situation,
        choice: Choice | None = None,
        *,
        default: bool = False,
    ) -> None:
        self.candidate = candidate
        self._op = situation.op
        self._decision = decision
        self.sizes = getter(situation.op.near_along)
        """A function that returns the sizes of dimensions; ``own`` are those of the decision."""
        self.own = self.sizes(decision.problem.dims)
        self.octaves: Callable[[Mapping[str, Value], Winner], float] | None = None
        """The distance of the decision from other dimensions; None for a default."""
        self.misses: tuple[str, ...] = ()
        """Why nearer winners do not apply."""
        self.stale = False
        """True if a nearer winner holds for no size."""
        self._choice = choice
        self._make = self._choice_at  # kept, since each reading of a method makes an object
        implementation, device, dynamic = candidate.implementation, situation.device, situation.op.dynamic
        self._device = device
        self._space: Space | None = None
        self._fits = Remembered(self._is_point, dynamic)
        self.default = (
            Remembered(lambda problem: answers.default_config(implementation, problem, device), dynamic)
            if default
            else None
        )
        """The implementation's default by problem, if that is the configuration; else None."""
        self._demand = Remembered(lambda problem: demand(implementation, problem, device), dynamic)
        self._latest: tuple[FoundSpan[_Usable] | None, bool | None, bool] = (None, None, False)
        """A span in which no size decides whether the candidate can run, with ``narrow`` and ``Found.stays`` there."""
        self._shared: Found | None = None
        """The latest result of ``found``, which mostly is that for the next size, too."""

    def _is_point(self, problem: Problem) -> bool:
        """True if the configuration is valid for a problem; fast if it has the space of the problem before."""
        space = answers.space_of(self.candidate.implementation, problem, self._device)
        if space is not self._space:
            if space.violations(self.candidate.config):
                return False
            self._space = space
        return True

    def narrow(self, problem: Problem) -> bool | None:
        """None if the candidate cannot run a problem, else whether it refuses tensors that are not aligned."""
        narrow = self._demand.of(problem)
        return narrow if narrow is not None and self._fits.of(problem) else None

    def has_default(self, problem: Problem) -> bool:
        """True if the configuration, a default, is the default for a problem, too."""
        return self.default is not None and exact_items(self.default.of(problem)) == exact_items(self.candidate.config)

    def found(self, problem: Problem, span: FoundSpan[_Usable] | None = None) -> Found | None:
        """The choice for a problem, which is in ``span`` if that is given; None if the candidate cannot run it."""
        choice = self._choice
        if choice is None:
            return None
        # as ``narrow``, without its calls: each new size of a call comes here
        latest, narrow, stays = self._latest
        if latest is None or latest is not span or not isinstance(problem.traits, FamilyTraits):
            narrow, stays = self._demand.of(problem), False
            # with other traits the answer may differ from size to size
            if span is not None and isinstance(problem.traits, FamilyTraits) and not self._demand.depends_on(span[0]):
                if choice.decision is not None and span[0] not in self._op.transfers:
                    stays = not moved_along(self._op, choice.decision, problem)
                self._latest = span, narrow, stays
        if narrow is None or not (self._fits.of(problem) if self._fits.is_kept else self._is_point(problem)):
            return None
        found = self._shared
        if found is None or found.narrow is not narrow or found.stays is not stays or found.misses is not self.misses:
            found = Found(self.candidate, narrow, self._make, choice.decision, self.misses, None, stays)
            self._shared = found
        return found

    def _choice_at(self, dims: Mapping[str, Value]) -> Choice:
        assert self._choice is not None
        if self.octaves is None:
            return self._choice
        return replace(self._choice, octaves=self.octaves(dims, self._decision))
