"""What a call is resolved by: the op, the problem, the implementations and winners, and which winners hold today."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field, replace

from tuning_db import Decision

from ...contract import Op
from ...device import Device
from ...discovery.catalog import Catalog
from ...errors import RegistryError
from ...implementation import Implementation
from ...problem import Problem
from ...space import Config
from ..plans.plan import Candidate, Draft
from .op_winners import OpWinners, Winner
from .questions import asked, refusals


@dataclass(frozen=True)
class Situation:
    """What resolution decides by.

    ``standings`` may be shared by situations that differ in the problem alone: of decisions by id, the implementation
    today or why the decision holds for no size. ``reads``: a database may be read meanwhile. ``verified``: only
    what was verified on this machine, with this software, may be chosen, else torch's own.
    """

    op: Op
    problem: Problem
    device: Device
    implementations: tuple[Implementation, ...]
    winners: OpWinners
    standings: dict[int, Implementation | str] = field(default_factory=dict, repr=False, compare=False)
    reads: bool = True
    verified: bool = False

    def of(self, problem: Problem, *, reads: bool = True) -> Situation:
        """The situation of another problem."""
        return replace(self, problem=problem, reads=reads)

    def named(self, name: str) -> Implementation | None:
        """The implementation of that name, if it is installed."""
        return next((found for found in self.implementations if found.name == name), None)


def usable(decision: Winner, situation: Situation) -> Candidate | str:
    """The decision's candidate as it is today, or why it does not hold here."""
    implementation, config = standing_of(decision, situation), decision.candidate.config
    if isinstance(implementation, str):
        return implementation
    reasons = refusals(implementation, situation.problem, situation.device)
    reasons = reasons or violations(implementation, config, situation)
    return f"{implementation.name}: {'; '.join(reasons)}" if reasons else Candidate(implementation, config)


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
    if situation.verified and situation.winners.is_shipped(decision):
        return "it was verified elsewhere"
    if situation.verified and (changed := changed_software(decision, situation.device)):
        return f"it was verified with other software ({', '.join(changed)})"
    return implementation


def changed_software(decision: Winner, device: Device) -> tuple[str, ...]:
    """What has another version today than when a decision was made: ``torch 2.11.0 then, 2.15.0 now``."""
    then, now = decision.environment.software, device.software()
    return tuple(
        f"{name} {then.get(name) or 'none'} then, {now.get(name) or 'none'} now"
        for name in sorted(then.keys() | now.keys())
        if then.get(name) != now.get(name)
    )


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
    told = f"{_kind(situation, decision)} of {apart_dims(situation.op, decision, situation.problem)}"
    where = decision.transfers.get(moved_along(situation.op, decision, situation.problem))
    return f"{told} (verified at {where.low} and {where.high})" if where else told


def apart_dims(op: Op, decision: Winner, problem: Problem) -> str:
    """The dimensions of a decision in which it may differ from a problem, a static one where it does: ``rows=9``."""
    dims, told = decision.problem.dims, {*op.dynamic, *op.distributions, moved_along(op, decision, problem)}
    return ", ".join(f"{name}={dims[name]}" for name in dims if name in told)


def moved_along(op: Op, decision: Winner, problem: Problem) -> str:
    """The static dimension along which a decision has to transfer to a problem, "" where they are equal."""
    dims = decision.problem.dims
    return next((name for name in op.transfers if dims.get(name) != problem.dims.get(name)), "")


def runs_verified_code(op: Op, decision: Winner, draft: Draft) -> bool:
    """Whether a decision's implementation runs ``draft``'s problem by code that was right where the decision transfers.

    True for a draft of another implementation, and where no static dimension differs.
    """
    name = moved_along(op, decision, draft.problem)
    if not name or decision.candidate.implementation != draft.candidate.implementation.name:
        return True
    where = decision.transfers.get(name)
    return where is not None and draft.code in where.codes


def _kind(situation: Situation, decision: Winner) -> str:
    return "shipped winner" if situation.winners.is_shipped(decision) else "winner"
