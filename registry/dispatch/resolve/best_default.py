"""The best default for calls of one family; the implementations' answers are remembered across sizes."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping, Sequence
from functools import partial
from typing import Any, NamedTuple

from ...arguments.traits import FamilyTraits
from ...contract import Op
from ...device import Device
from ...discovery import answers
from ...implementation import Implementation
from ...problem import Problem, exact_items
from ...space import Config, Space
from ..plans.plan import Candidate
from .answers_or_faults import refusals
from .learnt import Leaf, WinningConfig, nearest_config
from .remembered_answers import Remembered
from .resolution import Choice, default_choice
from .situation import Situation
from .spans import Spans
from .winners import Winner

_MOST = 1024
"""The most remembered answers of one family."""


class Found:
    """A choice for problems, which ``make(*given)`` makes when it is read; ``decision``: what the choice is about.

    Without ``given`` it is ``make(dims)``, by a problem's dimensions: one object serves all sizes of a span.
    ``narrow``: it needs aligned tensors (multiples of 16 bytes). ``misses``: why winners were passed over. ``stays``:
    the decision is known to be about the problem's own static dimensions.
    """

    __slots__ = ("_given", "_make", "candidate", "decision", "misses", "narrow", "stays")

    def __init__(
        self,
        candidate: Candidate,
        narrow: bool,
        make: Callable[..., Choice],
        decision: Winner | None = None,
        misses: tuple[str, ...] = (),
        given: tuple[Any, ...] | None = (),
        stays: bool = False,
    ) -> None:
        self.candidate = candidate
        self.narrow = narrow
        self.decision = decision
        self.misses = misses
        self.stays = stays
        self._make = make
        self._given = given

    def choice_of(self, problem: Problem) -> Choice:
        """The choice for a problem, with its reason and distance."""
        return self._make(problem.dims) if self._given is None else self._make(*self._given)

    def after(self, misses: tuple[str, ...]) -> Found:
        """This choice with more misses, ``misses``, before its own."""
        misses = (*misses, *self.misses)
        if not misses:
            return self
        return Found(self.candidate, self.narrow, self._make, self.decision, misses, self._given, self.stays)


class BestDefault:
    """Finds the first of ``resolution.default_choices``, for problems of one family of calls.

    Only the learnt rule's leaf is computed for each size, and implementations are asked only where they read the size:
    whether they can run it in the order of their ranks, up to the first that can.
    """

    def __init__(self, situation: Situation) -> None:
        self._learnt = situation.winners.learnt
        self._situation = situation
        here = situation.device.type
        self._defaults = [_Default(each, situation) for each in situation.implementations if here in each.device_types]
        self._leaves: dict[int, _BestOfLeaf] = {}

    def of(self, problem: Problem) -> Found | None:
        """The first of ``default_choices``; None if no implementation can run the problem.

        Raises any exception of an implementation's ``preference``, ``space`` or ``default``.
        """
        leaf = None if self._learnt is None else self._learnt.leaf(problem.dims)
        best = self._leaves.get(id(leaf))
        if best is None:
            best = self._leaves[id(leaf)] = _BestOfLeaf(self._defaults, self._situation, leaf)
        return best.of(problem)


class _BestOfLeaf:
    """The best default of the problems of one leaf of the learnt rule, remembered by problem.

    If it reads sizes only for the configuration, the implementation is remembered nevertheless.
    """

    def __init__(self, defaults: Sequence[_Default], situation: Situation, leaf: Leaf | None) -> None:
        self._situation = situation
        self._ranked = _by_place(defaults, {} if leaf is None else leaf.places, situation.op.dynamic)
        self._firsts: dict[Hashable, _First] = {}
        self._first = Remembered(self._first_that_can, situation.op.dynamic)
        self._found = Remembered(self._found_anew, situation.op.dynamic)

    def of(self, problem: Problem) -> Found | None:
        """The choice for a problem; None if no implementation can run it."""
        if self._found.is_kept:
            return self._found.of(problem)
        first = self._first.of(problem)
        return None if first is None else first.found(problem)

    def _found_anew(self, problem: Problem) -> Found | None:
        first = self._first.of(problem)
        return None if first is None else first.found(problem)

    def _first_that_can(self, problem: Problem) -> _First | None:
        for equals in self._ranked:
            for default, preference in equals.of(problem):
                narrow = default.narrow.of(problem)
                if narrow is not None:
                    if isinstance(preference, Exception):
                        raise preference
                    return self._offered(default, preference, narrow)
        return None

    def _offered(self, default: _Default, preference: float, narrow: bool) -> _First:
        key = id(default), preference, narrow
        first = self._firsts.get(key)
        if first is None:
            if len(self._firsts) >= _MOST:
                self._firsts.clear()
            first = self._firsts[key] = _First(_Offer(default, preference, narrow), self._situation)
        return first


class _Equals:
    """Implementations at one place of the learnt rule's ranking, all that it does not rank among them."""

    def __init__(self, defaults: Sequence[_Default], dynamic: frozenset[str]) -> None:
        self._defaults = defaults
        self._only = defaults[0] if len(defaults) == 1 else None
        self._order = Remembered(self._ordered, dynamic)
        self._latest: tuple[list[float], Sequence[tuple[_Default, float | Exception]]] = ([], ())
        """The latest preferences, in the order of the implementations, and the order that they make."""

    def of(self, problem: Problem) -> Sequence[tuple[_Default, float | Exception]]:
        """The implementations by preference, best first; before them those whose preference is a fault.

        A fault matters only if the implementation can run the problem.
        """
        if self._only is not None:
            return self._alone(self._only, problem)
        return self._order.of(problem) if self._order.is_kept else self._reordered(problem)

    def _alone(self, default: _Default, problem: Problem) -> Sequence[tuple[_Default, float | Exception]]:
        """``_ordered`` of one implementation, without sorting: those that a learnt rule ranks are mostly alone."""
        try:
            return ((default, default.preference.of(problem)),)
        except Exception as fault:
            return ((default, fault.with_traceback(None)),)

    def _reordered(self, problem: Problem) -> Sequence[tuple[_Default, float | Exception]]:
        """``_ordered``, without sorting again while no preference changes."""
        try:
            preferences = [default.preference.of(problem) for default in self._defaults]
        except Exception:  # which one it is, and of which implementation, is found there
            return self._ordered(problem)
        latest = self._latest
        if preferences != latest[0]:
            latest = self._latest = preferences, self._ordered(problem)
        return latest[1]

    def _ordered(self, problem: Problem) -> Sequence[tuple[_Default, float | Exception]]:
        faulty: list[tuple[_Default, float | Exception]] = []
        known: list[tuple[_Default, float]] = []
        for default in self._defaults:
            try:
                known.append((default, default.preference.of(problem)))
            except Exception as fault:
                faulty.append((default, fault.with_traceback(None)))
        return [*faulty, *sorted(known, key=lambda one: -one[1])]


