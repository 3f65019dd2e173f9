"""What a decision can have considered: the implementations of its finals, and those of the trials before it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from sqlalchemy import CompoundSelect, Select, select
from sqlalchemy.orm import Session

from .models import CandidateRow, DecisionRow, FinalRow, ImplementationRow, ProtocolRow, TrialRow

IMPLEMENTATIONS = "implementations"
"""The entry of a run's details that has, by op, the fingerprint of each implementation that the run may have tried."""

ImplementationKey = tuple[str, str]
"""An implementation's name and its fingerprint."""


@dataclass(frozen=True)
class Considered:
    """Sources of implementations beside a decision, as this database knows them; ``run`` is the decision's run.

    ``entrants`` are those of the winner and of the finals; ``tried`` those with a trial under the decision's conditions
    that is no younger than it. ``has_trials``: the trial of the winner is here, and not the decision alone.
    """

    run: str
    entrants: frozenset[ImplementationKey]
    tried: frozenset[ImplementationKey]
    has_trials: bool


def considered_by(session: Session, decision_uid: str) -> Considered | None:
    """What the decision with that uid can have considered; None where it is not in this database."""
    columns = (
        DecisionRow.id, DecisionRow.candidate_id, DecisionRow.problem_id, DecisionRow.hardware_id,
        DecisionRow.software_id, DecisionRow.created, DecisionRow.run_id, DecisionRow.trial_uid, ProtocolRow.regime,
    )  # fmt: skip
    query = select(*columns).join(ProtocolRow, ProtocolRow.id == DecisionRow.protocol_id)
    decided = session.execute(query.where(DecisionRow.uid == decision_uid)).one_or_none()
    if decided is None:
        return None
    finals = select(FinalRow.candidate_id).where(FinalRow.decision_id == decided.id)
    trials = (
        select(TrialRow.candidate_id)
        .join(ProtocolRow, ProtocolRow.id == TrialRow.protocol_id)
        .where(
            TrialRow.problem_id == decided.problem_id,
            TrialRow.hardware_id == decided.hardware_id,
            TrialRow.software_id == decided.software_id,
            TrialRow.created <= decided.created,
            ProtocolRow.regime == decided.regime,
        )
    )
    winner = select(CandidateRow.id).where(CandidateRow.id == decided.candidate_id)
    own = select(TrialRow.id).where(TrialRow.uid == decided.trial_uid)
    return Considered(
        decided.run_id,
        _sources(session, finals.union(winner)),
        _sources(session, trials),
        decided.trial_uid is not None and session.execute(own).first() is not None,
    )


def _sources(session: Session, candidates: Select[Any] | CompoundSelect[Any]) -> frozenset[ImplementationKey]:
    query = (
        select(ImplementationRow.name, ImplementationRow.fingerprint)
        .join(CandidateRow, CandidateRow.implementation_id == ImplementationRow.id)
        .where(CandidateRow.id.in_(candidates))
        .distinct()
    )
    return frozenset((name, fingerprint) for name, fingerprint in session.execute(query))
