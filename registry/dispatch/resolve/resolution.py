"""The choices for a problem, best first: forced, exact winner, nearest winners, defaults, reference."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Literal

from ...contract import Op
from ...device import Device
from ...discovery import answers
from ...errors import UnsupportedError
from ...implementation import Implementation
from ...problem import Problem, Value
from ...space import Config
from ..forcing import Forced
from ..plans.plan import Candidate
from .answers_or_faults import asked, default_of, preference_of, refusals
from .expectations import Expectation, expected, expected_elsewhere
from .learnt import LearntDefault
from .situation import Situation, Standing, shown_exact, shown_near
from .standings import standing_of, usable, violations
from .winners import Winner, WinnerSource, source_of

Step = Literal["forced", "exact", "nearest", "default", "reference"]


@dataclass(frozen=True)
class Choice:
    """A candidate and why it is considered; ``candidate`` None is torch's reference.

    ``octaves`` is the distance to the tuned problem that ``decision`` is about, 0 for the problem itself.
    ``source`` is the decision's origin. ``over`` is the candidate's time over that of the decision's candidate, on the
    decision's problem; None if it was not measured there. ``like``: the other static dimensions whose winners suggest
    this default.
    """

    step: Step
    candidate: Candidate | None
    reason: str
    decision: Winner | None = None
    octaves: float = 0.0
    source: str = ""
    over: float | None = None
    like: Mapping[str, Value] | None = None


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
    yield from similar_choices(situation)
    yield from default_choices(situation, misses)
    yield Choice("reference", None, why_reference(situation))


def why_reference(situation: Situation) -> str:
    """Why torch's reference answers: the op has no implementation, or none that runs the problem."""
    if not situation.implementations:
        return answers.no_implementation(situation.op)
    return UNVERIFIED if situation.verified else "no implementation can run it"


UNVERIFIED = 'nothing near was verified on this machine, and the mode is "verified"'
"""The reason, for explain, that torch's own functions answer in mode "verified"."""


def forced_choice(situation: Situation, forced: Forced, misses: list[str]) -> Choice:
    """The implementation that ``using`` forces, with the given config, else its winning or default one."""
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
    for decision in situation.winners.index.exact(situation.op, situation.problem):
        candidate, standing = usable(decision, situation), standing_of(decision, situation)
        if isinstance(standing, Standing) and isinstance(candidate, Candidate):
            if standing.instead_of:
                misses.append(f"{shown_exact(situation, decision)}: {standing.instead_of}")
            yield exact_choice(situation, candidate, decision, standing.over)
        else:
            misses.append(f"{shown_exact(situation, decision)}: {candidate}")


def nearest_choices(situation: Situation, misses: list[str]) -> Iterator[Choice]:
    """Candidates that should be fast by times measured at other sizes, best first, each once.

    For an implementation that cannot run the problem only its nearest winner is added to ``misses``.
    """
    seen: set[str] = set()
    spent: set[WinnerSource] = set()
    refused: set[str] = set()
    for one in expected(situation, misses, spent):
        candidate, decision = one.candidate, one.near.decision
        implementation = candidate.implementation
        if implementation.name in refused or candidate.key in seen:
            continue
        seen.add(candidate.key)
        reasons = refusals(implementation, situation.problem, situation.device)
        if reasons:
            refused.add(implementation.name)
            if implementation.name == decision.candidate.implementation:
                spent.add(source_of(decision))
        else:
            reasons = violations(implementation, candidate.config, situation)
        if reasons:
            misses.append(f"{shown_near(situation, decision)}: {implementation.name}: {'; '.join(reasons)}")
        else:
            yield nearest_choice(situation, one)


def similar_choices(situation: Situation) -> Iterator[Choice]:
    """Defaults that should be fast by times measured at other static dimensions, best first, each once."""
    seen: set[str] = set()
    for one, static in expected_elsewhere(situation):
        candidate = one.candidate
        if candidate.key not in seen and not refusals(candidate.implementation, situation.problem, situation.device):
            seen.add(candidate.key)
            if not violations(candidate.implementation, candidate.config, situation):
                yield similar_choice(situation, one, static)


