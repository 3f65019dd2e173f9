"""Lines of an exchange file that name nothing new, read without validating again what was validated before.

Of a million trials all but some thousands repeat the problems, candidates, environments and protocols of others. A line
is cut where an export writes the names of its fields. If every piece between two names is one JSON value, then the
pieces are the values of these fields: a piece that was seen before is known by its text, the others are checked. A line
of which anything is not just so is left to the thorough reading, which accepts it or names its fault.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Iterator, Mapping, Sequence
from datetime import datetime
from functools import lru_cache
from typing import Any, NoReturn

from ..identities import CandidateKey, Environment, ProblemKey, Protocol
from ..records import Final, PlainTrial, Trial

_IDENTITIES = {"problem": ProblemKey, "candidate": CandidateKey, "environment": Environment, "protocol": Protocol}
_MOST_KNOWN = 100_000

_TRIAL = '{"kind":"trial","run":'
_SURROGATE_OR_NUL = re.compile(r"\\u(?:0000|[dD][89a-fA-F])")
_UTC = re.compile(r'"((?:19[7-9]|[2-8]\d\d|9[0-8]\d)\d-\d\d-\d\dT\d\d:\d\d:\d\d(?:\.\d{6})?\+00:00)"', re.ASCII)
_SHORT = re.compile(r'"([\w.:-]{1,64})"', re.ASCII)
_TEXT = re.compile(r'"([^"\\\x00-\x1f]*)"')
_FLOAT = r"(?:0|[1-9]\d{0,14})(?:\.\d{1,25}(?:e[-+]\d\d)?|e[-+]\d\d)"
_TIME = re.compile(_FLOAT, re.ASCII)
_TIMES = re.compile(rf"\[(?:{_FLOAT}(?:,(?!\])|(?=\])))*+\]", re.ASCII)
_DECISION_END = re.compile(r',"kind":"decision","run":"[^"\\]*"\}\s*')
_NUMBER = re.compile(r"0|[1-9]\d{0,8}", re.ASCII)


def _no_number(text: str) -> NoReturn:
    raise ValueError(f"{text} is no number of JSON")


def _finite(text: str) -> float:
    return value if math.isfinite(value := float(text)) else _no_number(text)


_decode = json.JSONDecoder(parse_constant=_no_number, parse_float=_finite).decode


class KnownIdentities:
    """Identities that stood in valid lines, by their JSON."""

    def __init__(self) -> None:
        self._known: dict[str, dict[str, Any]] = {name: {} for name in _IDENTITIES}

    def learn(self, text: str, trial: Trial) -> None:
        """Remembers the identities of a valid line's trial."""
        pieces = _pieces(text)
        if all(map(_is_json, pieces)):
            for name, piece in zip(_IDENTITIES, pieces, strict=False):
                self._remember(name, piece, getattr(trial, name))

    def learn_finals(self, text: str, finals: Sequence[Final]) -> None:
        """Remembers the candidates of a valid line's finals."""
        items = (_without_finals(text) or ("", []))[1]
        if len(items) == len(finals) and all(_is_json(f"{{{item}}}") for item in items):
            for item, final in zip(items, finals, strict=True):
                block, candidate, place, us = _final_pieces(item)
                if _place(block, place) is not None and _is_json(us) and _is_json(candidate):
                    self._remember("candidate", candidate, final.candidate)

    def trial(self, text: str) -> PlainTrial | None:
        """The trial of a line; None for a line that has to be read thoroughly."""
        if not text.startswith(_TRIAL):
            return None
        pieces = _pieces(text)
        identities: list[Any] = [self._known[name].get(piece) for name, piece in zip(_IDENTITIES, pieces, strict=False)]
        if None in identities:
            return None
        run, uid, status, message, us, samples, censored, reason, artifact, details, created = pieces[4:]
        texts: list[Any] = [_short(run), _short(status), _text(message), _text(reason), _text(artifact)]
        named, at = _SHORT.fullmatch(uid), _instant(created)
        if None in texts or named is None or at is None or not _is_plain(censored, us, samples, details):
            return None
        run, status, message, reason, artifact = texts
        if len(artifact) > 255:
            return None
        problem, candidate, environment, protocol = identities
        return PlainTrial(
            run, problem, candidate, environment, protocol, named[1], status, message,
            None if us == "null" else float(us), samples, censored == "true", reason, artifact, details, at,
        )  # fmt: skip

    def without_finals(self, text: str) -> tuple[str, tuple[Final, ...]] | None:
        """(the line of a decision without its finals, the finals); None for a line that has to be read thoroughly."""
        if (split := _without_finals(text)) is None:
            return None
        finals = tuple(self._finals(split[1]))
        return (split[0], finals) if len(finals) == len(split[1]) else None

    def _finals(self, items: Sequence[str]) -> Iterator[Final]:
        """The finals up to the first that is unusual."""
        known = self._known["candidate"]
        for item in items:
            block, name, place, us = _final_pieces(item)
            candidate, fields = known.get(name), _place(block, place)
            if fields is None or (candidate is None and name != "null") or not _TIME.fullmatch(us):
                return
            final = object.__new__(Final)  # it was checked; what its __post_init__ does takes ten times as long
            final.__dict__.update(fields, candidate=candidate, us=float(us))
            yield final

    def _remember(self, name: str, piece: str, identity: object) -> None:
        known = self._known[name]
        if len(known) >= _MOST_KNOWN:
            known.clear()
        if identity is not None:
            known[piece] = identity


