"""Lines of an export made from columns: the identities of a row are encoded once, samples are copied as they stand."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Collection, Iterator, Sequence
from json.encoder import encode_basestring_ascii as quoted
from typing import Any

import msgspec
from sqlalchemy import ColumnElement, Select, Text, case, cast, func, select
from sqlalchemy.orm import InstrumentedAttribute, Session

from ..database.bad_rows import readable
from ..errors import InvalidRecordError
from ..identities import CandidateKey, ProblemKey, Protocol
from ..keys import canonical_json
from ..models import DecisionRow, FinalRow, TrialRow
from ..referred import TOGETHER, Referred
from .quick_lines import usual

_ANY = msgspec.json.Decoder(dict[str, Any])
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
        _text(session, TrialRow.samples), _text(session, TrialRow.details),
    ).execution_options(yield_per=TOGETHER)  # fmt: skip
    # the session would look at each row once more
    for rows in session.connection().execute(query).partitions():
        yield from _lines(session, rows, texts)


def _text(session: Session, column: InstrumentedAttribute[Any]) -> ColumnElement[str]:
    """A column of JSON as text; of bytes, which SQLite holds as well, that SQLite reads as none: their digits."""
    if session.get_bind().dialect.name != "sqlite":
        return cast(column, Text)
    return cast(case((func.typeof(column) == "blob", func.hex(column)), else_=column), Text)


def _lines(session: Session, rows: Sequence[Sequence[Any]], texts: Referred) -> Iterator[str]:
    _, problems, candidates, hardware, software, protocols, *_ = zip(*rows, strict=True)
    problem, candidate = texts.problems(problems), texts.candidates(candidates)
    machine, versions, protocol = texts.hardware(hardware), texts.software(software), texts.protocols(protocols)

    def made(row: Sequence[Any]) -> str:
        run, p, c, h, s, t, artifact, censored, created, us, message, status, reason, uid, samples, details = row
        return (
            f'{{"kind":"trial","run":{quoted(run)},"trial":{{"artifact_hash":{quoted(artifact)},'
            f'"candidate":{candidate[c]},"censored":{"true" if censored else "false"},'
            f'"created":"{created.isoformat()}","details":{_details(details)},'
            f'"environment":{{"hardware":{machine[h]},"software":{versions[s]}}},"median_us":{_number(us)},'
            f'"message":{quoted(message)},"problem":{problem[p]},"protocol":{protocol[t]},"samples":{_samples(samples)},'
            f'"status":{quoted(status)},"stop_reason":{quoted(reason)},"uid":{quoted(uid)}}}}}\n'
        )

    return readable(session, "trial", rows, made)


def finals_texts(session: Session, decision_uids: Collection[str], texts: Referred) -> dict[str, str]:
    """The finals of decisions by uid, each as a JSON array in the order of measurement; no entry without finals."""
    query = (
        select(
            DecisionRow.uid,
            FinalRow.candidate_id, FinalRow.role, FinalRow.block, FinalRow.round, FinalRow.position, FinalRow.us,
        )
        .join(DecisionRow, FinalRow.decision_id == DecisionRow.id)
        .where(DecisionRow.uid.in_(decision_uids))
        .order_by(DecisionRow.id, FinalRow.ordinal)
    )  # fmt: skip
    rows = session.connection().execute(query).all()
    known = texts.candidates({row[1] for row in rows if row[1] is not None})
    found: dict[str, list[str]] = {}
    roles: dict[str, str] = {}

    def made(row: Any) -> tuple[str, str]:
        uid, candidate, role, block, round_, position, us = row
        if not type(block) is type(round_) is type(position) is int:
            raise TypeError(f"a final has the place {(block, round_, position)!r:.80}, expected numbers")
        named = roles.get(role) or roles.setdefault(role, quoted(role))
        return uid, (
            f'{{"block":{block},"candidate":{"null" if candidate is None else known[candidate]},'
            f'"position":{position},"role":{named},"round":{round_},"us":{_number(us)}}}'
        )

    for uid, text in readable(session, "final", rows, made):
        found.setdefault(uid, []).append(text)
    return {uid: f"[{','.join(finals)}]" for uid, finals in found.items()}


def _number(us: float | None) -> str:
    if type(us) is float and -math.inf < us < math.inf:
        return repr(us)
    if us is None:
        return "null"
    if not math.isfinite(us):
        raise InvalidRecordError(f"a stored time is {us!r}, expected a finite number")
    return repr(float(us))


def _samples(text: str) -> str:
    """The canonical JSON of stored samples; of a list of numbers only the blanks are removed."""
    if _NUMBERS.fullmatch(text):
        return text.replace(" ", "")
    return canonical_json(json.loads(text))


def _details(text: str) -> str:
    """Stored details as JSON, which need not be canonical; text that is no plain JSON is converted, or raises."""
    if text.isascii() and "\n" not in text and usual(_ANY, text) is not None:
        return text
    return canonical_json(json.loads(text))
