"""Keys: SHA-256 of canonical JSON, which is sorted and typed (``true`` is not ``1``); and values that JSON can hold."""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Callable, Mapping
from typing import Any

from .errors import InvalidRecordError

# made once: to make one takes longer than what it mostly encodes
_CANONICAL = json.JSONEncoder(sort_keys=True, separators=(",", ":"), allow_nan=False)


def canonical_json(value: object, default: Callable[[Any], Any] | None = None) -> str:
    """JSON with sorted keys and no blanks, so that equal data are equal text; ``default`` makes data of other types."""
    if default is None:
        return _CANONICAL.encode(value)
    return json.dumps(value, sort_keys=True, separators=(",", ":"), ensure_ascii=True, allow_nan=False, default=default)


def digest(value: object) -> str:
    """Hexadecimal SHA-256 of the canonical JSON of ``value``."""
    return hashlib.sha256(canonical_json(value).encode("ascii")).hexdigest()


def plain(value: object, where: str, *, lenient: bool = False) -> Any:
    """A deep copy of ``value`` in JSON's own types: tuples become lists, mappings become dicts.

    ``where`` names the value in errors. ``lenient`` writes numbers that are not finite as "nan", "inf" and "-inf"
    instead of refusing them; only what is never part of a key may be lenient.
    Raises InvalidRecordError for what JSON cannot hold.
    """
    if value is None or type(value) in {bool, int, str}:
        return value
    if isinstance(value, int | str):  # an IntEnum, numpy.str_: they would come back as the plain type
        return str.__str__(value) if isinstance(value, str) else int(value)
    if isinstance(value, float):
        return _number(float(value), where, lenient)
    if isinstance(value, Mapping):
        return {_name(name, where): plain(item, f"{where}[{name!r}]", lenient=lenient) for name, item in value.items()}
    if isinstance(value, list | tuple):
        return [plain(item, f"{where}[{index}]", lenient=lenient) for index, item in enumerate(value)]
    raise InvalidRecordError(
        f"{where} is a {type(value).__module__}.{type(value).__qualname__}, which JSON does not have",
        hint="give numbers, strings, booleans, None, and lists and mappings of them",
    )


def plain_mapping(value: Mapping[str, Any], where: str, *, lenient: bool = False) -> dict[str, Any]:
    """A copy of the mapping ``value``, made by :func:`plain`. Raises InvalidRecordError for any other type."""
    if not isinstance(value, Mapping):
        raise InvalidRecordError(f"{where} is a {type(value).__name__}, expected a mapping")
    copy: dict[str, Any] = plain(value, where, lenient=lenient)
    return copy


def plain_text(value: str) -> str:
    """``value`` without what a database's text cannot hold: NUL and lone surrogates become U+FFFD or ``?``."""
    return value.replace("\0", "\ufffd").encode("utf-8", "replace").decode("utf-8")


def finite(value: float, where: str) -> float:
    """``value`` as a plain float; raises InvalidRecordError for nan, infinities and all that is no number."""
    if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
        raise InvalidRecordError(f"{where} is {value!r}, expected a finite number")
    return float(value)


def finite_or_none(value: float | None, where: str) -> float | None:
    """:func:`finite`, or None for None."""
    return None if value is None else finite(value, where)


def _name(name: object, where: str) -> str:
    if not isinstance(name, str):
        raise InvalidRecordError(f"{where} has the key {name!r}, expected a string")
    return name


def _number(value: float, where: str, lenient: bool) -> float | str:
    if math.isfinite(value):
        return value
    if lenient:
        return str(value)
    raise InvalidRecordError(f"{where} is {value!r}, expected a finite number")
