"""Winners of two sources, or of one at two instants: which got slower or faster beyond noise, came, went or changed.

Only winners of one problem on one hardware under one regime are compared. Times of other hardware are never related.
"""

from __future__ import annotations

import math
import statistics
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Literal

from tuning_db import REGIMES, Decision, Final, Interval, ProblemKey, Store

from ..statistics.student_t import t_quantile
from .formats import device

ChangeKind = Literal["slower", "faster", "new", "gone", "same"]
CHANGE_KINDS: tuple[ChangeKind, ...] = ("slower", "faster", "new", "gone", "same")
"""The kinds in the order in which they are told."""

UNKNOWN_NOISE = 0.05
"""The noise of a winner whose finals are not in its source, and whose A/A noise is not known either, as in an export of
winners alone: two runs of one kernel on a quiet GPU differ by less."""

_CONFIDENCE = 0.995
"""The quantile of Student's t at each end of a winner's interval: a pair of 99% intervals rarely parts by chance."""

_Place = tuple[str, str, str]
"""Keys of the problem, the hardware and the regime of a winner."""


@dataclass(frozen=True)
class TimedWinner:
    """A winner with the interval of its time in µs."""

    decision: Decision
    time: Interval


@dataclass(frozen=True)
class WinnerChange:
    """One problem on one hardware: its winner before and after, of which one may be missing.

    ``ratio`` is the time after over the time before. ``changed``: another implementation or configuration.
    """

    kind: ChangeKind
    problem: ProblemKey
    hardware: str
    regime: str
    before: TimedWinner | None
    after: TimedWinner | None
    ratio: float | None = None
    changed: bool = False


@dataclass(frozen=True)
class WinnersComparison:
    """Every change, and the names of hardware that only one of the sources has, which was not compared."""

    changes: Sequence[WinnerChange]
    only_before: Sequence[str]
    only_after: Sequence[str]

    @property
    def ok(self) -> bool:
        """True if no winner got slower beyond noise."""
        return not any(change.kind == "slower" for change in self.changes)


def compare_winners(before: Sequence[TimedWinner], after: Sequence[TimedWinner]) -> WinnersComparison:
    """The changes from one list of winners to another, of hardware that both have."""
    old, new = _by_place(before), _by_place(after)
    old_hardware, new_hardware = _hardware(before), _hardware(after)
    shared = old_hardware.keys() & new_hardware.keys()
    places = [place for place in dict.fromkeys([*old, *new]) if place[1] in shared]
    return WinnersComparison(
        [_change(old.get(place), new.get(place)) for place in places],
        sorted({name for key, name in old_hardware.items() if key not in shared}),
        sorted({name for key, name in new_hardware.items() if key not in shared}),
    )


def stored_winners(store: Store, until: datetime | None = None) -> list[TimedWinner]:
    """The winners of a store, or those that it had at the instant ``until``, of every regime."""
    found = [one for regime in REGIMES for one in store.winners(regime=regime)]
    if until is not None:
        found = [one for winner in found if (one := _back_to(store, winner, until)) is not None]
    return [TimedWinner(one, time_of(one, store.finals(one.uid))) for one in found]


def time_of(decision: Decision, finals: Sequence[Final]) -> Interval:
    """The time of a winner in µs with its interval: of the finals' blocks, and never narrower than their A/A noise.

    A block is a process, so that the interval holds the noise between processes.
    """
    known = [half for half in (_spread(decision, finals), decision.aa and abs(decision.aa)) if half is not None]
    half = max(known, default=UNKNOWN_NOISE)
    median = decision.median_us
    return Interval(median, median * math.exp(-half), median * math.exp(half))


def _spread(decision: Decision, finals: Sequence[Final]) -> float | None:
    """Half the width of the interval of the mean log time over blocks, or over rounds of one block; None if unknown."""
    blocks: dict[int, list[float]] = defaultdict(list)
    for final in finals:
        if final.role == "candidate" and final.candidate == decision.candidate and final.us > 0:
            blocks[final.block].append(math.log(final.us))
    logs = [statistics.median(block) for block in blocks.values()]
    if len(logs) == 1:
        (logs,) = blocks.values()
    if len(logs) < 2:
        return None
    return t_quantile(_CONFIDENCE, len(logs) - 1) * statistics.stdev(logs) / math.sqrt(len(logs))


def _back_to(store: Store, winner: Decision, until: datetime) -> Decision | None:
    """The decision that was the winner at an instant: the winner, or a predecessor; None before the first."""
    if winner.created <= until:
        return winner
    known = {one.uid: one for one in store.history(winner.problem, winner.environment.hardware)}
    seen: set[str] = set()
    found: Decision | None = winner
    while found is not None and found.created > until and found.uid not in seen:
        seen.add(found.uid)
        found = known.get(found.previous or "")
    return found if found is not None and found.created <= until else None


def _by_place(winners: Sequence[TimedWinner]) -> Mapping[_Place, TimedWinner]:
    """The newest winner of each problem, hardware and regime: there may be one for each software."""
    found: dict[_Place, TimedWinner] = {}
    for winner in sorted(winners, key=lambda one: one.decision.created):
        one = winner.decision
        found[one.problem.key, one.environment.hardware_key, one.protocol.regime] = winner
    return found


def _hardware(winners: Sequence[TimedWinner]) -> dict[str, str]:
    """Names of hardware by key."""
    environments = (winner.decision.environment for winner in winners)
    return {one.hardware_key: device(one.hardware) for one in environments}


def _change(before: TimedWinner | None, after: TimedWinner | None) -> WinnerChange:
    some = after or before
    assert some is not None
    decision = some.decision
    told = (decision.problem, device(decision.environment.hardware), decision.protocol.regime, before, after)
    if before is None:
        return WinnerChange("new", *told)
    if after is None:
        return WinnerChange("gone", *told)
    kind: ChangeKind = "same"
    if after.time.low > before.time.high:
        kind = "slower"
    elif after.time.high < before.time.low:
        kind = "faster"
    ratio = after.time.value / before.time.value if before.time.value > 0 else None
    return WinnerChange(kind, *told, ratio, before.decision.candidate != after.decision.candidate)
