"""The work of problems and the peaks of devices, as runs have stored them, to relate times to what could be reached."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple

from tuning_db import StoredRun

WORK = "work"
PEAKS = "peaks"
"""The entries of a run's details, see ``registry.tuner.work``."""

_ITEMSIZES = {"float16": 2, "bfloat16": 2, "int8": 1, "uint8": 1, "float8_e4m3fn": 1, "float8_e5m2": 1}


class Work(NamedTuple):
    """The least work of a problem: bytes that must cross device memory, and FLOP."""

    bytes: float
    flop: float

    @property
    def intensity(self) -> float:
        """The arithmetic intensity, in FLOP per byte."""
        return self.flop / self.bytes


class Roof(NamedTuple):
    """The most that a device can do in a µs: bytes, and FLOP in the shortest type of its tensor cores; 0 if unknown."""

    bytes_per_us: float
    flop_per_us: float

    def flop_at(self, dtype: object) -> float:
        """The FLOP in a µs in a dtype, by name; 0 for types that no tensor core multiplies, or that are not known."""
        itemsize = _ITEMSIZES.get(str(dtype))
        return self.flop_per_us / itemsize if itemsize else 0.0


def works_of(runs: Iterable[StoredRun]) -> dict[str, Work]:
    """Key of a problem -> its work, of all runs that tell it."""
    found: dict[str, Work] = {}
    for run in runs:
        stored = run.details.get(WORK)
        for key, value in stored.items() if isinstance(stored, Mapping) else ():
            if isinstance(value, list | tuple) and len(value) == 2 and all(map(_is_amount, value)) and value[0] > 0:
                found[str(key)] = Work(*value)
    return found


def roofs_of(runs: Iterable[StoredRun]) -> dict[str, Roof]:
    """Key of a hardware -> its peaks, of the last of the runs that tell them."""
    found: dict[str, Roof] = {}
    for run in runs:
        stored = run.details.get(PEAKS)
        values = [stored.get(name) for name in Roof._fields] if isinstance(stored, Mapping) else [None]
        if all(map(_is_amount, values)):
            found.setdefault(run.environment.hardware_key, Roof(*values))
    return found


def _is_amount(value: Any) -> bool:
    """Whether a value can be an amount of work: a database may hold anything."""
    return isinstance(value, int | float) and not isinstance(value, bool) and 0 <= value < math.inf
