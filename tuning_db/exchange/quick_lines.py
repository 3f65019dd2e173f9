"""Lines of an exchange file that name nothing new, read without validating again what was validated before.

Of a million trials all but some thousands repeat the problems, candidates, environments and protocols of others. A line
of which anything is not just so is left to the thorough reading, which accepts it or names its fault.
"""

from __future__ import annotations

import json
import marshal
import math
import re
from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any, NoReturn

from ..identities import CandidateKey, Environment, ProblemKey, Protocol
from ..records import Final, Trial

_SURROGATE_OR_NUL = re.compile(r"\\u(?:0000|[dD][89a-fA-F])")
_UTC = re.compile(r"(?:19[7-9]|[2-8]\d\d|9[0-8]\d)\d-\d\d-\d\dT\d\d:\d\d:\d\d(?:\.\d{6})?\+00:00")
_TRIAL = frozenset(Trial.__dataclass_fields__)
_FINAL = frozenset(Final.__dataclass_fields__)
_IDENTITIES = {"problem": ProblemKey, "candidate": CandidateKey, "environment": Environment, "protocol": Protocol}
_MOST_KNOWN = 100_000


def _no_number(text: str) -> NoReturn:
    raise ValueError(f"{text} is no number of JSON")


_decode = json.JSONDecoder(parse_constant=_no_number).decode


class KnownIdentities:
    """Identities that stood in valid lines, by their JSON data."""

    def __init__(self) -> None:
        self._known: dict[str, dict[bytes, Any]] = {name: {} for name in _IDENTITIES}

    def learn(self, text: str, trial: Trial) -> None:
        """Remembers the identities of a valid line's trial."""
        fields = _decoded(text).get("trial", {})
        for name in _IDENTITIES:
            self._remember(name, fields.get(name), getattr(trial, name))

    def learn_finals(self, text: str, finals: tuple[Final, ...]) -> None:
        """Remembers the candidates of a valid line's finals."""
        for data, final in zip(_decoded(text).get("finals", ()), finals, strict=False):  # none of an unusual line
            self._remember("candidate", data.get("candidate"), final.candidate)

    def trial(self, text: str) -> tuple[str, Trial] | None:
        """(uid of the run, trial) of a line; None for a line that has to be read thoroughly."""
        data = _decoded(text)
        fields = data.get("trial")
        if data.keys() != {"kind", "run", "trial"} or type(fields) is not dict or fields.keys() != _TRIAL:
            return None
        found = {name: self._found(name, fields[name]) for name in _IDENTITIES}
        if None in found.values() or not (_is_uid(data["run"]) and _is_plain_trial(fields)):
            return None
        try:
            created = datetime.fromisoformat(fields["created"]).replace(tzinfo=UTC)
        except ValueError:
            return None
        return data["run"], _made(Trial, {**fields, **found, "samples": tuple(fields["samples"]), "created": created})

    def without_finals(self, text: str) -> tuple[str, tuple[Final, ...]] | None:
        """(the line of a decision without its finals, the finals); None for a line that has to be read thoroughly."""
        data = _decoded(text)
        given = data.pop("finals", None)
        if type(given) is not list:
            return None
        finals = []
        for fields in given:
            if type(fields) is not dict or fields.keys() != _FINAL or not _is_plain_final(fields):
                return None
            candidate = None if fields["candidate"] is None else self._found("candidate", fields["candidate"])
            if candidate is None and fields["candidate"] is not None:
                return None
            finals.append(_made(Final, {**fields, "candidate": candidate}))
        return json.dumps(data), tuple(finals)

    def _found(self, name: str, data: Any) -> Any:
        return self._known[name].get(marshal.dumps(data, 2))

    def _remember(self, name: str, data: Any, identity: object) -> None:
        if type(data) is not dict:
            return
        known = self._known[name]
        if len(known) >= _MOST_KNOWN:
            known.clear()
        known[marshal.dumps(data, 2)] = identity


def _decoded(text: str) -> dict[str, Any]:
    """The line's data, empty for a line in which anything is unusual."""
    if "\\u" in text and _SURROGATE_OR_NUL.search(text):
        return {}
    try:
        data = _decode(text)
    except (ValueError, RecursionError):
        return {}
    return data if type(data) is dict else {}


def _is_uid(value: object) -> bool:
    return type(value) is str and 0 < len(value) <= 64 and value.isascii()


def _is_plain_trial(fields: Mapping[str, Any]) -> bool:
    """Whether all but the identities is what a tuner writes, in the very types that a record has."""
    us, samples = fields["median_us"], fields["samples"]
    return (
        all(type(fields[name]) is str for name in ("message", "stop_reason", "artifact_hash"))
        and type(fields["censored"]) is bool
        and _is_uid(fields["uid"])
        and _is_uid(fields["status"])
        and len(fields["artifact_hash"]) <= 255
        and (us is None or (type(us) is float and 0 < us < math.inf))
        and type(samples) is list
        and {*map(type, samples)} <= {float}
        and math.isfinite(sum(samples))
        and type(fields["details"]) is dict
        and type(fields["created"]) is str
        and _UTC.fullmatch(fields["created"]) is not None
    )


def _is_plain_final(fields: Mapping[str, Any]) -> bool:
    numbers = fields["block"], fields["round"], fields["position"]
    return (
        all(type(number) is int and 0 <= number < 2**31 for number in numbers)
        and type(fields["us"]) is float
        and math.isfinite(fields["us"])
        and fields["role"] in {"candidate", "copy", "floor"}
    )


def _made(kind: type[Any], fields: dict[str, Any]) -> Any:
    """A record of these fields, which were checked. What its own ``__post_init__`` does takes ten times as long."""
    record = object.__new__(kind)
    record.__dict__.update(fields)
    return record