def _by_place(defaults: Sequence[_Default], places: Mapping[str, int], dynamic: frozenset[str]) -> list[_Equals]:
    """The implementations by their place in a ranking, the best first; those without a place come last."""
    found: dict[int, list[_Default]] = {}
    for default in defaults:
        found.setdefault(places.get(default.implementation.name, len(places)), []).append(default)
    return [_Equals(found[place], dynamic) for place in sorted(found)]


class _Offer(NamedTuple):
    """An implementation that can run a problem; ``narrow`` as in ``Found``."""

    default: _Default
    preference: float
    narrow: bool


_Wanted = tuple[Config, WinningConfig | None]
"""A default configuration, and the learnt WinningConfig with which the implementation won nearest, if any."""


class _Default:
    """The remembered answers of one implementation: demand, preference and configuration."""

    def __init__(self, implementation: Implementation, situation: Situation) -> None:
        device, learnt, dynamic = situation.device, situation.winners.learnt, situation.op.dynamic
        self.implementation = implementation
        self._device = device
        self.narrow = Remembered(lambda problem: demand(implementation, problem, device), dynamic)
        self.preference = Remembered(
            lambda problem: answers.declared_preference(implementation, problem, device), dynamic
        )
        self.config = Remembered(self._config, dynamic)
        self._sound: tuple[Space, Config] | None = None
        """The latest valid default and its space, which most sizes share."""
        known = None if learnt is None else learnt.configs.get(implementation.name)
        self._won = _NearestConfig(known, situation.op) if known else None

    def _config(self, problem: Problem) -> _Wanted:
        """``resolution.learnt_config``, with the WinningConfig. Raises if the implementation has no configuration."""
        implementation, device = self.implementation, self._device
        won = None if self._won is None else self._won.of(problem)
        space = answers.space_of(implementation, problem, device)
        if won is not None and not space.violations(won.config):
            return won.config, won
        given = implementation.default(problem, device)
        sound = self._sound
        if sound is None or given is not sound[1] or space is not sound[0]:
            self._sound = space, answers.checked_default(implementation, space, given)
        return given, won


