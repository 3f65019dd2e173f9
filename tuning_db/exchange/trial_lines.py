"""Lines of an export made from columns: what a row refers to is encoded once, and samples are copied as they stand."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Iterator, Sequence
from json.encoder import encode_basestring_ascii as quoted
from typing import Any

from sqlalchemy import Select, Text, cast, select
from sqlalchemy.orm import Session

from ..errors import InvalidRecordError
from ..identities import CandidateKey, ProblemKey, Protocol
from ..keys import canonical_json
from ..models import DecisionRow, FinalRow, TrialRow
from ..referred import TOGETHER, Referred

_NUMBERS = re.compile(r"\[[-+0-9.eE, ]*\]")


def text_of(identity: Any) -> str:
    """The canonical JSON of an identity, for ``Referred``."""
    match identity:
        case ProblemKey(op=op, op_version=version, dims=dims, static=static):
            return canonical_json({"op": op, "op_version": version, "dims": dims, "static": static})
        case CandidateKey(implementation=implementation, fingerprint=fingerprint, config=config):
            return canonical_json({"implementation": implementation, "fingerprint": fingerprint, "config": config})
        case Protocol(regime=regime, details=details):
            return canonical_json({"regime": regime, "details": details})
        case _:
            return canonical_json(identity)


def trial_lines(session: Session, chosen: Select[Any], texts: Referred) -> Iterator[str]:
    """A line for each trial of the query ``chosen``, in its order. ``chosen`` selects nothing but TrialRow's number."""
    query = chosen.with_only_columns(
        TrialRow.run_id, TrialRow.problem_id, TrialRow.candidate_id, TrialRow.hardware_id, TrialRow.software_id,
        TrialRow.protocol_id, TrialRow.artifact_hash, TrialRow.censored, TrialRow.created, TrialRow.median_us,
        TrialRow.message, TrialRow.status, TrialRow.stop_reason, TrialRow.uid,
        cast(TrialRow.samples, Text), cast(TrialRow.details, Text),
    ).execution_options(yield_per=TOGETHER)  # fmt: skip
    # the session would look at each row once more
    for rows in session.connection().execute(query).partitions():
        yield from _lines(rows, texts)


def _lines(rows: Sequence[Sequence[Any]], texts: Referred) -> Iterator[str]:
    _, problems, candidates, hardware, software, protocols, *_ = zip(*rows, strict=True)
    problem, candidate = texts.problems(problems), texts.candidates(candidates)
    machine, versions, protocol = texts.hardware(hardware), texts.software(software), texts.protocols(protocols)
    for row in rows:
        run, p, c, h, s, t, artifact, censored, created, us, message, status, reason, uid, samples, details = row
        yield (
            f'{{"kind":"trial","run":{quoted(run)},"trial":{{"artifact_hash":{quoted(artifact)},'
            f'"candidate":{candidate[c]},"censored":{"true" if censored else "false"},'
            f'"created":"{created.isoformat()}","details":{canonical_json(json.loads(details))},'
            f'"environment":{{"hardware":{machine[h]},"software":{versions[s]}}},"median_us":{_number(us)},'
            f'"message":{quoted(message)},"problem":{problem[p]},"protocol":{protocol[t]},"samples":{_samples(samples)},'
            f'"status":{quoted(status)},"stop_reason":{quoted(reason)},"uid":{quoted(uid)}}}}}\n'
        )


def finals_text(session: Session, decision_uid: str, texts: Referred) -> str:
    """The finals of a decision as a JSON array, in the order of their measurement."""
    query = (
        select(
            FinalRow.candidate_id, FinalRow.role, FinalRow.block, FinalRow.round, FinalRow.position, FinalRow.us
        )
        .join(DecisionRow, FinalRow.decision_id == DecisionRow.id)
        .where(DecisionRow.uid == decision_uid)
        .order_by(FinalRow.ordinal)
    )  # fmt: skip
    rows = session.connection().execute(query).all()
    known = texts.candidates({row[0] for row in rows if row[0] is not None})
    made = (
        f'{{"block":{block:d},"candidate":{"null" if candidate is None else known[candidate]},"position":{position:d},'
        f'"role":{quoted(role)},"round":{round_:d},"us":{_number(us)}}}'
        for candidate, role, block, round_, position, us in rows
    )
    return f"[{','.join(made)}]"


def _number(us: float | None) -> str:
    if us is None:
        return "null"
    if not math.isfinite(us):
        raise InvalidRecordError(f"a stored time is {us!r}, expected a finite number")
    return repr(float(us))


def _samples(text: str) -> str:
    """The canonical JSON of stored samples: a list of numbers is as it should be but for its blanks."""
    if _NUMBERS.fullmatch(text):
        return text.replace(" ", "")
    return canonical_json(json.loads(text))
