"""Lines of an exchange file that name nothing new, read without validating again what was validated before.

Of a million trials all but some thousands repeat the problems, candidates, environments and protocols of others: one
that was seen before is known by its text. A line that is not of the usual form is left to the thorough reading, which
accepts it or names its fault.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from datetime import UTC, datetime
from typing import Annotated, Any, Literal, TypeVar

import msgspec
from msgspec import Meta, Raw

from ..identities import CandidateKey, Environment, ProblemKey, Protocol
from ..records import Final, PlainTrial, Trial

_IDENTITIES = {"problem": ProblemKey, "candidate": CandidateKey, "environment": Environment, "protocol": Protocol}
_MOST_KNOWN = 100_000
_SURROGATE_OR_NUL = re.compile(r"\\u(?:0000|[dD][89a-fA-F])")

_Short = Annotated[str, Meta(min_length=1, max_length=64)]
_Count = Annotated[int, Meta(ge=0, lt=2**31)]


class _Trial(msgspec.Struct, forbid_unknown_fields=True):
    artifact_hash: Annotated[str, Meta(max_length=255)]
    candidate: Raw
    censored: bool
    created: Annotated[datetime, Meta(tz=True)]
    details: Raw
    environment: Raw
    median_us: Annotated[float, Meta(gt=0)] | None
    message: str
    problem: Raw
    protocol: Raw
    samples: Raw
    status: _Short
    stop_reason: str
    uid: _Short


class _TrialLine(msgspec.Struct, forbid_unknown_fields=True):
    kind: Literal["trial"]
    run: _Short
    trial: _Trial


class _Final(msgspec.Struct, forbid_unknown_fields=True):
    block: _Count
    candidate: Raw
    position: _Count
    role: Literal["candidate", "copy", "floor"]
    round: _Count
    us: float


class _DecisionLine(msgspec.Struct, forbid_unknown_fields=True):
    kind: Literal["decision"]
    run: Raw
    decision: Raw
    finals: list[_Final]


_trial_line = msgspec.json.Decoder(_TrialLine)
_decision_line = msgspec.json.Decoder(_DecisionLine)
_samples = msgspec.json.Decoder(list[float])
_details = msgspec.json.Decoder(dict[str, Any])

_Read = TypeVar("_Read")
_REFUSED = ValueError, RecursionError


def usual(decoder: msgspec.json.Decoder[_Read], text: str | Raw) -> _Read | None:
    """The value that ``decoder`` reads from JSON; None for text that it refuses, e.g. a number that is not finite."""
    try:
        return decoder.decode(text)
    except _REFUSED:
        return None


class KnownIdentities:
    """Identities that stood in valid lines, by their JSON."""

    def __init__(self) -> None:
        self._known: dict[str, dict[bytes, Any]] = {name: {} for name in _IDENTITIES}

    def learn(self, text: str, trial: Trial) -> None:
        """Remembers the identities of a valid line's trial."""
        if (read := _usual_line(_trial_line, text)) is not None:
            for name in _IDENTITIES:
                self._remember(name, getattr(read.trial, name), getattr(trial, name))

    def learn_finals(self, text: str, finals: Sequence[Final]) -> None:
        """Remembers the candidates of a valid line's finals."""
        if (read := _usual_line(_decision_line, text)) is not None:
            for one, final in zip(read.finals, finals, strict=True):
                self._remember("candidate", one.candidate, final.candidate)

    def trial(self, text: str) -> PlainTrial | None:
        """The trial of a line; None for a line that has to be read thoroughly."""
        if not text.startswith('{"kind":"trial"') or _unstorable(text):
            return None
        known = self._known
        try:
            line = _trial_line.decode(text)
            read = line.trial
            problem, candidate = known["problem"][bytes(read.problem)], known["candidate"][bytes(read.candidate)]
            environment = known["environment"][bytes(read.environment)]
            protocol = known["protocol"][bytes(read.protocol)]
            _samples.decode(read.samples)
            _details.decode(read.details)
        except (KeyError, *_REFUSED):
            return None
        at = read.created
        if at.tzinfo is not UTC or not 1970 <= at.year <= 9998:
            return None
        return PlainTrial(
            line.run, problem, candidate, environment, protocol, read.uid, read.status, read.message, read.median_us,
            str(read.samples, "utf-8"), read.censored, read.stop_reason, read.artifact_hash,
            str(read.details, "utf-8"), at,
        )  # fmt: skip

    def without_finals(self, text: str) -> tuple[str, tuple[Final, ...]] | None:
        """(the line of a decision without its finals, the finals); None for a line that has to be read thoroughly."""
        if (line := _usual_line(_decision_line, text)) is None:
            return None
        finals = tuple(self._finals(line.finals))
        if len(finals) < len(line.finals):
            return None
        run, decision = str(line.run, "utf-8"), str(line.decision, "utf-8")
        return f'{{"kind":"decision","run":{run},"decision":{decision}}}', finals

    def _finals(self, read: Sequence[_Final]) -> Iterator[Final]:
        """The finals up to the first whose candidate is not known."""
        known = self._known["candidate"]
        for one in read:
            name = bytes(one.candidate)
            candidate = known.get(name)
            if candidate is None and name != b"null":
                return
            final = object.__new__(Final)  # it was checked; what its __post_init__ does takes ten times as long
            final.__dict__.update(
                candidate=candidate, role=one.role, block=one.block, round=one.round, position=one.position, us=one.us
            )
            yield final

    def _remember(self, name: str, piece: Raw, identity: object) -> None:
        known = self._known[name]
        if len(known) >= _MOST_KNOWN:
            known.clear()
        if identity is not None:
            known.setdefault(bytes(piece), identity)


def _usual_line(decoder: msgspec.json.Decoder[_Read], text: str) -> _Read | None:
    """The value of a line's JSON; None for text that the decoder refuses or that is unstorable."""
    return None if _unstorable(text) else usual(decoder, text)


def _unstorable(text: str) -> bool:
    """True if JSON has lone surrogates or NUL, which no database's text can hold."""
    # one character is looked for fifty times as fast as two
    return "\\" in text and _SURROGATE_OR_NUL.search(text) is not None
