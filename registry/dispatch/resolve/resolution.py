"""Which candidates should answer a problem, best first: forced, exact winner, nearest winner, defaults, reference."""

from __future__ import annotations

import weakref
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Literal, TypeVar

from tuning_db import Decision

from ...contract import Op
from ...device import Device
from ...discovery import answers
from ...discovery.catalog import Catalog
from ...errors import RegistryError, UnsupportedError
from ...implementation import Implementation
from ...problem import Problem, exact
from ...space import Config
from ..forcing import Forced
from ..plans.plan import Candidate
from ..warning import warn_caller
from .winners import OpWinners

_Answer = TypeVar("_Answer")

Step = Literal["forced", "exact", "nearest", "default", "reference"]


@dataclass(frozen=True)
class Choice:
    """A candidate and why it is considered; ``candidate`` None is torch's reference.

    ``octaves`` is the distance to the tuned problem that ``decision`` is about, 0 for the problem itself.
    ``source`` says where the decision comes from.
    """

    step: Step
    candidate: Candidate | None
    reason: str
    decision: Decision | None = None
    octaves: float = 0.0
    source: str = ""


@dataclass(frozen=True)
class Situation:
    """What resolution decides by.

    Two fields may be shared by situations that differ in the problem alone. ``standings``: of decisions by id, the
    implementation today or why the decision holds for no size. ``sound_defaults``: default configurations, with their
    implementations' ids, that were found in their spaces.
    """

    op: Op
    problem: Problem
    device: Device
    implementations: tuple[Implementation, ...]
    winners: OpWinners
    standings: dict[int, Implementation | str] = field(default_factory=dict, repr=False, compare=False)
    sound_defaults: set[Hashable] = field(default_factory=set, repr=False, compare=False)

    def named(self, name: str) -> Implementation | None:
        """The implementation of that name, if it is installed."""
        return next((found for found in self.implementations if found.name == name), None)


def choices(situation: Situation, forced: Forced | None, misses: list[str]) -> Iterator[Choice]:
    """Every choice for the situation, best first, each made only when it is asked for.

    Appends to ``misses`` why a winner was passed over. Ends with the reference, unless something is forced: then
    there is one choice, or UnsupportedError with every reason.
    """
    if forced is not None:
        yield forced_choice(situation, forced, misses)
        return
    yield from exact_choices(situation, misses)
    yield from nearest_choices(situation, misses)
    yield from default_choices(situation, misses)
    yield Choice("reference", None, why_reference(situation))


def why_reference(situation: Situation) -> str:
    """Why torch's reference answers: nobody implements the op, or no implementation runs the problem."""
    return "no implementation can run it" if situation.implementations else answers.no_implementation(situation.op.name)


def forced_choice(situation: Situation, forced: Forced, misses: list[str]) -> Choice:
    """The implementation that ``using`` asks for, with its own config, its winning one, or its default."""
    implementation = situation.named(forced.implementation)
    where = f"{forced.implementation} cannot run {situation.problem} on {situation.device}"
    if implementation is None:
        raise UnsupportedError(f"{where}: it is not installed")
    reasons = refusals(implementation, situation.problem, situation.device)
    if not reasons and forced.config is not None:
        reasons = violations(implementation, forced.config, situation)
    if reasons:
        raise UnsupportedError(f"{where}: {'; '.join(reasons)}", hint="it was forced by registry.using(...)")
    if forced.config is not None:
        return Choice("forced", Candidate(implementation, forced.config), "registry.using(...), with that config")
    tuned = [*exact_choices(situation, misses), *nearest_choices(situation, misses)]
    for choice in tuned:
        if choice.candidate is not None and choice.candidate.implementation is implementation:
            return replace(choice, step="forced", reason=f"registry.using(...), {choice.reason}")
    config = default_of(implementation, situation.problem, situation.device)
    if isinstance(config, str):
        raise UnsupportedError(f"{where}: {config}", hint="it was forced by registry.using(...)")
    return Choice("forced", Candidate(implementation, config), "registry.using(...), with its default config")


def exact_choices(situation: Situation, misses: list[str]) -> Iterator[Choice]:
    """The winner of exactly this problem, if it still holds."""
    for decision in situation.winners.exact(situation.problem):
        candidate = usable(decision, situation)
        if isinstance(candidate, Candidate):
            source = situation.winners.source(decision)
            reason = f"the {_kind(situation, decision)} of exactly this problem"
            yield Choice("exact", candidate, reason, decision, source=source)
        else:
            misses.append(f"{_kind(situation, decision)} of exactly this problem: {candidate}")