class _NearestConfig:
    """``LearntDefault.config`` of one implementation, without computing distances between two sizes of one answer."""

    def __init__(self, known: Sequence[WinningConfig], op: Op) -> None:
        self._known = known
        self._spans: Spans[WinningConfig] = Spans(op)
        # the sizes nearest to a configuration form a convex region if all distances are along the same dimensions
        self._convex = all(type(one.dims.get(name)) is int for one in known for name in op.dynamic)

    def of(self, problem: Problem) -> WinningConfig:
        """The configuration with which the implementation won nearest."""
        found = self._spans.find(problem.dims) if self._convex else None
        if found is None:
            found = nearest_config(self._known, problem.dims)
            if self._convex:
                self._spans.add_ahead(problem.dims, found, lambda dims: nearest_config(self._known, dims))
        return found


class _First:
    """The best offer for all problems with equal answers of the implementations and one leaf of the learnt rule."""

    def __init__(self, offer: _Offer, situation: Situation) -> None:
        self._offer = offer
        self._situation = situation
        self._config = offer.default.config
        self._known: dict[Hashable, tuple[Config, WinningConfig | None, Found]] = {}
        self._latest: tuple[Config, WinningConfig | None, Found] | None = None

    def found(self, problem: Problem) -> Found:
        """The choice of the offer's implementation for a problem, with its configuration there."""
        config, won = self._config.of(problem)
        latest = self._latest
        if latest is None or config is not latest[0] or won is not latest[1]:
            key = exact_items(config), id(won)
            latest = self._known.get(key)
            if latest is None:
                if len(self._known) >= _MOST:
                    self._known.clear()
                latest = self._known[key] = config, won, self._choice(problem, config)
            self._latest = latest
        return latest[2]

    def _choice(self, problem: Problem, config: Config) -> Found:
        default, preference, narrow = self._offer
        candidate = Candidate(default.implementation, config)
        make = partial(default_choice, self._situation.of(problem), preference, candidate)
        return Found(candidate, narrow, make)


def demand(implementation: Implementation, problem: Problem, device: Device) -> bool | None:
    """True if an implementation needs aligned tensors; None if it cannot run the problem at all.

    It is asked only once if it does not read alignment.
    """
    traits = problem.traits
    looked = traits.looked if isinstance(traits, FamilyTraits) else -1
    try:
        reasons: Sequence[str] = answers.refusals(implementation, problem, device)
    except Exception:  # ask again by questions.refusals, which warns of the fault and returns it as a reason
        reasons = refusals(implementation, problem, device)
    if reasons:
        return None
    if isinstance(traits, FamilyTraits) and traits.looked == looked:
        return False
    return bool(answers.refusals(implementation, problem.misaligned(), device))
