"""Winners of the tuning database in memory: read once per op and hardware, never on the hot path."""

from __future__ import annotations

import math
import threading
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from tuning_db import Decision, MissingDatabaseError, TuningDBError

from ..contract import Op
from ..device import Device
from ..problem import Problem, Value, canonical_json
from .warning import warn_caller

REGIME = "cold"
"""What is compared: times with a cold L2, as in a model where other work ran between two calls."""


@dataclass(frozen=True)
class Near:
    """A winner of another problem: ``octaves`` is its distance along the dynamic dimensions, in powers of two."""

    decision: Decision
    octaves: float


@dataclass(frozen=True)
class OpWinners:
    """The decisions of one op on one hardware: this op version's first, then this software's, then the newest."""

    decisions: tuple[Decision, ...] = ()
    fault: str = ""

    def exact(self, problem: Problem) -> Iterator[Decision]:
        """The decisions for exactly these dimensions, one for each software."""
        wanted = canonical_json(dict(problem.dims))
        return (one for one in self.decisions if canonical_json(dict(one.problem.dims)) == wanted)

    def nearest(self, op: Op, problem: Problem) -> Iterator[Near]:
        """Decisions with the same static dimensions, the nearest first; of two equally near the larger problem's."""
        wanted = _static(op, problem.dims)
        found = [
            Near(decision, octaves_between(op, problem.dims, decision.problem.dims))
            for decision in self.decisions
            if decision.problem.dims.keys() == problem.dims.keys() and _static(op, decision.problem.dims) == wanted
        ]

        def rank(near: Near) -> tuple[float, list[float]]:
            return near.octaves, [-float(near.decision.problem.dims[name]) for name in sorted(op.dynamic)]

        yield from sorted((near for near in found if near.octaves > 0), key=rank)


def octaves_between(op: Op, one: Mapping[str, Value], other: Mapping[str, Value]) -> float:
    """Euclidean distance of the dynamic dimensions' base-2 logarithms: 1.0 is twice or half in one of them."""
    return math.hypot(*(math.log2(max(float(one[name]), 1) / max(float(other[name]), 1)) for name in op.dynamic))


def _static(op: Op, dims: Mapping[str, Value]) -> str:
    return canonical_json({name: value for name, value in dims.items() if name not in op.dynamic})


class Winners:
    """What the database at ``database`` (the default place when None) says, loaded op by op when first asked.

    A database that does not exist holds no winners; one that cannot be read is one warning, and no winners.
    """

    def __init__(self, database: str | None = None) -> None:
        self.database = database
        self._lock = threading.Lock()
        self._loaded: dict[tuple[str, str], OpWinners] = {}
        self._warned = False

    def of(self, op: Op, device: Device) -> OpWinners:
        """Winners of ``op`` on the hardware of ``device``."""
        key = (op.name, canonical_json(dict(device.hardware())))
        found = self._loaded.get(key)
        if found is not None:
            return found
        with self._lock:
            if key not in self._loaded:
                self._loaded[key] = self._read(op, device)
            found = self._loaded[key]
            warn = bool(found.fault) and not self._warned
            self._warned = self._warned or warn
        if warn:
            warn_caller(f"winners are not used: {found.fault}")
        return found

    def _read(self, op: Op, device: Device) -> OpWinners:
        try:
            from tuning_db import Store

            with Store.open(self.database, create=False, migrate=False) as store:
                decisions = store.winners(op=op.name, hardware=device.hardware(), regime=REGIME)
        except MissingDatabaseError:
            return OpWinners()
        except _database_faults() as fault:
            shown = str(fault) if isinstance(fault, TuningDBError) else f"{type(fault).__name__}: {fault}"
            return OpWinners(fault=shown)
        software = dict(device.software())

        def rank(decision: Decision) -> tuple[bool, bool]:
            return decision.problem.op_version != op.version, dict(decision.environment.software) != software

        return OpWinners(tuple(sorted(decisions, key=rank)))


def _database_faults() -> tuple[type[Exception], ...]:
    """What a database, its driver or a row in it may raise: none of it is the caller's."""
    faults = (TuningDBError, ImportError, OSError, ValueError, RuntimeError)
    try:
        from sqlalchemy.exc import SQLAlchemyError
    except ImportError:
        return faults
    return (*faults, SQLAlchemyError)
