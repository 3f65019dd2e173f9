"""Which candidates should answer a problem, best first: forced, exact winner, nearest winner, defaults, reference."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field, replace
from typing import Literal

from tuning_db import Decision

from ...contract import Op
from ...device import Device
from ...discovery import answers
from ...discovery.catalog import Catalog
from ...errors import RegistryError, UnsupportedError
from ...implementation import Implementation
from ...problem import Problem
from ...space import Config
from ..forcing import Forced
from ..plans.plan import Candidate
from .op_winners import Near, OpWinners, Source, Winner, source_of
from .questions import asked, default_of, preference_of, refusals

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
    decision: Winner | None = None
    octaves: float = 0.0
    source: str = ""


@dataclass(frozen=True)
class Situation:
    """What resolution decides by.

    ``standings`` may be shared by situations that differ in the problem alone: of decisions by id, the implementation
    today or why the decision holds for no size.
    """

    op: Op
    problem: Problem
    device: Device
    implementations: tuple[Implementation, ...]
    winners: OpWinners
    standings: dict[int, Implementation | str] = field(default_factory=dict, repr=False, compare=False)

    def of(self, problem: Problem) -> Situation:
        """The situation of another problem."""
        return Situation(self.op, problem, self.device, self.implementations, self.winners, self.standings)

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
    for decision in situation.winners.exact(situation.op, situation.problem):
        candidate = usable(decision, situation)
        if isinstance(candidate, Candidate):
            yield exact_choice(situation, candidate, decision)
        else:
            misses.append(f"{shown_exact(situation, decision)}: {candidate}")


def nearest_choices(situation: Situation, misses: list[str]) -> Iterator[Choice]:
    """Winners of other problems with the same static dimensions, from near to far, each candidate once.

    Of an implementation that can run nothing here the nearest winner alone is told.
    """
    seen: set[str] = set()
    spent: set[Source] = set()
    for near in situation.winners.nearest(situation.op, situation.problem, spent):
        implementation = able(near.decision, situation)
        if isinstance(implementation, str):
            spent.add(source_of(near.decision))
        candidate = usable(near.decision, situation, implementation)
        if isinstance(candidate, str):
            misses.append(f"{shown_near(situation, near.decision)}: {candidate}")
        elif candidate.key not in seen:
            seen.add(candidate.key)
            yield nearest_choice(situation, candidate, near)


def exact_choice(situation: Situation, candidate: Candidate, decision: Winner) -> Choice:
    """The choice of a decision about exactly this problem."""
    reason = f"the {shown_exact(situation, decision)}"
    return Choice("exact", candidate, reason, decision, source=situation.winners.source(decision))


def nearest_choice(situation: Situation, candidate: Candidate, near: Near) -> Choice:
    """The choice of a decision about another problem."""
    reason = f"the {shown_near(situation, near.decision)}"
    source = situation.winners.source(near.decision)
    return Choice("nearest", candidate, reason, near.decision, near.octaves, source)


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
        config = default_of(implementation, problem, device)
        if isinstance(config, str):
            misses.append(config)
        else:
            yield default_choice(preference, Candidate(implementation, config))


def default_choice(preference: float, candidate: Candidate) -> Choice:
    """The choice of a default candidate."""
    return Choice("default", candidate, f"nothing tuned is near; preferred by heuristic ({preference:g})")


def usable(
    decision: Winner, situation: Situation, implementation: Implementation | str | None = None
) -> Candidate | str:
    """The decision's candidate as it is today, or why it does not hold here. ``implementation``: as ``able`` says."""
    implementation = able(decision, situation) if implementation is None else implementation
    if isinstance(implementation, str):
        return implementation
    config = decision.candidate.config
    reasons = violations(implementation, config, situation)
    return f"{implementation.name}: {'; '.join(reasons)}" if reasons else Candidate(implementation, config)


def able(decision: Winner, situation: Situation) -> Implementation | str:
    """The decision's implementation as it is today, or why no config of it holds here."""
    implementation = standing_of(decision, situation)
    if isinstance(implementation, str):
        return implementation
    reasons = refusals(implementation, situation.problem, situation.device)
    return f"{implementation.name}: {'; '.join(reasons)}" if reasons else implementation


def standing_of(decision: Winner, situation: Situation) -> Implementation | str:
    """The decision's implementation as it is today, or why the decision holds for no size."""
    found = situation.standings.get(id(decision))
    if found is None:
        found = situation.standings[id(decision)] = _standing(decision, situation)
    return found


def _standing(decision: Winner, situation: Situation) -> Implementation | str:
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


def shown_exact(situation: Situation, decision: Winner) -> str:
    """What a decision about the problem itself is, for people."""
    return f"{_kind(situation, decision)} of exactly this problem"


def shown_near(situation: Situation, decision: Winner) -> str:
    """What a decision about another problem is, for people."""
    op, dims = situation.op, decision.problem.dims
    told = {*op.dynamic, *op.distributions}
    where = ", ".join(f"{name}={dims[name]}" for name in dims if name in told)
    return f"{_kind(situation, decision)} of {where}"


def _kind(situation: Situation, decision: Winner) -> str:
    return "shipped winner" if situation.winners.is_shipped(decision) else "winner"
