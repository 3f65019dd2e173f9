"""Winners in memory, the user's before those shipped: read once per op and hardware, never on the hot path."""

from __future__ import annotations

import math
import threading
from collections.abc import Collection, Hashable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from heapq import heapify, heappop
from typing import NamedTuple

from tuning_db import Decision, MissingDatabaseError, TuningDBError

from ... import shipped
from ...contract import Op
from ...device import Device
from ...errors import StoreError
from ...problem import Problem, Value, canonical_json, exact
from ..warning import warn_caller

REGIME = "cold"
"""What is compared: times with a cold L2, as in a model where other work ran between two calls."""


@dataclass(frozen=True)
class Near:
    """A winner of another problem: ``octaves`` is its distance along the dynamic dimensions, in powers of two."""

    decision: Decision
    octaves: float


@dataclass(frozen=True)
class OpWinners:
    """The decisions of one op on one hardware: this op version's first, then this software's, then the newest.

    ``decisions`` are the user's, from ``database``; ``shipped`` came with the package and stand behind them: one is
    reached where the user has none for the same problem, or none that holds.
    """

    decisions: tuple[Decision, ...] = ()
    fault: str = ""
    shipped: tuple[Decision, ...] = ()
    database: str = ""
    _of_families: dict[Hashable, tuple[_Tuned, ...]] | None = field(default=None, init=False, repr=False, compare=False)

    def exact(self, problem: Problem) -> tuple[Decision, ...]:
        """The decisions for exactly these dimensions, one for each software, the user's first."""
        return self._by_dims.get(_key(problem.dims), ())

    def nearest(self, op: Op, problem: Problem) -> Iterator[Near]:
        """Decisions with the problem's static dimensions, the nearest first.

        Of two equally near that of the same distribution of data, then of the one declared first, then the user's, then
        the larger problem's.
        """
        tuned = self._families(op).get(_key(problem.dims, _loose(op)))
        if tuned is None:
            return
        names = sorted(op.dynamic)
        here = [_size(problem.dims[name]) for name in names]
        ranked = [
            (_octaves(here, one.sizes), _unlike(op, problem.dims, one.decision.problem.dims), *one.tie, one.decision)
            for one in tuned
        ]
        heapify(ranked)
        this = _key(problem.dims)
        while ranked:
            octaves, *_, decision = heappop(ranked)
            if octaves > 0 or _key(decision.problem.dims) != this:
                yield Near(decision, octaves)

    def ranking(self) -> dict[str, tuple[str, ...]]:
        """The candidates that are considered for each problem, the first first, as text."""
        found: dict[str, tuple[str, ...]] = {}
        for one in self._all:
            key = {"version": one.problem.op_version, "dims": dict(one.problem.dims)}
            winner = one.candidate
            told = {"name": winner.implementation, "source": winner.fingerprint, "config": dict(winner.config)}
            text = canonical_json(key)
            found[text] = (*found.get(text, ()), canonical_json(told))
        return found

    def is_shipped(self, decision: Decision) -> bool:
        """Whether the user does not have it in a database."""
        return decision.uid in self._shipped_uids

    def source(self, decision: Decision) -> str:
        """Where a decision comes from, for people."""
        return f"shipped with {shipped.origin()}" if self.is_shipped(decision) else self.database

    @cached_property
    def _all(self) -> tuple[Decision, ...]:
        return (*self.decisions, *(one for one in self.shipped if self.is_shipped(one)))

    @cached_property
    def _by_dims(self) -> dict[Hashable, tuple[Decision, ...]]:
        found: dict[Hashable, list[Decision]] = {}
        for one in self._all:
            found.setdefault(_key(one.problem.dims), []).append(one)
        return {key: tuple(decisions) for key, decisions in found.items()}

    def _families(self, op: Op) -> dict[Hashable, tuple[_Tuned, ...]]:
        """Decisions by static dimensions; made once for the op that these are the winners of."""
        if self._of_families is None:
            found: dict[Hashable, list[_Tuned]] = {}
            loose, names = _loose(op), sorted(op.dynamic)
            for place, one in enumerate(self._all):
                dims = one.problem.dims
                if loose <= dims.keys() and all(isinstance(dims[name], int | float) for name in names):
                    larger = tuple([-float(dims[name]) for name in names])
                    tie = self.is_shipped(one), larger, place
                    tuned = _Tuned(one, tuple([_size(dims[name]) for name in names]), tie)
                    found.setdefault(_key(dims, loose), []).append(tuned)
            object.__setattr__(self, "_of_families", {key: tuple(family) for key, family in found.items()})
        assert self._of_families is not None
        return self._of_families

    @cached_property
    def _shipped_uids(self) -> frozenset[str]:
        # who has imported the file has them as their own
        return frozenset(one.uid for one in self.shipped) - {one.uid for one in self.decisions}


class _Tuned(NamedTuple):
    """A decision with its dynamic dimensions as numbers, in the order of their names, and what breaks a tie."""

    decision: Decision
    sizes: tuple[float, ...]
    tie: tuple[bool, tuple[float, ...], int]