def similar_choice(situation: Situation, one: Expectation, static: Mapping[str, Value]) -> Choice:
    """The choice of a default that is expected to be fast by the winners at other static dimensions."""
    dims = situation.problem.dims
    others = ", ".join(f"{name}={static[name]}" for name in dims if static.get(name, dims[name]) != dims[name])
    there = situation.of(Problem(situation.op.name, {**dims, **static}))
    reason = f"nothing tuned is near; for {others}: {nearest_choice(there, one).reason}"
    return Choice("default", one.candidate, reason, like=static)


def exact_choice(situation: Situation, candidate: Candidate, decision: Winner, over: float) -> Choice:
    """The choice of a decision about exactly this problem; ``over``: the candidate's time over the winner's."""
    second = candidate.implementation.name != decision.candidate.implementation
    reason = f"the {'next best after the ' if second else ''}{shown_exact(situation, decision)}"
    return Choice("exact", candidate, reason, decision, source=situation.winners.placed.origin(decision), over=over)


def nearest_choice(situation: Situation, one: Expectation) -> Choice:
    """The choice of a candidate that is expected to be fast."""
    near = one.near
    shown = shown_near(situation, near.decision)
    if one.over == 1.0:
        reason = f"the {shown}"
    elif one.over is not None:
        reason = f"it was measured against the {shown}, and runs at other sizes, too"
    else:
        reason = f"its implementation was measured against the {shown}, and runs at other sizes, too"
    other = one.other
    if other is not None and other.candidate.implementation != one.candidate.implementation.name:
        reason += f"; better by both than {other.candidate.implementation}, the {shown_near(situation, other)}"
    source = situation.winners.placed.origin(near.decision)
    return Choice("nearest", one.candidate, reason, near.decision, near.octaves, source, one.over)


def default_choices(situation: Situation, misses: list[str]) -> Iterator[Choice]:
    """Default candidates of all supported implementations: by the learnt rule, then by declared preference.

    Of equals the first registered comes first. In mode "verified" only torch's own functions, if the op names an
    implementation by them.
    """
    problem, device, learnt = situation.problem, situation.device, situation.winners.learnt
    rank = {} if learnt is None else learnt.rank(problem.dims)
    ranked: list[tuple[int, float, Implementation]] = []
    for implementation in situation.implementations:
        if situation.verified and implementation.name != torchs_own(situation.op):
            continue
        if refusals(implementation, problem, device):
            continue
        preference = preference_of(implementation, problem, device)
        if isinstance(preference, str):
            misses.append(preference)
        else:
            ranked.append((rank.get(implementation.name, len(rank)), -preference, implementation))
    for _, preference, implementation in sorted(ranked, key=lambda one: one[:2]):
        config = learnt_config(situation.winners.learnt, implementation, problem, device)
        if isinstance(config, str):
            misses.append(config)
        else:
            choice = default_choice(situation, -preference, Candidate(implementation, config))
            yield replace(choice, reason=UNVERIFIED) if situation.verified else choice


def torchs_own(op: Op) -> str:
    """The name of the op's implementation by torch's own functions, its baseline; "" if the baseline is another one."""
    return op.baseline if op.baseline.startswith("torch.") else ""


def learnt_config(
    learnt: LearntDefault | None, implementation: Implementation, problem: Problem, device: Device
) -> Config | str:
    """The configuration of an implementation as a default, or why it has none.

    The configuration with which it won nearest, if the learnt rule has it and it is valid; else its own default.
    """
    config = None if learnt is None else learnt.config(implementation.name, problem.dims)
    if config is None:
        return default_of(implementation, problem, device)
    known = config
    faults = asked(implementation, "space", lambda: answers.space_of(implementation, problem, device).violations(known))
    return default_of(implementation, problem, device) if faults else config


def default_choice(situation: Situation, preference: float, candidate: Candidate) -> Choice:
    """The choice of a default candidate."""
    learnt, name, dims = situation.winners.learnt, candidate.implementation.name, situation.problem.dims
    reason = f"preferred by heuristic ({preference:g})"
    if learnt is not None:
        reason = learnt.reason(dims, name) if name in learnt.rank(dims) else reason
        if (known := learnt.config(name, dims)) is not None and known == candidate.config:
            reason += f"; its configuration won in the most similar of {learnt.problems} problems, {learnt.where}"
    return Choice("default", candidate, f"nothing tuned is near; {reason}")
