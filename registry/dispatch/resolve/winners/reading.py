"""Winners in memory: read once per op and hardware, with a time limit, never on the hot path."""

from __future__ import annotations

import os
import threading
from dataclasses import replace
from functools import partial

from tuning_db import Decision, MissingDatabaseError, TuningDBError
from tuning_db.database.location import VARIABLE
from tuning_db.snapshot import Snapshot, read_identity, read_winners

from .... import shipped
from ....contract import Op
from ....device import Device
from ....errors import ReleaseError, StoreError
from ....forking import renewed_in_child
from ....problem import canonical_json
from ....releases.pinning import RELEASE_VARIABLE, pinned_name
from ....releases.places import WinnersPlace, winners_place
from ....releases.site_copies import SECONDS as COPY_SECONDS
from ...warning import tell_caller
from ..learnt import LearntDefault, learnt_from
from .evidence import SECONDS
from .op_winners import OpWinners
from .rankings import ranked_candidates

REGIME = "cold"
"""Times with a cold L2 are compared, as in a model where other work runs between two calls."""

_failed: dict[str, str] = {}
"""Why databases cannot be read, by their URL and release: they are not read again without ``retry``."""


class Winners:
    """The winners of ``database`` (None: the default place) and the shipped ones, by op and device, read when needed.

    A process that is pinned to a release reads that instead, see ``registry.releases``; of a server's database it reads
    a copy on this machine. A missing database holds no winners. If one cannot be read, there is one warning, and only
    shipped winners are used. A row that cannot be decoded is skipped, with a warning for the first. ``retry``: read a
    database again that this process could not read before. ``anew``: renew the copy of a server's database first.
    """

    def __init__(self, database: str | None = None, *, retry: bool = False, anew: bool = False) -> None:
        self.database = database
        self._anew = anew
        self._read_from: WinnersPlace | None = None
        self._place = f"{database or os.environ.get(VARIABLE) or ''} {os.environ.get(RELEASE_VARIABLE, '')}"
        if retry:
            _failed.pop(self._place, None)
        self._lock = renewed_in_child(self, "_lock", threading.Lock)
        self._loaded: dict[tuple[str, str], OpWinners] = {}
        self._asked: dict[tuple[str, str], tuple[Op, Device]] = {}

    def of(self, op: Op, device: Device) -> OpWinners:
        """Winners of ``op`` on the hardware of ``device``. Raises ReleaseError if the pinned release is not found."""
        key = (op.name, canonical_json(dict(device.hardware())))
        found = self._loaded.get(key)
        if found is not None:
            return found
        with self._lock:
            known = self._place in _failed
            if key not in self._loaded:
                self._loaded[key] = self._read(op, device)
                self._asked[key] = op, device
            found = self._loaded[key]
        if found.fault and not known:
            self._warn("winners are not used", found.fault)
        return found

    def reread(self) -> Winners:
        """A new Winners with all that is in memory here, read again. Raises StoreError if something cannot be read."""
        fresh = Winners(self.database, retry=True, anew=True)
        shipped.forget()
        for key, (op, device) in list(self._asked.items()):
            found = fresh._read(op, device)
            if found.fault:
                raise StoreError(
                    f"winners were not reloaded: {found.fault}", hint="those in memory stay in use; `registry doctor`"
                )
            fresh._loaded[key] = found
            fresh._asked[key] = op, device
        return fresh

    def changed_since(self, old: Winners) -> int:
        """The number of problems whose winners differ from those of ``old``.

        All winners of a problem are compared: the first may be stale, so that another one answers.
        """
        changed = 0
        for key, found in self._loaded.items():
            op, _ = self._asked[key]
            was = old._loaded.get(key, OpWinners())
            now, before = (ranked_candidates(each.placed, op).items() for each in (found, was))
            changed += len({problem for problem, _ in now ^ before})
        return changed

    def learnt_since(self, old: Winners) -> bool:
        """True if the learnt rule of an op differs from that of ``old``."""
        return any(found.learnt != old._loaded.get(key, OpWinners()).learnt for key, found in self._loaded.items())

    def _read(self, op: Op, device: Device) -> OpWinners:
        stored, fault = self._own(op, device)
        ours, damage = _shipped(op, device)
        runners = shipped.runners(device.hardware(), REGIME) if ours else {}
        learnt, unread = _learnt(op, device, stored)
        return OpWinners(
            stored,
            "; ".join(filter(None, (fault, damage, unread))),
            ours,
            device.software(),
            self.database if self._read_from is None else self._read_from.database,
            learnt,
            {one.uid: runners[one.uid] for one in ours if one.uid in runners},
            partial(self._warn, "a winner is skipped"),
        )

    def place(self, seconds: float = COPY_SECONDS) -> WinnersPlace:
        """The database that is read, the same as long as this object is used and it is there.

        ``seconds``: how long to wait for a first copy of a server's. Raises as ``winners_place`` does.
        """
        if self._read_from is None or self._read_from.gone:
            self._read_from = winners_place(self.database, anew=self._anew, seconds=seconds)
        return self._read_from

    def identity(self) -> tuple[str, str]:
        """The id of the release that is read, and a hash of all winners that are read; "" for none.

        Raises ReleaseError if the pinned release is not found, StoreError for a database that cannot be read.
        """
        try:
            place = self.place()
            return place.release, read_identity(place.database, SECONDS)
        except MissingDatabaseError as fault:
            self._refuse_pinned(fault)
            return "", ""
        except TuningDBError as fault:
            raise StoreError(fault.message, hint=fault.hint) from fault

    def _own(self, op: Op, device: Device) -> tuple[Snapshot, str]:
        """The user's winners, and why they cannot be read, "" if they can."""
        if self._place in _failed and not pinned_name():
            return Snapshot(), _failed[self._place]
        try:
            place = self.place(COPY_SECONDS if self._anew else SECONDS)  # a call waits less than registry.reload()
            found = read_winners(place.database, op.name, device.hardware(), REGIME, SECONDS)
            return (replace(found, url=place.shown) if place.shown else found), ""
        except ReleaseError:
            raise
        except Exception as fault:  # a database, driver or file system may raise anything
            self._refuse_pinned(fault)
            if isinstance(fault, MissingDatabaseError):
                return Snapshot(), ""
            _failed[self._place] = shown = _shown(fault)
            return Snapshot(), shown

    def _refuse_pinned(self, fault: Exception) -> None:
        """Raise ReleaseError in a pinned process, which runs no other winners than the release's."""
        if name := pinned_name():
            told = f"release {name}" if self._read_from is None else self._read_from.shown
            hint = getattr(fault, "hint", "") if self._read_from is None else f"remove {self._read_from.database}"
            raise ReleaseError(f"{told}: {_shown(fault)}", hint=hint) from fault

    def _warn(self, what: str, why: str) -> None:
        tell_caller(self, what, f"{what}: {why}")


def _shown(fault: Exception) -> str:
    return str(fault) if isinstance(fault, TuningDBError) else f"{type(fault).__name__}: {fault}"


def _shipped(op: Op, device: Device) -> tuple[tuple[Decision, ...], str]:
    """The op's shipped decisions, and why they cannot be read, "" if they can."""
    try:
        return tuple(one for one in shipped.shipped(device.hardware(), REGIME) if one.problem.op == op.name), ""
    except (StoreError, ImportError) as fault:
        return (), str(fault)


def _learnt(op: Op, device: Device, stored: Snapshot) -> tuple[LearntDefault | None, str]:
    """The op's learnt rule: the user's, else a shipped one; and why it cannot be read, "" if it can."""
    try:
        if stored.learnt is not None:
            own = learnt_from(stored.learnt, f"learnt on this {device.type} by tune")
            if own.version == op.version:
                return own, ""
        found = shipped.learnt(device.hardware(), op.name)
        where = "" if found is None else f"learnt on {found[1]}, shipped with {shipped.origin()}"
        rule = None if found is None else learnt_from(found[0], where)
        return rule if rule is not None and rule.version == op.version else None, ""
    except StoreError as fault:
        return None, fault.message
