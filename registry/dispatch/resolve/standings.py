"""Which stored decisions hold here, and by which candidate: the winner, or the next best of its finals.

A winner holds if its implementation is installed with the source and the kernels that were measured. Where the
implementation or the library that it adapts is absent, the decision still says what was second: the fastest other
implementation of the same finals that runs here takes the winner's place, with its own time.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import NamedTuple

from tuning_db import CandidateKey, Decision

from ...device import Device
from ...discovery import answers
from ...discovery.catalog import Catalog
from ...errors import RegistryError
from ...implementation import Implementation
from ...space import Config
from ..plans.plan import Candidate
from .answers_or_faults import asked, refusals
from .measured_kernels import kernels_changed
from .situation import Situation, Standing
from .winners import OpWinners, Winner

Runners = Mapping[str, Mapping[str, CandidateKey]]


class _Absent(NamedTuple):
    """Why no configuration of an implementation runs here."""

    reason: str


def usable(decision: Winner, situation: Situation) -> Candidate | str:
    """The candidate by which a decision answers, or why it cannot run the situation's problem."""
    standing = standing_of(decision, situation)
    if isinstance(standing, str):
        return standing
    implementation, config = standing.implementation, standing.config
    reasons = refusals(implementation, situation.problem, situation.device)
    reasons = reasons or violations(implementation, config, situation)
    return f"{implementation.name}: {'; '.join(reasons)}" if reasons else Candidate(implementation, config)


def standing_of(decision: Winner, situation: Situation) -> Standing | str:
    """The candidate by which a decision answers calls, or why the decision holds for no size."""
    found = situation.standings.get(id(decision))
    if found is None:
        found = _standing(decision, situation)
        # what it was measured against may be in a database that is not read now
        if isinstance(found, Standing) or situation.reads:
            situation.standings[id(decision)] = found
    return found


def _standing(decision: Winner, situation: Situation) -> Standing | str:
    if decision.problem.op_version != situation.op.version:
        return f"measured for version {decision.problem.op_version} of the op, which is now {situation.op.version}"
    found = _installed(decision.candidate, decision, situation)
    if isinstance(found, Implementation) and kernels_changed(decision, found, situation):
        found = f"the kernels of {found.name} have changed since they were measured"
    if isinstance(found, str):
        return found
    if situation.verified and situation.winners.placed.is_shipped(decision):
        return "it was verified elsewhere"
    if situation.verified and (changed := changed_software(decision, situation.device)):
        return f"it was verified with other software ({', '.join(changed)})"
    if isinstance(found, _Absent):
        return _next_best(decision, situation, found.reason) or found.reason
    return Standing(found, decision.candidate.config)


def _installed(key: CandidateKey, decision: Winner, situation: Situation) -> Implementation | _Absent | str:
    """The implementation that was measured as ``key``, why it is absent, or that it is another one now.

    An adapter of a library that is not installed refuses the problem that it was measured at.
    """
    implementation = situation.named(key.implementation)
    if implementation is None:
        return _Absent(f"{key.implementation} is not installed here")
    if asked(implementation, "fingerprint", implementation.fingerprint) == key.fingerprint:
        return implementation
    try:
        # with the layouts that were tuned: those of a call may be refused by any source
        own = situation.op.problem_of(decision.problem.dims)
    except RegistryError as fault:
        return fault.message
    if reasons := refusals(implementation, own, situation.device):
        return _Absent(f"{key.implementation}: {'; '.join(reasons)}")
    return f"the source of {key.implementation} has changed since it was measured"


def _next_best(decision: Winner, situation: Situation, instead_of: str) -> Standing | None:
    """The fastest other implementation of a decision's finals that is installed as it was measured."""
    runners = situation.winners.evidence.runners(decision, read=situation.reads)
    for name, over in sorted(decision.baselines.items(), key=lambda one: one[1]):
        key = runners.get(name)
        found = None if key is None else _installed(key, decision, situation)
        if key is not None and isinstance(found, Implementation):
            return Standing(found, key.config, over, instead_of)
    return None


def changed_software(decision: Winner, device: Device) -> tuple[str, ...]:
    """Software whose version has changed since a decision was made: ``torch 2.11.0 then, 2.15.0 now``."""
    then, now = decision.environment.software, device.software()
    return tuple(
        f"{name} {then.get(name) or 'none'} then, {now.get(name) or 'none'} now"
        for name in sorted(then.keys() | now.keys())
        if then.get(name) != now.get(name)
    )


def standing(
    decisions: Iterable[Decision], catalog: Catalog, device: Device, runners: Runners | None = None
) -> Iterator[tuple[Decision, str]]:
    """Each decision and why it would not answer a call of its own problem on ``device``, "" if it would.

    ``runners``, by a decision's uid: the best candidate of each implementation in its finals, one of which may answer
    for a winner that is absent.
    """
    winners = OpWinners(shipped_runners=runners or {})
    for decision in decisions:
        try:
            op = catalog.op(decision.problem.op)
            problem = op.problem_of(decision.problem.dims)
        except RegistryError as fault:
            yield decision, fault.message
            continue
        situation = Situation(op, problem, device, catalog.implementations(op.name), winners, reads=False)
        candidate = usable(decision, situation)
        yield decision, candidate if isinstance(candidate, str) else ""


def violations(implementation: Implementation, config: Config, situation: Situation) -> list[str]:
    """Why ``config`` is no point of the implementation's space for this problem; empty when it is one."""
    found = asked(
        implementation,
        "space",
        lambda: answers.space_of(implementation, situation.problem, situation.device).violations(config),
    )
    return [found] if isinstance(found, str) else found
