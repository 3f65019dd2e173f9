"""A race: submissions and the box's implementations, verified and timed by a tuning run, and ranked."""

from __future__ import annotations

import statistics
import tempfile
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from tuning_db import Decision, Final, Store, Trial

from ..device import Device
from ..discovery import answers
from ..discovery.catalog import Catalog
from ..errors import InvalidArgumentError
from ..problem import Problem, canonical_json
from ..tuner import run
from ..tuner.events import Event, Observer, ProblemSkipped
from ..tuner.options import TuneOptions
from .plugin_file import ForeignKernel

_FEWEST = 6
"""Times of which the median has an interval of 95 %: 2 / 2**6 is less than 5 %."""


@dataclass(frozen=True)
class RaceStanding:
    """An entrant's place on one problem.

    rank       from 1; 0 for one that is out
    status     "ok", or why it is out: a trial's status, "unsupported", "refused" for a file of no known form
    median_us  of the finals, or of its trial if it did not reach them
    low_us, high_us  the interval of 95 % of that median
    times_reference  the reference's time over its own; None where one of them has none
    in_finals  whether the times are of the finals, which are paired
    """

    problem: Problem | None
    name: str
    label: str
    is_submission: bool
    status: str
    reason: str = ""
    rank: int = 0
    median_us: float | None = None
    low_us: float | None = None
    high_us: float | None = None
    times_reference: float | None = None
    in_finals: bool = False


def race(
    problems: Sequence[Problem],
    submissions: Sequence[ForeignKernel],
    refused: Mapping[str, str],
    *,
    catalog: Catalog,
    device: Device,
    database: str | None = None,
    options: TuneOptions | None = None,
    observer: Observer = lambda _: None,
) -> list[RaceStanding]:
    """Every implementation of the problems' op, ranked on each; submissions are among the catalog's plugin files.

    ``database``: where trials and winners are stored; None: nowhere that lasts. Raises what ``tune`` raises.
    """
    if not problems:
        raise InvalidArgumentError("race: no problem", hint="give --shapes FILE, or a problem file that tells sizes")
    skipped: dict[str, str] = {}

    def observe(event: Event) -> None:
        if isinstance(event, ProblemSkipped):
            skipped[event.problem.key] = event.reason
        observer(event)

    with tempfile.TemporaryDirectory(prefix="race-") as folder:
        url = database or str(Path(folder) / "race.db")
        run.tune(
            problems, catalog=catalog, device=device, database=url, observer=observe,
            options=replace(options or TuneOptions(), retune=True),
        )  # fmt: skip
        labels = {one.name: one.label for one in submissions}
        standings: list[RaceStanding] = []
        with Store.open(url) as store:
            for problem in problems:
                standings += _of_problem(problem, labels, catalog, device, store, skipped.get(problem.key, ""))
    standings += [RaceStanding(None, label, label, True, "refused", why) for label, why in refused.items()]
    return standings


def _of_problem(
    problem: Problem, labels: Mapping[str, str], catalog: Catalog, device: Device, store: Store, skipped: str
) -> list[RaceStanding]:
    op = catalog.op(problem.op)
    key = canonical_json(dict(problem.dims))
    best: dict[str, Trial] = {}
    # newest first: a candidate that was refused after its trial has a second one
    known: set[str] = set()
    for trial in store.trials(op=problem.op):
        if canonical_json(dict(trial.problem.dims)) == key and trial.candidate.key not in known:
            known.add(trial.candidate.key)
            name = trial.candidate.implementation
            if name not in best or _order(trial) < _order(best[name]):
                best[name] = trial
    decisions = [one for one in store.winners(op=problem.op) if canonical_json(dict(one.problem.dims)) == key]
    finals = _times(store.finals(decisions[0].uid)) if decisions else {}
    found = [
        _standing(problem, one.name, labels, best.get(one.name), finals.get(one.name, ()), skipped)
        if one.name in best or skipped
        else _unsupported(problem, one.name, labels, [*answers.refusals(one, problem, device)], device)
        for one in catalog.implementations(problem.op)
        if device.type in one.device_types or one.name in labels
    ]
    return ranked(found, op.baseline, decisions[0] if decisions else None)


def _order(trial: Trial) -> tuple[bool, float]:
    return trial.status != "ok", trial.median_us or 0.0


def _times(finals: Sequence[Final]) -> dict[str, list[float]]:
    """The times of each implementation's fastest candidate in the finals, by implementation."""
    by_candidate: dict[tuple[str, str], list[float]] = defaultdict(list)
    for one in finals:
        if one.role == "candidate" and one.candidate is not None:
            by_candidate[one.candidate.implementation, one.candidate.key].append(one.us)
    found: dict[str, list[float]] = {}
    for (name, _), times in by_candidate.items():
        if name not in found or statistics.median(times) < statistics.median(found[name]):
            found[name] = times
    return found


def _unsupported(
    problem: Problem, name: str, labels: Mapping[str, str], reasons: Sequence[str], device: Device
) -> RaceStanding:
    told = "; ".join(reasons) or f"it was not tried on {device.name}: it does not run there, or time was up"
    return RaceStanding(problem, name, labels.get(name, name), name in labels, "unsupported", told)


def _standing(
    problem: Problem, name: str, labels: Mapping[str, str], trial: Trial | None, finals: Sequence[float], skipped: str
) -> RaceStanding:
    made = RaceStanding(problem, name, labels.get(name, name), name in labels, "skipped", skipped)
    if trial is None:
        return made
    if trial.status != "ok":
        return replace(made, status=trial.status, reason=trial.message)
    times = finals or trial.samples
    low, high = interval_of_median(times)
    median = statistics.median(finals) if finals else trial.median_us
    return replace(
        made, status="ok", reason="", median_us=median, low_us=low, high_us=high, in_finals=bool(finals)
    )  # fmt: skip


def interval_of_median(times: Sequence[float]) -> tuple[float | None, float | None]:
    """The two of the times between which their median lies with 95 %, by order; None for fewer than six times."""
    count = len(times)
    if count < _FEWEST:
        return None, None
    ordered, place = sorted(times), max(int((count - 1.96 * count**0.5) / 2), 0)
    return ordered[place], ordered[count - 1 - place]


def ranked(
    found: Sequence[RaceStanding],
    baseline: str,
    decision: Decision | None,
    over: Mapping[str, float] | None = None,
) -> list[RaceStanding]:
    """One problem's standings in order: the winner of ``decision`` first, then by time, those that are out last.

    ``over``: by name, times as multiples of one entrant's, taken side by side; by default those of ``decision``.
    They count for more than medians.
    """
    winner = decision.candidate.implementation if decision is not None else ""
    if over is None:
        over = {} if decision is None else {**decision.baselines, winner: 1.0}
    reference = next((one.median_us for one in found if one.name == baseline), None)

    def times_reference(one: RaceStanding) -> float | None:
        if baseline in over and one.name in over:
            return over[baseline] / over[one.name]
        return reference / one.median_us if reference and one.median_us else None

    valid = [one for one in found if one.status == "ok"]
    valid.sort(key=lambda one: (one.name != winner, over.get(one.name, _over(one, decision)), one.name))
    ranked = [replace(one, rank=place, times_reference=times_reference(one)) for place, one in enumerate(valid, 1)]
    out = sorted((one for one in found if one.status != "ok"), key=lambda one: (not one.is_submission, one.name))
    return [*ranked, *out]


def _over(one: RaceStanding, decision: Decision | None) -> float:
    scale = decision.median_us if decision is not None and decision.median_us else 1.0
    return (one.median_us or float("inf")) / scale