def _pieces(text: str) -> tuple[str, ...]:
    """The pieces of a trial's line in the order of PlainTrial's fields, the run behind the identities.

    Where a name is missing, so are the details: "". The names behind the details are looked for from the end, since a
    protocol has details that may have the same names.
    """
    text, _, end = text.rpartition(',"uid":')
    uid, _, end = end.partition("}")
    text, _, reason = text.rpartition(',"stop_reason":')
    text, _, status = text.rpartition(',"status":')
    text, _, samples = text.rpartition(',"samples":')
    text, _, protocol = text.rpartition(',"protocol":')
    text, _, problem = text.rpartition(',"problem":')
    text, _, message = text.rpartition(',"message":')
    text, _, us = text.rpartition(',"median_us":')
    text, _, environment = text.rpartition(',"environment":')
    run, _, text = text[len(_TRIAL) :].partition(',"trial":{"artifact_hash":')
    artifact, _, text = text.partition(',"candidate":')
    candidate, _, text = text.partition(',"censored":')
    censored, _, text = text.partition(',"created":')
    created, _, details = text.partition(',"details":')
    if end.strip() != "}":
        details = ""
    own = (run, uid, status, message, us, samples, censored, reason, artifact, details, created)
    return (problem, candidate, environment, protocol, *own)


def _final_pieces(item: str) -> tuple[str, str, str, str]:
    """``block``, the candidate, what stands behind it, and the time of a final; the last is "" where a name is
    missing.
    """
    block, _, text = item.partition(',"candidate":')
    candidate, _, text = text.partition(',"position":')
    place, _, us = text.partition(',"us":')
    return block, candidate, place, us


def _without_finals(text: str) -> tuple[str, list[str]] | None:
    """(a decision's line with no finals, the inside of each of its finals)."""
    before, _, behind = text.partition('"finals":[{')
    inside, _, end = behind.rpartition("}]")
    if not _DECISION_END.fullmatch(end):
        return None
    return f'{before}"finals":[]{end}', inside.split("},{")


def _is_plain(censored: str, us: str, samples: str, details: str) -> bool:
    """Whether these pieces of a trial are what a tuner writes, so that a record would hold the same."""
    return (
        censored in {"true", "false"}
        and (us == "null" or (_TIME.fullmatch(us) is not None and float(us) > 0))
        and _TIMES.fullmatch(samples) is not None
        and details[:1] == "{"
        and _is_json(details)
    )


def _is_json(text: str) -> bool:
    """Whether the text is one JSON value without lone surrogates, NUL and numbers that are not finite."""
    if "\\u" in text and _SURROGATE_OR_NUL.search(text):
        return False
    try:
        _decode(text)
    except (ValueError, RecursionError):
        return False
    return True


@lru_cache(maxsize=4096)
def _short(piece: str) -> str | None:
    """The text of a piece that names something; None for an unusual one."""
    found = _SHORT.fullmatch(piece)
    return None if found is None else found[1]


@lru_cache(maxsize=1024)
def _text(piece: str) -> str | None:
    """The text of a piece; None for one that is no text, or one with lone surrogates or NUL."""
    if found := _TEXT.fullmatch(piece):
        return found[1]
    return str(_decode(piece)) if piece[:1] == '"' and _is_json(piece) else None


def _instant(piece: str) -> datetime | None:
    if (found := _UTC.fullmatch(piece)) is None:
        return None
    try:
        return datetime.fromisoformat(found[1])
    except ValueError:
        return None


@lru_cache(maxsize=65_536)
def _place(block: str, place: str) -> Mapping[str, Any] | None:
    """``block``, ``position``, ``role``, ``round`` of a final; None where anything is unusual."""
    named, _, block = block.partition(":")
    position, _, rest = place.partition(',"role":')
    role, _, round_ = rest.partition(',"round":')
    if (
        named != '"block"'
        or role not in {'"candidate"', '"copy"', '"floor"'}
        or not all(map(_NUMBER.fullmatch, (block, position, round_)))
    ):
        return None
    return {"block": int(block), "role": role[1:-1], "round": int(round_), "position": int(position)}
