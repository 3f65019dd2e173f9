"""The situation that a call is resolved in: op, problem, device, implementations and winners; which winners hold."""

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
from .answers_or_faults import asked, refusals
from .op_winners import OpWinners, Winner


@dataclass(frozen=True)
class Situation:
    """Everything that resolution decides by.

    ``standings``, by a decision's id: its installed implementation, or why the decision holds for no size; situations
    that differ in the problem alone share it. ``reads``: a database may be read. ``verified``: only candidates verified
    on this machine with this software may be chosen, else torch's own functions.
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
    """The decision's candidate by the installed implementation, or why it cannot run the problem."""
    implementation, config = standing_of(decision, situation), decision.candidate.config
    if isinstance(implementation, str):
        return implementation
    reasons = refusals(implementation, situation.problem, situation.device)
    reasons = reasons or violations(implementation, config, situation)
    return f"{implementation.name}: {'; '.join(reasons)}" if reasons else Candidate(implementation, config)


def standing_of(decision: Winner, situation: Situation) -> Implementation | str:
    """The installed implementation of a decision, or why the decision holds for no size."""
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
    """Software whose version has changed since a decision was made: ``torch 2.11.0 then, 2.15.0 now``."""
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
    """Text for a decision about the problem itself."""
    return f"{_kind(situation, decision)} of exactly this problem"


def shown_near(situation: Situation, decision: Winner) -> str:
    """Text for a decision about another problem."""
    told = f"{_kind(situation, decision)} of {apart_dims(situation.op, decision, situation.problem)}"
    where = decision.transfers.get(moved_along(situation.op, decision, situation.problem))
    return f"{told} (verified at {where.low} and {where.high})" if where else told


def apart_dims(op: Op, decision: Winner, problem: Problem) -> str:
    """The decision's dimensions in which it may differ from a problem; static ones only if they do: ``rows=9``."""
    dims, told = decision.problem.dims, {*op.dynamic, *op.distributions, moved_along(op, decision, problem)}
    return ", ".join(f"{name}={dims[name]}" for name in dims if name in told)


def moved_along(op: Op, decision: Winner, problem: Problem) -> str:
    """The static dimension in which a decision and a problem differ, so that it must transfer; "" if none."""
    dims = decision.problem.dims
    return next((name for name in op.transfers if dims.get(name) != problem.dims.get(name)), "")


def runs_verified_code(op: Op, decision: Winner, draft: Draft) -> bool:
    """True if the code of ``draft`` was verified for the sizes to which a decision transfers.

    Also True for a draft of another implementation, and if no static dimension differs.
    """
    name = moved_along(op, decision, draft.problem)
    if not name or decision.candidate.implementation != draft.candidate.implementation.name:
        return True
    where = decision.transfers.get(name)
    return where is not None and draft.code in where.codes


def _kind(situation: Situation, decision: Winner) -> str:
    return "shipped winner" if situation.winners.is_shipped(decision) else "winner"
