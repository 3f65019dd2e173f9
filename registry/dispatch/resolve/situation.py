"""The situation that a call is resolved in: op, problem, device, implementations and winners."""

from __future__ import annotations

from dataclasses import dataclass, field, replace

from ...contract import Op
from ...device import Device
from ...implementation import Implementation
from ...problem import Problem
from ...space import Config
from ..plans.plan import Draft
from .winners import OpWinners, Winner


@dataclass(frozen=True)
class Standing:
    """The candidate by which a decision answers calls: its winner, or the next best of its finals.

    over        the candidate's time over the winner's, on the decision's problem: 1.0 for the winner
    instead_of  why the winner itself cannot answer; "" for the winner
    """

    implementation: Implementation
    config: Config
    over: float = 1.0
    instead_of: str = ""


@dataclass(frozen=True)
class Situation:
    """Everything that resolution decides by.

    ``standings``, by a decision's id: see ``standings.standing_of``; situations that differ in the problem alone share
    it, and ``kernels_changed``, by an implementation's name and a hash of kernels: see the function of that name in
    ``measured_kernels``. ``reads``: a database may be read. ``verified``: only candidates verified
    on this machine with this software may be chosen, else torch's own functions. ``files``: the paths of the plugin
    files that define or implement the op.
    """

    op: Op
    problem: Problem
    device: Device
    implementations: tuple[Implementation, ...]
    winners: OpWinners
    standings: dict[int, Standing | str] = field(default_factory=dict, repr=False, compare=False)
    kernels_changed: dict[tuple[str, str], bool] = field(default_factory=dict, repr=False, compare=False)
    reads: bool = True
    verified: bool = False
    files: tuple[str, ...] = ()

    def of(self, problem: Problem, *, reads: bool = True) -> Situation:
        """The situation of another problem."""
        return replace(self, problem=problem, reads=reads)

    def named(self, name: str) -> Implementation | None:
        """The implementation of that name, if it is installed."""
        return next((found for found in self.implementations if found.name == name), None)


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
    dims, others = decision.problem.dims, problem.dims
    for name in op.transfers:  # a generator would take twice as long, at each new size of a call
        if dims.get(name) != others.get(name):
            return name
    return ""


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
    return "shipped winner" if situation.winners.placed.is_shipped(decision) else "winner"