def nearest_choices(situation: Situation, misses: list[str]) -> Iterator[Choice]:
    """Winners of other problems with the same static dimensions, from near to far, each candidate once."""
    seen: set[str] = set()
    for near in situation.winners.nearest(situation.op, situation.problem):
        where = f"{_kind(situation, near.decision)} of {_shown(situation.op, near.decision)}"
        candidate = usable(near.decision, situation)
        if isinstance(candidate, str):
            misses.append(f"{where}: {candidate}")
        elif candidate.key not in seen:
            seen.add(candidate.key)
            source = situation.winners.source(near.decision)
            yield Choice("nearest", candidate, f"the {where}", near.decision, near.octaves, source)


def undoubted_choice(situation: Situation) -> Choice | None:
    """The first of ``choices`` where nothing speaks against it; None where something is passed over, or raises."""
    decisions = situation.winners.exact(situation.problem)
    if decisions:
        candidate = _undoubted(decisions[0], situation)
        reason = f"the {_kind(situation, decisions[0])} of exactly this problem"
        source = situation.winners.source(decisions[0])
        return None if candidate is None else Choice("exact", candidate, reason, decisions[0], source=source)
    near = next(situation.winners.nearest(situation.op, situation.problem), None)
    if near is not None:
        candidate = _undoubted(near.decision, situation)
        reason = f"the {_kind(situation, near.decision)} of {_shown(situation.op, near.decision)}"
        source = situation.winners.source(near.decision)
        return None if candidate is None else Choice("nearest", candidate, reason, near.decision, near.octaves, source)
    misses: list[str] = []
    choice = next(default_choices(situation, misses), None)
    return None if misses else choice


def _undoubted(decision: Decision, situation: Situation) -> Candidate | None:
    """``usable`` without a reason, and without what telling one takes. Raises whatever asking raises."""
    implementation = situation.standings.get(id(decision))
    if not isinstance(implementation, Implementation):
        return None
    config, problem, device = decision.candidate.config, situation.problem, situation.device
    if device.type not in implementation.device_types or any(True for _ in implementation.unsupported(problem, device)):
        return None
    return None if implementation.space(problem, device).violations(config) else Candidate(implementation, config)


def default_choices(situation: Situation, misses: list[str]) -> Iterator[Choice]:
    """Default candidates of whatever is supported, by declared preference; the first registered wins a tie."""
    problem, device = situation.problem, situation.device
    ranked: list[tuple[float, Implementation]] = []
    for implementation in situation.implementations:
        if refusals(implementation, problem, device):
            continue
        preference = preference_of(implementation, problem, device)
        if isinstance(preference, str):
            misses.append(preference)
        else:
            ranked.append((preference, implementation))
    for preference, implementation in sorted(ranked, key=lambda pair: -pair[0]):
        config = asked(implementation, "default", partial(_default, implementation, situation))
        if isinstance(config, str):
            misses.append(config)
        else:
            reason = f"nothing tuned is near; preferred by heuristic ({preference:g})"
            yield Choice("default", Candidate(implementation, config), reason)


def _default(implementation: Implementation, situation: Situation) -> Config:
    """The default configuration, held against the space when an implementation first names it: a space takes 20 µs."""
    given = implementation.default(situation.problem, situation.device)
    if isinstance(given, Mapping):
        key = id(implementation), tuple([(name, exact(value)) for name, value in given.items()])
        if key in situation.sound_defaults:
            return given
        given = answers.default_config(implementation, situation.problem, situation.device)
        if len(situation.sound_defaults) >= _MOST_DEFAULTS:
            situation.sound_defaults.clear()
        situation.sound_defaults.add(key)
        return given
    return answers.default_config(implementation, situation.problem, situation.device)


def usable(decision: Decision, situation: Situation) -> Candidate | str:
    """The decision's candidate as it is today, or why it does not hold here."""
    implementation = situation.standings.get(id(decision))
    if implementation is None:
        implementation = situation.standings[id(decision)] = _standing(decision, situation)
    if isinstance(implementation, str):
        return implementation
    config = decision.candidate.config
    reasons = refusals(implementation, situation.problem, situation.device) or violations(
        implementation, config, situation
    )
    return f"{implementation.name}: {'; '.join(reasons)}" if reasons else Candidate(implementation, config)