def octaves_between(op: Op, one: Mapping[str, Value], other: Mapping[str, Value]) -> float:
    """Euclidean distance of the dynamic dimensions' base-2 logarithms: 1.0 is twice or half in one of them."""
    names = sorted(op.dynamic)
    return _octaves([_size(one[name]) for name in names], [_size(other[name]) for name in names])


def _octaves(one: Sequence[float], other: Sequence[float]) -> float:
    # quotients: halves and doubles are equally far, which differences of logarithms are not to the last bit
    return math.hypot(*[math.log2(size / far) for size, far in zip(one, other, strict=True)])


def _size(value: Value) -> float:
    return max(float(value), 1)


def _key(dims: Mapping[str, Value], without: Collection[str] = ()) -> Hashable:
    """Dimensions as a key, equal where their canonical JSON is."""
    return frozenset([(name, exact(value)) for name, value in dims.items() if name not in without])


def _loose(op: Op) -> frozenset[str]:
    """Dimensions that may differ between a problem and one whose winner it takes."""
    return op.dynamic | op.distributions.keys()


def _unlike(op: Op, one: Mapping[str, Value], other: Mapping[str, Value]) -> list[int]:
    """By distribution 0 where both have the same one, else the place from 1 on of the other's among those declared."""
    return [
        0 if one[name] == other[name] else 1 + (names.index(str(other[name])) if other[name] in names else len(names))
        for name, names in op.distributions.items()
    ]


class Winners:
    """What the database at ``database`` (the default place when None) says, and what is shipped, read when first asked.

    A database that does not exist holds no winners; one that cannot be read is one warning, and what is shipped.
    """

    def __init__(self, database: str | None = None) -> None:
        self.database = database
        self._lock = threading.Lock()
        self._loaded: dict[tuple[str, str], OpWinners] = {}
        self._asked: dict[tuple[str, str], tuple[Op, Device]] = {}
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
                self._asked[key] = op, device
            found = self._loaded[key]
            warn = bool(found.fault) and not self._warned
            self._warned = self._warned or warn
        if warn:
            warn_caller(f"winners are not used: {found.fault}")
        return found

    def reread(self) -> Winners:
        """What is in memory as it is stored now. Raises StoreError when something cannot be read."""
        fresh = Winners(self.database)
        shipped.forget()
        for key, (op, device) in list(self._asked.items()):
            found = self._read(op, device)
            if found.fault:
                raise StoreError(
                    f"winners were not reloaded: {found.fault}", hint="those in memory stay in use; `registry doctor`"
                )
            fresh._loaded[key] = found
            fresh._asked[key] = op, device
        return fresh

    def changed_since(self, old: Winners) -> int:
        """Problems whose winners of ``old`` are others here, or that only one of them knows.

        All of a problem's count, not only the first: that may be stale, so that another one answers.
        """
        pairs = [(found, old._loaded.get(key, OpWinners())) for key, found in self._loaded.items()]
        return sum(len({dims for dims, _ in new.ranking().items() ^ was.ranking().items()}) for new, was in pairs)

    def renew_locks(self) -> None:
        """In a forked child."""
        self._lock = threading.Lock()

    def _read(self, op: Op, device: Device) -> OpWinners:
        decisions, database, fault = self._own(op, device)
        ours, damage = _shipped(op, device)
        return OpWinners(
            _ranked(decisions, op, device),
            "; ".join(filter(None, (fault, damage))),
            _ranked(ours, op, device),
            database,
        )

    def _own(self, op: Op, device: Device) -> tuple[list[Decision], str, str]:
        """The user's decisions, the database that they are from, and why they cannot be read."""
        try:
            from tuning_db import Store

            with Store.open(self.database, create=False, migrate=False) as store:
                return store.winners(op=op.name, hardware=device.hardware(), regime=REGIME), store.url, ""
        except MissingDatabaseError:
            return [], "", ""
        except _database_faults() as fault:
            shown = str(fault) if isinstance(fault, TuningDBError) else f"{type(fault).__name__}: {fault}"
            return [], "", shown


def _shipped(op: Op, device: Device) -> tuple[list[Decision], str]:
    """The op's shipped decisions, and why they cannot be read."""
    try:
        return [one for one in shipped.shipped(device.hardware(), REGIME) if one.problem.op == op.name], ""
    except (StoreError, ImportError) as fault:
        return [], str(fault)


def _ranked(decisions: Iterable[Decision], op: Op, device: Device) -> tuple[Decision, ...]:
    software = dict(device.software())

    def rank(decision: Decision) -> tuple[bool, bool]:
        return decision.problem.op_version != op.version, dict(decision.environment.software) != software

    return tuple(sorted(decisions, key=rank))


def _database_faults() -> tuple[type[Exception], ...]:
    """What a database, its driver or a row in it may raise: none of it is the caller's."""
    faults = (TuningDBError, ImportError, OSError, ValueError, RuntimeError)
    try:
        from sqlalchemy.exc import SQLAlchemyError
    except ImportError:
        return faults
    return (*faults, SQLAlchemyError)
