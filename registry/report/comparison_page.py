"""The page of a comparison: which winners of two sources got slower or faster, came, went or changed."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime

from tuning_db import CandidateKey

from .comparison import CHANGE_KINDS, ChangeKind, WinnerChange, WinnersComparison
from .figures import geometric_mean
from .formats import ratio
from .intervals import Drawn
from .page import rendered
from .scales import LogScale

_NARROWEST = (0.9, 1.1)
_WIDEST = (0.1, 10.0)


@dataclass(frozen=True)
class ChangeRow:
    """A row of the table of problems; ``drawn`` is None unless both sources have a winner."""

    change: WinnerChange
    drawn: Drawn | None

    @property
    def winners(self) -> list[CandidateKey]:
        """The winners before and after, once if they are the same candidate."""
        found: list[CandidateKey] = []
        for one in (self.change.before, self.change.after):
            if one is not None and one.decision.candidate not in found:
                found.append(one.decision.candidate)
        return found


@dataclass(frozen=True)
class OpChanges:
    """The changes of one op on one hardware; ``ratio`` is the geometric mean of the times after over those before."""

    op: str
    hardware: str
    counts: Mapping[ChangeKind, int]
    changed: int
    ratio: float | None


def render_comparison(done: WinnersComparison, before: str, after: str, *, version: str, created: datetime) -> str:
    """The page as HTML; ``before`` and ``after`` name the sources."""
    ordered = sorted(done.changes, key=lambda change: (CHANGE_KINDS.index(change.kind), -(change.ratio or 0.0)))
    counts: Counter[ChangeKind] = Counter(change.kind for change in ordered)
    scale = _scale(ordered)
    return rendered(
        "compare.html.j2",
        verdict=_verdict(counts),
        rows=[ChangeRow(change, _drawn(change, scale)) for change in ordered],
        ops=_by_op(ordered),
        kinds=CHANGE_KINDS,
        counts={kind: counts[kind] for kind in CHANGE_KINDS if counts[kind]},
        only_before=done.only_before,
        only_after=done.only_after,
        before=before,
        after=after,
        version=version,
        created=created,
    )


def _verdict(counts: Mapping[ChangeKind, int]) -> str:
    if not sum(counts.values()):
        return "No winner to compare"
    told = [f"{counts[kind]} {kind}" for kind in ("slower", "faster") if counts[kind]]
    return ", ".join(told) or "Nothing got slower or faster"


def _by_op(changes: Sequence[WinnerChange]) -> list[OpChanges]:
    groups: dict[tuple[str, str], list[WinnerChange]] = defaultdict(list)
    for change in changes:
        groups[change.problem.op, change.hardware].append(change)
    return [
        OpChanges(
            op,
            hardware,
            Counter(change.kind for change in group),
            sum(change.changed for change in group),
            geometric_mean(change.ratio for change in group),
        )
        for (op, hardware), group in sorted(groups.items())
    ]


def _ends(change: WinnerChange) -> tuple[float, float, float, float] | None:
    """The interval of the time before, then that of the time after, over the median before."""
    if change.before is None or change.after is None or change.before.time.value <= 0:
        return None
    median, before, after = change.before.time.value, change.before.time, change.after.time
    return before.low / median, before.high / median, after.low / median, after.high / median


def _scale(changes: Sequence[WinnerChange]) -> LogScale:
    """The logarithmic axis on which the intervals of all changes are drawn."""
    ends = [end for change in changes for end in _ends(change) or () if end > 0]
    low, high = max(min([*ends, _NARROWEST[0]]), _WIDEST[0]), min(max([*ends, _NARROWEST[1]]), _WIDEST[1])
    return LogScale(low, high, 3.0, 117.0)


def _drawn(change: WinnerChange, scale: LogScale) -> Drawn | None:
    ends = _ends(change)
    if ends is None or not change.ratio or change.ratio <= 0:
        return None
    noise = (scale(ends[0]), scale(ends[1]))
    text = f"{ratio(change.ratio)} ({ratio(ends[2])} to {ratio(ends[3])})"
    clear = change.kind in {"slower", "faster"}
    return Drawn(scale(ends[2]), scale(change.ratio), scale(ends[3]), scale(1.0), noise, text, clear)
