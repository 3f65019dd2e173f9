"""What a decision can have considered: the implementations of its finals, and those of the trials before it."""

from __future__ import annotations

from dataclasses import dataclass

from sqlalchemy import text
from sqlalchemy.orm import Session

IMPLEMENTATIONS = "implementations"
"""The entry of a run's details that has, by op, the fingerprint of each implementation that the run may have tried."""

ImplementationKey = tuple[str, str]
"""An implementation's name and its fingerprint."""


@dataclass(frozen=True)
class Considered:
    """Sources of implementations beside a decision, as this database knows them; ``run`` is the decision's run.

    ``entrants`` are those of the winner and of the finals; ``tried`` those with a trial under the decision's conditions
    that is no younger than it. ``has_trials``: the trial of the winner is here, and not the decision alone.
    ``previous`` is the uid of the decision whose winner this one was raced against, "" without one.
    """

    run: str
    entrants: frozenset[ImplementationKey]
    tried: frozenset[ImplementationKey]
    has_trials: bool
    previous: str


_SOURCE = "implementation.name, implementation.fingerprint"
_OF_CANDIDATE = "JOIN implementation ON implementation.id = candidate.implementation_id WHERE decision.uid = :uid"
_ENTRANT, _TRIED, _RUN, _TRIAL = range(4)
_ANSWERS = text(f"""
    SELECT {_ENTRANT}, {_SOURCE} FROM decision
    JOIN candidate ON candidate.id = decision.candidate_id {_OF_CANDIDATE}
    UNION SELECT {_ENTRANT}, {_SOURCE} FROM decision
    JOIN final ON final.decision_id = decision.id
    JOIN candidate ON candidate.id = final.candidate_id {_OF_CANDIDATE}
    UNION SELECT {_TRIED}, {_SOURCE} FROM decision
    JOIN protocol ON protocol.id = decision.protocol_id
    JOIN trial ON trial.problem_id = decision.problem_id AND trial.hardware_id = decision.hardware_id
        AND trial.software_id = decision.software_id AND trial.created <= decision.created
    JOIN protocol AS own ON own.id = trial.protocol_id AND own.regime = protocol.regime
    JOIN candidate ON candidate.id = trial.candidate_id {_OF_CANDIDATE}
    UNION SELECT {_RUN}, decision.run_id, CASE WHEN decision.verdict = 'new' THEN '' ELSE COALESCE(previous_uid, '') END
    FROM decision WHERE decision.uid = :uid
    UNION SELECT {_TRIAL}, trial.uid, '' FROM decision JOIN trial ON trial.uid = decision.trial_uid
    WHERE decision.uid = :uid
""")
"""Rows of (what it is, name, fingerprint), and of the run with the decision before, all in one question."""


def considered_by(session: Session, decision_uid: str) -> Considered | None:
    """What the decision with that uid can have considered; None where it is not in this database."""
    found: dict[int, set[ImplementationKey]] = {_ENTRANT: set(), _TRIED: set(), _RUN: set(), _TRIAL: set()}
    for kind, name, fingerprint in session.execute(_ANSWERS, {"uid": decision_uid}):
        found[kind].add((name, fingerprint))
    if not found[_RUN]:
        return None
    ((run, previous),) = found[_RUN]
    return Considered(run, frozenset(found[_ENTRANT]), frozenset(found[_TRIED]), bool(found[_TRIAL]), previous)