def _standing(decision: Decision, situation: Situation) -> Implementation | str:
    """The decision's implementation as it is today, or why the decision holds for no size."""
    name = decision.candidate.implementation
    implementation = situation.named(name)
    if decision.problem.op_version != situation.op.version:
        return f"measured for version {decision.problem.op_version} of the op, which is now {situation.op.version}"
    if implementation is None:
        return f"{name} is not installed here"
    if asked(implementation, "fingerprint", implementation.fingerprint) != decision.candidate.fingerprint:
        return f"the source of {name} has changed since it was measured"
    return implementation


def standing(decisions: Iterable[Decision], catalog: Catalog, device: Device) -> Iterator[tuple[Decision, str]]:
    """Each decision and why it would not answer a call of its own problem on ``device``, "" when it would."""
    for decision in decisions:
        try:
            op = catalog.op(decision.problem.op)
            problem = op.problem_of(decision.problem.dims)
        except RegistryError as fault:
            yield decision, fault.message
            continue
        situation = Situation(op, problem, device, catalog.implementations(op.name), OpWinners())
        candidate = usable(decision, situation)
        yield decision, candidate if isinstance(candidate, str) else ""


def violations(implementation: Implementation, config: Config, situation: Situation) -> list[str]:
    """Why ``config`` is no point of the implementation's space for this problem; empty when it is one."""
    found = asked(
        implementation,
        "space",
        lambda: implementation.space(situation.problem, situation.device).violations(config),
    )
    return [found] if isinstance(found, str) else found


def refusals(implementation: Implementation, problem: Problem, device: Device) -> list[str]:
    """Every reason why an implementation cannot run a problem on a device, a fault of asking among them."""
    reasons = asked(implementation, "unsupported", lambda: list(answers.refusals(implementation, problem, device)))
    return [reasons] if isinstance(reasons, str) else reasons


def preference_of(implementation: Implementation, problem: Problem, device: Device) -> float | str:
    """The declared preference of an implementation for a problem, or the fault of asking."""
    return asked(implementation, "preference", partial(answers.declared_preference, implementation, problem, device))


def default_of(implementation: Implementation, problem: Problem, device: Device) -> Config | str:
    """The default configuration of an implementation, or why it has none: no valid one, or the fault of asking."""
    return asked(implementation, "default", partial(answers.default_config, implementation, problem, device))


def asked(implementation: Implementation, question: str, ask: Callable[[], _Answer]) -> _Answer | str:
    """The answer of an implementation, or the fault of asking it, which is warned of once: it must not stop a call."""
    try:
        return ask()
    except UnsupportedError as refusal:
        return refusal.message
    except Exception as fault:
        text = answers.fault_text(implementation, question, fault)
    if _first_time(implementation, question):
        warn_caller(text)
    return text


_MOST_DEFAULTS = 4096
_MOST_TOLD = 256
_told: dict[int, tuple[weakref.ref[Implementation], set[str]]] = {}


def _first_time(implementation: Implementation, question: str) -> bool:
    """True if no fault of asking an implementation ``question`` was told yet: every shape brings one, worded anew."""
    known = _told.get(id(implementation))
    if known is None or known[0]() is not implementation:
        if len(_told) >= _MOST_TOLD:
            _told.clear()
        known = _told[id(implementation)] = weakref.ref(implementation), set()
    first = question not in known[1]
    known[1].add(question)
    return first


def changed_software(decision: Decision, software: Mapping[str, str]) -> list[str]:
    """What differs: ``torch 2.11.0 then, 2.15.0 now``."""
    then = decision.environment.software
    names: Iterable[str] = sorted(then.keys() | software.keys())
    return [
        f"{name} {then.get(name) or 'none'} then, {software.get(name) or 'none'} now"
        for name in names
        if then.get(name) != software.get(name)
    ]


def _kind(situation: Situation, decision: Decision) -> str:
    return "shipped winner" if situation.winners.is_shipped(decision) else "winner"


def _shown(op: Op, decision: Decision) -> str:
    dims, told = decision.problem.dims, {*op.dynamic, *op.distributions}
    return ", ".join(f"{name}={dims[name]}" for name in dims if name in told)
